"""The first judge: published numbers for this GPU model, from data/gpu_models.yml."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from validation.findings.catalogue import finding
from validation.model.contract import Finding, GpuIdentity, Measurement, NodeResult, TestResult
from validation.model.expectations import References
from validation.model.quantities import (
    NOISY_SPREAD,
    SEARCHED,
    has_unit,
    held_back,
    label,
    number,
    of_gpus,
    on_gpu,
    quantity,
    unit,
)
from validation.model.shapes import MatmulShape
from validation.verdict.baseline import Comparison

#: In the names of numbers that the same peak bounds: how they were taken.
WAYS = ("peak", "alone", "best", "found")
#: What nobody publishes, so that its lack of a reference is not said.
NOT_PUBLISHED = ("_peak_", SEARCHED)
#: Which published peak bounds a number, by the end of its name.
MEMORY_NUMBERS = ("memory_copy_gb_s", "memory_triad_gb_s")

_T = TypeVar("_T")


def compare(test: TestResult, result: NodeResult, references: References) -> Comparison:
    """Return findings for numbers below their floor, and which numbers of GPUs had no floor, and why."""
    if not of_gpus(test):
        return Comparison()
    below: list[Finding] = []
    without: dict[str, list[str]] = {}
    for measurement in filter(has_unit, test.measurements):
        floor = _once(_floor, measurement, result, references)
        if isinstance(floor, str):
            if not any(way in measurement.name for way in NOT_PUBLISHED):
                without.setdefault(floor, []).append(label(measurement.name))
        elif measurement.value < floor.value:
            below.append(_below(test, measurement, floor))
    return Comparison(
        tuple(below),
        tuple(f"{', '.join(dict.fromkeys(names))}: {why}" for why, names in sorted(without.items())),
    )


def peak_of(
    test: TestResult, measurement: Measurement, result: NodeResult, references: References
) -> float | None:
    """Return what the hardware can do at most of what was measured; None where that is not published."""
    if measurement.device is None or not of_gpus(test):
        return None
    return _once(_peak, measurement, result, references)


def _once(
    look: Callable[[Measurement, tuple[GpuIdentity, ...], References], _T],
    measurement: Measurement,
    result: NodeResult,
    references: References,
) -> _T:
    """Return what looking into the table finds, looked up once for all numbers of a fleet that are alike."""
    gpus = result.gpus_of(measurement.device)
    alike = tuple([gpu.kind for gpu in gpus])
    # The sentence on a GPU that nobody named has its index.
    unnamed = None if any(gpu.name for gpu in gpus) else measurement.device
    key = (look, measurement.name, tuple(measurement.conditions.items()), alike, unnamed)
    known = references.looked_up
    if key not in known:
        known[key] = look(measurement, gpus, references)
    found: _T = known[key]
    return found


def _peak(measurement: Measurement, gpus: tuple[GpuIdentity, ...], references: References) -> float | None:
    if not gpus:
        return None
    name = measurement.name
    if name.endswith("_pinned_gb_s") and not name.startswith("both"):
        return _of_link(gpus[0], references, "peak", "h2d_pinned_gb_s")
    model = references.model_of(gpus[0].pci_id)
    if name in MEMORY_NUMBERS:
        name = "memory_gb_s"
    for way in WAYS:
        name = name.replace(f"_{way}_", "_")
    entry = (model or {}).get("peak", {}).get(name)
    return _value(entry) if isinstance(entry, dict) else None


@dataclass(frozen=True)
class Standards:
    """What a number stands beside: its floor, what was published of its model, and the hardware's peak.

    In the number's unit; None where there is none.
    """

    floor: float | None = None
    published: float | None = None
    peak: float | None = None


def standards_of(
    test: TestResult, measurement: Measurement, result: NodeResult, references: References
) -> Standards:
    """Return what is known of a number from data/gpu_models.yml, for whoever shows it; `compare` judges."""
    gpus = result.gpus_of(measurement.device)
    if not of_gpus(test) or not gpus or not has_unit(measurement):
        return Standards()
    floor = _floor(measurement, gpus, references)
    model = references.model_of(gpus[0].pci_id) or {}
    entry = _fitting(_entries(model, "measured", measurement.name.replace("_alone_", "_")), measurement)
    published = _value(entry) if entry else None
    if published is None and measurement.name.endswith("_pinned_gb_s"):
        published = _of_link(gpus[0], references, "measured", measurement.name)
    return Standards(
        floor.value if isinstance(floor, _Floor) else None,
        published,
        peak_of(test, measurement, result, references),
    )


@dataclass(frozen=True)
class _Floor:
    """The least that is accepted of `whose`: a model, a link."""

    whose: str
    value: float


def _below(test: TestResult, measurement: Measurement, floor: _Floor) -> Finding:
    """Return a finding; a number whose noise reaches the floor is noisy, it does not prove a slow GPU."""
    said = f"{label(measurement.name)} {quantity(measurement)}{on_gpu(measurement.device)}"
    hints = held_back(test, measurement.device)
    noise = measurement.spread
    if noise > NOISY_SPREAD and measurement.value * (1 + noise / 2) >= floor.value:
        return finding(
            "noisy-below-floor",
            gpu=measurement.device,
            number=said,
            floor=number(floor.value),
            whose=floor.whose,
            spread=noise,
            attempts=measurement.attempts,
            context=hints,
        )
    return finding(
        "below-floor",
        gpu=measurement.device,
        number=said,
        floor=number(floor.value),
        whose=floor.whose,
        context=hints,
    )


def _floor(measurement: Measurement, gpus: tuple[GpuIdentity, ...], references: References) -> _Floor | str:
    """Return the floor of a number, or why it has none, a sentence without its beginning."""
    found = {gpu.pci_id: references.model_of(gpu.pci_id) for gpu in gpus}
    unknown = "GPUs that nobody named" if measurement.device is None else f"GPU {measurement.device}"
    names = " and ".join(sorted({gpu.name for gpu in gpus})) or unknown
    # One model may have several PCI ids.
    models = list({model["name"] if model else None: model for model in found.values()}.values())
    if len(models) != 1 or models[0] is None:
        return f"no reference for {names}, so not compared with one"
    model, whose = models[0], models[0]["name"]
    # With all of the power to itself a GPU does at least what it must do beside others.
    entries = _entries(model, "floor", measurement.name.replace("_alone_", "_"))
    if entry := _fitting(entries, measurement):
        value = _value(entry)
        if value is None:
            return f"no reference for {whose}, so not compared with one"
        # A switch that adds makes it faster than the links are: without it, a good node stays below.
        how = "with NVLS" if entry.get("algorithm") == "nvls" else entry.get("limit", "")
        return _Floor(f"{whose} {how}".rstrip(), value)
    if measurement.name.endswith("_pinned_gb_s"):
        floor = _of_link(gpus[0], references, "floor", measurement.name)
        if floor is not None:
            return _Floor(f"PCIe generation {gpus[0].pcie_generation_max} x{gpus[0].pcie_width_max}", floor)
    measured = _entries(model, "measured", measurement.name)
    if published := _fitting(measured, measurement):
        value = _value(published)
        if value is not None:
            return (
                f"no floor for {whose}, so not judged by one; published are {number(value)} "
                f"{unit(measurement.name)}"
            )
    if others := [e for e in (*entries, *measured) if not _holds(e, measurement.conditions)]:
        return f"the reference for {whose} holds for {_held_for(others)}, so not compared with it"
    return f"no reference for {whose}, so not compared with one"


def _entries(model: dict[str, Any], section: str, name: str) -> list[dict[str, Any]]:
    """Return what the table says of a number, one entry or none, or a list where it depends on something."""
    entry = model.get(section, {}).get(name, [])
    return entry if isinstance(entry, list) else [entry]


def _fitting(entries: list[dict[str, Any]], measurement: Measurement) -> dict[str, Any] | None:
    """Return the entry that holds under the conditions of a measurement.

    Of several that of the largest message.
    """
    fitting = [entry for entry in entries if _holds(entry, measurement.conditions)]
    return max(fitting, key=lambda entry: int(entry.get("size_bytes", 0)), default=None)


def _holds(entry: dict[str, Any], conditions: dict[str, int | str]) -> bool:
    """For the same shape, for as many GPUs, and for messages at least as large."""
    size_bytes = conditions.get("size_bytes")
    shape = entry.get("shape")
    return (
        (shape is None or shape == [conditions.get(edge) for edge in MatmulShape._fields])
        and ("gpus" not in entry or entry["gpus"] == conditions.get("ranks"))
        and ("size_bytes" not in entry or (isinstance(size_bytes, int) and size_bytes >= entry["size_bytes"]))
    )


def _held_for(entries: list[dict[str, Any]]) -> str:
    """`8192 x 8192 x 8192`, `8 GPUs from 17180 MB on`: what the entries of a number hold for."""
    said = (
        str(MatmulShape(*entry["shape"]))
        if "shape" in entry
        else f"{entry['gpus']} GPUs from {entry['size_bytes'] / 1e6:.0f} MB on"
        for entry in entries
    )
    return " and ".join(dict.fromkeys(said))


def _of_link(gpu: GpuIdentity, references: References, kind: str, name: str) -> float | None:
    """Return a number of the link of GPU and port, in proportion to its lanes.

    None for a superchip: it has C2C.
    """
    if references.is_superchip(gpu.pci_id):
        return None
    entry = references.pcie_x16.get(str(gpu.pcie_generation_max), {}).get(kind, {}).get(name)
    value = None if entry is None or not gpu.pcie_width_max else _value(entry)
    return None if value is None else value * (gpu.pcie_width_max or 0) / 16


def _value(entry: dict[str, Any]) -> float | None:
    """Return a number of the table; one that nobody verified judges nobody."""
    return float(entry["value"]) if entry.get("verified", True) else None
