"""What holds for every node: any GPUs, any system, any options."""

import copy
import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from temper.plan.tables import load_tables
from tests.unit.each import each
from tests.unit.planning_nodes import NVSWITCH, SWITCH, TABLES, gpus, node, plan
from tests.unit.tables import ROOT
from tools.bare_node import pci

KNOWN = load_tables(ROOT / "data")
MIRROR = "http://mirror/cuda"
IDS = sorted(KNOWN.models_by_id)
# One of each chip, and some that no table knows: between, beyond and before all others, and a Jetson's.
MODELS = sorted({*IDS[::12], "2b85", "2941", "2342", "1b03", "2a00", "3fff", "102d", "2b00"})
NEWER = "3280"
REMEDY = re.compile(
    r"set nvidia_stack_|nvidia_stack_source: |choose another system|expected one of|take the "
)
# What drives an architecture, without the tables: first and last branch, flavours of kernel modules.
PROPRIETARY, BOTH, OPEN = {"proprietary"}, {"open", "proprietary"}, {"open"}
DRIVEN: dict[str, tuple[int, int, set[str]]] = {
    "maxwell": (0, 580, PROPRIETARY),
    "pascal": (0, 580, PROPRIETARY),
    "volta": (0, 580, PROPRIETARY),
    "turing": (410, 9999, BOTH),
    "ampere": (450, 9999, BOTH),
    "ada": (520, 9999, BOTH),
    "hopper": (520, 9999, BOTH),
    "blackwell": (570, 9999, OPEN),
    "rubin": (615, 9999, OPEN),
}
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
        "nvidia_stack_cuda_repository_url": st.sampled_from([MIRROR, TABLES["nvidia_repository"]["url"]]),
        "nvidia_stack_name": st.sampled_from(["", *TABLES["nvidia_stacks"], "r999"]),
        "nvidia_stack_kernel_modules": st.sampled_from(["auto", "open", "proprietary"]),
        "nvidia_stack_fabric": st.sampled_from(["auto", "none", "nvswitch", "nvlink5"]),
        "nvidia_stack_imex": st.booleans(),
        "preflight_unknown_gpu_ok": st.booleans(),
        "preflight_secure_boot_ok": st.booleans(),
    }
)


@given(nodes(), OPTIONS)
def test_the_same_node_gets_the_same_plan_and_stays_as_it_was(
    facts: dict[str, Any], options: dict[str, Any]
) -> None:
    before = copy.deepcopy(facts)
    assert plan(facts, **options) == plan(facts, **options)
    assert facts == before


@given(nodes(), OPTIONS)
def test_a_plan_without_problems_is_whole(facts: dict[str, Any], options: dict[str, Any]) -> None:
    found = plan(facts, **options)
    if found["problems"]:
        return
    driver = found["driver"]
    assert found["gpus"] or found["unknown_gpus"]
    assert max(found["unknown_gpus"], default="") < NEWER or options["preflight_unknown_gpu_ok"]
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


@each("nvidia", "distro")
@each(*SYSTEMS)
def test_every_gpu_is_driven_or_refused_with_its_name_and_a_remedy(
    name: str, release: str, source: str
) -> None:
    os = {"id": name, "version_id": release, "codename": "", "pretty_name": name}
    # Whatever the system, a GPU's rules are the same: one system is asked about all of them.
    for device_id in IDS if (name, release) == ("debian", "12") else IDS[::9]:
        found = plan(node(os=os, pci=gpus(device_id)), nvidia_stack_source=source)
        model = KNOWN.models[KNOWN.models_by_id[device_id]]
        first, last, flavours = DRIVEN[model.architecture]
        if found["problems"]:
            assert [text for text in found["problems"] if not REMEDY.search(text)] == []
        else:
            assert first <= found["driver"]["branch"] <= last, device_id
            assert found["driver"]["modules"] in flavours, device_id
        if last < 9999 and source == "nvidia" and (name, release) == ("debian", "12"):
            assert found["problems"] == [], device_id


@given(nodes(), OPTIONS)
def test_a_problem_is_a_sentence(facts: dict[str, Any], options: dict[str, Any]) -> None:
    for text in plan(facts, **options)["problems"]:
        assert len(text) > 30
        assert "None" not in text
