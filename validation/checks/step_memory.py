"""Gradient accumulation and activation checkpointing: what memory they save, and equal gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from validation.backends.protocol import Shape
from validation.checks.recorder import Recorder
from validation.checks.training import in_a_child, memory_of, on_each_gpu, on_the_cpu

if TYPE_CHECKING:
    from collections.abc import Callable

    from validation.backends.protocol import Backend
    from validation.checks.node import Node
    from validation.model.contract import Measured, TestResult
    from validation.processes.child import Request

#: The ways to run the step, as the backend calls them and as the numbers do.
WAYS = {"fp32": "plain", "accumulated": "accumulated", "checkpointed": "checkpointed"}
#: The largest difference of gradients, as a part of their norm, that another order of adding in fp32
#: explains: sums of 10^4 numbers, each rounded to 2^-24, and a margin of ten.
TOLERANCE = 1e-3


def compare(backend: Backend, request: Request, stage: Callable[[str], None]) -> Measured:
    """The measurement itself, on any backend. Raises NotRunError."""
    shape, recorder = Shape(**request.parameters["shape"]), Recorder(backend, request, stage)
    recorder.need(memory_of(shape))
    peaks, rates = {}, {}
    for way, name in WAYS.items():
        operation = backend.training(shape, way)
        conditions: dict[str, int | str] = {"batch": shape.batch}
        rates[name] = recorder.rate(
            f"{name}_step_samples_s",
            operation,
            doing=f"training, {name}",
            scale=1,
            conditions=conditions,
        ).value
        stage(f"measuring the memory of the {name} step")
        peaks[name] = backend.peak_bytes(operation)
        recorder.keep(f"{name}_step_gb", peaks[name] / 1e9, conditions)
        recorder.check(
            operation,
            doing=f"comparing the gradients of the {name} step with the plain ones",
            case="step",
            tolerance=TOLERANCE,
            way=name,
        )
        del operation  # its memory is for the next one
    for name in ("accumulated", "checkpointed"):
        if peaks[name] >= peaks["plain"]:
            recorder.find(
                "no-memory-saved",
                who=request.name,
                way=name,
                step_gb=peaks[name] / 1e9,
                plain_gb=peaks["plain"] / 1e9,
            )
    others = [name for name in peaks if name != "plain"]
    return recorder.measured(
        {
            "memory_over_plain": {name: round(peaks[name] / peaks["plain"], 3) for name in others},
            "speed_over_plain": {name: round(rates[name] / rates["plain"], 3) for name in others},
        }
    )


measure = in_a_child(compare)


class CpuStepMemory:
    """The same on the CPU, which shows whether this torch does it right."""

    id = "cpu_step_memory"
    title = "gradient accumulation and checkpointing on the CPU"
    needs = "torch"
    method = 1
    headline: tuple[str, ...] = ("checkpointed_step_gb",)

    def run(self, node: Node) -> TestResult:
        """Run it on this node."""
        return on_the_cpu(self, node, f"{__name__}:measure", {})


class GpuStepMemory:
    """On all GPUs at the same time."""

    id = "gpu_step_memory"
    title = "gradient accumulation and checkpointing on every GPU"
    needs = "an NVIDIA GPU with its driver, torch built with CUDA"
    method = 1
    headline: tuple[str, ...] = ("checkpointed_step_gb",)

    def run(self, node: Node) -> TestResult:
        """Run it on this node."""
        return on_each_gpu(self, node, f"{__name__}:measure", {})
