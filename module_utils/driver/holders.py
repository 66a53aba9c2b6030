"""Who has a GPU's device files open: what keeps the driver from being unloaded, computing or idle."""

from __future__ import annotations

import contextlib
import os
import re
import typing
from pathlib import Path

if typing.TYPE_CHECKING:
    from collections.abc import Collection

PROC = Path("/proc")
# No other names: in a namespace of its own, a user has files in /dev, with any names.
DEVICE = re.compile(
    r"/dev/nvidia(\d{1,4}|ctl|-uvm(-tools)?|-modeset|-caps/nvidia-cap\d{1,4}|-nvswitch(\d{1,4}|ctl))"
)
CAPABILITIES = "/dev/nvidia-caps/"
UVM = "/dev/nvidia-uvm"  # CUDA opens it, monitoring does not
MINOR = re.compile(r"^Device Minor:\s*(\d+)", re.MULTILINE)
# The last part of a control group: "docker-0123….scope", "crio-0123….scope", "0123…" under /docker or
# kubepods.
CONTAINER = re.compile(
    r"(?:(?P<engine>docker|cri-containerd|crio|libpod)[-/])?(?P<id>[0-9a-f]{64})(?:\.scope)?"
)
# Below slices alone, as for services.
POD = re.compile(r"^[0-9]*:[^:\n]*:/(?:[^/\n]+\.slice/)*[^/\n]*kubepods", re.MULTILINE)
# The first part of a control group that is no slice is systemd's own. What is below belongs to the service or
# container, or its user, and may have any name.
SERVICE = re.compile(r"[0-9]*:[^:]*:/(?:[^/]+\.slice/)*([^/]+\.service)(?:/|$)")
# They keep GPUs open for as long as they run, and let go by themselves where the driver needs that
# (NVIDIA/deepops#633).
DAEMONS = ("nvidia-persistenced.service", "nvidia-fabricmanager.service")


class Holder(typing.NamedTuple):
    """A process with a GPU's device files, and its container's short id or its systemd service, if any.

    `in_pod`: its container is of a pod of Kubernetes.
    """

    pid: int
    name: str
    devices: list[str]
    container: str
    unit: str
    in_pod: bool = False

    def __str__(self) -> str:
        whose = f"container {self.container}" if self.container else self.unit
        return (
            f"{self.name} (process {self.pid}{f', {whose}' if whose else ''}) holds {', '.join(self.devices)}"
        )


def holders(
    proc: Path | None = None, uuid: str = "", ignore: Collection[str] = (), computing: bool = False
) -> list[Holder]:
    """All, or those of one GPU; without the services to ignore; or those that compute and not only watch.

    A process that ends meanwhile, or that may not be looked at, is left out.
    """
    proc = proc or PROC
    device = device_of(uuid, proc) if uuid else None
    return [
        one
        for one in every_holder(proc)
        if one.unit not in ignore
        and (not computing or UVM in one.devices)
        # Whose the files of MIG instances are cannot be seen from here.
        and (not device or any(name == device or name.startswith(CAPABILITIES) for name in one.devices))
    ]


def device_of(uuid: str, proc: Path) -> str:
    """The device file of a GPU. Its number is the driver's, which need not be nvidia-smi's index."""
    for path in proc.glob("driver/nvidia/gpus/*/information"):
        text = path.read_text(encoding="utf-8", errors="replace")
        if uuid in text and (number := MINOR.search(text)):
            return f"/dev/nvidia{number[1]}"
    return ""


def every_holder(proc: Path) -> list[Holder]:
    """Whoever has any of these files open."""
    found = []
    for entry in proc.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            devices = sorted({target for target in _targets(entry / "fd") if DEVICE.fullmatch(target)})
            if devices:
                name = (entry / "comm").read_text(encoding="utf-8", errors="replace")
                name = "".join(one if one.isprintable() else "?" for one in name.rstrip("\n"))
                # Read as text, a carriage return in the name of a group would be a line feed.
                cgroup = (entry / "cgroup").read_bytes().decode(errors="replace")
                found.append(
                    Holder(int(entry.name), name, devices, *belongs_to(cgroup), bool(POD.search(cgroup)))
                )
        except OSError:
            continue
    return sorted(found)


def belongs_to(cgroup: str) -> tuple[str, str]:
    """The container (short id) and the systemd service of a process, from its /proc/PID/cgroup."""
    container = CONTAINER.search(cgroup)
    service = SERVICE.match(cgroup.rstrip("\n").rpartition("\n")[2])
    return container["id"][:12] if container else "", service[1] if service else ""


def _targets(directory: Path) -> typing.Iterator[str]:
    """What the links in a folder lead to, one at a time: a process may have a million files open."""
    with os.scandir(directory) as links:
        for link in links:
            with contextlib.suppress(OSError):  # it was closed
                yield os.readlink(link.path).removesuffix(" (deleted)")  # noqa: PTH115 - of a million
