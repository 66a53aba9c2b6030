"""Gradient accumulation and activation checkpointing: what memory they save, and equal gradients."""

from __future__ import annotations

from collections.abc import Callable

from validation.backends.protocol import Backend
from validation.checks.launch import on_device
from validation.checks.training import CpuTraining, GpuTraining, begin
from validation.model.contract import Measured
from validation.processes.child import Request

#: The ways to run the step, as the backend calls them and as the numbers do.
WAYS = {"fp32": "plain", "accumulated": "accumulated", "checkpointed": "checkpointed"}
#: The largest difference of gradients, as a part of their norm, that another order of adding in fp32
#: explains: sums of 10^4 numbers, each rounded to 2^-24, and a margin of ten.
TOLERANCE = 1e-3


def compare(backend: Backend, request: Request, stage: Callable[[str], None]) -> Measured:
    """Return the measurement itself, on any backend. Raises NotRunError."""
    shape, recorder = begin(backend, request, stage)
    peaks, rates = {}, {}
    for way, name in WAYS.items():
        stage(f"making the model, {name}")
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


measure = on_device(compare)


class CpuStepMemory(CpuTraining):
    """The same as `gpu_step_memory` on the CPU, which shows whether this torch does it right."""

    id = "cpu_step_memory"
    title = "gradient accumulation and checkpointing on the CPU"
    place = 330
    passes = "as `gpu_step_memory`"
    headline = ("checkpointed_step_gb",)
    timed = len(WAYS)


class GpuStepMemory(GpuTraining):
    """The step of `gpu_amp` in fp32: plain, with accumulated gradients, with activation checkpointing.

    Gradients are accumulated over four parts of the batch. Peak memory beyond weights and momentum, and
    samples/s.
    """

    id = "gpu_step_memory"
    title = "gradient accumulation and checkpointing on every GPU"
    place = 335
    passes = "gradients and losses are the plain ones up to 0.001 of them, and both save memory"
    headline = ("checkpointed_step_gb",)
    timed = len(WAYS)
