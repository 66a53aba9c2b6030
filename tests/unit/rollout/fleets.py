"""Roll-outs to test with: a few nodes in the middle of something, and an executor with a script."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from temper.rollout.engine import Clock, Ticket
from temper.rollout.model import (
    NodeState,
    Observation,
    Outcome,
    Record,
    Rollout,
    RolloutNode,
    Step,
    StepResult,
)
from temper.rollout.planner import waves
from temper.rollout.policy import Policy, Share
from temper.rollout.store import Owner, RolloutStore

NOW = datetime(2027, 3, 1, 12, 0, tzinfo=UTC)
DONE = StepResult(Outcome.DONE)
#: One canary, then everybody; nobody waits for anything.
QUICK = Policy(
    soak_minutes=0,
    waves=(Share(100, True),),
    max_unavailable=Share(100, True),
    refusal_budget=Share(100, True),
)
ME = Owner("root", "controller", 1, "1", "a boot")
OTHER = Owner("root", "elsewhere", 2, "2", "another boot")


def nodes(count: int, cohorts: int = 1, racks: int = 1) -> dict[str, RolloutNode]:
    """gpu0, gpu1 and so on, by turns of each cohort and rack."""
    return {
        f"gpu{place}": RolloutNode(
            f"gpu{place}", f"cohort{place % cohorts}", (f"rack{place % racks}",), place
        )
        for place in range(count)
    }


def begin(
    fleet: dict[str, RolloutNode], policy: Policy = QUICK, jump_levels: dict[str, int] | None = None
) -> Rollout:
    """A roll-out in which nothing has happened."""
    numbers = waves(fleet.values(), policy, jump_levels)
    records = {name: Record(NodeState.PENDING, NOW, wave=numbers[name]) for name in fleet}
    return Rollout("new", policy, fleet, records, number=1)


def having(rollout: Rollout, **records: Any) -> Rollout:
    """The roll-out with other records: a state, or the fields that differ."""
    changed = dict(rollout.records)
    for name, given in records.items():
        fields = {"state": given} if isinstance(given, NodeState) else given
        changed[name] = replace(changed[name], **fields)
    return replace(rollout, records=changed)


class VirtualClock(Clock):
    """Time that passes only where nothing else happens."""

    def __init__(self) -> None:
        self.time = NOW

    def now(self) -> datetime:
        return self.time

    async def wait(self, tasks: Collection[asyncio.Task[StepResult]], seconds: float) -> None:
        if tasks:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        self.time += timedelta(seconds=max(seconds, 1))


@dataclass
class Script:
    """An executor that answers `done`, but where `answers` has something else for a node and a step."""

    answers: dict[tuple[str, Step], list[StepResult | BaseException]] = field(default_factory=dict)
    unavailable: dict[str, str] = field(default_factory=dict)
    calls: list[tuple[str, Step]] = field(default_factory=list)
    tickets: list[Ticket] = field(default_factory=list)
    #: What carries a step out in place of an answer.
    instead: dict[Step, Callable[[Ticket], Awaitable[StepResult]]] = field(default_factory=dict)

    async def perform(self, ticket: Ticket) -> StepResult:
        return await self.instead.get(ticket.step, self.answer)(ticket)

    async def answer(self, ticket: Ticket) -> StepResult:
        self.calls.append((ticket.node.name, ticket.step))
        self.tickets.append(ticket)
        await asyncio.sleep(0)
        answers = self.answers.get((ticket.node.name, ticket.step))
        answer = answers.pop(0) if answers else DONE
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def observe(self, nodes: Collection[str]) -> Observation:
        return Observation({name: why for name, why in self.unavailable.items() if name in nodes})

    def steps(self, node: str) -> list[Step]:
        """What was done on a node, in order."""
        return [step for name, step in self.calls if name == node]


class Controller:
    """A store with a roll-out, whose steps a script answers."""

    def __init__(self, path: Path) -> None:
        self.store = RolloutStore(path)
        self.script, self.clock = Script(), VirtualClock()
        self.said: list[str] = []

    def begin(self, count: int, policy: Policy = QUICK) -> None:
        rollout = begin(nodes(count), policy)
        self.store.create(rollout.stack, rollout.policy, rollout.nodes, rollout.records, NOW)

    @property
    def records(self) -> dict[str, Record]:
        rollout = self.store.load()
        assert rollout
        return dict(rollout.records)

    def states(self) -> list[NodeState]:
        return [record.state for record in self.records.values()]
