"""What of the NVIDIA driver is loaded and in use now: it need not be what is installed."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path
from typing import Any

from ansible.module_utils.temper import process
from ansible.module_utils.temper.driver.holders import SERVICES, holders
from ansible.module_utils.temper.driver.kernel_modules import nvidia_modules

# Where distributions put the driver's libraries.
LIBRARY_DIRECTORIES = ("usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64")
# nvidia-smi initialises every GPU where no daemon has done so.
COMMAND_TIMEOUT_S = 30
DRIVER_POLL_S = 2


def read(path: Path, default: str = "") -> str:
    """Return a small file's stripped text, or `default` where it is missing.

    So it is where it refuses to be read, as many files of sysfs do.
    """
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return default


def loaded_version(root: Path) -> str | None:
    """Return the version of the loaded module."""
    return read(root / "sys/module/nvidia/version") or None


def nouveau_loaded(root: Path) -> bool:
    """Return whether the kernel's own driver has the GPUs."""
    return (root / "sys/module/nouveau").is_dir()


def gone_but_loaded(root: Path) -> list[str]:
    """Say that a reboot is due, where a driver is loaded that is not installed any more."""
    version = loaded_version(root)
    if not version or userspace_version(root):
        return []
    return [f"reboot required. Driver {version} is no longer installed and stays loaded until then."]


def userspace_version(root: Path) -> str | None:
    """Return the version of the installed NVML library: NVIDIA writes it into the file's name."""
    for directory in LIBRARY_DIRECTORIES:
        name = (root / directory / "libnvidia-ml.so.1").resolve().name
        version = name.removeprefix("libnvidia-ml.so.")
        if version not in (name, "1"):
            return version
    return None


def vgpu_software(root: Path) -> bool:
    """Return whether the driver of NVIDIA's vGPU software was installed: its licence client has settings."""
    return any((root / "etc/nvidia" / name).exists() for name in ("gridd.conf", "gridd.conf.template"))


def nvidia_state(root: Path, kernels: list[str], *, signers: bool, ask: bool = True) -> dict[str, Any]:
    """Return what is loaded and in use now, and beside it what is installed: the two need not be the same.

    `compute_processes` are as `gpu_users` names them. nvidia-smi comes first: through nvidia-modprobe it
    loads the driver where nothing else has yet, so that an image does not `ask` it.
    """
    processes, error = gpu_users(root) if ask else ([], None)
    return {
        "loaded_version": loaded_version(root),
        "userspace_version": userspace_version(root),
        "vgpu_software": vgpu_software(root),
        "modules": nvidia_modules(root, kernels, signers=signers),
        "nouveau_loaded": nouveau_loaded(root),
        "counters_restricted": counters_restricted(root),
        "compute_processes": processes,
        "smi_error": error,
    }


def counters_restricted(root: Path) -> bool | None:
    """Return whether the driver keeps performance counters to root; None where none is loaded."""
    found = re.search(r"^RmProfilingAdminOnly: (\d)", read(root / "proc/driver/nvidia/params"), re.MULTILINE)
    return found[1] == "1" if found else None


def gpu_users(root: Path) -> tuple[list[str], str | None]:
    """Return who would lose a GPU by a reboot or another driver, and nvidia-smi's complaint if it has one.

    These are the compute processes of nvidia-smi ("pid name"), and before them sentences on those that it
    does not know: virtual machines, and all where it fails.
    """
    processes, complaint = compute_processes()
    known = {line.split()[0] for line in processes}
    held = holders(root / "proc", ignore=SERVICES, computing=True, sysfs=root / "sys")
    return [*(str(one) for one in held if str(one.pid) not in known), *processes], complaint


def compute_processes() -> tuple[list[str], str | None]:
    """Compute processes as nvidia-smi lists them, and nvidia-smi's complaint if it has one."""
    if not process.which("nvidia-smi"):
        return [], None
    command = ["nvidia-smi", "--query-compute-apps=pid,process_name", "--format=csv,noheader"]
    try:
        smi = process.complete(command, COMMAND_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return [], f"nvidia-smi did not answer within {COMMAND_TIMEOUT_S} s"
    if smi.returncode:
        return [], (smi.stdout + smi.stderr).strip()
    return [line.replace(",", "", 1).strip() for line in smi.stdout.splitlines() if line.strip()], None


def wait_for_driver(timeout_s: float, root: Path = Path("/")) -> None:
    """Return when the driver is loaded and nvidia-smi has no complaint, or when the time is over.

    SSH answers some seconds before the driver has initialised all GPUs of a large server.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        _, complaint = compute_processes()
        answers = not complaint and loaded_version(root)
        if answers or time.monotonic() + DRIVER_POLL_S > deadline:
            return
        time.sleep(DRIVER_POLL_S)
