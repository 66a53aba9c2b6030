"""Control groups: one for every node in every hierarchy, so that nodes never share their units' groups.

They are also how the lab finds and ends its processes: what runs in a node's group, and nothing else, is the
node's.
"""

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.lab.process import LabError

ROOT = "temper-lab"
#: All labs together would weigh as one process of this machine does (version 1's setting and version 2's).
WEIGHTS = {"cpu.shares": "10240", "cpu.weight": "1000"}


@dataclass(frozen=True)
class Group:
    """A control group named by its path below every hierarchy's root, as temper-lab/LAB/NODE."""

    path: str

    def create(self) -> list[Path]:
        """Create it in every hierarchy; return its cgroup.procs files."""
        files = []
        for hierarchy in _hierarchies():
            directory = hierarchy
            for part in Path(self.path).parts:
                _offer_controllers(directory)
                parent, directory = directory, directory / part
                directory.mkdir(exist_ok=True)
                # A new group of version 1's cpuset controller takes no process before it has CPUs and memory.
                for setting in ("cpuset.cpus", "cpuset.mems"):
                    file = directory / setting
                    if (directory / "cpuset.sched_load_balance").exists() and not file.read_text().strip():
                        file.write_text((parent / setting).read_text())
                if part == ROOT:
                    for setting, weight in WEIGHTS.items():
                        if (directory / setting).exists():
                            (directory / setting).write_text(weight)
            files.append(directory / "cgroup.procs")
        return files

    def command(self, command: Sequence[str]) -> list[str]:
        """Create the group; return the command line that enters it and becomes `command`."""
        files = " ".join(map(str, self.create()))
        enter = 'for file in $1; do echo $$ >"$file"; done; shift; exec "$@"'
        return ["sh", "-eu", "-c", enter, "enter-group", files, *command]

    def processes(self) -> set[int]:
        """Ids of all processes in it and below. One hierarchy tells: they enter the group in all of them."""
        found: set[int] = set()
        for directory in self._directories(_hierarchies()[0]):
            # A group may vanish while we read.
            with contextlib.suppress(OSError):
                found.update(int(line) for line in (directory / "cgroup.procs").read_text().split())
        return found

    def kill(self, timeout_s: float = 20) -> None:
        """End every process in it at once, then remove it.

        Raises:
            LabError: some process did not end in time.
        """
        deadline = time.monotonic() + timeout_s
        while processes := self.processes():
            for process in processes:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            if time.monotonic() > deadline:
                raise LabError(f"Processes of {self.path} do not end: {sorted(processes)}.")
            time.sleep(0.01)
        for hierarchy in _hierarchies():
            for directory in self._directories(hierarchy):
                _remove(directory, deadline)

    def memory_bytes(self) -> int | None:
        """Memory in use, with caches that belong to the group; None if the host does not account for it."""
        for hierarchy in _hierarchies():
            for name in ("memory.usage_in_bytes", "memory.current"):
                file = hierarchy / self.path / name
                if file.exists():
                    return int(file.read_text())
        return None

    def _directories(self, hierarchy: Path) -> list[Path]:
        """Every directory of the group in a hierarchy, the deepest first."""
        return [Path(directory) for directory, _, _ in os.walk(hierarchy / self.path, topdown=False)]


def children(path: str) -> list[str]:
    """Names of the groups directly below a path, in any hierarchy."""
    found: set[str] = set()
    for hierarchy in _hierarchies():
        with contextlib.suppress(FileNotFoundError):
            found.update(entry.name for entry in (hierarchy / path).iterdir() if entry.is_dir())
    return sorted(found)


def remove_if_empty(path: str) -> None:
    """Remove a group that has no groups below it and no processes."""
    for hierarchy in _hierarchies():
        with contextlib.suppress(OSError):
            (hierarchy / path).rmdir()


def _hierarchies() -> list[Path]:
    """Where the hierarchies are mounted: one (version 2), or one for each controller or few (version 1)."""
    mounts = (line.split() for line in Path("/proc/self/mounts").read_text().splitlines())
    return [Path(mount[1]) for mount in mounts if mount[2] in ("cgroup", "cgroup2")]


def _offer_controllers(directory: Path) -> None:
    """Let groups below this one use its controllers (version 2 only)."""
    control = directory / "cgroup.subtree_control"
    if not control.exists():
        return
    wanted = set((directory / "cgroup.controllers").read_text().split()) - set(control.read_text().split())
    for controller in wanted:
        # Some (cpu with realtime processes, for one) may be refused; the lab works without.
        with contextlib.suppress(OSError):
            control.write_text(f"+{controller}")


def _remove(directory: Path, deadline: float) -> None:
    """Remove an empty group; it may stay busy for a moment after its last process has ended."""
    while True:
        try:
            directory.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return
