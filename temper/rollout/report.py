"""What happened in a roll-out: the timeline of every node with minutes, and a sentence for each state."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from temper.base.nodes import counted, duration, printable, utc
from temper.rollout.machine import choices, upcoming
from temper.rollout.model import ENDED, Course, Mode, NodeState, Outcome, Record, Rollout, Step, Try
from temper.rollout.planner import NAMED, moment, wave_name
from temper.rollout.policy import aim
from validation.model.grouping import by_key

if TYPE_CHECKING:
    from temper.rollout.store import Event

SCHEMA_VERSION = 1
#: What is true of a node in each state.
SENTENCES: dict[NodeState, str] = {
    NodeState.PENDING: "It waits for its turn; nothing was done.",
    NodeState.LEASED: "This controller has its lease; it is in service.",
    NodeState.STAGED: "The packages of both stacks are on it and verified; it is in service.",
    NodeState.DRAINED: "It is out of service, and nothing uses its GPUs; nothing was changed.",
    NodeState.BASELINE: "It was measured on the former driver; nothing was changed.",
    NodeState.INSTALLED: "The new stack is installed and not loaded yet.",
    NodeState.REBOOTED: "It has rebooted into the new stack.",
    NodeState.LOADED: "The new driver is loaded, with all GPUs.",
    NodeState.SETTLED: "The GPUs have their settings.",
    NodeState.PROVEN: "The new driver is proven; it is not in service yet.",
    NodeState.RETURNED: "It is in service with the new driver.",
    NodeState.ROLLING_BACK: "It is on its way back to the former stack, out of service.",
    NodeState.ROLLED_BACK: "It is in service with the former stack, measured as no worse than before.",
    NodeState.FAILED: "It stays out of service until somebody has looked at it.",
    NodeState.LEFT_OUT: "It takes no part; nothing was changed on it.",
}


def sentence(record: Record) -> str:
    """Return what is true of a node, why, and what is being done."""
    said = SENTENCES[record.state]
    if record.withheld:
        has = "the new driver" if record.state is NodeState.RETURNED else "the former stack"
        said = f"It has {has}, and somebody else keeps it out of service: {record.withheld.rstrip('.')}."
    transition = upcoming(record)
    if record.course is Course.RELEASE and not record.ended:
        said += " It is released as it was found."
    if record.course is Course.KEEP_OUT and not record.ended:
        said += " It will be kept out of service."
    if record.step and transition:
        said += f" Step {record.step} {transition.what}, since {moment(record.step_since or record.since)}."
    elif record.not_before and not record.ended:
        said += f" The next attempt is at {moment(record.not_before)}."
    if snapshot := record.facts.get("snapshot"):
        said += f" Its former state is kept: {snapshot.rstrip('.')}."
    if record.overruled:
        said += f" It was accepted {record.overruled.rstrip('.')}."
    return f"{said} Reason: {record.reason.rstrip('.')}." if record.reason else said


#: Makes a command of its words, in a sentence.
TYPED = "`temper rollout {}`".format
#: What each verb does with a node that failed, and with one that was rolled back or left out.
MEANINGS = {
    Try.RETRY: (
        "another try: it goes on where it failed, and is measured against its baseline",
        "another try from the beginning, with a new baseline",
    ),
    Try.MEASURE_AGAIN: ("the same with a new baseline, where the old one was bad", ""),
    Try.ACCEPT: (
        "you have looked: it returns to service as it is, without a measurement",
        "another try in which its speed and known weaknesses do not decide",
    ),
}


def what_to_do(rollout: Rollout, now: datetime, command: Callable[[str], str] = TYPED) -> list[str]:
    """Return what somebody types where a node has failed or the roll-out does not run, a line each.

    `command` makes a command of words behind `temper rollout`.
    """
    alike = by_key(
        ((record.state is NodeState.FAILED, tuple(choices(record, now))), name)
        for name, record in rollout.records.items()
        if record.state in (NodeState.FAILED, NodeState.ROLLED_BACK) or record.refused
    )
    lines = []
    for (failed, verbs), names in alike.items():
        one = names[0] if len(names) == 1 else "NODE"
        lines.append(f"What to do about {counted(names)}, after you have read the reason above:")
        for verb in verbs:
            if meaning := MEANINGS[verb][0 if failed else 1]:
                reason = "" if verb is Try.RETRY else " --reason WHY"
                lines.append(f"  {command(f'{verb} {one}{reason}')}: {meaning}")
    if rollout.mode in (Mode.HELD, Mode.STOPPED):
        waiting = sum(record.state is NodeState.PENDING for record in rollout.records.values())
        then = "carries that out, or ends without it" if lines else "ends"
        then = f"goes on with {waiting} pending" if waiting else then
        # Where nodes are only on their way, there is nothing to type.
        if lines or waiting or not any(record.on_its_way for record in rollout.records.values()):
            lines.append(f"{'Then ' if lines else ''}{command('resume')}: the roll-out {then}")
    elif lines and rollout.mode is Mode.DONE:
        lines.append(f"Then {command('resume')}: the roll-out carries that out")
    if rollout.mode is Mode.DONE and rollout.stack and rollout.succeeded:
        lines.append(
            f"Next: write `nvidia_stack_name: {rollout.stack}` into the inventory of these nodes. site.yml "
            "and the checks follow the inventory, and would bring them to the stack that it names."
        )
    return lines


def longest_steps(events: Iterable[Event]) -> dict[Step, float]:
    """Return the minutes that each step has taken at most, of those that were done so far."""
    begun: dict[str, datetime] = {}
    longest: dict[Step, float] = {}
    for event in events:
        if event.step and event.outcome == "begun":
            begun[event.node] = event.at
        elif event.step and event.outcome == Outcome.DONE and event.node in begun:
            step = Step(event.step)
            longest[step] = max(longest.get(step, 0.0), _minutes(begun[event.node], event.at))
    return longest


@dataclass(frozen=True)
class Stay:
    """How long a node was in a state; `until` is None where it still is."""

    state: NodeState
    begun: datetime
    until: datetime | None
    minutes: float


@dataclass(frozen=True)
class Timeline:
    """The way of one node. `out_minutes`: from its drain to its return, or until now."""

    node: str
    stays: tuple[Stay, ...]
    out_minutes: float


@dataclass(frozen=True)
class Overhead:
    """What the roll-out took beside what its nodes took, in minutes.

    `node_minutes` is the sum of all steps of all nodes, `elapsed` the time from the first step to the last,
    `critical` the longest way of one node.
    """

    elapsed: float
    node_minutes: float
    critical: float


def timelines(rollout: Rollout, events: Sequence[Event], now: datetime) -> dict[str, Timeline]:
    """Return the timeline of each node that did anything, in the order of the roll-out."""
    by_node = by_key((event.node, event) for event in events if event.node)
    return {name: _timeline(name, by_node[name], now) for name in rollout.nodes if name in by_node}


def _timeline(name: str, events: list[Event], now: datetime) -> Timeline:
    stays: list[Stay] = []
    state, since = NodeState(events[0].state), events[0].at
    out_since: datetime | None = None
    out = 0.0
    for event in [*events, None]:
        at = event.at if event else now
        found = NodeState(event.state) if event else None
        if event and event.step == Step.DRAIN and event.outcome == "begun" and out_since is None:
            out_since = at
        back = found in (NodeState.RETURNED, NodeState.ROLLED_BACK, NodeState.LEFT_OUT, NodeState.PENDING)
        if out_since is not None and (back or event is None):
            out += _minutes(out_since, at)
            out_since = None
        if found is state:
            continue
        over = state in ENDED
        stays.append(
            Stay(state, since, at if found else None, 0.0 if over and not found else _minutes(since, at))
        )
        if found:
            state, since = found, at
    return Timeline(name, tuple(stays), out)


def _minutes(begin: datetime, end: datetime) -> float:
    return round((end - begin).total_seconds() / 60, 2)


def overhead(events: Sequence[Event]) -> Overhead:
    """Return how long the roll-out took beside its nodes' own time."""
    begun: dict[str, datetime] = {}
    spent: dict[str, float] = defaultdict(float)
    steps = [event for event in events if event.step]
    for event in steps:
        if event.outcome == "begun":
            begun[event.node] = event.at
        elif event.node in begun:
            spent[event.node] += (event.at - begun.pop(event.node)).total_seconds()
    elapsed = _minutes(steps[0].at, steps[-1].at) if steps else 0.0
    total = round(sum(spent.values()) / 60, 2)
    return Overhead(elapsed, total, round(max(spent.values(), default=0) / 60, 2))


def as_dict(rollout: Rollout, events: Sequence[Event], now: datetime) -> dict[str, Any]:
    """Return the report as JSON values; instants are ISO 8601 in UTC, times minutes."""
    ways = timelines(rollout, events, now)
    steps: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        said = asdict(event) | {"at": utc(event.at)}
        steps[said.pop("node")].append(said)
    nodes = {}
    for name, record in rollout.records.items():
        way = ways.get(name)
        nodes[name] = {
            "cohort": rollout.nodes[name].cohort,
            "wave": record.wave,
            "state": str(record.state),
            "since": utc(record.since),
            "sentence": sentence(record),
            "reason": record.reason,
            "snapshot": record.facts.get("snapshot", ""),
            "withheld": record.withheld,
            "accepted": record.overruled,
            "minutes": {str(stay.state): stay.minutes for stay in way.stays} if way else {},
            "out_of_service_minutes": way.out_minutes if way else 0.0,
            "events": steps[name],
        }
    spent = overhead(events)
    return {
        "schema_version": SCHEMA_VERSION,
        "rollout": rollout.number,
        "stack": rollout.stack,
        "kernel": rollout.policy.kernel,
        "made_at": utc(now),
        "mode": str(rollout.mode),
        "reason": rollout.reason,
        "minutes": {"elapsed": spent.elapsed, "nodes": spent.node_minutes, "longest_node": spent.critical},
        "by_hand": steps[""],
        "nodes": nodes,
    }


def status_text(
    rollout: Rollout,
    now: datetime,
    said: str = "",
    command: Callable[[str], str] = TYPED,
    end: datetime | None = None,
) -> str:
    """Say how far a roll-out is: nodes by state, those under way or in need of a person, and what to type.

    `end` is when it is expected to end, if that is known.
    """
    to = aim(rollout.stack, rollout.policy.kernel)
    lines = [f"Roll-out {rollout.number} to {to}: {rollout.mode}"]
    if end:
        lines[0] += f", end expected at {moment(end)}"
    if rollout.reason:
        lines[0] += f", {rollout.reason.rstrip('.')}"
    elif said:
        lines.append(said)
    by_state = by_key((record.state, name) for name, record in rollout.records.items())
    lines += [f"  {state:<12} {counted(by_state[state])}" for state in NodeState if state in by_state]
    alike = by_key(
        ((wave_name(record.wave), sentence(record)), name)
        for name, record in rollout.records.items()
        if record.under_way
        or record.step
        or record.state in (NodeState.FAILED, NodeState.ROLLED_BACK)
        or record.facts.get("snapshot")  # it should be gone
        or record.withheld
        or record.overruled
    )
    for (wave, told), names in alike.items():
        longest = max(now - rollout.records[name].since for name in names).total_seconds()
        each = ", each" if len(names) > 1 else ""
        lines.append(f"{counted(names)} ({wave}, {duration(longest)}){each}: {told}")
    waiting = {
        reason: names
        for reason, names in _reasons(rollout, NodeState.PENDING).items()
        if rollout.records[names[0]].out_since
    }
    lines += [f"{counted(names)}: {reason}" for reason, names in list(waiting.items())[:NAMED]]
    if len(waiting) > NAMED:
        lines.append(f"... and {len(waiting) - NAMED} more: {command('report --json')} has all")
    for reason, names in _reasons(rollout, NodeState.LEFT_OUT).items():
        lines.append(f"{counted(names)} left out: {reason.rstrip('.')}")
    lines += what_to_do(rollout, now, command)
    return printable("\n".join(lines))


def _reasons(rollout: Rollout, state: NodeState) -> dict[str, list[str]]:
    """Nodes in a state by their reason."""
    records = rollout.records.items()
    return by_key((record.reason, name) for name, record in records if record.state is state)


def timeline_text(rollout: Rollout, events: Sequence[Event], now: datetime) -> str:
    """Return a line for each node: its states with their minutes, and how long it was out of service."""
    lines = ["Time in each state:"]
    for name, way in timelines(rollout, events, now).items():
        stays = ", ".join(
            str(stay.state) if stay.state in ENDED else f"{stay.state} {_time(stay.minutes)}"
            for stay in way.stays
        )
        lines.append(f"{name}: {stays}; out of service for {_time(way.out_minutes)}")
    spent = overhead(events)
    lines.append(
        f"{_time(spent.elapsed)} from the first step to the last; the nodes' own time is "
        f"{_time(spent.node_minutes)} together, {_time(spent.critical)} for the longest"
    )
    return printable("\n".join(lines))


def _time(minutes: float) -> str:
    return duration(round(minutes * 60))


def verdict(rollout: Rollout) -> int:
    """Return the exit status.

    0 where every node that took part returned, 1 where not, 3 while it is not over.
    """
    return int(not rollout.succeeded) if rollout.mode is Mode.DONE else 3
