"""What values of the operating system bring on this machine, each beside the kernel's own in one run.

    TEMPER_PAYLOAD_PYTHON=/path/to/python3 python -m tests.bench.os_values [NAME ...] [--rounds 12]

Needs root: it changes values of this machine, one after the other, and restores them at its end; where it is
killed, the next boot does. In every round each choice of an experiment is measured once, in random order, and
compared with the first choice of the same round. Printed are the first one's median, and of each other one
the median gain with the limits between which it lies with 95 % confidence. Nothing is asserted.
"""

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from tests.bench import os_network
from validation.autotune.knobs import read_ahead_file
from validation.autotune.search import Pair, gain_of

Rates = Mapping[str, float]
Choices = Mapping[str, Callable[[], Rates]]

#: Names a Python with torch.
PYTHON = "TEMPER_PAYLOAD_PYTHON"
ROOT = Path(__file__).resolve().parents[2]
FILE_BYTES = 2 << 30
#: Normally distributed values lie within so many standard deviations with 95 % confidence.
Z95 = 1.96


def workload(
    *words: object, before: tuple[str, ...] = (), environment: Mapping[str, str] | None = None
) -> Rates:
    """Rates of os_workloads.py in a process of its own; `before` stands in front of its command."""
    done = subprocess.run(
        [*before, os.environ[PYTHON], "-W", "ignore", "-m", "tests.bench.os_workloads", *map(str, words)],
        cwd=ROOT,
        env={**os.environ, **(environment or {})},
        stdout=subprocess.PIPE,
        check=True,
    )
    rates: Rates = json.loads(done.stdout)
    return rates


def with_value(path: Path, value: str, measure: Callable[[], Rates]) -> Rates:
    """Rates with a value of the kernel, which is what it was afterwards."""
    held = path.read_text().strip()
    before = held.partition("[")[2].partition("]")[0] or held
    path.write_text(value)
    try:
        return measure()
    finally:
        path.write_text(before)


def huge_pages(_: Path) -> Choices:
    """os_tuning_transparent_hugepages, and torch's own switch, which asks for them by madvise."""
    path = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    measure = partial(workload, "memory")
    asking = partial(workload, "memory", environment={"THP_MEM_ALLOC_ENABLE": "1"})
    return {
        "madvise": partial(with_value, path, "madvise", measure),
        "never": partial(with_value, path, "never", measure),
        "always": partial(with_value, path, "always", measure),
        "madvise, THP_MEM_ALLOC_ENABLE=1": partial(with_value, path, "madvise", asking),
    }


def read_ahead(folder: Path) -> Choices:
    """os_tuning_nvme_read_ahead_kb, of the disk that the folder is on."""
    path = read_ahead_file(folder)
    if path is None:
        raise SystemExit(f"{folder} is on no disk with a read-ahead; TMPDIR names another folder.")
    _large_file(folder)
    measure = partial(workload, "files", folder)
    return {f"{value} KiB": partial(with_value, path, value, measure) for value in ("128", "1024", "8192")}


def scheduler(folder: Path) -> Choices:
    """os_tuning_nvme_scheduler, of the disk that the folder is on."""
    number = folder.stat().st_dev
    block = Path("/sys/dev/block", f"{os.major(number)}:{os.minor(number)}").resolve()
    path = next(
        (one / "queue/scheduler" for one in (block, block.parent) if (one / "queue/scheduler").exists()), None
    )
    if path is None:
        raise SystemExit(f"{folder} is on no disk with a scheduler; TMPDIR names another folder.")
    measure = partial(workload, "drive", _large_file(folder))
    offered = path.read_text().replace("[", "").replace("]", "").split()
    chosen = [one for one in ("none", "mq-deadline", "kyber") if one in offered]
    return {one: partial(with_value, path, one, measure) for one in chosen}


def shared_memory(_: Path) -> Choices:
    """os_tuning_shm: the size of a container's own /dev/shm, and of one that is large enough."""

    def sized(size: str) -> Callable[[], Rates]:
        mounted = f'mount -t tmpfs -o size={size} tmpfs /dev/shm && exec "$@"'
        before = ("unshare", "--mount", "--propagation", "private", "sh", "-c", mounted, "sh")
        return partial(workload, "batches", before=before)

    return {"64 MiB": sized("64m"), "75 %": sized("75%")}


def open_files(_: Path) -> Choices:
    """os_tuning_nofile: systemd's soft limit, and the hard one of this process."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]

    def limited(count: int) -> Callable[[], Rates]:
        return partial(workload, "batches", before=("prlimit", f"--nofile={count}:{hard}"))

    return {str(count): limited(count) for count in (1024, hard)}


def network_buffers(_: Path) -> Choices:
    """os_tuning_network_buffer_mib, over a short and a long link of 1 Gb/s."""
    # A namespace takes over the way of the host; cubic is the kernel's own.
    way = Path("/proc/sys/net/ipv4/tcp_congestion_control")
    return {
        f"{size} MiB": partial(with_value, way, "cubic", partial(os_network.transfers, size))
        for size in (6, 64)
    }


def neighbours(_: Path) -> Choices:
    """net.ipv4.neigh.default.gc_thresh*: the kernel's own, and the role's."""
    folder = Path("/proc/sys/net/ipv4/neigh/default")

    def limited(values: tuple[int, int, int]) -> Callable[[], Rates]:
        measure: Callable[[], Rates] = os_network.reached
        for number, value in enumerate(values, 1):
            measure = partial(with_value, folder / f"gc_thresh{number}", str(value), measure)
        return measure

    return {
        ", ".join(map(str, values)): limited(values) for values in ((128, 512, 1024), (4096, 8192, 16384))
    }


EXPERIMENTS: dict[str, Callable[[Path], Choices]] = {
    one.__name__: one
    for one in (huge_pages, read_ahead, scheduler, shared_memory, open_files, network_buffers, neighbours)
}


def _large_file(folder: Path) -> Path:
    """A file that no drive makes up, on the disk itself."""
    path = folder / "large"
    block = os.urandom(16 << 20)
    with path.open("wb") as file:
        for _ in range(FILE_BYTES // len(block)):
            file.write(block)
        os.fsync(file.fileno())
    return path


def carry_out(choices: Choices, rounds: int) -> list[dict[str, Rates]]:
    """The rates of all choices, round by round; the order says which came first."""
    measured = []
    for _ in range(rounds):
        order = random.sample(list(choices), len(choices))
        measured.append({name: choices[name]() for name in order})
    return measured


def lines(name: str, choices: Choices, measured: list[dict[str, Rates]]) -> Iterator[str]:
    """Rows of the table, one for each workload and each choice but the first."""
    first, *others = choices
    for work in measured[0][first]:
        median = statistics.median(one[first][work] for one in measured)
        for other in others:
            pairs = [
                Pair(one[first][work], one[other][work], list(one).index(first) < list(one).index(other))
                for one in measured
                if one[first].get(work) and one[other].get(work)
            ]
            said = "–"
            if len(pairs) > 1:
                gain, low, high = gain_of(pairs, Z95)
                said = f"{gain:+.1%} ({low:+.1%} to {high:+.1%})"
            its_own = f"{first}: {median:,.0f}"
            now = statistics.median(one[other].get(work, 0) for one in measured)
            yield f"| {name} | {work} | {its_own} | {other}: {now:,.0f} | {said} | {len(pairs)} |"


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names",
        nargs="*",
        choices=EXPERIMENTS,
        metavar="NAME",
        default=list(EXPERIMENTS),
        help=", ".join(EXPERIMENTS),
    )
    parser.add_argument("--rounds", type=int, default=12)
    options = parser.parse_args()
    if os.geteuid():
        parser.error("this changes values of the kernel: run it as root")
    if not os.environ.get(PYTHON):
        parser.error(f"{PYTHON} names no Python with torch; see the Makefile")
    print("| Value | Workload | Kernel's | Other | Gain (95 %) | Pairs |\n|---|---|---|---|---|---|")
    for name in options.names:
        with tempfile.TemporaryDirectory() as folder:
            choices = EXPERIMENTS[name](Path(folder))
            for line in lines(name, choices, carry_out(choices, options.rounds)):
                print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
