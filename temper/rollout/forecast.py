"""How a roll-out would go if nothing went wrong: the planner itself, with minutes instead of nodes."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from temper.base.nodes import RACK, alike, counted, duration, utc
from temper.rollout.machine import after, begun
from temper.rollout.model import Mode, NodeState, Observation, Outcome, Record, Rollout, Step, StepResult
from temper.rollout.planner import decide, limits_of, moment, wave_name
from temper.rollout.policy import Drain, Policy, aim
from temper.rollout.snapshots import sentence
from validation.model.grouping import by_key

if TYPE_CHECKING:
    from temper.rollout.fleet import Candidate

DONE = StepResult(Outcome.DONE)
#: Beyond that a forecast says nothing.
HORIZON = timedelta(days=366)
#: Beyond that the expected end is not computed: it takes two seconds, and with their square.
MOST_NODES = 1000
#: Makes a name of a group a pattern.
WILD = frozenset("*?[")


@dataclass(frozen=True)
class WaveForecast:
    """A wave: its nodes in their order, and when the first begins and the last has returned."""

    number: int
    nodes: tuple[str, ...]
    begins: datetime
    ends: datetime


@dataclass(frozen=True)
class Forecast:
    """All waves, when the last has soaked, and what keeps the roll-out from its end, if something does."""

    waves: tuple[WaveForecast, ...]
    left_out: dict[str, str]
    ends: datetime
    obstacle: str = ""


def step_minutes(policy: Policy, step: Step) -> int:
    """Return what is expected of a step, in minutes: all that the policy grants it."""
    expected = {
        Step.STAGE: policy.stage_minutes,
        Step.DRAIN: policy.drain_minutes,
        Step.BASELINE: policy.measure_minutes,
        Step.INSTALL: policy.work_minutes - 2 * policy.measure_minutes,
        Step.PROVE: policy.measure_minutes,
    }
    return expected.get(step, 0)


def forecast(rollout: Rollout, now: datetime, taken: Mapping[Step, float] | None = None) -> Forecast:
    """Return every wave of a roll-out with its times, if no step fails and nobody else drains a node.

    `taken` are minutes that steps have taken so far; the others take all that the policy grants them.
    """
    records = dict(rollout.records)
    rollout = replace(rollout, records=records)
    begins: dict[str, datetime] = {}
    ends: list[tuple[datetime, int, str]] = []
    serial, start = itertools.count(), now
    obstacle = ""

    def time_of(step: Step) -> timedelta:
        granted = step_minutes(rollout.policy, step)
        return timedelta(minutes=granted if taken is None else taken.get(step, granted))

    for name, record in records.items():
        if record.step:
            ended = max(now, (record.step_since or now) + time_of(record.step))
            heapq.heappush(ends, (ended, next(serial), name))
    while True:
        decision = decide(rollout, now, Observation())
        records.update(decision.moves)
        for step in decision.starts:
            records[step.node] = begun(records[step.node], step.transition, now)
            begins.setdefault(step.node, now)
            heapq.heappush(ends, (now + time_of(step.transition.step), next(serial), step.node))
        rollout = replace(rollout, mode=decision.mode, reason=decision.reason)
        soonest = [ends[0][0]] if ends else []
        soonest += [decision.until] if decision.until else []
        if not soonest or min(soonest) - start > HORIZON:
            obstacle = "" if decision.mode is Mode.DONE else decision.reason or decision.sentence
            break
        now = max(now, min(soonest))
        while ends and ends[0][0] <= now:
            _, _, name = heapq.heappop(ends)
            records[name] = after(records[name], DONE, now)
    return Forecast(_waves(records, begins), _left_out(records), now, obstacle)


def expected_end(rollout: Rollout, now: datetime, taken: Mapping[Step, float]) -> datetime | None:
    """Return when a roll-out ends, if steps take as long as they have `taken` so far.

    None where nobody can tell.
    """
    if rollout.mode is not Mode.RUNNING or len(rollout.nodes) > MOST_NODES:
        return None
    try:
        seen = forecast(rollout, now, taken)
    except Exception:  # noqa: BLE001 - what people only read must not end a roll-out
        return None
    return None if seen.obstacle else seen.ends


def _waves(records: dict[str, Record], begins: dict[str, datetime]) -> tuple[WaveForecast, ...]:
    found = []
    for number in sorted({records[name].wave for name in begins}):
        names = sorted(
            (name for name in begins if records[name].wave == number), key=lambda name: begins[name]
        )
        found.append(
            WaveForecast(number, tuple(names), begins[names[0]], max(records[name].since for name in names))
        )
    return tuple(found)


def _left_out(records: dict[str, Record]) -> dict[str, str]:
    return {name: record.reason for name, record in records.items() if record.state is NodeState.LEFT_OUT}


def plan_text(rollout: Rollout, found: Sequence[Candidate], now: datetime) -> str:
    """Return the plan for the operator.

    Waves with order and times, transactions, who is left out, and why.
    """
    policy, seen = rollout.policy, forecast(rollout, now)
    taking_part = len(rollout.nodes) - len(seen.left_out)
    most = policy.max_unavailable.of(len(rollout.nodes), 1)
    stack = f"Stack {rollout.stack}" if rollout.stack else ""
    to = aim(stack, policy.kernel)
    lines = [
        f"{to[0].upper()}{to[1:]}: {taking_part} of {len(rollout.nodes)} nodes, at most {most} unavailable "
        f"at a time, {policy.failure_budget.of(len(rollout.nodes))} failures tolerated"
    ]
    for wave in seen.waves:
        lines.append(
            f"{wave_name(wave.number)}: {counted(wave.nodes)}; {moment(wave.begins)} to {moment(wave.ends)} "
            f"({duration((wave.ends - wave.begins).total_seconds())})"
        )
    if seen.waves:
        whole = (seen.ends - now).total_seconds()
        lines.append(f"It ends after {duration(whole)} at the latest, if every step takes all of its time.")
        lines.append(_of_each_node(policy))
    if snapshot := sentence(policy):
        lines.append(snapshot)
    if seen.obstacle:
        lines.append(f"It would not end by itself: {seen.obstacle}")
    lines += _transactions(found)
    lines += _without_rack(rollout, seen.left_out)
    own = {node.name: (node.name, node.address) for node in found}
    lines += [f"left out: {counted(names)}: {reason}" for names, reason in alike(seen.left_out, own)]
    if not taking_part:
        lines.append(
            "No node takes part, and nothing was changed: correct what is said above, and run this again."
        )
    return "\n".join(lines)


def _without_rack(rollout: Rollout, left_out: Collection[str]) -> Iterator[str]:
    """Yield a line for each limit of racks that does not reach some of the nodes, with those."""
    for pattern, number in rollout.policy.group_limits.items():
        if not pattern.startswith(RACK) or WILD.isdisjoint(pattern):
            continue
        limit = ((pattern, number),)
        without = [
            name
            for name, node in rollout.nodes.items()
            if name not in left_out and not limits_of(node.groups, limit)
        ]
        if without:
            yield (
                f"group_limits: {pattern} does not hold for {counted(without)}, which no group or variable "
                "puts in a rack"
            )


def _of_each_node(policy: Policy) -> str:
    """Return what is done to each node, and for how long it is out of service."""
    drain = (
        f"is drained ({policy.drain})" if policy.drain is not Drain.NONE else "has to be idle (drain: none)"
    )
    out = (policy.drain_minutes + policy.work_minutes) * 60
    return (
        f"Each node {drain}, is measured {policy.measure_runs} times, gets its packages, reboots, and is "
        f"measured {policy.measure_runs} times again: out of service for at most {duration(out)}, and "
        f"{duration(policy.way_back_minutes * 60)} more where it goes back."
    )


def plan_dict(rollout: Rollout, found: Sequence[Candidate], now: datetime) -> dict[str, Any]:
    """Return the plan as JSON values; instants are ISO 8601 in UTC."""
    policy, seen = rollout.policy, forecast(rollout, now)
    return {
        "stack": rollout.stack,
        "kernel": policy.kernel,
        "max_unavailable": policy.max_unavailable.of(len(rollout.nodes), 1),
        "failures_tolerated": policy.failure_budget.of(len(rollout.nodes)),
        "waves": [
            {
                "wave": wave.number,
                "nodes": list(wave.nodes),
                "begins": utc(wave.begins),
                "ends": utc(wave.ends),
            }
            for wave in seen.waves
        ],
        "ends": utc(seen.ends),
        "obstacle": seen.obstacle,
        "left_out": seen.left_out,
        "nodes": {
            node.name: {
                "cohort": node.cohort,
                "transaction": list(node.transaction),
                "problems": list(node.problems),
            }
            for node in found
        },
    }


def _transactions(found: Sequence[Candidate]) -> list[str]:
    """Return what the package manager would change, once for all nodes of which it is the same."""
    groups = by_key(((node.cohort, node.transaction), node.name) for node in found if not node.problems)
    lines = []
    for (cohort, transaction), names in groups.items():
        lines += [f"{counted(names)}: {cohort}", *(f"  {line}" for line in transaction)]
    return lines
