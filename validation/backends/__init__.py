"""Where a measurement runs.

A check asks a Backend for an Operation, times it, and asks how wrong its result was.

The protocol knows no torch: a scripted backend drives every path of the checks in tests, and torch is
imported only when a real backend is made, in a measuring process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Shape:
    """The model and the batch of a training step: transformer blocks, and vectors of `width` numbers."""

    layers: int
    width: int
    heads: int
    tokens: int
    batch: int


class NotRunError(Exception):
    """The environment keeps this measurement from running; the message is the reason, a sentence."""


class Operation(Protocol):
    """Something to be timed, with its buffers ready."""

    #: How many bytes or floating point operations one run stands for; the check says which.
    work: float

    def error(self) -> float:
        """Run once and check the result by another route; its error, NaN if the result is not a number."""
        ...


class Product(Operation, Protocol):
    """A matrix product."""

    def digest(self) -> str:
        """Run once; a checksum of every bit of the result."""
        ...


class Backend(Protocol):
    """One device of one kind. Sizes in bytes, times in seconds."""

    name: str

    def seconds(self, operation: Operation, count: int) -> list[float]:
        """Run `operation` `count` times and return how long each took."""
        ...

    def dtypes(self) -> tuple[str, ...]:
        """The number formats that this device multiplies in: fp32, tf32, fp16, bf16, fp8."""
        ...

    def free_bytes(self) -> int:
        """Memory that an operation may take."""
        ...

    def matmul(self, dtype: str, size: int) -> Product:
        """C = A B of size x size random matrices; work is in floating point operations, 2 size^3."""
        ...

    def copy(self, direction: str, size_bytes: int) -> Operation:
        """A copy of `size_bytes` bytes; work is in bytes.

        `direction` is `local`, `peer_N` (to GPU N), `h2d` (host to device), `d2h` or `both` (at once; work
        counts both); host memory is pinned, but with `_pageable` after the direction.
        """
        ...

    def triad(self, size_bytes: int) -> Operation:
        """A = b + s c over buffers of `size_bytes` bytes; work is in bytes of one buffer."""
        ...

    def memory_pattern(self, size_bytes: int) -> Operation:
        """A pattern written to `size_bytes` bytes of memory; the error is how many words did not keep it."""
        ...

    def training(self, shape: Shape, way: str) -> Operation:
        """A training step; work is in samples, the error how far losses and gradients are from plain fp32.

        `way` is `fp32`, `tf32` or `bf16` (automatic mixed precision), or, in fp32, `accumulated` over parts
        of the batch or `checkpointed`.
        """
        ...

    def join(self, rank: int, world_size: int, store: str, timeout_s: float) -> None:
        """Become one of `world_size` processes that meet at `store`: a file, or tcp://ADDRESS:PORT."""
        ...

    def barrier(self) -> None:
        """Wait for all processes."""
        ...

    def any_rank(self, flag: bool) -> bool:
        """Whether any process says yes; all learn the same."""
        ...

    def collective(self, kind: str, size_bytes: int) -> Operation:
        """all_reduce, all_gather, reduce_scatter or all_to_all of fp32 over all processes.

        Work is in bytes of the larger buffer of one process. The error is exact: 0 or wrong.
        """
        ...


def make(name: str, device: int) -> Backend:
    """The real backend `cpu` or `cuda`. Raises NotRunError where there is none, with the reason."""
    try:
        import torch  # noqa: F401 - only to say early and clearly that it is missing
    except ImportError as error:
        raise NotRunError(f"torch cannot be imported: {error}") from error
    if name == "cpu":
        from validation.backends.cpu import CpuBackend

        return CpuBackend()
    from validation.backends.cuda import CudaBackend

    return CudaBackend(device)
