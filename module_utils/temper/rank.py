#!/usr/bin/python3 -IS
"""temper-rank: one rank of a job, on the CPUs beside its GPU, with a fitting number of threads.

    torchrun --nproc-per-node=8 --no-python temper-rank python3 train.py
    srun temper-rank python3 train.py
    mpirun -np 8 temper-rank python3 train.py
    temper-rank --print        say what it would do here, and run nothing

It narrows its own CPUs to those that the kernel names beside the rank's GPU, sets OMP_NUM_THREADS where the
user has not, and becomes the command: no process stays. Where it does not know for sure, it says so in one
line on standard error, and the command runs as it would without it.

Exit status: the command's; 2 wrong call; 126 the command cannot be run, 127 it is not there.
"""

# Standard library only. -I and -S: a job's PYTHONHOME and PYTHONPATH are for the job's Python.

from __future__ import annotations

import contextlib
import math
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

# The rank on this node and the number of ranks there, by launcher, from the inside out: what torchrun and
# mpirun start inherits the SLURM_LOCALID of the script or task that they run in.
LAUNCHERS = (
    ("LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("SLURM_LOCALID", "SLURM_GTIDS"),
)
THREADS = "OMP_NUM_THREADS"
ROOT = Path(os.environ.get("TEMPER_RANK_ROOT", "/"))  # tests give another /sys and /etc
ANSWER_S = 60  # nvidia-smi, of all ranks at once, without persistence mode
MOST_CPUS = 1 << 16  # eight times what Linux can be built for
CORRUPTED_INFOROM = 14  # nvidia-smi's status beside a whole answer and a warning (nvidia-smi(1))
QUERY = "uuid,pci.bus_id,mig.mode.current,name"


class UnboundError(Exception):
    """Why the CPUs stay as they are."""


class Gpu:
    """A GPU as nvidia-smi lists it."""

    def __init__(self, line: str) -> None:
        self.uuid, address, mig, self.name = (word.strip() for word in line.split(",", 3))
        domain, _, rest = address.lower().partition(":")
        self.address = f"{int(domain, 16):04x}:{rest}"  # as in /sys: nvidia-smi writes a domain of 8 digits
        self.divided = mig == "Enabled"


class Rank:
    """Which rank of its node this is, and of how many, as its launcher says; None where none says it."""

    def __init__(self, environment: dict[str, str]) -> None:
        found = []
        for variable, size in LAUNCHERS:
            ranks = number(environment, size)
            if variable == "SLURM_LOCALID":
                if not step(environment):
                    continue
                ranks = len(environment.get(size, "0").split(","))
            if number(environment, variable) is not None:
                found.append((variable, number(environment, variable), ranks))
        # A script may say LOCAL_RANK=$SLURM_LOCALID, and no number of ranks.
        complete = [each for each in found if each[2]]
        self.variable, self.number, self.ranks = (complete or found or [("", None, None)])[0]

    def launcher(self) -> int:
        """Return the process that started this rank.

        The nearest ancestor that was not started as a rank itself.
        """
        process = os.getppid()
        with contextlib.suppress(OSError):  # another user's, as slurmstepd is
            while process > 1 and self.variable and self.variable in started_with(process):
                status = Path(f"/proc/{process}/status").read_text(encoding="utf-8", errors="replace")
                process = int(status.partition("\nPPid:")[2].split()[0])
        return process


def number(environment: dict[str, str], variable: str) -> int | None:
    """Return a number of 0 or more; None where there is none."""
    value = environment.get(variable, "")
    return int(value) if value.isdecimal() else None


def step(environment: dict[str, str]) -> bool:
    """Return whether this is a task of srun: a batch script has a SLURM_LOCALID, too."""
    found = number(environment, "SLURM_STEP_ID")
    return found is not None and found < 0xFFFFFF00  # above: SLURM_BATCH_SCRIPT and others of slurm.h


def started_with(process: int | str) -> dict[str, str]:
    """Return the environment that a process was started with, whatever it has set since. Raises OSError."""
    entries = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    pairs = (os.fsdecode(entry).partition("=") for entry in entries if b"=" in entry)
    return {name: value for name, _, value in pairs}


def nvidia_smi(*options: str) -> str:
    """Return what nvidia-smi prints. Raises UnboundError."""
    try:
        program = subprocess.Popen(  # noqa: S603 - words of ours
            ["nvidia-smi", *options],  # noqa: S607 - the job's own PATH, and its own rights
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
        )
        output, _ = program.communicate(timeout=ANSWER_S)
    except OSError as error:
        raise UnboundError(f"nvidia-smi: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        program.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            program.wait(1)  # and no longer: it may hang in the driver
        raise UnboundError(f"nvidia-smi did not answer in {ANSWER_S} s") from error
    if program.returncode not in (0, CORRUPTED_INFOROM):
        raise UnboundError(f"nvidia-smi: {' '.join(output.split()) or f'status {program.returncode}'}")
    return output


def visible(gpus: list[Gpu], environment: dict[str, str]) -> list[Gpu]:
    """Return the GPUs that CUDA shows to the command, in its order.

    Raises UnboundError where that is not known.
    """
    given = environment.get("CUDA_VISIBLE_DEVICES")
    words = [str(index) for index in range(len(gpus))] if given is None else given.replace(" ", "").split(",")
    if len(gpus) > 1 and any(word.isdecimal() for word in words):
        if any(gpu.divided for gpu in gpus):
            raise UnboundError("a GPU is in MIG mode, and CUDA_VISIBLE_DEVICES names no instance by its UUID")
        if len({gpu.name for gpu in gpus}) > 1 and environment.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
            raise UnboundError("GPUs of several models, and CUDA_DEVICE_ORDER is not PCI_BUS_ID")
    uuids = [(gpu.uuid, gpu) for gpu in gpus]
    if any(word.startswith("MIG") for word in words):
        owner = None
        for line in nvidia_smi("-L").splitlines():
            found = re.search(r"UUID: ([^)\s]+)", line)
            owner = next((gpu for gpu in gpus if found and gpu.uuid == found[1]), owner)
            if found and owner and found[1].startswith("MIG"):
                uuids.append((found[1], owner))
    by_address = sorted(gpus, key=lambda gpu: gpu.address)
    shown: list[Gpu] = []
    for word in words:
        if word.isdecimal():
            matches = by_address[int(word) : int(word) + 1]
        else:
            matches = [gpu for uuid, gpu in uuids if word and uuid.startswith(word)]
        if len(matches) != 1:  # CUDA ends the list here, too
            break
        shown += matches
    return shown


def own_gpu(gpus: list[Gpu], rank: Rank) -> Gpu:
    """Return the GPU of this rank: the only one, else the one of its number. Raises UnboundError."""
    if len(gpus) == 1:
        return gpus[0]
    if not gpus:
        raise UnboundError("no GPU is visible")
    if rank.number is None:
        raise UnboundError(f"no launcher says which rank this is, and {len(gpus)} GPUs are visible")
    if rank.ranks == 1 and rank.variable != "LOCAL_RANK":  # a torchrun of srun's, a server over all GPUs
        raise UnboundError(f"the node's only rank, and {len(gpus)} GPUs are visible: it may use them all")
    if rank.number >= len(gpus):
        raise UnboundError(f"rank {rank.number} has no GPU of its own: {len(gpus)} are visible")
    return gpus[rank.number]


def cpu_list(text: str) -> set[int]:
    """Return the CPUs of a list of the kernel's ("0-23,48-71"). Raises ValueError."""
    ranges = [part.partition("-") for part in text.strip().split(",") if part]
    ends = [(int(first), int(last or first)) for first, _, last in ranges]
    if any(last >= MOST_CPUS for _, last in ends):
        raise ValueError(f"expected CPUs below {MOST_CPUS} in a list of the kernel's, found {text[:80]!r}")
    return {cpu for first, last in ends for cpu in range(first, last + 1)}


def written(cpus: set[int]) -> str:
    """Return the CPUs as the kernel lists them."""
    ends = [cpu for cpu in sorted(cpus) if cpu + 1 not in cpus]
    starts = [cpu for cpu in sorted(cpus) if cpu - 1 not in cpus]
    return ",".join(f"{a}-{b}" if a < b else str(a) for a, b in zip(starts, ends))  # noqa: B905 - 3.9


def beside(gpu: Gpu) -> set[int]:
    """Return the CPUs that the kernel names beside a GPU. Raises OSError."""
    path = ROOT / "sys/bus/pci/devices" / gpu.address / "local_cpulist"
    return cpu_list(path.read_text(encoding="ascii"))


def cores(cpus: set[int]) -> int:
    """Physical cores: CPUs that share one count once."""
    found = set()
    for cpu in cpus:
        path = ROOT / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        try:
            found.add(path.read_text(encoding="ascii"))
        except OSError:
            found.add(str(cpu))
    return len(found)


def quota() -> float:
    """Return the CPUs' worth of time that the cgroup may use (cgroup v2); infinite without a limit."""
    limit = math.inf
    with contextlib.suppress(OSError, ValueError):
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
        own = Path(next((line[3:] for line in lines if line.startswith("0::")), "/"))
        for folder in (own, *own.parents):
            path = ROOT / "sys/fs/cgroup" / str(folder).lstrip("/") / "cpu.max"
            if path.exists():
                most, period = path.read_text(encoding="ascii").split()
                limit = min(limit, math.inf if most == "max" else int(most) / int(period))
    return limit


class RankPlan:
    """What to do for the rank that has this environment."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.rank = Rank(environment)
        self.environment = environment
        self.before = os.sched_getaffinity(0)
        self.cpus = self.before
        self.gpu: Gpu | None = None
        self.unbound = ""  # why
        self.gpus: list[Gpu] = []
        try:
            self.bind()
        except UnboundError as reason:
            self.unbound = str(reason)
        except (OSError, ValueError) as error:  # no such file, or another form than expected
            self.unbound = str(error)
        self.ranks = self.rank.ranks or max(1, len(self.gpus))
        self.launcher = self.rank.launcher()
        self.threads = 0 if self.users_own() else self.fitting()  # 0: as they are

    def bind(self) -> None:
        """Find the rank's GPU, and the CPUs beside it. Raises UnboundError, OSError and ValueError."""
        listed = nvidia_smi(f"--query-gpu={QUERY}", "--format=csv,noheader")
        self.gpus = visible(
            [Gpu(line) for line in listed.splitlines() if line.startswith("GPU-")], self.environment
        )
        gpu = own_gpu(self.gpus, self.rank)
        near = beside(gpu) & self.before
        if not near:
            raise UnboundError(f"none of the CPUs {written(self.before)} is beside GPU {gpu.address}")
        self.gpu, self.cpus = gpu, near

    def users_own(self) -> bool:
        """Return whether the user has set the threads.

        Torchrun's own 1 is no user's: it was started without one.
        """
        value = self.environment.get(THREADS)
        if value == "1" and "TORCHELASTIC_RUN_ID" in self.environment:
            with contextlib.suppress(OSError):
                return THREADS in started_with(self.launcher)
        return bool(value)

    def fitting(self) -> int:
        """Return the node's number, but at most the rank's part of its cores, and of a quota."""
        together = self.cpus
        with contextlib.suppress(OSError):
            together = os.sched_getaffinity(self.launcher) | self.cpus
        peers = self.ranks
        if self.gpu and len(self.gpus) >= self.ranks > 1:  # every rank's GPU is known
            with contextlib.suppress(OSError, ValueError):
                near = beside(self.gpu)
                peers = sum(bool(beside(gpu) & near) for gpu in self.gpus[: self.ranks])
                together = together & near | self.cpus
        # A launcher may have bound each rank to CPUs of its own already, which nobody shares.
        sharing = max(1, math.ceil(peers * len(self.cpus) / len(together)))
        most = [cores(self.cpus) // sharing, math.floor(min(quota() / self.ranks, len(self.cpus)))]
        with contextlib.suppress(OSError, ValueError):
            text = (ROOT / "etc/temper/compute.env").read_text(encoding="utf-8")
            most += [int(found) for found in re.findall(rf"^{THREADS}=(\d+)$", text, re.MULTILINE)]
        return max(1, min(most))

    def text(self) -> str:
        """Return one line for the operator."""
        rank = "no rank" if self.rank.number is None else f"rank {self.rank.number} of {self.ranks}"
        bound = f"not bound: {self.unbound}"
        if self.gpu:
            bound = f"GPU {self.gpu.address}, CPUs {written(self.cpus)}"
        threads = self.threads or f"{self.environment.get(THREADS)} (set already)"
        return f"{rank}: {bound}; {THREADS}={threads}"


def say(sentence: str) -> None:
    """Write a line to standard error, if that is possible."""
    with contextlib.suppress(OSError):
        os.write(2, f"temper-rank: {sentence}\n".encode("utf-8", "surrogateescape"))


def prepare(environment: dict[str, str]) -> None:
    """Bind this process, and set the threads in the environment. Says why where it does not bind."""
    plan = RankPlan(environment)
    if plan.threads:
        environment[THREADS] = str(plan.threads)
    if plan.cpus != plan.before:
        os.sched_setaffinity(0, plan.cpus)
    if plan.unbound:
        rank = "" if plan.rank.number is None else f"rank {plan.rank.number}: "
        say(f"{rank}not bound: {plan.unbound}")


def main(arguments: list[str]) -> int:
    """Become the command. Returns where that fails, with the exit status."""
    try:
        environment = started_with("self")  # without the LC_CTYPE that Python adds in a C locale (PEP 538)
    except OSError:
        environment = dict(os.environ)
    if arguments in (["-h"], ["--help"]):
        print(__doc__, end="")
        return 0
    if arguments == ["--print"]:
        print(RankPlan(environment).text())
        return 0
    command = arguments[1:] if arguments[:1] == ["--"] else arguments
    if not command or (command is arguments and command[0].startswith("-")):
        say("expected a command, such as `temper-rank python3 train.py`, or --print, or --help")
        return 2
    try:
        prepare(environment)
    except Exception as error:  # noqa: BLE001 - whatever it is, it must not keep the job from starting
        say(f"not bound: {error!r}")
    for name in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and the command would inherit that
        signal.signal(name, signal.SIG_DFL)
    try:
        os.execvpe(command[0], command, environment)  # noqa: S606 - that is what it is for
    except (FileNotFoundError, NotADirectoryError):
        say(f"{command[0]}: no such command")
        return 127
    except OSError as error:
        say(f"{command[0]}: {error.strerror}")
        return 126


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
