"""data/gpu_models.yml is honest: sources, plausible sizes, no floor from an unchecked number."""

import datetime
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from temper.plan.tables import read_yaml
from tests.unit.each import each
from validation.checks.matmul import COLD_BYTES
from validation.model import gpu_models, shapes
from validation.model.expectations import References
from validation.model.plans import PLANS
from validation.model.shapes import MatmulShape

TABLE = read_yaml(Path(__file__).parents[3] / "data" / "gpu_models.yml")
MODELS: dict[str, dict[str, Any]] = TABLE["models"]
SOURCED = {key: TABLE[key] for key in ("pcie_x16", "models", "nics")} | {
    "shapes": {name: entry["matmul"] for name, entry in TABLE["architectures"].items()}
}
REFERENCES = References(**(gpu_models.table() or {}))
ARCHITECTURES = {"maxwell", "pascal", "volta", "turing", "ampere", "ada", "hopper", "blackwell", "rubin"}
DTYPES = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8")
#: A switch that reduces in the network sends each byte once: with 8 GPUs busbw may be 1.75 of the link.
NVLS_OVER_LINK = 1.75


def numbers(node: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every {value, source} (or {generation, ...}, {shape, ...}) below `node`, with its path."""
    if isinstance(node, dict):
        if node.keys() & {"value", "generation", "shape", "source"}:
            yield path, node
            return
        for key, child in node.items():
            yield from numbers(child, f"{path}.{key}" if path else str(key))
    elif isinstance(node, list):
        for child in node:
            yield from numbers(child, path)


def metric(section: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """The entries of one metric: a list for those which depend on the number of GPUs, else one."""
    entry = section.get(name, [])
    return entry if isinstance(entry, list) else [entry]


def verified(number: dict[str, Any]) -> bool:
    return bool(number.get("verified", True))


def test_a_number_has_a_source() -> None:
    for path, number in numbers(SOURCED):
        assert number["source"] in TABLE["sources"], path


def test_a_source_has_title_address_and_date() -> None:
    for name, source in TABLE["sources"].items():
        assert source["title"], name
        assert re.match(r"https?://", source["url"]), name
        assert isinstance(source["date"], datetime.date), name


def test_every_source_is_used() -> None:
    used = {number["source"] for _, number in numbers(SOURCED)}
    used |= {model["pci_source"] for model in MODELS.values()}
    used |= {architecture["locked_clocks"]["source"] for architecture in TABLE["architectures"].values()}
    used.add(TABLE["compute_capability_source"])
    assert set(TABLE["sources"]) == used


def test_a_number_from_memory_is_marked_unverified() -> None:
    for path, number in numbers(MODELS):
        if number["source"] == "data_sheet_unchecked":
            assert not verified(number), path


@each(*MODELS)
def test_a_model_says_what_the_planner_needs(name: str) -> None:
    model = MODELS[name]
    assert model["architecture"] in ARCHITECTURES
    assert re.fullmatch(r"\d+\.\d", model["compute_capability"])
    assert model["brand"] in {"data_center", "workstation", "geforce"}
    assert model["form_factor"] in {"sxm", "pcie", "superchip"}
    assert isinstance(model["nvswitch_system_possible"], bool)
    assert model["product_names"]
    assert all(re.fullmatch(r"[0-9a-f]{4}", pci_id) for pci_id in model["pci_ids"])


@each("pci_ids", "product_names")
def test_what_a_gpu_says_of_itself_names_one_model(key: str) -> None:
    names = [name for model in MODELS.values() for name in model[key]]
    assert sorted(names) == sorted(set(names))


def test_every_architecture_says_which_clocks_can_be_locked() -> None:
    assert set(TABLE["architectures"]) == ARCHITECTURES
    for architecture in TABLE["architectures"].values():
        assert {"graphics", "memory"} < set(architecture["locked_clocks"])


@each(*[name for name in MODELS if "chip" in MODELS[name]])
@each(*DTYPES)
def test_a_peak_is_within_3_percent_of_its_calculation(dtype: str, name: str) -> None:
    model = MODELS[name]
    peak = model["peak"].get(f"{dtype}_tflops")
    operations = TABLE["operations_per_clock_and_sm"][model["chip"]].get(dtype)
    if peak is None:
        return
    assert operations is not None, f"{name} lists a {dtype} peak that its chip does not have"
    # Hopper's tensor cores are specified at a lower clock than its scalar units.
    tensor = dtype not in {"fp64", "fp32"} and model["architecture"] == "hopper"
    clock = model.get("tensor_clock_mhz" if tensor else "sm_clock_mhz")
    if clock is None:
        return
    calculated_tflops = model["sm_count"]["value"] * clock["value"] * operations / 1e6
    assert peak["value"] == pytest.approx(calculated_tflops, rel=0.03)


def test_a_peak_marked_calculated_can_be_calculated() -> None:
    for name, model in MODELS.items():
        for path, number in numbers(model["peak"]):
            if number["source"] == "calculated":
                assert {"chip", "sm_count", "sm_clock_mhz"} < set(model), f"{name} {path}"
                # What is made of numbers that nobody checked is not checked either.
                assert verified(model["sm_count"]), f"{name} {path}"
                assert verified(model["sm_clock_mhz"]), f"{name} {path}"


@each(*MODELS)
def test_tensor_peaks_double_from_format_to_format(name: str) -> None:
    """Twice the rate for half the bits: what a slip of a unit or of sparsity would break."""
    peak = {dtype: MODELS[name]["peak"].get(f"{dtype}_tflops", {}).get("value") for dtype in DTYPES}
    for narrow, wide, factor in (("bf16", "tf32", 2), ("fp8", "bf16", 2), ("bf16", "fp16", 1)):
        if peak[narrow] and peak[wide]:
            assert peak[narrow] == pytest.approx(factor * peak[wide], rel=0.03), (narrow, wide)


@each("measured", "floor")
@each(*MODELS)
def test_no_value_exceeds_the_peak_or_is_below_two_fifths_of_it(name: str, section: str) -> None:
    """Less than that is another unit or another GPU."""
    model = MODELS[name]
    for metric_name in model.get(section, {}):
        for entry in metric(model[section], metric_name):
            limit = ceiling(model, metric_name, entry)
            assert limit is not None, f"{section} {metric_name} has no peak to hold it against"
            assert entry["value"] <= limit, metric_name
            if section == "floor" or entry.get("gpus", 8) == 8:
                assert 0.4 * limit <= entry["value"], metric_name


@each(*MODELS)
def test_a_floor_is_at_most_what_was_measured(name: str) -> None:
    model = MODELS[name]
    for metric_name in model.get("floor", {}):
        for entry in metric(model["floor"], metric_name):
            measured = [
                other["value"]
                for other in metric(model.get("measured", {}), metric_name)
                if (other.get("gpus"), other.get("shape")) == (entry.get("gpus"), entry.get("shape"))
            ]
            assert all(entry["value"] <= value for value in measured), metric_name


def ceiling(model: dict[str, Any], metric_name: str, entry: dict[str, Any]) -> float | None:
    """The most that `metric_name` of `model` can reach, or None where no peak is known."""
    if metric_name.endswith("busbw_gb_s") or metric_name == "peer_gb_s":
        link = model["peak"].get("nvlink_gb_s")
        if link is None:
            return None
        return float(link["value"] * (NVLS_OVER_LINK if entry.get("algorithm") == "nvls" else 1))
    if metric_name.endswith("_pinned_gb_s") and model["form_factor"] == "superchip":
        return float(model["peak"]["c2c_gb_s"]["value"])
    if metric_name.endswith("_pinned_gb_s"):
        return float(TABLE["pcie_x16"][model["pcie"]["generation"]]["peak"]["h2d_pinned_gb_s"]["value"])
    named = "memory_gb_s" if metric_name.startswith("memory_") else metric_name.replace("_best_", "_")
    peak = model["peak"].get(named)
    return None if peak is None else float(peak["value"])


def test_what_many_gpus_reached_says_of_how_many_and_who_counted_them() -> None:
    for path, number in numbers(MODELS):
        if "of" in number:
            assert number["of"] > 1, path
            assert number["most"] >= number["value"], path
        if ".spread." in path:
            assert number.keys() == {"gpus", "percent", "source"}, path
            assert 0 < number["percent"] < 100, path
            assert number["gpus"] >= 30, path


def test_nics_add_up_to_less_than_their_line_rate() -> None:
    for speed, entry in TABLE["nics"].items():
        if isinstance(speed, int):
            assert 0.8 * speed / 8 <= entry["value"] <= entry.get("most", entry["value"]) <= speed / 8


def test_no_floor_is_unverified() -> None:
    for name, model in MODELS.items():
        for path, number in numbers(model.get("floor", {})):
            assert verified(number), f"{name} {path}"


def test_pcie_floor_measurement_and_peak_are_in_order_and_grow_with_the_generation() -> None:
    previous = 0.0
    for generation in sorted(TABLE["pcie_x16"]):
        row = TABLE["pcie_x16"][generation]
        peak = row["peak"]["h2d_pinned_gb_s"]["value"]
        for metric_name, floor in row["floor"].items():
            assert 0.4 * peak <= floor["value"] <= row["measured"][metric_name]["value"] <= peak
        assert peak > previous
        previous = peak


def shapes_of(name: str) -> Iterator[tuple[str, MatmulShape]]:
    """Every shape that is multiplied on a model, with its number format."""
    pci_id = MODELS[name]["pci_ids"][0]
    yield from ((dtype, shapes.sustained(REFERENCES, pci_id, dtype)) for dtype in shapes.FORMATS)
    yield from shapes.best(REFERENCES, pci_id).items()


def test_every_architecture_has_a_shape_for_every_number_format() -> None:
    for name, entry in SOURCED["shapes"].items():
        assert shapes.ANY in entry["sustained"], name
        known = {shapes.ANY, *shapes.FORMATS}
        assert {*entry["sustained"], *entry.get("best", {})} <= known, name


@each(*MODELS)
def test_a_shape_suits_tensor_cores_of_every_format_and_fits_in_memory(name: str) -> None:
    """An fp8 product needs cuBLASLt, which multiplies only where every edge is a multiple of 16 bytes."""
    kin = [model for model in MODELS.values() if model["architecture"] == MODELS[name]["architecture"]]
    # Where no model of it says how much it has: the least that a server's GPU has had for a decade.
    least_gb = min((model["memory_gb"]["value"] for model in kin if "memory_gb" in model), default=8)
    for dtype, shape in shapes_of(name):
        assert all(edge % 16 == 0 for edge in shape), (dtype, shape)
        assert shape.needed_bytes + COLD_BYTES < 0.9e9 * least_gb, (dtype, shape)


@each(*MODELS)
def test_the_quick_plan_measures_at_least_ten_products_at_peak(name: str) -> None:
    for dtype in shapes.FORMATS:
        if peak := MODELS[name]["peak"].get(f"{dtype}_tflops"):
            shape = shapes.sustained(REFERENCES, MODELS[name]["pci_ids"][0], dtype)
            assert PLANS["quick"].gpu.measure_s * peak["value"] * 1e12 / shape.flop >= 10, (dtype, shape)


@each(*MODELS)
def test_a_floor_of_a_product_holds_for_the_shape_that_is_multiplied(name: str) -> None:
    for metric_name, entry in MODELS[name].get("floor", {}).items():
        if metric_name.endswith("_tflops"):
            dtype = metric_name.removesuffix("_tflops")
            shape = shapes.sustained(REFERENCES, MODELS[name]["pci_ids"][0], dtype)
            assert entry["shape"] == list(shape), metric_name


@each(*MODELS)
def test_a_measured_product_says_its_shape_and_the_best_one_is_multiplied(name: str) -> None:
    best = dict(shapes.best(REFERENCES, MODELS[name]["pci_ids"][0]))
    for metric_name in MODELS[name].get("measured", {}):
        if metric_name.endswith("_tflops"):
            for entry in metric(MODELS[name]["measured"], metric_name):
                assert len(entry["shape"]) == 3, metric_name
            if "_best_" in metric_name:
                (entry,) = metric(MODELS[name]["measured"], metric_name)
                assert entry["shape"] == list(best[metric_name.removesuffix("_best_tflops")])


#: What our numbers, of both signs, leave of gpu-fryer's figures, which come of positive ones: on an H200.
OF_POSITIVE = {"tf32_tflops": 0.937, "bf16_tflops": 0.924, "fp16_tflops": 0.89}


def test_a_floor_of_our_own_is_between_0_85_and_0_92_of_the_measurement_at_its_shape() -> None:
    for name, model in MODELS.items():
        for metric_name, entry in model.get("floor", {}).items():
            if isinstance(entry, dict) and entry["source"] == "temper_floor":
                # Where one of fp16 and bf16 was not measured, it has the other's.
                sharing = ("fp16_tflops", "bf16_tflops")
                own = any(o["shape"] == entry["shape"] for o in metric(model["measured"], metric_name))
                names = (metric_name,) if own or metric_name not in sharing else sharing
                measured = [
                    other["value"] * (OF_POSITIVE[metric_name] if other["source"] == "gpu_fryer" else 1)
                    for shared in names
                    for other in metric(model["measured"], shared)
                    if other["shape"] == entry["shape"]
                ]
                assert measured, f"{name} {metric_name}"
                assert 0.85 <= entry["value"] / min(measured) <= 0.921, f"{name} {metric_name}"
