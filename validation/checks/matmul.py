"""Matrix multiplication: FLOP/s of one fixed shape, and whether the product is right."""

from __future__ import annotations

import dataclasses
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from validation.backends import make
from validation.checks.measured import Telemetry, each_gpu, failures, not_run, result
from validation.checks.recorder import WRONG_COMPUTATION, Recorder
from validation.checks.turns import blame, my_turn, taking_turns
from validation.child import Request, run_children
from validation.contract import Finding, State

if TYPE_CHECKING:
    from collections.abc import Callable

    from validation.backends import Backend
    from validation.checks import Node
    from validation.child import Outcome
    from validation.contract import GpuIdentity, Measured, TestResult

#: The largest deviation that rounding explains, of a row's checksum over its RMS value (Matmul.error says how
#: it is taken). Rounding of operands or result: 2^-24 relative for fp32, 2^-11 for tf32 and fp16, 2^-8 for
#: bf16; averaged over a row, times four. fp8 products come out in bf16, and are added less exactly.
TOLERANCE = {"fp32": 1e-4, "tf32": 5e-3, "fp16": 5e-3, "bf16": 2e-2, "fp8": 5e-2}


def measure(request: Request, stage: Callable[[str], None]) -> Measured:
    """In a child: every number format that was asked for and that the device has. Raises NotRunError."""
    stage("loading torch")
    backend = make(request.backend, request.device)
    with my_turn(request, stage):
        return multiply(backend, request, stage)


def multiply(backend: Backend, request: Request, stage: Callable[[str], None]) -> Measured:
    """The measurement itself, on any backend. Raises NotRunError."""
    parameters = request.parameters
    size, recorder = parameters["size"], Recorder(backend, request, stage)
    recorder.need(3 * size * size * 4)
    supported, digests = backend.dtypes(), {}
    for dtype in (dtype for dtype in parameters["dtypes"] if dtype in supported):
        operation = backend.matmul(dtype, size)
        if parameters.get("compare_bits"):
            stage(f"taking the checksum of a {dtype} product")
            digests[dtype] = operation.digest()
        recorder.rate(
            f"{dtype}_{parameters['unit']}",
            operation,
            doing=f"multiplying in {dtype}",
            scale=parameters["scale"],
            conditions={"size": size, "dtype": dtype},
            peak=f"{dtype}_peak_{parameters['unit']}",
        )
        if dtype in digests and (again := operation.digest()) != digests[dtype]:
            recorder.find(
                "not-repeatable",
                f"{request.name}: the same {dtype} product had checksum {digests[dtype]}, and after the load "
                f"{again}",
                WRONG_COMPUTATION,
            )
        recorder.check(
            operation,
            doing=f"checking the {dtype} product",
            wrong=partial(_wrong_product, dtype, size),
            action=WRONG_COMPUTATION,
            tolerance=TOLERANCE[dtype],
        )
    skipped = [dtype for dtype in parameters["dtypes"] if dtype not in supported]
    details: dict[str, Any] = {"not_supported": skipped} if skipped else {}
    return recorder.measured(details | ({"digests": digests} if digests else {}))


def odd_ones_out(outcomes: list[Outcome], gpus: tuple[GpuIdentity, ...]) -> list[Finding]:
    """GPUs whose product differs in some bit from that of the others of their model."""
    names = {gpu.index: gpu.name for gpu in gpus}
    groups: dict[tuple[str, str], dict[str, list[int]]] = {}
    for outcome in outcomes:
        device = outcome.request.device
        for dtype, digest in outcome.measured.details.get("digests", {}).items():
            group = groups.setdefault((names.get(device, ""), dtype), {})
            group.setdefault(digest, []).append(device)
    findings = []
    for (_, dtype), devices_of in groups.items():
        most = max(map(len, devices_of.values()))
        majority = 2 * most > sum(map(len, devices_of.values()))
        if len(devices_of) == 1:
            continue
        # Without a majority nobody can say which of them is wrong: then none is condemned, and all are named.
        suspects = [d for d in devices_of.values() if not majority or len(d) < most]
        findings += [
            Finding(
                "gpu-differs",
                State.FAIL if majority else State.DEGRADED,
                f"GPU {device}: its {dtype} product is not bit for bit that of "
                + (f"the {most} others of its model" if majority else "all others of its model"),
                WRONG_COMPUTATION if majority else "run again, and compare with another node of this model",
                device,
            )
            for device in sorted(device for devices in suspects for device in devices)
        ]
    return findings


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
            keep=True,
        )
        return result(self, started, run_children([request], node.budget_s, kept=node.kept))


class GpuMatmul:
    """Every number format, on all GPUs at the same time: in real work, too, they share power and air."""

    id = "gpu_matmul"
    title = "matrix multiplication on every GPU"
    needs = "an NVIDIA GPU with its driver, torch built with CUDA"
    method = 2  # 2: one warm-up for all
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
                "dtypes": ["fp32", "tf32", "fp16", "bf16", "fp8"],
                "compare_bits": True,
                "timing": dataclasses.asdict(node.plan.gpu),
                "unit": "tflops",
                "scale": 1e12,
            },
        )
        outcomes = run_children(requests, node.budget_s, tick=telemetry.tick, kept=node.kept)
        findings = failures(outcomes) + odd_ones_out(outcomes, node.gpus)
        return result(self, started, outcomes, findings=findings, telemetry=telemetry)


class GpuMatmulAlone:
    """bf16, one GPU after the other: what a GPU can do when it shares neither power nor air."""

    id = "gpu_matmul_alone"
    title = "matrix multiplication, one GPU at a time"
    needs = "an NVIDIA GPU with its driver, torch built with CUDA"
    method = 1
    headline: tuple[str, ...] = ("bf16_alone_tflops", "fp16_alone_tflops")

    def run(self, node: Node) -> TestResult:
        """Run it on this node."""
        if reason := node.why_no_cuda():
            return not_run(self, reason)
        started, telemetry = time.monotonic(), Telemetry(node.gpus)
        with taking_turns() as turn:
            requests = each_gpu(
                node,
                f"{__name__}:measure",
                {
                    "size": node.plan.gpu_matmul_size,
                    "dtypes": ["fp16", "bf16"],
                    "timing": dataclasses.asdict(node.plan.gpu_copy),
                    "unit": "alone_tflops",
                    "scale": 1e12,
                    "turn": turn,
                },
            )
            outcomes = run_children(requests, node.budget_s, tick=telemetry.tick, kept=node.kept)
        return result(self, started, outcomes, findings=blame(outcomes), telemetry=telemetry)
