"""NUMA: which node a device hangs on, which one is farthest from it, and binding a process to a node."""

from __future__ import annotations

import ctypes
import os
import platform
import re
from pathlib import Path

from validation.probes.machine import cpu_list, text_at

NODES = "sys/devices/system/node"
#: The number of the system call set_mempolicy (asm/unistd_64.h, asm-generic/unistd.h): glibc has no function.
SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}
MPOL_BIND = 2  # linux/mempolicy.h


def node_of(pci_address: str, root: Path = Path("/")) -> int | None:
    """Return the node of a PCI device, None where the firmware does not say."""
    return _number(text_at(root / "sys/bus/pci/devices" / pci_address / "numa_node"))  # -1: unknown


def farthest(pci_address: str, root: Path = Path("/")) -> int | None:
    """Return the node farthest from a PCI device, None if there is no other or nobody says which is near."""
    near = node_of(pci_address, root)
    return None if near is None else farthest_from(near, root)


def farthest_from(node: int, root: Path = Path("/")) -> int | None:
    """Of the other nodes with CPUs and memory the one at the largest distance; None without another."""
    row = text_at(root / NODES / f"node{node}/distance").split()
    others = {
        other: distance
        for other, word in zip(_online(root), row, strict=False)  # a row has the nodes in their order
        if other != node and (distance := _number(word)) is not None and _is_whole(other, root)
    }
    return max(others, key=lambda other: others[other]) if others else None


def bind(node: int, root: Path = Path("/")) -> str | None:
    """Let this process run and allocate on one node only; why that cannot be done, None if it is."""
    cpus = set(cpu_list(text_at(root / NODES / f"node{node}/cpulist"))) & os.sched_getaffinity(0)
    if not cpus:
        return f"this process may not run on NUMA node {node}"
    number = SET_MEMPOLICY.get(platform.machine())
    if number is None:
        return f"no memory policy is known for {platform.machine()}"
    mask = (ctypes.c_ulong * 16)()
    mask[node // 64] = 1 << node % 64
    libc = ctypes.CDLL(None, use_errno=True)
    # The kernel looks at one bit less than it is told (mm/mempolicy.c, get_nodes).
    if libc.syscall(ctypes.c_long(number), MPOL_BIND, mask, ctypes.c_ulong(16 * 64)) != 0:
        return f"memory cannot be bound to NUMA node {node}: {os.strerror(ctypes.get_errno())}"
    os.sched_setaffinity(0, cpus)
    return None


def _online(root: Path) -> list[int]:
    numbers = (_number(path.name.removeprefix("node")) for path in (root / NODES).glob("node[0-9]*"))
    return sorted(number for number in numbers if number is not None)


def _number(text: str) -> int | None:
    """Return a number as the kernel writes it; None for anything else."""
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else None


def _is_whole(node: int, root: Path) -> bool:
    has_memory = node in cpu_list(text_at(root / NODES / "has_memory"))
    return has_memory and bool(text_at(root / NODES / f"node{node}/cpulist"))
