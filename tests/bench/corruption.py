"""Which corruption of results test `gpu_corruption` finds: known faults, put into results on the CPU.

    PYTHON-WITH-TORCH -m tests.bench.corruption [--trials N] [--rounds N] [--seed N]

A trial has one fault, in the results of the kernels of one unit, and some rounds. A fault that comes and goes
strikes one result in so many, elsewhere each time, or a single one of the trial; a permanent one strikes all
results alike, so that nothing but a known result, or another GPU, can show it. Beside the check stands what a
look for NaN would have found in the same results. Faults are of the kinds that arXiv 2605.04213 describes.
"""

from __future__ import annotations

import argparse
import random
from typing import TYPE_CHECKING, NamedTuple

import torch

from validation.backends.cpu import CpuBackend
from validation.backends.kernels import Kernels
from validation.checks.corruption import Comparison
from validation.checks.launch import Recorder
from validation.processes.child import Request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from validation.backends.kernels import Kernel

EDGE = 96
DTYPES = ("fp32", "bf16", "fp16")
LANES = 32
#: How often a fault strikes: a single result of a trial, one in so many, or all, always alike.
ONCE, ALIKE = -1, 0
RATES = (ONCE, 100, 10, ALIKE)
UNITS = ("fp32", "tensor", "fp64", "vector", "special", "integer", "movement")


def _words(result: torch.Tensor) -> torch.Tensor:
    return result.view(result.shape[0], -1).view(torch.int32).view(-1)


def bit(words: torch.Tensor, rng: random.Random) -> None:
    """One bit of one word."""
    words[rng.randrange(len(words))] ^= _mask(rng.randrange(32))


def low_bit(words: torch.Tensor, rng: random.Random) -> None:
    """The lowest bit of one word: less than any tolerance."""
    words[rng.randrange(len(words))] ^= 1


def three_bits(words: torch.Tensor, rng: random.Random) -> None:
    """Three bits of one word."""
    place = rng.randrange(len(words))
    for one in rng.sample(range(32), 3):
        words[place] ^= _mask(one)


def lane(words: torch.Tensor, rng: random.Random) -> None:
    """A bit of every 32nd word is stuck at 1."""
    words[rng.randrange(LANES) :: LANES] |= _mask(rng.randrange(32))


def warp(words: torch.Tensor, rng: random.Random) -> None:
    """32 words in a row have the values of 32 others."""
    last = max(1, len(words) // LANES)
    source, target = rng.randrange(last) * LANES, rng.randrange(last) * LANES
    words[target : target + LANES] = words[source : source + LANES].clone()


def stale(words: torch.Tensor, rng: random.Random) -> None:
    """A piece of the result was never written."""
    start = rng.randrange(len(words))
    words[start : start + 4 * LANES] = 0


FAULTS = (bit, low_bit, three_bits, lane, warp, stale)


def _mask(bit: int) -> int:
    return 1 << bit if bit < 31 else -(1 << 31)


class Struck(NamedTuple):
    """How often a fault changed a result, how often to NaN, and whether the check found it."""

    times: int
    nans: int
    found: bool


class Faulty(CpuBackend):
    """A CPU, one of whose units goes wrong in one way."""

    def __init__(
        self, fault: Callable[..., None], unit: str, rate: int, rounds: int, rng: random.Random
    ) -> None:
        super().__init__()
        self._fault, self._unit, self._rate, self._rng = fault, unit, rate, rng
        self._seed = rng.randrange(1 << 30)
        results = rounds * sum(kernel.unit == unit for kernel in Kernels(self._device, DTYPES, EDGE))
        self._place, self._results = rng.randrange(max(1, results)), 0
        self.times = self.nans = 0

    def kernels(self) -> Iterator[Kernel]:  # type: ignore[override] # the protocol asks for no more
        """Those of a CPU, small, and struck."""
        for kernel in Kernels(self._device, DTYPES, EDGE):
            struck = kernel._replace(run=self._struck(kernel))
            yield struck if kernel.unit == self._unit else kernel

    def _struck(self, kernel: Kernel) -> Callable[[], torch.Tensor]:
        def run() -> torch.Tensor:
            result = kernel.run().clone()
            self._results += 1
            if self._strikes():
                before = result.clone()
                alike = random.Random(self._seed)
                self._fault(_words(result), alike if self._rate == ALIKE else self._rng)
                changed = not _words(before).equal(_words(result))
                self.times += changed
                self.nans += changed and result.is_floating_point() and bool(result.isnan().any())
            return result

        return run

    def _strikes(self) -> bool:
        if self._rate == ONCE:
            return self._results - 1 == self._place
        return self._rate == ALIKE or self._rng.random() < 1 / self._rate


def trial(fault: Callable[..., None], rate: int, rounds: int, rng: random.Random) -> Struck:
    """Compare with one fault."""
    backend = Faulty(fault, rng.choice(UNITS), rate, rounds, rng)
    request = Request("CPU", "", "cpu", parameters={"timing": {"warm_up_s": 0, "measure_s": 0}})
    recorder = Recorder(backend, request, lambda _: None)
    comparison = Comparison(backend, recorder, "CPU")
    kernels = list(backend.kernels())
    for _ in range(rounds):
        for kernel in kernels:
            comparison.look(kernel)
        comparison.rounds += 1
    return Struck(backend.times, backend.nans, bool(comparison.wrong))


def main(arguments: list[str] | None = None) -> None:
    """Print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    rng = random.Random(options.seed)
    print(
        f"{options.trials} trials each, {options.rounds} rounds; found, of those in which a result changed\n"
    )
    print("| Fault | one result | one in 100 | one in 10 | every one alike | a look for NaN |")
    print("|---|--:|--:|--:|--:|--:|")
    for fault in FAULTS:
        cells, seen, struck = [], 0, 0
        for rate in RATES:
            some = [trial(fault, rate, options.rounds, rng) for _ in range(options.trials)]
            hit = [one for one in some if one.times]
            found = sum(one.found for one in hit)
            cells.append(f"{found / len(hit):.0%} of {len(hit)}" if hit else "no result changed")
            seen, struck = seen + sum(bool(one.nans) for one in hit), struck + len(hit)
        words = (fault.__doc__ or "").rstrip(".").lower()
        print(f"| {words} | {' | '.join(cells)} | {seen / max(1, struck):.0%} |", flush=True)


if __name__ == "__main__":
    main()
