"""The faults of an upgrade that `tests.lab.upgrade_campaign` has a lab node meet, and how each must end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from temper.rollout.drain.base import DrainError, Standing
from temper.rollout.drain.commands import Idle
from temper.rollout.engine import Ticket
from temper.rollout.model import Course, NodeState, Outcome, Record, RolloutNode, Step
from temper.rollout.policy import Policy, Share
from tests.lab import lab as lab_of
from tests.lab import node as machine
from tests.lab.cutoff import lab_command
from tests.lab.fleet import Fleet, on_node
from tests.lab.repository_faults import Repositories
from tests.lab.rollouts import DRIVERS, NEW, OLD, RUNS, LabExecutor, Numbers
from tests.lab.settings import Node
from validation.model.contract import Finding, State

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
    away: bool = False

    def answers(self) -> None:
        """Raises DrainError while it is away."""
        if self.away:
            raise DrainError("the scheduler gave no answer within 30 s")

    def look(self, node: str) -> Standing:
        """How it has the node."""
        self.answers()
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
        self.answers()
        return self.inner.give_back(node, before)

    def keep_out(self, node: str, before: Standing, reason: str) -> None:
        """Leave it out."""
        self.answers()
        self.inner.keep_out(node, before, reason)


@dataclass(frozen=True)
class Fault:
    """What happens before a step, what that must come to, and what the next run must, once it is mended.

    `said` is a pattern of the node's reason. `then` None: the first run's end is the end. With `passes`, the
    fault is of the new stack alone: the way back does not meet it. One that `soaks` needs another node
    of its kind, whose wave waits until the first has soaked: a last wave has nobody to wait.
    """

    name: str
    state: NodeState
    said: str = ""
    step: Step | None = None
    course: Course = FORWARD
    inject: Callable[[Trial], None] = lambda trial: None
    mend: Callable[[Trial], None] = lambda trial: None
    then: NodeState | None = NodeState.RETURNED
    numbers: Numbers = field(default_factory=Numbers)
    dies: bool = False
    passes: bool = False
    soaks: bool = False


def void(value: object) -> None:
    """For actions whose answer nobody needs."""


def _held_apt(trial: Trial) -> None:
    """Hold apt's lock, as another administrator's apt does."""
    trial.run(
        "systemd-run --quiet --unit=other-apt --service-type=exec "
        'python3 -c \'import fcntl,time; f=open("/var/lib/dpkg/lock-frontend","w"); '
        "fcntl.lockf(f,fcntl.LOCK_EX); time.sleep(3600)'"
    )


def _end_apt(trial: Trial) -> None:
    """End the other apt, if a reboot on the way back has not."""
    trial.run("if systemctl --quiet is-active other-apt; then systemctl stop other-apt; fi")


def _other_controller(trial: Trial) -> None:
    """Another controller takes the node first."""
    other = LabExecutor(
        trial.folder / "other", numbers=Numbers(), inject={}, drainer=Idle(), identity="somebody else"
    )
    now = datetime.now(UTC)
    record = Record(NodeState.PENDING, now, step=Step.LEASE, attempt=1)
    ticket = Ticket(
        1, NEW, RolloutNode(trial.node.name, ""), Step.LEASE, record, 1, "", POLICY, timedelta(minutes=10)
    )
    result = asyncio.run(other.lease(ticket))
    assert result.outcome is Outcome.DONE, result.reason


def _full_disk(trial: Trial) -> None:
    _forget_packages(trial)
    trial.run(
        "mkdir -p /var/cache/apt/archives && mount -t tmpfs -o size=64k tmpfs /var/cache/apt/archives "
        "&& mkdir -p /var/cache/apt/archives/partial"
    )


def _power_cut(trial: Trial) -> None:
    """The node goes off: the step finds it silent."""
    machine.stop(trial.node)


def _stays_off(trial: Trial) -> None:
    """The next reboot switches the node off, and only that one: the folder is emptied with it."""
    trial.run(
        "mkdir -p /run/systemd/system && ln -s /lib/systemd/system/poweroff.target "
        "/run/systemd/system/reboot.target && systemctl daemon-reload"
    )


def _power_back(trial: Trial) -> None:
    lab_command(trial.fleet, "up")


def _lost_settings(trial: Trial) -> None:
    """Somebody changes a setting that no inventory names, so that nothing of Temper's sets it again."""
    trial.run("nvidia-smi -c 3")


def _no_reboot(trial: Trial) -> None:
    """What reboots says that it does, and nothing happens."""
    trial.run("mv /sbin/shutdown /sbin/shutdown.real && ln -s /bin/true /sbin/shutdown")


def _reboots_again(trial: Trial) -> None:
    trial.run("[ ! -e /sbin/shutdown.real ] || mv -f /sbin/shutdown.real /sbin/shutdown")


def _forget_packages(trial: Trial) -> None:
    """Else a node that had the stack before downloads nothing."""
    former = "/var/cache/temper/former-packages /etc/apt/sources.list.d/temper-former.sources"
    trial.run(f"apt-get clean && rm -rf {former}")


def _corrupt(trial: Trial) -> None:
    _forget_packages(trial)
    trial.repositories.corrupt(trial.node, "nvidia-driver-cuda", trial.driver_package_version)


def _lose(trial: Trial) -> None:
    _forget_packages(trial)
    trial.repositories.lose(trial.node, "nvidia-driver-cuda", trial.driver_package_version)


def _restore(trial: Trial) -> None:
    trial.repositories.restore()


#: How the gate names a number that fell too far.
FELL = r"gpu_matmul bf16: .*\(-\d.* A loss of \d+ % is allowed"
SLOW = Finding("below-reference", State.DEGRADED, "GPU 0 reaches 61 % of its reference", device=0)
FAULTS: tuple[Fault, ...] = (
    Fault("none: there", NodeState.RETURNED, then=None),
    Fault(
        "lock: a second controller has the node",
        NodeState.LEFT_OUT,
        "held by somebody else",
        Step.LEASE,
        inject=_other_controller,
        mend=lambda trial: void(trial.run("rm -f /var/lib/temper/lease.json")),
    ),
    Fault(
        "drain: a job does not end",
        NodeState.LEFT_OUT,
        "still has work",
        Step.DRAIN,
        inject=lambda trial: setattr(trial.drainer, "work", ("job 7 of ann",)),
        mend=lambda trial: setattr(trial.drainer, "work", ()),
    ),
    Fault(
        "drain: somebody else has drained the node",
        NodeState.LEFT_OUT,
        "somebody else has taken it out of service: disk",
        Step.DRAIN,
        inject=lambda trial: setattr(
            trial.drainer, "standing", Standing(trial.node.name, in_service=False, reason="disk")
        ),
        mend=lambda trial: setattr(trial.drainer, "standing", None),
    ),
    Fault(
        "drain: a process keeps a GPU that the scheduler does not know of",
        NodeState.LEFT_OUT,
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
        "drain: the scheduler is away",
        NodeState.LEFT_OUT,
        "gave no answer",
        Step.DRAIN,
        inject=lambda trial: setattr(trial.drainer, "away", True),
        mend=lambda trial: setattr(trial.drainer, "away", False),
    ),
    Fault(
        "return: the scheduler is away",
        NodeState.FAILED,
        "proven, and could not be returned: .*gave no answer",
        Step.RETURN,
        inject=lambda trial: setattr(trial.drainer, "away", True),
        mend=lambda trial: setattr(trial.drainer, "away", False),
    ),
    Fault(
        "baseline: a GPU is slow before",
        NodeState.LEFT_OUT,
        "before the upgrade",
        Step.BASELINE,
        numbers=Numbers(findings=(SLOW,)),
    ),
    Fault(
        # By less, and by chance some number may be steady in the end: runs are taken up to three times.
        "baseline: runs scatter by 25 %",
        NodeState.LEFT_OUT,
        "steady enough",
        Step.BASELINE,
        numbers=Numbers(scatter=0.25),
    ),
    Fault("download: 404", NodeState.LEFT_OUT, "404", Step.STAGE, inject=_lose, mend=_restore),
    Fault(
        "download: wrong checksum",
        NodeState.LEFT_OUT,
        "(?i)hash sum|checksum|size",
        Step.STAGE,
        inject=_corrupt,
        mend=_restore,
    ),
    Fault(
        "download: the disk is full",
        NodeState.LEFT_OUT,
        "(?i)space|disk",
        Step.STAGE,
        inject=_full_disk,
        mend=lambda trial: void(trial.run("umount /var/cache/apt/archives")),
    ),
    Fault(
        "download: somebody else's apt holds the lock",
        NodeState.LEFT_OUT,
        "(?i)lock",
        Step.STAGE,
        inject=_held_apt,
        mend=_end_apt,
    ),
    Fault(
        # For longer than the ten minutes that an installation waits.
        "install: somebody else's apt holds the lock",
        NodeState.ROLLED_BACK,
        "(?i)lock",
        Step.INSTALL,
        inject=_held_apt,
        mend=_end_apt,
        passes=True,
    ),
    Fault(
        "install: the module does not build",
        NodeState.ROLLED_BACK,
        "(?i)build|module",
        Step.INSTALL,
        inject=lambda trial: trial.fault("module-build-fails"),
        mend=lambda trial: trial.fault("module-build-fails", on=False),
        passes=True,
    ),
    Fault(
        "install: the power is cut",
        NodeState.FAILED,
        "^install: .*reached",
        Step.INSTALL,
        inject=_power_cut,
        mend=_power_back,
        then=NodeState.ROLLED_BACK,
    ),
    Fault(
        "reboot: the node never comes back",
        NodeState.FAILED,
        "^reboot: .*(back|answer|reach)",
        Step.REBOOT,
        inject=_stays_off,
        mend=_power_back,
        then=NodeState.ROLLED_BACK,
    ),
    Fault(
        "load: the node is silent",
        NodeState.FAILED,
        "^load: .*reached",
        Step.LOAD,
        inject=_power_cut,
        mend=_power_back,
        then=NodeState.ROLLED_BACK,
    ),
    Fault(
        "reboot: it does not begin, and the boot id stays",
        NodeState.ROLLED_BACK,
        "(?i)reboot",
        Step.REBOOT,
        inject=_no_reboot,
        mend=_reboots_again,
        passes=True,
    ),
    Fault(
        "reboot: back with 7 of 8 GPUs",
        NodeState.FAILED,
        "GPU",
        Step.REBOOT,
        inject=lambda trial: trial.fault("gpu-lost"),
        mend=lambda trial: trial.fault("gpu-lost", on=False),
        then=NodeState.ROLLED_BACK,
    ),
    Fault(
        "load: the module is absent",
        NodeState.FAILED,
        "load",
        Step.REBOOT,
        inject=lambda trial: trial.fault("no-driver"),
        mend=lambda trial: trial.fault("no-driver", on=False),
        then=NodeState.ROLLED_BACK,
    ),
    Fault(
        "load: the fabric stays in progress",
        NodeState.ROLLED_BACK,
        "NVLink fabric was Completed, and is In Progress",
        Step.SETTLE,
        inject=lambda trial: trial.fault("fabric-not-ready"),
        mend=lambda trial: trial.fault("fabric-not-ready", on=False),
        passes=True,
    ),
    Fault(
        # The reboot on the way back takes it away again.
        "settings: compute mode lost",
        NodeState.ROLLED_BACK,
        "compute mode was Default, and is Exclusive",
        Step.SETTLE,
        inject=_lost_settings,
    ),
    Fault("gate: 1 % slower passes", NodeState.RETURNED, numbers=Numbers(after=0.99), then=None),
    Fault("gate: 6 % slower goes back", NodeState.ROLLED_BACK, FELL, numbers=Numbers(after=0.93), then=None),
    Fault(
        # The lab's kernel log is the host's, so that no Xid can be written there.
        "gate: an error of a GPU in the soak",
        NodeState.ROLLED_BACK,
        "(?i)in the soak: .*uncorrectable",
        Step.WATCH,
        inject=lambda trial: trial.fault("ecc-errors"),
        mend=lambda trial: trial.fault("ecc-errors", on=False),
        soaks=True,
    ),
    Fault(
        "rollback: the repository is gone",
        NodeState.ROLLED_BACK,
        FELL,
        Step.UNDO,
        BACK,
        inject=lambda trial: trial.repositories.silence(),
        mend=_restore,
        numbers=Numbers(after=0.90),
    ),
    Fault(
        "rollback: the former driver is slower, too",
        NodeState.FAILED,
        "on the way back",
        numbers=Numbers(after=0.90, back=0.90),
        then=NodeState.ROLLED_BACK,
    ),
    *(
        Fault(
            f"controller: killed -9 in step {step}",
            NodeState.RETURNED,
            step=step,
            dies=True,
            then=None,
            soaks=step is Step.WATCH,
        )
        for step in Step
        if step not in (Step.UNDO, Step.RELEASE, Step.KEEP_OUT)
    ),
)
