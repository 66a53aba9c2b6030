"""Time playbooks against a ping, first and second run side by side, on fresh lab nodes.

    python -m tests.bench [site | harden] [--pings N] [--keep]

`site` times site.yml on all nodes, and playbooks/compliance.yml after it. Validation is left out: it takes as
long as its plan says. `harden` times
the hardening roles on one node, alone and together, with the plan given, as in a longer run. Without a word,
both. Boots a lab of its own (LAB_NAME=bench; LAB_NODES nodes, 2 unless set), so that each first run meets
bare nodes. The numbers are this machine's, so they are printed and nothing is asserted. Exit status: that of
the first command that failed, else 0.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.lab.settings import wanted_nodes

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
BIN = Path(sys.executable).parent
NODE = "gpu01"
HARDENING_ROLES = ("firewall", "ssh_hardening", "os_hardening")  # in the order of playbooks/harden.yml

Rows = list[tuple[str, "Measurement"]]


@dataclass(frozen=True)
class Measurement:
    """One command: seconds of wall time and of the controller's CPUs, tasks, nodes' changes, calls of ssh.

    The CPU time is that of Ansible and of its children that have ended; nodes' processes are none of them.
    """

    duration_s: float
    cpu_s: float
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
        "ANSIBLE_STDOUT_CALLBACK": "default",
        "ANSIBLE_SSH_EXECUTABLE": str(HERE / "counting_ssh"),
        "TEMPER_COUNTS": str(counts),
        "TEMPER_SSH_CALLS": str(calls),
    }
    started, used = time.monotonic(), children_s()
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
        duration_s,
        children_s() - used,
        counted.get("tasks", 1),
        counted.get("changed", 0),
        len(calls.read_bytes()),
    )


def children_s() -> float:
    """CPU seconds of all processes that were this one's children, and theirs, and have been waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def lab(*arguments: str) -> None:
    """Run a command of the lab, showing its progress."""
    subprocess.run([sys.executable, "-m", "tests.lab", *arguments], cwd=ROOT, check=True)


def with_pings(name: str, nodes: str, count: int, runs: dict[str, list[str]], scratch: Path) -> Rows:
    """Measure runs one after the other, with pings before and after; the pings' median comes first."""
    ping = ["ansible", nodes, "-m", "ansible.builtin.ping"]
    pings = [measure(ping, scratch) for _ in range(count)]
    rows = []
    for title, command in runs.items():
        print(f"{name}, {title} ...", flush=True)
        rows.append((f"{name}, {title}", measure(command, scratch)))
    pings += [measure(ping, scratch) for _ in range(count)]
    median = sorted(pings, key=lambda one: one.duration_s)[len(pings) // 2]
    return [(f"ping of {nodes}, median of {len(pings)}", median), *rows]


def time_site(count: int, scratch: Path) -> Rows:
    """Measure site.yml on bare nodes and again, and the check of their compliance."""
    site = ["ansible-playbook", "site.yml", "--skip-tags", "validate"]
    # Nothing was validated here.
    waiver = dict.fromkeys(("reason", "owner", "approver", "ticket"), "bench")
    variables = {
        "compliance_reports_directory": str(scratch),
        "compliance_waivers": [{**waiver, "control": "validation/last", "expires": "2999-01-01T00:00:00Z"}],
    }
    compliance = ["ansible-playbook", "playbooks/compliance.yml", "--extra-vars", json.dumps(variables)]
    runs = {"first run": site, "second run": site, "compliance": compliance}
    return with_pings("site.yml", "gpu_nodes", count, runs, scratch)


def time_harden(count: int, scratch: Path) -> Rows:
    """Measure each hardening role on one bare node and again, then all of them together."""
    harden = [
        "ansible-playbook",
        "playbooks/harden.yml",
        "--limit",
        NODE,
        "-e",
        '{"preflight_plan_file": ""}',
    ]
    together = [*harden, "--tags", ",".join(HARDENING_ROLES)]
    alone = {
        f"{turn} run, {role}": [*harden, "--tags", role]
        for turn in ("first", "second")
        for role in HARDENING_ROLES
    }
    runs = {**alone, "second run, all three": together}
    return with_pings("hardening", NODE, count, runs, scratch)


def table(rows: Rows, nodes: int) -> str:
    """Return the measurements on some nodes as a table, with ratios to the ping, which comes first."""
    heads = ("seconds", "pings", "CPU s", "a node", "tasks", "executions", "changed")
    lines = [" " * 40 + "".join(f"{head:>11}" for head in heads)]
    for name, one in rows:
        times = (one.duration_s, one.duration_s / rows[0][1].duration_s, one.cpu_s, one.cpu_s / nodes)
        counts = (one.tasks, one.ssh_calls, one.changed)
        numbers = [*(f"{number:11.2f}" for number in times), *(f"{count:11}" for count in counts)]
        lines.append(f"{name:40}{''.join(numbers)}")
    return "\n".join(lines)


def main() -> int:
    """Measure, print the tables and return the exit status."""
    parser = argparse.ArgumentParser(description="Time playbooks against a ping.")
    parser.add_argument("what", nargs="?", choices=["site", "harden"], help="what to time (default: all)")
    parser.add_argument("--pings", type=int, default=5, help="pings before and after (default: 5)")
    parser.add_argument("--keep", action="store_true", help="leave the lab running")
    arguments = parser.parse_args()
    os.environ["LAB_NAME"] = "bench"
    benches = {"site": time_site, "harden": time_harden}
    tables: list[tuple[Rows, int]] = []
    try:
        for what in [arguments.what] if arguments.what else benches:
            lab("down")
            lab("up")
            with tempfile.TemporaryDirectory() as folder:
                rows = benches[what](arguments.pings, Path(folder))
                tables.append((rows, wanted_nodes() if what == "site" else 1))
    except subprocess.CalledProcessError as error:
        print(f"`{' '.join(error.cmd)}` ended with status {error.returncode}: see above.", file=sys.stderr)
        return error.returncode
    finally:
        if not arguments.keep:
            lab("down")
    for rows, nodes in tables:
        print(table(rows, nodes))
    print(
        "CPU s: the controller's, and divided by the nodes. Tasks: once for all nodes. Executions: calls of "
        "ssh, on all nodes together."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
