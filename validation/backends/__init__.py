"""Where a measurement runs.

A check asks a Backend for an Operation, times it, and asks how wrong its result was.

The protocol knows no torch: a scripted backend drives every path of the checks in tests, and torch is
imported only when a real backend is made, in a measuring process.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import NamedTuple, Protocol

#: Variables that somebody may have set for another program, and that would change what is measured: they make
#: every launch wait, forbid or force tensor cores, let cuBLAS emulate fp32 (2.6 times as fast on a B200) and
#: fp64 (which products are checked with), choose other kernels, or keep copies from overlapping. NCCL's own
#: stay: they are how the node is tuned.
DISTORTING = (
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUBLASLT_WORKSPACE_SIZE",
    "CUBLAS_EMULATE_DOUBLE_PRECISION",
    "CUBLAS_EMULATE_SINGLE_PRECISION",
    "CUBLAS_EMULATION_STRATEGY",
    "CUBLAS_FP32_EMULATED_BF16X9_MATH",
    "CUBLAS_WORKSPACE_CONFIG",
    "NVIDIA_TF32_OVERRIDE",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "PYTORCH_TUNABLEOP_ENABLED",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "TORCH_BLAS_PREFER_CUBLASLT",
)


@dataclass(frozen=True)
class Shape:
    """The model and the batch of a training step: transformer blocks, and vectors of `width` numbers."""

    layers: int
    width: int
    heads: int
    tokens: int
    batch: int


class MatmulShape(NamedTuple):
    """C (m x n) = A (m x k) B (k x n)."""

    m: int
    n: int
    k: int

    @property
    def flop(self) -> float:
        """Floating point operations of one product: a multiplication and an addition for each of m n k."""
        return 2.0 * self.m * self.n * self.k

    @property
    def needed_bytes(self) -> int:
        """Memory to make it in: random numbers come in fp32, whatever they become."""
        return 4 * (self.m * self.k + self.k * self.n + self.m * self.n)

    def __str__(self) -> str:
        return f"{self.m} x {self.n} x {self.k}"


class NotRunError(Exception):
    """The environment keeps this measurement from running; the message is the reason, a sentence."""


def out_of_memory(error: BaseException) -> str | None:
    """What to say of an error that means that somebody else has the memory; None for any other error."""
    text = str(error)
    if (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or re.search(r"out of memory|can't allocate memory|CUBLAS_STATUS_ALLOC_FAILED", text, re.IGNORECASE)
    ):
        return f"memory ran out: {text.splitlines()[0] if text else type(error).__name__}"
    return None


class WorkerError(Exception):
    """A process that loads data died or hung; the message says how."""


class LimitError(Exception):
    """The system lets this process have no more processes or open files; the message says which."""


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


class Loading(Protocol):
    """Batches of samples that come from processes; work is in samples of one batch."""

    work: float

    def take(self, batches: int) -> float:
        """Seconds that so many batches took to come. Raises WorkerError and LimitError."""
        ...

    def error(self) -> float:
        """The part of the next samples that are wrong. Raises WorkerError and LimitError."""
        ...

    def close(self) -> None:
        """End the processes."""
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

    def software(self) -> dict[str, int | str]:
        """What the bits of a product depend on beside its operands: versions of libraries, number of SMs."""
        ...

    def free_bytes(self) -> int:
        """Memory that an operation may take."""
        ...

    def matmul(self, dtype: str, shape: MatmulShape, *, cold: bool = False) -> Product:
        """C = A B of random matrices; work is in floating point operations.

        `cold` empties the device's cache before each run, outside of what is timed.
        """
        ...

    def copy(self, direction: str, size_bytes: int) -> Operation:
        """A copy of `size_bytes` bytes; work is in bytes.

        `direction` is `local`, `peer_N` (to GPU N), `h2d` (host to device), `d2h` or `both` (at once; work
        counts both); host memory is pinned, but with `_pageable` after the direction.
        """
        ...

    def reaches(self, peer: int) -> bool:
        """Whether this device writes to GPU `peer` directly; if not, copies go through host memory."""
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

    def peak_bytes(self, operation: Operation) -> int:
        """The memory that one run of a training step takes at its peak, beyond what it holds before."""
        ...

    def limit_memory(self, size_bytes: int) -> None:
        """From now on, let this process take no more than so much in addition to what it has."""
        ...

    def try_step(self, shape: Shape, way: str) -> float | None:
        """Train two steps and forget them; the loss of the second, None if memory did not suffice."""
        ...

    def trace(self, shape: Shape, way: str, steps: int) -> bytes:
        """A Chrome trace of so many training steps; marked as traces.py says. Raises NotRunError."""
        ...

    def loading(self, workers: int, *, pinned: bool) -> Loading:
        """Samples from so many processes; to a GPU through pinned host memory, or not. Raises LimitError."""
        ...

    def shared_bytes(self, workers: int) -> int:
        """The shared memory that so many processes fill with samples."""
        ...

    def join(self, rank: int, world_size: int, store: str, timeout_s: float) -> None:
        """Become one of `world_size` processes that meet at `store`: a file, or tcp://ADDRESS:PORT."""
        ...

    def barrier(self) -> None:
        """Wait for all processes."""
        ...

    def highest(self, value: float) -> float:
        """The highest of the values of all processes; all learn the same."""
        ...

    def has_multicast(self) -> bool:
        """Whether GPUs can be written to all at once, which NCCL's NVLS needs."""
        ...

    def collective(self, kind: str, size_bytes: int) -> Operation:
        """all_reduce, all_gather, reduce_scatter or all_to_all of fp32 over all processes.

        Work is in bytes of the larger buffer of one process. The error is exact: 0 or wrong.
        """
        ...


def make(name: str, device: int) -> Backend:
    """The real backend `cpu` or `cuda`. Raises NotRunError where there is none, with the reason."""
    for variable in DISTORTING:
        os.environ.pop(variable, None)  # before torch is imported, which reads some of them then
    try:
        import torch  # noqa: F401 - only to say early and clearly that it is missing
    except ImportError as error:
        raise NotRunError(f"torch cannot be imported: {error}") from error
    if name == "cpu":
        from validation.backends.cpu import CpuBackend

        return CpuBackend()
    from validation.backends.cuda import CudaBackend

    return CudaBackend(device)
