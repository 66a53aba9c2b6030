"""The plan with the distribution's own driver: what Debian has, and why it does not do for every node."""

from __future__ import annotations

from typing import Any

import pytest

from planning.node_plan import NodePlan
from planning.preview import Preview, with_preview
from tests.unit import planning_nodes
from tests.unit.planning_nodes import B200, H100, L4, NVSWITCH, SWITCH, V100, gpus, node, pci

GH200 = "2342"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
CONTAINER_TOOLKIT = {
    "nvidia-container-toolkit",
    "nvidia-container-toolkit-base",
    "libnvidia-container-tools",
    "libnvidia-container1",
}


def source(suite: str, folder: str = "debian", *components: str, signed_by: str = KEYRING) -> dict[str, Any]:
    """One of the node's own sources, as node_facts reports it."""
    return {
        "uri": f"http://mirror.example/{folder}/",
        "suite": suite,
        "components": list(components or ("main",)),
        "signed_by": signed_by,
    }


BOOKWORM = (
    source("bookworm"),
    source("bookworm-updates"),
    source("bookworm-security", "debian-security"),
)
TRIXIE = {
    "os": {
        "id": "debian",
        "version_id": "13",
        "codename": "trixie",
        "pretty_name": "Debian GNU/Linux 13 (trixie)",
    },
    "apt_sources": [source("trixie"), source("trixie-security", "debian-security")],
}


def plan(facts: dict[str, Any] | None = None, **variables: Any) -> dict[str, Any]:
    """The plan of a bare Debian 12 node with one L4, unless told otherwise."""
    found = node(**{"apt_sources": list(BOOKWORM)} | (facts or {}))
    return planning_nodes.plan(found, **{"nvidia_stack_source": "distro"} | variables)


def names(found: dict[str, Any]) -> set[str]:
    return set(found["packages"]) - CONTAINER_TOOLKIT


def test_debian_12_gets_the_proprietary_driver_of_its_security_suite() -> None:
    found = plan()
    assert found["problems"] == []
    assert found["stack"] == "debian-12-nvidia"
    driver = {key: found["driver"][key] for key in ("version", "branch", "modules", "dkms")}
    assert driver == {
        "version": "535.309.01",
        "branch": 535,
        "modules": "proprietary",
        "dkms": "nvidia-current",
    }
    assert names(found) == {
        "nvidia-kernel-dkms",
        "nvidia-smi",
        "libcuda1",
        "libnvidia-ml1",
        "libnvidia-nvvm4",
        "nvidia-modprobe",
        "nvidia-persistenced",
        "nvidia-cuda-toolkit",
    }
    assert {found["packages"][name] for name in names(found)} == {""}


def test_debian_13_gets_nccl_as_well() -> None:
    found = plan(TRIXIE)
    assert found["problems"] == []
    assert found["driver"]["version"] == "550.163.01"
    assert {"libnccl2", "libnccl-dev"} <= names(found)
    assert found["runtime"]["nccl"] == "2.22.3"


def test_cudnn_which_debian_only_downloads_is_not_planned() -> None:
    found = plan(TRIXIE)
    assert "nvidia-cudnn" not in found["packages"]
    assert found["runtime"]["cudnn"] is None


def test_node_without_the_security_suite_gets_the_releases_driver_and_a_warning() -> None:
    found = plan({"apt_sources": [source("bookworm")]})
    assert found["problems"] == []
    assert found["driver"]["version"] == "535.261.03"
    assert any("no source of bookworm-security" in warning for warning in found["warnings"])


def test_driver_that_is_installed_is_the_planned_one() -> None:
    """Debian's mirrors have moved on since; what is held stays."""
    found = plan({"packages": {"nvidia-kernel-dkms": "535.261.03-1"}})
    assert found["driver"]["version"] == "535.261.03"


def test_version_that_the_mirror_offers_by_now_is_the_planned_one() -> None:
    offered = {"resolved": {"nvidia-kernel-dkms": "535.400.01-0+deb12u1"}, "transaction": {}}
    driver = with_preview(NodePlan.from_dict(plan()), Preview.from_dict(offered)).driver
    assert driver
    assert (driver.version, driver.package_version) == ("535.400.01", "535.400.01-0+deb12u1")
    assert driver.modules == "proprietary"


def test_version_that_the_operator_names_is_asked_for_exactly() -> None:
    found = plan(nvidia_stack_distro_driver="535.309.01-0+deb12u1")
    assert found["packages"]["nvidia-kernel-dkms"] == found["packages"]["libcuda1"] == "535.309.01-0+deb12u1"
    assert found["packages"]["nvidia-persistenced"] == ""


def test_node_that_has_everything_at_any_version_is_settled() -> None:
    installed = dict.fromkeys(plan()["packages"], "1") | {"nvidia-kernel-dkms": "535.309.01-0+deb12u1"}
    toolkit = {name: plan()["packages"][name] for name in CONTAINER_TOOLKIT}
    assert plan({"packages": installed | toolkit})["settled"]


def test_cuda_toolkit_and_container_toolkit_can_be_left_out() -> None:
    found = plan(nvidia_stack_distro_cuda_toolkit=False, nvidia_stack_distro_container_toolkit=False)
    assert found["cuda"] is None
    assert not found["packages"].keys() & (CONTAINER_TOOLKIT | {"nvidia-cuda-toolkit"})
    assert [repository["name"] for repository in found["repositories"]] == ["debian", "debian-security"]


# ---------------------------------------------------------------- where packages come from


def test_missing_components_come_from_the_nodes_own_mirrors() -> None:
    found = plan()["repositories"]
    assert found[:2] == [
        {
            "name": "debian",
            "kind": "apt",
            "uri": "http://mirror.example/debian/",
            "suite": "bookworm bookworm-updates",
            "components": ["contrib", "non-free", "non-free-firmware"],
            "signed_by": KEYRING,
        },
        {
            "name": "debian-security",
            "kind": "apt",
            "uri": "http://mirror.example/debian-security/",
            "suite": "bookworm-security",
            "components": ["contrib", "non-free", "non-free-firmware"],
            "signed_by": KEYRING,
        },
    ]
    assert [repository["name"] for repository in found[2:]] == ["nvidia-container-toolkit"]


def test_components_that_the_node_has_are_not_added_again() -> None:
    every = source("bookworm", "debian", "main", "contrib", "non-free", "non-free-firmware")
    found = plan({"apt_sources": [every]})
    assert [repository["name"] for repository in found["repositories"]] == ["nvidia-container-toolkit"]


def test_node_s_own_keyring_is_kept_because_apt_refuses_two() -> None:
    found = plan({"apt_sources": [source("bookworm", signed_by="/etc/apt/keyrings/own.pgp")]})
    assert found["repositories"][0]["signed_by"] == "/etc/apt/keyrings/own.pgp"


def test_mirror_of_the_operator_comes_before_the_nodes() -> None:
    found = plan(nvidia_stack_distro_mirror_url="https://debian.example.org/debian")
    assert found["repositories"][0] | {"name": ""} == {
        "name": "",
        "kind": "apt",
        "uri": "https://debian.example.org/debian/",
        "suite": "bookworm bookworm-updates",
        "components": ["main", "contrib", "non-free", "non-free-firmware"],
        "signed_by": KEYRING,
    }


def test_node_without_a_source_of_debian_is_refused() -> None:
    (problem,) = plan({"apt_sources": []})["problems"]
    assert "set nvidia_stack_distro_mirror_url" in problem


# ---------------------------------------------------------------- why a node is refused

REMEDY = "set nvidia_stack_source: nvidia"


@pytest.mark.parametrize("facts", [{}, TRIXIE], ids=["debian-12", "debian-13"])
def test_open_modules_that_do_not_build_are_refused_with_the_reason(facts: dict[str, Any]) -> None:
    (problem,) = plan(facts, nvidia_stack_kernel_modules="open")["problems"]
    assert "nvidia-open-kernel-dkms does not build" in problem
    assert "pci_resize_resource" in problem
    assert "set nvidia_stack_kernel_modules: auto" in problem


@pytest.mark.parametrize(
    ("devices", "reason"),
    [
        (gpus(B200), "works only with open kernel modules"),
        (pci((H100, "0302"), (SWITCH, NVSWITCH)), "a fabric manager of the driver's version"),
    ],
    ids=["Blackwell", "NVSwitch"],
)
def test_gpus_that_need_what_debian_has_not_are_refused(devices: list[dict[str, str]], reason: str) -> None:
    problems = plan({"pci": devices})["problems"]
    assert any(reason in problem for problem in problems)
    assert all(problem.endswith(REMEDY) for problem in problems)


def test_volta_which_newer_branches_dropped_is_fine() -> None:
    assert plan({"pci": gpus(V100)})["problems"] == []


def test_unknown_gpu_is_refused_even_if_unknown_ones_are_allowed() -> None:
    (problem,) = plan({"pci": gpus("ffff")}, preflight_unknown_gpu_ok=True)["problems"]
    assert "older than a GPU that no table knows (10de:ffff)" in problem


def test_gh200_needs_open_modules_although_other_hoppers_do_not() -> None:
    (problem,) = plan({"pci": gpus(GH200)})["problems"]
    assert "works only with open kernel modules" in problem


@pytest.mark.parametrize("name", ["nvidia_stack_dcgm", "nvidia_stack_dcgm_exporter", "nvidia_stack_imex"])
def test_what_debian_does_not_package_is_refused(name: str) -> None:
    option: dict[str, Any] = {name: True}
    (problem,) = plan(**option)["problems"]
    assert problem == f"the distribution has no packages for {name}; {REMEDY}"


def test_driver_version_that_is_none_is_refused() -> None:
    (problem,) = plan(nvidia_stack_distro_driver="latest")["problems"]
    assert "expected the version of a package, such as 535.261.03-1, found latest" in problem


def test_driver_of_a_branch_that_no_table_knows_gets_a_plan() -> None:
    assert plan(nvidia_stack_distro_driver="999.1-1")["driver"]["end_of_life"] is None


def test_stack_of_nvidias_repositories_is_refused_for_debians() -> None:
    (problem,) = plan(nvidia_stack_name="r580-cuda13.0")["problems"]
    assert problem.startswith("nvidia_stack_name")


@pytest.mark.parametrize(
    ("wanted", "there", "dkms"),
    [
        ("distro", {"nvidia-driver-cuda": "580.178.04-1", "libnccl2": "2.28.9-1+cuda13.0"}, "nvidia"),
        (
            "nvidia",
            {"nvidia-kernel-dkms": "535.309.01-0+deb12u1", "libnccl2": "2.22.3-1-1"},
            "nvidia-current",
        ),
    ],
)
def test_driver_of_the_other_source_is_never_mixed_in(wanted: str, there: dict[str, str], dkms: str) -> None:
    record = {"module": dkms, "version": "1", "kernel": None, "architecture": None, "state": "added"}
    facts = {"pci": gpus(L4), "packages": there, "dkms": [record]}
    (problem,) = plan(facts, nvidia_stack_source=wanted)["problems"]
    (driver,) = there.keys() - {"libnccl2"}
    assert f"`apt-get purge --allow-change-held-packages {driver}`" in problem
    assert "cannot be mixed" in problem


def test_branch_that_nvidia_supports_no_more_is_said_so() -> None:
    assert any("535 ended in 2026-06" in warning for warning in plan(today="2026-11-21")["warnings"])
    assert plan(today="2026-06-30")["warnings"] == []
