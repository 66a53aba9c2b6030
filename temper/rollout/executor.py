"""Carries out the steps of a roll-out: Ansible on the node, the scheduler's own programs, the gate.

What one step leaves for later ones lies in a folder of the node, so that whoever goes on after a crash finds
it: how the scheduler had it (`standing.json`), its GPUs' settings (`settings.json`), the payload's results on
the former driver (`before/`), on the new one (`after/`) and on the way back (`back/`), its snapshot
(`snapshot.json`), and Ansible's output.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from temper.base import DATA
from temper.plan.distro_source import kernel_problem
from temper.plan.tables import load_tables
from temper.rollout import gate, gpu_settings
from temper.rollout.drain.base import Drainer, DrainError, Standing, named, wait_until_idle
from temper.rollout.machine import upcoming
from temper.rollout.model import NEW_BASELINE, WITHHELD, Course, Observation, Outcome, Step, StepResult
from temper.rollout.node_step import NodeStep
from temper.rollout.playbooks import Ansible, Played
from temper.rollout.policy import aim
from temper.rollout.snapshots import Snapshots
from validation.model import contract
from validation.model.contract import NodeResult
from validation.processes.files import write_atomically
from validation.verdict.verdicts import FleetVerdict, NodeVerdict

if TYPE_CHECKING:
    from temper.rollout.engine import Ticket

#: How much longer than a step the node's lease lasts: the controller may have died, and somebody goes on.
LEASE_MARGIN = timedelta(hours=1)
#: A drain ends so long before its step does, so that it says itself what was in the way.
DRAIN_MARGIN = timedelta(minutes=1)
OUTCOMES = {
    gate.GateState.PASS: Outcome.DONE,
    gate.GateState.FAIL: Outcome.FAILED,
    gate.GateState.MEASURE_AGAIN: Outcome.AGAIN,
}


@dataclass(frozen=True)
class _Withheld:
    """Why a node that was given back is out of service; `passes`: nobody has taken it out, so it may end."""

    sentence: str
    passes: bool = False


class _StepOverError(Exception):
    """A step cannot go on; `result` is what came of it."""

    def __init__(self, outcome: Outcome, reason: str) -> None:
        super().__init__(reason)
        self.result = StepResult(outcome, reason)


class FleetExecutor:
    """Steps on real nodes. `identity` is the roll-out, as nodes and schedulers are told who works there."""

    def __init__(
        self,
        ansible: Ansible,
        drainer: Drainer,
        folder: Path,
        identity: str,
        *,
        rules: gate.Rules,
        known_stacks: Sequence[str] = (),
    ) -> None:
        """`known_stacks`: where earlier roll-outs have brought nodes, the last one first."""
        self.ansible, self.drainer, self.folder = ansible, drainer, folder
        self.identity, self.rules, self.known_stacks = identity, rules, known_stacks
        #: The numbers that nodes gave this process. One that came before it has lower ones, and is refused.
        self.fencing: dict[str, int] = {}
        self.snapshots = Snapshots(folder, self._step)
        self._methods: Mapping[Step, Callable[[Ticket], Awaitable[StepResult]]] = {
            Step.LEASE: self.lease,
            Step.STAGE: self.stage,
            Step.DRAIN: self.drain,
            Step.BASELINE: self.baseline,
            Step.INSTALL: self.install,
            Step.REBOOT: self.reboot,
            Step.LOAD: self.load,
            Step.SETTLE: self.settle,
            Step.PROVE: self.prove,
            Step.RETURN: self.return_to_service,
            Step.UNDO: self.undo,
            Step.RELEASE: self.release,
            Step.KEEP_OUT: self.keep_out,
            Step.WATCH: self.watch,
        }

    async def perform(self, ticket: Ticket) -> StepResult:
        """Carry out the step of a ticket."""
        try:
            return await self._methods[ticket.step](ticket)
        except _StepOverError as over:
            return over.result
        except DrainError as error:
            outcome = Outcome.REFUSED if ticket.step is Step.DRAIN else Outcome.AGAIN
            return StepResult(outcome, str(error))

    # ------------------------------------------------------------ before anything is changed

    async def lease(self, ticket: Ticket) -> StepResult:
        """Take the node's lease. `refused` where another controller holds it, or the node does not answer."""
        return _result(await self._step(ticket, NodeStep.LEASE), otherwise=Outcome.REFUSED)

    async def stage(self, ticket: Ticket) -> StepResult:
        """Download and verify the packages of both stacks."""
        found = await self._former_stack(ticket)
        wish = ticket.policy.kernel
        staged = await self._step(
            ticket,
            NodeStep.STAGE,
            stack=ticket.stack or found,
            nvidia_stack_busy_ok=True,
            upgrade_kernel=bool(wish),
            upgrade_kernel_wish=wish,
        )
        if not wish or not staged.ok:
            return _result(staged, otherwise=Outcome.AGAIN, facts={"former_stack": found})
        kernel = staged.reported.kernel
        if (has := kernel.settled) and found == (ticket.stack or found):
            return StepResult(Outcome.REFUSED, has)
        # No release where it has the kernel already, and only the stack is changed.
        facts = {"former_stack": found, "kernel": kernel.release}
        planned = staged.reported
        problem = kernel_problem(planned.source, planned.system, facts["kernel"], load_tables(DATA))
        return StepResult(Outcome.REFUSED if problem else Outcome.DONE, problem, facts)

    async def _former_stack(self, ticket: Ticket) -> str:
        """Return the stack that the node wholly has.

        The inventory's, or what an earlier roll-out has brought.

        Empty for the inventory's where the roll-out brings a kernel alone.
        """
        names = ["", *(name for name in self.known_stacks if name != ticket.stack)]
        wanted = ""
        for name in names:
            # It only reads: jobs may run there.
            found = await self._done(
                ticket, NodeStep.LOOK, Outcome.AGAIN, stack=name, nvidia_stack_busy_ok=True
            )
            stack = found.reported.stack
            wanted = wanted or stack
            if found.reported.settled:
                if stack == ticket.stack and not ticket.policy.kernel:
                    raise _StepOverError(Outcome.REFUSED, f"it has stack {stack} already")
                # A kernel alone: what chose the stack goes on choosing it. A distribution's own driver has no
                # name that could be given.
                return stack if ticket.stack else name
        raise _StepOverError(
            Outcome.REFUSED,
            f"it has not got all of the inventory's stack {wanted}, so there is no way back: run site.yml",
        )

    async def drain(self, ticket: Ticket) -> StepResult:
        """Take the node out of service; `refused` where somebody else has, or where work does not end."""
        name = ticket.node.name
        before = await self._before(name)
        if before.obstacle:
            return StepResult(Outcome.REFUSED, before.obstacle)
        if not before.in_service and not before.ours:
            return StepResult(
                Outcome.REFUSED,
                f"somebody else has taken it out of service: {before.reason or 'no reason given'}",
            )
        # Before the first touch, and only then: what was not touched is not given back.
        _write(self._note(name), asdict(before))
        back = ticket.record.course is Course.BACK
        reason = ticket.record.reason if back else f"upgrade to {aim(ticket.stack, ticket.policy.kernel)}"
        await asyncio.to_thread(self.drainer.drain, name, before, reason)
        await self._wait_until_idle(name, max((ticket.limit - DRAIN_MARGIN).total_seconds(), 1.0))
        found = await self._step(ticket, NodeStep.HOLDERS)
        if found.ok and (holders := found.reported.holders):
            return StepResult(Outcome.REFUSED, f"its GPUs are in use: {named(holders)}")
        return _result(found, otherwise=Outcome.REFUSED)

    async def baseline(self, ticket: Ticket) -> StepResult:
        """Measure on the former driver. `refused` where a GPU is slow or degraded already."""
        settings = await self._settings(ticket)
        self._write(ticket, "settings.json", settings)
        measured = await self._measure(ticket, "before", ticket.record.facts["former_stack"])
        verdict = self._judge_baseline(ticket, measured, "before")
        outcome = OUTCOMES[verdict.verdict]
        return _said(verdict, Outcome.REFUSED if outcome is Outcome.FAILED else outcome)

    def _judge_baseline(self, ticket: Ticket, measured: Sequence[NodeResult], side: str) -> gate.GateVerdict:
        return gate.judge_baseline(
            measured,
            self._judged(ticket, side),
            rules=self._rules(ticket),
            round_number=ticket.record.attempt,
        )

    def _rules(self, ticket: Ticket) -> gate.Rules:
        """Return the gate's rules for this node on its course."""
        back = ticket.record.course is Course.BACK
        return replace(self.rules, overruled=bool(ticket.record.overruled), way_back=back)

    # ------------------------------------------------------------ to another stack, either way

    async def install(self, ticket: Ticket) -> StepResult:
        """Install the new stack; `refused` where nothing was changed, a missing snapshot for example."""
        snapshot = await self.snapshots.before_change(ticket)
        if snapshot.outcome is not Outcome.DONE:
            return snapshot
        result = await self._install(ticket, self._stack(ticket), Outcome.FAILED)
        return replace(result, facts={**snapshot.facts, **result.facts})

    async def undo(self, ticket: Ticket) -> StepResult:
        """Install the former stack, from the packages that were kept where nobody offers them any more.

        A kernel goes first, and the node boots for that: the former driver need not build for it.
        """
        if ticket.record.facts.get("kernel"):
            if ticket.record.watched is False:
                return StepResult(
                    Outcome.FAILED,
                    "its new kernel was kept when it returned to service: boot the former one from the menu",
                )
            left = await self._step(ticket, NodeStep.LEAVE)
            if not left.ok:
                return StepResult(Outcome.AGAIN, left.said)
        result = await self._install(ticket, ticket.record.facts["former_stack"], Outcome.AGAIN)
        # Back there is nothing to refuse: what was refused for a moment is worth another try.
        return StepResult(Outcome.AGAIN, result.reason) if result.outcome is Outcome.REFUSED else result

    async def _install(self, ticket: Ticket, stack: str, otherwise: Outcome) -> StepResult:
        played = await self._step(ticket, NodeStep.INSTALL, stack=stack)
        return _result(played, otherwise=otherwise, facts={"boot_id": played.reported.boot_id})

    async def reboot(self, ticket: Ticket) -> StepResult:
        """Reboot, unless the boot id differs from the recorded one already.

        A node that refuses, because somebody uses a GPU there since it was drained, is asked again later.
        """
        if ticket.record.course is Course.BACK and not ticket.stack:
            return StepResult(Outcome.DONE)  # the driver is the same, and `undo` has booted the former kernel
        boot_id = ticket.record.facts.get("boot_id", "")
        played = await self._step(ticket, NodeStep.BOOT, stack=self._stack(ticket), upgrade_boot_id=boot_id)
        if played.refused:
            return StepResult(Outcome.AGAIN, played.said)
        return _result(played, otherwise=Outcome.FAILED)

    async def load(self, ticket: Ticket) -> StepResult:
        """Compare what is loaded, and how many GPUs answer, with the plan and with what was there."""
        await self._done(ticket, NodeStep.LOAD, Outcome.FAILED, stack=self._stack(ticket))
        now = await self._settings(ticket)
        before = self._read(ticket, "settings.json")
        if gone := sorted(before.keys() - now.keys()):
            return StepResult(
                Outcome.FAILED, f"{len(now)} of {len(before)} GPUs answer; missing: {', '.join(gone)}"
            )
        return StepResult(Outcome.DONE)

    async def settle(self, ticket: Ticket) -> StepResult:
        """Apply the GPUs' settings, and read them back."""
        await self._done(ticket, NodeStep.SETTLE, Outcome.AGAIN, stack=self._stack(ticket))
        now = await self._settings(ticket)
        lost: list[str] = []
        gate.judge_settings(self._read(ticket, "settings.json"), now, lost, [])
        return StepResult(Outcome.AGAIN, " ".join(lost)) if lost else StepResult(Outcome.DONE)

    async def prove(self, ticket: Ticket) -> StepResult:
        """Measure, and compare with the baseline; `again` where noise hides the answer."""
        back = ticket.record.course is Course.BACK
        side = "back" if back else "after"
        settings = await self._settings(ticket)
        measured = await self._measure(ticket, side, self._stack(ticket))
        if back and ticket.record.facts.get(NEW_BASELINE):
            verdict = self._judge_baseline(ticket, measured, side)
        else:
            verdict = gate.judge(
                self._results(ticket, "before"),
                measured,
                settings_before=self._read(ticket, "settings.json"),
                settings_after=settings,
                rules=self._rules(ticket),
                round_number=ticket.record.attempt,
            )
        return _said(verdict, OUTCOMES[verdict.verdict])

    # ------------------------------------------------------------ the end

    async def return_to_service(self, ticket: Ticket) -> StepResult:
        """Return what Temper drained, remove what was kept for a way back, and give the lease back.

        In this order: a node that cannot be returned keeps all of it. What cannot be removed from one that is
        in service takes no node out of it again.
        """
        said, why = await asyncio.to_thread(self._return_to_scheduler, ticket.node.name)
        transition = upcoming(ticket.record)
        if why.passes and transition and ticket.record.attempt < transition.attempts:
            return StepResult(Outcome.AGAIN, f"{said} It is not in service yet: {why.sentence}")
        try:
            async with asyncio.timeout(ticket.limit.total_seconds() / 2):
                tidied = await self._tidy(ticket)
        except TimeoutError:
            tidied = StepResult(Outcome.DONE, "what was kept on it for a way back was not removed in time")
        result = _with(await self._free(ticket, said), tidied)
        if why.sentence or ticket.record.facts.get(WITHHELD):
            result = replace(result, facts={**result.facts, WITHHELD: why.sentence})
        return result

    async def _tidy(self, ticket: Ticket) -> StepResult:
        """Remove what was kept on a node for its way back; what stays is said."""
        cleaned = await self._step(ticket, NodeStep.CLEAN)
        said = cleaned.reported.said
        if not cleaned.ok:
            said = f"what was kept on it for a way back is still there: {cleaned.said}"
        return _with(StepResult(Outcome.DONE, said), await self.snapshots.drop(ticket))

    async def release(self, ticket: Ticket) -> StepResult:
        """Put an unchanged node back as it was found."""
        cleaned = await self._step(ticket, NodeStep.CLEAN)
        dropped = await self.snapshots.drop(ticket)
        given = _with(await self._give_back(ticket), dropped)
        # Held by another controller, it is that one's to clean; silent, nothing was changed on it.
        return (
            given if given.outcome is Outcome.DONE or cleaned.ok else StepResult(Outcome.AGAIN, cleaned.said)
        )

    async def keep_out(self, ticket: Ticket) -> StepResult:
        """Write the record's reason into the drain. The node may not answer any more."""
        name = ticket.node.name
        before = await self._before(name)
        if before.in_service:  # returned already, by a controller that was killed before it could say so
            _write(self._note(name), asdict(before))
        await asyncio.to_thread(self.drainer.keep_out, name, before, ticket.record.reason)
        kept = await self.snapshots.kept(ticket)
        return _with(await self._free(ticket), kept)

    async def watch(self, ticket: Ticket) -> StepResult:
        """Look for errors of the GPUs since the node returned; `failed` where there are."""
        played = await self._done(ticket, NodeStep.WATCH, Outcome.AGAIN)
        result = contract.loads(NodeResult, played.reported.health)
        found = gate.errors_in_soak(one for test in result.tests for one in test.findings)
        return StepResult(Outcome.FAILED, " ".join(found)) if found else StepResult(Outcome.DONE)

    async def observe(self, nodes: Collection[str]) -> Observation:
        """Return which of the nodes are out of service, whoever did that, and why."""

        def look() -> dict[str, str]:
            return {
                one.node: one.reason or one.obstacle or one.state
                for one in self.drainer.survey(nodes)
                if one.obstacle or not (one.in_service or one.ours)
            }

        try:
            return Observation(await asyncio.to_thread(look))
        except DrainError as error:
            return Observation(problem=str(error))

    # ------------------------------------------------------------ helpers

    def _stack(self, ticket: Ticket) -> str:
        """Return the stack that the node is brought to; without one, a kernel keeps the stack that it has."""
        back = ticket.record.course is Course.BACK
        return ticket.record.facts["former_stack"] if back or not ticket.stack else ticket.stack

    async def _step(self, ticket: Ticket, step: NodeStep, *, stack: str = "", **more: Any) -> Played:
        """Have Ansible carry out a part of a step on the node."""
        name = ticket.node.name
        variables = {
            "upgrade_step": str(step),
            "upgrade_owner": self.identity,
            "upgrade_fencing": self.fencing.get(name, ""),
            "upgrade_lease_s": (ticket.limit + LEASE_MARGIN).total_seconds(),
            "upgrade_boot_id": "",
            "upgrade_course": str(ticket.record.course),
            "upgrade_kernel": bool(ticket.record.facts.get("kernel")),
            # A plan of one node is not the fleet's.
            "preflight_plan_file": "",
            **({"nvidia_stack_name": stack} if stack else {}),
            **more,
        }
        played = await self.ansible.playbook(step.playbook, name, f"{self._label(ticket)}-{step}", variables)
        if fencing := played.reported.fencing:
            self.fencing[name] = fencing
        if played.ok and played.result is None:  # Ansible ends well where no node was reached
            said = f"nothing was done, as Ansible has no {name} in group gpu_nodes: look at the inventory"
            return replace(played, ok=False, said=said, unreachable=True)
        return played

    async def _done(self, ticket: Ticket, step: NodeStep, otherwise: Outcome, **more: Any) -> Played:
        """Do the same; where it fails, the step is over, with `otherwise` as its outcome."""
        played = await self._step(ticket, step, **more)
        if not played.ok:
            result = _result(played, otherwise=otherwise)
            raise _StepOverError(result.outcome, result.reason)
        return played

    def _label(self, ticket: Ticket) -> str:
        back = "back-" if ticket.record.course is Course.BACK else ""
        return f"{back}{ticket.step}-{ticket.record.attempt}"

    async def _settings(self, ticket: Ticket) -> dict[str, dict[str, str]]:
        """Return the GPUs' settings by UUID."""
        played = await self._done(ticket, NodeStep.SETTINGS, Outcome.AGAIN)
        try:
            return gpu_settings.parse(played.reported.settings)
        except ValueError as error:
            raise _StepOverError(Outcome.AGAIN, str(error)) from error

    async def _measure(self, ticket: Ticket, side: str, stack: str) -> list[NodeResult]:
        """Return the results of all rounds of a side, after another one.

        What a cut-off one left is discarded.
        """
        folder, attempt = self._folder(ticket) / side, ticket.record.attempt
        folder.mkdir(parents=True, exist_ok=True)
        for file in folder.iterdir():
            if int(file.name.partition("-")[0]) >= attempt:
                file.unlink()
        for run in range(self.rules.runs):
            if why := await self._measure_once(ticket, stack, folder, run):
                raise _StepOverError(Outcome.AGAIN, f"run {run + 1} of the measurement: {why}")
        return self._results(ticket, side)

    async def _measure_once(self, ticket: Ticket, stack: str, folder: Path, run: int) -> str:
        """Add another run's result and verdict to a side's folder; why there is none, else nothing.

        The report has a history of its own, empty each time: no run of an upgrade becomes a node's past.
        """
        reports = self._folder(ticket) / ".reports"
        shutil.rmtree(reports, ignore_errors=True)
        played = await self.ansible.playbook(
            "validate",
            ticket.node.name,
            f"{self._label(ticket)}-run{run + 1}",
            {
                "gpu_validation_reports_directory": str(reports.absolute()),
                "preflight_plan_file": "",
                **({"nvidia_stack_name": stack} if stack else {}),
            },
        )
        results = sorted(reports.glob(f"*/results/{ticket.node.name}.json"))
        if not results:
            return played.said or "it left no result"
        kept = f"{ticket.record.attempt}-{run}"
        results[-1].replace(folder / f"{kept}.result.json")
        results[-1].parents[1].joinpath("summary.json").replace(folder / f"{kept}.verdict.json")
        shutil.rmtree(reports, ignore_errors=True)
        return ""

    def _results(self, ticket: Ticket, side: str) -> list[NodeResult]:
        files = sorted((self._folder(ticket) / side).glob("*.result.json"))
        return [contract.loads(NodeResult, file.read_bytes()) for file in files]

    def _judged(self, ticket: Ticket, side: str) -> list[NodeVerdict]:
        """Return what the report made of each of these results."""
        files = sorted((self._folder(ticket) / side).glob("*.verdict.json"))
        return [contract.loads(FleetVerdict, file.read_bytes()).nodes[0] for file in files]

    async def _give_back(self, ticket: Ticket) -> StepResult:
        try:
            said = await asyncio.to_thread(self._give_back_to_scheduler, ticket.node.name)
        except DrainError as error:
            return StepResult(Outcome.AGAIN, str(error))
        return await self._free(ticket, said)

    async def _free(self, ticket: Ticket, said: str = "") -> StepResult:
        """Give the lease back. One that a silent node keeps ends by itself: no reason to take it out."""
        freed = await self._step(ticket, NodeStep.FREE)
        # The node refuses it from now on; whoever comes here again gets another one.
        self.fencing.pop(ticket.node.name, None)
        kept = (
            ""
            if freed.ok
            else f"its lease on the node ends by itself, as it was not given back: {freed.said}"
        )
        return StepResult(Outcome.DONE, " ".join(filter(None, (said, kept))))

    async def _wait_until_idle(self, name: str, limit_s: float) -> None:
        """Wait for the node's work to end. Cancelled, the thread that waits ends at its next look."""
        stopped = threading.Event()
        try:
            await asyncio.to_thread(wait_until_idle, self.drainer, name, limit_s, stopped=stopped.is_set)
        finally:
            stopped.set()

    def _return_to_scheduler(self, name: str) -> tuple[str, _Withheld]:
        """Return what the scheduler says of the return, and why the node is out of service all the same."""
        before = self._noted(name)
        said = self.drainer.give_back(name, before) if before else ""
        now = self.drainer.look(name)
        self._note(name).unlink(missing_ok=True)
        if not now.in_service:
            return said, _Withheld(now.reason or now.obstacle or now.state)
        return said, _Withheld(now.obstacle, passes=bool(now.obstacle))

    def _give_back_to_scheduler(self, name: str) -> str:
        before = self._noted(name)
        if before is None:
            return ""  # it was never drained
        said = self.drainer.give_back(name, before)
        self._note(name).unlink()
        return said

    def _note(self, name: str) -> Path:
        return self.folder / name / "standing.json"

    async def _before(self, name: str) -> Standing:
        """Return how the scheduler had the node before we touched it, or has it now where we have not."""
        noted = self._noted(name)
        if noted:
            return noted
        return await asyncio.to_thread(self.drainer.look, name)

    def _noted(self, name: str) -> Standing | None:
        """Return how the scheduler had the node before we touched it; None where we have not."""
        file = self._note(name)
        return Standing(**json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else None

    def _folder(self, ticket: Ticket) -> Path:
        return self.folder / ticket.node.name

    def _write(self, ticket: Ticket, name: str, content: Mapping[str, Any]) -> None:
        _write(self._folder(ticket) / name, content)

    def _read(self, ticket: Ticket, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self._folder(ticket) / name).read_text(encoding="utf-8"))
        return found


def _write(file: Path, content: Mapping[str, Any]) -> None:
    write_atomically(file, json.dumps(content, indent=1))


def _result(played: Played, *, otherwise: Outcome, facts: Mapping[str, str] | None = None) -> StepResult:
    """Return a run of Ansible as a step's result; `otherwise` is its outcome where it failed.

    A connection that breaks off is no failure of the node: the network of a whole fleet may be away for
    minutes. Nor is an inventory that cannot be read now.
    """
    if played.ok:
        return StepResult(Outcome.DONE, facts=facts or {})
    if played.unreachable and otherwise is Outcome.FAILED:
        return StepResult(Outcome.AGAIN, played.said)
    return StepResult(Outcome.REFUSED if played.refused else otherwise, played.said)


def _with(result: StepResult, other: StepResult) -> StepResult:
    """Return the end of a step, with what became of the snapshot or the kernel."""
    *first, last = [text for text in (result.reason, other.reason) if text] or [""]
    reason = ". ".join([*(text.rstrip(".") for text in first), last])
    return replace(result, reason=reason, facts={**other.facts, **result.facts})


def _said(verdict: gate.GateVerdict, outcome: Outcome) -> StepResult:
    # The store and people put it into a sentence of their own.
    said = " ".join(verdict.reasons or verdict.notes).rstrip(".")
    return StepResult(outcome, said, numbers=verdict.numbers)
