"""The GPUs' own memory: bandwidth, a pattern test, and copies from GPU to GPU."""

from __future__ import annotations

import dataclasses
import time
from functools import partial
from typing import TYPE_CHECKING

from validation.backends import make
from validation.checks.measured import CUDA_ENVIRONMENT, each_gpu, not_run, result, watch
from validation.checks.recorder import WRONG_DATA, Recorder
from validation.checks.turns import blame, my_turn, taking_turns
from validation.child import Request, run_children

if TYPE_CHECKING:
    from collections.abc import Callable

    from validation.backends import Backend, Operation
    from validation.checks import Node
    from validation.contract import Measured, TestResult

#: Of the free memory, what the pattern test leaves to libraries.
PATTERN_SHARE = 0.9


def measure(request: Request, stage: Callable[[str], None]) -> Measured:
    """In a child: bandwidth of copy and triad, then the pattern test. Raises NotRunError."""
    stage("loading torch")
    return stream(make(request.backend, request.device), request, stage)


def stream(backend: Backend, request: Request, stage: Callable[[str], None]) -> Measured:
    """The measurement itself, on any backend. Bytes read and written count, as STREAM does."""
    parameters = request.parameters
    size_bytes, recorder = parameters["size_bytes"], Recorder(backend, request, stage)
    recorder.need(4 * size_bytes)
    operations: dict[str, tuple[int, Callable[[], Operation]]] = {
        "memory_copy_gb_s": (2, partial(backend.copy, "local", size_bytes)),
        "memory_triad_gb_s": (3, partial(backend.triad, size_bytes)),
    }
    for name, (moved, make_operation) in operations.items():
        operation = make_operation()
        conditions: dict[str, int | str] = {"size_bytes": int(operation.work)}
        recorder.rate(name, operation, doing=f"measuring {name}", per_run=moved, conditions=conditions)
        recorder.check(
            operation, doing=f"checking {name}", wrong=partial(_wrong_data, name), action=WRONG_DATA
        )
        del operation  # its memory is for the next one
    tested = min(parameters["pattern_bytes"], int(PATTERN_SHARE * backend.free_bytes()))
    recorder.check(
        backend.memory_pattern(tested),
        doing=f"writing a pattern to {tested / 1e9:.1f} GB and reading it",
        wrong=lambda words: f"{words:.0f} words of {tested / 1e9:.1f} GB did not keep what was written",
        action=WRONG_DATA,
    )
    return recorder.measured({"pattern_bytes": tested})


def _wrong_data(what: str, error: float) -> str:
    return f"{error:.2g} of the data of {what} is wrong"


class GpuMemory:
    """Bandwidth of each GPU's memory, all at the same time, and whether it keeps what is written."""

    id = "gpu_memory"
    title = "memory of every GPU: bandwidth and a pattern test"
    needs = "an NVIDIA GPU with its driver, torch built with CUDA"
    method = 2  # 2: one warm-up for all
    headline: tuple[str, ...] = ("memory_triad_gb_s", "memory_copy_gb_s")

    def run(self, node: Node) -> TestResult:
        """Run it on this node."""
        if reason := node.why_no_cuda():
            return not_run(self, reason)
        started, telemetry = time.monotonic(), watch(node)
        parameters = {
            "size_bytes": node.plan.gpu_copy_bytes,
            "timing": dataclasses.asdict(node.plan.gpu_copy),
            "pattern_bytes": node.plan.gpu_pattern_bytes,
        }
        requests = each_gpu(node, f"{__name__}:measure", parameters)
        outcomes = run_children(requests, node.budget_s, tick=telemetry.tick, kept=node.kept)
        return result(self, started, outcomes, telemetry=telemetry)


def measure_peers(request: Request, stage: Callable[[str], None]) -> Measured:
    """In a child: copies from its GPU to each other one. Raises NotRunError."""
    stage("loading torch")
    backend = make(request.backend, request.device)
    with my_turn(request, stage):
        return send(backend, request, stage)


def send(backend: Backend, request: Request, stage: Callable[[str], None]) -> Measured:
    """The measurement itself, on any backend. Raises NotRunError."""
    size_bytes, recorder = request.parameters["size_bytes"], Recorder(backend, request, stage)
    recorder.need(4 * size_bytes)
    for peer in request.parameters["peers"]:
        operation = backend.copy(f"peer_{peer}", size_bytes)
        recorder.rate(
            "peer_gb_s",
            operation,
            doing=f"copying to GPU {peer}",
            conditions={"size_bytes": int(operation.work), "to": peer},
        )
        recorder.check(
            operation,
            doing=f"checking the copy to GPU {peer}",
            wrong=partial(_wrong_data, f"the copy to GPU {peer}"),
            action=WRONG_DATA,
        )
        del operation
    beyond = [peer for peer in request.parameters["peers"] if not backend.reaches(peer)]
    return recorder.measured({"through_host_memory_to": beyond} if beyond else {})


class GpuPeers:
    """The matrix of copies from each GPU to each other one, one pair at a time."""

    id = "gpu_peers"
    title = "copies from GPU to GPU, every pair"
    needs = "two or more NVIDIA GPUs with their driver, torch built with CUDA"
    method = 1
    headline: tuple[str, ...] = ("peer_gb_s",)

    def run(self, node: Node) -> TestResult:
        """Run it on this node."""
        if len(node.gpus) == 1:
            return not_run(self, "one GPU has no other to copy to")
        if reason := node.why_no_cuda():
            return not_run(self, reason)
        if (exclusive := node.exclusive_gpu) is not None:
            return not_run(
                self,
                f"GPU {exclusive} is in an exclusive compute mode: it serves one process at a time, and here "
                "the process of each GPU uses all others",
            )
        started, telemetry = time.monotonic(), watch(node)
        with taking_turns() as turn:
            requests = [
                Request(
                    f"GPU {gpu.index}",
                    f"{__name__}:measure_peers",
                    "cuda",
                    device=gpu.index,
                    parameters={
                        "size_bytes": node.plan.gpu_peer_bytes,
                        "timing": dataclasses.asdict(node.plan.gpu_peer),
                        "peers": [other.index for other in node.gpus if other is not gpu],
                        "turn": turn,
                    },
                    environment=CUDA_ENVIRONMENT,
                )
                for gpu in node.gpus
            ]
            outcomes = run_children(requests, node.budget_s, tick=telemetry.tick)
        return result(self, started, outcomes, findings=blame(outcomes), telemetry=telemetry)
