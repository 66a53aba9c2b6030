"""Kernels of many kinds whose results are the same bits each time: what silent corruption shows in.

A product of one format exercises one of a chip's units; a fault in another, in addressing or in a few lanes
passes it by. Each kernel says which unit it leans on. Those with an `expected` result are right or wrong by
themselves; all others are compared: with their first run, with other GPUs, other nodes, earlier days.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
import torch.nn.functional

from validation.backends.operations import TORCH_DTYPES, checksum

#: The edge of the matrices: a result has 4 million numbers, some megabytes, which fills the chip.
EDGE = 2048
#: Of those that differ, so many say in which bits.
MOST_WORDS = 4096
#: Of a format's bits, those of the exponent are never all set: no operand is infinite or no number.
FINITE = {torch.float32: 0xBFFFFFFF, torch.float16: 0xBFFF, torch.bfloat16: 0xBFFF}
WORDS = {torch.float32: torch.int32, torch.float16: torch.int16, torch.bfloat16: torch.int16}


class Difference(NamedTuple):
    """How a result differs from the right one: words, rows of the matrix, and bits of a word."""

    changed: int
    first_row: int
    last_row: int
    bits: int

    def __str__(self) -> str:
        one = self.first_row == self.last_row
        rows = f"row {self.first_row}" if one else f"rows {self.first_row} to {self.last_row}"
        return f"{self.changed} of its words differ, in {rows}, in bits {self.bits:#x}"


class Kernel(NamedTuple):
    """A computation: what it leans on, and the numbers it works with."""

    unit: str
    name: str
    pattern: str
    run: Callable[[], torch.Tensor]
    #: The right result, where it is known without this kernel.
    expected: Callable[[], torch.Tensor] | None = None

    @staticmethod
    def digest(result: torch.Tensor) -> str:
        """Return a 64-bit checksum of all bits of a result."""
        return checksum(_words(result))

    @staticmethod
    def difference(right: torch.Tensor, found: torch.Tensor) -> Difference:
        """Compare two results of one shape word by word (32 bits)."""
        changed = _words(right) ^ _words(found)
        rows = changed.ne(0).any(dim=1).nonzero().flatten()
        bits = 0
        for value in changed[changed.ne(0)].unique()[:MOST_WORDS].tolist():
            bits |= value & 0xFFFFFFFF
        first, last = (int(rows[0]), int(rows[-1])) if len(rows) else (0, 0)
        return Difference(int(changed.ne(0).sum()), first, last, bits)


def _words(result: torch.Tensor) -> torch.Tensor:
    """Return a result as rows of 32-bit words."""
    return result.contiguous().view(result.shape[0], -1).view(torch.int32)


class Kernels:
    """All kernels that a device has, with their operands: about 0.9 GB, and 0.7 GB of results."""

    def __init__(self, device: torch.device, dtypes: tuple[str, ...], edge: int = EDGE) -> None:
        self._device, self._dtypes, self._edge = device, dtypes, edge
        self._generator = torch.Generator(device=device).manual_seed(71)

    def __iter__(self) -> Iterator[Kernel]:
        yield from self._products()
        yield from self._arithmetic()
        yield from self._sums()
        yield from self._whole_numbers()
        yield from self._movement()

    def _normal(self, kind: torch.dtype) -> torch.Tensor:
        shape = (self._edge, self._edge)
        return torch.randn(shape, generator=self._generator, device=self._device).to(kind)

    def _few(self, kind: torch.dtype) -> torch.Tensor:
        """Return a matrix in which one in sixteen is 1 or -1: every format holds such small sums exactly."""
        drawn = self._whole(32)
        return ((drawn == 0).float() - (drawn == 1).float()).to(kind)

    def _bits(self, kind: torch.dtype) -> torch.Tensor:
        """Any finite number: all bits of the format take part."""
        word = WORDS[kind]
        drawn = torch.randint(
            torch.iinfo(word).min,
            torch.iinfo(word).max,
            (self._edge, self._edge),
            generator=self._generator,
            device=self._device,
            dtype=word,
        )
        mask = FINITE[kind]
        return (drawn & (mask - 2 * (mask & -torch.iinfo(word).min))).view(kind)

    def _whole(self, below: int) -> torch.Tensor:
        return torch.randint(
            below, (self._edge, self._edge), generator=self._generator, device=self._device, dtype=torch.int32
        )

    def _products(self) -> Iterator[Kernel]:
        # An edge that is no multiple of a tile takes other kernels of the library.
        for name in self._dtypes:
            for pattern, made in (("normal", self._normal), ("few", self._few)):
                for edge in (self._edge, self._edge - 48):
                    a, b = (made(TORCH_DTYPES[name])[:edge, :edge].contiguous() for _ in range(2))
                    yield Kernel(
                        "tensor" if name != "fp32" else "fp32",
                        f"product_{name}_{edge}",
                        pattern,
                        _product(name, a, b),
                        _exact(name, a, b) if pattern == "few" else None,
                    )
        a, b = (self._normal(torch.float64)[:512, :512].contiguous() for _ in range(2))
        yield Kernel("fp64", "product_fp64", "normal", lambda: a @ b)

    def _arithmetic(self) -> Iterator[Kernel]:
        for name in ("fp32", "fp16", "bf16"):
            if name in self._dtypes:
                kind = TORCH_DTYPES[name]
                for pattern, made in (("normal", self._normal), ("bits", self._bits)):
                    a, b, c = (made(kind) for _ in range(3))
                    yield Kernel("vector", f"multiply_add_{name}", pattern, _call(torch.addcmul, a, b, c))
        for pattern, made in (("normal", self._normal), ("bits", self._bits)):
            x = made(torch.float32)
            above = x.abs()
            for function in (torch.exp, torch.sin, torch.erf):
                yield Kernel("special", function.__name__, pattern, _call(function, x))
            for function in (torch.rsqrt, torch.log):
                yield Kernel("special", function.__name__, pattern, _call(function, above))
            yield Kernel("special", "divide", pattern, _call(torch.div, x, above + 1))
        y = self._normal(torch.float64)
        yield Kernel("fp64", "multiply_add_fp64", "normal", _call(torch.addcmul, y, y, y))

    def _sums(self) -> Iterator[Kernel]:
        x = self._normal(torch.float32)
        yield Kernel("vector", "softmax", "normal", lambda: torch.softmax(x, dim=1))
        yield Kernel(
            "vector", "layer_norm", "normal", lambda: torch.nn.functional.layer_norm(x, (self._edge,))
        )
        few = self._few(torch.float32)
        yield Kernel(
            "vector",
            "sum",
            "few",
            lambda: few.sum(dim=1, keepdim=True),
            lambda: few.to(torch.int32).sum(dim=1, keepdim=True, dtype=torch.int32).float(),
        )

    def _whole_numbers(self) -> Iterator[Kernel]:
        a, b = self._whole(1 << 30), self._whole(1 << 30)
        yield Kernel("integer", "mix", "bits", lambda: ((a * 40503 + b) ^ (a >> 7)) + (b << 3))
        ranks = torch.randperm(self._edge**2, generator=self._generator, device=self._device)
        shuffled = ranks.to(torch.int32).view(self._edge, self._edge)
        ordered = torch.arange(self._edge**2, device=self._device, dtype=torch.int32)
        ordered = ordered.view(self._edge, self._edge)
        yield Kernel(
            "integer",
            "sort",
            "permutation",
            lambda: shuffled.flatten().sort()[0].view(self._edge, self._edge),
            lambda: ordered,
        )
        yield Kernel(
            "integer",
            "running_sum",
            "ones",
            lambda: torch.ones_like(ordered).flatten().cumsum(0, dtype=torch.int32).view_as(ordered),
            lambda: ordered + 1,
        )

    def _movement(self) -> Iterator[Kernel]:
        x = self._bits(torch.float32)
        # The same bits come back: twice transposed, or gathered and put back in their places.
        yield Kernel("movement", "transpose", "bits", lambda: x.t().contiguous().t().contiguous(), lambda: x)
        places = torch.randperm(self._edge, generator=self._generator, device=self._device)

        def gathered() -> torch.Tensor:
            back = torch.empty_like(x)
            back[places] = x[places]
            return back

        yield Kernel("movement", "gather", "bits", gathered, lambda: x)


def _call(function: Callable[..., torch.Tensor], *operands: torch.Tensor) -> Callable[[], torch.Tensor]:
    return lambda: function(*operands)


def _product(name: str, a: torch.Tensor, b: torch.Tensor) -> Callable[[], torch.Tensor]:
    def product() -> torch.Tensor:
        torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
        if name == "fp8":
            one = torch.ones((), device=a.device)
            return torch._scaled_mm(a, b.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
        return torch.mm(a, b.t())

    return product


def _exact(name: str, a: torch.Tensor, b: torch.Tensor) -> Callable[[], torch.Tensor]:
    """Return the same product by the units for fp64: whole numbers below 256, which every format holds."""

    def exact() -> torch.Tensor:
        right = a.to(torch.float64) @ b.to(torch.float64).t()
        return right.to(torch.bfloat16 if name == "fp8" else TORCH_DTYPES[name])

    return exact
