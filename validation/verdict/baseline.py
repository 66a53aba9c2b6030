"""Comparable numbers as a baseline, and how a number is judged against it: robust statistics.

Three judges look at each number: the published reference of its GPU model (references.py), the rest of the
fleet (cohort.py) and the node's own past (history.py). Each is pure: the same inputs give the same findings.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from math import inf, log, sqrt
from typing import Any

from validation.findings.catalogue import finding, sentence
from validation.model.contract import Finding, Measurement, State, TestResult
from validation.model.quantities import held_back, label, noise, number, of_gpus, on_gpu, quantity, unit

#: The standard deviation of a normal distribution over its median absolute deviation, and its interquartile
#: range over its standard deviation.
MAD_TO_SIGMA = 1.4826
IQR_TO_SIGMA = 1.349
#: How many standard deviations below the median is an outlier (Iglewicz and Hoaglin's robust z), and the
#: least standard deviation to believe in: numbers that are all alike must not condemn one for 0.2 %.
OUTLIER_Z = 3.5
LEAST_SIGMA = 0.01


@dataclass(frozen=True)
class Comparison:
    """What one judge says of one test: findings, and notes on what it did not compare and why."""

    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, parts: Iterable[Comparison]) -> Comparison:
        """Return what several judges say, or one of several numbers; each note once."""
        heard = [part for part in parts if part is not NOTHING]
        return cls(
            tuple(chain.from_iterable(part.findings for part in heard)),
            tuple(dict.fromkeys(chain.from_iterable(part.notes for part in heard))),
        )

    def __add__(self, other: Comparison) -> Comparison:
        return self if other is NOTHING else Comparison.of((self, other))


#: What a judge says of nearly all numbers.
NOTHING = Comparison()


@dataclass(frozen=True)
class Sensitivity:
    """By which part of the median a number must be low to be said to be, and to fail; None: never fails."""

    degraded: float
    fail: float | None


@dataclass(frozen=True)
class Baseline:
    """Comparable numbers: their median and how far they scatter."""

    count: int
    median: float
    sigma: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Baseline:
        """Return the baseline of one or more values."""
        median = statistics.median(values)
        deviation = statistics.median(abs(value - median) for value in values)
        return cls(len(values), median, max(MAD_TO_SIGMA * deviation, LEAST_SIGMA * median))

    def state_of(self, measurement: Measurement, sensitivity: Sensitivity) -> State:
        """Return whether a number lies so far below that neither chance nor its own noise explains it.

        Its own noise can excuse a little; a number that would fail without it stays degraded, or the noisier
        a GPU, the slower it could be and pass.
        """
        value = measurement.value
        if not self.is_below(value, sensitivity):
            return State.PASS
        fails = sensitivity.fail is not None and self.deficit(value) > sensitivity.fail
        noise = value * measurement.spread / IQR_TO_SIGMA
        if self.median - value <= OUTLIER_Z * noise:
            return State.DEGRADED if fails else State.PASS
        return State.FAIL if fails else State.DEGRADED

    def is_below(self, value: float, sensitivity: Sensitivity) -> bool:
        """Return whether a number lies below by more than is allowed, and by more than the others scatter.

        Both, so that a wide scatter excuses more, and a narrow one does not condemn for nothing.
        """
        return self.deficit(value) > sensitivity.degraded and self.median - value > OUTLIER_Z * self.sigma

    def deficit(self, value: float) -> float:
        """Return how much less than the median, as a part of it; negative for more."""
        return (self.median - value) / self.median if self.median else 0.0

    @property
    def blind_below(self) -> float:
        """How much less than the median still counts as chance, as a part of it."""
        return OUTLIER_Z * self.sigma / self.median if self.median else 0.0


@dataclass(frozen=True)
class BaselineJudge:
    """A judge that holds a number against a baseline: its finding's code, and how strict it is."""

    code: str
    gpu: Sensitivity
    #: Whatever else runs on a node takes CPU time: worth knowing, no fault of the node.
    cpu: Sensitivity = Sensitivity(degraded=0.20, fail=None)

    def judge(
        self,
        test: TestResult,
        measurement: Measurement,
        baseline: Baseline,
        whose: str,
        more: Callable[[], str] = str,
    ) -> Comparison:
        """Return what it says of one number; `whose` says what the baseline is.

        `more` says what stands behind its median. Of nearly all numbers nothing is said, and it is not asked.
        """
        on_gpu_test = of_gpus(test)
        sensitivity = self.gpu if on_gpu_test else self.cpu
        below = baseline.is_below(measurement.value, sensitivity)
        blind = sensitivity.fail is not None and baseline.blind_below > sensitivity.fail
        if not below and not blind:
            return NOTHING
        state = baseline.state_of(measurement, sensitivity)
        facts: dict[str, Any] = {
            "number": f"{label(measurement.name)} {quantity(measurement)}{on_gpu(measurement.device)}",
            "deficit": baseline.deficit(measurement.value),
            "whose": whose,
            "median": f"{number(baseline.median)} {unit(measurement.name)}",
            "context": f"{more()}{noise(measurement)}{held_back(test, measurement.device)}",
        }
        if on_gpu_test and state is not State.PASS:
            return Comparison((finding(self.code, gpu=measurement.device, state=state, **facts),))
        text = sentence(self.code, **facts)
        if state is not State.PASS:
            return Comparison(notes=(text,))
        return Comparison(notes=self._unseen(measurement, baseline, sensitivity, whose, text))

    def _unseen(
        self, measurement: Measurement, baseline: Baseline, sensitivity: Sensitivity, whose: str, text: str
    ) -> tuple[str, ...]:
        """Return what kept a number from being blamed that may deserve it.

        For GPUs, which repeat themselves.
        """
        if baseline.is_below(measurement.value, sensitivity):
            return (f"{text}; excused by its own noise",)
        if sensitivity.fail is not None and baseline.blind_below > sensitivity.fail:
            median = f"{number(baseline.median)} {unit(measurement.name)}"
            return (
                f"{label(measurement.name)}: {whose} ({median}) comes of numbers that scatter so far that "
                f"only {baseline.blind_below:.0%} below it is told from chance",
            )
        return ()


#: The standard error of a median over that of a mean, for a normal distribution.
MEDIAN_ERROR = 1.2533
#: Few runs tell their own scatter badly, and would often find it too small: by so much more a loss has to
#: stand out, over the degrees of freedom. Chosen by simulation (tests/unit/rollout/test_gate_rates.py): false
#: alarms of a gate with twenty numbers stay below 1 % for runs that scatter by up to 3 %.
FEW_RUNS = 2.0


def among(numbers: int) -> float:
    """By how much more one of so many numbers has to stand out, so that all together err no more often.

    The tail of a normal distribution at z is about exp(-z^2 / 2), and so many of them as likely as one here.
    """
    return sqrt(1 + 2 * log(max(1, numbers)) / OUTLIER_Z**2)


def usual_scatter(sides: Iterable[Sequence[float]]) -> float:
    """Return the standard deviation of values about the middle of their side, as a part of it.

    From the median absolute deviation alone, which a few values that stand out do not move. Never below what
    baseline.py believes in; infinite where no side has two values.
    """
    return _usual(sides, lambda value, median: abs(value / median - 1))


def usual_deviation(sides: Iterable[Sequence[float]]) -> float:
    """Return the same of numbers that have no unit, such as logarithms, and not as a part."""
    return _usual(sides, lambda value, median: abs(value - median))


def _usual(sides: Iterable[Sequence[float]], deviation: Callable[[float, float], float]) -> float:
    deviations: list[float] = []
    for values in sides:
        if len(values) > 1:
            median = statistics.median(values)
            # With an odd number of values one is the median itself, and says nothing of how they scatter.
            deviations += sorted(deviation(value, median) for value in values)[len(values) % 2 :]
    return max(MAD_TO_SIGMA * statistics.median(deviations), LEAST_SIGMA) if deviations else inf
