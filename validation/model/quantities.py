"""How a measured number is written, and what its name says of it."""

from __future__ import annotations

from functools import cache

from validation.model.contract import ContractError, Measurement, TestResult

#: Units by the end of a measurement's name. All are rates: more is better.
UNITS = {
    "tflops": "TFLOP/s",
    "gflops": "GFLOP/s",
    "gb_s": "GB/s",
    "samples_s": "samples/s",
    "reads_s": "reads/s",
}
RATES = tuple(f"_{ending}" for ending in UNITS)
#: Units of what no judge compares, because more of it is not better.
SIZES = {"gb": "GB", "samples": "samples", "times": "times"}
#: In the name of a number whose shape a search has found: the next run may measure another shape.
SEARCHED = "_found_"
#: A spread (interquartile range over median) above which a number is measured again, and blames nobody alone.
NOISY_SPREAD = 0.10


def of_gpus(test: TestResult) -> bool:
    """Return whether a test measures GPUs, by its name."""
    return test.id.startswith("gpu_")


def has_unit(measurement: Measurement) -> bool:
    """Return whether a number is a rate by its name, whatever its value."""
    return measurement.name.endswith(RATES)


def is_rate(measurement: Measurement) -> bool:
    """Return whether more is better, so that it compares."""
    return measurement.value > 0 and has_unit(measurement)


def is_searched(name: str) -> bool:
    """Return whether the next run may measure another shape, so that no lack of the number means anything."""
    return SEARCHED in name


def on_gpu(device: int | None) -> str:
    """` on GPU 3`, or nothing for the node as a whole."""
    return "" if device is None else f" on GPU {device}"


@cache
def label(name: str) -> str:
    """`h2d_pinned_gb_s` without its unit, as a reader says it: `h2d pinned`."""
    units = (*UNITS, *SIZES)
    return next((name.removesuffix(f"_{unit}") for unit in units if name.endswith(f"_{unit}")), name).replace(
        "_", " "
    )


@cache
def unit(name: str) -> str:
    """Return the unit of a measurement's name, empty if it has none."""
    return next((text for ending, text in (UNITS | SIZES).items() if name.endswith(ending)), "")


def quantity(measurement: Measurement) -> str:
    """Return a measurement's value with its unit."""
    return f"{number(measurement.value)} {unit(measurement.name)}".rstrip()


def number(value: float) -> str:
    """Return a value with about three digits."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def noise(measurement: Measurement) -> str:
    """`; its runs spread by 30%, measured 3 times`, where that is much."""
    if measurement.spread <= NOISY_SPREAD:
        return ""
    return f"; its runs spread by {measurement.spread:.0%}, measured {measurement.attempts} times"


def held_back(test: TestResult, device: int | None) -> str:
    """Return what telemetry showed on this GPU during the test.

    `; sw power cap was active 38% of the time; PCIe link generation 3 of 5`.
    """
    try:
        seen = test.telemetry
    except ContractError as error:
        return f"; its telemetry cannot be read: {error}"
    hints = []
    for gpu in seen:
        if device in {None, gpu.device}:
            hints += [
                f"; {name.replace('_', ' ')} was active {share:.0%} of the time"
                for name, share in gpu.event_reason_shares.items()
            ]
            hints += [f"; {gpu.slow_link}"] if gpu.slow_link else []
    return "".join(dict.fromkeys(hints))
