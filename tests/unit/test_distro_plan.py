"""The plan with the distribution's own driver: what it has, and why it does not do for every node."""

from typing import Any

import pytest

from temper.plan.node_plan import NodePlan
from temper.plan.preview import Preview, with_preview
from tests.unit import planning_nodes
from tests.unit.each import each
from tests.unit.planning_nodes import B200, H100, L4, NVSWITCH, SWITCH, V100, assert_says, gpus, node, nvidia
from tools.bare_node import pci

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


# ---------------------------------------------------------------- why a node is refused

REMEDY = "set nvidia_stack_source: nvidia"


NO_BUILD = ("nvidia-open-kernel-dkms does not build", "pci_resize_resource", "kernel_modules: auto")


@each(
    ({"apt_sources": []}, {}, ("set nvidia_stack_distro_mirror_url",)),
    ({}, {"kernel_modules": "open"}, NO_BUILD),
    (TRIXIE, {"kernel_modules": "open"}, NO_BUILD),
    ({"pci": gpus(GH200)}, {}, ("works only with open kernel modules",)),  # unlike other Hoppers
    ({}, {"dcgm": True}, (f"no packages for nvidia_stack_dcgm; set nvidia_stack_dcgm: false, or {REMEDY}",)),
    ({}, {"dcgm_exporter": True}, ("no packages for nvidia_stack_dcgm_exporter; set", f"or {REMEDY}")),
    ({}, {"imex": True}, ("no packages for nvidia_stack_imex; set nvidia_stack_imex: false", f"or {REMEDY}")),
    ({}, {"distro_driver": "latest"}, ("the version of a package, such as 535.261.03-1, found latest",)),
    ({}, {"name": "r580-cuda13.0"}, ("nvidia_stack_name",)),
)
def test_what_debian_cannot_do_is_refused_with_the_remedy(
    facts: dict[str, Any], wishes: dict[str, Any], says: tuple[str, ...]
) -> None:
    (problem,) = plan(facts, **{f"nvidia_stack_{name}": wish for name, wish in wishes.items()})["problems"]
    assert_says(problem, *says)


@each(
    (gpus(B200), "works only with open kernel modules"),
    (pci((H100, "0302"), (SWITCH, NVSWITCH)), "a fabric manager of the driver's version"),
)
def test_gpus_that_need_what_debian_has_not_are_refused(devices: list[dict[str, str]], reason: str) -> None:
    problems = plan({"pci": devices})["problems"]
    assert any(reason in problem for problem in problems)
    assert all(problem.endswith(REMEDY) for problem in problems)


def test_unknown_gpu_is_refused_even_if_unknown_ones_are_allowed() -> None:
    (problem,) = plan({"pci": gpus("ffff")}, preflight_unknown_gpu_ok=True)["problems"]
    assert "older than a GPU that no table knows (10de:ffff)" in problem


def test_nvidias_packages_are_no_way_out_where_they_have_no_driver_for_the_node() -> None:
    """Debian 13 and Volta: NVIDIA's refusal names the distribution's driver, whose own would lead back."""
    facts = TRIXIE | {"pci": gpus(V100)}
    assert (
        "nvidia_stack_source: distro has another driver"
        in plan(facts, nvidia_stack_source="nvidia")["problems"][0]
    )
    newer = node()["kernel"] | {"release": "7.2.12+deb13-amd64"}
    for found in (
        plan(facts, nvidia_stack_kernel_modules="open"),
        plan(facts, nvidia_stack_dcgm=True),
        plan(facts | {"kernel": newer}),
    ):
        (problem,) = found["problems"]
        assert "nvidia_stack_source" not in problem


def test_driver_of_a_branch_that_no_table_knows_gets_a_plan() -> None:
    assert plan(nvidia_stack_distro_driver="999.1-1")["driver"]["end_of_life"] is None


@each(
    ("distro", {"nvidia-driver-cuda": "580.178.04-1", "libnccl2": "2.28.9-1+cuda13.0"}, "nvidia"),
    ("nvidia", {"nvidia-kernel-dkms": "535.309.01-0+deb12u1", "libnccl2": "2.22.3-1-1"}, "nvidia-current"),
)
def test_driver_of_the_other_source_is_never_mixed_in(wanted: str, there: dict[str, str], dkms: str) -> None:
    record = {"module": dkms, "version": "1", "kernel": None, "architecture": None, "state": "added"}
    facts = {"pci": gpus(L4), "packages": there, "dkms": [record]}
    (problem,) = plan(facts, nvidia_stack_source=wanted)["problems"]
    (driver,) = there.keys() - {"libnccl2"}
    assert f"`apt-get purge --allow-change-held-packages {driver}`" in problem
    assert "cannot be mixed" in problem


@each("nvidia", "distro")
def test_driver_that_no_package_owns_is_removed_first(source: str) -> None:
    """Of NVIDIA's .run installer, with a module in DKMS; images of clouds have one."""
    record = {
        "module": "nvidia",
        "version": "580.95.05",
        "kernel": None,
        "architecture": None,
        "state": "added",
    }
    there = {"pci": gpus(L4), "nvidia": nvidia(userspace_version="580.95.05"), "dkms": [record]}
    (problem,) = plan(there, nvidia_stack_source=source)["problems"]
    assert_says(
        problem, "580.95.05", "rain the node", "`nvidia-uninstall`", "dpkg --search libnvidia-ml.so.1"
    )
    toolkit = {"nvidia-container-toolkit": "1.20.0-1"}
    assert plan(there | {"packages": toolkit}, nvidia_stack_source=source)["problems"] == [problem]
    # The installer has no fabric manager: on boards with NVSwitches that comes as a package beside it.
    fabric = dict.fromkeys(("nvidia-fabricmanager", "libnvidia-nscq", "nvidia-imex"), "580.95.05-1")
    assert plan(there | {"packages": fabric}, nvidia_stack_source=source)["problems"] == [problem]
    packaged = there | {"packages": {"libnvidia-ml1": "580.95.05-1"}, "dkms": []}
    assert plan(packaged, nvidia_stack_source=source)["problems"] == []
    cut_off = there | {"broken_packages": ["libnvidia-ml1"], "dkms": []}
    assert plan(cut_off, nvidia_stack_source=source)["problems"] == []


@each("nvidia", "distro")
@each(
    {"nvidia": nvidia(vgpu_software=True, userspace_version="580.95.05")},  # of the .run installer
    {"nvidia": nvidia(vgpu_software=True)},
    {"packages": {"nvidia-linux-grid-580": "580.65.06"}, "nvidia": nvidia(userspace_version="580.65.06")},
)
def test_a_guest_with_a_virtual_gpu_is_left_alone(there: dict[str, Any], source: str) -> None:
    (problem,) = plan({"pci": gpus(L4), **there}, nvidia_stack_source=source)["problems"]
    assert_says(problem, "vGPU software", "Leave this node out", "whole GPUs, uninstall that driver")


def test_module_that_a_removed_driver_has_left_to_dkms_is_removed_there() -> None:
    record = {"module": "nvidia-current", "version": "535.1", "kernel": "6.1", "architecture": "x86_64"}
    facts = {"pci": gpus(L4), "dkms": [record | {"state": "installed"}, record | {"state": "built"}]}
    (problem,) = plan(facts, nvidia_stack_source="nvidia")["problems"]
    assert "run `dkms remove nvidia-current/535.1 --all` there" in problem


def test_branch_that_nvidia_supports_no_more_is_said_so() -> None:
    for today, ended in (("2026-11-21", True), ("2026-06-30", False)):
        said = any("535 ended in 2026-06" in warning for warning in plan(today=today)["warnings"])
        assert said is ended, today


# ---------------------------------------------------------------- Ubuntu: modules signed by Canonical

SERVER = {
    "libnvidia-cfg1-580-server",
    "libnvidia-compute-580-server",
    "nvidia-compute-utils-580-server",
    "nvidia-utils-580-server",
}


def ubuntu(
    *images: str, version: str = "24.04", release: str = "6.8.0-134-generic", **changes: Any
) -> dict[str, Any]:
    """An Ubuntu node with this kernel, and with packages linux-image-* of these names."""
    kernel = {
        "release": release,
        "headers_present": False,
        "headers_installable": False,
        "image_packages": {f"linux-image-{name}": "1" for name in (release, *images)},
    }
    os = {"id": "ubuntu", "version_id": version, "codename": "", "pretty_name": f"Ubuntu {version}"}
    return {"os": os, "kernel": kernel, "apt_sources": []} | changes


@each("22.04", "24.04", "26.04")
def test_ubuntu_gets_canonicals_modules_for_its_kernel_and_those_to_come(version: str) -> None:
    found = plan(ubuntu(f"generic-hwe-{version}", version=version))
    assert found["problems"] == []
    assert (found["driver"]["branch"], found["driver"]["modules"], found["driver"]["dkms"]) == (
        580,
        "open",
        "",
    )
    assert names(found) == SERVER | {
        "nvidia-headless-no-dkms-580-server-open",
        "linux-modules-nvidia-580-server-open-6.8.0-134-generic",
        f"linux-modules-nvidia-580-server-open-generic-hwe-{version}",
    }
    assert found["present"] == {f"linux-image-generic-hwe-{version}": ""}


def test_signed_modules_need_neither_a_key_nor_headers_under_secure_boot() -> None:
    found = plan(ubuntu("generic", secure_boot="enabled"))
    assert (found["problems"], found["mok"]) == ([], False)


def test_unsigned_modules_under_secure_boot_are_refused_with_the_signed_ones_as_a_way_out() -> None:
    problems = plan(ubuntu("generic", secure_boot="enabled"), nvidia_stack_source="nvidia")["problems"]
    assert any(
        "set nvidia_stack_source: distro, whose modules the distribution has signed" in text
        for text in problems
    )
    (debian,) = plan({"secure_boot": "enabled"})["problems"]
    assert "nvidia_stack_source" not in debian


OLDER: dict[str, Any] = {"release": "6.8.0-130-generic", "headers_present": False}
MODULES = "linux-modules-nvidia-580-server"


@each(
    (ubuntu("aws", release="6.8.0-1031-aws", pci=gpus(V100)), "proprietary", f"{MODULES}-aws"),
    (
        ubuntu("nvidia-64k", release="6.8.0-1031-nvidia-64k", pci=gpus(B200)),
        "open",
        f"{MODULES}-open-nvidia-64k",
    ),
    (ubuntu("virtual"), "open", f"{MODULES}-open-generic"),  # those of generic
    # Every kernel that could boot has modules.
    (ubuntu(OLDER["release"], "generic", kernels=[OLDER]), "open", f"{MODULES}-open-{OLDER['release']}"),
)
def test_canonicals_modules_are_those_of_the_gpus_and_kernels(
    facts: dict[str, Any], modules: str, package: str
) -> None:
    found = plan(facts)
    assert (found["problems"], found["driver"]["modules"]) == ([], modules)
    headless = "nvidia-headless-no-dkms-580-server"
    assert {package, f"{headless}-open" if modules == "open" else headless} <= found["packages"].keys()


def test_the_package_that_brings_a_kernel_stays() -> None:
    assert plan(ubuntu("virtual"))["present"] == {"linux-image-virtual": ""}


def test_kernels_to_come_can_be_left_out_but_stay_held() -> None:
    found = plan(ubuntu("generic"), nvidia_stack_follow_kernels=False)
    assert "linux-modules-nvidia-580-server-open-generic" not in found["packages"]
    assert found["present"] == {"linux-image-generic": ""}


def test_nvswitch_gets_ubuntus_fabric_manager() -> None:
    found = plan(ubuntu("generic", pci=pci((H100, "0302"), (SWITCH, NVSWITCH))))
    assert found["problems"] == []
    assert "nvidia-fabricmanager-580" in found["packages"]
    assert found["services"] == ["nvidia-persistenced", "nvidia-fabricmanager"]
    assert found["runtime"]["fabric_manager"] == found["driver"]["version"]


CUSTOM = ubuntu(release="6.12.1-custom")
CUSTOM["kernel"]["image_packages"] = {}
BUILT = ubuntu(
    "generic",
    packages={"nvidia-dkms-580-server-open": "1", "nvidia-utils-580-server": "1"},
    dkms=[{"module": "nvidia", "version": "1", "kernel": None, "architecture": None, "state": "added"}],
)


@each(
    (CUSTOM, {}, ("kernel 6.12.1-custom is not from Ubuntu's packages", REMEDY)),
    (
        ubuntu(release="6.8.0-1019-oem"),
        {},
        ("not known for kernels like 6.8.0-1019-oem, only for generic, lowlatency", REMEDY),
    ),
    (BUILT, {}, ("nvidia-dkms-580-server-open builds modules that come before Canonical's",)),
    (ubuntu("generic", version="25.10"), {}, ("Ubuntu 25.10 is not supported",)),
    # Variables that are for Debian.
    (ubuntu("generic"), {"distro_driver": "580.173.02-0ubuntu0.24.04.1"}, ("_distro_driver", "leave")),
    (
        ubuntu("generic"),
        {"distro_mirror_url": "http://mirror.example/ubuntu"},
        ("_distro_mirror_url", "leave"),
    ),
)
def test_what_ubuntu_cannot_do_is_refused_with_the_remedy(
    facts: dict[str, Any], wishes: dict[str, str], says: tuple[str, ...]
) -> None:
    (problem,) = plan(facts, **{f"nvidia_stack_{name}": wish for name, wish in wishes.items()})["problems"]
    assert_says(problem, *says)


@pytest.mark.parametrize(
    ("version", "release", "known"),
    [
        ("24.04", "6.8.0-85-lowlatency", True),
        ("26.04", "7.0.0-14-lowlatency", False),
        ("26.04", "7.0.0-34-generic", True),
        ("26.04", "7.0.0-34-generic-64k", True),
        ("26.04", "7.0.0-2018-nvidia-bos-64k", True),
        ("26.04", "7.0.0-1007-azure-fde", True),
        ("26.04", "7.0.0-1014-oem", False),
        ("24.04", "6.17.0-1030-oem", False),
        ("26.04", "7.0.0-1009-raspi", False),
        ("26.04", "7.0.0-14-realtime", False),
    ],
)
def test_kernels_of_a_release_are_those_that_canonical_builds_modules_for(
    version: str, release: str, *, known: bool
) -> None:
    found = plan(ubuntu(version=version, release=release, secure_boot="enabled"))
    assert (found["problems"] == []) is known
    if known:
        assert f"linux-modules-nvidia-580-server-open-{release}" in found["packages"]
    else:
        assert all(REMEDY in text and release in text for text in found["problems"])


def test_volta_on_2604_gets_what_nvidias_repository_there_does_not_have() -> None:
    facts = ubuntu("generic", version="26.04", release="7.0.0-34-generic", pci=gpus(V100), pythons=["3.14"])
    refused = plan(facts, nvidia_stack_source="nvidia")["problems"]
    assert any("nvidia_stack_source: distro has another driver" in text for text in refused)
    found = plan(facts)
    assert (found["problems"], found["driver"]["branch"], found["driver"]["modules"]) == (
        [],
        580,
        "proprietary",
    )
    assert (found["payload"]["torch"], found["payload"]["python"]) == ("2.10.0", "3.14")


def test_version_that_ubuntus_mirror_offers_by_now_is_the_planned_one() -> None:
    resolved = {"nvidia-headless-no-dkms-580-server-open": "580.178.04-0ubuntu0.24.04.1"}
    switches = pci((H100, "0302"), (SWITCH, NVSWITCH))
    found = NodePlan.from_dict(plan(ubuntu("generic", pci=switches)))
    moved = with_preview(found, Preview.from_dict({"resolved": resolved, "transaction": {}}))
    assert moved.driver
    assert moved.driver.version == moved.runtime.fabric_manager == "580.178.04"


@each((V100, "2.7.1"), (L4, "2.11.0"), (H100, "2.11.0"), (B200, "2.11.0"))
def test_torch_has_kernels_for_every_gpu_that_ubuntus_driver_drives(device_id: str, torch: str) -> None:
    found = plan(ubuntu("generic", pci=gpus(device_id)))
    assert (found["problems"], found["payload"]["torch"]) == ([], torch)


@each("nvidia-open", "nvidia-open-580", "cuda-drivers-580", "libnvidia-compute", "nvidia-dkms-open")
def test_names_of_nvidias_repository_tell_its_driver_without_a_record_of_dkms(package: str) -> None:
    facts = ubuntu("generic", packages={package: "590.48.01-1ubuntu1"})
    (problem,) = plan(facts)["problems"]
    assert_says(problem, "cannot be mixed", package)
    own = plan(facts, nvidia_stack_source="nvidia")["problems"]
    assert not any("cannot be mixed" in text for text in own)


def test_modules_of_canonical_are_no_kernel() -> None:
    install = [{"name": "linux-modules-nvidia-580-server-open-6.8.0-134-generic"}]
    preview = Preview.from_dict({"resolved": {}, "transaction": {"install": install}})
    assert preview.transaction
    assert preview.transaction.kernels == []


@each(("12", "2335"), ("12", "233b"), ("12", "28b0"), ("13", "233b"), ("13", "230e"))
def test_gpu_that_debians_branch_does_not_list_is_refused(release: str, device_id: str) -> None:
    """Their architecture is older than the branch, they are not."""
    facts = TRIXIE if release == "13" else {}
    (problem,) = plan({**facts, "pci": gpus(device_id)})["problems"]
    assert f"10de:{device_id}" in problem
    assert REMEDY in problem


@each(V100, L4, H100, "20b5", "1eb8", "15f8", "17fd")
@each(({},), (TRIXIE,))
def test_gpus_that_debians_branches_drive_get_a_plan(facts: dict[str, Any], device_id: str) -> None:
    assert plan({**facts, "pci": gpus(device_id)})["problems"] == []
    assert plan({**TRIXIE, "pci": gpus("2335")})["problems"] == []  # H200 works with 550


@pytest.mark.parametrize(
    ("facts", "running", "refused"),
    [
        ({}, "6.1.0-56-amd64", False),
        ({}, "6.12.95+bpo-amd64", False),
        (TRIXIE, "6.12.117+deb13-amd64", False),
        (TRIXIE, "7.2.12+deb13-amd64", True),
    ],
)
def test_kernel_that_debians_modules_are_not_known_to_build_for_is_refused(
    facts: dict[str, Any], running: str, *, refused: bool
) -> None:
    kernel = node()["kernel"] | {"release": running}
    assert bool(plan({**facts, "kernel": kernel})["problems"]) is refused
    installed = [{"release": running, "headers_present": True}]
    problems = plan({**facts, "kernels": installed})["problems"]
    assert [running in text and REMEDY in text for text in problems] == [True] * refused


def test_kernel_of_others_that_debians_modules_may_not_build_for_is_a_warning() -> None:
    found = plan({"kernel": node()["kernel"] | {"release": "6.18.44"}})
    assert found["problems"] == []
    assert any("6.12" in warning and "6.18.44" in warning for warning in found["warnings"])
