"""What validation expects of a node: its GPUs, driver and limits, and the references of its models."""

import json
from typing import Any

from temper.plan.convert import plain
from temper.plan.expectation import expectation
from temper.plan.node_plan import NodePlan
from temper.plan.refusals import refusal
from temper.plan.role_variables import role_variables, typed_variables
from tests.unit.each import each
from tests.unit.planning_nodes import H100, NVSWITCH, SWITCH, TABLES, gpus, node, plan
from tests.unit.tables import specs
from tools.bare_node import pci
from validation.checks.registry import TESTS
from validation.model import shapes
from validation.model.expectations import Expectation, parse_expectation

HGX = pci(*[(H100, "0302")] * 8, (SWITCH, NVSWITCH))


def expected(devices: list[dict[str, str]] = HGX, **given: Any) -> Expectation:
    """The expectation, as the payload reads it."""
    values = role_variables(given, specs())["values"]
    of_node = NodePlan.from_dict(plan(node(pci=devices), **given))
    found = expectation(of_node, typed_variables(values), TABLES)
    assert found
    return parse_expectation(json.dumps(plain(found)), TESTS)


def test_the_payload_reads_what_the_plan_expects() -> None:
    found = expected(gpu_validation_required_tests=["health"])
    assert (found.required_tests, found.gpu_count, found.nvswitch) == (("health",), 8, True)
    assert found.driver_version == plan()["driver"]["version"]
    assert (found.power_limit_w, found.graphics_clock_mhz, found.not_run) == (None, None, None)
    assert found.references.models.keys() == {"h100_sxm_80gb"}
    model = found.references.model_of("2330")
    assert model is not None
    assert model["name"] == "H100 SXM 80 GB"
    assert found.references.pcie_x16["5"]["floor"]["h2d_pinned_gb_s"]["value"] == 48
    assert found.references.architectures.keys() == {"hopper"}
    assert shapes.origin(found.references, "2330") == "architecture hopper"


@each(
    ({}, 619),
    ({"gpu_settings_clocks": "default"}, 619),
    ({"gpu_settings_clocks": "efficient"}, 433.3),
    ({"gpu_settings_clocks": {"graphics": 990}}, 309.5),
    ({"gpu_settings_clocks": {"graphics": 1980}}, 619),
    ({"gpu_settings_clocks": {"memory": 1593}}, 619),
    ({"gpu_settings_power_limit_w": 700}, 619),
    ({"gpu_settings_power_limit_w": 500}, None),
    ({"gpu_settings_power_limit_percent": 100}, 619),
    ({"gpu_settings_power_limit_percent": 80, "gpu_settings_clocks": "efficient"}, None),
)
def test_what_an_inventory_takes_from_gpus_is_not_asked_of_them(
    given: dict[str, Any], bf16: float | None
) -> None:
    floors = expected(**given).references.models["h100_sxm_80gb"]["floor"]
    assert floors.get("bf16_tflops", {}).get("value") == bf16
    assert (floors.get("bf16_tflops", {}).get("limit") is not None) == (bf16 not in (None, 619))
    assert floors["busbw_gb_s"][0]["value"] == 460
    assert TABLES["models"]["h100_sxm_80gb"]["floor"]["bf16_tflops"]["value"] == 619


def test_gpus_that_the_driver_has_are_counted_and_no_others() -> None:
    left_alone = expected(pci((H100, "0302"), ("1cb3", "0300")))
    assert (left_alone.gpu_count, left_alone.undriven_gpus) == (1, ("1cb3",))
    own, other = gpus("2330", "2330")
    of_a_guest = expected([own, other | {"driver": "vfio-pci"}])
    assert (of_a_guest.gpu_count, of_a_guest.given_gpus) == (1, (other["address"],))
    unknown = expected(gpus(H100, "abcd"), preflight_unknown_gpu_ok=True)
    assert unknown.gpu_count == 2
    assert [(gpu.model, gpu.name) for gpu in unknown.gpus or ()][1] == ("unknown", "10de:abcd")


TENSORFLOW = {"gpu_validation_tensorflow_python": "/opt/tf/bin/python3"}


@each(
    (["health"], {"gpu_validation_storage_paths": []}, ("health",)),
    (["health"], {"gpu_validation_storage_paths": ["/data"]}, ("health", "storage_read")),
    (["storage_read", "health"], {"gpu_validation_storage_paths": ["/data"]}, ("storage_read", "health")),
    (["health"], {"nvidia_stack_graphics": True, **TENSORFLOW}, ("health", "tensorflow", "egl")),
)
def test_what_is_asked_for_by_another_variable_is_required(
    required: list[str], asked: dict[str, Any], tests: tuple[str, ...]
) -> None:
    assert expected(gpu_validation_required_tests=required, **asked).required_tests == tests


@each(("none", False), ("nvswitch", True), ("nvlink5", True))
def test_switches_are_expected_also_where_the_pci_bus_does_not_show_them(fabric: str, switches: bool) -> None:
    assert expected(gpus(H100), nvidia_stack_fabric=fabric).nvswitch is switches


def test_limits_of_power_and_clocks_are_expected_under_load() -> None:
    found = expected(gpu_settings_power_limit_w=300, gpu_settings_clocks={"graphics": 1410})
    assert (found.power_limit_w, found.graphics_clock_mhz) == (300, 1410)
    assert expected(gpu_settings_power_limit_percent=80).power_limit_percent == 80


@each(("max", False), ("default", False), ("efficient", True), ({"graphics": 1410}, True))
def test_clocks_that_the_inventory_lowers_are_expected(clocks: Any, lower: bool) -> None:
    assert expected(gpu_settings_clocks=clocks).lower_clocks is lower


def test_of_a_node_that_could_not_be_read_nothing_is_expected() -> None:
    variables = typed_variables(role_variables({}, specs())["values"])
    assert expectation(NodePlan(refusals=(refusal("gpu-absent"),)), variables, TABLES) is None
