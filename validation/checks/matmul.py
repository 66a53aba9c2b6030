"""Matrix multiplication: FLOP/s of one fixed shape, and whether the product is right."""

from __future__ import annotations

import dataclasses
import time
from functools import partial
from typing import TYPE_CHECKING

from validation.backends import make
from validation.checks.measured import Telemetry, each_gpu, not_run, result
from validation.checks.recorder import WRONG_COMPUTATION, Recorder
from validation.child import Request, run_children

if TYPE_CHECKING:
    from collections.abc import Callable

    from validation.backends import Backend
    from validation.checks import Node
    from validation.contract import Measured, TestResult

#: The largest deviation that rounding explains, of a row's checksum over its RMS value (Matmul.error says how
#: it is taken). Rounding of operands or result: 2^-24 relative for fp32, 2^-11 for tf32 and fp16, 2^-8 for
#: bf16; averaged over a row, times four.
TOLERANCE = {"fp32": 1e-4, "tf32": 5e-3, "fp16": 5e-3, "bf16": 2e-2}


def measure(request: Request, stage: Callable[[str], None]) -> Measured:
    """In a child: every number format that was asked for and that the device has. Raises NotRunError."""
    stage("loading torch")
    return multiply(make(request.backend, request.device), request, stage)


def multiply(backend: Backend, request: Request, stage: Callable[[str], None]) -> Measured:
    """The measurement itself, on any backend. Raises NotRunError."""
    parameters = request.parameters
    size, recorder = parameters["size"], Recorder(backend, request, stage)
    recorder.need(3 * size * size * 4)
    supported = backend.dtypes()
    for dtype in (dtype for dtype in parameters["dtypes"] if dtype in supported):
        operation = backend.matmul(dtype, size)
        recorder.rate(
            f"{dtype}_{parameters['unit']}",
            operation,
            doing=f"multiplying in {dtype}",
            scale=parameters["scale"],
            conditions={"size": size, "dtype": dtype},
        )
        recorder.check(
            operation,
            doing=f"checking the {dtype} product",
            wrong=partial(_wrong_product, dtype, size),
            action=WRONG_COMPUTATION,
            tolerance=TOLERANCE[dtype],
        )
    skipped = [dtype for dtype in parameters["dtypes"] if dtype not in supported]
    return recorder.measured({"not_supported": skipped} if skipped else {})


def _wrong_product(dtype: str, size: int, error: float) -> str:
    return (
        f"the {dtype} product of {size} x {size} matrices is wrong: error {error:.2g}, "
        f"rounding explains {TOLERANCE[dtype]:g}"
    )


class CpuMatmul:
    """fp32 on all CPUs: shows a throttled or oversubscribed CPU, and works on any machine."""

    id = "cpu_matmul"
    title = "fp32 matrix multiplication on the CPU"
    needs = "torch"
    method = 1
    headline: tuple[str, ...] = ("fp32_gflops",)

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
                "size": node.plan.cpu_matmul_size(node.cpus),
                "dtypes": ["fp32"],
                "timing": dataclasses.asdict(node.plan.cpu),
                "unit": "gflops",
                "scale": 1e9,
            },
        )
        return result(self, started, run_children([request], node.budget_s))


class GpuMatmul:
    """Every number format, on all GPUs at the same time: in real work, too, they share power and air."""

    id = "gpu_matmul"
    title = "matrix multiplication on every GPU"
    needs = "an NVIDIA GPU with its driver, torch built with CUDA"
    method = 1
    headline: tuple[str, ...] = ("bf16_tflops", "fp16_tflops", "fp32_tflops")

    def run(self, node: Node) -> TestResult:
        """Run it on this node."""
        if reason := node.why_no_cuda():
            return not_run(self, reason)
        started = time.monotonic()
        telemetry = Telemetry(node.gpus)
        requests = each_gpu(
            node,
            f"{__name__}:measure",
            {
                "size": node.plan.gpu_matmul_size,
                "dtypes": ["fp32", "tf32", "fp16", "bf16"],
                "timing": dataclasses.asdict(node.plan.gpu),
                "unit": "tflops",
                "scale": 1e12,
            },
        )
        outcomes = run_children(requests, node.budget_s, tick=telemetry.tick)
        return result(self, started, outcomes, telemetry=telemetry)
