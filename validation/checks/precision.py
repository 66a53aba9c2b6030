"""Automatic mixed precision: what a training step gains from bf16, and whether it still learns the same."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from validation.backends import NotRunError, Shape, make
from validation.checks.measured import stay_near
from validation.checks.recorder import WRONG_COMPUTATION, Recorder
from validation.checks.training import memory_of, on_each_gpu, on_the_cpu
from validation.contract import State

if TYPE_CHECKING:
    from collections.abc import Callable

    from validation.backends import Backend
    from validation.checks import Node
    from validation.child import Request
    from validation.contract import Measured, TestResult

#: The largest difference of losses that rounding explains, as a part of the loss: with operands rounded to
#: 2^-11 (tf32) and 2^-8 (bf16) relative, and averaged over all numbers of a batch.
TOLERANCE = {"fp32": 1e-4, "tf32": 5e-3, "bf16": 2e-2}


def measure(request: Request, stage: Callable[[str], None]) -> Measured:
    """In a child: the same step on the same data in every number format. Raises NotRunError."""
    stay_near(request)
    stage("loading torch")
    return compare(make(request.backend, request.device), request, stage)


def compare(backend: Backend, request: Request, stage: Callable[[str], None]) -> Measured:
    """The measurement itself, on any backend. Raises NotRunError."""
    shape, recorder = Shape(**request.parameters["shape"]), Recorder(backend, request, stage)
    ways = [way for way in request.parameters["ways"] if backend.name == "cpu" or way in backend.dtypes()]
    if "bf16" not in ways:
        raise NotRunError("this device does not compute in bf16, so there is nothing to mix fp32 with")
    recorder.need(memory_of(shape))
    rates = {}
    for way in ways:
        operation = backend.training(shape, way)
        rates[way] = recorder.rate(
            f"{way}_training_samples_s",
            operation,
            doing=f"training in {way}",
            scale=1,
            conditions={"batch": shape.batch},
        )
        recorder.check(
            operation,
            doing=f"comparing the losses in {way} with those in fp32",
            wrong=partial(_other_losses, way),
            action=WRONG_COMPUTATION,
            tolerance=TOLERANCE[way],
        )
        del operation  # its memory is for the next one
    gains = {way: round(rates["bf16"].value / rates[way].value, 3) for way in ways if way != "bf16"}
    if backend.name == "cuda" and (least := min(gains.items(), key=lambda item: item[1]))[1] < 1:
        recorder.find(
            "amp-no-gain",
            f"{request.name}: mixed precision takes longer: {rates['bf16'].value:.1f} samples/s in bf16, "
            f"{rates[least[0]].value:.1f} in {least[0]}",
            "run again on an idle node; compare torch, driver and clocks with a node that gains",
            State.DEGRADED,
        )
    return recorder.measured({"bf16_gain_over": gains})


def _other_losses(way: str, error: float) -> str:
    return f"the losses of training in {way} differ from those in fp32 by {error:.2g} of them, or are NaN"


class CpuAmp:
    """Many CPUs emulate bf16, so that no gain is no fault: it shows that this torch trains right."""

    id = "cpu_amp"
    title = "a training step on the CPU, fp32 against bf16"
    needs = "torch"
    method = 1
    headline: tuple[str, ...] = ("bf16_training_samples_s",)

    def run(self, node: Node) -> TestResult:
        """Run it on this node."""
        return on_the_cpu(self, node, f"{__name__}:measure", {"ways": ["fp32", "bf16"]})


class GpuAmp:
    """On all GPUs at the same time."""

    id = "gpu_amp"
    title = "a training step on every GPU, fp32 and tf32 against bf16"
    needs = "an NVIDIA GPU with its driver, torch built with CUDA"
    method = 1
    headline: tuple[str, ...] = ("bf16_training_samples_s",)

    def run(self, node: Node) -> TestResult:
        """Run it on this node."""
        return on_each_gpu(self, node, f"{__name__}:measure", {"ways": ["fp32", "tf32", "bf16"]})
