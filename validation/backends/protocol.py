"""Where a measurement runs: the protocol that every backend follows.

A check asks a Backend for an Operation, times it, and asks how wrong its result was. The protocol knows no
torch: a scripted backend drives every path of the checks in tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from validation.model.shapes import MatmulShape

if TYPE_CHECKING:
    from validation.backends.kernels import Kernel


#: After which a process that loads data and brings nothing is said to hang.
WORKER_PATIENCE_S = 60
#: The number formats of automatic mixed precision, the better one first: bf16 has the range of fp32. That of
#: fp16 is so small that gradients would be none: there the loss is scaled up, and steps may be skipped.
SCALED = "fp16"
MIXED = ("bf16", SCALED)


@dataclass(frozen=True)
class Shape:
    """The model and the batch of a training step: transformer blocks, and vectors of `width` numbers."""

    layers: int
    width: int
    heads: int
    tokens: int
    batch: int


@dataclass(frozen=True)
class Piece:
    """A part of a file, which is a sample."""

    path: str
    start: int
    size_bytes: int


@dataclass(frozen=True)
class ImageShape:
    """The network and the batch of a convolution step: channels of its first stage, square colour images."""

    width: int
    edge: int
    batch: int


class WorkerError(Exception):
    """A process that loads data died or hung; the message says how."""


class CheckpointError(Exception):
    """A checkpoint did not come back as it was; the message says how."""


class LimitError(Exception):
    """The system lets this process have no more processes or open files; the message says which."""


class PeerLimitError(Exception):
    """The driver lets this process map no more GPUs as peers; one without other peers may have room."""


class Operation(Protocol):
    """Something to be timed, with its buffers ready."""

    #: How many bytes or floating point operations one run stands for; the check says which.
    work: float

    def error(self) -> float:
        """Run once and check the result by another route; its error, NaN if the result is not a number."""


class Product(Operation, Protocol):
    """A matrix product."""

    def digest(self) -> str:
        """Run once; a checksum of every bit of the result."""


class Training(Operation, Protocol):
    """A training step; work is in samples, the error how far losses and gradients are from plain fp32."""

    #: Steps so far, and those of them that updated nothing, because gradients in fp16 were not finite.
    steps: int

    @property
    def skipped(self) -> int:
        """See `steps`."""

    def fall(self) -> float:
        """Return the part of the loss that is gone after some steps from the start.

        NaN where a loss is none.
        """


class Loading(Protocol):
    """Batches of samples that come from processes; work is in samples of one batch."""

    work: float

    def take(self, batches: int, go_on: Callable[[], None]) -> float:
        """Return seconds that so many batches took to come. Raises WorkerError and LimitError.

        `go_on` is called batch by batch.
        """

    def error(self) -> float:
        """Return the part of the next samples that are wrong. Raises WorkerError and LimitError."""

    def close(self) -> None:
        """End the processes."""


class Checkpoint(Protocol):
    """Weights and optimizer state of a training model."""

    size_bytes: int

    def save(self, descriptor: int, go_on: Callable[[], None]) -> float:
        """Return seconds until all of it is on the storage, in a file that is emptied before.

        Raises OSError.
        """

    def load(self, descriptor: int, go_on: Callable[[], None]) -> float:
        """Return seconds until all of it is in memory again. Raises OSError and CheckpointError."""


class Backend(Protocol):
    """One device of one kind. Sizes in bytes, times in seconds."""

    name: str

    def seconds(
        self, operation: Operation, count: int, step: Callable[[], None] | None = None
    ) -> list[float]:
        """Run `operation` `count` times and return how long each took.

        `step` is called when the device begins a run and when it has ended it: of one that hangs it is known
        where. Other ranks of a collective are waited for after the beginning.
        """

    def dtypes(self) -> tuple[str, ...]:
        """Return the number formats that this device multiplies in: fp32, tf32, fp16, bf16, fp8."""

    def software(self) -> dict[str, int | str]:
        """Return what the bits of a product depend on beside its operands.

        Versions of libraries, number of SMs.
        """

    def free_bytes(self) -> int:
        """Memory that an operation may take."""

    def matmul(self, dtype: str, shape: MatmulShape, *, cold: bool = False) -> Product:
        """C = A B of random matrices; work is in floating point operations.

        `cold` empties the device's cache before each run, outside of what is timed.
        """

    def copy(self, direction: str, size_bytes: int) -> Operation:
        """Return a copy of `size_bytes` bytes; work is in bytes.

        `direction` is `local`, `peer_N` (to GPU N), `h2d` (host to device), `d2h` or `both` (at once; work
        counts both); host memory is pinned, but with `_pageable` after the direction. Raises PeerLimitError.
        """

    def reaches(self, peer: int) -> bool:
        """Return whether this device writes to GPU `peer` directly; if not, copies go through host memory."""

    def triad(self, size_bytes: int) -> Operation:
        """Return a = b + s c over buffers of `size_bytes` bytes; work is in bytes of one buffer."""

    def memory_pattern(self, size_bytes: int) -> Operation:
        """Return a pattern written to `size_bytes` bytes of memory.

        The error is how many words did not keep it.
        """

    def kernels(self) -> Iterable[Kernel]:
        """Kernels of many kinds, whose results are the same bits each time."""

    def has_tensor_cores(self) -> bool:
        """Return whether it has units that multiply in narrower formats faster than in fp32."""

    def training(self, shape: Shape, way: str) -> Training:
        """Return a training step on a batch of this shape.

        `way` is `fp32`, `tf32`, `bf16` or `fp16` (automatic mixed precision), or, in fp32, `accumulated` over
        parts of the batch or `checkpointed`.
        """

    def parallel_training(self, shape: Shape, way: str) -> Training:
        """Return a training step of all ranks that have met, each on its own batch of this shape.

        The error is how far gradients are from the mean of all ranks'. All ranks must do the same with it.
        """

    def sharded_training(self, shape: Shape, way: str) -> Training:
        """Return the same with weights, gradients and optimizer in shards: FSDP. Raises NotRunError.

        The error is how far loss, gradients and weights are from those of the step without shards.
        """

    def convolution(self, images: ImageShape, way: str, *, channels_last: bool, autotuned: bool) -> Training:
        """Return a training step of a convolutional network, `way` a number format.

        The error is how far gradients in fp32 are from those of the contiguous layout. `autotuned`: cuDNN
        tries its algorithms first.
        """

    def checkpoint(self, shape: Shape) -> Checkpoint:
        """Return what a job of this shape keeps to go on from, after one step."""

    def launch_seconds(self, operation: Training) -> float:
        """Return what the host takes to start one run of a training step; 0 where it is the device itself."""

    def peak_bytes(self, operation: Operation) -> int:
        """Return the bytes that a run of a training step takes at its peak, beyond what it holds before."""

    def peak_with_its_making(self, make: Callable[[], Operation]) -> int:
        """Return the memory that a training step takes at its peak in all: while it is made and run twice."""

    def limit_memory(self, size_bytes: int) -> None:
        """From now on, let this process take no more than so much in addition to what it has."""

    def first_steps(self, make_step: Callable[[int], Any], batch: int) -> tuple[Operation, int]:
        """Return a step of the user's own, made and run twice within limit_memory; the bytes of its peak.

        `make_step(batch)` returns a function that runs one step. Raises whatever they raise.
        """

    def try_step(self, shape: Shape, way: str) -> float | None:
        """Train two steps and forget them; the loss of the second, None if memory did not suffice."""

    def trace(self, shape: Shape, way: str, steps: int, *, detailed: bool = False) -> bytes:
        """Return a Chrome trace of so many training steps; marked as traces.py says. Raises NotRunError.

        With memory and the shapes of tensors where it is `detailed`, which takes the host longer.
        """

    def loading(self, workers: int, *, pinned: bool) -> Loading:
        """Return samples from so many processes; to a GPU through pinned host memory, or not.

        Raises LimitError.
        """

    def file_loading(
        self, pieces: Sequence[Piece], workers: int, *, prefetch: int, persistent: bool, batches: int
    ) -> Loading:
        """Return samples from files by so many processes, `batches` of them an epoch.

        Raises LimitError, OSError.
        """

    def shared_bytes(self, workers: int) -> int:
        """Return the shared memory that so many processes fill with samples."""

    def join(self, rank: int, world_size: int, store: str, timeout_s: float) -> None:
        """Become one of `world_size` processes that meet at `store`: a file, or tcp://ADDRESS:PORT."""

    def barrier(self) -> None:
        """Wait for all processes."""

    def highest(self, value: float) -> float:
        """Return the highest of the values of all processes; all learn the same."""

    def has_multicast(self) -> bool:
        """Return whether GPUs can be written to all at once, which NCCL's NVLS needs."""

    def collective(self, kind: str, size_bytes: int) -> Operation:
        """all_reduce, all_gather, reduce_scatter or all_to_all of fp32 over all processes.

        Work is in bytes of the larger buffer of one process. The error is exact: 0 or wrong.
        """
