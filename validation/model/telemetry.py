"""What this program reads of a test's details, which are free otherwise: typed and bounded."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from validation.model.bounds import Bounds, Count, Index, Name

#: Over the time of a test, of what a GPU may not say.
_Course = tuple[float | None, ...]


@dataclass(frozen=True)
class Seen:
    """What nvidia-smi said of a GPU during a test (gpu_samples.summary)."""

    device: Index
    samples: Count = 0
    sm_clock_mhz_median: float | None = None
    power_w_max: float | None = None
    temperature_c_max: float | None = None
    event_reason_shares: Annotated[dict[str, float], Bounds(64)] = field(default_factory=dict)
    slow_link: str = ""


@dataclass(frozen=True)
class Course:
    """The same over the time of the test (gpu_samples.series): a value of each kind for each of `seconds`."""

    device: Index
    seconds: tuple[float, ...]
    sm_clock_mhz: _Course = ()
    power_w: _Course = ()
    temperature_c: _Course = ()
    event_reasons: tuple[Annotated[tuple[Name, ...], Bounds(64)], ...] = ()


@dataclass(frozen=True)
class PowerLimit:
    """The power limit of a GPU, as the test health found it."""

    device: Index
    power_limit_w: float | None = None
