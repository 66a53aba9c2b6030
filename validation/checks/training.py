"""What the training-shaped checks share: the model they train, and how they run on the CPU or on all GPUs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from validation.backends.protocol import MIXED, Backend, Shape
from validation.checks.check import BEYOND_QUICK, CUDA, TORCH, Check, CostStep, IdleNode, Scope, series
from validation.checks.launch import Recorder, on_each_gpu, on_the_cpu
from validation.checks.node import Node
from validation.model.contract import TestResult
from validation.processes.child import Request

#: Both fixed, so that numbers compare. On the CPU a step of a fraction of a second; on a GPU one of 10^13
#: operations, in matrices wide enough for tensor cores, that fits in 16 GB.
CPU_SHAPE = Shape(layers=4, width=256, heads=4, tokens=64, batch=8)
GPU_SHAPE = Shape(layers=4, width=2048, heads=16, tokens=1024, batch=8)


class CpuTraining(Check):
    """A training step on all CPUs, in a process of its own."""

    scope = Scope.CPU
    needs = (TORCH,)
    plans = BEYOND_QUICK
    #: How many rates it measures.
    timed: ClassVar[int] = 1

    def cost(self, idle: IdleNode) -> Iterator[CostStep]:
        """Yield how long it takes."""
        yield CostStep("start", idle.start)
        yield from series(idle.plan.cpu, self.timed) if self.timed else ()
        yield CostStep("model", idle.training, max(1, self.timed))

    def parameters(self, _node: Node) -> dict[str, Any]:
        """Return what the measurement is told besides the shape of the model."""
        return {}

    def perform(self, node: Node) -> TestResult:
        """Train on this node."""
        shared = {"shape": dataclasses.asdict(CPU_SHAPE), "timing": dataclasses.asdict(node.plan.cpu)}
        return on_the_cpu(self, node, shared | self.parameters(node))


class GpuTraining(CpuTraining):
    """A training step on all GPUs at the same time, as a job runs it."""

    scope = Scope.EACH_GPU
    needs = (CUDA,)
    #: Whether it wants new processes, and the memory that others hold.
    alone: ClassVar[bool] = False

    def cost(self, idle: IdleNode) -> Iterator[CostStep]:
        """Yield how long it takes, where it is not alone in the processes of the tests before."""
        if self.alone:
            yield CostStep("start", idle.start)
            yield CostStep("contexts", idle.contexts)
        yield from series(idle.plan.gpu_copy, self.timed) if self.timed else ()
        yield CostStep("model", idle.training, max(1, self.timed))

    def perform(self, node: Node) -> TestResult:
        """Train on this node."""
        shared = {"shape": dataclasses.asdict(GPU_SHAPE), "timing": dataclasses.asdict(node.plan.gpu_copy)}
        if self.alone:
            node.pool.close()
        return on_each_gpu(self, node, shared | self.parameters(node), new=self.alone)


def begin(backend: Backend, request: Request, stage: Callable[[str], None]) -> tuple[Shape, Recorder]:
    """Return the model that a request asks for, which fits, and what keeps its numbers.

    Raises NotRunError.
    """
    shape, recorder = Shape(**request.parameters["shape"]), Recorder(backend, request, stage)
    recorder.need(memory_of(shape))
    return shape, recorder


def mixed_format(backend: Backend) -> str | None:
    """Return the number format of automatic mixed precision that the hardware has: bf16, else fp16."""
    return next((way for way in MIXED if way in backend.dtypes()), None)


def memory_of(shape: Shape) -> int:
    """About what a plain step in fp32 takes: weights, gradients and momentum, twice, and activations.

    Per token and block, some thirty numbers for each of `width` are kept for the backward pass.
    """
    weights = 12 * shape.width**2 * shape.layers * 4
    activations = 32 * shape.batch * shape.tokens * shape.width * shape.layers * 4
    return 6 * weights + activations
