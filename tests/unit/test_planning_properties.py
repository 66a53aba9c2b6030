"""What holds for every node: any GPUs, any system, any options."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.planning_nodes import NVSWITCH, SWITCH, TABLES, gpus, node, pci, plan

MODELS = sorted({model["pci_ids"][0] for model in TABLES["models"].values()} | {"1b02", "3fff"})
SYSTEMS = [tuple(name.split("-")) for name in TABLES["nvidia_distributions"]] + [
    ("rocky", "9.4"),
    ("fedora", "43"),
]


@st.composite
def nodes(draw: st.DrawFn) -> dict[str, Any]:
    name, release = draw(st.sampled_from(SYSTEMS))
    switches = pci((SWITCH, NVSWITCH)) if draw(st.booleans()) else []
    return node(
        os={"id": name, "version_id": release, "codename": "", "pretty_name": name},
        architecture=draw(st.sampled_from(["x86_64", "aarch64", "riscv64"])),
        pci=gpus(*draw(st.lists(st.sampled_from(MODELS), max_size=4))) + switches,
        nvlink_switch_managed=draw(st.booleans()),
        secure_boot=draw(st.sampled_from(["enabled", "disabled"])),
    )


OPTIONS = st.fixed_dictionaries(
    {
        "nvidia_stack_name": st.sampled_from(["", *TABLES["nvidia_stacks"], "r999"]),
        "nvidia_stack_kernel_modules": st.sampled_from(["auto", "open", "proprietary"]),
        "nvidia_stack_fabric": st.sampled_from(["auto", "none", "nvswitch", "nvlink5"]),
        "nvidia_stack_imex": st.booleans(),
        "preflight_unknown_gpu_ok": st.booleans(),
        "preflight_secure_boot_ok": st.booleans(),
    }
)


@settings(max_examples=150, deadline=None)
@given(nodes(), OPTIONS)
def test_the_same_node_gets_the_same_plan_and_stays_as_it_was(
    facts: dict[str, Any], options: dict[str, Any]
) -> None:
    before = copy.deepcopy(facts)
    assert plan(facts, **options) == plan(facts, **options)
    assert facts == before


@settings(max_examples=300, deadline=None)
@given(nodes(), OPTIONS)
def test_a_plan_without_problems_is_whole(facts: dict[str, Any], options: dict[str, Any]) -> None:
    found = plan(facts, **options)
    if found["problems"]:
        return
    driver = found["driver"]
    assert found["gpus"] or found["unknown_gpus"]
    assert not found["unknown_gpus"] or options["preflight_unknown_gpu_ok"]
    assert driver["version"] == TABLES["nvidia_stacks"][found["stack"]]["driver"]
    assert driver["package_version"].startswith(driver["version"])
    at_driver = [name for name, version in found["packages"].items() if version == driver["package_version"]]
    assert ("nvidia-fabricmanager" in at_driver) == (found["fabric"] != "none")
    assert ("nvidia-imex" in at_driver) == options["nvidia_stack_imex"]
    own = [
        name
        for name in found["packages"]
        if name.startswith(("nvidia-d", "nvidia-k", "kmod-nvidia", "libnvidia-compute"))
    ]
    assert own
    assert all(name in at_driver or "pinning" in name for name in own)
    assert all(repository["fingerprints"] for repository in found["repositories"])
    assert all(
        version for name, version in found["packages"].items() if "pinning" not in name and name != "nvlsm"
    )


@settings(max_examples=300, deadline=None)
@given(nodes(), OPTIONS)
def test_every_gpu_of_an_accepted_node_can_use_the_driver(
    facts: dict[str, Any], options: dict[str, Any]
) -> None:
    found = plan(facts, **options)
    for gpu in found["gpus"] if not found["problems"] else ():
        rule = TABLES["nvidia_architectures"][gpu["architecture"]]
        assert (rule["first_branch"] or 0) <= found["driver"]["branch"] <= (rule["last_branch"] or 9999)
        assert rule["open_modules"] != ("impossible" if found["driver"]["modules"] == "open" else "required")


@settings(max_examples=150, deadline=None)
@given(nodes(), OPTIONS)
def test_a_problem_is_a_sentence(facts: dict[str, Any], options: dict[str, Any]) -> None:
    for text in plan(facts, **options)["problems"]:
        assert len(text) > 30
        assert "None" not in text
