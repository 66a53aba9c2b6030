"""What must never happen, in any order of events: simulated fleets, and the store between two controllers."""

import tempfile
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from temper.rollout import machine, planner
from temper.rollout.model import (
    ENDED,
    Mode,
    NodeState,
    Observation,
    Outcome,
    Record,
    Rollout,
    Step,
    StepResult,
)
from temper.rollout.planner import decide
from temper.rollout.policy import Policy, Share
from temper.rollout.store import HeldError, Lease, LostLeaseError, RolloutStore, StoreError
from tests.rollout import simulation
from tests.rollout.simulation import BrokenRuleError, Faults, World, simulate
from tests.unit.each import each
from tests.unit.rollout.fleets import ME, NOW, OTHER, begin, nodes

RESULTS = (Outcome.DONE,) * 6 + (Outcome.AGAIN, Outcome.REFUSED, Outcome.FAILED)


@settings(deadline=None, max_examples=15)
@given(st.integers(0, 2**32), st.integers(1, 24))
def test_no_rule_is_broken_on_any_fleet(seed: int, size: int) -> None:
    simulate(size, seed)


@each((60, Faults()), (20, Faults(restarts=0.5)))
def test_a_night_that_is_calm_or_whose_schedulers_restart_returns_every_node(
    count: int, faults: Faults
) -> None:
    outcomes = World(count, Policy(), faults, seed=1).run()
    assert (outcomes.states, outcomes.modes) == ({"returned": count}, {"done": 1})


def test_the_simulation_notices_a_planner_that_believes_one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "PATIENCE", timedelta(0))
    whole = Share(100, True)
    policy = Policy(canaries=0, waves=(whole,), max_unavailable=Share(1), refusal_budget=whole)
    with pytest.raises(BrokenRuleError, match="may have erred"):
        for seed in range(20):
            World(12, policy, Faults(restarts=1.0), seed).run()


def test_the_simulation_notices_a_planner_that_ends_without_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner._Planner, "_soak_minutes", lambda *_: 0)
    with pytest.raises(BrokenRuleError, match="nobody looked"):
        World(6, Policy(), Faults(), seed=1).run()


@each(
    # a node that fails the gate is returned all the same
    (("prove passes", Step.PROVE), Faults(fails=0.3)),
    # an installation that was cut off counts as none
    (("cut off", Step.INSTALL), Faults(kills=1.0, refuses=0.3)),
)
def test_the_simulation_notices_a_machine_that_is_wrong(
    break_it: tuple[str, Step], faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    what, step = break_it
    right_after, right_cut = machine.after, machine.interrupted

    def after(record: Record, result: StepResult, now: datetime) -> Record:
        wrong = what == "prove passes" and record.step is step and result.outcome is Outcome.FAILED
        return right_after(record, replace(result, outcome=Outcome.DONE) if wrong else result, now)

    def interrupted(record: Record) -> Record:
        cut = right_cut(record)
        return replace(cut, cut_off=False) if what == "cut off" else cut

    monkeypatch.setattr(simulation, "after", after)
    monkeypatch.setattr(simulation, "interrupted", interrupted)
    policy = Policy(canaries=0, failure_budget=Share(100, True), refusal_budget=Share(100, True))
    with pytest.raises(BrokenRuleError):
        for seed in range(20):
            World(60, policy, faults, seed).run()


class TwoControllers(RuleBasedStateMachine):
    """A store, two controllers that take the lease from each other, people, and results in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.store = RolloutStore(Path(self.folder.name) / "rollout.sqlite")
        policy = Policy(
            soak_minutes=0, waves=(Share(100, True),), max_unavailable=Share(3), failure_budget=Share(1)
        )
        rollout = begin(nodes(8, cohorts=2), policy)
        self.number = self.store.create(rollout.stack, policy, rollout.nodes, rollout.records, NOW)
        self.now = NOW
        self.leases: dict[str, Lease] = {}
        self.newest: Lease | None = None
        #: What each controller believes to be carrying out.
        self.steps: dict[str, dict[str, Step]] = {"me": {}, "other": {}}
        self.proven: set[str] = set()

    def teardown(self) -> None:
        self.folder.cleanup()

    @property
    def rollout(self) -> Rollout:
        found = self.store.load(self.number)
        assert found
        return found

    @rule(who=st.sampled_from(["me", "other"]), hours=st.integers(0, 1))
    def take_the_lease(self, who: str, hours: int) -> None:
        self.now += timedelta(hours=hours)
        try:
            lease = self.store.acquire(ME if who == "me" else OTHER, self.now)
        except HeldError:
            return
        assert self.newest is None or lease.fence > self.newest.fence
        self.leases[who] = self.newest = lease
        self.steps[who] = {}
        self.store.recover(lease, self.number, self.now)

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def decide_and_begin(self, data: st.DataObject) -> None:
        who = data.draw(st.sampled_from(sorted(self.leases)))
        before = self.rollout
        decision = decide(before, self.now, Observation())
        try:
            started = self.store.apply(self.leases[who], before, decision, self.now)
        except LostLeaseError:
            assert self.leases[who] is not self.newest
            assert self.rollout == before
            return
        assert self.leases[who] is self.newest, "a stale owner has written"
        for name in started or {}:
            assert not before.records[name].step, f"{name} is worked on twice at once"
            self.steps[who][name] = next(s.transition.step for s in decision.starts if s.node == name)
        if decision.until:
            self.now = max(self.now, decision.until)

    @precondition(lambda self: any(self.steps.values()))
    @rule(data=st.data(), outcome=st.sampled_from(RESULTS))
    def end_a_step(self, data: st.DataObject, outcome: Outcome) -> None:
        who = data.draw(st.sampled_from(sorted(who for who, steps in self.steps.items() if steps)))
        name = data.draw(st.sampled_from(sorted(self.steps[who])))
        step, before = self.steps[who].pop(name), self.rollout
        result = StepResult(outcome, "why")
        try:
            record = self.store.finish(self.leases[who], self.number, name, step, result, self.now)
        except LostLeaseError:
            assert self.leases[who] is not self.newest
            assert self.rollout == before
            return
        assert self.leases[who] is self.newest, "a stale owner has written"
        if step is Step.PROVE and outcome is Outcome.DONE:
            self.proven.add(name)
        elif step in (Step.INSTALL, Step.UNDO, Step.REBOOT):
            self.proven.discard(name)
        if record.state in (NodeState.RETURNED, NodeState.ROLLED_BACK):
            assert name in self.proven, f"{name} is returned unproven"

    @rule(who=st.sampled_from(["hold", "stop", "resume"]))
    def a_person_acts(self, who: str) -> None:
        try:
            if who == "resume":
                self.store.resume(self.number, "alice", self.now)
            else:
                getattr(self.store, who)(self.number, "alice", "why", self.now)
        except StoreError:
            assert self.rollout.mode is not Mode.RUNNING or who == "resume"

    @rule(place=st.integers(0, 7))
    def a_person_retries(self, place: int) -> None:
        name = f"gpu{place}"
        state = self.rollout.records[name].state
        try:
            self.store.retry(self.number, name, "alice", self.now)
        except StoreError:
            assert state not in (NodeState.FAILED, NodeState.LEFT_OUT, NodeState.ROLLED_BACK)

    @invariant()
    def nothing_is_lost_and_no_more_are_out_than_allowed(self) -> None:
        rollout = self.rollout
        assert len(rollout.records) == 8
        out = [name for name, record in rollout.records.items() if record.under_way and record.out]
        out += [name for name, record in rollout.records.items() if record.ended and record.out]
        # A person's retry of a node that was left out gives its place to others, and takes none away.
        assert len(out) <= 3 + sum(record.failures for record in rollout.records.values())
        for record in rollout.records.values():
            assert record.ended or record.state is NodeState.PENDING or record.started_at
        if rollout.mode is Mode.DONE:
            assert {record.state for record in rollout.records.values()} <= ENDED


TestTwoControllers = TwoControllers.TestCase
TestTwoControllers.settings = settings(deadline=None, max_examples=8, stateful_step_count=50)
