"""Samples of clocks, power and links of every GPU, taken while something runs, and their summary."""

from __future__ import annotations

import re
import statistics
from dataclasses import dataclass
from typing import Any

from validation.model.grouping import by_key
from validation.probes.nvidia_smi import FULL_SPEED_STATES, SAMPLE_TIMEOUT_S, NvidiaSmiError, ask
from validation.probes.reading import ReadingError, in_one_line
from validation.probes.report_values import EVENT_REASONS, LOST, integer, is_absent, number

GPU_IDLE = 0x1
INDEX = re.compile("[0-9]{1,4}")
REASONS = re.compile("0x[0-9a-fA-F]{1,16}")
#: Of the course of a test, so many points are kept of each GPU.
MOST_POINTS = 32


@dataclass(frozen=True)
class Sample:
    """One GPU at one moment. Clocks in MHz, power in W, temperature in degrees Celsius."""

    index: int
    sm_clock_mhz: float | None
    power_w: float | None
    temperature_c: float | None
    pcie_generation: int | None
    pcie_width: int | None
    event_reasons: int
    performance_state: str | None
    ecc_uncorrected: int | None

    @property
    def at_full_speed(self) -> bool:
        """Whether the GPU works, so that its link runs as fast as it can."""
        return self.performance_state in FULL_SPEED_STATES


def sample() -> tuple[Sample, ...]:
    """Clocks, power, temperature, link and event reasons of every GPU now. Raises NvidiaSmiError."""
    # Each of these fields exists from driver 535 on; a single unknown one would fail the query.
    fields = "index,clocks.sm,power.draw,temperature.gpu,pcie.link.gen.current,pcie.link.width.current"
    rest = "clocks_event_reasons.active,pstate,ecc.errors.uncorrected.volatile.total"
    query = [f"--query-gpu={fields},{rest}", "--format=csv,noheader,nounits"]
    return parse_samples(ask(query, SAMPLE_TIMEOUT_S))


def parse_samples(text: str) -> tuple[Sample, ...]:
    """Return samples from the CSV that `sample` asks for. Raises NvidiaSmiError."""
    samples = []
    for line in filter(None, map(str.strip, text.split("\n"))):
        cells = [cell.strip() for cell in line.split(",")]
        try:
            index, clock, power, temperature, generation, width, reasons, state, errors = cells
            if lost := LOST & {cell.strip("[]") for cell in cells}:
                raise NvidiaSmiError("lost", f"nvidia-smi says of GPU {in_one_line(index)}: {lost.pop()}")
            if not INDEX.fullmatch(index):
                raise ReadingError(f"expected the number of a GPU, found {in_one_line(index)!r}")
            samples.append(
                Sample(
                    index=int(index),
                    sm_clock_mhz=number(clock),
                    power_w=number(power),
                    temperature_c=number(temperature),
                    pcie_generation=integer(generation),
                    pcie_width=integer(width),
                    event_reasons=int(reasons, 16) if REASONS.fullmatch(reasons) else 0,
                    performance_state=None if is_absent(state) else state,
                    ecc_uncorrected=integer(errors),
                )
            )
        except NvidiaSmiError:
            raise
        except ValueError as error:
            raise NvidiaSmiError(
                "other", f"nvidia-smi --query-gpu gave an unexpected line: {in_one_line(line)}"
            ) from error
    return tuple(samples)


def summary(rounds: list[tuple[Sample, ...]]) -> list[dict[str, Any]]:
    """Return medians, maxima and how often a reason was active, by GPU, of samples taken during a test.

    Clocks and reasons are those of samples in which the GPU worked: while processes start it idles.
    """
    by_gpu = by_key((one.index, one) for samples in rounds for one in samples)
    working = {
        index: [s for s in samples if not s.event_reasons & GPU_IDLE] or samples
        for index, samples in by_gpu.items()
    }
    return [
        {
            "device": index,
            "samples": len(working[index]),
            "sm_clock_mhz_median": _median([s.sm_clock_mhz for s in working[index]]),
            "power_w_max": _maximum([s.power_w for s in samples]),
            "temperature_c_max": _maximum([s.temperature_c for s in samples]),
            "pcie_generation_max": _maximum([s.pcie_generation for s in samples if s.at_full_speed]),
            "pcie_width_max": _maximum([s.pcie_width for s in samples if s.at_full_speed]),
            "ecc_uncorrected_new": _growth([s.ecc_uncorrected for s in samples]),
            "event_reason_shares": {
                name: round(sum(bool(s.event_reasons & bit) for s in working[index]) / len(working[index]), 3)
                for name, bit in EVENT_REASONS.items()
                if any(s.event_reasons & bit for s in working[index])
            },
        }
        for index, samples in sorted(by_gpu.items())
    ]


def series(moments_s: list[float], rounds: list[tuple[Sample, ...]]) -> list[dict[str, Any]]:
    """Return one object a GPU with what it did over the time of a test, for a chart.

    `moments_s` are when the rounds were sampled, and `seconds` in the result counts from the first of them.
    Of a long test, MOST_POINTS stand for all samples: the lowest clock, the highest power and temperature and
    all event reasons of those that they stand for, so that no moment of throttling is lost. What a GPU does
    not say is null.
    """
    step = max(1, -(-len(rounds) // MOST_POINTS))
    found: dict[int, dict[str, Any]] = {}
    for start in range(0, len(rounds), step):
        by_gpu = by_key((one.index, one) for some in rounds[start : start + step] for one in some)
        for index, samples in by_gpu.items():
            points = found.setdefault(
                index,
                {
                    "device": index,
                    **{
                        name: []
                        for name in ("seconds", "sm_clock_mhz", "power_w", "temperature_c", "event_reasons")
                    },
                },
            )
            clocks = [s.sm_clock_mhz for s in samples if s.sm_clock_mhz is not None]
            points["seconds"].append(round(moments_s[start] - moments_s[0], 1))
            points["sm_clock_mhz"].append(min(clocks, default=None))
            points["power_w"].append(_maximum([s.power_w for s in samples]))
            points["temperature_c"].append(_maximum([s.temperature_c for s in samples]))
            points["event_reasons"].append(
                [name for name, bit in EVENT_REASONS.items() if any(s.event_reasons & bit for s in samples)]
            )
    return [found[index] for index in sorted(found)]


def _median(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _growth(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return max(0, known[-1] - known[0]) if known else None


def _maximum(values: list[float | None] | list[int | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
