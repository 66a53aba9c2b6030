"""The payload's numbers beside torch called directly, in one process each, turn by turn in the same run.

    TEMPER_PAYLOAD_PYTHON=/path/to/python3 python -m tests.bench.payload [--rounds N]

matmul, copies: the same shape and size through the backend and as a plain loop around torch, on the CPU and,
where there is one, on the first GPU, whose settings are not touched. all-reduce: the same buffer
between two processes through the payload and as a plain loop around torch.distributed.all_reduce. Both sides
alternate, and so does which of them is first, so that what else the machine does hits both. The difference
is the median of those of each pair, which are neighbours in time; beside it stands the standard error of
that median: on a busy machine it says how far to trust it. Last, the tests that only look (health,
platform), as a whole program, by the clock and in CPU time. The numbers are printed, nothing is asserted.
"""

import argparse
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import textwrap
import time
from pathlib import Path

#: Of normally distributed values: sigma over their median absolute deviation, a median's error over a mean's.
MAD_TO_SIGMA, MEDIAN_TO_MEAN = 1.4826, 1.2533
ROOT = Path(__file__).resolve().parents[2]

OPERATION = """
    import json, time, torch
    from validation.backends.factory import make
    from validation.model.shapes import MatmulShape

    device, rounds = torch.device("{device}"), {rounds}
    backend = make("{device}", 0, lambda stage: None)
    {operation}

    def plain(count):
        if device.type == "cpu":
            times = []
            for _ in range(count):
                start = time.perf_counter()
                once()
                times.append(time.perf_counter() - start)
            return times
        pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(count)]
        for start, end in pairs:
            start.record()
            once()
            end.record()
        torch.cuda.synchronize()
        return [start.elapsed_time(end) / 1e3 for start, end in pairs]

    # A GPU is not warm after a few runs.
    until = time.monotonic() + {warm_up_s}
    while True:
        backend.seconds(operation, 5), plain(5)
        if time.monotonic() >= until:
            break
    sides = [lambda: backend.seconds(operation, 5), lambda: plain(5)]
    pairs = [[side() for side in sides[::order]][::order] for order in [1, -1] * (rounds // 2)]
    print(json.dumps(pairs))
"""
MATMUL = """operation = backend.matmul("{dtype}", MatmulShape({size}, {size}, {size}))
    a, b = (torch.randn({size}, {size}, device=device).to(torch.{kind}) for _ in range(2))
    c = torch.empty_like(a)
    once = lambda: torch.mm(a, b.t(), out=c)"""
COPY = """operation = backend.copy("{direction}", {size_bytes})
    source, target = (torch.empty({size_bytes}, dtype=torch.uint8, **where) for where in {places})
    source.random_()
    once = lambda: target.copy_(source, non_blocking=True)"""
PINNED, ON_GPU = {"pin_memory": True}, {"device": "cuda"}

ALL_REDUCE = """
    import json, os, sys, time, torch, torch.distributed
    from validation.backends.cpu import CpuBackend

    rank, rounds = int(sys.argv[1]), {rounds}
    torch.set_num_threads(1)
    backend = CpuBackend()
    backend.join(rank, 2, sys.argv[2], 300)
    operation = backend.collective("all_reduce", {size_bytes})
    source = torch.ones({size_bytes} // 4)
    buffer = torch.empty_like(source)

    def plain(count):
        times = []
        for _ in range(count):
            buffer.copy_(source)
            torch.distributed.barrier()
            start = time.perf_counter()
            torch.distributed.all_reduce(buffer)
            times.append(time.perf_counter() - start)
        return times

    backend.seconds(operation, 3), plain(3)
    sides = [lambda: backend.seconds(operation, 5), lambda: plain(5)]
    pairs = [[side() for side in sides[::order]][::order] for order in [1, -1] * (rounds // 2)]
    print(json.dumps(pairs))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
"""


def run(python: str, program: str, arguments: list[list[str]]) -> list[list[list[list[float]]]]:
    """Run a program once for each of `arguments`, at the same time; what each printed."""
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    processes = [
        subprocess.Popen(
            [python, "-c", textwrap.dedent(program), *one],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for one in arguments
    ]
    return [json.loads(process.communicate()[0]) for process in processes]


def has_gpu(python: str) -> bool:
    """Whether this Python's torch computes on a GPU."""
    question = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    return subprocess.run([python, "-c", question], check=False).returncode == 0


def line(name: str, pairs: list[tuple[list[float], list[float]]]) -> str:
    """Both medians, and the difference of neighbours with its standard error."""
    ours, plain = (statistics.median(seconds for pair in pairs for seconds in pair[side]) for side in (0, 1))
    differences = [statistics.median(one) / statistics.median(other) - 1 for one, other in pairs]
    difference = statistics.median(differences)
    spread = statistics.median(abs(one - difference) for one in differences) * MAD_TO_SIGMA
    error = MEDIAN_TO_MEAN * spread / math.sqrt(len(differences))
    return f"{name:34}{ours * 1e3:12.2f}{plain * 1e3:12.2f}{difference:+12.1%}{error:12.1%}"


def looking(python: str, rounds: int = 5) -> str:
    """How long the tests take that measure nothing, from the start of the program to its end."""
    command = [python, "-m", "validation", "run", "--test=health", "--test=platform"]
    walls, used = [], []
    for _ in range(rounds):
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
        walls.append(time.perf_counter() - start)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    wall, cpu = statistics.median(walls) * 1e3, statistics.median(used) * 1e3
    return f"{'health and platform, whole program':34}{wall:12.0f}{'':12}{f'{cpu:.0f} ms CPU':>12}"


def main() -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description="The payload's numbers against torch called directly.")
    parser.add_argument("--rounds", type=int, default=30)
    rounds = parser.parse_args().rounds
    python = os.environ.get("TEMPER_PAYLOAD_PYTHON")
    if not python:
        print("TEMPER_PAYLOAD_PYTHON names no Python with torch; see the Makefile.", file=sys.stderr)
        return 2
    print(f"{'':34}{'payload ms':>12}{'plain ms':>12}{'difference':>12}{'+/-':>12}")
    rows = {
        "fp32 matmul, 1024 x 1024": ("cpu", MATMUL.format(dtype="fp32", kind="float32", size=1024)),
        "memory copy, 64 MiB": ("cpu", COPY.format(direction="local", size_bytes=64 << 20, places=[{}, {}])),
    }
    if has_gpu(python):
        square = {
            "bf16 matmul, 8192 x 8192": ("bf16", "bfloat16"),
            "fp32 matmul, 8192 x 8192": ("fp32", "float32"),
        }
        for name, (dtype, kind) in square.items():
            rows[f"GPU {name}"] = ("cuda", MATMUL.format(dtype=dtype, kind=kind, size=8192))
        for direction, places in {
            "h2d": [PINNED, ON_GPU],
            "d2h": [ON_GPU, PINNED],
            "local": [ON_GPU, ON_GPU],
        }.items():
            copy = COPY.format(direction=direction, size_bytes=512 << 20, places=places)
            rows[f"GPU copy {direction}, 512 MiB"] = ("cuda", copy)
    else:
        print("No GPU that this torch can use: the rows of a GPU are left out.", file=sys.stderr)
    for name, (device, operation) in rows.items():
        warm_up_s = 0 if device == "cpu" else 10
        program = OPERATION.format(device=device, rounds=rounds, operation=operation, warm_up_s=warm_up_s)
        (pairs,) = run(python, program, [[]])
        print(line(name, [(a, b) for a, b in pairs]))
    store = Path(f"/tmp/temper-bench-store-{os.getpid()}")
    program = ALL_REDUCE.format(size_bytes=16 << 20, rounds=rounds)
    try:
        ranks = run(python, program, [["0", str(store)], ["1", str(store)]])
    finally:
        store.unlink(missing_ok=True)
    # As slow as the slower rank, run by run.
    slowest = [
        tuple([max(runs) for runs in zip(*sides, strict=True)] for sides in zip(*both, strict=True))
        for both in zip(*ranks, strict=True)
    ]
    print(line("gloo all-reduce, 16 MiB, 2 ranks", [(a, b) for a, b in slowest]))
    print(looking(python))
    return 0


if __name__ == "__main__":
    sys.exit(main())
