"""Upgrade a fleet of lab nodes, and meet a fault at every step: what a roll-out makes of it.

    python -m tests.lab.upgrade_campaign fleet [--count 30]
    python -m tests.lab.upgrade_campaign faults [--only WORD ...]
    python -m tests.lab.upgrade_campaign list

Leases, packages, reboots, drivers and settings are those of the nodes. The lab has no GPU to measure, so
the numbers that the gate judges are made up here: the recorded scatter of runs, and what a fault takes away.

`fleet` boots a lab of its own (LAB_NAME=upfleet), makes two nodes with the former stack, copies their disks
to the others, and upgrades all: canaries, two waves. `faults` (LAB_NAME=upfault, one node) goes through
`FAULTS`: each must end in its state with its reason; then the cause is taken away, and the next run must end
as it says. The pauses between attempts are skipped: the engine's clock is moved on by them.

Prints tables in Markdown on standard output, progress on standard error; logs are in
reports/upgrade-campaign/.
Exit status: 0 all ended as expected, 1 not, 2 the nodes did not come up.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollout.drain.base import Standing
from rollout.drain.commands import Idle
from rollout.engine import Clock, Engine, Ticket
from rollout.executor import FleetExecutor
from rollout.fleet import candidates, groups_of, preflight, proposal
from rollout.forecast import plan_text
from rollout.gate import Rules
from rollout.model import Course, Outcome, Record, State, Step, StepResult
from rollout.model import Node as RolloutNode
from rollout.playbooks import Ansible
from rollout.policy import Policy, Share
from rollout.report import overhead, timeline_text
from rollout.store import Store
from tests.lab import lab as lab_of
from tests.lab import many_nodes
from tests.lab import node as machine
from tests.lab import repositories as shared_repositories
from tests.lab.cutoff import CampaignError, failure, lab_command, note
from tests.lab.fleet import Fleet, on_node
from tests.lab.repository_faults import Repositories
from tests.lab.settings import CHECKOUT, Lab
from tests.unit.rollout.results import drawn_from, recorded_noise, run_of
from validation.model.contract import Finding, dumps
from validation.model.contract import State as TestState

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from rollout.drain.base import Drainer
    from rollout.engine import Ending
    from rollout.model import Rollout
    from tests.lab.settings import Node
    from validation.model.contract import NodeResult

INVENTORY = CHECKOUT / "inventory" / "lab"
LOGS = CHECKOUT / "reports" / "upgrade-campaign"
OLD, NEW = "r580-cuda13.0", "r595-cuda13.2"
DRIVERS = {OLD: "580.178.04", NEW: "595.91.07"}
TIMEOUT_S = 3600.0
SCATTER = 0.005  # of the made-up runs of a GPU
RUNS = 5
POLICY = Policy(
    soak_minutes=0,
    waves=(Share(40, percent=True), Share(100, percent=True)),
    max_unavailable=Share(4),
    drain_minutes=2,
    failure_budget=Share(2),
    measure_runs=RUNS,
)
FORWARD, BACK = Course.FORWARD, Course.BACK


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
            Ansible(folder, [str(INVENTORY)]),
            drainer,
            folder,
            identity,
            rules=Rules(runs=RUNS),
            known_stacks=(NEW, OLD),
        )
        self.numbers = numbers
        self.inject = dict(inject)
        self.chance = random.Random(1)

    async def before(self, ticket: Ticket) -> None:
        """What a fault does before this step."""
        if action := self.inject.pop((ticket.record.course, ticket.step), None):
            await asyncio.to_thread(action)

    async def _measure(self, ticket: Ticket, side: str, stack: str) -> list[NodeResult] | StepResult:
        folder, attempt = self._folder(ticket) / side, ticket.record.attempt
        folder.mkdir(parents=True, exist_ok=True)
        for file in folder.iterdir():
            if int(file.name.partition("-")[0]) >= attempt:
                file.unlink()
        factor = {"before": 1.0, "after": self.numbers.after, "back": self.numbers.back}[side]
        draw = drawn_from(recorded_noise(), self.numbers.scatter, self.chance)
        findings = self.numbers.findings if side == "before" else ()
        for run in range(RUNS):
            result = run_of(
                [factor] * 8, draw=draw, driver=DRIVERS[stack], findings=findings, node=ticket.node.name
            )
            (folder / f"{attempt}-{run}.result.json").write_text(dumps(result), encoding="utf-8")
        return self._results(ticket, side)


class FaultyEngine(Engine):
    """The engine, with what a fault does before a step."""

    async def _perform(self, ticket: Ticket) -> StepResult:
        assert isinstance(self.executor, LabExecutor)
        await self.executor.before(ticket)
        return await super()._perform(ticket)


def carry_out(store: Store, number: int, executor: LabExecutor) -> Ending:
    """Go on with a roll-out until it ends or holds."""

    async def run() -> Ending:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(64))
        engine = FaultyEngine(store, executor, clock=SkippingClock(), say=note)
        return await engine.run(number)

    return asyncio.run(run())


def propose(store: Store, stack: str, policy: Policy) -> tuple[int, str]:
    """Record a roll-out of all nodes to a stack; its number, and what `plan` says."""
    now = datetime.now(UTC)
    found = candidates(preflight([str(INVENTORY)], stack), groups_of([str(INVENTORY)]))
    proposed = proposal(found, policy, stack, now)
    number = store.create(stack, policy, proposed.nodes, proposed.records, now)
    return number, plan_text(proposed, found, now)


def loaded(node: Node) -> str:
    """The version of the loaded driver."""
    return on_node(node, "cat /sys/module/nvidia/version 2>/dev/null || true").strip()


def make(fleet: Fleet, nodes: Sequence[Node]) -> None:
    """Bring nodes to the former stack, with the payload. Raises CampaignError."""
    limit = ["--limit", ",".join(node.name for node in nodes)]
    for playbook in ("provision", "tune", "validate"):
        run = fleet.run(["ansible-playbook", f"playbooks/{playbook}.yml", *limit])
        # Of the payload, only that it is there: what CPUs reach beside each other is no verdict.
        if playbook != "validate" and (reason := failure(run)):
            raise CampaignError(f"{playbook} failed: {reason}")
        note(f"{playbook} of {len(nodes)} nodes: status {run.status}")


# ---------------------------------------------------------------- a whole fleet


def upgrade_fleet(count: int) -> bool:
    """Upgrade many nodes in waves; whether all returned, in order and within the limits."""
    fleet = Fleet(Lab(name=os.environ.get("LAB_NAME") or "upfleet"), count, TIMEOUT_S)
    os.environ.update(fleet.environment)
    try:
        lab_command(fleet, "down")
        many_nodes.boot(fleet)
        nodes = fleet.lab.nodes(count)
        make(fleet, nodes[:2])
        many_nodes.copy(fleet, 2)
        folder = LOGS / "fleet"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        store = Store(folder / "rollouts.sqlite")
        number, planned = propose(store, NEW, POLICY)
        note(planned)
        executor = LabExecutor(folder, numbers=Numbers(), inject={}, drainer=Idle())
        ending = carry_out(store, number, executor)
        rollout = store.load(number)
        assert rollout
        events = store.events(number)
        print(f"```\n{planned}\n\n{timeline_text(rollout, events, datetime.now(UTC))}\n```")
        problems = [
            f"{node.name}: {rollout.records[node.name].state}, driver {loaded(node)} is loaded"
            for node in nodes
            if rollout.records[node.name].state is not State.RETURNED or loaded(node) != DRIVERS[NEW]
        ]
        problems += _order(rollout, events)
        spent = overhead(events)
        print(
            f"\n{ending.sentence}. {count} nodes, at most {POLICY.max_unavailable} at a time: "
            f"{spent.elapsed:.0f} min; the nodes' own time {spent.node_minutes:.0f} min."
        )
        for problem in problems:
            print(f"**{problem}**")
        return not problems
    finally:
        lab_command(fleet, "down")


def _order(rollout: Rollout, events: Sequence[Any]) -> list[str]:
    """What was not in order: a wave before the one before it had ended, too many nodes out at a time."""
    problems: list[str] = []
    ended: set[str] = set()
    out: set[str] = set()
    for event in (event for event in events if event.node):
        if event.step == Step.LEASE and event.outcome == "begun":
            wave = rollout.records[event.node].wave
            earlier = [name for name, record in rollout.records.items() if record.wave < wave]
            if early := [name for name in earlier if name not in ended]:
                problems.append(f"{event.node} of wave {wave} began before {', '.join(early)} had ended")
        if event.step == Step.DRAIN and event.outcome == "begun":
            out.add(event.node)
        if event.state in (State.RETURNED, State.ROLLED_BACK, State.LEFT_OUT):
            ended.add(event.node)
            out.discard(event.node)
        most = POLICY.max_unavailable.of(len(rollout.nodes), 1)
        if len(out) > most:
            problems.append(f"{len(out)} nodes were out of service, {most} are allowed")
    return problems


# ---------------------------------------------------------------- faults


@dataclass
class Trial:
    """One node, on which faults come and go."""

    fleet: Fleet
    node: Node
    repositories: Repositories
    folder: Path
    target: str
    drainer: Scheduler

    @property
    def former(self) -> str:
        """The stack that the node comes from."""
        return OLD if self.target == NEW else NEW

    @property
    def driver_package_version(self) -> str:
        """The version of the packages that it is to get."""
        return f"{DRIVERS[self.target]}-1"

    def fault(self, name: str, *, on: bool = True) -> None:
        """Switch one of the simulator's faults."""
        lab_of.set_fault(self.node, name, on=on)

    def run(self, script: str) -> str:
        """Run a script on the node."""
        return on_node(self.node, script)


@dataclass
class Scheduler:
    """A scheduler that says what a fault has it say."""

    inner: Idle = field(default_factory=Idle)
    standing: Standing | None = None
    work: tuple[str, ...] = ()

    def look(self, node: str) -> Standing:
        """How it has the node."""
        return self.standing or self.inner.look(node)

    def survey(self, nodes: Collection[str]) -> list[Standing]:
        """In service, all of them: what a fault says comes in the midst of a roll-out."""
        return self.inner.survey(nodes)

    def drain(self, node: str, before: Standing, reason: str) -> None:
        """Take it out of service."""
        self.inner.drain(node, before, reason)

    def empty(self, node: str, timeout_s: float) -> tuple[str, ...]:
        """What still runs there."""
        if self.work:
            time.sleep(min(timeout_s, 5))
        return self.work

    def give_back(self, node: str, before: Standing) -> str:
        """Return it."""
        return self.inner.give_back(node, before)

    def keep_out(self, node: str, before: Standing, reason: str) -> None:
        """Leave it out."""
        self.inner.keep_out(node, before, reason)


@dataclass(frozen=True)
class Fault:
    """What happens before a step, what that must come to, and what the next run must, once it is mended.

    `said` is a pattern of the node's reason. `then` None: the first run's end is the end. With `passes`, the
    fault is of the new stack alone: the way back does not meet it.
    """

    name: str
    state: State
    said: str = ""
    step: Step | None = None
    course: Course = FORWARD
    inject: Callable[[Trial], None] = lambda trial: None
    mend: Callable[[Trial], None] = lambda trial: None
    then: State | None = State.RETURNED
    numbers: Numbers = field(default_factory=Numbers)
    dies: bool = False
    passes: bool = False


def _held_apt(trial: Trial) -> None:
    """Hold apt's lock, as another administrator's apt does."""
    trial.run(
        "systemd-run --quiet --unit=other-apt --service-type=exec "
        'python3 -c \'import fcntl,time; f=open("/var/lib/dpkg/lock-frontend","w"); '
        "fcntl.lockf(f,fcntl.LOCK_EX); time.sleep(3600)'"
    )


def _other_controller(trial: Trial) -> None:
    """Another controller takes the node first."""
    other = LabExecutor(
        trial.folder / "other", numbers=Numbers(), inject={}, drainer=Idle(), identity="somebody else"
    )
    now = datetime.now(UTC)
    record = Record(State.PENDING, now, step=Step.LEASE, attempt=1)
    ticket = Ticket(
        1, NEW, RolloutNode(trial.node.name, ""), Step.LEASE, record, 1, "", POLICY, timedelta(minutes=10)
    )
    result = asyncio.run(other.lease(ticket))
    assert result.outcome is Outcome.DONE, result.reason


def _full_disk(trial: Trial) -> None:
    trial.run(
        "mkdir -p /var/cache/apt/archives && mount -t tmpfs -o size=64k tmpfs /var/cache/apt/archives "
        "&& mkdir -p /var/cache/apt/archives/partial"
    )


def _power_cut(trial: Trial) -> None:
    """The node goes off in a minute's time of work: the install finds it silent."""
    machine.stop(trial.node)


def _power_back(trial: Trial) -> None:
    lab_command(trial.fleet, "up")


def _lost_settings(trial: Trial) -> None:
    """Something takes a setting away whenever it is set, as a tool of somebody else does."""
    trial.run("nvidia-smi --compute-mode=EXCLUSIVE_PROCESS")


def _corrupt(trial: Trial) -> None:
    trial.repositories.corrupt(trial.node, "nvidia-driver-cuda", trial.driver_package_version)


def _lose(trial: Trial) -> None:
    trial.repositories.lose(trial.node, "nvidia-driver-cuda", trial.driver_package_version)


def _restore(trial: Trial) -> None:
    trial.repositories.restore()


SLOW = Finding("below-reference", TestState.DEGRADED, "GPU 0 reaches 61 % of its reference", device=0)
FAULTS: tuple[Fault, ...] = (
    Fault("none: there", State.RETURNED, then=None),
    Fault(
        "lock: a second controller has the node",
        State.LEFT_OUT,
        "held by somebody else",
        Step.LEASE,
        inject=_other_controller,
        mend=lambda trial: void(trial.run("rm -f /var/lib/temper/lease.json")),
    ),
    Fault(
        "drain: a job does not end",
        State.LEFT_OUT,
        "still has work",
        Step.DRAIN,
        inject=lambda trial: setattr(trial.drainer, "work", ("job 7 of ann",)),
        mend=lambda trial: setattr(trial.drainer, "work", ()),
    ),
    Fault(
        "drain: somebody else has drained the node",
        State.LEFT_OUT,
        "somebody else has taken it out of service: disk",
        Step.DRAIN,
        inject=lambda trial: setattr(
            trial.drainer, "standing", Standing(trial.node.name, in_service=False, reason="disk")
        ),
        mend=lambda trial: setattr(trial.drainer, "standing", None),
    ),
    Fault(
        "drain: a process keeps a GPU that the scheduler does not know of",
        State.LEFT_OUT,
        "holder.service",
        Step.DRAIN,
        inject=lambda trial: void(
            trial.run(
                "touch /dev/nvidia0; systemd-run --quiet --unit=holder --service-type=exec "
                "--property=StandardInput=file:/dev/nvidia0 sleep 3600"
            )
        ),
        mend=lambda trial: void(trial.run("systemctl stop holder; rm -f /dev/nvidia0")),
    ),
    Fault(
        "baseline: a GPU is slow before",
        State.LEFT_OUT,
        "before the upgrade",
        Step.BASELINE,
        numbers=Numbers(findings=(SLOW,)),
    ),
    Fault(
        "baseline: runs scatter by 8 %",
        State.LEFT_OUT,
        "steady enough",
        Step.BASELINE,
        numbers=Numbers(scatter=0.08),
    ),
    Fault("download: 404", State.LEFT_OUT, "404", Step.STAGE, inject=_lose, mend=_restore),
    Fault(
        "download: wrong checksum",
        State.LEFT_OUT,
        "(?i)hash sum|checksum|size",
        Step.STAGE,
        inject=_corrupt,
        mend=_restore,
    ),
    Fault(
        "download: the disk is full",
        State.LEFT_OUT,
        "(?i)space|disk",
        Step.STAGE,
        inject=_full_disk,
        mend=lambda trial: void(trial.run("umount /var/cache/apt/archives")),
    ),
    Fault(
        "install: somebody else's apt holds the lock",
        State.LEFT_OUT,
        "(?i)lock",
        Step.STAGE,
        inject=_held_apt,
        mend=lambda trial: void(trial.run("systemctl stop other-apt")),
    ),
    Fault(
        "install: the module does not build",
        State.ROLLED_BACK,
        "(?i)build|module",
        Step.INSTALL,
        inject=lambda trial: trial.fault("module-build-fails"),
        mend=lambda trial: trial.fault("module-build-fails", on=False),
        passes=True,
    ),
    Fault(
        "install: the power is cut",
        State.FAILED,
        "install",
        Step.INSTALL,
        inject=_power_cut,
        mend=_power_back,
        then=State.ROLLED_BACK,
    ),
    Fault(
        "reboot: the node never comes back",
        State.FAILED,
        "reboot",
        Step.LOAD,
        inject=_power_cut,
        mend=_power_back,
        then=State.ROLLED_BACK,
    ),
    Fault(
        "reboot: back with 7 of 8 GPUs",
        State.FAILED,
        "GPU",
        Step.REBOOT,
        inject=lambda trial: trial.fault("gpu-lost"),
        mend=lambda trial: trial.fault("gpu-lost", on=False),
        then=State.ROLLED_BACK,
    ),
    Fault(
        "load: the module is absent",
        State.FAILED,
        "load",
        Step.REBOOT,
        inject=lambda trial: trial.fault("no-driver"),
        mend=lambda trial: trial.fault("no-driver", on=False),
        then=State.ROLLED_BACK,
    ),
    Fault("settings: compute mode lost", State.RETURNED, step=Step.SETTLE, inject=_lost_settings, then=None),
    Fault("gate: 1 % slower passes", State.RETURNED, numbers=Numbers(after=0.99), then=None),
    Fault("gate: 6 % slower goes back", State.ROLLED_BACK, "fell by", numbers=Numbers(after=0.93), then=None),
    Fault(
        "gate: an Xid in the soak",
        State.RETURNED,
        "(?i)uncorrectable",
        Step.WATCH,
        inject=lambda trial: trial.fault("ecc-errors"),
        mend=lambda trial: trial.fault("ecc-errors", on=False),
        then=None,
    ),
    Fault(
        "rollback: the repository is gone",
        State.ROLLED_BACK,
        "fell by",
        Step.UNDO,
        BACK,
        inject=lambda trial: trial.repositories.silence(),
        mend=_restore,
        numbers=Numbers(after=0.90),
    ),
    Fault(
        "rollback: the former driver is slower, too",
        State.FAILED,
        "on the way back",
        numbers=Numbers(after=0.90, back=0.90),
        then=State.ROLLED_BACK,
    ),
    *(
        Fault(f"controller: killed -9 in step {step}", State.RETURNED, step=step, dies=True, then=None)
        for step in Step
        if step not in (Step.UNDO, Step.RELEASE, Step.KEEP_OUT)
    ),
)


def void(value: object) -> None:
    """For actions whose answer nobody needs."""


def meet_faults(chosen: Sequence[Fault], *, keep: bool) -> bool:
    """Go through faults on one node; whether each ended as it must, twice."""
    fleet = Fleet(Lab(name=os.environ.get("LAB_NAME") or "upfault"), 1, TIMEOUT_S)
    os.environ.update(fleet.environment)
    (node,) = fleet.lab.nodes(1)
    shutil.rmtree(LOGS / "faults", ignore_errors=True)
    bad = 0
    try:
        if loaded_or_off(node) not in DRIVERS.values():
            lab_command(fleet, "down")
            many_nodes.boot(fleet)
            make(fleet, [node])
        shared_repositories.publish(fleet.lab)  # whatever an earlier campaign has left
        repositories = Repositories(fleet.lab)
        try:
            print("| Fault | Ends as | Because | Then | |\n|---|---|---|---|---|", flush=True)
            for number, fault in enumerate(chosen):
                folder = LOGS / "faults" / str(number)
                folder.mkdir(parents=True)
                target = NEW if loaded(node) == DRIVERS[OLD] else OLD
                bad += not meet(fault, Trial(fleet, node, repositories, folder, target, Scheduler()))
        finally:
            repositories.close()
    finally:
        if not keep:
            lab_command(fleet, "down")
    print(f"\n{len(chosen) - bad} of {len(chosen)} faults ended as they must.")
    return not bad


def loaded_or_off(node: Node) -> str:
    """The loaded driver of a node; nothing where it is off."""
    return loaded(node) if machine.leader(node) else ""


def meet(fault: Fault, trial: Trial) -> bool:
    """One fault: its end, and that of the next run."""
    note(f"=== {fault.name} (to {trial.target})")
    store = Store(trial.folder / "rollouts.sqlite")
    number, _ = propose(store, trial.target, POLICY)
    if fault.dies:
        _die(trial, number, fault)
        inject: dict[tuple[Course, Step], Callable[[], None]] = {}
    else:
        inject = {(fault.course, fault.step): lambda: fault.inject(trial)} if fault.step else {}
        if fault.passes:
            inject[BACK, Step.UNDO] = lambda: fault.mend(trial)
    executor = LabExecutor(trial.folder, numbers=fault.numbers, inject=inject, drainer=trial.drainer)
    try:
        carry_out(store, number, executor)
    finally:
        fault.mend(trial)
    first = _record(store, number, trial)
    said = " ".join((first.reason, _rollout(store, number).reason))
    problems = []
    if first.state is not fault.state:
        problems.append(f"expected {fault.state}")
    if not re.search(fault.said, said):
        problems.append(f"expected a reason with {fault.said!r}")
    problems += _truth(trial, first)
    after: Record | None = None
    if fault.then:
        store.retry(number, trial.node.name, "campaign", datetime.now(UTC))
        with contextlib.suppress(ValueError):
            store.resume(number, "campaign", datetime.now(UTC))
        carry_out(
            store, number, LabExecutor(trial.folder, numbers=Numbers(), inject={}, drainer=trial.drainer)
        )
        after = _record(store, number, trial)
        if after.state is not fault.then:
            problems.append(f"then expected {fault.then}, because {after.reason}")
        problems += _truth(trial, after)
    verdict = "as it must" if not problems else f"**{'; '.join(problems)}**"
    reason = re.sub(r"\s+", " ", said).replace("|", "/")[:160]
    print(
        f"| {fault.name} | {first.state} | {reason} | {after.state if after else ''} | {verdict} |",
        flush=True,
    )
    return not problems


def _die(trial: Trial, number: int, fault: Fault) -> None:
    """Have a controller of its own go on until the step, in which it is killed."""
    command = [sys.executable, "-m", "tests.lab.upgrade_campaign", "die", str(trial.folder), str(number)]
    done = subprocess.run([*command, str(fault.step)], cwd=CHECKOUT, check=False)
    assert done.returncode == -signal.SIGKILL, f"the controller ended with {done.returncode}"


def die(folder: Path, number: int, step: Step) -> None:
    """Go on with a roll-out, and be killed in a step while Ansible carries it out."""
    executor = LabExecutor(folder, numbers=Numbers(), inject={}, drainer=Idle())
    original = executor.ansible.playbook

    async def playbook(name: str, node: str, label: str, variables: Mapping[str, Any]) -> Any:
        if label.startswith(f"{step}-"):
            # Some way into it: the node is at work when nobody is left to hear of it.
            asyncio.get_running_loop().call_later(4, os.kill, os.getpid(), signal.SIGKILL)
        return await original(name, node, label, variables)

    executor.ansible.playbook = playbook  # type: ignore[method-assign]  # this one only
    if step in (Step.BASELINE, Step.PROVE):
        executor.inject = {(FORWARD, step): lambda: os.kill(os.getpid(), signal.SIGKILL)}
    carry_out(Store(folder / "rollouts.sqlite"), number, executor)


def _rollout(store: Store, number: int) -> Rollout:
    found = store.load(number)
    assert found
    return found


def _record(store: Store, number: int, trial: Trial) -> Record:
    return _rollout(store, number).records[trial.node.name]


def _truth(trial: Trial, record: Record) -> list[str]:
    """What is not true on the node of what its state says."""
    has = loaded(trial.node)
    wanted = {State.RETURNED: trial.target, State.LEFT_OUT: trial.former, State.ROLLED_BACK: trial.former}
    problems = []
    if record.state in wanted and has != DRIVERS[wanted[record.state]]:
        problems.append(f"{record.state} with driver {has or 'none'} loaded")
    lease = json.loads(trial.run("cat /var/lib/temper/lease.json 2>/dev/null || echo '{}'"))
    if record.state in wanted and lease.get("owner") == "upgrade-campaign":
        problems.append(f"{record.state}, and the node's lease was not given back")
    return problems


def main(arguments: list[str] | None = None) -> int:
    """Run a campaign; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.lab.upgrade_campaign", description=(__doc__ or "").split("\n")[0]
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("fleet").add_argument("--count", type=int, default=30, help="nodes (30)")
    faults = commands.add_parser("faults")
    faults.add_argument(
        "--only", nargs="+", default=[""], help="faults with one of these words in their names"
    )
    faults.add_argument("--keep", action="store_true", help="leave the lab running afterwards")
    commands.add_parser("list")
    dying = commands.add_parser("die")
    dying.add_argument("folder", type=Path)
    dying.add_argument("number", type=int)
    dying.add_argument("step", type=Step)
    options = parser.parse_args(arguments)
    try:
        if options.command == "fleet":
            return 0 if upgrade_fleet(options.count) else 1
        if options.command == "die":
            die(options.folder, options.number, options.step)
            return 0
        if options.command == "list":
            print("\n".join(fault.name for fault in FAULTS))
            return 0
        chosen = [fault for fault in FAULTS if any(word in fault.name for word in options.only)]
        if not chosen:
            parser.error("--only: no fault has one of these words in its name; `list` prints them")
        return 0 if meet_faults(chosen, keep=options.keep) else 1
    except CampaignError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
