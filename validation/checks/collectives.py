"""Collectives between processes: bus bandwidth, exact results, and which rank died or hung."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from validation.backends import make
from validation.checks.measured import CUDA_ENVIRONMENT, Telemetry, failures, not_run, result
from validation.checks.recorder import WRONG_DATA
from validation.child import Ending, Outcome, Request, run_children
from validation.comparison import NOISY_SPREAD
from validation.contract import Finding, Measured, Measurement, State
from validation.measure import MOST_ATTEMPTS, rate, spread

if TYPE_CHECKING:
    from collections.abc import Callable

    from validation.backends import Backend
    from validation.checks import Check, Node
    from validation.contract import TestResult

WARM_UP_RUNS = 3
MEETING = "meeting the other ranks"
#: Ranks wait longer for each other than their parent waits for them: it sees which one is behind, they only
#: see that one is missing.
RANK_PATIENCE = 2
#: Buffer and its original numbers, with some room for the library's own buffers.
MEMORY_SHARE = 0.4


def measure(request: Request, stage: Callable[[str], None]) -> Measured:
    """In a child: one rank. Its details hold the seconds of each run by collective and size.

    Raises NotRunError.
    """
    stage("loading torch")
    return reduce(make(request.backend, request.device), request, stage)


def reduce(backend: Backend, request: Request, stage: Callable[[str], None]) -> Measured:
    """One rank's part, on any backend."""
    parameters = request.parameters
    rank, world_size = parameters["rank"], parameters["world_size"]
    stage(MEETING)
    backend.join(rank, world_size, parameters["store"], parameters["timeout_s"])
    seconds_of: dict[str, list[float]] = {}
    attempts: dict[str, int] = {}
    findings = []
    for kind, size_bytes in _steps(parameters):
        label = _label(kind, size_bytes)
        stage(f"preparing {label}")
        operation = backend.collective(kind, size_bytes)
        stage(f"warming up with {label}")
        backend.seconds(operation, WARM_UP_RUNS)
        stage(f"measuring {label}")
        step = f"{kind} {int(operation.work)}"
        for attempt in range(1, MOST_ATTEMPTS + 1):
            seconds = backend.seconds(operation, parameters["runs"])
            seconds_of[step], attempts[step] = [round(run, 7) for run in seconds], attempt
            # All ranks measure again, or none: the last attempt of all belongs together.
            if not backend.any_rank(spread(seconds) > NOISY_SPREAD):
                break
        stage(f"checking {label}")
        if (error := operation.error()) != 0.0:
            findings.append(
                Finding(
                    "wrong-result",
                    State.FAIL,
                    f"{request.name}: {error:.2g} of the numbers of {label} are wrong",
                    WRONG_DATA,
                )
            )
        del operation
    stage("leaving")
    backend.barrier()
    return Measured((), tuple(findings), details={"seconds": seconds_of, "attempts": attempts})


def _steps(parameters: dict[str, Any]) -> list[tuple[str, int]]:
    return [(kind, size) for kind in parameters["collectives"] for size in parameters["sizes_bytes"]]


def _label(kind: str, size_bytes: int) -> str:
    return f"{kind.replace('_', '-')} of {size_bytes / (1 << 20):g} MiB"


def bus_bandwidth_factor(kind: str, world_size: int) -> float:
    """Bus over algorithm bandwidth (nccl-tests, doc/PERFORMANCE.md): how often a byte crosses a link.

    With one rank nothing moves, and there is no bandwidth.
    """
    return (2 if kind == "all_reduce" else 1) * (world_size - 1) / world_size


def combine(
    seconds_by_rank: list[dict[str, list[float]]], attempts: dict[str, int] | None = None
) -> tuple[list[Measurement], dict[str, list[float]]]:
    """Bus bandwidth by collective and size, and each rank's median time.

    A run is as slow as its slowest rank.
    """
    measurements, medians, ranks = [], {}, len(seconds_by_rank)
    for step in seconds_by_rank[0]:
        kind, _, size = step.partition(" ")
        slowest = [max(run) for run in zip(*(seconds[step] for seconds in seconds_by_rank), strict=True)]
        measurements.append(
            rate(
                "busbw_gb_s" if kind == "all_reduce" else f"{kind}_busbw_gb_s",
                int(size) * bus_bandwidth_factor(kind, ranks),
                slowest,
                1e9,
                conditions={"size_bytes": int(size), "ranks": ranks},
                attempts=(attempts or {}).get(step, 1),
            )
        )
        medians[step] = [round(statistics.median(seconds[step]), 6) for seconds in seconds_by_rank]
    return measurements, medians


def name_the_culprit(outcomes: list[Outcome], budget_s: float) -> list[Finding]:
    """The rank that broke the collective: it failed first, or, of ranks that hang, got least far."""
    ended = [outcome for outcome in outcomes if outcome.ending is not Ending.HUNG]
    if found := failures(sorted(ended, key=lambda outcome: outcome.ended_at)):
        return found[:1]  # the others failed because of it
    hung = [outcome for outcome in outcomes if outcome.ending is Ending.HUNG]
    if not hung:
        return []
    stages = {outcome.request.name: outcome.stage for outcome in hung}
    order = stage_order(outcomes[0].request.parameters)
    behind = min(stages.values(), key=order)
    culprits = [name for name, stage in stages.items() if stage == behind]
    if len(culprits) == len(outcomes):
        text = (
            f"all {len(outcomes)} ranks hung in stage: {behind}, and gave no result within {budget_s:.0f} s"
        )
    else:
        others = sorted(set(stages.values()) - {behind}, key=order)
        waiting = f"; the others waited in stage: {others[-1]}" if others else ""
        names = " and ".join(culprits)
        text = f"{names} hung in stage: {behind}, and gave no result within {budget_s:.0f} s{waiting}"
    action = "look for Xid errors of this rank's GPU in the kernel log; run again on an idle node"
    return [Finding("rank-hung", State.FAIL, text, action)]


def stage_order(parameters: dict[str, Any]) -> Callable[[str], int]:
    """How far a rank is that is in this stage; -1 for a stage that is none."""
    stages = ["starting", "loading torch", MEETING]
    for step in _steps(parameters):
        stages += [
            f"{doing} {_label(*step)}" for doing in ("preparing", "warming up with", "measuring", "checking")
        ]
    stages.append("leaving")
    return lambda stage: stages.index(stage) if stage in stages else -1


def _run(
    check: Check,
    node: Node,
    ranks: list[tuple[str, int]],
    *,
    backend: str,
    sizes_bytes: list[int],
    environment: dict[str, str],
    telemetry: Telemetry | None = None,
) -> TestResult:
    """Run one process for each (name, device) of `ranks` and judge what came back."""
    started = time.monotonic()
    budget_s = node.budget_s
    with tempfile.TemporaryDirectory(prefix="temper-validation-") as directory:
        requests = [
            Request(
                name,
                f"{__name__}:measure",
                backend,
                device=device,
                parameters={
                    "rank": rank,
                    "world_size": len(ranks),
                    "store": str(Path(directory) / "store"),
                    "timeout_s": budget_s * RANK_PATIENCE,
                    "collectives": node.plan.collectives,
                    "sizes_bytes": sizes_bytes,
                    "runs": node.plan.all_reduce_runs,
                },
                environment=environment,
            )
            for rank, (name, device) in enumerate(ranks)
        ]
        tick = telemetry.tick if telemetry else None
        outcomes = run_children(requests, budget_s, together=True, tick=tick)
    measurements: list[Measurement] = []
    details: dict[str, Any] = {}
    findings = name_the_culprit(outcomes, budget_s)
    if all(outcome.measured.details.get("seconds") for outcome in outcomes):
        measurements, medians = combine(
            [outcome.measured.details["seconds"] for outcome in outcomes],
            outcomes[0].measured.details["attempts"],
        )
        details["rank_median_s"] = medians
    return result(
        check,
        started,
        outcomes,
        measurements=measurements,
        findings=findings,
        details=details,
        telemetry=telemetry,
    )


class CpuAllReduce:
    """The code path of distributed training, with gloo over the loopback interface: on any machine."""

    id = "cpu_all_reduce"
    title = "gloo all-reduce between processes"
    needs = "torch"
    method = 1
    headline: tuple[str, ...] = ("busbw_gb_s",)

    def run(self, node: Node) -> TestResult:
        """Run it on this node."""
        if reason := node.why_no_torch():
            return not_run(self, reason)
        return _run(
            self,
            node,
            [(f"rank {rank}", 0) for rank in range(4 if node.cpus >= 4 else 2)],
            backend="cpu",
            sizes_bytes=[node.plan.cpu_all_reduce_bytes],
            environment={"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
        )


class GpuAllReduce:
    """NCCL over all GPUs of the node, with the node's own NCCL settings."""

    id = "gpu_all_reduce"
    title = "NCCL all-reduce over the GPUs of the node"
    needs = "two or more NVIDIA GPUs with their driver, torch built with CUDA"
    method = 1
    headline: tuple[str, ...] = ("busbw_gb_s",)

    def run(self, node: Node) -> TestResult:
        """Run it on this node."""
        if len(node.gpus) == 1:
            return not_run(self, "one GPU has nobody to reduce with: an all-reduce needs two")
        if reason := node.why_no_cuda():
            return not_run(self, reason)
        free = [
            gpu.memory_free_mib for gpu in getattr(node.smi, "gpus", ()) if gpu.memory_free_mib is not None
        ]
        room = MEMORY_SHARE * min(free, default=0) * (1 << 20)
        sizes_bytes = [size for size in node.plan.gpu_all_reduce_bytes if size <= room]
        if not sizes_bytes:
            return not_run(self, f"a GPU has only {min(free, default=0)} MiB of free memory")
        return _run(
            self,
            node,
            [(f"rank {gpu.index} (GPU {gpu.index})", gpu.index) for gpu in node.gpus],
            backend="cuda",
            sizes_bytes=sizes_bytes,
            environment=CUDA_ENVIRONMENT,
            telemetry=Telemetry(node.gpus),
        )
