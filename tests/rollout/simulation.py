"""Roll-outs on fleets that do not exist: the real planner and state machine, against nodes with faults.

A simulated node knows what is true of it (who drained it, what is installed and loaded, what was proven),
which the planner only hears of through results. Every step checks what must never happen. The controller is
killed at random, with steps done, half done or not begun; people hold, resume and retry.

    python3 -m tests.rollout.simulation --nodes 1000 --rollouts 1000
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from datetime import time as time_of_day
from zoneinfo import ZoneInfo

from temper.rollout.machine import NOT_TAKEN_OUT, after, begun, interrupted, retried
from temper.rollout.model import (
    ALLOWED,
    ENDED,
    WATCH,
    Course,
    Mode,
    NodeState,
    Observation,
    Outcome,
    Record,
    Rollout,
    RolloutNode,
    Step,
    StepResult,
    Transition,
)
from temper.rollout.planner import PATIENCE, Decision, decide, limits_of, needed_minutes, waves
from temper.rollout.policy import Policy, Share
from temper.rollout.windows import Window

BEGIN = datetime(2027, 3, 26, 12, 0, tzinfo=UTC)  # two days before the clocks of Europe change
OLD, NEW, PARTIAL = "old", "new", "partial"
#: How long steps take, in minutes: from, to.
MINUTES: dict[Step, tuple[float, float]] = {
    Step.LEASE: (0.1, 0.3),
    Step.STAGE: (1, 8),
    Step.DRAIN: (0.2, 25),
    Step.BASELINE: (3, 6),
    Step.INSTALL: (3, 8),
    Step.REBOOT: (4, 12),
    Step.LOAD: (0.2, 0.5),
    Step.SETTLE: (0.2, 0.5),
    Step.PROVE: (3, 6),
    Step.RETURN: (0.1, 0.5),
    Step.UNDO: (3, 8),
    Step.RELEASE: (0.1, 0.5),
    Step.KEEP_OUT: (0.1, 0.5),
    Step.WATCH: (0.1, 0.5),
}


@dataclass
class Truth:
    """What is true of a node, whoever knows it. `proven`: the driver measured since the last change."""

    drained_by: str = ""
    installed: str = OLD
    loaded: str = OLD
    proven: str = ""
    dead: bool = False
    step: Step | None = None


@dataclass(frozen=True)
class Faults:
    """How likely each fault is, for each step on a node or for each hour of the fleet."""

    fails: float = 0.0  # a step fails
    again: float = 0.0  # noise, errors that pass
    refuses: float = 0.0  # a job without an end, a GPU that is slow already
    dies: float = 0.0  # the node never comes back
    foreign: float = 0.0  # an hour: somebody else drains a node
    kills: float = 0.0  # an hour: the controller is killed
    people: float = 0.0  # an hour: somebody holds it, and goes on later
    restarts: float = 0.0  # an hour: the scheduler restarts, and calls every node silent for some minutes


@dataclass
class Outcomes:
    """What many roll-outs came to."""

    states: Counter[str] = field(default_factory=Counter)
    modes: Counter[str] = field(default_factory=Counter)
    rollouts: int = 0
    steps: int = 0
    decisions: int = 0
    kills: int = 0
    resumed: int = 0
    retried: int = 0

    def add(self, other: Outcomes) -> None:
        """Count another one's in."""
        self.states += other.states
        self.modes += other.modes
        for name in ("rollouts", "steps", "decisions", "kills", "resumed", "retried"):
            setattr(self, name, getattr(self, name) + getattr(other, name))


class BrokenRuleError(AssertionError):
    """Something happened that never must."""


def must(holds: bool, what: str) -> None:
    """Raise BrokenRuleError where it does not hold."""
    if not holds:
        raise BrokenRuleError(what)


class World:
    """A fleet, a policy, and a roll-out on it."""

    def __init__(self, size: int, policy: Policy, faults: Faults, seed: int, cohorts: int = 3) -> None:
        self.random = random.Random(seed)
        self.policy, self.faults = policy, faults
        self.nodes = {
            name: RolloutNode(name, f"cohort{place % cohorts}", (f"rack{place // 16}", "gpu_nodes"), place)
            for place, name in enumerate(f"gpu{number:04}" for number in range(size))
        }
        numbers = waves(self.nodes.values(), policy)
        self.records = {name: Record(NodeState.PENDING, BEGIN, wave=numbers[name]) for name in self.nodes}
        self.rollout = Rollout("new", policy, self.nodes, self.records)
        self.truth = {name: Truth() for name in self.nodes}
        self.foreign: dict[str, str] = {}
        self.restarts_until = BEGIN
        #: Since when every look of a roll-out at work has found a node out of service by somebody else.
        self.seen_out: dict[str, datetime] = {}
        self.now = BEGIN
        self.serial = itertools.count()
        self.ends: list[tuple[datetime, int, str, int]] = []
        self.life = 0
        self.outcomes = Outcomes(rollouts=1)
        self.patience = 30  # how often people go on after a hold or a stop
        self.last_hour = BEGIN

    # What goes on

    def run(self) -> Outcomes:
        """To the end of the roll-out, or until people give up. Raises BrokenRuleError."""
        for _ in range(200_000):
            decision = self._decide()
            if self._ended(decision):
                break
            self._pass_time(decision)
        else:
            raise BrokenRuleError("it does not end")
        self._check_end()
        self.outcomes.states.update(str(record.state) for record in self.records.values())
        self.outcomes.modes[str(self.rollout.mode)] += 1
        return self.outcomes

    def _decide(self) -> Decision:
        seen = dict(self.foreign)
        if self.now < self.restarts_until:
            seen = dict.fromkeys(self.nodes, "does not answer")
        if self.rollout.mode is Mode.RUNNING:
            self.seen_out = {name: self.seen_out.get(name, self.now) for name in seen}
        decision = decide(self.rollout, self.now, Observation(seen))
        self.outcomes.decisions += 1
        self._check_left_out(decision)
        for name, record in decision.moves.items():
            self._move(name, record)
        self._check_starts(decision)
        for start in decision.starts:
            self._begin(start.node, start.transition)
        must(decision.mode is not Mode.HELD or bool(decision.reason), "it holds without a reason")
        must(decision.mode is not Mode.STOPPED or bool(decision.reason), "it stops without a reason")
        self.rollout = replace(self.rollout, mode=decision.mode, reason=decision.reason)
        return decision

    def _ended(self, decision: Decision) -> bool:
        if self.ends or decision.until is not None:
            return False
        must(decision.mode is not Mode.RUNNING, f"it stalls in silence: {decision.sentence}")
        failures = sum(record.failures for record in self.records.values())
        nobody_can = failures > self.policy.failure_budget.of(len(self.nodes))
        if decision.mode is Mode.DONE or not self.patience or nobody_can:
            return True
        self.patience -= 1
        self._go_on()
        return False

    def _go_on(self) -> None:
        """Somebody looks at it, repairs some nodes, and goes on."""
        for name, record in list(self.records.items()):
            tries = record.state in (NodeState.FAILED, NodeState.LEFT_OUT, NodeState.ROLLED_BACK)
            if tries and self.random.random() < 0.5:
                self.truth[name].dead = False
                self._move(name, retried(record, self.now))
                self.outcomes.retried += 1
            elif record.failures or record.state is NodeState.LEFT_OUT or record.out_since:
                self.records[name] = replace(record, accepted=True)
        self.rollout = replace(self.rollout, mode=Mode.RUNNING, reason="")
        self.outcomes.resumed += 1

    def _pass_time(self, decision: Decision) -> None:
        """To the next end of a step or the planner's own time, and what others do meanwhile."""
        soonest = [self.ends[0][0]] if self.ends else []
        soonest += [decision.until] if decision.until else []
        if not soonest:
            return
        # Results of the same minute come in together, in any order.
        self.now = max(self.now, min(soonest)) + timedelta(seconds=self.random.choice((0, 60, 180)))
        while self.now - self.last_hour >= timedelta(hours=1):
            self.last_hour += timedelta(hours=1)
            self._hour()
        while self.ends and self.ends[0][0] <= self.now:
            _, _, name, life = heapq.heappop(self.ends)
            if life == self.life:
                self._finish(name)

    def _hour(self) -> None:
        dice = self.random.random
        if dice() < self.faults.foreign:
            name = self.random.choice(list(self.nodes))
            if not self.truth[name].drained_by and not self.truth[name].dead:
                self.truth[name].drained_by = "other"
                self.foreign[name] = "drained by somebody else: disk"
        for name in [name for name in self.foreign if dice() < 0.4]:
            del self.foreign[name]
            self.truth[name].drained_by = ""
        if dice() < self.faults.restarts:
            self.restarts_until = self.now + timedelta(minutes=self.random.uniform(1, 20))
        if dice() < self.faults.kills:
            self._kill()
        if dice() < self.faults.people and self.rollout.mode is Mode.RUNNING:
            self.rollout = replace(self.rollout, mode=Mode.HELD, reason="by hand")

    def _kill(self) -> None:
        """The controller dies; steps that were under way are done, done in part, or not begun."""
        self.life += 1
        self.ends.clear()
        self.outcomes.kills += 1
        for name, record in self.records.items():
            if record.step:
                how_far = self.random.choice(("none", "part", "all"))
                if how_far != "none":
                    self._work(name, record, half=how_far == "part")
                self.truth[name].step = None
                self.records[name] = interrupted(record)

    # Steps

    def _begin(self, name: str, transition: Transition) -> None:
        truth = self.truth[name]
        must(truth.step is None, f"{name} is worked on twice at once")
        truth.step = transition.step
        if transition is WATCH:
            soak = self._soak(self.records[name])
            must(
                self.now - self.records[name].since >= soak, f"{name} is looked at before its soak has ended"
            )
        self.records[name] = begun(self.records[name], transition, self.now)
        low, high = MINUTES[transition.step]
        end = self.now + timedelta(minutes=self.random.uniform(low, high))
        heapq.heappush(self.ends, (end, next(self.serial), name, self.life))
        self.outcomes.steps += 1

    def _finish(self, name: str) -> None:
        record = self.records[name]
        result = self._work(name, record)
        self.truth[name].step = None
        self._move(name, after(record, result, self.now))

    def _move(self, name: str, record: Record) -> None:
        before = self.records[name].state
        must(
            record.state is before or record.state in ALLOWED[before],
            f"{name}: {record.state} does not follow {before}",
        )
        self.records[name] = record

    def _work(self, name: str, record: Record, *, half: bool = False) -> StepResult:
        """Carry a step out on the node, and say what it came to."""
        truth, step, faults = self.truth[name], record.step, self.faults
        assert step
        dice = self.random.random()
        if truth.dead and step not in (Step.KEEP_OUT, Step.RELEASE, Step.RETURN):
            return StepResult(Outcome.FAILED, "it does not answer")
        if dice < faults.again:
            return StepResult(Outcome.AGAIN, "noise")
        if dice < faults.again + faults.fails:
            if step in (Step.INSTALL, Step.UNDO):
                truth.installed, truth.proven = PARTIAL, ""
            return StepResult(Outcome.FAILED, "it went wrong")
        can_refuse = step in (Step.LEASE, Step.STAGE, Step.DRAIN, Step.BASELINE, Step.INSTALL)
        if can_refuse and dice < faults.again + faults.fails + faults.refuses:
            return StepResult(Outcome.REFUSED, "it may not be")
        return self._effect(name, record, half)

    def _effect(self, name: str, record: Record, half: bool) -> StepResult:
        truth, step = self.truth[name], record.step
        target = OLD if record.course is Course.BACK else NEW
        done = StepResult(Outcome.DONE)
        if step is Step.DRAIN:
            if truth.drained_by == "other":
                return StepResult(Outcome.REFUSED, "drained by somebody else")
            truth.drained_by = "us"
        elif step in (Step.BASELINE, Step.PROVE):
            must(truth.drained_by == "us", f"{name} is measured in service")
            if step is Step.PROVE:
                if truth.loaded != target:
                    return StepResult(Outcome.FAILED, "the wrong driver is loaded")
                truth.proven = truth.loaded
        elif step in (Step.INSTALL, Step.UNDO):
            must(truth.drained_by == "us", f"{name} is changed in service")
            truth.installed, truth.proven = (PARTIAL if half else target), ""
        elif step is Step.REBOOT:
            must(truth.drained_by == "us", f"{name} reboots in service")
            if self.random.random() < self.faults.dies:
                truth.dead = True
                return StepResult(Outcome.FAILED, "it did not come back")
            truth.loaded, truth.proven = truth.installed, ""
        elif step is Step.LOAD and truth.loaded != target:
            return StepResult(Outcome.FAILED, f"{truth.loaded} is loaded, expected {target}")
        elif step is Step.RETURN:
            # It may have been returned already, by a controller that was killed before it could say so.
            must(truth.drained_by != "other", f"{name}: what somebody else drained is resumed")
            must(truth.proven == truth.loaded == truth.installed == target, f"{name} is returned unproven")
            truth.drained_by = ""
        elif step is Step.KEEP_OUT:
            # A controller may have been killed just after it had returned the node.
            truth.drained_by = truth.drained_by or "us"
        elif step is Step.RELEASE:
            must(truth.loaded == truth.installed != PARTIAL, f"{name} is changed, and released")
            if truth.drained_by == "us":
                truth.drained_by = ""
        return done

    # What must hold

    def _check_starts(self, decision: Decision) -> None:
        """Before any of the decision's steps begins."""
        leases = [start.node for start in decision.starts if start.transition.step is Step.LEASE]
        seen = [start.node for start in decision.starts]
        must(len(seen) == len(set(seen)), "a node starts twice at once")
        for start in decision.starts:
            state = self.records[start.node].state
            must(state not in ENDED or start.transition is WATCH, f"{start.node} has ended, and goes on")
        if not leases:
            return
        must(decision.mode is Mode.RUNNING, f"nodes start in mode {decision.mode}")
        taken = {
            name
            for name, truth in self.truth.items()
            if truth.drained_by
            or name in self.foreign
            or self.records[name].under_way
            or self.records[name].out
        } | set(leases)
        most = self.policy.max_unavailable.of(len(self.nodes), 1)
        must(len(taken) <= most, f"{len(taken)} nodes unavailable, {most} allowed")
        must(not set(leases) & set(self.foreign), "a node is upgraded that somebody else has drained")
        if self.policy.group_limits:
            limits = tuple(self.policy.group_limits.items())
            groups: Counter[tuple[str, int]] = Counter()
            for name in taken:
                groups.update(limits_of(self.nodes[name].groups, limits))
            new = {group for name in leases for group in limits_of(self.nodes[name].groups, limits)}
            for group in new:
                must(groups[group] <= group[1], f"{groups[group]} nodes unavailable in {group[0]}")
        failures = sum(record.failures for record in self.records.values())
        must(
            failures <= self.policy.failure_budget.of(len(self.nodes)),
            f"nodes start after {failures} failures",
        )
        wave = {self.records[name].wave for name in leases}
        must(len(wave) == 1, f"nodes of several waves start: {wave}")
        (number,) = wave
        for name, record in self.records.items():
            must(record.wave >= number or record.ended, f"wave {number} starts while {name} has not ended")
        must(
            all(self._fits(name) for name in leases),
            "a node starts outside its window",
        )

    def _soak(self, record: Record) -> timedelta:
        policy = self.policy
        return timedelta(minutes=policy.wave_soak_minutes if record.wave else policy.soak_minutes)

    def _check_left_out(self, decision: Decision) -> None:
        """Nodes that were never begun: only after others kept them out for long, and no more than allowed."""
        gone = {
            name
            for name, record in decision.moves.items()
            if record.state is NodeState.LEFT_OUT and name in self.foreign | self.seen_out
        }
        for name in gone:
            begun_out = self.seen_out.get(name, self.now)
            must(self.now - begun_out >= PATIENCE, f"{name} is left out by a look that may have erred")
        if not gone:
            return
        records = {**self.records, **decision.moves}
        refused = sum(record.refused and not record.accepted for record in records.values())
        allowed = self.policy.refusal_budget.of(len(self.nodes))
        unseen = any(not decision.moves[name].accepted for name in gone)
        must(not unseen or refused <= allowed, f"{refused} nodes are left out, {allowed} allowed")

    def _fits(self, name: str) -> bool:
        """By brute force, minute by minute: whether all that the node may need is inside windows."""
        if not self.policy.windows:
            return True
        needed = needed_minutes(self.policy)[NodeState.PENDING]
        moments = (self.now + timedelta(minutes=minute) for minute in range(0, needed, 5))
        return all(any(_is_open(window, instant) for window in self.policy.windows) for instant in moments)

    def _check_end(self) -> None:
        """When it is over: no node is lost, and each is what its state says."""
        for name, record in self.records.items():
            truth, state = self.truth[name], record.state
            must(record.step is None and truth.step is None, f"{name} is left with a step under way")
            must(state in ENDED or state is NodeState.PENDING, f"{name} is left in state {state}")
            if state is NodeState.RETURNED:
                must(truth.loaded == truth.proven == NEW and truth.drained_by != "us", f"{name}: {truth}")
            elif state is NodeState.ROLLED_BACK:
                must(truth.loaded == truth.proven == OLD and truth.drained_by != "us", f"{name}: {truth}")
            elif state is NodeState.FAILED:
                said = truth.drained_by or truth.dead or NOT_TAKEN_OUT in record.reason
                must(bool(said), f"{name} failed, and is in service")
            elif state is NodeState.PENDING or record.started_at is None:
                must(truth.drained_by != "us", f"{name} is {state}, and drained by us")
                must(truth.loaded == truth.installed != PARTIAL, f"{name} is {state}, and changed: {truth}")
        if self.rollout.mode is Mode.DONE:
            must(all(record.ended for record in self.records.values()), "done, and nodes have not ended")
            for name, record in self.records.items():
                unwatched = record.state is NodeState.RETURNED and record.watched is None
                must(
                    not unwatched or not self._soak(record),
                    f"done, and nobody looked at {name} after its soak",
                )


def _is_open(window: Window, now: datetime) -> bool:
    """Whether a window is open by the clock on its wall; not for the hours in which that changes."""
    local = now.astimezone(ZoneInfo(window.zone))
    clock, today = local.time(), local.weekday()
    if window.end > window.start:
        return today in window.days and window.start <= clock < window.end
    return (today in window.days and clock >= window.start) or (
        (today - 1) % 7 in window.days and clock < window.end
    )


def random_policy(dice: random.Random) -> Policy:
    """A policy out of all that an operator may write."""
    nights = Window(frozenset(range(7)), time_of_day(20), time_of_day(6), "Europe/Berlin")
    weekend = Window(frozenset({5, 6}), time_of_day(8), time_of_day(0), "America/New_York")
    return Policy(
        canaries=dice.choice((0, 1, 1, 2)),
        soak_minutes=dice.choice((0, 30, 240)),
        waves=dice.choice(
            (
                (Share(100, True),),
                (Share(10, True), Share(40, True), Share(100, True)),
                (Share(5), Share(25, True), Share(100, True)),
            )
        ),
        wave_soak_minutes=dice.choice((0, 0, 20)),
        max_unavailable=dice.choice((Share(1), Share(3), Share(5, True), Share(10, True), Share(25, True))),
        failure_budget=dice.choice((Share(0), Share(2), Share(2, True), Share(10, True), Share(50, True))),
        refusal_budget=dice.choice((Share(0), Share(10, True), Share(100, True))),
        group_limits=dice.choice(({}, {"rack*": 1}, {"rack*": 4, "gpu_nodes": 40})),
        windows=dice.choice(((), (nights,), (nights, weekend))),
    )


def random_faults(dice: random.Random) -> Faults:
    """From a calm night to one on which everything breaks."""
    level = dice.choice((0.0, 0.0001, 0.0005, 0.005, 0.03))
    return Faults(
        fails=level,
        again=dice.choice((0.0, 0.01, 0.05)),
        refuses=dice.choice((0.0, level, 0.002, 0.02)),
        dies=level / 2,
        foreign=dice.choice((0.0, 0.1, 0.5)),
        kills=dice.choice((0.0, 0.05, 0.5)),
        people=dice.choice((0.0, 0.05)),
        restarts=dice.choice((0.0, 0.1)),
    )


def simulate(size: int, seed: int) -> Outcomes:
    """One roll-out with everything drawn from its seed. Raises BrokenRuleError."""
    dice = random.Random(seed)
    return World(size, random_policy(dice), random_faults(dice), seed, cohorts=dice.choice((1, 3, 5))).run()


def main(arguments: list[str] | None = None) -> int:
    """Many roll-outs; 1 where a rule was broken, with the seed that shows it."""
    parser = argparse.ArgumentParser(
        prog="python3 -m tests.rollout.simulation", description="Simulate roll-outs."
    )
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--rollouts", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="of the first; the next has the next number")
    given = parser.parse_args(arguments)
    total, begin = Outcomes(), time.monotonic()
    for seed in range(given.seed, given.seed + given.rollouts):
        try:
            total.add(simulate(given.nodes, seed))
        except BrokenRuleError as error:
            print(f"seed {seed}: {error}", file=sys.stderr)
            return 1
        if total.rollouts % 50 == 0:
            print(f"{total.rollouts} roll-outs, {time.monotonic() - begin:.0f} s", flush=True)
    print(
        f"{total.rollouts} roll-outs of {given.nodes} nodes in {time.monotonic() - begin:.0f} s",
        "no rule was broken",
        f"{total.steps} steps, {total.decisions} decisions, {total.kills} controllers killed",
        f"resumed {total.resumed} times, {total.retried} nodes retried",
        f"nodes: {dict(total.states)}",
        f"roll-outs: {dict(total.modes)}",
        sep="\n",
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
