"""Copies: memory to memory on the CPU, and between pinned host memory and each GPU."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING

from validation.backends.factory import make
from validation.checks.measured import each_gpu, not_run, result, stay_near, watch
from validation.checks.recorder import Recorder
from validation.checks.turns import blame, in_turn, my_turn, taking_turns, together
from validation.model.not_run import NotRunError
from validation.probes import numa
from validation.probes.node_probe import failure_reason
from validation.processes.child import Request
from validation.processes.pool import Outcome, run_children

if TYPE_CHECKING:
    from collections.abc import Callable

    from validation.backends.protocol import Backend
    from validation.checks.node import Node
    from validation.model.contract import Measured, TestResult

#: Measurement name and bytes moved per byte copied: a local copy reads and writes memory (as STREAM counts),
#: a transfer crosses once.
DIRECTIONS = {
    "local": ("copy_gb_s", 2),
    "h2d": ("h2d_pinned_gb_s", 1),
    "d2h": ("d2h_pinned_gb_s", 1),
    "both": ("both_pinned_gb_s", 1),
    "h2d_pageable": ("h2d_pageable_gb_s", 1),
    "d2h_pageable": ("d2h_pageable_gb_s", 1),
}


def measure(request: Request, stage: Callable[[str], None]) -> Measured:
    """In a child: every direction that was asked for. Raises NotRunError."""
    far = request.parameters.get("numa_node")
    if far is None:
        stay_near(request)
    elif reason := numa.bind(far):
        raise NotRunError(reason)
    stage("loading torch")
    return transfer(make(request.backend, request.device), request, stage)


def transfer(backend: Backend, request: Request, stage: Callable[[str], None]) -> Measured:
    """The measurement itself, on any backend. Raises NotRunError.

    Only what is timed waits for its turn: all buffers are made before, and results checked after, at the same
    time as those of the other GPUs.
    """
    size_bytes, directions = request.parameters["size_bytes"], request.parameters["directions"]
    recorder = Recorder(backend, request, stage)
    recorder.need(2 * size_bytes * len(directions))
    stage("filling buffers")
    operations = {direction: backend.copy(direction, size_bytes) for direction in directions}
    with my_turn(request, stage):
        for direction, operation in operations.items():
            name, moved = DIRECTIONS[direction]
            recorder.rate(
                name.replace("pinned", request.parameters.get("how", "pinned")),
                operation,
                doing=f"copying {direction}",
                per_run=moved,
                conditions={"size_bytes": int(operation.work)},
            )
    for direction, operation in operations.items():
        recorder.check(
            operation,
            doing=f"checking the copy {direction}",
            case="copy",
            direction=direction,
            size_mb=size_bytes / 1e6,
        )
    return recorder.measured()


class CpuCopy:
    """Memory bandwidth as a copy loop sees it."""

    id = "cpu_copy"
    title = "memory copy on the CPU"
    needs = "torch"
    method = 1
    headline: tuple[str, ...] = ("copy_gb_s",)

    def run(self, node: Node) -> TestResult:
        """Run it on this node."""
        if reason := node.why_no_torch():
            return not_run(self, reason)
        started = time.monotonic()
        request = Request(
            "the CPU",
            f"{__name__}:measure",
            "cpu",
            parameters={
                "size_bytes": node.plan.cpu_copy_bytes,
                "directions": ["local"],
                "timing": dataclasses.asdict(node.plan.cpu),
            },
            reuse=True,
        )
        return result(self, started, run_children([request], node.budget_s, pool=node.pool))


class GpuTransfer:
    """Host to device and back, pinned and not, one GPU after the other, each from the CPUs next to it."""

    id = "gpu_transfer"
    title = "transfer between host and every GPU"
    needs = "an NVIDIA GPU with its driver, torch built with CUDA"
    method = 2  # 2: buffers are made before the turn
    headline: tuple[str, ...] = ("h2d_pinned_gb_s", "d2h_pinned_gb_s")

    def run(self, node: Node) -> TestResult:
        """Run it on this node."""
        return in_turn(
            self,
            node,
            f"{__name__}:measure",
            {
                "size_bytes": node.plan.gpu_copy_bytes,
                "directions": list(node.plan.gpu_directions),
                "timing": dataclasses.asdict(node.plan.gpu_copy),
            },
        )


class GpuTransferTogether:
    """Host to device and back on all GPUs at once: what memory and root ports of the host can carry."""

    id = "gpu_transfer_together"
    title = "transfer between host and all GPUs at once"
    needs = "two or more NVIDIA GPUs with their driver, torch built with CUDA"
    method = 1
    headline: tuple[str, ...] = ("h2d_together_gb_s", "d2h_together_gb_s")

    def run(self, node: Node) -> TestResult:
        """Run it on this node."""
        if len(node.gpus) == 1:
            return not_run(self, "one GPU has nobody to share the host with")
        return together(
            self,
            node,
            f"{__name__}:measure",
            {
                "size_bytes": node.plan.gpu_copy_bytes,
                "directions": ["h2d", "d2h"],
                "timing": dataclasses.asdict(node.plan.gpu_copy),
                "how": "together",
            },
        )


class GpuTransferRemote:
    """Host to device and back from the NUMA node farthest from the GPU: what a badly bound program gets."""

    id = "gpu_transfer_remote"
    title = "transfer between every GPU and the host memory farthest from it"
    needs = "an NVIDIA GPU with its driver, torch built with CUDA, two NUMA nodes"
    method = 1
    headline: tuple[str, ...] = ("h2d_remote_gb_s", "d2h_remote_gb_s")

    def run(self, node: Node) -> TestResult:
        """Run it on this node."""
        if reason := node.why_no_cuda():
            return not_run(self, reason)
        topology = node.topology
        if isinstance(topology, Outcome):
            return not_run(self, failure_reason(topology))
        far = {gpu.index: (topology.gpu_far_numa_node or {}).get(gpu.pci_address) for gpu in node.gpus}
        if unknown := [index for index, place in far.items() if place is None]:
            return not_run(
                self,
                f"GPU {unknown[0]} has no remote NUMA node: there is one only, or nobody says where it is",
            )
        started, telemetry = time.monotonic(), watch(node)
        with taking_turns() as turn:
            parameters = {
                "size_bytes": node.plan.gpu_copy_bytes,
                "directions": ["h2d", "d2h"],
                "timing": dataclasses.asdict(node.plan.gpu_copy),
                "turn": turn,
                "how": "remote",
            }
            requests = [
                # Not kept: what it is bound to stays with a process.
                dataclasses.replace(
                    request,
                    parameters=request.parameters | {"numa_node": far[request.device]},
                    reuse=False,
                )
                for request in each_gpu(node, f"{__name__}:measure", parameters)
            ]
            node.free_exclusive_gpu()
            outcomes = run_children(requests, node.budget_s, tick=telemetry.tick)
        return result(self, started, outcomes, findings=blame(outcomes), telemetry=telemetry)
