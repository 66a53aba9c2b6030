"""Products that gpu_settings_mig names: misspelt ones, other nodes' ones, and those that nobody has."""

from typing import Any

from temper.plan.fleet import FleetPlan
from tests.unit.each import each
from tests.unit.planning_nodes import H100, L4, assert_says, gpus, node, plan, problem

LAYOUT = ["3g.40gb", "3g.40gb"]
HOPPER = "NVIDIA H100 80GB HBM3"


def driven(*names: str, device_id: str = H100) -> dict[str, Any]:
    """A node whose loaded driver calls its GPUs so."""
    found = gpus(*[device_id] * len(names))
    return node(pci=[gpu | {"name": name} for gpu, name in zip(found, names, strict=True)])


def layouts(*keys: str) -> dict[str, Any]:
    return dict.fromkeys(keys, LAYOUT)


@each("NVIDIA H100 80GB HMB3", "nvidia h100 80gb hbm3", "H100 80GB HBM3")
def test_a_misspelt_product_beside_a_right_one_is_refused_with_the_nodes_own(key: str) -> None:
    found = problem(driven(HOPPER, HOPPER), gpu_settings_mig=layouts("0", HOPPER, key))
    assert_says(found, "gpu_settings_mig", repr(key), f"2x {HOPPER};", f"did you mean {HOPPER}?")


OTHERS = ("NVIDIA H100 PCIe", "NVIDIA H100 NVL", "NVIDIA A100-SXM4-40GB", "NVIDIA RTX PRO 7000")


@each(
    (driven(HOPPER), (HOPPER, *OTHERS)),
    # In no table: only their numbers say that they are others.
    (driven(HOPPER), (HOPPER, "NVIDIA H800 80GB HBM3", "NVIDIA H100 64GB HBM2")),
    (driven("NVIDIA A100-SXM4-80GB", device_id="20b2"), ("NVIDIA A100-SXM4-40GB", "all")),
    # The driver names it, and no table does.
    (driven("NVIDIA H100 80GB HBM3e"), ("NVIDIA H100 80GB HBM3e",)),
)
def test_one_inventory_may_name_the_products_of_other_nodes_however_alike(
    facts: dict[str, Any], keys: tuple[str, ...]
) -> None:
    assert plan(facts, gpu_settings_mig=layouts(*keys))["problems"] == []


def test_before_the_driver_is_loaded_nothing_is_refused_for_its_name() -> None:
    found = plan(node(pci=gpus(H100)), gpu_settings_mig=layouts(HOPPER, "NVIDIA H100 80GB HMB3"))
    assert found["problems"] == []
    assert found["mig_products"] == {HOPPER: True, "NVIDIA H100 80GB HMB3": False}


def warnings(**plans: dict[str, Any]) -> list[str]:
    found = FleetPlan.from_dict({name: fact | {"roles": {}} for name, fact in plans.items()})
    return [line for line in found.text().splitlines() if "gpu_settings_mig" in line]


def test_a_product_that_no_node_of_the_run_has_is_warned_of() -> None:
    def of_two(*keys: str) -> list[str]:
        plans = (plan(node(pci=gpus(gpu)), gpu_settings_mig=layouts(*keys)) for gpu in (H100, L4))
        return warnings(**dict(zip("ab", plans, strict=True)))

    (line,) = of_two(HOPPER, "NVIDIA A100-SXM4-40GB")
    assert_says(line, "warning: ", "'NVIDIA A100-SXM4-40GB'", "H100 SXM 80 GB, L4")
    assert of_two(HOPPER, "NVIDIA L4", "0", "all") == []


def test_a_gpu_that_is_in_no_table_may_be_the_product() -> None:
    unknown = node(pci=gpus("ffff"))
    found = plan(unknown, gpu_settings_mig=layouts("NVIDIA X1"), preflight_unknown_gpu_ok=True)
    assert warnings(a=found) == []
