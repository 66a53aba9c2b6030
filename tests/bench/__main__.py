"""Time a ping, the first and the second run of site.yml on fresh lab nodes, side by side in one run.

    python -m tests.bench [--pings N] [--keep]

Boots a lab of its own (LAB_NAME=bench; LAB_NODES nodes, 2 unless set), so that the first run meets bare
nodes. Validation is left out: it takes as long as its plan says. The numbers are this machine's, so they are
printed and nothing is asserted. Exit status: that of the first command that failed, else 0.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
BIN = Path(sys.executable).parent


@dataclass(frozen=True)
class Measurement:
    """One command: wall time in seconds, tasks started, nodes' changes, calls of ssh."""

    duration_s: float
    tasks: int
    changed: int
    ssh_calls: int


def measure(command: list[str], scratch: Path) -> Measurement:
    """Run one of Ansible's commands on the bench's lab and count what it does.

    Raises:
        subprocess.CalledProcessError: the command failed; its output has been printed.
    """
    counts, calls = scratch / "counts.json", scratch / "ssh_calls"
    counts.write_text("{}")
    calls.write_bytes(b"")
    environment = {
        **os.environ,
        "ANSIBLE_CALLBACK_PLUGINS": str(HERE / "callback_plugins"),
        "ANSIBLE_CALLBACKS_ENABLED": "count_tasks",
        "ANSIBLE_SSH_EXECUTABLE": str(HERE / "counting_ssh"),
        "TEMPER_COUNTS": str(counts),
        "TEMPER_SSH_CALLS": str(calls),
    }
    started = time.monotonic()
    result = subprocess.run(
        [str(BIN / command[0]), *command[1:]],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    duration_s = time.monotonic() - started
    if result.returncode:
        print(result.stdout, file=sys.stderr)
        result.check_returncode()
    counted = json.loads(counts.read_text())
    return Measurement(
        duration_s, counted.get("tasks", 1), counted.get("changed", 0), len(calls.read_bytes())
    )


def lab(*arguments: str) -> None:
    """Run a command of the lab, showing its progress."""
    subprocess.run([sys.executable, "-m", "tests.lab", *arguments], cwd=ROOT, check=True)


def table(rows: list[tuple[str, Measurement]], ping_s: float) -> str:
    """Return the measurements as a table, each with its ratio to a ping of `ping_s` seconds."""
    lines = [f"{'':34}{'seconds':>9}{'pings':>8}{'tasks':>7}{'executions':>12}{'changed':>9}"]
    lines += [
        f"{name:34}{one.duration_s:9.2f}{one.duration_s / ping_s:8.1f}"
        f"{one.tasks:7}{one.ssh_calls:12}{one.changed:9}"
        for name, one in rows
    ]
    return "\n".join(lines)


def main() -> int:
    """Measure, print the table and return the exit status."""
    parser = argparse.ArgumentParser(description="Time site.yml against a ping.")
    parser.add_argument("--pings", type=int, default=5, help="pings to take the median of (default: 5)")
    parser.add_argument("--keep", action="store_true", help="leave the lab running")
    arguments = parser.parse_args()
    os.environ["LAB_NAME"] = "bench"
    site = ["ansible-playbook", "site.yml", "--skip-tags", "validate"]
    ping = ["ansible", "gpu_nodes", "-m", "ansible.builtin.ping"]
    try:
        lab("down")
        lab("up")
        with tempfile.TemporaryDirectory() as folder:
            scratch = Path(folder)
            pings = [measure(ping, scratch) for _ in range(arguments.pings)]
            print("First run of site.yml ...", flush=True)
            first = measure(site, scratch)
            print("Second run of site.yml ...", flush=True)
            second = measure(site, scratch)
            pings += [measure(ping, scratch) for _ in range(arguments.pings)]
    except subprocess.CalledProcessError as error:
        print(f"`{' '.join(error.cmd)}` ended with status {error.returncode}: see above.", file=sys.stderr)
        return error.returncode
    finally:
        if not arguments.keep:
            lab("down")
    median_ping = sorted(pings, key=lambda one: one.duration_s)[len(pings) // 2]
    rows = [
        (f"ping, median of {len(pings)}", median_ping),
        ("site.yml, first run", first),
        ("site.yml, second run", second),
    ]
    print(table(rows, median_ping.duration_s))
    print("Without validation. Tasks: once for all nodes. Executions: calls of ssh, on all nodes together.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
