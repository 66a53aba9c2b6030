"""A training step of a convolutional network in torch: a small residual network for images.

It has no biases, and normalises without weights: what is trained are the weights of convolutions and of the
last layer, so that one layout in memory must give the gradients of any other up to rounding.
"""

from __future__ import annotations

import torch
import torch.nn.functional

from validation.backends.protocol import ImageShape
from validation.backends.training import TrainingStep

CLASSES = 100
#: Each stage has twice the channels of the one before, and half the edge.
STAGES, BLOCKS = 4, 2


class Network:
    """As ResNet-18: a stem, eight basic blocks in four stages, and one layer that tells classes apart."""

    def __init__(self, device: torch.device, width: int, layout: torch.memory_format) -> None:
        generator = torch.Generator(device).manual_seed(31)

        def weight(*size: int) -> torch.Tensor:
            fan_in = torch.Size(size[1:]).numel()
            made = torch.randn(size, generator=generator, device=device).mul_((2 / fan_in) ** 0.5)
            return (made.contiguous(memory_format=layout) if len(size) == 4 else made).requires_grad_()

        self._stem = weight(width, 3, 7, 7)
        #: Of each block its two convolutions, and that of its shortcut where channels and edge change.
        self._blocks: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]] = []
        before = width
        for stage in range(STAGES):
            channels = width << stage
            for _ in range(BLOCKS):
                shortcut = weight(channels, before, 1, 1) if channels != before else None
                self._blocks.append(
                    (weight(channels, before, 3, 3), weight(channels, channels, 3, 3), shortcut)
                )
                before = channels
        self._last = weight(CLASSES, before)
        inner = [one for block in self._blocks for one in block if one is not None]
        self.parameters = [self._stem, *inner, self._last]

    def loss(self, batch: torch.Tensor, target: torch.Tensor, *, checkpointed: bool) -> torch.Tensor:
        """Mean cross entropy; nothing of it can be `checkpointed`."""
        assert not checkpointed
        functional = torch.nn.functional
        batch = functional.relu(_normal(functional.conv2d(batch, self._stem, stride=2, padding=3)))
        batch = functional.max_pool2d(batch, 3, stride=2, padding=1)
        for first, second, shortcut in self._blocks:
            stride = 1 if shortcut is None else 2
            inner = functional.relu(_normal(functional.conv2d(batch, first, stride=stride, padding=1)))
            inner = _normal(functional.conv2d(inner, second, padding=1))
            if shortcut is not None:
                batch = _normal(functional.conv2d(batch, shortcut, stride=stride))
            batch = functional.relu(inner + batch)
        return functional.cross_entropy(functional.linear(batch.mean(dim=(2, 3)), self._last).float(), target)


class ConvolutionStep(TrainingStep):
    """Forward, backward and update of the network on one batch of images; work is in samples.

    `way` is a number format, as of any training step. The images and weights lie `contiguous` or in
    `channels_last` in memory; `autotuned`, cuDNN tries its algorithms and keeps the fastest of each shape.
    """

    def __init__(
        self, device: torch.device, images: ImageShape, way: str, *, channels_last: bool, autotuned: bool
    ) -> None:
        self._images, self._autotuned = images, autotuned
        self._layout = torch.channels_last if channels_last else torch.contiguous_format
        generator = torch.Generator(device).manual_seed(32)
        size = (images.batch, 3, images.edge, images.edge)
        batch = torch.randn(size, generator=generator, device=device)
        target = torch.randint(CLASSES, (images.batch,), generator=generator, device=device)
        super().__init__(device, way, [batch.contiguous(memory_format=self._layout), target])

    def step(self, batch: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Return one step on this batch; its loss, on the device. It leaves cuDNN as it was."""
        cudnn = torch.backends.cudnn
        before = cudnn.benchmark
        cudnn.benchmark = self._autotuned
        try:
            return super().step(batch, target)
        finally:
            cudnn.benchmark = before

    def error(self) -> float:
        """Return how far this layout's gradients are from those of the contiguous one, both in plain fp32.

        Relative; NaN where a number is none. Afterwards the model is at its start again.
        """
        plain = ConvolutionStep(self.device, self._images, "fp32", channels_last=False, autotuned=False)
        cudnn = torch.backends.cudnn
        before = cudnn.allow_tf32
        cudnn.allow_tf32 = (
            False  # else cuDNN rounds operands to 11 bits, and each algorithm sums in its order
        )
        try:
            error = self.far_from(plain, "fp32")
        finally:
            cudnn.allow_tf32 = before
        self._start()
        return error

    def _made(self) -> Network:
        return Network(self.device, self._images.width, self._layout)


def _normal(batch: torch.Tensor) -> torch.Tensor:
    """Return each channel with mean 0 and variance 1 over the batch."""
    return torch.nn.functional.batch_norm(batch, None, None, training=True)
