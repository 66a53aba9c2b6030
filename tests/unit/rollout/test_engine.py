"""The engine: what it does with results, faults, people, other controllers, and its own end at any moment."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from datetime import UTC, datetime, time, timedelta
from pathlib import Path

import pytest

from temper.rollout import engine as module
from temper.rollout import planner
from temper.rollout.engine import Ending, Engine, Ticket
from temper.rollout.model import FORWARD, Mode, NodeState, Observation, Outcome, Step, StepResult
from temper.rollout.planner import Decision
from temper.rollout.policy import Share
from temper.rollout.store import LEASE_TTL, HeldError, LostLeaseError
from temper.rollout.windows import Window
from tests.unit.rollout import fleets
from tests.unit.rollout.fleets import ME, NOW, OTHER, QUICK

FAILED = StepResult(Outcome.FAILED, "it went wrong")
TOLERANT = replace(QUICK, failure_budget=Share(5))


class Controller(fleets.Controller):
    """And engines on it."""

    def engine(self) -> Engine:
        return Engine(self.store, self.script, clock=self.clock, say=self.said.append, owner=ME)

    def run(self) -> Ending:
        return asyncio.run(self.engine().run(1))


@pytest.fixture
def controller(tmp_path: Path) -> Controller:
    return Controller(tmp_path / "rollout.sqlite")


def test_every_node_is_upgraded_and_returned(controller: Controller) -> None:
    controller.begin(3)
    ending = controller.run()
    assert (ending.mode, ending.exit_status) == (Mode.DONE, 0)
    assert controller.states() == [NodeState.RETURNED] * 3
    for name in controller.records:
        assert controller.script.steps(name) == [row.step for row in FORWARD]
    assert controller.store.holder() is None


def test_a_scheduler_that_restarts_costs_no_node_its_turn(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller.begin(12, replace(QUICK, max_unavailable=Share(3)))

    async def observe(names: Collection[str]) -> Observation:
        if controller.states()[0] is NodeState.RETURNED and controller.clock.time < NOW + timedelta(
            minutes=2
        ):
            return Observation(dict.fromkeys(names, "does not answer slurmctld"))
        return Observation()

    monkeypatch.setattr(controller.script, "observe", observe, raising=False)
    assert (controller.run().mode, set(controller.states())) == (Mode.DONE, {NodeState.RETURNED})


def test_one_node_that_somebody_else_keeps_out_of_service_is_no_success(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    patience = timedelta(minutes=1)
    monkeypatch.setattr(planner, "PATIENCE", patience)
    controller.begin(1, replace(QUICK, refusal_budget=Share(10, True)))
    controller.script.unavailable = {"gpu0": "disk, says bob"}
    ending = controller.run()
    assert (ending.mode, ending.exit_status) == (Mode.HELD, 1)
    assert any("disk, says bob" in record.reason for record in controller.records.values())
    assert controller.clock.time - NOW >= patience
    # Whoever goes on has read that; nobody need wait for another hour.
    controller.store.resume(1, "alice", controller.clock.time)
    ending = controller.run()
    assert (ending.mode, ending.exit_status) == (Mode.DONE, 1)
    assert controller.records["gpu0"].refused


@pytest.mark.parametrize("words", ["half of a letter \ud800", "\x1b]0;evil\x07", "two\ngpu1: lines", "\0"])
def test_words_of_a_node_that_cannot_be_written_cost_others_nothing(
    controller: Controller, words: str
) -> None:
    controller.begin(3, TOLERANT)
    faults: list[StepResult | BaseException] = [
        StepResult(Outcome.FAILED, words, {"snapshot": words}),
        ValueError(words),
    ]
    controller.script.answers = {("gpu1", Step.STAGE): faults[:1], ("gpu2", Step.STAGE): faults[1:]}
    controller.run()
    assert controller.states()[0] is NodeState.RETURNED
    assert all(text.isprintable() for text in controller.said)
    assert all(record.reason.isprintable() for record in controller.records.values())


def test_the_canary_ends_before_the_others_begin(controller: Controller) -> None:
    controller.begin(3)
    controller.run()
    others = [place for place, (name, _) in enumerate(controller.script.calls) if name != "gpu0"]
    assert controller.script.calls.index(("gpu0", Step.RETURN)) < min(others)


def test_a_node_that_fails_goes_back_and_the_rollout_stops(controller: Controller) -> None:
    controller.begin(3)
    controller.script.answers = {("gpu0", Step.PROVE): [FAILED]}
    ending = controller.run()
    assert (ending.mode, ending.exit_status) == (Mode.STOPPED, 1)
    assert "gpu0" in ending.sentence
    assert controller.states() == [NodeState.ROLLED_BACK, NodeState.PENDING, NodeState.PENDING]


@pytest.mark.parametrize("answer", [FAILED, StepResult(Outcome.REFUSED, "a job does not end")])
def test_a_node_that_did_not_return_is_told_by_the_exit_status(
    controller: Controller, answer: StepResult
) -> None:
    step = Step.PROVE if answer is FAILED else Step.DRAIN
    controller.begin(3, TOLERANT)
    controller.script.answers = {("gpu1", step): [answer]}
    ending = controller.run()
    assert (ending.mode, ending.exit_status) == (Mode.DONE, 1)


def test_a_node_that_somebody_else_has_is_no_success(controller: Controller) -> None:
    controller.begin(1)
    controller.script.unavailable = {"gpu0": "disk by bob"}
    ending = controller.run()
    assert (ending.mode, ending.exit_status) == (Mode.DONE, 1)
    assert controller.states() == [NodeState.LEFT_OUT]


def test_an_exception_of_the_executor_is_a_failure_of_the_node(controller: Controller) -> None:
    controller.begin(1)
    controller.script.answers = {("gpu0", Step.LOAD): [RuntimeError("no route to host")]}
    controller.run()
    assert controller.states() == [NodeState.ROLLED_BACK]
    assert "no route to host" in controller.records["gpu0"].reason


def test_a_step_without_an_end_is_ended(controller: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
    controller.begin(1)
    cancelled = []

    async def hang(ticket: Ticket) -> StepResult:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(ticket.node.name)
            raise
        raise AssertionError

    controller.script.instead[Step.DRAIN] = hang
    monkeypatch.setattr(module, "limit_of", lambda *_: timedelta(milliseconds=50))
    controller.run()
    assert cancelled == ["gpu0"]
    assert controller.states() == [NodeState.LEFT_OUT]


def test_facts_of_a_step_are_there_for_later_ones(controller: Controller) -> None:
    controller.begin(1)
    controller.script.answers = {("gpu0", Step.DRAIN): [StepResult(Outcome.DONE, facts={"before": "idle"})]}
    controller.run()
    last = controller.script.tickets[-1]
    assert (last.step, last.record.facts) == (Step.RETURN, {"before": "idle"})


@pytest.mark.parametrize("step", [row.step for row in FORWARD])
def test_a_controller_that_ends_in_the_middle_of_a_step_is_continued(
    controller: Controller, step: Step
) -> None:
    controller.begin(2)
    controller.script.answers = {("gpu0", step): [KeyboardInterrupt()]}
    with pytest.raises(KeyboardInterrupt):
        controller.run()
    assert controller.records["gpu0"].step is step
    first = {ticket.fence for ticket in controller.script.tickets}
    controller.clock.time += LEASE_TTL * 2
    assert controller.run().mode is Mode.DONE
    assert controller.states() == [NodeState.RETURNED] * 2
    # Once more the step that was cut off, and none of those before it.
    order = [row.step for row in FORWARD]
    cut = order.index(step)
    assert controller.script.steps("gpu0") == [*order[: cut + 1], *order[cut:]]
    assert max(first) < controller.script.tickets[-1].fence


def test_a_second_controller_does_nothing(controller: Controller) -> None:
    controller.begin(1)
    controller.store.acquire(OTHER, NOW)
    with pytest.raises(HeldError, match=OTHER.host):
        controller.run()
    assert controller.script.calls == []


def test_a_controller_whose_lease_was_taken_over_stops_at_once(controller: Controller) -> None:
    controller.begin(2)

    async def suspended(ticket: Ticket) -> StepResult:
        controller.clock.time += LEASE_TTL * 2
        controller.store.acquire(OTHER, controller.clock.time)
        return StepResult(Outcome.DONE)

    controller.script.instead[Step.INSTALL] = suspended
    with pytest.raises(LostLeaseError):
        controller.run()
    assert controller.records["gpu0"].state is NodeState.BASELINE
    holder = controller.store.holder()
    assert holder
    assert holder.owner == OTHER


def by_hand(controller: Controller, act: Callable[[], object]) -> Callable[[Ticket], Awaitable[StepResult]]:
    """A step of the first node in which somebody does something."""

    async def perform(ticket: Ticket) -> StepResult:
        if ticket.node.name == "gpu0":
            act()
        return await controller.script.answer(ticket)

    return perform


def test_somebody_holds_it_and_goes_on_later(controller: Controller) -> None:
    controller.begin(3)
    hold = by_hand(controller, lambda: controller.store.hold(1, "alice", "the network", NOW))
    controller.script.instead[Step.DRAIN] = hold
    ending = controller.run()
    assert (ending.mode, ending.exit_status) == (Mode.HELD, 1)
    assert "alice" in ending.sentence
    assert controller.states() == [NodeState.RETURNED, NodeState.PENDING, NodeState.PENDING]
    controller.store.resume(1, "alice", NOW)
    assert controller.run().mode is Mode.DONE
    assert controller.states() == [NodeState.RETURNED] * 3


def test_somebody_stops_it_before_anything_is_changed(controller: Controller) -> None:
    controller.begin(1)
    stop = by_hand(controller, lambda: controller.store.stop(1, "alice", "the network", NOW))
    controller.script.instead[Step.DRAIN] = stop
    assert controller.run().mode is Mode.STOPPED
    assert controller.states() == [NodeState.PENDING]
    assert controller.script.steps("gpu0")[-1] is Step.RELEASE


def test_an_engine_with_nothing_to_do_until_its_window_ends(controller: Controller) -> None:
    night = Window(frozenset(range(7)), time(22), time(4), "UTC")
    controller.begin(1, replace(QUICK, windows=(night,)))
    ending = controller.run()
    assert (ending.mode, ending.exit_status) == (Mode.RUNNING, 0)
    assert ending.until == datetime(2027, 3, 1, 22, tzinfo=UTC)
    assert controller.script.calls == []
    controller.clock.time = ending.until
    assert controller.run().mode is Mode.DONE


def test_no_node_starts_where_nobody_can_say_which_are_in_service(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller.begin(1)
    answers = [ConnectionError("slurmctld"), None]

    async def observe(names: object) -> Observation:
        answer = answers.pop(0)
        if answer:
            raise answer
        return Observation()

    monkeypatch.setattr(controller.script, "observe", observe, raising=False)
    monkeypatch.setattr(module, "OBSERVATION_S", 1000)
    assert controller.run().mode is Mode.DONE
    assert any("slurmctld" in sentence for sentence in controller.said)


def test_an_error_in_the_soak_stops_the_rollout_and_brings_the_canary_back(controller: Controller) -> None:
    controller.begin(3, replace(QUICK, soak_minutes=21))  # longer than a window is waited for
    controller.script.answers = {("gpu0", Step.WATCH): [StepResult(Outcome.FAILED, "Xid 79")]}
    ending = controller.run()
    assert (ending.mode, "gpu0" in ending.sentence, "Xid 79" in ending.sentence) == (Mode.STOPPED, True, True)
    assert controller.states() == [NodeState.ROLLED_BACK, NodeState.PENDING, NodeState.PENDING]
    steps = controller.script.steps("gpu0")
    assert steps[steps.index(Step.WATCH) + 1 :][:2] == [Step.DRAIN, Step.UNDO]
    assert steps[-1] is Step.RETURN


def test_a_node_that_never_comes_back_stays_out_and_is_named(controller: Controller) -> None:
    controller.begin(2, TOLERANT)
    silent = StepResult(Outcome.FAILED, "no answer for 30 min")
    controller.script.answers = {("gpu0", Step.REBOOT): [silent], ("gpu0", Step.UNDO): [silent]}
    ending = controller.run()
    assert ending.mode is Mode.STOPPED
    assert "gpu0" in ending.sentence
    assert controller.states() == [NodeState.FAILED, NodeState.PENDING]
    assert controller.script.steps("gpu0")[-1] is Step.KEEP_OUT


def test_counts_that_were_said_are_not_said_again_and_others_are(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    soon = NOW + timedelta(seconds=1)
    decisions = [
        Decision(sentence=sentence, counts=counts, until=soon)
        for sentence, counts in (
            ("start gpu1; 11 pending", "11 pending"),
            ("11 pending", "11 pending"),
            ("start gpu1; 11 pending", "11 pending"),
            # The end of the last sentence, and not its counts.
            ("1 pending", "1 pending"),
        )
    ]
    decisions.append(Decision(mode=Mode.DONE, sentence="done: 1 returned", counts="0 pending"))
    monkeypatch.setattr(module, "decide", lambda *_: decisions.pop(0))
    controller.begin(1)
    controller.run()
    assert controller.said == ["start gpu1; 11 pending", "1 pending", "done: 1 returned"]
