"""Who has a GPU's device files open: what keeps the driver from being unloaded, computing or idle."""

from __future__ import annotations

import re
import typing
from pathlib import Path

PROC = Path("/proc")
DEVICE = re.compile(r"/dev/nvidia(\d+|ctl|-uvm|-modeset|-caps/|-nvswitch)")
# The last part of a control group: "docker-0123….scope", "crio-0123….scope", "0123…" under /docker or
# kubepods.
CONTAINER = re.compile(
    r"(?:(?P<engine>docker|cri-containerd|crio|libpod)[-/])?(?P<id>[0-9a-f]{64})(?:\.scope)?"
)
SERVICE = re.compile(r"/([^/]+\.service)(?:/|$)")


class Holder(typing.NamedTuple):
    """A process with a GPU's device files, and its container's short id or its systemd service, if any."""

    pid: int
    name: str
    devices: list[str]
    container: str
    unit: str

    def __str__(self) -> str:
        whose = f"container {self.container}" if self.container else self.unit
        return (
            f"{self.name} (process {self.pid}{f', {whose}' if whose else ''}) holds {', '.join(self.devices)}"
        )


def holders(proc: Path = PROC) -> list[Holder]:
    """All of them. A process that ends meanwhile, or that may not be looked at, is left out."""
    found = []
    for entry in proc.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            devices = sorted({str(target) for target in _targets(entry / "fd") if DEVICE.match(str(target))})
            if devices:
                name = (entry / "comm").read_text(encoding="utf-8", errors="replace").strip()
                container, unit = belongs_to((entry / "cgroup").read_text(encoding="utf-8", errors="replace"))
                found.append(Holder(int(entry.name), name, devices, container, unit))
        except OSError:
            continue
    return sorted(found)


def belongs_to(cgroup: str) -> tuple[str, str]:
    """The container (short id) and the systemd service of a process, from its /proc/PID/cgroup."""
    container = CONTAINER.search(cgroup)
    service = SERVICE.search(cgroup.strip().splitlines()[-1]) if cgroup.strip() else None
    return container["id"][:12] if container else "", service[1] if service else ""


def _targets(directory: Path) -> list[Path]:
    found = []
    for link in directory.iterdir():
        try:
            found.append(link.readlink())
        except OSError:
            continue  # it was closed
    return found
