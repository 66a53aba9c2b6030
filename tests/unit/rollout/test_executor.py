"""What the steps of a roll-out come to. Ansible and the scheduler stand in: both have tests of their own."""

import asyncio
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from temper.rollout.drain.base import DrainError, Standing
from temper.rollout.engine import Ticket
from temper.rollout.executor import FleetExecutor
from temper.rollout.gate import Rules
from temper.rollout.machine import after, begun
from temper.rollout.model import (
    FORWARD,
    NEW_BASELINE,
    OVERRULED,
    WITHHELD,
    Course,
    NodeState,
    Outcome,
    Record,
    RolloutNode,
    Step,
    StepResult,
)
from temper.rollout.node_step import NodeStep, NodeStepResult
from temper.rollout.playbooks import CHECKOUT, RESULT, Events, Played, last_words
from temper.rollout.policy import Policy
from temper.rollout.report import sentence
from tests.unit.each import each
from tests.unit.rollout.results import run_of
from validation.model.contract import Finding, NodeResult, State, dumps

NOW = datetime(2026, 11, 22, tzinfo=UTC)
OLD, NEW = "r580-cuda13.0", "r595-cuda13.2"
XML = "<?xml version='1.0'?><nvidia_smi_log>\n{}</nvidia_smi_log>"
GPU = '<gpu id="0000:1b:00.0">\n<uuid>GPU-{}</uuid><ecc_mode><current_ecc>{}</current_ecc></ecc_mode></gpu>\n'
BOTH = XML.format(GPU.format(0, "Enabled") + GPU.format(1, "Enabled"))
ONE = XML.format(GPU.format(0, "Enabled"))
OTHER_ECC = XML.format(GPU.format(0, "Enabled") + GPU.format(1, "Disabled"))


@dataclass
class StandInAnsible:
    """Answers each step with what a test says, or with success; keeps what it was asked."""

    answers: dict[str, list[Played] | Played] = field(default_factory=dict)
    asked: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    fencing: int = 0

    async def playbook(self, name: str, node: str, label: str, variables: Mapping[str, Any]) -> Played:
        step = str(variables.get("upgrade_step", name))
        self.asked.append((step, variables))
        answer = self.answers.get(step, Played(ok=True))
        if isinstance(answer, list):
            answer = answer.pop(0)
        self.fencing = int(variables.get("upgrade_fencing") or self.fencing + 1)
        return Played(
            answer.ok,
            answer.said,
            answer.refused,
            answer.unreachable,
            replace(answer.reported, fencing=self.fencing),
        )

    @property
    def steps(self) -> list[str]:
        return [step for step, _ in self.asked]


@dataclass
class StandInScheduler:
    """A scheduler with one node."""

    standing: Standing = field(default_factory=lambda: Standing("gpu01", in_service=True))
    busy: tuple[str, ...] = ()
    asked: list[str] = field(default_factory=list)
    before: Standing | None = None
    record: Record | None = None

    def look(self, node: str) -> Standing:
        return self.standing

    def survey(self, nodes: Collection[str]) -> list[Standing]:
        return [self.look(node) for node in nodes]

    def drain(self, node: str, before: Standing, reason: str) -> None:
        self.asked.append(f"drain: {reason}")

    def empty(self, node: str, timeout_s: float) -> tuple[str, ...]:
        if self.busy:
            raise DrainError(f"{node} still has work: {', '.join(self.busy)}")
        return ()

    def give_back(self, node: str, before: Standing) -> str:
        self.asked.append("give back")
        self.before = before
        if self.standing.ours:
            self.standing = before
        return f"{node} is back in service."

    def keep_out(self, node: str, before: Standing, reason: str) -> None:
        self.asked.append(f"keep out: {reason}")


@dataclass
class World:
    """The executor between both stand-ins; what it keeps is in a folder."""

    folder: Path
    ansible: StandInAnsible
    scheduler: StandInScheduler = field(default_factory=StandInScheduler)

    def __post_init__(self) -> None:
        self.executor = self.restarted()

    def restarted(self) -> FleetExecutor:
        """Return an executor that knows only what an earlier one has kept."""
        given: tuple[Any, ...] = (self.ansible, self.scheduler, self.folder, "controller:1")
        return FleetExecutor(*given, rules=Rules(runs=2))

    def step(self, step: Step, **given: Any) -> StepResult:
        """Carry out a step of a ticket."""
        return asyncio.run(self.executor.perform(ticket(step, **given)))


def usual(folder: Path, **more: Played) -> World:
    """A node that is on a stack, not in use, and says what settings it has."""
    answers = {"look": played(stack=OLD, settled=True), "holders": played(holders=[])}
    return World(folder, StandInAnsible({**answers, "settings": played(settings=BOTH), **more}))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return usual(tmp_path)


def played(**result: Any) -> Played:
    return Played(ok=True, result=NodeStepResult.read(result))


def ticket(
    step: Step,
    *,
    attempt: int = 1,
    course: Course = Course.FORWARD,
    stack: str = NEW,
    policy: Policy = Policy(),  # noqa: B008 - frozen
    **facts: str,
) -> Ticket:
    record = Record(
        NodeState.PENDING, datetime(2026, 11, 22, tzinfo=UTC), course=course, step=step, attempt=attempt,
        reason="the gate said no", facts={"former_stack": OLD, "boot_id": "one", **facts},
    )  # fmt: skip
    return Ticket(
        1, stack, RolloutNode("gpu01", "h100"), step, record, 7, "me", policy, timedelta(minutes=10)
    )


def test_one_number_of_the_node_goes_through_all_steps_of_a_process(world: World) -> None:
    world.step(Step.LEASE)
    world.step(Step.REBOOT)
    numbers = [variables["upgrade_fencing"] for _, variables in world.ansible.asked]
    assert numbers == ["", 1]


def test_a_node_that_was_given_back_is_leased_under_a_new_number(world: World) -> None:
    world.step(Step.LEASE)
    world.step(Step.RETURN)
    # After an error in its soak, or in its next window: the node refuses a number that was given back.
    world.step(Step.DRAIN, course=Course.BACK)
    numbers = {step: variables["upgrade_fencing"] for step, variables in world.ansible.asked}
    assert (numbers["free"], numbers["holders"]) == (1, "")


def test_a_run_that_came_to_no_node_is_no_step_that_is_done(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_node_matches(*_: object) -> Played:
        return Played(ok=True)

    monkeypatch.setattr(world.ansible, "playbook", no_node_matches)
    result = world.step(Step.INSTALL)
    assert result.outcome is Outcome.AGAIN
    assert "no gpu01 in group gpu_nodes" in result.reason


def test_staging_notes_where_the_node_comes_from(world: World) -> None:
    result = world.step(Step.STAGE)
    assert (result.outcome, result.facts) == (Outcome.DONE, {"former_stack": OLD})
    step, variables = world.ansible.asked[-1]
    assert (step, variables["nvidia_stack_name"]) == ("stage", NEW)


def test_a_node_that_is_not_wholly_on_any_known_stack_has_no_way_back(world: World) -> None:
    world.ansible.answers["look"] = played(stack=OLD, settled=False)
    result = world.step(Step.STAGE)
    assert result.outcome is Outcome.REFUSED
    assert f"all of the inventory's stack {OLD}" in result.reason
    assert "stage" not in world.ansible.steps


def test_a_node_that_an_earlier_roll_out_has_moved_is_known(world: World) -> None:
    world.executor.known_stacks = ("r590-cuda13.1",)
    world.ansible.answers["look"] = [
        played(stack=OLD, settled=False),
        played(stack="r590-cuda13.1", settled=True),
    ]
    assert world.step(Step.STAGE).facts == {"former_stack": "r590-cuda13.1"}


def test_a_node_that_has_the_stack_is_left_out(world: World) -> None:
    world.ansible.answers["look"] = played(stack=NEW, settled=True)
    result = world.step(Step.STAGE)
    assert (result.outcome, result.reason) == (Outcome.REFUSED, f"it has stack {NEW} already")


def test_how_the_scheduler_had_the_node_is_known_after_a_crash(world: World) -> None:
    world.step(Step.DRAIN)
    assert world.scheduler.asked == [f"drain: upgrade to {NEW}"]
    world.scheduler.standing = Standing("gpu01", in_service=False, ours=True, reason="ours")
    world.executor = world.restarted()
    assert world.step(Step.DRAIN).outcome is Outcome.DONE
    assert world.step(Step.RETURN).reason == "gpu01 is back in service."
    assert world.scheduler.before == Standing("gpu01", in_service=True)
    assert world.ansible.steps[-2:] == ["clean", "free"]


def test_what_somebody_else_has_drained_is_left_alone(world: World) -> None:
    world.scheduler.standing = Standing("gpu01", in_service=False, reason="disk")
    result = world.step(Step.DRAIN)
    assert (result.outcome, result.reason) == (
        Outcome.REFUSED, "somebody else has taken it out of service: disk",
    )  # fmt: skip
    assert world.scheduler.asked == []


def test_what_was_never_touched_is_not_given_back(world: World) -> None:
    world.scheduler.standing = Standing("gpu01", in_service=False, reason="disk")
    world.step(Step.DRAIN)
    assert world.step(Step.RELEASE).outcome is Outcome.DONE
    assert world.scheduler.asked == []


def test_a_node_in_service_is_not_taken_out_because_its_lease_stays(world: World) -> None:
    world.step(Step.DRAIN)
    world.ansible.answers["free"] = Played(ok=False, said="no route", unreachable=True)
    result = world.step(Step.RETURN)
    assert result.outcome is Outcome.DONE
    assert "gpu01 is back in service. its lease on the node ends by itself" in result.reason


def returning(world: World, standing: Standing, attempt: int = 1) -> StepResult:
    """The return of a node that Temper has drained, which then stands like this."""
    world.step(Step.DRAIN)
    world.scheduler.standing = standing
    row = begun(Record(NodeState.PROVEN, NOW, facts={"former_stack": OLD}), FORWARD[-1], NOW)
    asked = replace(ticket(Step.RETURN), record=replace(row, attempt=attempt))
    result = asyncio.run(world.executor.perform(asked))
    world.scheduler.record = after(asked.record, result, NOW)
    return result


def test_a_node_that_somebody_else_has_drained_meanwhile_is_not_called_in_service(world: World) -> None:
    bobs = Standing("gpu01", in_service=False, reason="smoke", state="IDLE+DRAIN")
    result = returning(world, bobs)
    assert (result.outcome, result.facts) == (Outcome.DONE, {WITHHELD: "smoke"})
    assert world.scheduler.record
    assert (world.scheduler.record.state, world.scheduler.record.withheld) == (NodeState.RETURNED, "smoke")
    said = sentence(world.scheduler.record)
    assert "out of service: smoke" in said
    assert "in service with" not in said


def test_a_node_that_the_scheduler_cannot_reach_yet_is_looked_at_again_and_never_taken_out_for_it(
    world: World,
) -> None:
    silent = Standing("gpu01", in_service=True, obstacle="gpu01 does not answer slurmctld.")
    first = returning(world, silent)
    assert first.outcome is Outcome.AGAIN
    assert "does not answer slurmctld" in first.reason
    last = returning(world, silent, attempt=FORWARD[-1].attempts)
    assert (last.outcome, last.facts) == (Outcome.DONE, {WITHHELD: "gpu01 does not answer slurmctld."})


def test_a_node_that_is_returned_again_after_its_way_back_is_no_longer_called_out_of_service(
    world: World,
) -> None:
    result = world.step(Step.RETURN, withheld="smoke")
    assert result.facts[WITHHELD] == ""


def test_a_node_that_cannot_be_returned_keeps_its_packages_and_its_snapshot(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.step(Step.DRAIN)
    asked = len(world.ansible.asked)

    def down(*of: object) -> str:
        raise DrainError("Slurm took the order to resume gpu01, and it is DOWN")

    monkeypatch.setattr(world.scheduler, "give_back", down)
    assert world.step(Step.RETURN).outcome is Outcome.AGAIN
    assert world.ansible.steps[asked:] == []


def test_what_cannot_be_removed_takes_no_node_out_of_service(world: World) -> None:
    world.step(Step.DRAIN)
    world.ansible.answers["clean"] = Played(ok=False, said="read-only file system")
    result = world.step(Step.RETURN)
    assert result.outcome is Outcome.DONE
    assert "still there: read-only file system" in result.reason
    assert world.ansible.steps[-2:] == ["clean", "free"]


def test_a_returned_node_that_is_kept_out_after_all_can_be_given_back(world: World) -> None:
    world.step(Step.DRAIN)
    world.step(Step.RETURN)
    world.step(Step.KEEP_OUT)
    world.step(Step.RETURN)
    assert world.scheduler.asked == [
        f"drain: upgrade to {NEW}",
        "give back",
        "keep out: the gate said no",
        "give back",
    ]


def test_the_stack_of_a_busy_node_can_be_looked_at(world: World) -> None:
    world.step(Step.STAGE)
    assert all(
        variables["nvidia_stack_busy_ok"]
        for step, variables in world.ansible.asked
        if step in ("look", "stage")
    )


def test_work_that_does_not_end_is_named(world: World) -> None:
    world.scheduler.busy = ("job 17 of anna",)
    result = world.step(Step.DRAIN)
    assert result.outcome is Outcome.REFUSED
    assert "job 17 of anna" in result.reason


def test_processes_that_no_scheduler_knows_of_are_named(world: World) -> None:
    world.ansible.answers["holders"] = played(holders=["python3 (pid 4711) in container 0123"])
    result = world.step(Step.DRAIN)
    assert (result.outcome, result.reason) == (
        Outcome.REFUSED,
        "its GPUs are in use: python3 (pid 4711) in container 0123",
    )


def test_a_refused_installation_is_no_failed_one(world: World) -> None:
    world.ansible.answers["install"] = Played(ok=False, said="it is busy", refused=True)
    assert world.step(Step.INSTALL).outcome is Outcome.REFUSED
    world.ansible.answers["install"] = Played(ok=False, said="dpkg broke")
    assert world.step(Step.INSTALL).outcome is Outcome.FAILED
    assert world.step(Step.UNDO, course=Course.BACK).outcome is Outcome.AGAIN


@pytest.mark.parametrize(("step", "run"), [("install", "install"), ("reboot", "boot"), ("load", "load")])
def test_a_connection_that_breaks_off_is_tried_again(world: World, step: str, run: str) -> None:
    """A network that is away for a minute condemned every node on its way."""
    world.ansible.answers[run] = Played(ok=False, said="no route to host", unreachable=True)
    result = world.step(Step(step))
    assert (result.outcome, result.reason) == (Outcome.AGAIN, "no route to host")


def test_a_reboot_that_a_user_of_a_gpu_keeps_off_is_tried_again(world: World) -> None:
    world.ansible.answers["boot"] = Played(ok=False, said="python3 (process 7) holds it", refused=True)
    result = world.step(Step.REBOOT)
    assert (result.outcome, result.reason) == (Outcome.AGAIN, "python3 (process 7) holds it")


def test_each_way_goes_to_its_own_stack(world: World) -> None:
    world.step(Step.INSTALL)
    world.step(Step.REBOOT)
    world.step(Step.UNDO, course=Course.BACK)
    world.step(Step.REBOOT, course=Course.BACK)
    found = [
        (step, variables["nvidia_stack_name"], variables["upgrade_boot_id"])
        for step, variables in world.ansible.asked
    ]
    assert found == [("install", NEW, ""), ("boot", NEW, "one"), ("install", OLD, ""), ("boot", OLD, "one")]


def test_a_gpu_that_did_not_come_back_is_named(world: World, tmp_path: Path) -> None:
    keep_settings(tmp_path)
    world.ansible.answers["settings"] = played(settings=ONE)
    result = world.step(Step.LOAD)
    assert (result.outcome, result.reason) == (Outcome.FAILED, "1 of 2 GPUs answer; missing: GPU-1")


def test_a_lost_setting_is_named_with_its_gpu(world: World, tmp_path: Path) -> None:
    keep_settings(tmp_path)
    world.ansible.answers["settings"] = played(settings=OTHER_ECC)
    result = world.step(Step.SETTLE)
    assert (result.outcome, result.reason) == (
        Outcome.AGAIN, "GPU GPU-1: ECC was Enabled, and is Disabled since the upgrade.",
    )  # fmt: skip
    assert world.step(Step.SETTLE).outcome is Outcome.AGAIN


def test_a_measurement_without_a_result_is_taken_again(world: World) -> None:
    world.ansible.answers["validate"] = Played(ok=False, said="no room on /")
    result = world.step(Step.BASELINE)
    assert (result.outcome, result.reason) == (Outcome.AGAIN, "run 1 of the measurement: no room on /")


STEADY, SLOWER = [1.0, 1.001], [0.9, 0.901]
NOISY, NOISY_AND_SLOWER = [0.6, 1.5], [0.4, 1.2]
BACK = Course.BACK


@pytest.mark.parametrize(
    ("step", "course", "facts", "before", "now", "outcome"),
    [
        (Step.PROVE, Course.FORWARD, {}, STEADY, SLOWER, Outcome.FAILED),
        (Step.PROVE, BACK, {}, STEADY, SLOWER, Outcome.FAILED),
        # Somebody has accepted the node: its speed is recorded, and does not decide.
        (Step.PROVE, Course.FORWARD, {OVERRULED: "by ann: known"}, STEADY, SLOWER, Outcome.DONE),
        (Step.BASELINE, Course.FORWARD, {}, [], NOISY, Outcome.REFUSED),
        (Step.BASELINE, Course.FORWARD, {OVERRULED: "by ann: shared"}, [], NOISY, Outcome.DONE),
        # A healthy node with a noisy or a bad baseline comes back into service.
        (Step.PROVE, BACK, {}, NOISY, NOISY_AND_SLOWER, Outcome.DONE),
        (Step.PROVE, BACK, {NEW_BASELINE: "by ann: bad"}, STEADY, SLOWER, Outcome.DONE),
    ],
)
def test_what_a_person_has_said_of_a_node_changes_what_its_numbers_decide(
    world: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: Step,
    course: Course,
    facts: dict[str, Any],
    before: list[float],
    now: list[float],
    outcome: Outcome,
) -> None:
    def runs(factors: list[float]) -> list[NodeResult]:
        return [run_of([factor] * 2) for factor in factors * 3]

    async def measure(*_: object) -> list[NodeResult]:
        return runs(now)

    keep_settings(tmp_path)
    monkeypatch.setattr(world.executor, "_measure", measure)
    monkeypatch.setattr(world.executor, "_results", lambda *_: runs(before))
    monkeypatch.setattr(world.executor, "_judged", lambda *_: [])
    result = world.step(step, attempt=3, course=course, **facts)
    assert result.outcome is outcome, result.reason
    assert not result.reason.endswith(".")
    assert result.numbers or step is Step.BASELINE or facts.get(NEW_BASELINE)


def test_of_a_measurement_that_was_cut_off_nothing_stays_and_of_earlier_rounds_all(
    world: World, tmp_path: Path
) -> None:
    folder = tmp_path / "gpu01" / "before"
    folder.mkdir(parents=True)
    for name in ("1-0.result.json", "2-0.result.json", "10-0.result.json"):
        (folder / name).touch()
    world.ansible.answers["validate"] = Played(ok=False, said="gone")
    world.step(Step.BASELINE, attempt=2)
    assert [file.name for file in folder.iterdir()] == ["1-0.result.json"]


def test_why_a_node_stays_out_is_in_its_drain(world: World) -> None:
    assert world.step(Step.KEEP_OUT).outcome is Outcome.DONE
    assert world.scheduler.asked == ["keep out: the gate said no"]


def test_a_node_that_leaves_service_after_an_error_in_its_soak_says_why(world: World) -> None:
    assert world.step(Step.DRAIN, course=Course.BACK).outcome is Outcome.DONE
    assert world.scheduler.asked == ["drain: the gate said no"]


def test_an_error_of_a_gpu_in_the_soak_is_told_from_a_look_that_failed(world: World) -> None:
    world.ansible.answers["watch"] = Played(ok=False, said="no route to host")
    assert world.step(Step.WATCH).outcome is Outcome.AGAIN
    xid = Finding("xid-94", State.DEGRADED, "GPU 2: Xid 94", device=2)
    found = run_of([1.0], draw=lambda: 0.0, findings=(xid,))
    world.ansible.answers["watch"] = played(health=dumps(found))
    result = world.step(Step.WATCH)
    assert (result.outcome, result.reason) == (Outcome.FAILED, "GPU 2: Xid 94")


def test_while_the_scheduler_is_away_no_node_is_taken_and_none_is_lost(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.step(Step.DRAIN)

    def away(*of: object) -> Any:
        raise DrainError("slurmctld does not answer")

    for method in ("look", "drain", "give_back", "keep_out"):
        monkeypatch.setattr(world.scheduler, method, away)
    result = world.step(Step.DRAIN)
    assert (result.outcome, result.reason) == (Outcome.REFUSED, "slurmctld does not answer")
    for step in (Step.RETURN, Step.RELEASE, Step.KEEP_OUT):
        assert world.step(step).outcome is Outcome.AGAIN


def test_a_scheduler_that_is_away_is_a_problem_and_no_observation(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.scheduler.standing = Standing("gpu01", in_service=False, reason="disk")
    assert asyncio.run(world.executor.observe(["gpu01"])).unavailable == {"gpu01": "disk"}

    def away(node: str) -> Standing:
        raise DrainError("slurmctld does not answer")

    monkeypatch.setattr(world.scheduler, "look", away)
    assert asyncio.run(world.executor.observe(["gpu01"])).problem == "slurmctld does not answer"


def reported(step: object) -> dict[str, Any]:
    """The event of action step_result."""
    data = {"task": "any", "task_action": RESULT, "res": {"step": step}}
    return {"event": "runner_on_ok", "event_data": data}


def test_events_give_the_last_failure_in_its_own_words() -> None:
    events = Events()
    events(
        {
            "event": "runner_on_failed",
            "event_data": {"task": "One", "ignore_errors": True, "res": {"msg": "no"}},
        }
    )
    assert events.said == ""
    events(
        {"event": "runner_on_failed", "event_data": {"task": "One", "res": {"msg": "a\n b", "refused": True}}}
    )
    assert (events.said, events.refused, events.unreachable) == ("a b", True, False)
    events({"event": "runner_on_unreachable", "event_data": {"task": "Two", "res": {"msg": "away"}}})
    assert (events.said, events.refused, events.unreachable) == ("away", False, True)
    events(reported({"fencing": 3}))
    assert events.result == NodeStepResult(fencing=3)
    problems = {"msg": "Action failed: Unknown error.", "problems": ["/var has no space.", "apt is busy."]}
    events({"event": "runner_on_failed", "event_data": {"task": "Fetch", "res": problems}})
    assert events.said == "/var has no space. apt is busy."


@each(
    {"boot_id": "{{ lookup('pipe', 'id') }}"},
    {"kernel": {"release": "6.1 {{ x }}"}},
    {"stack": "r595\nx"},
    {"fencing": "{{ x }}"},
    {"holders": {"a": 1}},
    "words",
    None,
)
def test_what_a_node_says_of_a_step_is_no_template(said: object) -> None:
    events = Events()
    events(reported(said))
    assert (events.result, bool(events.wrong)) == (None, True)


def test_a_failure_in_another_form_is_told_all_the_same() -> None:
    events = Events()
    answer = {"problems": 5, "msg": ["\x1b[2Jaway"]}
    events({"event": "runner_on_failed", "event_data": {"task": "One", "res": answer}})
    assert "away" in events.said
    assert "\x1b" not in events.said


def keep_settings(folder: Path) -> None:
    path = folder / "gpu01" / "settings.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"GPU-0": {"ECC": "Enabled"}, "GPU-1": {"ECC": "Enabled"}}))


def test_the_last_words_of_a_run_that_came_to_no_node_are_its_reason() -> None:
    output = "\x1b[0mPLAY\n\n[ERROR]: The lab is not running.\n  Start it.\n\n"
    assert last_words(output) == "\\x1b[0mPLAY [ERROR]: The lab is not running. Start it."
    assert last_words("\n") == "Ansible said nothing"


def test_each_step_on_a_node_has_its_tasks() -> None:
    folder = CHECKOUT / "playbooks/upgrade_steps"
    assert {path.stem for path in folder.glob("*.yml")} == {str(step) for step in NodeStep}
    assert all((CHECKOUT / f"playbooks/{step.playbook}.yml").is_file() for step in NodeStep)
