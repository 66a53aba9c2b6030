"""Which GPUs a node has, by PCI ids: known, between known ones, beyond or before them; for a monitor."""

from collections.abc import Callable
from typing import Any

from temper.plan.hardware import Place, nearest_id, place_of
from temper.plan.tables import load_tables
from tests.unit.each import each
from tests.unit.planning_nodes import (
    B200,
    DISPLAY,
    GPU,
    H100,
    L4,
    NVSWITCH,
    SWITCH,
    V100,
    assert_says,
    gpus,
    node,
    plan,
    problem,
    system,
)
from tests.unit.tables import ROOT
from tools.bare_node import pci

T1000, P400, A100, GB300, K80, GT_710, THOR = "1fb0", "1cb3", "20b2", "31c2", "102d", "128b", "2b00"
TABLES = load_tables(ROOT / "data")


def with_monitor(computing: str, *display: str) -> dict[str, Any]:
    """A node of four GPUs, and one with a monitor."""
    return node(pci=pci(*[(computing, GPU)] * 4, *((device_id, DISPLAY) for device_id in display)))


# ---------------------------------------------------------------- known ones


def other_warnings(found: dict[str, Any]) -> list[str]:
    """Those beside the doubt about NCCL on Debian 12, which each plan of these older GPUs has."""
    return [warning for warning in found["warnings"] if "may lack NCCL" not in warning]


def test_rubin_has_a_stack_by_name_which_the_refusal_of_others_tells() -> None:
    rubin = system("ubuntu", "24.04", pci=gpus("3021"))
    assert_says(problem(rubin), "rubin", "615 or newer", "nvidia_stack_name: r615-cuda13.4")
    found = plan(rubin, nvidia_stack_name="r615-cuda13.4")
    assert (found["problems"], found["driver"]["modules"]) == ([], "open")


# ---------------------------------------------------------------- unknown ones


@each(
    (GT_710, Place.OLDER, "1340"),
    (K80, Place.OLDER, "1340"),
    ("130b", Place.OLDER, "1340"),
    ("1b03", Place.BETWEEN, "1b02"),
    ("1e7f", Place.BETWEEN, "1e78"),
    ("1e80", Place.BETWEEN, "1e81"),
    ("2343", Place.BETWEEN, "2342"),
    (THOR, Place.INTEGRATED, THOR),
    ("2b7f", Place.INTEGRATED, THOR),
    ("2b80", Place.BETWEEN, "2b85"),
    ("3022", Place.BETWEEN, "3021"),
    ("327f", Place.BETWEEN, "323e"),
    ("3280", Place.NEWER, "323e"),
    ("ffff", Place.NEWER, "323e"),
)
def test_an_unknown_id_is_judged_by_its_place(device_id: str, place: Place, nearest: str) -> None:
    assert (place_of(device_id, TABLES), nearest_id(device_id, TABLES)) == (place, nearest)


@each(
    ("1b03", "pascal", "r580-cuda12.9", "proprietary"),
    ("1dff", "volta", "r580-cuda12.9", "proprietary"),
    ("1e00", "turing", "r580-cuda13.0", "open"),
    ("2f7f", "blackwell", "r580-cuda13.0", "open"),
)
def test_a_gpu_between_known_ones_is_planned_like_the_nearest(
    device_id: str, architecture: str, stack: str, modules: str
) -> None:
    found = plan(node(pci=gpus(device_id, device_id)))
    assert found["problems"] == []
    (warning,) = other_warnings(found)
    assert_says(warning, f"10de:{device_id}", architecture, "no reference")
    assert (found["gpus"], found["unknown_gpus"]) == ([], [device_id, device_id])
    assert (found["stack"], found["driver"]["modules"]) == (stack, modules)


def test_a_gpu_between_known_ones_has_the_rules_of_the_nearest() -> None:
    text = problem(node(pci=gpus("1b03")), nvidia_stack_name="r595-cuda13.2")
    assert_says(text, "GPU 10de:1b03 (pascal)", "580 or older", "set nvidia_stack_name: r580-cuda12.9")
    text = problem(node(pci=gpus("2343")), nvidia_stack_kernel_modules="proprietary")
    assert_says(text, "GPU 10de:2343", "only with open kernel modules")
    assert plan(node(pci=gpus("1b03")))["locked_clocks"] == {"graphics": False, "memory": False}
    assert plan(node(pci=gpus("3022")))["problems"]


def a_board(**changes: Any) -> dict[str, Any]:
    return system("ubuntu", "24.04", architecture="aarch64", **changes)


@each(True, False)
@each(
    *((node, gpu, ("older than Maxwell", "470")) for gpu in (K80, "0de1", "1021", "130b")),
    *((a_board, gpu, ("Thor", "JetPack")) for gpu in (THOR, "2b01")),
)
def test_a_gpu_older_than_maxwell_or_of_a_board_has_no_driver_here(
    made: Callable[..., dict[str, Any]], device_id: str, says: tuple[str, ...], allowed: bool
) -> None:
    text = problem(made(pci=gpus(device_id)), preflight_unknown_gpu_ok=allowed)
    assert_says(text, f"10de:{device_id}", "gpu_nodes", *says)


def test_a_gpu_beyond_the_tables_is_refused_unless_it_is_allowed() -> None:
    facts = node(pci=gpus("3fff"))
    assert_says(problem(facts), "10de:3fff", "data/gpu_ids.yml", "preflight_unknown_gpu_ok: true")
    found = plan(facts, preflight_unknown_gpu_ok=True)
    assert found["problems"] == []
    assert_says(found["warnings"][0], "10de:3fff", "guess", "no reference")


# ---------------------------------------------------------------- for a monitor


@each(V100, A100, H100, L4, B200, GB300, "2684", "2231")
def test_a_display_card_beside_gpus_that_compute_changes_nothing(computing: str) -> None:
    """In a DGX Station it is a T1000."""
    alone, found = plan(with_monitor(computing)), plan(with_monitor(computing, T1000))
    assert found["problems"] == alone["problems"] == []
    assert [gpu["count"] for gpu in found["gpus"]] == [4, 1]
    (warning,) = set(found["warnings"]) - set(alone["warnings"])
    assert_says(warning, "DGX Display", "does not decide the stack", "drives it, too")
    changed = ("gpus", "warnings", "text", "locked_clocks")
    assert {**found, **dict.fromkeys(changed)} == {**alone, **dict.fromkeys(changed)}


def given(driver: str = "vfio-pci", count: int = 4) -> list[dict[str, str]]:
    """Eight H100 with switches, of which the first ones and a switch are another driver's."""
    gpus_of = pci(*[(H100, GPU)] * 8, *[(SWITCH, NVSWITCH)])
    return [
        device | {"driver": driver if place < count or place == 8 else "nvidia"}
        for place, device in enumerate(gpus_of)
    ]


@each("vfio-pci", "pci-stub", "pciback", "nvgrace-gpu-vfio-pci")
def test_gpus_that_another_driver_has_are_planned_around(driver: str) -> None:
    found = plan(node(pci=given(driver)))
    assert (found["problems"], [gpu["count"] for gpu in found["gpus"]]) == ([], [4])
    assert found["given_gpus"] == [f"0000:0{place}:00.0" for place in range(4)]
    assert found["fabric"] == "none"
    (warning,) = found["warnings"]
    assert_says(warning, "4 of 8 GPUs", driver, "0000:03:00.0", "left alone", "expected GPUs: 4")


@each("", "nvidia", "nouveau", "nvidiafb")
def test_gpus_of_nvidias_driver_the_kernels_or_none_are_the_nodes_own(driver: str) -> None:
    found = plan(node(pci=given(driver)))
    assert (found["warnings"], found["given_gpus"]) == ([], [])
    assert [gpu["count"] for gpu in found["gpus"]] == [8]


def test_a_node_that_has_given_all_its_gpus_away_is_refused() -> None:
    text = problem(node(pci=given(count=8)))
    assert_says(text, "all 8 GPUs", "vfio-pci", "0000:07:00.0", "give some back", "gpu_nodes")


@each((B200, P400), (H100, P400), ("2c02", P400), (V100, "2d30"), (H100, GT_710))
def test_a_display_card_that_the_stack_cannot_drive_is_left_alone(computing: str, display: str) -> None:
    alone, found = plan(with_monitor(computing)), plan(with_monitor(computing, display))
    (warning,) = set(found["warnings"]) - set(alone["warnings"])
    assert_says(warning, "does not decide the stack", "leaves it alone")
    assert (alone["undriven_gpus"], found["undriven_gpus"]) == ([], [display])
    changed = ("warnings", "text", "undriven_gpus")
    assert {**found, **dict.fromkeys(changed)} == {**alone, **dict.fromkeys(changed)}


def test_what_validation_passes_over_are_the_gpus_that_the_driver_leaves_alone() -> None:
    cards = pci((H100, GPU), (T1000, DISPLAY), (P400, DISPLAY), (GT_710, DISPLAY), (GT_710, DISPLAY))
    assert plan(node(pci=cards))["undriven_gpus"] == [GT_710, GT_710, P400]
    assert plan(node(pci=pci((P400, DISPLAY), (GT_710, DISPLAY))))["undriven_gpus"] == [GT_710]


def test_a_display_card_alone_is_a_gpu_like_any_other() -> None:
    found = plan(node(pci=pci((P400, DISPLAY))))
    assert (found["stack"], found["problems"], other_warnings(found)) == ("r580-cuda12.9", [], [])


def test_an_old_gpu_is_left_alone_only_beside_others_and_with_a_monitor() -> None:
    assert_says(problem(node(pci=pci((GT_710, DISPLAY)))), "10de:128b", "older than Maxwell")
    assert_says(problem(node(pci=pci((H100, GPU), (K80, GPU)))), "10de:102d", "older than Maxwell")
    assert plan(node(pci=pci((T1000, DISPLAY), (GT_710, DISPLAY))))["problems"] == []


def test_threads_are_for_gpus_that_compute() -> None:
    assert plan(with_monitor(H100, T1000))["environment"]["omp_num_threads"] == 8
