"""The first judge: published numbers for this GPU model, from data/gpu_models.yml."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from validation.comparison import NOISY_SPREAD, Comparison, held_back, label, number, on_gpu, quantity
from validation.contract import Finding, State

if TYPE_CHECKING:
    from validation.contract import Measurement, NodeResult, TestResult
    from validation.expectations import References

#: Measurements of GPUs that data/gpu_models.yml may have a floor for.
REFERENCED = {
    "fp32_tflops",
    "tf32_tflops",
    "fp16_tflops",
    "bf16_tflops",
    "h2d_pinned_gb_s",
    "d2h_pinned_gb_s",
    "busbw_gb_s",
}


def compare(test: TestResult, result: NodeResult, references: References) -> Comparison:
    """Findings for numbers below their floor, and which numbers of GPUs there was no floor for."""
    below, without = [], set()
    for measurement in test.measurements:
        if measurement.name not in REFERENCED or not result.gpus:
            continue
        name, floor = _floor(measurement, result, references)
        if floor is None:
            if test.id.startswith("gpu_"):
                without.add(f"{label(measurement.name)} is not compared: no reference for {name}")
        elif measurement.value < floor:
            below.append(_below(test, measurement, name, floor))
    return Comparison(tuple(below), tuple(sorted(without)))


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
        generation, width = gpus[0].pcie_generation_max, gpus[0].pcie_width_max
        link = references.pcie_x16.get(str(generation), {}).get("floor", {}).get(measurement.name)
        if link is not None and width:
            floor = _value(link)
            return f"PCIe generation {generation} x{width}", None if floor is None else floor * width / 16
    return model["name"], None


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
