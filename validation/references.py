"""The first judge: published numbers for this GPU model, from data/gpu_models.yml."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from validation.comparison import (
    NOISY_SPREAD,
    Comparison,
    has_unit,
    held_back,
    label,
    number,
    of_gpus,
    on_gpu,
    quantity,
)
from validation.contract import Finding, State

if TYPE_CHECKING:
    from validation.contract import GpuIdentity, Measurement, NodeResult, TestResult
    from validation.expectations import References

#: Which published peak bounds a number, by the end of its name.
MEMORY_NUMBERS = ("memory_copy_gb_s", "memory_triad_gb_s")


def compare(test: TestResult, result: NodeResult, references: References) -> Comparison:
    """Findings for numbers below their floor, and which numbers of GPUs there was no floor for."""
    if not of_gpus(test) or not result.gpus:
        return Comparison()
    below: list[Finding] = []
    without: dict[str, list[str]] = {}
    for measurement in filter(has_unit, test.measurements):
        name, floor = _floor(measurement, result, references)
        if floor is None:
            if "_peak_" not in measurement.name:
                without.setdefault(name, []).append(label(measurement.name))
        elif measurement.value < floor:
            below.append(_below(test, measurement, name, floor))
    return Comparison(
        tuple(below),
        tuple(
            f"{', '.join(dict.fromkeys(names))}: no reference for {model}, so not compared with one"
            for model, names in sorted(without.items())
        ),
    )


def peak_of(
    test: TestResult, measurement: Measurement, result: NodeResult, references: References
) -> float | None:
    """What the hardware can do at most of what was measured; None where that is not published."""
    gpus = [gpu for gpu in result.gpus if measurement.device == gpu.index]
    if not of_gpus(test) or not gpus:
        return None
    name = measurement.name
    if name.endswith("_pinned_gb_s") and not name.startswith("both"):
        return _of_link(gpus[0], references, "peak", "h2d_pinned_gb_s")
    model = references.model_of(gpus[0].pci_id)
    if name in MEMORY_NUMBERS:
        name = "memory_gb_s"
    entry = (model or {}).get("peak", {}).get(name.replace("_peak_", "_").replace("_alone_", "_"))
    return _value(entry) if isinstance(entry, dict) else None


def _below(test: TestResult, measurement: Measurement, name: str, floor: float) -> Finding:
    """A number whose noise reaches up to the floor says that it is noisy, not that a GPU is slow."""
    said = f"{label(measurement.name)} {quantity(measurement)}{on_gpu(measurement.device)}"
    hints = held_back(test, measurement.device)
    noise = measurement.spread
    if noise > NOISY_SPREAD and measurement.value * (1 + noise / 2) >= floor:
        return Finding(
            "noisy-below-floor",
            State.DEGRADED,
            f"{said}, below the floor {number(floor)} ({name}), but its runs spread by {noise:.0%} "
            f"(measured {measurement.attempts} times){hints}",
            "see what else uses the node, and run again when it is idle",
            measurement.device,
        )
    return Finding(
        "below-floor",
        State.FAIL,
        f"{said}, floor {number(floor)} ({name}){hints}",
        "run again on an idle node; if it stays, look at clocks, power, temperature and link",
        measurement.device,
    )


def _floor(measurement: Measurement, result: NodeResult, references: References) -> tuple[str, float | None]:
    """What the floor is for (a model, a link), and the floor; None where none is published for this."""
    gpus = [gpu for gpu in result.gpus if measurement.device in {None, gpu.index}]
    found = {gpu.pci_id: references.model_of(gpu.pci_id) for gpu in gpus}
    names = " and ".join(sorted({gpu.name for gpu in gpus})) or f"GPU {measurement.device}"
    models = list(found.values())
    if len(models) != 1 or models[0] is None:
        return names, None
    model = models[0]
    entry = model.get("floor", {}).get(measurement.name)
    if isinstance(entry, list):
        return model["name"], _collective_floor(entry, measurement)
    if entry is not None:
        return model["name"], _value(entry)
    if measurement.name.endswith("_pinned_gb_s"):
        floor = _of_link(gpus[0], references, "floor", measurement.name)
        if floor is not None:
            return f"PCIe generation {gpus[0].pcie_generation_max} x{gpus[0].pcie_width_max}", floor
    return model["name"], None


def _of_link(gpu: GpuIdentity, references: References, kind: str, name: str) -> float | None:
    """A number of the GPU's PCIe link, in proportion to its lanes.

    None for a superchip: it copies over NVLink-C2C, several times as fast as the PCIe link that it has, too.
    """
    if (references.model_of(gpu.pci_id) or {}).get("form_factor") == "superchip":
        return None
    entry = references.pcie_x16.get(str(gpu.pcie_generation_max), {}).get(kind, {}).get(name)
    value = None if entry is None or not gpu.pcie_width_max else _value(entry)
    return None if value is None else value * (gpu.pcie_width_max or 0) / 16


def _collective_floor(entries: list[dict[str, Any]], measurement: Measurement) -> float | None:
    """The floor for as many GPUs, at a message at least as large as the one that it was taken with."""
    size_bytes, ranks = measurement.conditions.get("size_bytes"), measurement.conditions.get("ranks")
    fitting = [
        entry
        for entry in entries
        if entry["gpus"] == ranks and isinstance(size_bytes, int) and size_bytes >= entry["size_bytes"]
    ]
    return _value(max(fitting, key=lambda entry: int(entry["size_bytes"]))) if fitting else None


def _value(entry: dict[str, Any]) -> float | None:
    """A number of the table; one that nobody verified judges nobody."""
    return float(entry["value"]) if entry.get("verified", True) else None
