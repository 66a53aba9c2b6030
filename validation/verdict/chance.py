"""How far numbers scatter, and what of a difference is chance: robust, and fit for few values."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from math import inf, log, sqrt

from validation.verdict.baseline import LEAST_SIGMA, MAD_TO_SIGMA, OUTLIER_Z

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
    deviations: list[float] = []
    for values in sides:
        if len(values) > 1:
            median = statistics.median(values)
            # With an odd number of values one is the median itself, and says nothing of how they scatter.
            deviations += sorted(abs(value / median - 1) for value in values)[len(values) % 2 :]
    return max(MAD_TO_SIGMA * statistics.median(deviations), LEAST_SIGMA) if deviations else inf
