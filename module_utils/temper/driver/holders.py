"""Who has a GPU: programs that have its device files open, virtual machines, containers that hold it idle."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import stat
import typing
from pathlib import Path

if typing.TYPE_CHECKING:
    from collections.abc import Collection, Mapping

PROC = Path("/proc")
SYS = Path("/sys")
NVIDIA = "0x10de"
# No other names: in a namespace of its own, a user has files in /dev, with any names.
DEVICE = re.compile(
    r"/dev/nvidia(\d{1,4}|ctl|-uvm(-tools)?|-modeset|-caps/nvidia-cap\d{1,4}"
    r"|-caps-imex-channels/channel\d{1,4}|-nvswitch(\d{1,4}|ctl))"
)
# The same in a folder that somebody has changed his root to, or bound it into.
ELSEWHERE = re.compile(rf"/.+({DEVICE.pattern})")
#: Far more than any machine has in /dev.
MOST_DEVICES = 100_000
# In the /dev of who has all of the host's, GPUs among it: a privileged container, a snap, a chroot.
WHOLE = ("/dev/mem", "/dev/kmsg")
RENDER = "/dev/dri/renderD"
CARD = "/dev/dri/card"  # who draws on a display has it
CAPABILITIES = "/dev/nvidia-caps/"
UVM = "/dev/nvidia-uvm"  # CUDA opens it, monitoring does not
VFIO = "/dev/vfio/"
# A device file by which a virtual machine has the devices of an IOMMU group.
GROUP = re.compile(r"/dev/vfio/(?:noiommu-)?(\d+)")
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
# These are the driver's own, too, and end with it.
SERVICES = (
    *DAEMONS,
    "nvidia-dcgm.service",
    "dcgm-exporter.service",
    "nvidia-dcgm-exporter.service",
    "nvidia-imex.service",
)


class Holder(typing.NamedTuple):
    """A process with a GPU's device files, and its container's short id or its systemd service, if any.

    `in_pod`: its container is of a pod of Kubernetes. `gpus` are what files of /dev/vfio and /dev/dri lead
    to: PCI addresses, each with the driver that has the device. `idle`: its container has been given them,
    and none of its processes has any open.
    """

    pid: int
    name: str
    devices: list[str]
    container: str
    unit: str
    in_pod: bool = False
    gpus: list[str] = []  # noqa: RUF012 - nobody changes it
    idle: bool = False

    @property
    def computes(self) -> bool:
        """Whether it would lose work: CUDA, a virtual machine, rendering without a display, a container.

        To watch GPUs or to draw on a display is none. Of pods, device plugins and exporters are idle, too.
        """
        return (
            UVM in self.devices
            or self.has(VFIO)
            or (self.has(RENDER) and not self.has(CARD))
            or (self.idle and not self.in_pod)
        )

    def has(self, prefix: str) -> bool:
        """Return whether it has a file of this kind."""
        return any(name.startswith(prefix) for name in self.devices)

    def __str__(self) -> str:
        whose = f"container {self.container}" if self.container else self.unit
        gpus = f" ({'; '.join(self.gpus)})" if self.gpus else ""
        return (
            f"{self.name} (process {self.pid}{f', {whose}' if whose else ''}) holds {'idle ' * self.idle}"
            f"{', '.join(self.devices)}{gpus}"
        )


def holders(
    proc: Path | None = None,
    uuid: str = "",
    ignore: Collection[str] = (),
    computing: bool = False,
    sysfs: Path | None = None,
) -> list[Holder]:
    """Return who holds a GPU, or the one with `uuid`, without the services to `ignore`.

    `computing`: only those that compute, not those that watch.

    A process that ends meanwhile, or that may not be looked at, is left out.
    """
    proc = proc or PROC
    address, device = gpu_of(uuid, proc) if uuid else ("", "")
    return [
        one
        for one in every_holder(proc, sysfs or SYS)
        if one.unit not in ignore
        and (not computing or one.computes)
        # Whose the files of MIG instances are cannot be seen from here.
        and (
            not device
            or any(name == device or name.startswith(CAPABILITIES) for name in one.devices)
            or any(gpu.startswith(address) for gpu in one.gpus)
        )
    ]


def gpu_of(uuid: str, proc: Path) -> tuple[str, str]:
    """Return the PCI address and the device file of a GPU; empty where the driver does not know it.

    The file's number is the driver's, which need not be nvidia-smi's index.
    """
    for path in proc.glob("driver/nvidia/gpus/*/information"):
        text = path.read_text(encoding="utf-8", errors="replace")
        if uuid in text and (number := MINOR.search(text)):
            return path.parent.name, f"/dev/nvidia{number[1]}"
    return "", ""


def other_files(sysfs: Path) -> dict[str, str]:
    """Device files of /dev/vfio and /dev/dri that lead to NVIDIA's devices: each device's address and driver.

    A group of IOMMU that has other devices besides is named by NVIDIA's first one. The virtual GPUs that a
    GPU is divided into (mdev) are below it.
    """
    found: dict[str, str] = {}
    for device in sorted((sysfs / "bus/pci/devices").glob("*")):
        try:
            vendor = (device / "vendor").read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            continue  # it was unplugged
        if vendor != NVIDIA:
            continue
        driver = target_name(device / "driver")
        label = f"{device.name}{f', driver {driver}' if driver else ''}"
        for link in (device / "iommu_group", *device.glob("*/iommu_group")):
            if group := target_name(link):
                found.setdefault(f"{VFIO}{group}", label)
                found.setdefault(f"{VFIO}noiommu-{group}", label)
        for one in (*device.glob("vfio-dev/vfio*"), *device.glob("*/vfio-dev/vfio*")):
            found.setdefault(f"{VFIO}devices/{one.name}", label)
        found.update({f"/dev/dri/{one.name}": label for one in device.glob("drm/*[0-9]")})
    return found


def target_name(link: Path) -> str:
    """Return the last part of where a link of sysfs leads, as of a device's driver; empty without one."""
    try:
        return link.readlink().name
    except OSError:
        return ""


def is_held(path: str, others: Mapping[str, str], sysfs: Path) -> bool:
    """Return whether an open file is a way to a GPU.

    An IOMMU group counts as a GPU's where the kernel does not say otherwise.
    """
    if DEVICE.fullmatch(path) or path in others:
        return True
    group = GROUP.fullmatch(path)
    return bool(group and not (sysfs / "kernel/iommu_groups" / group[1]).exists())


def every_holder(proc: Path, sysfs: Path) -> list[Holder]:
    """Return all who have these files open, and one process of each container that was only given some."""
    found: list[Holder] = []
    idle: dict[tuple[int, int], Holder] = {}
    active: set[tuple[int, int]] = set()
    others = other_files(sysfs)
    own = _identity(proc / "self/root")
    processes = (entry for entry in proc.glob("[0-9]*") if entry.name.isdecimal())
    for entry in sorted(processes, key=lambda one: int(one.name)):
        try:
            devices = sorted(set(_devices(entry, others, sysfs)))
            root = _identity(entry / "root") if own else None
            if devices:
                found.append(_holder(entry, devices, others))
                active.add(root or (0, 0))
            elif root and root != own and root not in idle and (given := gpu_files(entry / "root/dev")):
                idle[root] = _holder(entry, given, others)._replace(idle=True)
        except OSError:
            continue
    return sorted([*found, *(one for root, one in idle.items() if root not in active)])


def _holder(process: Path, devices: list[str], others: Mapping[str, str]) -> Holder:
    name = (process / "comm").read_text(encoding="utf-8", errors="replace")
    name = "".join(one if one.isprintable() else "?" for one in name.rstrip("\n"))
    # Read as text, a carriage return in the name of a group would be a line feed.
    cgroup = (process / "cgroup").read_bytes().decode(errors="replace")
    gpus = sorted({others[one] for one in devices if one in others})
    return Holder(int(process.name), name, devices, *belongs_to(cgroup), bool(POD.search(cgroup)), gpus)


def _devices(process: Path, others: Mapping[str, str], sysfs: Path) -> typing.Iterator[str]:
    """Return the ways to a GPU that a process has open, by their names in its own root."""
    empty = True
    for link, path in _targets(process / "fd"):
        empty = False
        if is_held(path, others, sysfs):
            yield path
        elif (elsewhere := ELSEWHERE.fullmatch(path)) and _is_device(link):
            yield elsewhere[1]
    if not empty:
        return
    # A first thread that has ended shows none, whatever the others go on with.
    for thread in (process / "task").glob("[0-9]*"):
        if thread.name != process.name:
            yield from (path for _, path in _targets(thread / "fd") if is_held(path, others, sysfs))


def _is_device(link: str) -> bool:
    try:
        return stat.S_ISCHR(os.stat(link).st_mode)  # noqa: PTH116 - of a million
    except OSError:
        return False


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        return identity(path)
    except OSError:
        return None


def identity(path: Path) -> tuple[int, int]:
    """Return what tells a folder from all others. Raises OSError."""
    status = path.stat()
    return status.st_dev, status.st_ino


def gpu_files(directory: Path, *, whole: bool = False) -> list[str]:
    """Return the device files of GPUs in a folder /dev; of one that has all of the host's only if asked."""
    try:
        # A user may have made it, in a namespace of its own, with millions of names.
        with os.scandir(directory) as entries:
            names = [f"/dev/{entry.name}" for entry in itertools.islice(entries, MOST_DEVICES)]
    except OSError:
        return []
    if not whole and any(name in names for name in WHOLE):
        return []
    return sorted(name for name in names if DEVICE.fullmatch(name))


def belongs_to(cgroup: str) -> tuple[str, str]:
    """Return the container (short id) and the systemd service of a process, from its /proc/PID/cgroup."""
    container = CONTAINER.search(cgroup)
    service = SERVICE.match(cgroup.rstrip("\n").rpartition("\n")[2])
    return container["id"][:12] if container else "", service[1] if service else ""


def _targets(directory: Path) -> typing.Iterator[tuple[str, str]]:
    """Yield the links in a folder and where they lead.

    They are read one at a time: a process may have a million files open.
    """
    with os.scandir(directory) as links:
        for link in links:
            with contextlib.suppress(OSError):  # it was closed
                yield link.path, os.readlink(link.path).removesuffix(" (deleted)")  # noqa: PTH115 - of a million
