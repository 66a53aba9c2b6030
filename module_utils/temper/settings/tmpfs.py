"""How much a file system in memory may hold, now. What sets it at boot is another setting."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ansible.module_utils.temper.mounts import mounts
from ansible.module_utils.temper.process import run
from ansible.module_utils.temper.settings.base import Difference, Setting, SettingError, State

MEMINFO = Path("/proc/meminfo")
GIB = 2**30
UNITS = {"M": 2**20, "G": GIB, "T": 2**40}
#: The kernel counts in pages, of the memory that it had when it was asked: to a part of the size.
TOLERANCE = 0.01


def size_bytes(size: str, memory_bytes: int) -> int:
    """`75%` of the memory, or `512G`, in bytes. Raises ValueError for what is neither."""
    match = re.fullmatch(r"(\d+)([%MGT])", size)
    if not match:
        raise ValueError(f"expected a percentage such as 75%, or a size such as 512G, found {size!r}")
    number, unit = int(match[1]), match[2]
    return memory_bytes * number // 100 if unit == "%" else number * UNITS[unit]


def memory_bytes() -> int:
    """Return the memory of this machine, as the kernel counts it."""
    match = re.search(r"^MemTotal:\s+(\d+) kB", MEMINFO.read_text(encoding="utf-8"), re.MULTILINE)
    return int(match[1]) * 1024 if match else 0


class TmpfsSize(Setting):
    """The size of a tmpfs that is mounted. A folder that is none is settled."""

    of_others = True
    why_absent = "it is no file system in memory"

    def __init__(self, path: str, size: str) -> None:
        self.key = f"tmpfs:{path}"
        self.spec = {"path": path, "size": size}
        self.path = path
        self.size = size

    def read(self) -> State:
        """Return its size in bytes, None where no tmpfs is mounted there."""
        if self._flags() is None:
            return None
        status = os.statvfs(self.path)
        return status.f_blocks * status.f_frsize

    def settled(self) -> bool:
        """Return whether it has the size, to a hundredth."""
        state = self.read()
        return state is None or abs(state - self.wanted) <= self.wanted * TOLERANCE

    @property
    def wanted(self) -> int:
        """The size in bytes."""
        return size_bytes(self.size, memory_bytes())

    def obstacle(self) -> str | None:
        """Return whether more is in it than it is to hold, which the kernel would refuse."""
        used = self._used()
        if used <= self.wanted:
            return None
        return (
            f"{self.path} holds {used / GIB:.1f} GiB, more than os_tuning_shm: {self.size} allows; "
            "end what keeps it there, or allow more"
        )

    def apply(self) -> None:
        """Set it, without touching what is in it."""
        self._remount(self.size)

    def restore(self, state: State) -> None:
        """Return to the former size in bytes; 0 is none at all (tmpfs(5))."""
        if state is None or self.read() in (None, state):
            return
        if 0 < state < (used := self._used()):
            raise SettingError(
                f"{self.path} holds {used / GIB:.1f} GiB, more than the {state / GIB:.1f} GiB that it had "
                "before os_tuning_shm; end what keeps it there, and run again."
            )
        self._remount(f"{state // 1024}k")

    def change(self) -> list[Difference]:
        """Return the sizes."""
        return [Difference(self.key, f"{self.read() / GIB:.1f} GiB", f"{self.wanted / GIB:.1f} GiB")]

    def _used(self) -> int:
        """Return what is in it, in bytes."""
        status = os.statvfs(self.path)
        return (status.f_blocks - status.f_bfree) * status.f_frsize

    def _flags(self) -> str | None:
        """Return the mount point's options, which a change of the size must keep; None for no tmpfs."""
        found = [one.options for one in mounts() if (one.point, one.kind) == (self.path, "tmpfs")]
        return found[-1] if found else None

    def _remount(self, size: str) -> None:
        # With source and target named, mount takes nothing from /etc/fstab.
        run(["mount", "--options", f"remount,{self._flags()},size={size}", "tmpfs", self.path])
