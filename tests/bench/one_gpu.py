"""Let two processes on one GPU be ranks of NCCL, and see what the payload makes of them, broken ones too.

    PYTHON-WITH-TORCH -m tests.bench.one_gpu [--cpu] [--only WORD]

NCCL refuses two ranks on a GPU of one machine, so each says that it is a machine of its own (NCCL_HOSTID) and
meets the other through sockets of the loopback interface. What they compute is real. Their rates say nothing,
because two processes take turns on the GPU. No setting of the GPU is touched. With --cpu the same over gloo.

For each case it prints its seconds, state, findings and numbers; nothing is asserted.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial

from validation.backends.factory import make
from validation.checks import collectives, parallel, sharded
from validation.checks.measured import CUDA_ENVIRONMENT
from validation.checks.node import Node
from validation.checks.training import CPU_SHAPE, GPU_SHAPE
from validation.model.contract import Measured, TestResult
from validation.model.expectations import Expectation
from validation.model.plans import PLANS, Timing
from validation.processes.child import Request

PLAN = dataclasses.replace(
    PLANS["standard"],
    budget_s=90,
    all_reduce_s=2,
    all_reduce_runs=30,
    gpu_copy=Timing(0.5, 2),
    cpu=Timing(0.2, 0.5),
)
BYTES = {"cuda": [1 << 20, 64 << 20, 512 << 20], "cpu": [1 << 20]}
MODULE = "tests.bench.one_gpu"
RANKS = [("rank 0", 0), ("rank 1", 0)]
#: Two ranks share the CPUs, too.
ENVIRONMENT = CUDA_ENVIRONMENT | {"OMP_NUM_THREADS": "1"}
#: What the second rank does that ranks should not: its process gets the signal at its first measured run, it
#: sleeps instead of taking part in a run, or it spoils a number.
BROKEN = ("killed", "stopped", "sleeps", "wrong")
SOUND_RUNS, FOREVER_S = 5, 600


def measure(request: Request, stage: Callable[[str], None]) -> Measured:
    """Be a rank of a collective."""
    _be_a_machine(request)
    broken = os.environ.get("TEMPER_BROKEN", "") if request.parameters["rank"] == 1 else ""
    if broken in {"killed", "stopped"}:
        stage = partial(_tell_and_end, stage, signal.SIGKILL if broken == "killed" else signal.SIGSTOP)
    elif broken:
        _break(request.backend, stage, broken)
    return collectives.measure(request, stage)


def train(request: Request, stage: Callable[[str], None]) -> Measured:
    """Be a rank of DistributedDataParallel."""
    _be_a_machine(request)
    return parallel.measure(request, stage)


def shard(request: Request, stage: Callable[[str], None]) -> Measured:
    """Be a rank of FSDP."""
    _be_a_machine(request)
    return sharded.measure(request, stage)


def _be_a_machine(request: Request) -> None:
    os.environ |= {"NCCL_HOSTID": f"machine{request.parameters['rank']}", "NCCL_IB_DISABLE": "1"}
    os.environ |= {"NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo"}


def _tell_and_end(tell: Callable[[str], None], number: signal.Signals, stage: str) -> None:
    tell(stage)
    if stage.startswith("measuring"):
        os.kill(os.getpid(), number)


def _break(backend: str, stage: Callable[[str], None], how: str) -> None:
    make(backend, 0, stage)  # loads torch, which the module below needs
    from validation.backends.operations import AllReduce

    run, runs = AllReduce.run, 0

    def broken(operation: AllReduce) -> None:
        nonlocal runs
        runs += 1
        if how == "sleeps" and runs > SOUND_RUNS:
            time.sleep(FOREVER_S)
        run(operation)
        if how == "wrong":
            operation._buffer.view(-1)[:1].add_(1)

    AllReduce.run = broken  # type: ignore[assignment]


class Collectives(collectives.GpuAllReduce):
    """The collectives of all ranks, of this module's processes."""

    function = f"{MODULE}:measure"


class Training(parallel.GpuParallelTraining):
    """DistributedDataParallel, of this module's processes."""

    function = f"{MODULE}:train"


class Sharding(sharded.GpuShardedTraining):
    """FSDP, of this module's processes."""

    function = f"{MODULE}:shard"


def cases(node: Node, backend: str) -> Iterator[tuple[str, Callable[[], TestResult]]]:
    """Yield the name of each case and what runs it."""
    sizes_bytes, plan = BYTES[backend], node.plan

    def reduce(sizes: list[int], kinds: tuple[str, ...], broken: str = "") -> TestResult:
        environment = ENVIRONMENT | {"TEMPER_BROKEN": broken}
        return collectives.run_ranks(
            Collectives(),
            node,
            RANKS,
            backend=backend,
            sizes_bytes=sizes,
            environment=environment,
            collectives=kinds,
        )

    yield "collectives", partial(reduce, sizes_bytes, plan.collectives)
    shape, timing = (GPU_SHAPE, plan.gpu_copy) if backend == "cuda" else (CPU_SHAPE, plan.cpu)
    for check in (Training(), Sharding()):
        yield check.id, partial(check._train, node, RANKS, backend, shape, timing, ENVIRONMENT)
    for broken in BROKEN:
        yield broken, partial(reduce, sizes_bytes[:2], ("all_reduce",), broken)


def main() -> int:
    """Run the cases."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.one_gpu", description=__doc__)
    parser.add_argument("--cpu", action="store_true", help="the same with gloo, on the CPU")
    parser.add_argument("--only", default="", help="only cases with this word in their name")
    options = parser.parse_args()
    with contextlib.closing(Node(PLAN, Expectation())) as node:
        for name, run in cases(node, "cpu" if options.cpu else "cuda"):
            if options.only not in name:
                continue
            started = time.monotonic()
            result = run()
            print(f"{name}: {result.state}, {time.monotonic() - started:.0f} s {result.reason}", flush=True)
            for finding in result.findings:
                print(f"  {finding.text}")
            for one in result.measurements:
                conditions = ", ".join(f"{key} {value}" for key, value in one.conditions.items())
                print(f"  {one.name} {one.value:.4g} ({conditions})", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
