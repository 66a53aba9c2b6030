"""How a node moves, step by step, and that the table says it all."""

import random
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from temper.rollout.machine import (
    NOT_TAKEN_OUT,
    after,
    begun,
    choices,
    fresh,
    interrupted,
    keep_out,
    release,
    retried,
    tried_again,
    upcoming,
)
from temper.rollout.model import (
    ALLOWED,
    BACK,
    ENDED,
    FORWARD,
    NEW_BASELINE,
    OVERRULED,
    TRANSITIONS,
    WATCH,
    Course,
    NodeState,
    Outcome,
    Record,
    Step,
    StepResult,
    Try,
)
from tests.unit.each import each
from tests.unit.rollout.fleets import DONE, NOW

FAILED = StepResult(Outcome.FAILED, "why")
AGAIN = StepResult(Outcome.AGAIN, "why")
REFUSED = StepResult(Outcome.REFUSED, "why")


def step(record: Record, result: StepResult = DONE) -> Record:
    """The node after its next step."""
    transition = upcoming(record)
    assert transition
    return after(begun(record, transition, NOW), result, NOW)


def reach(state: NodeState) -> Record:
    """A node that has come to a state without a fault."""
    record = Record(NodeState.PENDING, NOW)
    while record.state is not state:
        record = step(record)
    return record


def end(record: Record, *results: StepResult) -> Record:
    """The node at its end, with `done` for what there is no result for."""
    answers = list(results)
    while not record.ended:
        record = step(record, answers.pop(0) if answers else DONE)
    return record


def walked(record: Record) -> tuple[list[Step], Record]:
    """The steps to the node's end, where all are done, and the node there."""
    steps = []
    while found := upcoming(record):
        steps.append(found.step)
        record = step(record)
    return steps, record


def test_a_node_without_a_fault_passes_all_states_and_is_returned() -> None:
    record = Record(NodeState.PENDING, NOW)
    seen = [record.state]
    while not record.ended:
        record = step(record)
        seen.append(record.state)
    assert seen == [NodeState.PENDING, *(row.after for row in FORWARD)]
    assert not record.out


def test_both_stacks_are_downloaded_before_the_node_leaves_service() -> None:
    steps = [row.step for row in FORWARD]
    assert steps.index(Step.STAGE) < steps.index(Step.DRAIN)
    assert not reach(NodeState.STAGED).out


@each(NodeState.LEASED, NodeState.STAGED, NodeState.DRAINED)
@each(FAILED, REFUSED)
def test_a_node_that_was_not_changed_is_released_and_left_out(result: StepResult, state: NodeState) -> None:
    record = step(reach(state), result)
    assert (record.course, record.reason) == (Course.RELEASE, "why")
    assert (end(record).state, end(record).out, end(record).failures) == (NodeState.LEFT_OUT, False, 0)


def test_an_installation_that_was_refused_changed_nothing() -> None:
    assert end(reach(NodeState.BASELINE), REFUSED).state is NodeState.LEFT_OUT


def test_an_installation_that_was_cut_off_before_may_have_changed_something() -> None:
    record = reach(NodeState.BASELINE)
    transition = upcoming(record)
    assert transition
    cut = interrupted(begun(record, transition, NOW))
    assert not cut.unchanged
    assert end(cut, REFUSED).state is NodeState.ROLLED_BACK


def test_an_installation_whose_connection_broke_off_may_have_changed_something() -> None:
    record = step(reach(NodeState.BASELINE), AGAIN)
    assert record.state is NodeState.BASELINE
    assert end(record, DONE).state is NodeState.RETURNED
    assert not record.unchanged
    assert end(record, REFUSED).state is NodeState.ROLLED_BACK


@each(NodeState.BASELINE, NodeState.INSTALLED, NodeState.REBOOTED, NodeState.LOADED, NodeState.SETTLED)
def test_a_node_that_was_changed_goes_the_whole_way_back(state: NodeState) -> None:
    record = step(reach(state), FAILED)
    assert (record.state, record.out, record.failures) == (NodeState.ROLLING_BACK, True, 1)
    steps, record = walked(record)
    assert steps == [Step.UNDO, Step.REBOOT, Step.LOAD, Step.SETTLE, Step.PROVE, Step.RETURN]
    assert (record.state, record.out, record.reason) == (NodeState.ROLLED_BACK, False, record.reason)
    assert "why" in record.reason


@each(*range(6))
def test_a_way_back_that_fails_keeps_the_node_out(done_before: int) -> None:
    record = step(reach(NodeState.SETTLED), FAILED)
    for _ in range(done_before):
        record = step(record)
    record = end(record, StepResult(Outcome.FAILED, "worse"))
    assert (record.state, record.out, record.failures) == (NodeState.FAILED, True, 1)
    assert "why" in record.reason
    assert "worse" in record.reason


def test_noise_is_measured_again_and_never_passes() -> None:
    record = reach(NodeState.SETTLED)
    for _ in range(2):
        record = step(record, AGAIN)
        assert record.state is NodeState.SETTLED
    assert step(record, AGAIN).state is NodeState.ROLLING_BACK
    assert step(record).state is NodeState.PROVEN


def test_a_node_that_does_not_answer_counts_as_unavailable() -> None:
    assert step(Record(NodeState.PENDING, NOW), FAILED).out
    assert not step(Record(NodeState.PENDING, NOW), REFUSED).out


def test_a_proven_node_that_cannot_be_returned_is_measured_again_when_it_is_retried() -> None:
    record = end(reach(NodeState.PROVEN), *[AGAIN] * 5)
    assert (record.state, record.out) == (NodeState.FAILED, True)
    again = retried(record, NOW)
    assert again.state is NodeState.SETTLED
    assert end(again).state is NodeState.RETURNED


def test_a_node_that_failed_on_its_way_back_goes_back_when_it_is_retried() -> None:
    record = end(step(reach(NodeState.LOADED), FAILED), FAILED)
    assert end(retried(record, NOW)).state is NodeState.ROLLED_BACK


def test_a_drain_that_cannot_be_undone_fails_and_is_released_when_it_is_retried() -> None:
    record = end(release(reach(NodeState.DRAINED), NodeState.PENDING, "window"), *[AGAIN] * 5)
    assert (record.state, record.failures) == (NodeState.FAILED, 1)
    again = step(retried(record, NOW))
    assert (again.state, again.out) == (NodeState.PENDING, False)


def failed_back(at: Step) -> Record:
    """A node whose driver did not prove itself, and that failed in this step of its way back."""
    record = step(reach(NodeState.SETTLED), FAILED)
    while (found := upcoming(record)) and found.step is not at:
        record = step(record)
    return end(record, FAILED)


@each((Step.UNDO, False), (Step.REBOOT, False), (Step.LOAD, False), (Step.SETTLE, True), (Step.PROVE, True))
def test_a_failed_node_can_be_accepted_once_its_former_driver_is_loaded(at: Step, possible: bool) -> None:
    record = failed_back(at)
    assert record.state is NodeState.FAILED
    assert (Try.ACCEPT in choices(record, NOW)) is possible
    if possible:
        accepted = tried_again(record, Try.ACCEPT, "by ann: looked", NOW)
        assert accepted.failures == 0
        assert accepted.state in ALLOWED[record.state]
        returned = end(accepted)
        assert (returned.state, returned.overruled) == (NodeState.ROLLED_BACK, "by ann: looked")
        assert not returned.out


def test_a_node_that_was_accepted_for_another_try_stays_so_until_its_end() -> None:
    out = end(reach(NodeState.DRAINED), StepResult(Outcome.REFUSED, "noise"))
    again = tried_again(out, Try.ACCEPT, "by ann: noise", NOW)
    assert again.state is NodeState.PENDING
    assert fresh(again, NOW).overruled == "by ann: noise"
    assert end(again).overruled == "by ann: noise"


def test_a_new_baseline_is_for_a_node_on_its_way_back() -> None:
    record = failed_back(Step.PROVE)
    again = tried_again(record, Try.MEASURE_AGAIN, "by ann: noise", NOW)
    assert (again.facts[NEW_BASELINE], again.failures) == ("by ann: noise", 0)
    assert end(again).state is NodeState.ROLLED_BACK


@each(
    Record(NodeState.LEFT_OUT, NOW),
    Record(NodeState.ROLLED_BACK, NOW),
    *(
        Record(NodeState.FAILED, NOW, stage=stage)
        for stage in (NodeState.DRAINED, NodeState.PROVEN, NodeState.ROLLING_BACK)
    ),
)
def test_what_somebody_has_said_of_a_try_ends_with_the_next_one(record: Record) -> None:
    facts = {OVERRULED: "by ann: looked", NEW_BASELINE: "by ann: noise", "former_stack": "old"}
    again = retried(replace(record, facts=facts), NOW)
    assert not {OVERRULED, NEW_BASELINE} & again.facts.keys()
    assert ("former_stack" in again.facts) is (record.state is NodeState.FAILED)


@each(NodeState.ROLLED_BACK, NodeState.LEFT_OUT, NodeState.RETURNED, NodeState.PENDING)
def test_only_a_failed_node_gets_a_new_baseline(state: NodeState) -> None:
    """Any other one has one anyway with `retry`, which leaves its failures counted."""
    record = Record(state, NOW, failures=1)
    with pytest.raises(ValueError, match="expected"):
        tried_again(record, Try.MEASURE_AGAIN, "by ann: noise", NOW)
    assert Try.MEASURE_AGAIN not in choices(record, NOW)


def test_failures_are_not_forgotten_by_another_try() -> None:
    rolled_back = end(reach(NodeState.SETTLED), FAILED)
    assert retried(rolled_back, NOW).failures == 1


def test_what_was_interrupted_is_done_again_and_does_not_count_as_a_try() -> None:
    record = reach(NodeState.SETTLED)
    transition = upcoming(record)
    assert transition
    cut = interrupted(begun(record, transition, NOW))
    assert (cut.step, cut.attempt, cut.state) == (None, 0, NodeState.SETTLED)
    assert upcoming(cut) == transition


def test_a_result_without_a_step_is_refused() -> None:
    with pytest.raises(ValueError, match="no step is under way"):
        after(reach(NodeState.DRAINED), DONE, NOW)


def watched(result: StepResult) -> Record:
    """A returned node after its soak was looked at, with as many attempts as there are."""
    record = reach(NodeState.RETURNED)
    for _ in range(WATCH.attempts if result.outcome is Outcome.AGAIN else 1):
        record = after(begun(record, WATCH, NOW), result, NOW)
    return record


@each((DONE, True, 0), (AGAIN, False, 1))
def test_a_look_after_the_soak_that_is_good_or_could_not_be_taken_leaves_the_node_in_service(
    result: StepResult, seen: bool, failures: int
) -> None:
    record = watched(result)
    assert (record.state, record.out) == (NodeState.RETURNED, False)
    assert (record.watched, record.failures) == (seen, failures)


def test_an_error_in_the_soak_drains_the_node_and_leads_it_back() -> None:
    record = watched(StepResult(Outcome.FAILED, "Xid 79"))
    assert (record.state, record.watched, record.failures) == (NodeState.ROLLING_BACK, False, 1)
    steps, record = walked(record)
    assert steps == [Step.DRAIN, Step.UNDO, Step.REBOOT, Step.LOAD, Step.SETTLE, Step.PROVE, Step.RETURN]
    assert (record.state, record.out) == (NodeState.ROLLED_BACK, False)
    assert "Xid 79" in record.reason


def test_a_node_whose_work_does_not_end_after_an_error_in_the_soak_stays_out() -> None:
    record = end(watched(StepResult(Outcome.FAILED, "Xid 79")), StepResult(Outcome.REFUSED, "job 7"))
    assert (record.state, record.out, record.failures) == (NodeState.FAILED, True, 1)
    assert "Xid 79" in record.reason
    assert "job 7" in record.reason
    # Its work may still be there when somebody has another try.
    again = retried(record, NOW)
    assert upcoming(again) is BACK[0]
    assert end(again).state is NodeState.ROLLED_BACK


@settings(deadline=None)
@given(st.integers())
def test_any_results_in_any_order_end_as_the_table_allows(seed: int) -> None:
    record = Record(NodeState.PENDING, NOW)
    dice = random.Random(seed)
    for _ in range(200):
        looks = record.state is NodeState.RETURNED and record.watched is None
        if record.ended and not looks:
            break
        transition = WATCH if looks else upcoming(record)
        assert transition
        under_way = begun(record, transition, NOW)
        if dice.random() < 0.1:
            record = interrupted(under_way)
            continue
        following = after(under_way, dice.choice((DONE, DONE, DONE, DONE, AGAIN, FAILED, REFUSED)), NOW)
        assert following.state is record.state or following.state in ALLOWED[record.state]
        if following.state in (NodeState.RETURNED, NodeState.ROLLED_BACK) and not looks:
            assert record.state is NodeState.PROVEN or record.stage is NodeState.PROVEN
        record = following
    assert record.ended
    assert record.out == (record.state is NodeState.FAILED) or record.state is NodeState.LEFT_OUT


def test_the_table_has_a_row_for_every_step_and_says_what_to_do_with_an_unfinished_one() -> None:
    assert {row.step for row in TRANSITIONS} == set(Step)
    assert [row for row in TRANSITIONS if not row.what or not row.unfinished or row.attempts < 1] == []
    assert set(ALLOWED) == set(NodeState)
    # Nothing leaves an end by itself.
    assert {
        row.before for row in TRANSITIONS if row is not WATCH and row.course is not Course.BACK
    } & ENDED == set()


def test_records_do_not_share_what_steps_leave() -> None:
    record = reach(NodeState.INSTALLED)
    with_facts = step(record, replace(DONE, facts={"boot_id": "b"}))
    assert (record.facts, with_facts.facts) == ({}, {"boot_id": "b"})


def test_a_failed_node_whose_scheduler_could_not_be_told_says_so() -> None:
    """After an error in its soak it was in service: without the scheduler, it still is."""
    away = StepResult(Outcome.AGAIN, "scontrol gave no answer within 30 s")
    record = keep_out(
        replace(reach(NodeState.RETURNED), state=NodeState.ROLLING_BACK, course=Course.BACK), "xid-79"
    )
    tries = 0
    while not record.ended:
        assert not record.not_before or record.not_before - NOW >= timedelta(minutes=5)
        record, tries = step(record, away), tries + 1
    assert tries == 5, "a scheduler that restarts is back by then"
    assert record.reason == f"xid-79; {NOT_TAKEN_OUT}: {away.reason}"
