#!/usr/bin/python3 -I
"""Simulated by Temper's lab: nv-fabricmanager, which sets up the NVSwitches of an HGX server.

Fails, as the real one does, without NVSwitches and when the loaded driver is of another version.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

ROOT = Path(os.environ.get("GPU_SIMULATOR_ROOT", "/"))
PID_FILE = ROOT / "run/nvidia-fabricmanager/nv-fabricmanager.pid"
PROGRAM = ROOT / "var/lib/gpu-simulator/nv-fabricmanager"
READY = ROOT / "run/gpu-simulator/fabric-ready"  # read by the simulated nvidia-smi
VERSION = "@VERSION@"


def problem(*, nvlink5: bool) -> str | None:
    """Say why the fabric manager cannot start here, in the real one's words."""
    module = ROOT / "sys/module/nvidia/version"
    switches = ROOT / "proc/driver/nvidia-nvswitch/devices"
    # With -g, the identity of a management port, the switches are reached through it.
    reachable = nvlink5 or (switches.is_dir() and any(switches.iterdir()))
    if not module.exists() or not reachable:
        return (
            "request to query NVSwitch device information from NVSwitch driver failed with error:"
            "WARNING Nothing to do [NV_WARN_NOTHING_TO_DO]"
        )
    driver = module.read_text().strip()
    if driver != VERSION:
        return (
            f"fabric manager NVIDIA GPU driver interface version {VERSION} don't match with driver version "
            f"{driver}. Please update with matching NVIDIA driver package."
        )
    return None


def main(arguments: list[str]) -> int:
    """Check the hardware, then leave a process behind that stands for the daemon."""
    if "--version" in arguments or "-v" in arguments:
        print(f"Fabric Manager version is : {VERSION} (simulated by Temper's lab)")
        return 0
    reason = problem(nvlink5="-g" in arguments)
    if reason:
        print(reason, file=sys.stderr)
        return 1
    print("Connected to 1 node.")
    print(
        "Successfully configured all the available NVSwitches to route GPU NVLink traffic. NVLink "
        "Peer-to-Peer support will be enabled once the GPUs are successfully registered with the NVLink "
        "fabric.",
        flush=True,
    )
    # A process is known by the file of its program, and that of this one is Python's.
    PROGRAM.parent.mkdir(parents=True, exist_ok=True)
    PROGRAM.unlink(missing_ok=True)
    shutil.copy("/bin/sleep", PROGRAM)
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        return 0 if os.read(reader, 1) else 1
    os.close(reader)
    os.setsid()
    os.chdir("/")
    for path, text in ((PID_FILE, f"{os.getpid()}\n"), (READY, "")):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    null = os.open("/dev/null", os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.write(writer, b"1")
    return os.execv(PROGRAM, ["nv-fabricmanager", "infinity"])  # noqa: S606 - no shell wanted


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
