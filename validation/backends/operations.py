"""Operations in torch, the same on a CPU and on a GPU: how they are run, and how their results are checked.

Correctness is checked apart from timing, by another route than the one that was timed, and without tolerance
for NaN.
"""

from __future__ import annotations

import torch
import torch.distributed

from validation.model.shapes import MatmulShape
from validation.processes.child import collective_call

#: Written to empty a cache: twice the largest (B200, 126 MB), and what mamf-finder writes.
FLUSH_BYTES = 256 << 20
#: Elements of one row of the all-reduce pattern: 4 MiB of fp32.
ROW = 1 << 20
ODD = 2654435761
TORCH_DTYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8": torch.float8_e4m3fn,
}


class Matmul:
    """C = A B. B is stored transposed, the layout that BLAS libraries are fastest with.

    The numbers are random: a GPU draws less power, and so clocks higher, on constant ones. Operands and
    result of 8192 x 8192 in 16 bits are 400 MB, far more than any GPU's cache; shapes that fit into one are
    measured `cold`.
    """

    def __init__(self, device: torch.device, dtype: str, shape: MatmulShape, *, cold: bool = False) -> None:
        self.work = shape.flop
        self._dtype = dtype
        generator = torch.Generator(device=device).manual_seed(20)
        kind = TORCH_DTYPES[dtype]
        self._a = torch.randn(shape.m, shape.k, generator=generator, device=device).to(kind)
        self._b = torch.randn(shape.n, shape.k, generator=generator, device=device).to(kind)
        # The product of 8-bit numbers comes out in 16 bits, as training uses it.
        result = torch.bfloat16 if dtype == "fp8" else kind
        self._c = torch.empty(shape.m, shape.n, device=device, dtype=result)
        self._one = torch.ones((), device=device)
        self._flush = torch.empty(FLUSH_BYTES // 4, dtype=torch.int32, device=device) if cold else None

    def prepare(self) -> None:
        """fp32 means fp32, and tf32 means tensor cores, whatever this process did before."""
        torch.set_float32_matmul_precision("high" if self._dtype == "tf32" else "highest")
        if self._flush is not None:
            self._flush.zero_()

    def run(self) -> None:
        """Start once; on a GPU it goes on in the background."""
        if self._dtype == "fp8":
            torch._scaled_mm(
                self._a,
                self._b.t(),
                scale_a=self._one,
                scale_b=self._one,
                out_dtype=self._c.dtype,
                out=self._c,
            )
        else:
            torch.mm(self._a, self._b.t(), out=self._c)

    def digest(self) -> str:
        """Run once; a checksum of every bit of the product.

        The same at every run on equal GPUs (model/checksums.py): another one is silent data corruption.
        """
        self.prepare()
        self.run()
        return checksum(self._c)

    def error(self) -> float:
        """Freivalds' check in fp64: the largest deviation of C r from A (B r) over the RMS value.

        For a random r of +-1. One wrong element of C shows as 1/sqrt(n) of its error, rounding averages
        out, and the check costs n (m + k) operations instead of n m k.
        """
        self._c.fill_(float("nan"))
        self.prepare()
        self.run()
        columns = self._c.shape[1]
        signs = torch.randint(0, 2, (columns, 1), device=self._c.device).double().mul_(2).sub_(1)
        right = _times_in_blocks(self._a, _times_in_blocks(self._b.t(), signs))
        found = _times_in_blocks(self._c, signs)
        return float((found - right).abs().max() / right.square().mean().sqrt())


def _times_in_blocks(matrix: torch.Tensor, vector: torch.Tensor, rows: int = 1024) -> torch.Tensor:
    """`matrix` times `vector` in fp64, some rows at a time: a whole matrix in fp64 may not fit."""
    return torch.cat([block.double() @ vector for block in matrix.split(rows)])


def checksum(matrix: torch.Tensor, rows: int = 1024) -> str:
    """Return a 64-bit sum of all bits of a matrix, each word times an odd number of its own place.

    Whole numbers: it does not depend on the order in which a device adds.
    """
    total = 0
    for first, block in enumerate(matrix.view(torch.int32).split(rows)):
        places = torch.arange(block.numel(), device=block.device, dtype=torch.int64).mul_(2).add_(1)
        places.mul_(2654435761 + 2 * first)
        total += int((block.flatten().to(torch.int64) * places).sum())
    return f"{total % (1 << 64):016x}"


class Triad:
    """a = b + s c over three buffers, the STREAM triad."""

    def __init__(self, device: torch.device, size_bytes: int) -> None:
        count = size_bytes // 4
        self.work = float(count * 4)
        self._b = pattern(size_bytes, device=device).remainder_(1 << 10).to(torch.float32)
        self._c = self._b.flip(0)
        self._a = torch.empty_like(self._b)

    def prepare(self) -> None:
        """Nothing: every run does the same."""

    def run(self) -> None:
        """Start once; on a GPU it goes on in the background."""
        torch.add(self._b, self._c, alpha=3.0, out=self._a)

    def error(self) -> float:
        """Return the part of the elements that are wrong.

        Small whole numbers, which add exactly in any order.
        """
        self._a.fill_(float("nan"))
        self.run()
        blocks = zip(*(buffer.split(16 * ROW) for buffer in (self._a, self._b, self._c)), strict=True)
        wrong = sum((a != c + c + b + c).sum() for a, b, c in blocks)
        return int(wrong) / int(self._a.numel())


class MemoryPattern:
    """Write a pattern to much memory at once, then read all of it; then the same with every bit inverted."""

    def __init__(self, device: torch.device, size_bytes: int, block_bytes: int = 256 << 20) -> None:
        block_bytes = min(block_bytes, size_bytes)
        self.work = float(size_bytes // block_bytes * block_bytes)
        self._base = pattern(block_bytes, device=device)
        self._blocks = [torch.empty_like(self._base) for _ in range(size_bytes // block_bytes)]

    def prepare(self) -> None:
        """Nothing: error() does it all."""

    def run(self) -> None:
        """Write the pattern, another one to each block."""
        self._write(0)

    def error(self) -> float:
        """Return the number of words that did not keep what was written."""
        wrong = 0
        for inverted in (0, -1):
            self._write(inverted)
            for number, block in enumerate(self._blocks):
                wrong += int((block != torch.bitwise_xor(self._base, number ^ inverted)).sum())
        return float(wrong)

    def _write(self, inverted: int) -> None:
        for number, block in enumerate(self._blocks):
            torch.bitwise_xor(self._base, number ^ inverted, out=block)


class Copy:
    """One buffer into another."""

    def __init__(self, source: torch.Tensor, target: torch.Tensor) -> None:
        self.work = float(source.numel() * source.element_size())
        self._source = source
        self._target = target

    def prepare(self) -> None:
        """Nothing: every run does the same."""

    def run(self) -> None:
        """Start once; on a GPU it goes on in the background."""
        self._target.copy_(self._source, non_blocking=True)

    def error(self) -> float:
        """Return the part of the elements that arrived wrong.

        The target is overwritten first, so that nothing old can pass.
        """
        self.spoil()
        self.run()
        return self.difference()

    def spoil(self) -> None:
        """Overwrite the target. The copy that follows waits for it: same device, or the host itself."""
        self._target.fill_(-1)

    def difference(self) -> float:
        """Wait for the copy, then compare; on the host, so that a device does not judge itself."""
        for tensor in (self._source, self._target):
            if tensor.is_cuda:
                torch.cuda.synchronize(tensor.device)
        wrong = 0
        for blocks in zip(self._target.split(ROW), self._source.split(ROW), strict=True):
            target, source = (block.cpu() for block in blocks)
            # To compare is a third of the work of counting, which is for those that differ.
            if not torch.equal(target, source):
                wrong += int((target != source).sum())
        return wrong / int(self._source.numel())


class BothWays:
    """Two copies at the same time, host to GPU and GPU to host, in two streams; work counts both."""

    def __init__(self, to_device: Copy, to_host: Copy, device: torch.device) -> None:
        self.work = to_device.work + to_host.work
        self._to_device, self._to_host = to_device, to_host
        self._device = device
        self._side = torch.cuda.Stream(device)

    def prepare(self) -> None:
        """Nothing: every run does the same."""

    def run(self) -> None:
        """Start both; what follows in the current stream waits for both."""
        current = torch.cuda.current_stream(self._device)
        self._side.wait_stream(current)
        self._to_device.run()
        with torch.cuda.stream(self._side):
            self._to_host.run()
        current.wait_stream(self._side)

    def error(self) -> float:
        """Return the larger of both errors, of copies that ran at the same time."""
        self._to_device.spoil()
        self._to_host.spoil()
        self.run()
        return max(self._to_device.difference(), self._to_host.difference())


def pattern(size_bytes: int, device: torch.device | str = "cpu", *, pinned: bool = False) -> torch.Tensor:
    """Whole numbers, int32, no two of which are alike: position times a large odd constant, modulo 2^32.

    Made block by block from the first one, without a temporary of twice the size.
    """
    numbers = torch.empty(size_bytes // 4, dtype=torch.int32, device=device, pin_memory=pinned)
    first = (torch.arange(ROW, dtype=torch.int64, device=device) * ODD).to(torch.int32)
    for number, block in enumerate(numbers.split(ROW)):
        # What ROW positions more add to the product, as a signed number of 32 bits.
        step = (number * ROW * ODD + (1 << 31)) % (1 << 32) - (1 << 31)
        torch.add(first[: block.numel()], step, out=block)
    return numbers


class AllReduce:
    """The sum over all ranks.

    Rank r holds small whole numbers f(r, i), so that the sum is known exactly in any order.
    """

    def __init__(self, device: torch.device, size_bytes: int) -> None:
        length = min(ROW, max(1, size_bytes // 4))
        rows = max(1, size_bytes // (4 * length))
        self.work = float(rows * length * 4)
        rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
        self._source = torch.empty(rows, length, device=device)
        self._source.copy_(row(rank, device, length).expand(rows, length))
        rights = (row(r, device, length) for r in range(world_size))
        self._right = sum(rights, torch.zeros(length, device=device))
        self._buffer = torch.empty_like(self._source)

    def prepare(self) -> None:
        """Back to this rank's own numbers: repeated sums in place would overflow."""
        self._buffer.copy_(self._source)

    def run(self) -> None:
        """Start once; on a GPU it goes on in the background."""
        with collective_call():
            torch.distributed.all_reduce(self._buffer)

    def error(self) -> float:
        """Return the part of the elements that are not exactly the sum, on this rank."""
        self.prepare()
        self.run()
        wrong = [int((block != self._right).sum()) for block in self._buffer.split(64)]
        return sum(wrong) / int(self._buffer.numel())


def row(rank: int, device: torch.device, length: int = ROW) -> torch.Tensor:
    """Whole numbers from 0 to 7 that differ between ranks and positions."""
    positions = torch.arange(length, device=device, dtype=torch.int64)
    return ((positions * 40503 + rank * 9973) >> 7 & 7).float()
