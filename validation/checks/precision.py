"""Automatic mixed precision: what a training step gains from bf16, and whether it still learns the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from validation.checks.launch import on_device
from validation.checks.training import CpuTraining, GpuTraining, begin
from validation.model.not_run import NotRunError

if TYPE_CHECKING:
    from collections.abc import Callable

    from validation.backends.protocol import Backend
    from validation.checks.node import Node
    from validation.model.contract import Measured, Measurement
    from validation.processes.child import Request

#: The largest difference of losses and of gradients that rounding explains, as a part of them. In bf16, whose
#: operands are rounded to 2^-8, gradients differ by 0.006 of their norm (torch 2.13 on a CPU, whatever the
#: width); fp32 rounds to 2^-24. Tensor cores cut fp32 operands off to the 11 bits of tf32, which adds up over
#: the layers to 0.006, too (emulated likewise). Each with a margin of about ten.
TOLERANCE = {"fp32": 1e-3, "tf32": 5e-2, "bf16": 5e-2}

#: Where the host takes more than this part of a step to start its kernels, a faster GPU would wait for it.
HOST_SHARE, LAUNCHES = 0.8, 3


def compare(backend: Backend, request: Request, stage: Callable[[str], None]) -> Measured:
    """The measurement itself, on any backend. Raises NotRunError."""
    ways = [way for way in request.parameters["ways"] if backend.name == "cpu" or way in backend.dtypes()]
    if "bf16" not in ways:
        raise NotRunError("this device does not compute in bf16, so there is nothing to mix fp32 with")
    shape, recorder = begin(backend, request, stage)
    rates = {}
    host_bound = []
    for way in ways:
        stage(f"making the model in {way}")
        operation = backend.training(shape, way)
        rates[way] = recorder.rate(
            f"{way}_training_samples_s",
            operation,
            doing=f"training in {way}",
            scale=1,
            conditions={"batch": shape.batch},
        )
        launch_s = min(backend.launch_seconds(operation) for _ in range(LAUNCHES))
        if launch_s * rates[way].value > HOST_SHARE * operation.work:
            host_bound.append(way)
        recorder.check(
            operation,
            doing=f"comparing losses and gradients in {way} with those in fp32",
            case="precision",
            tolerance=TOLERANCE[way],
            way=way,
        )
        del operation  # its memory is for the next one
    gains = {way: round(rates["bf16"].value / rates[way].value, 3) for way in ways if way != "bf16"}
    fastest = max((rates[way] for way in gains), key=_surely)
    # What the host is too slow for says nothing of the GPU.
    if (
        backend.name == "cuda"
        and "bf16" not in host_bound
        and rates["bf16"].value * (1 + rates["bf16"].spread) < _surely(fastest)
    ):
        way = next(way for way in gains if rates[way] is fastest)
        recorder.find("amp-no-gain", who=request.name, bf16=rates["bf16"].value, other=fastest.value, way=way)
    details: dict[str, Any] = {"bf16_gain_over": gains}
    return recorder.measured(details | ({"as_fast_as_the_host": host_bound} if host_bound else {}))


measure = on_device(compare)


def _surely(rate: Measurement) -> float:
    """What a rate reached in spite of its noise: noise alone blames nobody."""
    return rate.value * (1 - rate.spread)


class CpuAmp(CpuTraining):
    """The same as `gpu_amp` on the CPU, in fp32 and bf16; many CPUs emulate bf16, and no gain is no fault."""

    id = "cpu_amp"
    title = "a training step on the CPU, fp32 against bf16"
    place = 320
    passes = "as `gpu_amp`"
    headline = ("bf16_training_samples_s",)
    timed = 2

    def parameters(self, _node: Node) -> dict[str, Any]:
        """What the measurement is told besides the shape of the model."""
        return {"ways": ["fp32", "bf16"]}


class GpuAmp(GpuTraining):
    """A training step of a fixed transformer in fp32, tf32 and bf16 (automatic mixed precision).

    In samples/s; the gain is in the details.
    """

    id = "gpu_amp"
    title = "a training step on every GPU, fp32 and tf32 against bf16"
    place = 325
    passes = (
        "the losses of five steps and the gradients of one are finite, and those of fp32 up to rounding; on "
        "a GPU bf16 is the fastest, unless the host is too slow to start its kernels"
    )
    headline = ("bf16_training_samples_s",)
    timed = 3

    def parameters(self, _node: Node) -> dict[str, Any]:
        """What the measurement is told besides the shape of the model."""
        return {"ways": ["fp32", "tf32", "bf16"]}
