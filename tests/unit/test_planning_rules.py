"""Each rule of data/nvidia_compatibility.yml refuses or warns, and names a remedy."""

import copy
from typing import Any

from tests.unit.each import each
from tests.unit.planning_nodes import (
    B200,
    GPU,
    H100,
    L4,
    NVSWITCH,
    SWITCH,
    TABLES,
    V100,
    assert_says,
    gpus,
    node,
    plan,
    problem,
    system,
)
from tools.bare_node import pci

GH200, GB200 = "2342", "2941"


def with_stack(**changes: Any) -> dict[str, Any]:
    """The tables with a stack `changed`, made of the default one."""
    data = copy.deepcopy(TABLES)
    data["nvidia_stacks"]["changed"] = data["nvidia_stacks"]["r580-cuda13.0"] | changes
    return data


def changed_problems(facts: dict[str, Any] | None = None, **changes: Any) -> list[str]:
    found: list[str] = plan(facts, data=with_stack(**changes), nvidia_stack_name="changed")["problems"]
    return found


# ---------------------------------------------------------------- which stack


def test_a_long_term_branch_comes_before_one_with_new_features() -> None:
    data = with_stack(driver="610.57.04", driver_package=dict.fromkeys(("debian", "ubuntu", "rhel"), "610-1"))
    data["nvidia_default_stacks"].insert(0, "changed")
    assert plan(data=data)["stack"] == "r580-cuda13.0"
    data["nvidia_default_stacks"] = ["changed", "r595-cuda13.2"]
    assert plan(data=data)["stack"] == "r595-cuda13.2"


def test_a_stack_that_the_operator_names_is_not_replaced() -> None:
    found = plan(node(pci=gpus(V100)), nvidia_stack_name="r595-cuda13.2")
    assert found["stack"] == "r595-cuda13.2"
    assert found["problems"]


def test_nvidias_repository_for_debian_13_has_no_580() -> None:
    text = problem(system("debian", "13"), nvidia_stack_name="r580-cuda13.0")
    assert_says(text, "debian-13", "590", "r580-cuda13.0 has 580", "set nvidia_stack_name: r595-cuda13.2")


def test_a_mirror_may_hold_what_nvidias_repository_does_not() -> None:
    wanted: dict[str, Any] = {
        "nvidia_stack_name": "r580-cuda13.0",
        "nvidia_stack_cuda_repository_url": "http://mirror/cuda",
    }
    found = plan(system("debian", "13"), **wanted)
    assert (found["stack"], found["problems"]) == ("r580-cuda13.0", [])


@each(L4, V100)
@each(*TABLES["nvidia_distributions"])
def test_a_mirrors_default_is_what_was_copied_from_nvidia(name: str, device: str) -> None:
    distribution, _, release = name.rpartition("-")
    facts = system(distribution, release, pci=gpus(device))
    keys: dict[str, Any] = {"nvidia_stack_cuda_key_fingerprints": ["A" * 40]}
    copied = plan(facts, **keys)
    if not copied["problems"]:
        found = plan(facts, nvidia_stack_cuda_repository_url="http://mirror/cuda", **keys)
        assert (found["stack"], found["hint"]) == (copied["stack"], "")


def test_nothing_shows_a_repository_for_debian_12_on_aarch64() -> None:
    facts = node(pci=gpus(GH200), architecture="aarch64")
    text = plan(facts)["problems"][0]
    assert_says(text, "debian-12", "aarch64", "another system", "nvidia_stack_cuda_repository_url")
    found = plan(facts, nvidia_stack_cuda_repository_url="http://mirror/cuda")
    assert found["problems"] == []
    assert "nothing shows" in found["hint"]
    assert plan(system("debian", "13", pci=gpus(H100), architecture="aarch64"))["problems"] == []


def test_the_distributions_driver_is_advised_only_where_it_drives_the_node() -> None:
    def advice(device_id: str) -> str:
        return str(plan(node(pci=gpus(device_id), architecture="aarch64"))["problems"][0])

    assert "nvidia_stack_source: distro" in advice(H100)
    # H200 NVL is newer than Debian's branch.
    assert "nvidia_stack_source: distro" not in advice("233b")


def test_a_release_whose_repository_begins_after_cuda_12_has_nothing_for_volta() -> None:
    facts = system("rhel", "10", pci=gpus(V100))
    text = problem(facts, nvidia_stack_cuda_key_fingerprints=["A" * 40])
    assert_says(text, "rhel-10 begins with CUDA 13.0", "r580-cuda12.9 has 12.9", "choose another system")


def test_volta_on_debian_13_has_no_stack_at_nvidia() -> None:
    found = plan(system("debian", "13", pci=gpus(V100)))["problems"]
    assert found
    none = (
        "no stack in data/stacks.yml fits all GPUs of this node on this system; nvidia_stack_source: distro"
    )
    assert all(none in text for text in found)


# ---------------------------------------------------------------- GPUs that no table knows


def test_a_gpu_newer_than_the_tables_gets_the_newest_driver_with_open_modules() -> None:
    found = plan(node(pci=gpus("3fff")), preflight_unknown_gpu_ok=True)
    assert (found["stack"], found["driver"]["modules"], found["problems"]) == ("r595-cuda13.2", "open", [])


# ---------------------------------------------------------------- CUDA, cuDNN, torch


@each(
    (
        node(),
        {"driver": "570.211.01"},
        "CUDA 13.0 starts on driver 580.65.06 or newer; stack changed has 570",
    ),
    (
        node(pci=gpus(B200)),
        {"cuda": "12.6", "cudnn_package": "9.10.2.21-1"},
        "B200 SXM (blackwell) needs CUDA 12.8 or newer; stack changed has 12.6",
    ),
    (
        node(pci=gpus(V100)),
        {"cuda": "12.9", "cudnn_package": "9.11.0.98-1"},
        "Tesla V100 SXM2 32 GB (volta) works with cuDNN 9.10.2 or older",
    ),
    (node(), {"cudnn_package": "9.11.1.4-1"}, "there is no cuDNN 9.11.1.4-1 for CUDA 13"),
    (node(), {"cudnn_package": "9.9.0.1-1"}, "there is no cuDNN 9.9.0.1-1 for CUDA 13"),
    (node(), {"cuda": "14.0"}, "stack changed: CUDA 14.0 is in no table"),
    (node(), {"driver": "700.1"}, "stack changed: driver branch 700 is in no table"),
    (
        node(pci=gpus(H100), nvlink_switch_managed=True),
        {"driver": "570.86.15", "cuda": "12.8", "cudnn_package": "9.10.2.21-1"},
        "NVLink 5 switches need driver 570.133.20 or newer; stack changed has 570.86.15",
    ),
)
def test_a_stack_whose_parts_do_not_fit_is_refused(
    facts: dict[str, Any], changes: dict[str, str], says: str
) -> None:
    assert says in "\n".join(changed_problems(facts, **changes))


def test_a_cuda_that_does_not_start_is_not_also_said_to_run() -> None:
    found = plan(data=with_stack(driver="570.211.01"), nvidia_stack_name="changed")
    assert not any("its programs run" in warning for warning in found["warnings"])


def test_gpus_that_exclude_each_other_are_the_only_sentence() -> None:
    assert "one node cannot drive both" in problem(node(pci=gpus(V100, B200)))


def test_where_no_stack_fits_the_one_that_breaks_the_fewest_rules_is_told_of() -> None:
    text = problem(system("debian", "13", pci=gpus(V100)))
    assert text.startswith(
        "NVIDIA's repository for debian-13 begins with driver branch 590; stack r580-cuda12.9"
    )


def test_a_newer_cuda_than_the_drivers_is_a_warning() -> None:
    found = plan(data=with_stack(cuda="13.2"), nvidia_stack_name="changed")
    assert found["problems"] == []
    assert any("CUDA 13.2 came with driver 595.45.04" in warning for warning in found["warnings"])


# ---------------------------------------------------------------- end of life


@each(
    ("2026-12-31", None),
    ("2027-01-01", "driver branch 595 ends in 2027-03"),
    ("2027-03-31", "driver branch 595 ends in 2027-03"),
    ("2027-04-01", "driver branch 595 has had no security fixes since 2027-03"),
)
def test_the_end_of_a_branch_is_said_in_time(today: str, expected: str | None) -> None:
    found = plan(system("debian", "13"), today=today)["warnings"]
    assert [text.split(",")[0].split(";")[0] for text in found] == ([expected] if expected else [])


def test_a_branch_without_a_known_end_is_not_judged() -> None:
    data = with_stack()
    data["nvidia_driver_branches"]["580"]["end_of_life"] = None
    found = plan(data=data, today="2099-01-01", nvidia_stack_name="changed")
    assert (found["warnings"], found["driver"]["end_of_life"]) == ([], None)


# ---------------------------------------------------------------- modules and fabric


def test_gh200_works_with_open_modules_only() -> None:
    facts = system("debian", "13", pci=gpus(GH200), architecture="aarch64")
    text = problem(facts, nvidia_stack_kernel_modules="proprietary")
    assert_says(text, "GH200 96 GB", "only with open kernel modules", "nvidia_stack_kernel_modules: auto")
    assert plan(facts)["driver"]["modules"] == "open"


def test_an_hgx_b200_gets_fabric_manager_and_subnet_manager() -> None:
    found = plan(node(pci=gpus(*[B200] * 8), nvlink_switch_managed=True))
    assert (found["fabric"], found["problems"], found["warnings"]) == ("nvlink5", [], [])
    for name in ("nvidia-fabricmanager", "libnvidia-nscq", "libnvsdm"):
        assert found["packages"][name] == found["driver"]["package_version"]
    assert found["packages"]["nvlsm"] == ""
    assert "infiniband-diags" in found["present"]
    assert "nvidia-fabricmanager" in found["services"]
    assert found["runtime"]["fabric_manager"] == found["driver"]["version"]


def test_the_switch_library_exists_for_x86_64_only() -> None:
    arm: dict[str, Any] = {"architecture": "aarch64", "nvlink_switch_managed": True}
    facts = system("debian", "13", pci=gpus(*[GB200] * 4), **arm)
    found = plan(facts)["packages"]
    assert "nvlsm" in found
    assert "libnvsdm" not in found


def test_a_b200_whose_switches_were_not_seen_is_pointed_out() -> None:
    (warning,) = plan(node(pci=gpus(*[B200] * 8)))["warnings"]
    assert "no management device of NVLink 5 switches was found" in warning
    assert plan(node(pci=gpus(B200)), nvidia_stack_fabric="none")["warnings"] == []


def test_the_fabric_may_be_named() -> None:
    found = plan(node(pci=gpus(*[B200] * 8)), nvidia_stack_fabric="nvlink5")
    assert (found["fabric"], found["warnings"]) == ("nvlink5", [])
    assert "nvlsm" in found["packages"]


def test_a_node_of_an_nvl72_rack_is_told_of_imex() -> None:
    facts = system("debian", "13", pci=gpus(*[GB200] * 4), architecture="aarch64")
    (warning,) = plan(facts)["warnings"]
    assert "set nvidia_stack_imex: true" in warning
    own = plan(
        system("ubuntu", "24.04", pci=gpus(GB200), architecture="aarch64"), nvidia_stack_source="distro"
    )
    assert any("set nvidia_stack_source: nvidia and nvidia_stack_imex" in text for text in own["warnings"])
    found = plan(facts, nvidia_stack_imex=True)
    assert found["warnings"] == []
    assert found["packages"]["nvidia-imex"] == found["driver"]["package_version"]
    assert "nvidia-imex" in found["services"]
    assert "nvlsm" not in found["packages"]


def test_no_warning_about_a_fabric_that_is_planned_or_cannot_be() -> None:
    assert plan(node(pci=pci((H100, GPU), (SWITCH, NVSWITCH))))["warnings"] == []
    assert plan(node(pci=gpus(L4)))["warnings"] == []


def test_before_580_the_fabric_managers_name_has_the_branch() -> None:
    data = with_stack(driver="570.211.01", cuda="12.8", cudnn_package="9.10.2.21-1")
    data["nvidia_kernel_modules"]["open_minimum_driver"]["driver"] = "570.0"
    facts = node(pci=pci((H100, GPU), (SWITCH, NVSWITCH)))
    found = plan(facts, data=data, nvidia_stack_name="changed")
    assert {"nvidia-fabricmanager-570", "libnvidia-nscq-570"} <= found["packages"].keys()
    rhel = facts | {"os": system("rocky", "9.4")["os"]}
    assert "nvidia-fabric-manager" in plan(rhel, data=data, nvidia_stack_name="changed")["packages"]


# ---------------------------------------------------------------- Secure Boot

MOK = "ab" * 32
KEY: dict[str, Any] = {"nvidia_stack_mok_private_key": "mok.key"}


@each(
    ([], "", {}, ("nvidia_stack_mok_certificate and nvidia_stack_mok_private_key", "secure_boot_ok: true")),
    (
        ["cd" * 32],
        MOK,
        KEY,
        ("certificate nvidia_stack_mok_certificate (SHA-256 abab", "mokutil --import FILE"),
    ),
    ([MOK], MOK, {}, ("a certificate alone signs nothing",)),
)
def test_under_secure_boot_what_would_not_load_is_refused_with_the_remedy(
    enrolled: list[str], certificate: str, key: dict[str, Any], says: tuple[str, ...]
) -> None:
    facts = node(secure_boot="enabled", mok_enrolled=enrolled)
    assert_says(problem(facts, mok_sha256=certificate, **key), *says)


@each(("enabled", KEY, True), ("disabled", {}, False))
def test_an_enrolled_certificate_signs_the_modules_under_secure_boot(
    secure_boot: str, key: dict[str, Any], signed: bool
) -> None:
    found = plan(node(secure_boot=secure_boot, mok_enrolled=[MOK]), mok_sha256=MOK, **key)
    assert (found["problems"], found["mok"], "openssl" in found["present"]) == ([], signed, signed)


# ---------------------------------------------------------------- DCGM


def test_dcgm_fits_the_drivers_cuda() -> None:
    found = plan(nvidia_stack_dcgm=True)
    assert found["packages"]["datacenter-gpu-manager-4-cuda13"] == "1:4.6.0-1"
    assert "datacenter-gpu-manager-4-cuda12" not in found["packages"]
    assert "nvidia-dcgm" in found["services"]
    assert "nvidia-dcgm-exporter" not in found["services"]


def test_the_exporter_brings_dcgm_and_volta_its_older_tests() -> None:
    found = plan(node(pci=gpus(V100)), nvidia_stack_dcgm_exporter=True)
    assert {"datacenter-gpu-manager-4-cuda12", "datacenter-gpu-manager-exporter"} <= found["packages"].keys()
    assert {"nvidia-dcgm", "nvidia-dcgm-exporter"} <= set(found["services"])
