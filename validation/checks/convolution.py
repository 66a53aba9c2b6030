"""A convolution step: what channels_last and cuDNN's autotuning gain, and whether gradients stay the same."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from validation.backends.protocol import SCALED, Backend, ImageShape
from validation.checks.launch import Recorder, on_device
from validation.checks.node import Node
from validation.checks.training import CpuTraining, GpuTraining, mixed_format
from validation.model.contract import Measured, Measurement
from validation.model.quantities import NOISY_SPREAD, number
from validation.processes.child import Request

#: Both fixed, so that numbers compare. That of a GPU is ResNet-18 with a batch of photographs.
CPU_IMAGES = ImageShape(width=16, edge=64, batch=32)
GPU_IMAGES = ImageShape(width=64, edge=224, batch=128)
#: The ways to run the step, each held against the one before: whether it is in channels_last, and autotuned.
WAYS = {"contiguous": (False, False), "channels_last": (True, False), "autotuned": (True, True)}
GAINS = {"channels_last": ("contiguous", "channels_last"), "autotune": ("channels_last", "autotuned")}
#: The largest difference of losses and gradients in fp32, as a part of them, that other algorithms explain.
#: On a CPU it is 1e-5 (torch 2.13); those of cuDNN that transform (Winograd) lose up to three digits more.
TOLERANCE = 1e-2
#: What is set for each gain, and where that is right.
SETTINGS = {
    "channels_last": ("memory_format=torch.channels_last for model and batch", "use it"),
    "autotune": ("torch.backends.cudnn.benchmark = True", "set it where batches keep their shape"),
}


def compare(backend: Backend, request: Request, stage: Callable[[str], None]) -> Measured:
    """Return the measurement itself, on any backend. Raises NotRunError."""
    images, recorder = ImageShape(**request.parameters["images"]), Recorder(backend, request, stage)
    recorder.need(memory_of(images))
    way = mixed_format(backend) or "fp32"
    rates: dict[str, Measurement] = {}
    skipped = {}
    # On a CPU there is nothing to tune.
    for name, (channels_last, autotuned) in WAYS.items():
        if autotuned and backend.name == "cpu":
            continue
        stage(f"making the network, {name}")
        operation = backend.convolution(images, way, channels_last=channels_last, autotuned=autotuned)
        rates[name] = recorder.rate(
            f"{name}_convolution_samples_s",
            operation,
            doing=f"training with convolutions, {name}",
            scale=1,
            conditions={"batch": images.batch, "format": way},
        )
        skipped[name] = operation.skipped
        recorder.check(
            operation,
            doing=f"comparing the gradients of convolutions, {name}, with those of contiguous ones",
            case="convolution",
            tolerance=TOLERANCE,
            way=name,
        )
        stage(f"looking whether the loss falls, {name}")
        if not (fall := operation.fall()) > 0:  # also catches NaN
            recorder.find("loss-does-not-fall", who=request.name, way=f"{way} ({name})", fall=fall)
        del operation  # its memory is for the next one
    gains = [
        gain_over(name, rates[before], rates[after])
        for name, (before, after) in GAINS.items()
        if after in rates
    ]
    details: dict[str, Any] = {"format": way}
    if way == SCALED:
        details["skipped"] = skipped
    if said := [text for gain in gains if (text := advice(gain))]:
        details["advice"] = {"Convolutions": said}
    return recorder.measured(details, more=gains)


measure = on_device(compare)


def gain_over(name: str, before: Measurement, after: Measurement) -> Measurement:
    """Return how many times as fast one way is as another, with the noise of both.

    Their spreads are independent.
    """
    return Measurement(
        f"{name}_gain_times",
        round(after.value / before.value, 4),
        min(before.samples, after.samples),
        round(math.hypot(before.spread, after.spread), 4),
        after.device,
        after.conditions,
    )


def advice(gain: Measurement) -> str:
    """Return what to do about a gain; nothing where it is within the noise, or nobody can tell for noise."""
    if gain.spread > NOISY_SPREAD or abs(gain.value - 1) <= gain.spread * gain.value:
        return ""
    setting, use = SETTINGS[gain.name.removesuffix("_gain_times")]
    what, noise = number(gain.value), number(gain.spread * gain.value)
    do = use if gain.value > 1 else "leave it out"
    return f"with {setting} a convolution step is {what} times as fast (± {noise}): {do}"


def memory_of(images: ImageShape) -> int:
    """About what a step in fp32 takes: activations, and weights, gradients and momentum, twice.

    Of each image some three times the numbers of one layer at the image's full edge are kept.
    """
    activations = 3 * images.batch * images.width * images.edge**2 * 4
    weights = 2800 * images.width**2 * 4
    return activations + 6 * weights


class CpuConvolution(CpuTraining):
    """The same as `gpu_convolution` on the CPU, in fp32 and without autotuning, which is cuDNN's."""

    id = "cpu_convolution"
    title = "a convolution step on the CPU, contiguous against channels_last"
    place = 326
    passes = "as `gpu_convolution`"
    headline = ("channels_last_convolution_samples_s",)
    timed = 2

    def parameters(self, _node: Node) -> dict[str, Any]:
        """Return what the measurement is told: this network is another one."""
        return {"images": dataclasses.asdict(CPU_IMAGES)}


class GpuConvolution(GpuTraining):
    """A training step of ResNet-18 in mixed precision: contiguous, in channels_last, and autotuned by cuDNN.

    In samples/s, 128 images a batch. The gains are numbers with the noise of both, and advised where they are
    more than that.
    """

    id = "gpu_convolution"
    title = "a convolution step on every GPU, with channels_last and autotuning"
    place = 328
    passes = "losses and gradients in fp32 are those of the contiguous layout up to 0.01; the loss falls"
    headline = ("autotuned_convolution_samples_s",)
    timed = len(WAYS)

    def parameters(self, _node: Node) -> dict[str, Any]:
        """Return what the measurement is told: this network is another one."""
        return {"images": dataclasses.asdict(GPU_IMAGES)}
