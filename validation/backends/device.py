"""What a CPU and a GPU have in common as devices of torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from validation.backends import loading
from validation.backends.checkpoint import Checkpoint as SavedState
from validation.backends.convolution import ConvolutionStep
from validation.backends.exchange import Exchange, highest
from validation.backends.kernels import Kernels
from validation.backends.loading import FileLoading
from validation.backends.operations import AllReduce, Matmul, MemoryPattern, Triad
from validation.backends.parallel import ParallelStep
from validation.backends.protocol import (
    Checkpoint,
    ImageShape,
    Loading,
    Operation,
    Piece,
    Product,
    Shape,
    Training,
)
from validation.backends.sharded import ShardedStep
from validation.backends.training import TransformerStep, trace
from validation.model.shapes import MatmulShape

if TYPE_CHECKING:
    import torch


class TorchDevice:
    """What torch does alike on any device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def dtypes(self) -> tuple[str, ...]:
        """Return the number formats that this device multiplies in."""
        raise NotImplementedError

    def matmul(self, dtype: str, shape: MatmulShape, *, cold: bool = False) -> Product:
        """Return a product in this format."""
        return Matmul(self._device, dtype, shape, cold=cold)

    def kernels(self) -> Kernels:
        """Kernels of many kinds."""
        return Kernels(self._device, self.dtypes())

    def triad(self, size_bytes: int) -> Operation:
        """Return a = b + s c in the device's memory."""
        return Triad(self._device, size_bytes)

    def memory_pattern(self, size_bytes: int) -> Operation:
        """Return a pattern test of so much of the device's memory."""
        return MemoryPattern(self._device, size_bytes)

    def training(self, shape: Shape, way: str) -> Training:
        """Return a training step."""
        return TransformerStep(self._device, shape, way)

    def parallel_training(self, shape: Shape, way: str) -> Training:
        """Return a training step of all ranks."""
        return ParallelStep(self._device, shape, way)

    def sharded_training(self, shape: Shape, way: str) -> Training:
        """Return a training step of all ranks in shards."""
        return ShardedStep(self._device, shape, way)

    def convolution(self, images: ImageShape, way: str, *, channels_last: bool, autotuned: bool) -> Training:
        """Return a training step of a convolutional network."""
        return ConvolutionStep(self._device, images, way, channels_last=channels_last, autotuned=autotuned)

    def checkpoint(self, shape: Shape) -> Checkpoint:
        """Return a model and its optimizer."""
        return SavedState(self._device, shape)

    def trace(self, shape: Shape, way: str, steps: int, *, detailed: bool = False) -> bytes:
        """Profile some steps."""
        return trace(TransformerStep(self._device, shape, way), steps, detailed=detailed)

    def file_loading(
        self, pieces: Sequence[Piece], workers: int, *, prefetch: int, persistent: bool, batches: int
    ) -> Loading:
        """Return a DataLoader over files."""
        return FileLoading(pieces, workers, prefetch=prefetch, persistent=persistent, batches=batches)

    def shared_bytes(self, workers: int) -> int:
        """Return what the workers of a loader have ready, and what is being taken."""
        return loading.shared_bytes(workers)

    def highest(self, value: float) -> float:
        """Return the highest value of all ranks."""
        return highest(value, self._device)

    def collective(self, kind: str, size_bytes: int) -> Operation:
        """Return a collective over all ranks."""
        if kind == "all_reduce":
            return AllReduce(self._device, size_bytes)
        return Exchange(self._device, kind, size_bytes)
