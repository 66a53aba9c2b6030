"""What the planner starts, what it waits for, and when it holds or stops: each for one reason."""

import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from typing import Any

import pytest

from temper.rollout.machine import seen_out
from temper.rollout.model import OVERRULED, Course, Mode, NodeState, Observation, Rollout, Step
from temper.rollout.planner import LOOK_AGAIN, PATIENCE, Decision, decide, waves
from temper.rollout.policy import Policy, Share
from temper.rollout.windows import Window
from tests.unit.each import each
from tests.unit.rollout.fleets import NOW, QUICK, begin, having, nodes

ROOT = Path(__file__).resolve().parents[3]
NOBODY = Observation()
NIGHT = Window(frozenset(range(7)), time(22), time(2), "UTC")


def started(decision: Decision, step: Step = Step.LEASE) -> list[str]:
    """The nodes on which a step starts."""
    return [start.node for start in decision.starts if start.transition.step is step]


def returned(*names: str, hours: float = 0, **more: Any) -> dict[str, Any]:
    """Nodes that have returned so long before now."""
    since = NOW - timedelta(hours=hours)
    return {
        name: {"state": NodeState.RETURNED, "since": since, "started_at": since, **more} for name in names
    }


def rolled_back(**more: Any) -> dict[str, Any]:
    """A node that is back on the former stack."""
    known = {"state": NodeState.ROLLED_BACK, "failures": 1, "reason": "6 % slower", "started_at": NOW}
    return {**known, **more}


def failed(**more: Any) -> dict[str, Any]:
    """A node that stays out of service."""
    return {
        "state": NodeState.FAILED,
        "failures": 1,
        "reason": "no answer",
        "out": True,
        "started_at": NOW,
        **more,
    }


@pytest.mark.component
def test_planning_needs_neither_ansible_nor_a_file_nor_a_process() -> None:
    ask = "import sys, temper.rollout.planner; print(*sys.modules)"
    known = subprocess.run([sys.executable, "-c", ask], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in known.stdout.split()}
    assert loaded & {"ansible", "sqlite3", "asyncio", "subprocess", "socket"} == set()


# Waves


def test_the_canaries_are_the_first_nodes_of_each_cohort() -> None:
    decision = decide(begin(nodes(9, cohorts=3)), NOW, NOBODY)
    assert started(decision) == ["gpu0", "gpu1", "gpu2"]


def test_waves_grow_and_take_every_node_once() -> None:
    policy = Policy(canaries=2, waves=(Share(10, True), Share(50, True), Share(100, True)))
    numbers = list(waves(nodes(102).values(), policy).values())
    assert [numbers.count(wave) for wave in range(4)] == [2, 10, 40, 50]


def test_jump_hosts_come_last_and_alone_with_those_of_their_level() -> None:
    """gpu0 is a jump host of gpu1, and gpu1 one of the others; gpu4 is of a cohort of its own."""
    fleet = nodes(4) | {"gpu4": replace(nodes(5)["gpu4"], cohort="other")}
    rollout = begin(fleet, jump_levels={"gpu0": 2, "gpu1": 1, "gpu4": 1})
    assert started(decide(rollout, NOW, NOBODY)) == ["gpu2"]
    waiting = having(rollout, **returned("gpu2"), gpu3=NodeState.DRAINED)
    assert started(decide(waiting, NOW, NOBODY)) == []
    # No canary is made of them, although their cohort has none.
    through = having(rollout, **returned("gpu2"), **returned("gpu3"))
    assert started(decide(through, NOW, NOBODY)) == ["gpu1", "gpu4"]
    last = having(through, **returned("gpu1"), gpu4=NodeState.ROLLED_BACK)
    assert started(decide(last, NOW, NOBODY)) == ["gpu0"]


def test_a_wave_waits_for_every_node_of_the_wave_before() -> None:
    rollout = having(begin(nodes(4, cohorts=2)), **returned("gpu0"), gpu1=NodeState.DRAINED)
    decision = decide(rollout, NOW, NOBODY)
    assert started(decision) == []
    assert started(decision, Step.BASELINE) == ["gpu1"]


def test_the_canaries_soak_and_are_looked_at_before_the_next_wave() -> None:
    policy = replace(QUICK, soak_minutes=60)
    fresh = having(begin(nodes(3), policy), **returned("gpu0", hours=0.5))
    decision = decide(fresh, NOW, NOBODY)
    assert (decision.starts, decision.until) == ((), NOW + timedelta(minutes=30))
    soaked = having(begin(nodes(3), policy), **returned("gpu0", hours=1))
    assert started(decide(soaked, NOW, NOBODY), Step.WATCH) == ["gpu0"]
    watched = having(soaked, gpu0={"watched": True})
    assert started(decide(watched, NOW, NOBODY)) == ["gpu1", "gpu2"]


def test_the_last_wave_soaks_and_is_looked_at_before_the_end() -> None:
    policy = replace(QUICK, wave_soak_minutes=60)
    both = having(begin(nodes(2), policy), **returned("gpu0", hours=9), **returned("gpu1", hours=0.5))
    decision = decide(both, NOW, NOBODY)
    assert (decision.mode, decision.until) == (Mode.RUNNING, NOW + timedelta(minutes=30))
    assert started(decide(both, NOW + timedelta(minutes=30), NOBODY), Step.WATCH) == ["gpu1"]
    watched = having(both, gpu1={"watched": True})
    assert decide(watched, NOW + timedelta(minutes=31), NOBODY).mode is Mode.DONE


def test_a_roll_out_of_one_node_ends_with_the_look_at_it() -> None:
    one = having(begin(nodes(1), replace(QUICK, soak_minutes=60)), **returned("gpu0", hours=1))
    assert started(decide(one, NOW, NOBODY), Step.WATCH) == ["gpu0"]
    assert decide(having(one, gpu0={"watched": True}), NOW, NOBODY).mode is Mode.DONE


def test_a_node_that_was_tried_again_is_looked_at_although_its_wave_has_ended() -> None:
    policy = replace(QUICK, soak_minutes=60)
    late = having(begin(nodes(2), policy), **returned("gpu0", hours=1), gpu1=NodeState.RETURNED)
    assert started(decide(late, NOW, NOBODY), Step.WATCH) == ["gpu0"]


def test_a_canary_that_goes_wrong_in_its_soak_stops_the_rollout() -> None:
    bad = returned("gpu0", hours=2, watched=False, failures=1, reason="Xid 79")
    decision = decide(having(begin(nodes(3)), **bad), NOW, NOBODY)
    assert decision.mode is Mode.STOPPED
    assert "gpu0" in decision.reason
    assert "Xid 79" in decision.reason


def test_a_canary_that_was_left_out_is_replaced_by_the_next_node_of_its_cohort() -> None:
    gone = {"state": NodeState.LEFT_OUT, "started_at": NOW, "reason": "GPU 3 is slow already"}
    rollout = having(begin(nodes(6, cohorts=2)), gpu0=gone, **returned("gpu1"))
    decision = decide(rollout, NOW, NOBODY)
    assert {name: record.wave for name, record in decision.moves.items()} == {"gpu2": 0}
    again = having(rollout, gpu2={"wave": 0})
    assert started(decide(again, NOW, NOBODY)) == ["gpu2"]


@each(("", []), ("by ann: 6 % are known", ["gpu1"]))
def test_a_canary_that_somebody_has_accepted_is_no_proof(overruled: str, promoted: list[str]) -> None:
    facts = {OVERRULED: overruled} if overruled else {}
    rollout = having(begin(nodes(3)), **returned("gpu0", facts=facts))
    decision = decide(rollout, NOW, NOBODY)
    assert [name for name, record in decision.moves.items() if record.wave == 0] == promoted
    assert bool(started(decision)) is not bool(promoted)
    # Where no other node is left that could show more, the accepted one does not keep the roll-out waiting.
    alone = having(begin(nodes(1)), **returned("gpu0", facts=facts))
    assert decide(alone, NOW, NOBODY).mode is Mode.DONE


# How many at a time


def test_no_more_nodes_are_unavailable_than_allowed_whoever_took_them() -> None:
    policy = replace(QUICK, canaries=0, max_unavailable=Share(5))
    rollout = having(begin(nodes(10), policy), gpu0=NodeState.REBOOTED, gpu1=failed(accepted=True))
    rollout = replace(rollout, policy=replace(policy, failure_budget=Share(1)))
    foreign = Observation({"gpu2": "drained: disk", "stranger": "not of this roll-out"})
    assert started(decide(rollout, NOW, foreign)) == ["gpu3", "gpu4"]


def test_no_more_nodes_of_a_group_are_unavailable_than_its_limit() -> None:
    policy = replace(QUICK, canaries=0, group_limits={"rack*": 1})
    rollout = having(begin(nodes(9, racks=3), policy), gpu0=NodeState.DRAINED)
    assert started(decide(rollout, NOW, Observation({"gpu4": "down"}))) == ["gpu2"]


ALICE = Observation({"gpu1": "drained by alice: disk"})


def waiting_for_alice(minutes: float, policy: Policy = QUICK, **more: Any) -> Rollout:
    """All nodes have returned but one, which somebody else has kept out of service for so long."""
    rest = having(begin(nodes(3), replace(policy, canaries=0)), **returned("gpu0", "gpu2"))
    record = seen_out(rest.records["gpu1"], "drained by alice: disk", NOW - timedelta(minutes=minutes))
    return replace(rest, records={**rest.records, "gpu1": replace(record, **more)})


def test_a_node_that_somebody_else_has_drained_has_its_turn_last() -> None:
    decision = decide(begin(nodes(3), replace(QUICK, canaries=0)), NOW, ALICE)
    assert started(decision) == ["gpu0", "gpu2"]
    assert decision.moves["gpu1"].out_since == NOW


def test_one_look_leaves_no_node_out_that_others_keep_out_of_service() -> None:
    rest = having(begin(nodes(3), replace(QUICK, canaries=0)), **returned("gpu0", "gpu2"))
    decision = decide(rest, NOW, ALICE)
    assert decision.moves["gpu1"].state is NodeState.PENDING
    assert (decision.mode, decision.until) == (Mode.RUNNING, NOW + LOOK_AGAIN)
    assert "gpu1" in decision.sentence


def test_a_node_that_others_have_kept_out_of_service_for_long_is_left_out_with_their_reason() -> None:
    soon = decide(waiting_for_alice(58), NOW, ALICE)
    assert (soon.moves, soon.until) == ({}, NOW + timedelta(minutes=2))
    record = decide(waiting_for_alice(60), NOW, ALICE).moves["gpu1"]
    assert (record.state, record.refused) == (NodeState.LEFT_OUT, True)
    assert "alice" in record.reason


def test_a_node_that_is_back_in_service_starts_and_counts_from_the_beginning_the_next_time() -> None:
    decision = decide(waiting_for_alice(59), NOW, NOBODY)
    assert started(decision) == ["gpu1"]
    assert (decision.moves["gpu1"].out_since, decision.moves["gpu1"].reason) == (None, "")


def test_nodes_of_others_are_left_out_within_the_refusal_budget_only() -> None:
    policy = replace(QUICK, refusal_budget=Share(0))
    decision = decide(waiting_for_alice(60, policy), NOW, ALICE)
    assert (decision.mode, decision.moves) == (Mode.HELD, {})
    assert "gpu1" in decision.reason
    assert "refusal_budget" in decision.reason
    # Whoever goes on has read that.
    gone_on = decide(waiting_for_alice(60, policy, accepted=True), NOW, ALICE)
    assert (gone_on.mode, gone_on.moves["gpu1"].state) == (Mode.RUNNING, NodeState.LEFT_OUT)
    over = replace(waiting_for_alice(60, policy), records=dict(waiting_for_alice(60, policy).records))
    over = having(over, gpu1={"state": NodeState.LEFT_OUT})
    assert decide(over, NOW, NOBODY).mode is Mode.HELD


def test_where_a_whole_fleet_is_out_of_service_its_return_is_waited_for() -> None:
    fleet = having(begin(nodes(40), Policy(soak_minutes=0)), **returned("gpu0"))
    restart = Observation(dict.fromkeys(fleet.nodes, "does not answer slurmctld"))
    now = NOW
    for _ in range(100):
        decision = decide(fleet, now, restart)
        assert decision.mode is Mode.RUNNING
        assert decision.until == now + LOOK_AGAIN
        fleet = replace(fleet, records={**fleet.records, **decision.moves})
        now = decision.until
    assert {record.state for name, record in fleet.records.items() if name != "gpu0"} == {NodeState.PENDING}
    assert now - NOW > PATIENCE
    assert "max_unavailable" in decision.sentence
    assert len(started(decide(fleet, now, NOBODY))) == 2


# Nothing stalls in silence


def test_dead_nodes_that_use_up_what_may_be_unavailable_hold_the_rollout_and_are_named() -> None:
    policy = replace(QUICK, canaries=0, max_unavailable=Share(1), failure_budget=Share(5))
    decision = decide(having(begin(nodes(3), policy), gpu1=failed(accepted=True)), NOW, NOBODY)
    assert decision.mode is Mode.HELD
    assert "gpu1" in decision.reason
    assert "max_unavailable" in decision.reason


def test_nodes_of_others_that_use_it_up_are_named_and_looked_at_again() -> None:
    policy = replace(QUICK, canaries=0, max_unavailable=Share(1))
    decision = decide(begin(nodes(3), policy), NOW, Observation({"gpu2": "drained"}))
    assert decision.mode is Mode.RUNNING
    assert decision.until is not None
    assert "gpu2" in decision.sentence


def test_a_dead_node_that_uses_up_its_group_holds_the_rollout_when_nothing_else_is_left() -> None:
    policy = replace(QUICK, canaries=0, group_limits={"rack0": 1}, failure_budget=Share(5))
    rollout = having(begin(nodes(4, racks=2), policy), gpu0=failed(accepted=True))
    assert started(decide(rollout, NOW, NOBODY)) == ["gpu1", "gpu3"]
    decision = decide(having(rollout, **returned("gpu1", "gpu3")), NOW, NOBODY)
    assert decision.mode is Mode.HELD
    assert "rack0" in decision.reason


def test_no_node_starts_while_nobody_knows_which_are_in_service() -> None:
    decision = decide(begin(nodes(3)), NOW, Observation(problem="slurmctld does not answer"))
    assert decision.starts == ()
    assert decision.until is not None
    assert "slurmctld" in decision.sentence


# Failures


def test_one_canary_of_four_that_is_rolled_back_stops_the_rollout() -> None:
    policy = replace(QUICK, canaries=4, failure_budget=Share(3))
    rollout = having(begin(nodes(8), policy), gpu2=rolled_back(), **returned("gpu0"), gpu1=NodeState.LEASED)
    decision = decide(rollout, NOW, NOBODY)
    assert decision.mode is Mode.STOPPED
    assert "gpu2" in decision.reason
    assert "6 % slower" in decision.reason
    # What was not changed yet is put back, and may start again later.
    assert (decision.moves["gpu1"].course, decision.moves["gpu1"].then) == (Course.RELEASE, NodeState.PENDING)


def test_a_failure_that_somebody_has_accepted_stops_nothing() -> None:
    policy = replace(QUICK, canaries=2, failure_budget=Share(1))
    rollout = having(begin(nodes(3), policy), gpu0=rolled_back(accepted=True), **returned("gpu1"))
    decision = decide(having(rollout, gpu2={"wave": 0}), NOW, NOBODY)
    assert (decision.mode, started(decision)) == (Mode.RUNNING, ["gpu2"])


def test_the_budget_is_for_the_whole_rollout_and_acceptance_does_not_enlarge_it() -> None:
    policy = replace(QUICK, canaries=0, failure_budget=Share(1))
    one = having(begin(nodes(5), policy), gpu0=rolled_back(accepted=True))
    assert decide(one, NOW, NOBODY).mode is Mode.RUNNING
    two = having(one, gpu1={"state": NodeState.ROLLING_BACK, "course": Course.BACK, "failures": 1})
    decision = decide(two, NOW, NOBODY)
    assert decision.mode is Mode.STOPPED
    assert "failure_budget" in decision.reason


def test_a_rollback_that_fails_stops_the_rollout_within_its_budget() -> None:
    policy = replace(QUICK, canaries=0, failure_budget=Share(5))
    decision = decide(having(begin(nodes(5), policy), gpu0=failed()), NOW, NOBODY)
    assert decision.mode is Mode.STOPPED
    assert "gpu0" in decision.reason


def test_a_stop_lets_nodes_that_are_changed_end() -> None:
    rollout = having(begin(nodes(4)), gpu0=failed(), gpu1=NodeState.INSTALLED, gpu2=NodeState.BASELINE)
    decision = decide(rollout, NOW, NOBODY)
    assert started(decision, Step.REBOOT) == ["gpu1"]
    assert started(decision, Step.RELEASE) == ["gpu2"]


def test_a_hold_lets_nodes_under_way_end_and_starts_none() -> None:
    held = replace(having(begin(nodes(3)), gpu0=NodeState.STAGED), mode=Mode.HELD, reason="by hand")
    decision = decide(held, NOW, NOBODY)
    assert [(start.node, start.transition.step) for start in decision.starts] == [("gpu0", Step.DRAIN)]
    assert decision.reason == "by hand"


def test_too_many_nodes_left_out_hold_the_rollout() -> None:
    policy = replace(QUICK, canaries=0, refusal_budget=Share(1))
    gone = {"state": NodeState.LEFT_OUT, "started_at": NOW, "reason": "404"}
    assert decide(having(begin(nodes(4), policy), gpu0=gone), NOW, NOBODY).mode is Mode.RUNNING
    decision = decide(having(begin(nodes(4), policy), gpu0=gone, gpu1=gone), NOW, NOBODY)
    assert decision.mode is Mode.HELD
    assert "gpu0" in decision.reason


def test_nodes_that_the_plan_left_out_are_no_refusals() -> None:
    policy = replace(QUICK, canaries=0, refusal_budget=Share(0))
    assert decide(having(begin(nodes(2), policy), gpu0=NodeState.LEFT_OUT), NOW, NOBODY).mode is Mode.RUNNING


# Windows


def at(hour: int, minute: int = 0) -> datetime:
    return datetime(2027, 3, 1, hour, minute, tzinfo=UTC)


def windowed(count: int = 2) -> Rollout:
    """Nodes that need three hours, and a window of four."""
    policy = replace(QUICK, canaries=0, windows=(NIGHT,), stage_minutes=30)
    return begin(nodes(count), replace(policy, drain_minutes=60, work_minutes=60, way_back_minutes=30))


def test_a_node_starts_only_where_it_can_end_inside_its_window() -> None:
    assert len(started(decide(windowed(), at(23), NOBODY))) == 2
    late = decide(windowed(), at(23, 1), NOBODY)
    assert (started(late), late.until) == ([], at(22) + timedelta(days=1))


def test_a_node_whose_drain_took_the_window_is_released_before_anything_is_changed() -> None:
    early = decide(having(windowed(), gpu0=NodeState.DRAINED), at(23), NOBODY)
    assert started(early, Step.BASELINE) == ["gpu0"]
    late = decide(having(windowed(), gpu0=NodeState.DRAINED), at(23, 59), NOBODY)
    assert started(late, Step.RELEASE) == []
    assert started(decide(having(windowed(), gpu0=NodeState.STAGED), at(23, 59), NOBODY), Step.RELEASE) == [
        "gpu0"
    ]


def test_a_node_that_is_changed_is_not_left_half_done_where_its_window_closes() -> None:
    decision = decide(having(windowed(), gpu0=NodeState.INSTALLED), at(12), NOBODY)
    assert started(decision, Step.REBOOT) == ["gpu0"]


def test_a_node_that_fits_into_no_window_is_left_out_with_that_reason() -> None:
    rollout = windowed()
    rollout = replace(rollout, policy=replace(rollout.policy, drain_minutes=600))
    decision = decide(rollout, at(12), NOBODY)
    assert {record.state for record in decision.moves.values()} == {NodeState.LEFT_OUT}
    assert "window" in decision.moves["gpu0"].reason


# The end


def test_it_is_done_when_every_node_has_ended() -> None:
    policy = replace(QUICK, failure_budget=Share(1))
    rollout = having(begin(nodes(2), policy), **returned("gpu0"), gpu1=rolled_back())
    decision = decide(rollout, NOW, NOBODY)
    assert (decision.mode, decision.busy, decision.until) == (Mode.DONE, False, None)
    assert "1 rolled-back" in decision.sentence


def test_a_step_that_failed_for_now_waits_for_its_next_try() -> None:
    later = NOW + timedelta(minutes=5)
    decision = decide(
        having(begin(nodes(1)), gpu0={"state": NodeState.PROVEN, "not_before": later}), NOW, NOBODY
    )
    assert (decision.starts, decision.until, decision.mode) == ((), later, Mode.RUNNING)
