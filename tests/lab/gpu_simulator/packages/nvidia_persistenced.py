#!/usr/bin/python3 -I
"""Simulated by Temper's lab: nvidia-persistenced, which keeps persistence mode on while it runs.

Fails, as the real one does, when no nvidia module drives a GPU or when the module is of another version.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(os.environ.get("GPU_SIMULATOR_ROOT", "/"))
PID_FILE = ROOT / "run/nvidia-persistenced/nvidia-persistenced.pid"
RECORD = ROOT / "run/gpu-simulator/persistenced.json"  # read by the simulated nvidia-smi
VERSION = "@VERSION@"


def fail(reason: str) -> int:
    """Report like the real daemon: the sentence is for the console, the reason for the system log."""
    print(reason, file=sys.stderr)
    print("nvidia-persistenced failed to initialize. Check syslog for more details.", file=sys.stderr)
    return 1


def main(arguments: list[str]) -> int:
    """Check the driver, then leave a process behind that stands for the daemon."""
    if "--version" in arguments or "-v" in arguments:
        print(f"nvidia-persistenced:  version {VERSION}  (simulated by Temper's lab)")
        return 0
    if os.geteuid() != 0 and str(ROOT) == "/":
        return fail("Unable to access directory /var/run: Permission denied")
    module = ROOT / "sys/module/nvidia/version"
    if not module.exists() and str(ROOT) == "/":
        load = ["/usr/lib/gpu-simulator/machine.py", "load"]
        subprocess.run(load, check=False, stderr=subprocess.DEVNULL)
    if not module.exists():
        return fail(
            "Failed to query NVIDIA devices. Please ensure that the NVIDIA device files (/dev/nvidia*) "
            "exist, and that user 0 has read and write permissions for those files."
        )
    if module.read_text().strip() != VERSION:
        return fail("Failed to initialize: the loaded kernel module is not of this version.")
    persistence = "--no-persistence-mode" not in arguments
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        started = os.read(reader, 1)  # returns when the child has written its files, or has died
        return 0 if started else fail("the daemon ended before it was ready")
    os.close(reader)
    os.setsid()
    os.chdir("/")
    PID_FILE.parent.mkdir(parents=True, exist_ok=True)
    PID_FILE.write_text(f"{os.getpid()}\n")
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    # The start time tells this process from a later one with the same id.
    start_time = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    RECORD.write_text(json.dumps({"pid": os.getpid(), "start": start_time, "persistence": persistence}))
    null = os.open("/dev/null", os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.write(writer, b"1")
    # The daemon has nothing left to do but live: a process of half a megabyte does that as well.
    return os.execv("/bin/sleep", ["nvidia-persistenced", "infinity"])  # noqa: S606 - no shell wanted


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
