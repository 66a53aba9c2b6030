"""Which settings this node has, their values at the start, and what is tried in their place."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from validation.autotune import clocks
from validation.autotune.between import Group
from validation.autotune.search import Knob
from validation.checks.loading import worker_counts
from validation.checks.node import Node

#: Objectives: a training step (step.py) on the CPU and on all GPUs, and checks of the payload.
TRAINING, GPU_TRAINING = "cpu_training", "gpu_training"
LOADING, SOCKETS, STORAGE = "data_loading", "gpu_all_reduce", "storage_read"
#: An all-reduce between nodes (between.py), for the knobs that are tuned by several nodes together.
FABRIC = "fabric_all_reduce"
INTERFACE = "nccl_socket_ifname"
SHARED = (INTERFACE, "nccl_sockets")
#: A value that leaves a variable as it is without any setting.
UNSET = ""
#: NCCL_SOCKET_NTHREADS x NCCL_NSOCKS_PERTHREAD: helper threads of each socket connection, and sockets of each
#: of them; their product may be 64 at most (NCCL's user guide, environment variables).
SOCKET_CANDIDATES = ("1x2", "2x2", "4x1", "4x4", "2x8")
#: KiB. 128 is the kernel's default; what file systems on arrays and network storage advise goes up to 16 MiB.
READ_AHEAD_CANDIDATES = ("128", "512", "1024", "4096", "16384")
#: `efficient` is slower on purpose.
CLOCKS_CANDIDATES = ("max", "default")


@dataclass(frozen=True)
class Setup:
    """What a search is made for: the node, and a folder or file to read from, if one was named.

    `group`: the nodes that it is tuned together with, if any.
    """

    node: Node
    storage: Path | None = None
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    root: Path = Path("/")
    group: Group | None = None

    @property
    def processes(self) -> int:
        """How many processes a job has here: one for each GPU, as torchrun and MPI start it."""
        return max(1, len(self.node.gpus))

    @property
    def cpus_each(self) -> int:
        """How many CPUs each of them has for itself."""
        return max(1, self.node.cpus // self.processes)

    @property
    def read_ahead(self) -> Path | None:
        """The kernel's file for the read-ahead of the device under `storage`, None where it has none."""
        return read_ahead_file(self.storage, self.root) if self.storage else None

    def changed_by(self, knob: str) -> Path | None:
        """Return what trials of a knob change on the node, as the journal names it.

        None where that is nothing.
        """
        if knob == "read_ahead_kb":
            return self.read_ahead
        return clocks.settings_file(self.root) if knob == "gpu_clocks" else None


@dataclass(frozen=True)
class KnobKind:
    """A kind of knob: what it sets, and for a setup the knob, or a sentence why there is none.

    `variable` is the role variable that takes its value; empty where a job has to set it itself. One that is
    `only_named` is tried where the operator names it.
    """

    name: str
    sets: str
    variable: str
    make: Callable[[Setup], Knob | str]
    only_named: bool = False


def _threads(setup: Setup) -> Knob | str:
    most = setup.cpus_each
    counts = sorted({1 << power for power in range(most.bit_length())} | {most})
    return _knob(
        "omp_num_threads", TRAINING, setup.environment.get("OMP_NUM_THREADS", UNSET), map(str, counts)
    )


def _binding(setup: Setup) -> Knob | str:
    if setup.node.cpus < 2:
        return "threads are bound to one of several CPUs, and this node has one"
    start = setup.environment.get("OMP_PROC_BIND", UNSET)
    return _knob("omp_proc_bind", TRAINING, start, ("close", "spread"))


def _workers(setup: Setup) -> Knob | str:
    return _knob("loader_workers", LOADING, "0", map(str, worker_counts(setup.cpus_each)))


def _pinning(setup: Setup) -> Knob | str:
    if reason := setup.node.why_no_cuda():
        return f"memory is pinned for copies to a GPU, and none can be measured: {reason}"
    return _knob("loader_pin_memory", LOADING, "no", ("yes",))


def _interface(setup: Setup) -> Knob | str:
    if setup.group is None:
        return "an interface is measured between nodes, which playbooks/autotune.yml does where it is named"
    return _knob(INTERFACE, FABRIC, setup.group.start, setup.group.choices)


def _sockets(setup: Setup) -> Knob | str:
    if reason := setup.node.why_no_cuda():
        return f"NCCL needs GPUs, and none can be measured: {reason}"
    if setup.group and setup.group.order.library != "nccl":
        return f"the nodes measure with {setup.group.order.library}, which does not have them"
    if setup.group is None and len(setup.node.gpus) < 2:
        return "NCCL's sockets join two GPUs or more, and this node has one"
    threads = setup.environment.get("NCCL_SOCKET_NTHREADS")
    sockets = setup.environment.get("NCCL_NSOCKS_PERTHREAD")
    start = f"{threads or 1}x{sockets or 1}" if threads or sockets else UNSET
    return _knob("nccl_sockets", FABRIC if setup.group else SOCKETS, start, SOCKET_CANDIDATES)


def _read_ahead(setup: Setup) -> Knob | str:
    if setup.storage is None:
        return "no folder or file to read from was named (--storage, autotune_storage_path)"
    file = setup.read_ahead
    if file is None:
        return f"{setup.storage} is on no device of which the kernel shows a read-ahead"
    if not os.access(file, os.W_OK):
        return f"{file} may not be written by this user: run it as root, outside of a container"
    return _knob("read_ahead_kb", STORAGE, file.read_text().strip(), READ_AHEAD_CANDIDATES)


def _clocks(setup: Setup) -> Knob | str:
    if reason := setup.node.why_no_cuda():
        return f"clocks are measured on GPUs, and none can be: {reason}"
    file = clocks.settings_file(setup.root)
    if not file.exists():
        return f"{file} is not there: role gpu_settings has not set this node's GPUs"
    if not os.access(file, os.W_OK):
        return f"{file} may not be written by this user: run it as root"
    try:
        return _knob("gpu_clocks", GPU_TRAINING, clocks.in_force(file), CLOCKS_CANDIDATES)
    except clocks.ClocksError as error:
        return str(error)


def _knob(name: str, objective: str, start: str, candidates: Iterable[str]) -> Knob | str:
    """Return a knob without the start among its candidates; a sentence where nothing else is left."""
    others = tuple(value for value in candidates if value != start)
    return Knob(name, objective, start, others) if others else f"there is nothing to try beside {start}"


#: All kinds, in the order in which they are tuned: binding is tried with the threads that were found.
KINDS = {
    kind.name: kind
    for kind in (
        KnobKind(
            "omp_num_threads",
            "threads of each process (OMP_NUM_THREADS)",
            "compute_environment_omp_num_threads",
            _threads,
        ),
        KnobKind("omp_proc_bind", "how threads are bound to cores (OMP_PROC_BIND)", "", _binding),
        KnobKind("loader_workers", "num_workers of a DataLoader", "", _workers),
        KnobKind("loader_pin_memory", "pin_memory of a DataLoader", "", _pinning),
        KnobKind(
            INTERFACE,
            "interface of NCCL's sockets (NCCL_SOCKET_IFNAME)",
            "compute_environment_nccl_socket_ifname",
            _interface,
            only_named=True,
        ),
        KnobKind(
            "nccl_sockets", "NCCL_SOCKET_NTHREADS x NCCL_NSOCKS_PERTHREAD of NCCL's TCP sockets", "", _sockets
        ),
        KnobKind("gpu_clocks", "clocks of the GPUs", "gpu_settings_clocks", _clocks, only_named=True),
        KnobKind("read_ahead_kb", "read-ahead of the device under --storage, in KiB", "", _read_ahead),
    )
}


def environment_of(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a process with these values of knobs.

    Those that are unset are left as they are.
    """
    found = {}
    if threads := settings.get("omp_num_threads"):
        found["OMP_NUM_THREADS"] = threads
    if binding := settings.get("omp_proc_bind"):
        found["OMP_PROC_BIND"] = binding
        if binding in {"close", "spread"}:
            found["OMP_PLACES"] = "cores"
    if sockets := settings.get("nccl_sockets"):
        found["NCCL_SOCKET_NTHREADS"], _, found["NCCL_NSOCKS_PERTHREAD"] = sockets.partition("x")
    return found


def read_ahead_file(path: Path, root: Path = Path("/")) -> Path | None:
    """Return the file with the read-ahead of the device that a path is on; None where there is none.

    A file system on a partition is read with the read-ahead of its disk. NFS has a number of its own, which
    /sys/class/bdi shows. btrfs shows its own under a name that says nothing of the path (btrfs-1): none.
    """
    try:
        device = path.stat().st_dev
    except OSError:
        return None
    number = f"{os.major(device)}:{os.minor(device)}"
    block = root / "sys/dev/block" / number
    places = [root / "sys/class/bdi" / number / "read_ahead_kb", block / "queue/read_ahead_kb"]
    if block.exists():  # a link to the disk's folder, or to the partition's within that
        places.append(block.resolve().parent / "queue/read_ahead_kb")
    return next((place for place in places if place.is_file()), None)
