"""The largest batch that a training step of the user's own fits in memory with, and the fastest.

    from validation.jobs.batch import largest_batch

    def make_step(batch):
        model, optimizer, data = ...
        def step():
            ...  # forward, backward, update
        return step

    if __name__ == "__main__":
        print(largest_batch(make_step).text(), end="")

Each batch is tried in a process of its own: one that runs out of memory, dies or hangs leaves nothing behind
for the next, and cannot end the search.
"""

from __future__ import annotations

import dataclasses
import math
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from validation.backends.factory import make
from validation.backends.protocol import Backend
from validation.backends.sampling import rate, times
from validation.checks.batch import PARTS, largest
from validation.checks.measured import CUDA_ENVIRONMENT
from validation.jobs import own_function
from validation.jobs.own_function import OwnFunction
from validation.model.contract import Measured, decode, encode
from validation.model.not_run import out_of_memory
from validation.model.plans import Timing
from validation.model.quantities import number
from validation.processes import scratch
from validation.processes.child import Request, is_child
from validation.processes.pool import Ending, run_children

TIMING = Timing(warm_up_s=0.5, measure_s=2.0, least=3)
#: For how long a search goes on, and how long one batch may take: a first step may compile its model.
MINUTES, TRY_S = 30.0, 600.0
#: More samples than any batch has. It bounds a step that does not look at its batch.
MOST_SAMPLES = 1 << 20
#: A rate that is lower by less than this, or than its noise, is as good.
AS_GOOD = 0.02
_DEVICE = re.compile(r"cpu|cuda(:\d+)?", re.ASCII)


class BatchError(Exception):
    """There is no answer; the message says why."""


@dataclass(frozen=True)
class Tried:
    """A batch: its rate, the spread of that, and the memory at the peak in GB; or why it does not fit."""

    batch: int
    samples_s: float = 0.0
    spread: float = 0.0
    peak_gb: float = 0.0
    why_not: str = ""

    @property
    def fits(self) -> bool:
        """Whether it could be trained with for as long as it was timed."""
        return not self.why_not


@dataclass(frozen=True)
class Batches:
    """What a search found within `budget_gb` of memory.

    `tried` in the order of their size. `stopped` says why the search ended too early, or is empty.
    """

    device: str
    budget_gb: float
    tried: tuple[Tried, ...]
    stopped: str = ""

    @property
    def largest(self) -> Tried:
        """The largest that fits, to one part in PARTS where the search was not stopped."""
        return max((one for one in self.tried if one.fits), key=lambda one: one.batch)

    @property
    def fastest(self) -> Tried:
        """The one with the most samples/s."""
        return max((one for one in self.tried if one.fits), key=lambda one: one.samples_s)

    @property
    def enough(self) -> Tried:
        """The smallest that is about as fast as the fastest: it leaves the most memory."""
        best = self.fastest
        return min(
            (
                one
                for one in self.tried
                if one.fits and one.samples_s * (1 + max(AS_GOOD, one.spread, best.spread)) >= best.samples_s
            ),
            key=lambda one: one.batch,
        )

    def text(self) -> str:
        """For people: a line for each batch, and what follows."""
        return "".join(f"{line}\n" for line in self._lines())

    def _lines(self) -> Iterable[str]:
        yield f"{'batch':>8} {'samples/s':>12} {'spread':>7} {'memory':>10}"
        for one in self.tried:
            yield (
                f"{one.batch:>8} {number(one.samples_s):>12} {one.spread:>7.0%} {one.peak_gb:>7.2f} GB"
                if one.fits
                else f"{one.batch:>8} does not fit: {one.why_not}"
            )
        most, best, enough = self.largest, self.fastest, self.enough
        exact = "" if self.stopped else f" (to 1 part in {PARTS})"
        yield (
            f"Largest batch on {self.device} within {self.budget_gb:.3g} GB{exact}: {most.batch}, "
            f"{number(most.samples_s)} samples/s, {most.peak_gb:.3g} GB."
        )
        yield f"Fastest: {best.batch}, {number(best.samples_s)} samples/s, {best.peak_gb:.3g} GB."
        if enough != best:
            yield (
                f"About as fast: {enough.batch}, {number(enough.samples_s)} samples/s, "
                f"{enough.peak_gb:.3g} GB."
            )
        if self.stopped:
            yield f"The search was stopped: {self.stopped}. Larger batches may fit, and be faster."


class _StoppedError(Exception):
    """The search cannot go on; what was found until then stands."""


def largest_batch(
    make_step: Callable[[int], Any] | OwnFunction,
    *,
    device: str = "cuda",
    most: int = MOST_SAMPLES,
    memory_gb: float | None = None,
    minutes: float = MINUTES,
    try_s: float = TRY_S,
    timing: Timing = TIMING,
    say: Callable[[str], None] = lambda _: None,
) -> Batches:
    """Search the largest batch up to `most`, doubled until one does not fit, then bisected; time each.

    `make_step(batch)` is called in a new process and returns a function that runs one training step.
    `device` is `cpu`, `cuda` or `cuda:N`, and the current one there. `memory_gb` (1e9 bytes) is what the step
    may take; None is 90 % of a GPU's free memory, or half of a CPU's. No batch is begun after `minutes`, and
    one that takes longer than `try_s` ends the search. `say` hears of each. Raises BatchError, FunctionError.
    """
    if is_child():
        raise BatchError(
            'a module that is only imported must not search: call it under `if __name__ == "__main__":`'
        )
    if not _DEVICE.fullmatch(device):
        raise BatchError(f"expected a device cpu, cuda or cuda:N, found {device}")
    if most < 1:
        raise BatchError(f"expected a batch of 1 or more as the largest one, found {most}")
    if memory_gb is not None and not 1 <= memory_gb * 1e9 < math.inf:
        raise BatchError(
            f"expected memory_gb of a byte (1e-9) or more, or None for what is free, found {memory_gb:g}"
        )
    function = make_step if isinstance(make_step, OwnFunction) else own_function.of(make_step)
    search = _Search(function, device, memory_gb, try_s, timing, time.monotonic() + 60 * minutes, say)
    stopped = ""
    with scratch.folder():
        try:
            largest(search.fits, most)
        except _StoppedError as reason:
            stopped = str(reason)
    tried = tuple(sorted(search.tried, key=lambda one: one.batch))
    if not any(one.fits for one in tried):
        why = next((one.why_not for one in tried), stopped)
        raise BatchError(f"not even one sample could be trained with: {why}")
    return Batches(device, (search.budget_bytes or 0) / 1e9, tried, stopped)


class _Search:
    """Tries batches, each in a process of its own, and keeps what came of them."""

    def __init__(
        self,
        function: OwnFunction,
        device: str,
        memory_gb: float | None,
        try_s: float,
        timing: Timing,
        ends_at: float,
        say: Callable[[str], None],
    ) -> None:
        self.tried: list[Tried] = []
        self.budget_bytes = None if memory_gb is None else int(memory_gb * 1e9)
        self._function, self._timing, self._try_s = function, timing, try_s
        self._ends_at, self._say = ends_at, say
        self._backend, _, index = device.partition(":")
        self._index = int(index or 0)

    def fits(self, batch: int) -> bool:
        """Return whether one can train with it. Raises _StoppedError."""
        if (left_s := self._ends_at - time.monotonic()) <= 0:
            raise _StoppedError("its minutes are over")
        request = Request(
            f"a batch of {batch}",
            "validation.jobs.batch:measure",
            self._backend,
            device=self._index,
            parameters={
                "function": encode(self._function),
                "batch": batch,
                "budget_bytes": self.budget_bytes,
                "timing": dataclasses.asdict(self._timing),
            },
            environment=CUDA_ENVIRONMENT if self._backend == "cuda" else {},
        )
        (outcome,) = run_children([request], min(self._try_s, left_s))
        measured, details = outcome.measured, outcome.measured.details
        if outcome.ending is not Ending.DONE:
            raise _StoppedError(outcome.problem)
        # The kernel ended it for lack of memory, or there is no such device, or no torch.
        if measured.not_run and not self.tried:
            raise BatchError(measured.not_run)
        # All that follow have the same, whatever is free by then.
        self.budget_bytes = details.get("budget_bytes", self.budget_bytes)
        why = measured.not_run or details.get("why", "")
        if why:
            tried = Tried(batch, why_not=why)
            self._say(f"{batch}: does not fit")
        else:
            (rate,) = measured.measurements
            tried = Tried(batch, rate.value, rate.spread, details[MEMORY])
            self._say(f"{batch}: {number(rate.value)} samples/s")
        self.tried.append(tried)
        return tried.fits


#: Of the free memory of a GPU, and of the host for a CPU, what a search takes unless it is told.
SHARES = {"cuda": 0.9, "cpu": 0.5}
RATE, MEMORY = "samples_s", "peak_gb"


def measure(request: Request, stage: Callable[[str], None]) -> Measured:
    """In a child: one batch. Details have the budget, and `why` where it does not fit. Raises NotRunError."""
    # The job's own settings of CUDA and of torch's allocator hold here, too.
    backend = make(request.backend, request.device, stage, own_environment=True)
    budget = request.parameters["budget_bytes"]
    if budget is None:
        budget = int(SHARES[request.backend] * backend.free_bytes())
    details = {"budget_bytes": budget}
    try:
        return _measured(backend, budget, request, stage, details)
    except (RuntimeError, MemoryError) as error:
        if not (words := out_of_memory(error)):
            raise
        return Measured(details=details | {"why": words})


def _measured(
    backend: Backend, budget: int, request: Request, stage: Callable[[str], None], details: dict[str, int]
) -> Measured:
    function = decode(OwnFunction, request.parameters["function"])
    stage(f"loading {function.file or function.module}")
    make_step = function.load()
    batch = request.parameters["batch"]
    stage(f"the first steps with a batch of {batch}")
    backend.limit_memory(budget)
    step, peak_bytes = backend.first_steps(make_step, batch)
    timing = Timing(**request.parameters["timing"])
    # Two steps that fit prove no third: memory fragments, so that it may run out here, too.
    seconds, attempts = times(backend, step, timing, partial(stage, f"timing a batch of {batch}"))
    found = rate(RATE, step.work, seconds, 1, attempts=attempts)
    return Measured((found,), details=details | {MEMORY: round(peak_bytes / 1e9, 3)})
