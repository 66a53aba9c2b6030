"""Automatic mixed precision: what a training step gains from it, and whether it still learns the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from validation.backends.protocol import MIXED, SCALED, Backend
from validation.checks.launch import on_device
from validation.checks.node import Node
from validation.checks.training import CpuTraining, GpuTraining, begin
from validation.model.contract import Measured, Measurement
from validation.model.not_run import NotRunError
from validation.processes.child import Request

#: The largest difference of losses and of gradients that rounding explains, as a part of them. In bf16, whose
#: operands are rounded to 2^-8, gradients differ by 0.006 of their norm (torch 2.13 on a CPU, whatever the
#: width); fp32 rounds to 2^-24. Tensor cores cut fp32 operands off to the 11 bits of tf32, which adds up over
#: the layers to 0.006, too (emulated likewise). Each with a margin of about ten. fp16 has 11
#: bits as well; gradients differ by 0.001 (likewise), and cuBLAS may add parts of its sums in fp16, too.
TOLERANCE = {"fp32": 1e-3, "tf32": 5e-2, "bf16": 5e-2, "fp16": 5e-2}

#: Where the host takes more than this part of a step to start its kernels, a faster GPU would wait for it.
HOST_SHARE, LAUNCHES = 0.8, 3


def compare(backend: Backend, request: Request, stage: Callable[[str], None]) -> Measured:
    """Return the measurement itself, on any backend. Raises NotRunError."""
    ways = [way for way in request.parameters["ways"] if backend.name == "cpu" or way in backend.dtypes()]
    mixed = next((way for way in MIXED if way in ways), None)
    if mixed is None:
        raise NotRunError("this device computes in neither bf16 nor fp16: nothing can be mixed with fp32")
    shape, recorder = begin(backend, request, stage)
    rates = {}
    host_bound = []
    details: dict[str, Any] = {}
    for way in (way for way in ways if way == mixed or way not in MIXED):
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
        if way == SCALED:
            details["skipped_steps"] = {"steps": operation.steps, "skipped": operation.skipped}
        recorder.check(
            operation,
            doing=f"comparing losses and gradients in {way} with those in fp32",
            case="precision",
            tolerance=TOLERANCE[way],
            way=way,
        )
        stage(f"looking whether the loss falls in {way}")
        if not (fall := operation.fall()) > 0:  # also catches NaN
            recorder.find("loss-does-not-fall", who=request.name, way=way, fall=fall)
        del operation  # its memory is for the next one
    rate = rates.pop(mixed)
    gains = {way: round(rate.value / other.value, 3) for way, other in rates.items()}
    way, fastest = max(rates.items(), key=lambda one: _surely(one[1]))
    # What the host is too slow for says nothing of the GPU.
    if (
        backend.has_tensor_cores()
        and mixed not in host_bound
        and rate.value * (1 + rate.spread) < _surely(fastest)
    ):
        recorder.find(
            "amp-no-gain", who=request.name, mixed=rate.value, format=mixed, other=fastest.value, way=way
        )
    details[f"{mixed}_gain_over"] = gains
    return recorder.measured(details | ({"as_fast_as_the_host": host_bound} if host_bound else {}))


measure = on_device(compare)


def _surely(rate: Measurement) -> float:
    """Return what a rate reached in spite of its noise: noise alone blames nobody."""
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
        """Return what the measurement is told besides the shape of the model."""
        return {"ways": ["fp32", "bf16"]}


class GpuAmp(GpuTraining):
    """A training step of a fixed transformer in fp32, tf32 and bf16 (automatic mixed precision).

    A GPU without bf16 (Turing and older) mixes with fp16 and scales the loss; the details count the steps
    that its scaler skipped. In samples/s; the gain is in the details.
    """

    id = "gpu_amp"
    title = "a training step on every GPU, fp32 and tf32 against mixed precision"
    place = 325
    passes = (
        "the losses of five steps and the gradients of one are finite, and those of fp32 up to rounding; the "
        "loss falls; on a GPU with tensor cores mixed precision is the fastest, unless the host is too slow "
        "to start its kernels"
    )
    headline = ("bf16_training_samples_s",)
    timed = 3

    def parameters(self, _node: Node) -> dict[str, Any]:
        """Return what the measurement is told besides the shape of the model."""
        return {"ways": ["fp32", "tf32", *MIXED]}
