"""What an operator types while a roll-out is under way, and after its controller has died."""

import argparse
import asyncio
import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from temper.cli import rollout as command
from temper.cli.main import INTERRUPTED, main
from temper.rollout.engine import Engine, Ticket
from temper.rollout.model import Mode, NodeState, Outcome, Step, StepResult
from temper.rollout.policy import Share
from temper.rollout.store import LEASE_TTL, Owner, RolloutStore, StoreError
from tests.unit.rollout import fleets
from tests.unit.rollout.fleets import ME, NOW, QUICK, begin, nodes


class Controller(fleets.Controller):
    """The commands on a roll-out, whose steps a script answers."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(folder / "rollouts.sqlite")
        self.folder = folder
        monkeypatch.setattr(command, "_carry_out", self._carry_out)
        #: What the inventory has.
        self.groups = dict.fromkeys(nodes(9), ("gpu_nodes",))
        monkeypatch.setattr(command, "groups_of", lambda _: self.groups)

    def _carry_out(self, given: argparse.Namespace, store: RolloutStore, number: int) -> int:
        engine = Engine(store, self.script, clock=self.clock, say=lambda _: None, owner=ME)
        return asyncio.run(engine.run(number)).exit_status

    def dies(self, step: Step) -> None:
        """It begins with gpu0, and is gone in the middle of a step."""
        self.script.answers = {("gpu0", step): [KeyboardInterrupt()]}
        assert self.type("resume", "-i", "x") == INTERRUPTED
        self.clock.time += LEASE_TTL * 2
        self.script.calls.clear()

    def type(self, *words: str) -> int:
        return main(["rollout", *words, "--folder", str(self.folder)])


@pytest.fixture
def controller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Controller:
    return Controller(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("order", "step", "ends", "mode"),
    [
        ("abort", Step.BASELINE, NodeState.PENDING, Mode.STOPPED),
        ("abort", Step.INSTALL, NodeState.RETURNED, Mode.STOPPED),
        ("hold", Step.BASELINE, NodeState.RETURNED, Mode.HELD),
    ],
)
@pytest.mark.parametrize("how", ["--finish", "--scheduled"])
def test_after_a_crash_what_is_on_its_way_ends_and_nothing_else_starts(
    controller: Controller,
    capsys: pytest.CaptureFixture[str],
    order: str,
    step: Step,
    ends: NodeState,
    mode: Mode,
    how: str,
) -> None:
    controller.begin(3)
    controller.dies(step)
    controller.type(order, "--reason", "wrong stack")
    finish = f"`temper rollout resume --finish --folder {controller.folder}`"
    assert f"gpu0 on the way, and no controller is at work: {finish}" in capsys.readouterr().out
    controller.type("resume", how, "-i", "x")
    assert controller.states() == [ends, NodeState.PENDING, NodeState.PENDING]
    assert {node for node, _ in controller.script.calls} == {"gpu0"}
    assert controller.store.mode(1)[0] is mode
    controller.script.calls.clear()
    assert controller.type("resume", "--scheduled", "-i", "x") == 0
    assert controller.script.calls == []


def test_another_roll_out_says_what_ends_the_one_that_was_aborted(controller: Controller) -> None:
    controller.begin(2)
    controller.dies(Step.DRAIN)
    controller.type("abort", "--reason", "wrong stack")
    other = begin(nodes(1))
    with pytest.raises(StoreError, match=r"gpu0 on the way.*`temper rollout resume --finish"):
        controller.store.create("other", QUICK, other.nodes, other.records, NOW)
    controller.type("resume", "--finish", "-i", "x")
    assert controller.store.create("other", QUICK, other.nodes, other.records, NOW) == 2


def test_a_controller_that_is_at_work_ends_the_nodes_itself(
    controller: Controller, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    controller.begin(2)
    monkeypatch.setattr(RolloutStore, "at_work", lambda store, now: store.holder())

    async def hold(ticket: Ticket) -> StepResult:
        controller.type("hold", "--reason", "the network")
        return await controller.script.answer(ticket)

    controller.script.instead[Step.DRAIN] = hold
    controller.type("resume", "-i", "x")
    assert f"The controller of {ME} ends gpu0." in capsys.readouterr().out
    assert controller.states() == [NodeState.RETURNED, NodeState.PENDING]
    controller.type("abort", "--reason", "enough")
    assert capsys.readouterr().out == "No node is on its way, and none starts.\n"


def test_only_what_somebody_has_held_can_be_finished(
    controller: Controller, capsys: pytest.CaptureFixture[str]
) -> None:
    controller.begin(1)
    assert controller.type("resume", "--finish", "-i", "x") == 2
    assert "roll-out 1 to new is running: first `temper rollout hold --reason WHY" in capsys.readouterr().err
    assert controller.script.calls == []


def test_a_lease_that_is_free_is_nobodys_work(controller: Controller) -> None:
    controller.begin(1)
    now = NOW + LEASE_TTL
    assert controller.store.at_work(NOW) is None
    owner = replace(Owner.of_this_process(), host="elsewhere")
    controller.store.acquire(owner, NOW)
    holder = controller.store.at_work(now)
    assert holder
    assert holder.owner == owner
    assert controller.store.at_work(now + LEASE_TTL) is None


@pytest.mark.parametrize(("budget", "status"), [(0, 2), (1, 0)])
def test_another_try_is_refused_where_the_budget_lets_no_node_start(
    controller: Controller, capsys: pytest.CaptureFixture[str], budget: int, status: int
) -> None:
    controller.begin(3, replace(QUICK, failure_budget=Share(budget)))
    controller.script.answers = {("gpu0", Step.PROVE): [StepResult(Outcome.FAILED, "6 % slower")]}
    controller.type("resume", "-i", "x")
    assert controller.states()[0] is NodeState.ROLLED_BACK
    capsys.readouterr()
    assert controller.type("retry", "gpu0") == status
    said = capsys.readouterr()
    if status:
        assert "gpu0 would not start again: gpu0 failed or rolled back, and failure_budget is 0" in said.err
        assert "a larger failure_budget" in said.err
        assert NodeState.ROLLED_BACK in controller.states()
        # With a name and a reason, it is no failure any more.
        assert controller.type("accept", "gpu0", "--reason", "6 % are known") == 0
    else:
        assert said.out.startswith("gpu0 is pending; `temper rollout resume --folder")
    assert controller.type("resume", "-i", "x") == 0
    assert controller.states() == [NodeState.RETURNED] * 3


def test_a_node_that_was_rolled_back_is_not_measured_again_to_enlarge_the_budget(
    controller: Controller, capsys: pytest.CaptureFixture[str]
) -> None:
    controller.begin(3)
    controller.script.answers = {("gpu0", Step.PROVE): [StepResult(Outcome.FAILED, "6 % slower")]}
    controller.type("resume", "-i", "x")
    before = controller.store.load()
    assert controller.type("measure-again", "gpu0", "--reason", "noise") == 2
    assert "`temper rollout retry`" in capsys.readouterr().err
    assert controller.store.load() == before


def test_a_failed_node_is_tried_again_without_a_budget(controller: Controller) -> None:
    """It does not start: it ends its way back, whatever the roll-out does."""
    controller.begin(1)
    silent = StepResult(Outcome.FAILED, "no answer")
    controller.script.answers = {("gpu0", Step.REBOOT): [silent], ("gpu0", Step.UNDO): [silent]}
    controller.type("resume", "-i", "x")
    assert controller.states() == [NodeState.FAILED]
    assert controller.type("retry", "gpu0") == 0
    controller.type("resume", "-i", "x")
    assert controller.states() == [NodeState.ROLLED_BACK]


@pytest.mark.parametrize("group", ["", "storage"])
@pytest.mark.parametrize("how", [[], ["--finish"], ["--scheduled"]])
def test_an_inventory_without_a_node_on_its_way_is_refused(
    controller: Controller, capsys: pytest.CaptureFixture[str], how: list[str], group: str
) -> None:
    """Ansible finds nothing to do for it: that would look like a step that failed, or even like one done."""
    controller.begin(3)
    controller.dies(Step.INSTALL)
    if how:
        controller.type("hold", "--reason", "the network")
    controller.groups = {"gpu0": (group,)} if group else {}
    controller.groups |= {"gpu1": ("gpu_nodes",), "gpu2": ("gpu_nodes",)}
    before = controller.store.load()
    assert controller.type("resume", "-i", "other", *how) == 2
    said = capsys.readouterr().err
    assert "other: expected in group gpu_nodes, as when roll-out 1 began: gpu0;" in said
    assert controller.store.load() == before
    assert controller.script.calls == []


def test_the_inventory_of_another_fleet_is_refused_and_one_that_lacks_a_node_is_not(
    controller: Controller, capsys: pytest.CaptureFixture[str]
) -> None:
    controller.begin(3)
    controller.groups = {"other1": ("gpu_nodes",)}
    assert controller.type("resume", "-i", "other") == 2
    assert "roll-out 1 began: 3 nodes: gpu0-gpu2;" in capsys.readouterr().err
    assert controller.states() == [NodeState.PENDING] * 3
    controller.groups |= {"gpu1": ("gpu_nodes",), "gpu2": ("gpu_nodes",)}
    gone = StepResult(Outcome.REFUSED, "no hosts")
    controller.script.answers = {("gpu0", Step.LEASE): [gone]}
    assert controller.type("resume", "-i", "other") == 1
    assert controller.states() == [NodeState.LEFT_OUT, NodeState.RETURNED, NodeState.RETURNED]


def test_who_resumes_beside_a_controller_at_work_hears_that_nodes_start_again(
    controller: Controller, capsys: pytest.CaptureFixture[str]
) -> None:
    controller.begin(2)
    controller.type("hold", "--reason", "the network")
    owner = replace(Owner.of_this_process(), pid=1, host="elsewhere")
    controller.store.acquire(owner, controller.clock.now())
    capsys.readouterr()
    assert controller.type("resume", "-i", "x") == 0
    said = capsys.readouterr()
    assert f"Roll-out 1 goes on: the controller of {owner}" in said.out
    assert said.err == ""
    assert controller.store.mode(1)[0] is Mode.RUNNING
    # Where nothing was held, it has changed nothing.
    assert controller.type("resume", "-i", "x") == 2
    assert f"is held by {owner}" in capsys.readouterr().err


def test_the_status_says_that_a_controller_has_died(
    controller: Controller, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else a node is being installed for ever."""
    controller.begin(2)
    controller.dies(Step.INSTALL)
    capsys.readouterr()
    controller.type("status")
    assert "No controller is at work: `temper rollout resume --folder" in capsys.readouterr().out
    controller.type("hold", "--reason", "the network")
    capsys.readouterr()
    controller.type("status")
    assert "No controller is at work: `temper rollout resume --finish" in capsys.readouterr().out
    controller.store.acquire(replace(Owner.of_this_process(), host="elsewhere"), datetime.now(UTC))
    controller.type("status")
    assert "No controller" not in capsys.readouterr().out
    controller.type("status", "--json")
    assert "elsewhere" in json.loads(capsys.readouterr().out)["controller"]
    controller.clock.time = datetime.now(UTC) + LEASE_TTL * 2
    controller.type("resume", "-i", "x")
    capsys.readouterr()
    controller.type("status")
    assert "No controller" not in capsys.readouterr().out


def test_the_status_promises_an_end_only_where_a_controller_works_on_it(
    controller: Controller, capsys: pytest.CaptureFixture[str]
) -> None:
    def end() -> str:
        capsys.readouterr()
        controller.type("status", "--json")
        return str(json.loads(capsys.readouterr().out)["end"])

    controller.begin(2)
    assert end() == ""
    lease = controller.store.acquire(Owner.of_this_process(), datetime.now(UTC))
    assert end() != ""
    controller.store.give_back(lease)
    assert end() == ""


def test_who_has_looked_returns_a_failed_node_with_a_reason(
    controller: Controller, capsys: pytest.CaptureFixture[str]
) -> None:
    """A healthy node with a bad baseline must not stay out of service for ever."""
    controller.begin(1)
    slower = StepResult(Outcome.FAILED, "6 % slower")
    controller.script.answers = {("gpu0", Step.PROVE): [slower, slower]}
    controller.type("resume", "-i", "x")
    assert controller.states() == [NodeState.FAILED]
    with pytest.raises(SystemExit):
        controller.type("accept", "gpu0")
    controller.script.calls.clear()
    assert controller.type("accept", "gpu0", "--reason", "the host is shared") == 0
    controller.type("resume", "-i", "x")
    assert controller.states() == [NodeState.ROLLED_BACK]
    assert controller.script.steps("gpu0") == [Step.RETURN]
    said = [event for event in controller.store.events(1) if event.outcome == "accept"]
    assert [(event.node, event.reason, bool(event.who)) for event in said] == [
        ("gpu0", "the host is shared", True)
    ]
    capsys.readouterr()
    controller.type("status")
    assert "the host is shared" in capsys.readouterr().out
