"""Carries out a roll-out: the planner decides, the store records, an executor acts, the store records again.

It may be killed at any moment. Whoever runs it next takes the lease with a higher fencing number, and carries
every step that was under way out again, as the table of transitions says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Protocol

from temper.rollout.model import (
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
from temper.rollout.planner import decide
from temper.rollout.policy import Policy
from temper.rollout.store import Lease, Owner, RolloutStore, StoreError
from validation.model.printable import one_line

#: How soon the engine sees what somebody has asked for by hand.
POLL_S = 5.0
HEARTBEAT_S = 20.0
#: How old an observation may be on which nodes are started.
OBSERVATION_S = 30.0
OBSERVATION_LIMIT_S = 120.0
#: Where a window opens later than that, the engine ends; the timer starts it again.
IDLE = timedelta(minutes=20)

#: How a step has ended that is not done, and what becomes of its node, for people.
ENDED = {
    Outcome.AGAIN: "came to no result",
    Outcome.REFUSED: "was refused",
    Outcome.FAILED: "failed",
}
THEN = {
    Course.FORWARD: "the node stays as it is",
    Course.BACK: "the node goes back to the former stack",
    Course.RELEASE: "the node is released as it was found",
    Course.KEEP_OUT: "the node stays out of service",
}


@dataclass(frozen=True)
class Ticket:
    """What an executor needs for a step. The node refuses a `fence` that is lower than one it has seen.

    `record` is the node's, with the facts that earlier steps have left; its course says which stack is meant.
    """

    rollout: int
    stack: str
    node: RolloutNode
    step: Step
    record: Record
    fence: int
    owner: str
    policy: Policy
    limit: timedelta


class Executor(Protocol):
    """Carries out steps, each of which may be carried out again after it was cut off at any point.

    A step returns its outcome; what follows from that is decided elsewhere. An exception counts as `failed`.
    Cancelled, it ends what it has started. temper/rollout/model.py says what each step does.
    """

    async def perform(self, ticket: Ticket) -> StepResult:
        """Carry out the step of a ticket."""

    async def observe(self, nodes: Collection[str]) -> Observation:
        """Return which of the nodes are out of service, whoever did that, and why."""


def limit_of(transition: Transition, policy: Policy) -> timedelta:
    """Return how long one try of a step may take."""
    by_policy = policy.drain_minutes if transition.step is Step.DRAIN else policy.measure_minutes
    minutes = by_policy if transition.limit_minutes is None else transition.limit_minutes
    return timedelta(minutes=max(minutes, 1))


class Clock:
    """The time, and waiting."""

    def now(self) -> datetime:
        """Return this instant, in UTC."""
        return datetime.now(UTC)

    async def wait(self, tasks: Collection[asyncio.Task[StepResult]], seconds: float) -> None:
        """Wait until one of the tasks has ended, or for so long."""
        if tasks:
            await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.sleep(seconds)


@dataclass(frozen=True)
class Ending:
    """Why the engine has ended: what the roll-out is now, in a sentence, and when there is more to do.

    `exit_status` is 0 where every node that took part returned or a window is awaited, 1 where a person has
    to look.
    """

    mode: Mode
    sentence: str
    until: datetime | None = None
    exit_status: int = 0


class Engine:
    """One controller at work on one roll-out."""

    def __init__(
        self,
        store: RolloutStore,
        executor: Executor,
        *,
        clock: Clock | None = None,
        say: Callable[[str], None] = print,
        show: Callable[[Rollout, datetime], None] = lambda _rollout, _now: None,
        owner: Owner | None = None,
    ) -> None:
        """`say` is told what happens, `show` after each look what the roll-out is."""
        self.store, self.executor, self.say, self.show = store, executor, say, show
        self.clock = clock or Clock()
        self.owner = owner or Owner.of_this_process()
        self.tasks: dict[asyncio.Task[StepResult], tuple[str, Step]] = {}
        self._heartbeat_at: datetime | None = None
        self._observed_at: datetime | None = None
        self._observation = Observation()
        self._said = "", ""

    async def run(self, number: int) -> Ending:
        """Go on with a roll-out until it has ended, holds, or waits for a window. Soaks are waited for.

        Raises HeldError where another controller has the lease, LostLeaseError where one has taken it over;
        StoreError where the file cannot be used.
        """
        lease = self.store.acquire(self.owner, self.clock.now())
        try:
            if interrupted := self.store.recover(lease, number, self.clock.now()):
                self.say(f"interrupted before, and carried out again: {', '.join(interrupted)}")
            while (ending := await self._once(lease, number)) is None:
                pass
            return ending
        finally:
            await self._cancel()
            self._give_back_quietly(lease)

    async def _once(self, lease: Lease, number: int) -> Ending | None:
        """Return one decision, and the wait for what follows from it; the ending where nothing does."""
        self._collect(lease, number)
        now = self.clock.now()
        self._heartbeat(lease, now)
        rollout = self.store.load(number)
        if rollout is None:
            raise StoreError(f"{self.store.path} has no roll-out {number}")
        await self._observe(rollout, now)
        decision = decide(rollout, now, self._observation)
        started = self.store.apply(lease, rollout, decision, now)
        if started is None:
            return None  # somebody has just changed the mode
        for start in decision.starts:
            self._start(lease, rollout, start.transition, start.node, started[start.node])
        # The counts alone say nothing new where the last sentence had them already.
        if decision.sentence not in self._said:
            self._said = decision.sentence, decision.counts
            self.say(decision.sentence)
        over = replace(rollout, mode=decision.mode, records={**rollout.records, **decision.moves, **started})
        self.show(over, now)
        if not self.tasks:
            if decision.until is None:
                return Ending(decision.mode, decision.sentence, exit_status=int(not over.succeeded))
            if decision.closed and decision.until > now + IDLE:
                return Ending(decision.mode, decision.sentence, decision.until)
        seconds = (decision.until - now).total_seconds() if decision.until else POLL_S
        await self.clock.wait(self.tasks.keys(), min(max(seconds, 0), POLL_S))
        return None

    def _heartbeat(self, lease: Lease, now: datetime) -> None:
        if self._heartbeat_at is None or abs((now - self._heartbeat_at).total_seconds()) >= HEARTBEAT_S:
            self.store.heartbeat(lease, now)
            self._heartbeat_at = now

    async def _observe(self, rollout: Rollout, now: datetime) -> None:
        """Look who is out of service, where that decides anything and is not known from just now."""
        waits = any(record.state is NodeState.PENDING for record in rollout.records.values())
        recent = self._observed_at and abs((now - self._observed_at).total_seconds()) < OBSERVATION_S
        if rollout.mode is not Mode.RUNNING or not waits or recent:
            return
        try:
            async with asyncio.timeout(OBSERVATION_LIMIT_S):
                self._observation = await self.executor.observe(rollout.nodes.keys())
        except Exception as error:  # noqa: BLE001 - whatever it is, nobody knows who is in service
            self._observation = Observation(problem=_told(error))
        self._observed_at = now

    def _start(
        self, lease: Lease, rollout: Rollout, transition: Transition, name: str, record: Record
    ) -> None:
        limit = limit_of(transition, rollout.policy)
        ticket = Ticket(
            rollout.number, rollout.stack, rollout.nodes[name], transition.step, record, lease.fence,
            str(lease.owner), rollout.policy, limit,
        )  # fmt: skip
        task = asyncio.create_task(self._perform(ticket), name=f"{name}: {transition.step}")
        self.tasks[task] = name, transition.step

    async def _perform(self, ticket: Ticket) -> StepResult:
        """Carry a step out within its time, and return its result.

        Words of a node in it can be written, into the store and to people.
        """
        try:
            async with asyncio.timeout(ticket.limit.total_seconds()):
                result = await self.executor.perform(ticket)
            facts = {name: one_line(value) for name, value in result.facts.items()}
            return replace(result, reason=one_line(result.reason), facts=facts)
        except TimeoutError:
            minutes = ticket.limit.total_seconds() / 60
            return StepResult(Outcome.FAILED, f"step {ticket.step} had not ended after {minutes:g} min")
        except Exception as error:  # noqa: BLE001 - a node must not be lost to a fault of the executor
            return StepResult(Outcome.FAILED, f"step {ticket.step} broke off: {_told(error)}")

    def _collect(self, lease: Lease, number: int) -> None:
        """Record the results of the steps that have ended."""
        for task in [task for task in self.tasks if task.done()]:
            name, step = self.tasks.pop(task)
            result = task.result()
            record = self.store.finish(lease, number, name, step, result, self.clock.now())
            if result.outcome is not Outcome.DONE:
                why = result.reason.rstrip(".") or "no reason was given"
                then = "it is tried again" if record.attempt else THEN[record.course]
                self.say(f"{name}: step {step} {ENDED[result.outcome]}: {why}; {then}")

    async def _cancel(self) -> None:
        """End the steps that are under way; they stay recorded as begun."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.tasks.clear()

    def _give_back_quietly(self, lease: Lease) -> None:
        """Give the lease back after an error or a signal, so that the next engine need not wait."""
        try:
            if (holder := self.store.holder()) and holder.fence == lease.fence:
                self.store.give_back(lease)
        except StoreError as error:
            self.say(str(error))


def _told(error: BaseException) -> str:
    """Return an exception in words."""
    text = one_line(" ".join(str(error).split()))
    return f"{type(error).__name__}{f': {text}' if text else ''}"
