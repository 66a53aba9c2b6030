"""How something is timed: warm up, then sample until time and count suffice; median and spread."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial

from validation.backends.protocol import Backend, Operation
from validation.model.contract import Measurement
from validation.model.plans import Timing
from validation.model.quantities import NOISY_SPREAD

#: Runs between two looks at the clock: bounded, so that a slow machine does not overrun, and a fast one is
#: not paused too often.
LARGEST_BATCH = 64
MOST_ATTEMPTS = 3


def times(
    backend: Backend, operation: Operation, timing: Timing, go_on: Callable[[], None]
) -> tuple[list[float], int]:
    """Return seconds of each run of `operation` on a warm device, and the attempts until they were calm.

    A cold GPU clocks higher than one that works. `go_on` is called between batches of runs.
    """
    run_for = partial(_run_for, backend, operation, go_on=go_on, most=timing.most)
    # The first call loads code: it neither warms the device nor says how long a run takes.
    run_for(0.0, least=1)
    typical = statistics.median(run_for(timing.warm_up_s, least=1))
    return calm(partial(run_for, timing.measure_s, least=timing.least, typical=typical))


def calm(measure: Callable[[], list[float]], most: int = MOST_ATTEMPTS) -> tuple[list[float], int]:
    """Measure again while the samples spread: of up to `most` attempts the calmest, and how many it took.

    A disturbance passes, a slow device stays slow: nobody is blamed for the first.
    """
    attempts = [measure()]
    while spread(attempts[-1]) > NOISY_SPREAD and len(attempts) < most:
        attempts.append(measure())
    return min(attempts, key=spread), len(attempts)


def repeated(once: Callable[[], float], timing: Timing) -> list[float]:
    """Return seconds that `once` says it took, as often and for as long as the plan measures.

    Without a warm-up.
    """
    seconds: list[float] = []
    while len(seconds) < timing.least or (sum(seconds) < timing.measure_s and len(seconds) < timing.most):
        seconds.append(once())
    return seconds


def _run_for(
    backend: Backend,
    operation: Operation,
    duration_s: float,
    *,
    go_on: Callable[[], None],
    least: int,
    most: int,
    typical: float | None = None,
) -> list[float]:
    seconds: list[float] = []
    while (spent := sum(seconds)) < duration_s or len(seconds) < least:
        if len(seconds) >= most:
            break
        guess = typical or (spent / len(seconds) if seconds and spent else None)
        batch = int((duration_s - spent) / guess) if guess else 1
        count = max(1, min(batch, LARGEST_BATCH, most - len(seconds)))
        go_on()
        seconds += backend.seconds(operation, count)
    return seconds


def spread(samples: list[float]) -> float:
    """Return the interquartile range as a part of the median; 0 for fewer than two samples."""
    if len(samples) < 2:
        return 0.0
    low, middle, high = statistics.quantiles(samples, n=4, method="inclusive")
    return (high - low) / middle


def rate(
    name: str,
    work: float,
    seconds: list[float],
    scale: float,
    device: int | None = None,
    conditions: dict[str, int | str] | None = None,
    attempts: int = 1,
) -> Measurement:
    """`work` per second in units of `scale` (1e9, 1e12): from the median time, with its spread."""
    return Measurement(
        name=name,
        value=round(work / statistics.median(seconds) / scale, 4),
        samples=len(seconds),
        spread=round(spread(seconds), 4),
        device=device,
        conditions=conditions or {},
        attempts=attempts,
    )
