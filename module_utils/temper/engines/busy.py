"""Which containers have a GPU: engine-independent, from what the kernel shows of their processes."""

from __future__ import annotations

import re
import typing
from pathlib import Path

from ansible.module_utils.temper.driver.holders import gpu_files, identity
from ansible.module_utils.temper.process import process_name

PROC = Path("/proc")
NAMED = 5
# Control groups as docker, containerd, CRI-O, podman and Kubernetes name them.
CONTAINER_GROUP = re.compile(
    r"/(docker|cri-containerd|crio|libpod|containerd|buildkit|kubepods)[-:/.]|/[0-9a-f]{64}(\.scope)?$"
)
# snapd gives each program its own root with the host's /dev in it, and says elsewhere what it may open there.
SNAP = re.compile(r"/snap\.[^/]+(/|$)")


class GpuProcess(typing.NamedTuple):
    """One process in a container that has a GPU."""

    pid: int
    name: str

    def __str__(self) -> str:
        return f"{self.name} (process {self.pid})"


def gpu_processes() -> list[GpuProcess]:
    """Return processes in containers with a GPU, whether they use it at this moment or not.

    A container shows itself by a root directory other than ours; one with a GPU by the device files in it.
    nvidia-smi would miss those that are idle. A container that hides its device files (a sandbox of its own)
    still has them open. A snap sees the host's device files, whether or not it may open one: one counts that
    has a GPU open.
    """
    own = identity(PROC / "self" / "root")
    found = []
    for entry in PROC.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if _has_gpu(entry, own):
                found.append(GpuProcess(int(entry.name), process_name(entry)))
        except OSError:
            continue  # it has ended, or is none of a container's: kernel threads have no root
    return sorted(found)


def containers_with_gpus() -> str:
    """Return a clause on containers with GPUs and some of their processes; empty where none run."""
    processes = gpu_processes()
    if not processes:
        return ""
    shown = ", ".join(map(str, processes[:NAMED])) + (" ..." if len(processes) > NAMED else "")
    return f"containers with a GPU are running ({shown})"


def _has_gpu(process: Path, own_root: tuple[int, int]) -> bool:
    root, group = process / "root", (process / "cgroup").read_text(errors="replace").strip()
    confined = bool(SNAP.search(group)) and not CONTAINER_GROUP.search(group)
    if not confined and identity(root) != own_root and gpu_files(root / "dev", whole=True):
        return True
    if not confined and not CONTAINER_GROUP.search(group):
        return False
    return any(link.startswith("/dev/nvidia") for link in map(_target, (process / "fd").iterdir()))


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:
        return ""
