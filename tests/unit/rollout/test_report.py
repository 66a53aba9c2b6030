"""The report of a roll-out: every node's timeline, and what is true of it."""

import json
from dataclasses import replace
from datetime import timedelta

from temper.rollout.model import BACK_AT, OUT_SINCE, OVERRULED, Course, Mode, NodeState, Record, Step
from temper.rollout.report import (
    SENTENCES,
    as_dict,
    longest_steps,
    overhead,
    sentence,
    status_text,
    timeline_text,
    timelines,
    verdict,
    what_to_do,
)
from temper.rollout.store import Event
from tests.unit.each import each
from tests.unit.rollout.fleets import NOW, begin, having, nodes


def event(minute: float, node: str, state: NodeState, step: Step | str, outcome: str = "done") -> Event:
    return Event(node, NOW + timedelta(minutes=minute), state, step, outcome, "", {}, "root on controller")


#: Two nodes at the same time; the second is rolled back.
EVENTS = [
    event(0, "gpu0", NodeState.PENDING, Step.LEASE, "begun"),
    event(1, "gpu0", NodeState.LEASED, Step.LEASE),
    event(1, "gpu0", NodeState.STAGED, Step.STAGE, "done"),
    event(2, "gpu0", NodeState.STAGED, Step.DRAIN, "begun"),
    event(3, "gpu1", NodeState.STAGED, Step.DRAIN, "begun"),
    event(5, "gpu0", NodeState.DRAINED, Step.DRAIN),
    event(5, "gpu0", NodeState.PROVEN, Step.RETURN, "begun"),
    event(13, "gpu1", NodeState.ROLLING_BACK, Step.PROVE, "failed"),
    event(15, "gpu0", NodeState.RETURNED, Step.RETURN),
    event(23, "gpu1", NodeState.ROLLED_BACK, Step.RETURN),
]
LATER = NOW + timedelta(hours=5)


def test_a_timeline_has_the_minutes_of_each_state_and_those_out_of_service() -> None:
    way = timelines(begin(nodes(3)), EVENTS, LATER)["gpu0"]
    assert [(stay.state, stay.minutes) for stay in way.stays] == [
        (NodeState.PENDING, 1),
        (NodeState.LEASED, 0),
        (NodeState.STAGED, 4),
        (NodeState.DRAINED, 0),
        (NodeState.PROVEN, 10),
        (NodeState.RETURNED, 0),
    ]
    assert way.out_minutes == 13


def test_a_node_that_did_nothing_has_no_timeline() -> None:
    assert list(timelines(begin(nodes(3)), EVENTS, LATER)) == ["gpu0", "gpu1"]


def test_the_overhead_is_beside_the_sum_of_the_nodes_own_time() -> None:
    found = overhead(EVENTS)
    # gpu0: 1 + 3 + 10 minutes of steps, gpu1: 10.
    assert (found.elapsed, found.node_minutes, found.critical) == (23, 24, 14)


def test_the_report_is_json_with_every_node() -> None:
    rollout = having(
        begin(nodes(3)), gpu1={"state": NodeState.ROLLED_BACK, "reason": "6 % slower", "failures": 1}
    )
    document = json.loads(json.dumps(as_dict(rollout, EVENTS, LATER)))
    assert list(document["nodes"]) == ["gpu0", "gpu1", "gpu2"]
    assert document["nodes"]["gpu1"]["out_of_service_minutes"] == 20
    assert document["nodes"]["gpu2"]["events"] == []
    assert "6 % slower" in document["nodes"]["gpu1"]["sentence"]


def test_the_timeline_names_every_node_and_its_states() -> None:
    text = timeline_text(begin(nodes(3)), EVENTS, LATER).splitlines()
    assert text[1].startswith("gpu0: pending 1 min")
    assert "rolled-back" in text[2]
    assert "24 min together" in text[-1]


@each(*NodeState)
def test_every_state_has_a_sentence(state: NodeState) -> None:
    course = Course.BACK if state is NodeState.ROLLING_BACK else Course.FORWARD
    said = sentence(Record(state, NOW, course=course, reason="why"))
    assert SENTENCES[state] in said
    assert "why" in said


def test_what_is_under_way_is_said() -> None:
    record = Record(NodeState.STAGED, NOW, step=Step.DRAIN, step_since=NOW)
    assert "drain" in sentence(record)
    waiting = Record(NodeState.PROVEN, NOW, not_before=NOW + timedelta(minutes=5))
    assert "12:05" in sentence(waiting)
    assert "released" in sentence(replace(record, course=Course.RELEASE, step=Step.RELEASE))


def test_the_status_says_once_what_is_true_of_several_nodes_and_when_it_will_end() -> None:
    rollout = having(begin(nodes(6, cohorts=2)), gpu0=NodeState.DRAINED, gpu1=NodeState.DRAINED)
    text = status_text(rollout, LATER, end=LATER)
    assert text.count(SENTENCES[NodeState.DRAINED]) == 1
    assert "17:00" in text.splitlines()[0]
    assert "canaries" in text
    assert "wave 0" not in text


def test_the_status_names_whoever_needs_a_person() -> None:
    rollout = having(
        begin(nodes(6)),
        gpu0=NodeState.RETURNED,
        gpu1={"state": NodeState.FAILED, "reason": "no answer"},
        gpu2=NodeState.DRAINED,
        gpu3={"state": NodeState.LEFT_OUT, "reason": "slow already"},
    )
    text = status_text(replace(rollout, mode=Mode.STOPPED, reason="gpu1 stays out."), LATER)
    assert "stopped, gpu1 stays out\n" in text
    assert "gpu1 (wave 1, 5 h): It stays out of service" in text
    assert "gpu2 (wave" in text
    assert "gpu3 left out: slow already" in text
    assert "gpu0 (wave" not in text


BACK = {"state": NodeState.FAILED, "stage": NodeState.ROLLING_BACK, "course": Course.BACK, "failures": 2}
LOADED = {"facts": {BACK_AT: "settled"}}


@each(
    (BACK | LOADED, Mode.STOPPED, ["retry", "measure-again", "accept", "resume"]),
    # Where the former driver is not there again, nobody can call the node good.
    (BACK, Mode.STOPPED, ["retry", "measure-again", "resume"]),
    (BACK | {"facts": {BACK_AT: "pending"}}, Mode.STOPPED, ["retry", "measure-again", "resume"]),
    ({"state": NodeState.FAILED, "stage": NodeState.PROVEN}, Mode.STOPPED, ["retry", "accept", "resume"]),
    ({"state": NodeState.FAILED, "stage": NodeState.DRAINED}, Mode.DONE, ["retry", "accept", "resume"]),
    ({"state": NodeState.ROLLED_BACK, "failures": 1}, Mode.DONE, ["retry", "accept", "resume"]),
    ({"state": NodeState.LEFT_OUT, "started_at": NOW}, Mode.HELD, ["retry", "accept", "resume"]),
    # What the plan has left out is the inventory's to mend.
    ({"state": NodeState.LEFT_OUT}, Mode.DONE, []),
    ({"state": NodeState.RETURNED}, Mode.DONE, []),
    ({"state": NodeState.PENDING}, Mode.HELD, ["resume"]),
)
def test_the_status_says_what_to_type(fields: dict[str, object], mode: Mode, verbs: list[str]) -> None:
    rollout = replace(having(begin(nodes(1)), gpu0=fields), mode=mode)
    commands = [
        line.split("temper rollout ")[1] for line in what_to_do(rollout, NOW) if "temper rollout" in line
    ]
    assert [one.split("`")[0].split()[0] for one in commands] == verbs
    assert all("gpu0" in one for one in commands if not one.startswith("resume"))
    assert all(
        ("--reason" in one) == (verb not in ("retry", "resume"))
        for one, verb in zip(commands, verbs, strict=True)
    )


def test_a_roll_out_that_ended_well_says_what_the_inventory_has_to_say() -> None:
    done = replace(having(begin(nodes(1)), gpu0=RETURNED), mode=Mode.DONE)
    assert f"nvidia_stack_name: {done.stack}" in status_text(done, NOW)
    assert "nvidia_stack_name" not in status_text(replace(done, stack=""), NOW)
    failed = replace(having(begin(nodes(1)), gpu0=NodeState.ROLLED_BACK), mode=Mode.DONE)
    assert "nvidia_stack_name" not in status_text(failed, NOW)


def test_what_somebody_has_accepted_is_said_with_the_reason() -> None:
    record = Record(NodeState.RETURNED, NOW, facts={OVERRULED: "by ann: the host is shared."})
    assert sentence(record).endswith("It was accepted by ann: the host is shared.")


def test_reasons_end_with_one_full_stop() -> None:
    assert sentence(Record(NodeState.FAILED, NOW, reason="no answer.")).endswith("Reason: no answer.")


def test_the_longest_time_of_each_step_is_known() -> None:
    assert longest_steps(EVENTS) == {Step.LEASE: 1.0, Step.STAGE: 1.0, Step.DRAIN: 3.0, Step.RETURN: 20.0}


RETURNED: dict[str, object] = {"state": NodeState.RETURNED, "started_at": NOW}


@each(
    (Mode.DONE, RETURNED, 0),
    # Rolled back, retried, and returned then.
    (Mode.DONE, RETURNED | {"failures": 1, "accepted": True}, 0),
    (Mode.DONE, RETURNED | {"watched": False, "failures": 1, "accepted": True}, 1),
    (Mode.DONE, {"state": NodeState.ROLLED_BACK, "started_at": NOW, "failures": 1}, 1),
    # It never took part, and so does not count beside another one.
    (Mode.DONE, {"state": NodeState.LEFT_OUT}, 0),
    (Mode.DONE, {"state": NodeState.LEFT_OUT, "started_at": NOW}, 1),
    (Mode.STOPPED, {"state": NodeState.FAILED, "failures": 1}, 3),
    (Mode.RUNNING, {"state": NodeState.DRAINED}, 3),
)
def test_the_exit_status(mode: Mode, fields: dict[str, object], status: int) -> None:
    rollout = having(begin(nodes(2)), gpu0=RETURNED, gpu1=fields)
    assert verdict(replace(rollout, mode=mode)) == status


def test_a_roll_out_in_which_no_node_took_part_is_no_success() -> None:
    rollout = having(begin(nodes(1)), gpu0={"state": NodeState.LEFT_OUT, "reason": "drained by bob"})
    assert verdict(replace(rollout, mode=Mode.DONE)) == 1


def test_a_failed_node_is_out_of_service_until_now() -> None:
    events = [*EVENTS[:-1], event(23, "gpu1", NodeState.FAILED, Step.KEEP_OUT)]
    assert timelines(begin(nodes(3)), events, LATER)["gpu1"].out_minutes == 5 * 60 - 3
    assert "gpu1: staged 10 min, rolling-back 10 min, failed; out of service for 4 h 57 min" in timeline_text(
        begin(nodes(3)), events, LATER
    )


def test_the_status_says_why_nodes_that_wait_are_out_of_service() -> None:
    """A name that the scheduler does not know looks like a node that somebody has drained."""
    out = {OUT_SINCE: NOW.isoformat()}
    why = "out of service by somebody else: gpu{} is not known to Slurm."
    fields = {f"gpu{place}": {"facts": out, "reason": why.format(place)} for place in range(8)}
    text = status_text(having(begin(nodes(9)), **fields), NOW)
    assert "gpu1: out of service by somebody else: gpu1 is not known to Slurm." in text
    assert "gpu7 is not" not in text
    assert "and 2 more" in text
