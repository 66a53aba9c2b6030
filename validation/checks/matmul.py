"""Matrix multiplication: FLOP/s of one fixed shape, and whether the product is right."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Any

from validation.backends import NotRunError, make
from validation.checks.measured import CUDA_ENVIRONMENT, Telemetry, not_run, result
from validation.child import Request, run_children
from validation.contract import Finding, Measured, State
from validation.measure import Timing, rate, times

if TYPE_CHECKING:
    from collections.abc import Callable

    from validation.backends import Backend
    from validation.checks import Node
    from validation.contract import TestResult

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
    size, timing = parameters["size"], Timing(**parameters["timing"])
    unit, scale = parameters["unit"], parameters["scale"]
    needed = 3 * size * size * 4
    if (free := backend.free_bytes()) < needed:
        raise NotRunError(f"{needed / 1e9:.1f} GB of free memory needed, {free / 1e9:.1f} GB found")
    device = request.device if request.backend == "cuda" else None
    supported = backend.dtypes()
    measurements, findings = [], []
    for dtype in (dtype for dtype in parameters["dtypes"] if dtype in supported):
        stage(f"multiplying in {dtype}")
        operation = backend.matmul(dtype, size)
        seconds = times(backend, operation, timing)
        measurements.append(
            rate(f"{dtype}_{unit}", operation.work, seconds, scale, device, {"size": size, "dtype": dtype})
        )
        stage(f"checking the {dtype} product")
        error = operation.error()
        if not error <= TOLERANCE[dtype]:  # also catches NaN
            findings.append(
                Finding(
                    "wrong-result",
                    State.FAIL,
                    f"{request.name}: the {dtype} product of {size} x {size} matrices is wrong: "
                    f"error {error:.2g}, rounding explains {TOLERANCE[dtype]:g}",
                    "take the node out: it computes wrong without an error message",
                    device,
                )
            )
    skipped = [dtype for dtype in parameters["dtypes"] if dtype not in supported]
    details: dict[str, Any] = {"not_supported": skipped} if skipped else {}
    return Measured(tuple(measurements), tuple(findings), details=details)


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
        telemetry = Telemetry()
        requests = [
            Request(
                f"GPU {gpu.index}",
                f"{__name__}:measure",
                "cuda",
                device=gpu.index,
                parameters={
                    "size": node.plan.gpu_matmul_size,
                    "dtypes": ["fp32", "tf32", "fp16", "bf16"],
                    "timing": dataclasses.asdict(node.plan.gpu),
                    "unit": "tflops",
                    "scale": 1e12,
                },
                environment=CUDA_ENVIRONMENT,
            )
            for gpu in node.gpus
        ]
        outcomes = run_children(requests, node.budget_s, tick=telemetry.tick)
        return result(self, started, outcomes, details=telemetry.details())
