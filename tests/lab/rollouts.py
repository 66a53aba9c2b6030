"""Roll-outs on lab nodes: one step after another, as a test wants them, or by the engine.

Leases, packages, reboots, drivers and settings are those of the nodes. The lab has no GPU to measure: the
numbers that the gate judges are made up here, from the recorded scatter of runs and what a test takes away.
"""

import asyncio
import contextlib
import random
import subprocess
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from temper.rollout import gate
from temper.rollout.drain.base import Drainer
from temper.rollout.drain.commands import Idle
from temper.rollout.engine import Clock, Ending, Engine, Ticket
from temper.rollout.executor import FleetExecutor
from temper.rollout.model import Course, NodeState, Outcome, Record, RolloutNode, Step, StepResult
from temper.rollout.playbooks import Ansible
from temper.rollout.policy import Policy
from temper.rollout.store import RolloutStore
from tests.lab.cutoff import note
from tests.lab.fleet import Fleet
from tests.lab.settings import CHECKOUT, Node
from tests.unit.rollout.results import drawn_from, recorded_noise, run_of
from validation.model.contract import Finding, dumps

OLD, NEW = "r580-cuda13.0", "r595-cuda13.2"
DRIVERS = {OLD: "580.178.04", NEW: "595.91.07"}
SCATTER = 0.005  # of the made-up runs of a GPU
RUNS = 5


def kept_inventory(folder: Path) -> str:
    """A file with the inventory as it is now: the lab's own has running nodes alone, a fleet's has all."""
    file = folder / "hosts.yml"
    program = f"{CHECKOUT}/.venv/bin/ansible-inventory"
    command = [program, "-i", f"{CHECKOUT}/inventory/lab", "--list", "--yaml", "--output", str(file)]
    subprocess.run(command, check=True, cwd=CHECKOUT)
    return str(file)


@contextlib.contextmanager
def booted(fleet: Fleet) -> Iterator[None]:
    """New nodes, which Ansible as the executor runs it finds, too; nothing is left of them afterwards."""
    fleet.command("down")
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        for name, value in fleet.environment.items():
            patch.setenv(name, value)
        try:
            fleet.command("up")
            patch.setenv("ANSIBLE_INVENTORY", kept_inventory(Path(folder)))
            yield
        finally:
            fleet.command("down")


class Way:
    """One node's way through a try: each step with what the ones before it have left."""

    def __init__(
        self,
        folder: Path,
        node: Node,
        *,
        stack: str = "",
        policy: Policy | None = None,
        identity: str = "tests:1",
        ansible: Ansible | None = None,
    ) -> None:
        self.executor = FleetExecutor(
            ansible or Ansible(folder), Idle(), folder, identity, rules=gate.Rules(runs=2)
        )
        self.node, self.stack, self.policy = RolloutNode(node.name, ""), stack, policy or Policy()
        self.facts: dict[str, str] = {}
        self.begun = datetime.now(UTC)

    def ticket(self, step: Step, course: Course = Course.FORWARD) -> Ticket:
        """What the engine hands to the executor with this step."""
        record = Record(
            NodeState.PENDING,
            self.begun,
            course=course,
            step=step,
            attempt=1,
            facts=dict(self.facts),
            started_at=self.begun,
        )
        limit = timedelta(minutes=20)
        return Ticket(1, self.stack, self.node, step, record, 1, "", self.policy, limit)

    def go(self, step: Step, course: Course = Course.FORWARD) -> StepResult:
        """Carry a step out."""
        result = asyncio.run(self.executor.perform(self.ticket(step, course)))
        self.facts |= result.facts
        return result

    def goes(self, *steps: Step, course: Course = Course.FORWARD) -> None:
        """Carry steps out; each must succeed."""
        for step in steps:
            result = self.go(step, course)
            assert result.outcome is Outcome.DONE, (step, result.reason)

    def note_settings(self) -> int:
        """Note the GPUs' settings, as the baseline does before it measures; how many GPUs there are."""
        ticket = self.ticket(Step.BASELINE)
        settings = asyncio.run(self.executor._settings(ticket))
        self.executor._write(ticket, "settings.json", settings)
        return len(settings)


@dataclass
class Numbers:
    """What the made-up GPUs reach, as a part of what they should, and how far their runs scatter."""

    after: float = 1.0
    back: float = 1.0
    scatter: float = SCATTER
    findings: tuple[Finding, ...] = ()


class SkippingClock(Clock):
    """Real time, but that nobody waits where no step is under way."""

    def __init__(self) -> None:
        self.skipped = timedelta()

    def now(self) -> datetime:
        """This instant, and what was skipped."""
        return super().now() + self.skipped

    async def wait(self, tasks: Collection[asyncio.Task[StepResult]], seconds: float) -> None:
        """Wait for a step, else move the clock on."""
        if tasks:
            await super().wait(tasks, seconds)
        else:
            self.skipped += timedelta(seconds=seconds)
            await asyncio.sleep(0)


class LabExecutor(FleetExecutor):
    """The executor, with made-up numbers. Before a step, what `inject` has for it happens once."""

    def __init__(
        self,
        folder: Path,
        *,
        numbers: Numbers,
        inject: Mapping[tuple[Course, Step], Callable[[], None]],
        drainer: Drainer,
        identity: str = "upgrade-campaign",
    ) -> None:
        super().__init__(
            Ansible(folder),
            drainer,
            folder,
            identity,
            rules=gate.Rules(runs=RUNS),
            known_stacks=(NEW, OLD),
        )
        self.numbers = numbers
        self.inject = dict(inject)
        self.chance = random.Random(1)

    async def before(self, ticket: Ticket) -> None:
        """What a fault does before this step."""
        if action := self.inject.pop((ticket.record.course, ticket.step), None):
            await asyncio.to_thread(action)

    async def _measure_once(self, ticket: Ticket, stack: str, folder: Path, run: int) -> str:
        side, node = folder.name, ticket.node.name
        factor = {"before": 1.0, "after": self.numbers.after, "back": self.numbers.back}[side]
        draw = drawn_from(recorded_noise(), self.numbers.scatter, self.chance)
        findings = self.numbers.findings if side == "before" else ()
        result = run_of([factor] * 8, draw=draw, driver=DRIVERS[stack], findings=findings, node=node)
        file = folder / f"{ticket.record.attempt}-{run}.result.json"
        file.write_text(dumps(result), encoding="utf-8")
        return ""


class FaultyEngine(Engine):
    """The engine, with what a fault does before a step."""

    async def _perform(self, ticket: Ticket) -> StepResult:
        assert isinstance(self.executor, LabExecutor)
        await self.executor.before(ticket)
        return await super()._perform(ticket)


def carry_out(store: RolloutStore, number: int, executor: LabExecutor) -> Ending:
    """Go on with a roll-out until it ends or holds."""

    async def run() -> Ending:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(64))
        engine = FaultyEngine(store, executor, clock=SkippingClock(), say=note)
        return await engine.run(number)

    return asyncio.run(run())
