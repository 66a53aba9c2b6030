"""Copies: memory to memory on the CPU, and between pinned host memory and each GPU."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from validation.backends.factory import make
from validation.backends.libraries import release
from validation.backends.protocol import Backend
from validation.checks.check import (
    BEYOND_QUICK,
    CUDA,
    TORCH,
    TWO_GPUS,
    Check,
    CostStep,
    IdleNode,
    Need,
    Scope,
    not_run,
    series,
)
from validation.checks.launch import Recorder, exclusive, on_each_gpu, on_the_cpu
from validation.checks.measured import stay_near
from validation.checks.node import Node
from validation.model.contract import Measured, TestResult
from validation.model.not_run import NotRunError
from validation.model.plans import Timing
from validation.probes import numa
from validation.probes.node_probe import failure_reason
from validation.processes.child import Request
from validation.processes.pool import ProcessOutcome

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
#: The first torch that can be told to give page-locked memory back (processes/child.py does): an older one
#: keeps it, GB of each GPU's process, until the process ends.
HOST_CACHE_TORCH = (2, 5)


def measure(request: Request, stage: Callable[[str], None]) -> Measured:
    """In a child: every direction that was asked for. Raises NotRunError."""
    far = request.parameters.get("numa_node")
    if far is None:
        stay_near(request)
    elif reason := numa.bind(far):
        raise NotRunError(reason)
    return transfer(make(request.backend, request.device, stage), request, stage)


def transfer(backend: Backend, request: Request, stage: Callable[[str], None]) -> Measured:
    """Return the measurement itself, on any backend. Raises NotRunError.

    Only what is timed waits for its turn: the buffers of all GPUs are made before the first, and all results
    checked after the last.
    """
    size_bytes, directions = request.parameters["size_bytes"], request.parameters["directions"]
    recorder = Recorder(backend, request, stage)
    recorder.need(2 * size_bytes * len(directions))
    stage("filling buffers")
    operations = {direction: backend.copy(direction, size_bytes) for direction in directions}
    with exclusive(request, stage):
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


def _parameters(size_bytes: int, directions: tuple[str, ...], timing: Timing) -> dict[str, Any]:
    return {
        "size_bytes": size_bytes,
        "directions": list(directions),
        "timing": dataclasses.asdict(timing),
    }


class CpuCopy(Check):
    """Memory to memory; bytes read plus bytes written, as STREAM counts."""

    id = "cpu_copy"
    title = "memory copy on the CPU"
    place = 110
    scope = Scope.CPU
    needs = (TORCH,)
    passes = "every element arrives"
    headline = ("copy_gb_s",)

    def cost(self, idle: IdleNode) -> Iterator[CostStep]:
        """Yield how long it takes, in the process of the test before."""
        yield from series(idle.plan.cpu)
        yield CostStep("check", idle.product)

    def perform(self, node: Node) -> TestResult:
        """Copy on this node."""
        parameters = _parameters(node.plan.cpu_copy_bytes, ("local",), node.plan.cpu)
        return on_the_cpu(self, node, parameters, reuse=True)


class GpuTransfer(Check):
    """Pinned host memory to GPU and back, one GPU after the other, from the CPUs next to it.

    Beyond `quick` also both ways at once, and in `standard` pageable memory.
    """

    id = "gpu_transfer"
    title = "transfer between host and every GPU"
    place = 230
    scope = Scope.EACH_GPU
    needs: ClassVar[tuple[Need, ...]] = (CUDA,)
    passes = "every element arrives"
    #: 2: buffers are made before the turn; 3: those of all GPUs before the first; 4: checks follow the last.
    method = 4
    headline = ("h2d_pinned_gb_s", "d2h_pinned_gb_s")
    proves_a_gpu = True
    #: What stands in the names of its numbers for pinned memory; what is copied, if not what the plan says.
    how: ClassVar[str] = "pinned"
    directions: ClassVar[tuple[str, ...]] = ()
    one_at_a_time: ClassVar[bool] = True

    def cost(self, idle: IdleNode) -> Iterator[CostStep]:
        """Yield how long it takes, in the processes of the tests before."""
        yield CostStep("buffers", idle.buffers)
        directions = self.directions or idle.plan.gpu_directions
        yield from series(idle.plan.gpu_copy, len(directions), idle.gpus if self.one_at_a_time else 1)
        yield CostStep("counters", idle.nvidia_smi)

    def perform(self, node: Node, numa_nodes: dict[int, int] | None = None) -> TestResult:
        """Copy on this node, each GPU from the NUMA node that is given for it, if any."""
        directions = self.directions or node.plan.gpu_directions
        found = on_each_gpu(
            self,
            node,
            _parameters(node.plan.gpu_copy_bytes, directions, node.plan.gpu_copy) | {"how": self.how},
            lambda gpu: {"numa_node": numa_nodes[gpu.index]} if numa_nodes else {},
            one_at_a_time=self.one_at_a_time,
            new=bool(numa_nodes),  # what it is bound to stays with a process
        )
        if node.torch and release(node.torch.version) < HOST_CACHE_TORCH:
            node.pool.close()
        return found


class GpuTransferTogether(GpuTransfer):
    """The same on all GPUs at once: what the host's memory and root ports carry."""

    id = "gpu_transfer_together"
    title = "transfer between host and all GPUs at once"
    place = 240
    needs = (TWO_GPUS, CUDA)
    plans = BEYOND_QUICK
    method = 1
    headline = ("h2d_together_gb_s", "d2h_together_gb_s")
    proves_a_gpu = False
    how = "together"
    directions = ("h2d", "d2h")
    one_at_a_time = False


class GpuTransferRemote(GpuTransfer):
    """The same, one GPU after the other, bound to the NUMA node farthest from the GPU.

    That is process and memory: what wrong binding costs. Not run on one NUMA node.
    """

    id = "gpu_transfer_remote"
    title = "transfer between every GPU and the host memory farthest from it"
    place = 250
    needs = (CUDA, Need("two NUMA nodes"))
    plans = BEYOND_QUICK
    method = 3  # 2: buffers of all GPUs are made before the first turn; 3: checks follow the last
    headline = ("h2d_remote_gb_s", "d2h_remote_gb_s")
    proves_a_gpu = False
    how = "remote"
    directions = ("h2d", "d2h")

    def perform(self, node: Node, numa_nodes: dict[int, int] | None = None) -> TestResult:
        """Copy on this node, each GPU from the NUMA node farthest from it."""
        topology = node.topology
        if isinstance(topology, ProcessOutcome):
            return not_run(self, failure_reason(topology))
        numa_nodes = {}
        for gpu in node.gpus:
            if (place := (topology.gpu_far_numa_node or {}).get(gpu.pci_address)) is None:
                reason = (
                    f"GPU {gpu.index} has no remote NUMA node: there is one only, or nobody says where it is"
                )
                return not_run(self, reason)
            numa_nodes[gpu.index] = place
        return super().perform(node, numa_nodes)
