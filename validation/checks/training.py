"""What the training-shaped checks share: the model they train, and a child for the CPU or for each GPU."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Any

from validation.backends.factory import make
from validation.backends.protocol import Shape
from validation.checks.measured import each_gpu, not_run, result, stay_near, watch
from validation.processes.child import Request
from validation.processes.pool import run_children

if TYPE_CHECKING:
    from collections.abc import Callable

    from validation.backends.protocol import Backend
    from validation.checks.check import Check
    from validation.checks.node import Node
    from validation.model.contract import Measured, TestResult

    Stage = Callable[[str], None]

#: Both fixed, so that numbers compare. On the CPU a step of a fraction of a second; on a GPU one of 10^13
#: operations, in matrices wide enough for tensor cores, that fits in 16 GB.
CPU_SHAPE = Shape(layers=4, width=256, heads=4, tokens=64, batch=8)
GPU_SHAPE = Shape(layers=4, width=2048, heads=16, tokens=1024, batch=8)


def in_a_child(
    measurement: Callable[[Backend, Request, Stage], Measured],
) -> Callable[[Request, Stage], Measured]:
    """What a child runs: the measurement on its real device, from the CPUs next to that."""

    def measure(request: Request, stage: Stage) -> Measured:
        stay_near(request)
        stage("loading torch")
        return measurement(make(request.backend, request.device), request, stage)

    return measure


def on_the_cpu(check: Check, node: Node, function: str, parameters: dict[str, Any]) -> TestResult:
    """Run `function` in a child, on all CPUs."""
    if reason := node.why_no_torch():
        return not_run(check, reason)
    started = time.monotonic()
    shared = {"shape": dataclasses.asdict(CPU_SHAPE), "timing": dataclasses.asdict(node.plan.cpu)}
    request = Request("the CPU", function, "cpu", parameters=shared | parameters)
    return result(check, started, run_children([request], node.budget_s))


def on_each_gpu(
    check: Check, node: Node, function: str, parameters: dict[str, Any], *, alone: bool = False
) -> TestResult:
    """Run `function` in a child for each GPU, all at the same time, as a training job would.

    `alone`: in a new one that is not used again, and without those that wait for other tests.
    """
    if reason := node.why_no_cuda():
        return not_run(check, reason)
    started, telemetry = time.monotonic(), watch(node)
    shared = {"shape": dataclasses.asdict(GPU_SHAPE), "timing": dataclasses.asdict(node.plan.gpu_copy)}
    requests = each_gpu(node, function, shared | parameters)
    if alone:
        node.pool.close()
    pool = None if alone else node.pool
    outcomes = run_children(requests, node.budget_s, tick=telemetry.tick, pool=pool)
    return result(check, started, outcomes, telemetry=telemetry)


def memory_of(shape: Shape) -> int:
    """About what a plain step in fp32 takes: weights, gradients and momentum, twice, and activations.

    Per token and block, some thirty numbers for each of `width` are kept for the backward pass.
    """
    weights = 12 * shape.width**2 * shape.layers * 4
    activations = 32 * shape.batch * shape.tokens * shape.width * shape.layers * 4
    return 6 * weights + activations
