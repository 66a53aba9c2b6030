"""What one process and slices cost the controller, for fleets of simulated hosts.

    python -m tests.bench.slices [--hosts 100 200 400] [--slice 100] [--jobs 2] [--only slices]

Each host is this machine (a local connection), each task a `debug`: what is timed is Ansible's own work. CPU
seconds are those of all processes, memory is the largest of any one; both count per host, because the
seconds by the clock are this machine's. Prints a table in Markdown; asserts nothing.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
TASKS = 3
WAYS = ("one process", "slices")
PLAY = """
- hosts: gpu_nodes
  gather_facts: false
  tasks:
    - ansible.builtin.debug: {msg: one}
    - ansible.builtin.debug: {msg: two}
    - ansible.builtin.debug: {msg: three}
"""
#: Run in a process of its own, so that what it used can be told apart.
SLICED = """
import json, sys
from pathlib import Path
from temper.plan.inventory import from_listing
from temper.fleet.journal import Job, Journal
from temper.fleet.run import HERE, FleetRun
from temper.fleet.slices import Board, Place
folder, size, jobs = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
known = from_listing(json.loads((folder / "listing.json").read_text()))
job = Job(str(folder / "play.yml"), (), "", {}, (), tuple(known.nodes))
journal = Journal(folder / "runs.sqlite")
journal.begin("one", job)
board = Board.of(known.nodes, size, [Place(HERE, jobs)])
run = FleetRun("one", job, known, board, journal, folder / "run", {}, False, lambda line: None)
run.carry_out()
sys.exit(len(board.left))
"""


def measure(command: list[str]) -> tuple[float, float, float]:
    """Seconds by the clock, CPU seconds, and MiB of the largest process. Raises CalledProcessError."""
    # In a process of its own: what children have used counts for all of them together.
    reader = (
        "import json, resource, subprocess, sys\n"
        "status = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode\n"
        "used = resource.getrusage(resource.RUSAGE_CHILDREN)\n"
        "print(json.dumps([status, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024]))\n"
    )
    began_s = time.monotonic()
    environment = {
        **os.environ,
        "LC_ALL": "C.UTF-8",
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "ANSIBLE_STDOUT_CALLBACK": "default",
    }
    done = subprocess.run(
        [sys.executable, "-c", reader, *command],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    status, cpu_s, memory_mib = json.loads(done.stdout)
    if status:
        raise subprocess.CalledProcessError(status, command, stderr=done.stderr)
    return time.monotonic() - began_s, cpu_s, memory_mib


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=int, nargs="+", default=[100, 200, 400])
    parser.add_argument("--slice", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", choices=WAYS, help="one process takes 22 ms of its time a host and task")
    options = parser.parse_args()
    print(
        f"{TASKS} tasks a host, slices of {options.slice}, {options.jobs} at a time, {os.cpu_count()} CPUs\n"
    )
    print("| Hosts | | CPU ms a host and task | MiB of the largest process | s |\n|---|---|---|---|---|")
    for count in options.hosts:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            names = [f"n{number:05}" for number in range(count)]
            own = {name: {"ansible_connection": "local"} for name in names}
            listing = {"gpu_nodes": {"hosts": names}, "_meta": {"hostvars": own}}
            (folder / "listing.json").write_text(json.dumps(listing))
            (folder / "inventory.json").write_text(json.dumps({"gpu_nodes": {"hosts": own}}))
            (folder / "play.yml").write_text(PLAY)
            inventory, play = str(folder / "inventory.json"), str(folder / "play.yml")
            ways = (
                ["ansible-playbook", "-i", inventory, play],
                [sys.executable, "-c", SLICED, scratch, str(options.slice), str(options.jobs)],
            )
            for name, command in zip(WAYS, ways, strict=True):
                if options.only not in (None, name):
                    continue
                clock_s, cpu_s, memory_mib = measure(command)
                a_task_ms = cpu_s / count / TASKS * 1e3
                print(
                    f"| {count} | {name} | {a_task_ms:.1f} | {memory_mib:.0f} | {clock_s:.0f} |", flush=True
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
