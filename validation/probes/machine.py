"""This machine, as its kernel and Python environment describe it. No torch is imported, nothing changed."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import runpy
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from validation.model.contract import Machine
from validation.model.gpu_models import OWN_DRIVERS
from validation.probes.reading import ReadingError, in_one_line
from validation.processes.command import CommandError, run

NVIDIA = "0x10de"
GPU_CLASSES = ("0x0300", "0x0302")  # VGA controller, 3D controller
DRIVER_LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")
LIBRARY_FOLDERS = (
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu/nvidia/current",
    "usr/lib/aarch64-linux-gnu/nvidia/current",
)
#: What gives a container, or a job of Slurm, a part of the GPUs.
GRANTS = ("NVIDIA_VISIBLE_DEVICES", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS")
#: A part of a list of CPUs. Linux can have 8192 of them.
CPU_RANGE = re.compile(r"(?P<first>[0-9]{1,5})(?:-(?P<last>[0-9]{1,5}))?")
MOST_CPUS = 100_000
#: What is written about a program may be of any length.
MOST_BYTES = 1 << 16
#: Users have higher numbers: a program of theirs is no service, whatever it is called.
MOST_OF_SYSTEM = 999
FABRIC_MANAGER = "nv-fabricmanager"
SWITCH_CLASS = "0x0680"  # bridge, other: NVSwitch up to the fourth NVLink generation


@dataclass(frozen=True)
class Torch:
    """The torch that this Python would import.

    `cuda` is the CUDA version it was built with, None for a CPU build.
    """

    version: str
    cuda: str | None


@dataclass(frozen=True)
class PciGpu:
    """An NVIDIA GPU on the PCI bus, whether or not there is a driver for it."""

    address: str
    pci_id: str
    driver: str = ""

    @property
    def given_away(self) -> bool:
        """Whether somebody gave it to another driver than NVIDIA's, as for a virtual machine."""
        return self.driver not in OWN_DRIVERS

    def __str__(self) -> str:
        return f"{self.address} ({self.driver})" if self.driver else self.address


@dataclass(frozen=True)
class Grant:
    """A variable that gives this process so many GPUs."""

    variable: str
    gpus: int


def describe(driver: str | None) -> Machine:
    """Return this machine, with the driver that it has loaded, for the result."""
    torch = find_torch()
    return Machine(
        hostname=socket.gethostname(),
        system=_os_release().get("PRETTY_NAME", platform.system()),
        kernel=platform.release(),
        cpu_model=_cpu_model(),
        cpus=available_cpus(),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        python=platform.python_version(),
        torch=torch.version if torch else None,
        driver=driver,
    )


def available_cpus() -> int:
    """Return how many CPUs this process may run on."""
    return len(os.sched_getaffinity(0))


def find_torch() -> Torch | None:
    """Return the torch of this Python, found without importing it: an import costs more than a second."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    constants = runpy.run_path(str(Path(spec.origin).with_name("version.py")))
    return Torch(str(constants["__version__"]), constants.get("cuda"))


def loaded_driver(root: Path = Path("/")) -> str | None:
    """Return the version of the NVIDIA kernel module that is loaded, None if there is none."""
    return _read(root / "sys/module/nvidia/version")


def driver_libraries(root: Path = Path("/")) -> dict[str, str]:
    """Return the versions of the driver's libraries that are found, by the names that programs load."""
    found = {}
    for name in DRIVER_LIBRARIES:
        for folder in LIBRARY_FOLDERS:
            target = (root / folder / name).resolve()
            version = target.name.partition(".so.")[2]
            if target.exists() and "." in version:
                found[name] = version
                break
    return found


def fabric_manager_version() -> str | None:
    """Return the version of the fabric manager that is installed, None if there is none."""
    try:
        done = run([FABRIC_MANAGER, "--version"], 10)
    except (OSError, CommandError):
        return None
    match = re.search(r"version is\s*:\s*([\d.]+\d)", done.output)
    return match[1] if match else None


def fabric_manager_runs(root: Path = Path("/")) -> bool | None:
    """Return whether the fabric manager runs, None where this user may not see all processes."""
    processes = root / "proc"
    if not _read(processes / "1/cmdline"):
        return None
    first = _users(processes / "1")
    return any(
        Path(_program(process)).name == FABRIC_MANAGER
        for process in processes.glob("[0-9]*")
        if (users := _users(process)) and (max(users) <= MOST_OF_SYSTEM or users == first)
    )


def pci_gpus(root: Path = Path("/")) -> tuple[PciGpu, ...]:
    """Return the NVIDIA GPUs on the PCI bus."""
    return tuple(
        PciGpu(device.name, (_read(device / "device") or "").removeprefix("0x").lower(), _driver_of(device))
        for device in _nvidia_devices(root)
        if (_read(device / "class") or "").startswith(GPU_CLASSES)
    )


def has_nvswitch(root: Path = Path("/")) -> bool:
    """Return whether this node has NVSwitches of its own on the PCI bus."""
    return any(
        (_read(device / "class") or "").startswith(SWITCH_CLASS) and _driver_of(device) in OWN_DRIVERS
        for device in _nvidia_devices(root)
    )


def granted_gpus(environment: Mapping[str, str] = os.environ) -> Grant | None:
    """Return what names GPUs that this process is to have, by number or UUID; None where nothing does."""
    for variable in GRANTS:
        parts = [part.strip() for part in environment.get(variable, "").split(",")]
        if all(re.fullmatch(r"\d{1,3}(-\d{1,3})?|GPU-[\w-]+", part) for part in parts):
            return Grant(
                variable, sum(1 if part.startswith("GPU-") else len(cpu_list(part)) for part in parts)
            )
    return None


def cpus_near(pci_address: str, root: Path = Path("/")) -> list[int] | None:
    """Return the CPUs of the NUMA node that a PCI device hangs on, None where the kernel does not say."""
    text = _read(root / "sys/bus/pci/devices" / pci_address / "local_cpulist")
    if not text:
        return None
    return cpu_list(text)


def cpu_list(text: str) -> list[int]:
    """`0-2,8` as the kernel lists CPUs and nodes: [0, 1, 2, 8]. Raises ReadingError for anything else."""
    numbers: list[int] = []
    for part in filter(None, text.strip().split(",")):
        found = CPU_RANGE.fullmatch(part)
        if not found or len(numbers) > MOST_CPUS:
            raise ReadingError(f"expected a list of CPUs such as 0-2,8, found {in_one_line(text)!r}")
        numbers += range(int(found["first"]), int(found["last"] or found["first"]) + 1)
    return numbers


def _nvidia_devices(root: Path) -> list[Path]:
    devices = root / "sys/bus/pci/devices"
    if not devices.is_dir():
        return []
    return sorted(device for device in devices.iterdir() if _read(device / "vendor") == NVIDIA)


def _driver_of(device: Path) -> str:
    """Return the name of the kernel's driver that has a PCI device; empty where none has it."""
    try:
        return (device / "driver").readlink().name
    except OSError:
        return ""


def _read(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            # A command line may hold any bytes.
            return file.read(MOST_BYTES).decode(errors="replace").strip()
    except OSError:
        return None


def text_at(path: Path) -> str:
    """Return what a short file holds; empty where it cannot be read."""
    return _read(path) or ""


def _users(process: Path) -> set[int]:
    """Return the users that a process is of, none where it has ended.

    Not by the owner of its folder, who is root as long as a user runs a setuid program.
    """
    # The kernel escapes line feeds in the name, which comes before.
    _, _, found = text_at(process / "status").partition("\nUid:")
    return set(map(int, found.partition("\n")[0].split()))


def _program(process: Path) -> str:
    """Return the program that a process runs; what it calls itself where this user may not look.

    Only of system users: sudo is called by its user what he likes, and waits for his password as root.
    """
    try:
        return os.readlink(process / "exe").removesuffix(" (deleted)")  # noqa: PTH115 - a text
    except OSError:
        return text_at(process / "cmdline").partition("\0")[0]


def _os_release() -> dict[str, str]:
    try:
        return platform.freedesktop_os_release()
    except OSError:
        return {}


def _cpu_model() -> str:
    for line in text_at(Path("/proc/cpuinfo")).split("\n"):
        key, _, value = line.partition(":")
        if key.strip() in {"model name", "Model"}:
            return value.strip()
    return platform.machine()
