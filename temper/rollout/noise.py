"""How far a number fell, and how far it could have fallen by chance: robust, and fit for few runs.

A *series* is one number of one node: what each GPU reached in each run, before and after. Its loss is the
median over the GPUs of each one's own loss, so that one odd GPU neither hides nor fakes what the driver did
to all. Its noise is taken from the runs themselves, each as the median of its GPUs: what moves all GPUs of a
node at once (heat, power, other work) is in it, and is not averaged away by their number.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, sqrt

from validation.verdict.baseline import FEW_RUNS, MEDIAN_ERROR, OUTLIER_Z, usual_scatter


@dataclass(frozen=True)
class Series:
    """One number of a node: GPU (UUID, None for the node as a whole) -> its values, run by run."""

    before: Mapping[str | None, Sequence[float]]
    after: Mapping[str | None, Sequence[float]]

    @property
    def devices(self) -> list[str | None]:
        """Those that have values on both sides."""
        return [device for device in self.before if self.before[device] and self.after.get(device)]

    def losses(self) -> dict[str | None, float]:
        """Return what each GPU lost, as a part of what it had; negative for a gain."""
        return {
            device: 1 - statistics.median(self.after[device]) / statistics.median(self.before[device])
            for device in self.devices
        }

    def loss(self) -> float:
        """Return what the node lost: the median of its GPUs."""
        return statistics.median(self.losses().values())

    def sigma(self) -> float:
        """Return the standard deviation of a run about its side, as a part of it."""
        devices = self.devices
        return scatter([_runs(self.before, devices), _runs(self.after, devices)])

    def sigma_before(self) -> float:
        """Return the same, of the runs before alone."""
        return scatter([_runs(self.before, [device for device in self.before if self.before[device]])])

    def usual_after(self) -> float:
        """Return the same, of most of the runs after alone: a few that stand out are not in it."""
        return usual_scatter([_runs(self.after, self.devices)])

    def sigma_of_gpus(self) -> float:
        """Return the standard deviation of one GPU's runs about their own median, of all GPUs together."""
        return scatter([side[device] for device in self.devices for side in (self.before, self.after)])

    def noise(self, sigma: float) -> float:
        """Return the loss that chance explains where runs scatter by `sigma`: 3.5 standard errors of it."""
        runs = [
            min((len(side[device]) for device in self.devices), default=0)
            for side in (self.before, self.after)
        ]
        return noise(sigma, *runs)


def noise(sigma: float, before: int, after: int) -> float:
    """Return the loss between medians of so many runs that chance explains, if runs scatter by `sigma`."""
    if min(before, after) < 1 or before + after < 3:
        return inf
    few = 1 + FEW_RUNS / (before + after - 2)
    return OUTLIER_Z * few * sigma * MEDIAN_ERROR * sqrt(1 / before + 1 / after)


def scatter(sides: Iterable[Sequence[float]]) -> float:
    """Return the standard deviation of values about the middle of their side, as a part of it.

    The larger of what their median absolute deviation and their squares say: of few values the first is often
    far too small. Never below what baseline.py believes in; infinite where no side has two values.
    """
    sides = [values for values in sides if len(values) > 1]
    squares, freedom = 0.0, 0
    for values in sides:
        mean = statistics.fmean(values)
        squares += sum((value / mean - 1) ** 2 for value in values)
        freedom += len(values) - 1
    return max(usual_scatter(sides), sqrt(squares / freedom)) if freedom else inf


def _runs(side: Mapping[str | None, Sequence[float]], devices: Sequence[str | None]) -> list[float]:
    """Run by run, how the median of the GPUs compares with what each of them reaches in its median run."""
    if not devices:
        return []
    medians = {device: statistics.median(side[device]) for device in devices}
    count = min(len(side[device]) for device in devices)
    return [
        statistics.median(side[device][run] / medians[device] for device in devices) for run in range(count)
    ]
