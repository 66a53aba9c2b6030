"""The plan of a node, from the real tables: what is installed, and every reason to refuse."""

import copy
from typing import Any

from temper.plan.facts import NodeFacts
from temper.plan.machine import GIB, clock_warnings
from temper.plan.model import Target
from tests.unit.each import each
from tests.unit.planning_nodes import (
    AUDIO,
    B200,
    DISPLAY,
    GPU,
    H100,
    L4,
    NVSWITCH,
    P100,
    SWITCH,
    TABLES,
    V100,
    assert_says,
    gpus,
    node,
    nvidia,
    plan,
    problem,
    settled,
    system,
)
from tools.bare_node import pci

# ---------------------------------------------------------------- what is installed


def test_a_node_with_one_l4() -> None:
    found = plan()
    assert (found["problems"], found["warnings"]) == ([], [])
    assert found["gpus"] == [{"model": "l4", "name": "L4", "architecture": "ada", "count": 1}]
    assert found["stack"] == TABLES["nvidia_default_stacks"][0]
    assert found["driver"] == {
        "version": "580.178.04",
        "package_version": "580.178.04-1",
        "branch": 580,
        "modules": "open",
        "end_of_life": "2028-06",
        "dkms": "nvidia",
    }
    assert found["packages"] == {
        "nvidia-driver-cuda": "580.178.04-1",
        "nvidia-kernel-open-dkms": "580.178.04-1",
        "nvidia-persistenced": "580.178.04-1",
        "nvidia-modprobe": "580.178.04-1",
        "cuda-toolkit-13-0": "13.0.2-1",
        "cudnn9-cuda-13": "9.19.0.56-1",
        "libnccl2": "2.28.9-1+cuda13.0",
        "libnccl-dev": "2.28.9-1+cuda13.0",
        "nvidia-container-toolkit": "1.20.0-1",
        "nvidia-container-toolkit-base": "1.20.0-1",
        "libnvidia-container-tools": "1.20.0-1",
        "libnvidia-container1": "1.20.0-1",
    }
    assert found["services"] == ["nvidia-persistenced"]
    assert found["fabric"] == "none"
    assert not found["settled"]


def test_nvswitches_bring_the_fabric_manager_at_the_drivers_version() -> None:
    found = plan(node(pci=pci(*[(H100, GPU)] * 8, *[(SWITCH, NVSWITCH)] * 4)))
    assert found["problems"] == []
    assert found["fabric"] == "nvswitch"
    assert found["gpus"][0]["count"] == 8
    assert found["packages"]["nvidia-fabricmanager"] == found["packages"]["nvidia-driver-cuda"]
    assert found["packages"]["libnvidia-nscq"] == found["packages"]["nvidia-driver-cuda"]
    assert found["services"] == ["nvidia-persistenced", "nvidia-fabricmanager"]


def test_a_display_controller_is_a_gpu_and_its_audio_function_is_none() -> None:
    found = plan(node(pci=pci(("2684", DISPLAY), ("22ba", AUDIO))))
    assert [gpu["count"] for gpu in found["gpus"]] == [1]
    assert found["unknown_gpus"] == []


def test_a_stack_may_be_chosen() -> None:
    found = plan(nvidia_stack_name="r595-cuda13.2")
    assert found["driver"]["version"] == "595.91.07"
    assert found["packages"]["cuda-toolkit-13-2"] == "13.2.2-1"


def test_what_packages_pull_in_is_pinned_to_the_same_versions() -> None:
    pins = {pin["packages"]: pin["version"] for pin in plan()["pins"]}
    assert pins == {
        "*nvidia* libcuda1 libcudadebugger1 libnvcuvid1 libnvoptix1 libnvsdm": "580.178.04-1",
        "cudnn9-* libcudnn9-*": "9.19.0.56-1",
        "libnccl*": "2.28.9-1+cuda13.0",
    }


def test_a_node_is_settled_that_has_every_package_at_its_version() -> None:
    packages = plan()["packages"] | {"libnccl2": "2.27.5-1+cuda12.9"}
    assert (plan(settled())["settled"], plan(node(packages=packages))["settled"]) == (True, False)


@each((True, ["amd64"]), (False, ["6.1.0-37-amd64", "amd64"]))
def test_headers_are_installed_where_they_are_missing(present: bool, headers: list[str]) -> None:
    kernel = node()["kernel"] | {"headers_present": present}
    found = plan(node(kernel=kernel))
    assert found["present"] == {f"linux-headers-{name}": "" for name in headers}
    assert found["problems"] == []


@each(([H100], True, True), ([V100], True, False), ([P100], False, False), ([L4, V100], True, False))
def test_clocks_are_locked_where_all_gpus_can(devices: list[str], graphics: bool, memory: bool) -> None:
    found = plan(node(pci=gpus(*devices)))["locked_clocks"]
    assert found == {"graphics": graphics, "memory": memory}


# ---------------------------------------------------------------- GPUs and stacks


REMEDY = "set nvidia_stack_name: r580-cuda12.9"
VOLTA, BLACKWELL = "Tesla V100 SXM2 32 GB", "B200 SXM"
AUTO = "nvidia_stack_kernel_modules: auto"
NO_HEADERS = node()["kernel"] | {"headers_present": False, "headers_installable": False}
NAMELESS = dict.fromkeys(("id", "version_id", "codename", "pretty_name"), "")
BUSY = nvidia(compute_processes=[f"{pid} python3" for pid in range(1, 6)], loaded_version="570.211.01")


@each(
    ({"pci": gpus(V100)}, {"name": "r595-cuda13.2"}, (f"{VOLTA} (volta)", "580 or older", "r595", REMEDY)),
    ({"pci": gpus(V100)}, {"name": "r580-cuda13.0"}, (f"{VOLTA} (volta)", "12.9 or older", "13.0", REMEDY)),
    # The remedy fits all GPUs.
    ({"pci": gpus(V100, L4)}, {"name": "r595-cuda13.2"}, (f"{VOLTA} (volta)", "580 or older", REMEDY)),
    ({"pci": gpus(V100, B200)}, {"name": "r580-cuda12.9"}, (VOLTA, BLACKWELL, "move one of them to another")),
    ({"pci": gpus(V100)}, {"name": "r580-cuda12.9", "kernel_modules": "open"}, (VOLTA, "open kernel", AUTO)),
    ({"pci": gpus(B200)}, {"kernel_modules": "proprietary"}, (BLACKWELL, "only with open", AUTO)),
    ({}, {"name": "r999"}, ("nvidia_stack_name", "r999", *TABLES["nvidia_stacks"])),
    ({"pci": gpus("ffff", "ffff")}, {}, ("10de:ffff", "gpu_models.yml", "preflight_unknown_gpu_ok: true")),
    ({"pci": pci((SWITCH, NVSWITCH))}, {}, ("no NVIDIA GPU on the PCI bus; take the node out",)),
    ({"os": NAMELESS}, {}, ("operating system unknown is not supported",)),
    ({"architecture": "ppc64le"}, {}, ("ppc64le", "x86_64", "aarch64")),
    ({"kernel": NO_HEADERS}, {}, ("headers", "6.1.0-37-amd64", "apt-get dist-upgrade", "reboot")),
    ({"nvidia": BUSY}, {}, ("5 process(es)", "3 python3", "drain", "nvidia_stack_busy_ok: true")),
)
def test_a_refusal_says_what_is_wrong_with_what_and_what_to_do(
    changes: dict[str, Any], wishes: dict[str, str], says: tuple[str, ...]
) -> None:
    values: dict[str, Any] = {f"nvidia_stack_{name}": wish for name, wish in wishes.items()}
    assert_says(problem(node(**changes), **values), *says)


def test_an_unknown_system_is_refused_and_nothing_is_planned() -> None:
    found = plan(system("debian", "11"))
    (text,) = found["problems"]
    assert_says(text, "debian 11", *TABLES["nvidia_distributions"], "rocky for rhel", "almalinux for rhel")
    assert (found["driver"], found["packages"], found["repositories"]) == (None, {}, [])


def test_blackwell_needs_a_driver_that_knows_it() -> None:
    data = copy.deepcopy(TABLES)
    data["nvidia_stacks"]["r550"] = TABLES["nvidia_stacks"]["r580-cuda12.9"] | {"driver": "550.163.01"}
    found = plan(node(pci=gpus(B200)), data=data, nvidia_stack_name="r550")["problems"]
    assert_says(found[0], "B200 SXM (blackwell)", "570 or newer", "r550 has 550", "r580-cuda13.0")


def test_where_no_stack_fits_the_refusal_says_so() -> None:
    data = copy.deepcopy(TABLES)
    data["nvidia_architectures"]["ada"]["last_branch"] = 560
    assert plan(data=data)["problems"][0].endswith(
        "no stack in data/stacks.yml fits all GPUs of this node on this system; "
        "nvidia_stack_source: distro has another driver"
    )


def test_where_the_distribution_has_no_driver_either_the_refusal_does_not_name_it() -> None:
    data = copy.deepcopy(TABLES)
    data["nvidia_architectures"]["ada"]["first_branch"] = 620
    text = plan(data=data)["problems"][0]
    assert_says(text, "no stack in data/stacks.yml fits", "another system", "CONTRIBUTING.md")
    assert "distro" not in text


def test_an_unknown_gpu_may_be_allowed() -> None:
    found = plan(node(pci=gpus("ffff", "ffff", L4)), preflight_unknown_gpu_ok=True)
    assert found["problems"] == []
    assert_says(found["warnings"][0], "10de:ffff", "no reference")
    assert found["unknown_gpus"] == ["ffff", "ffff"]
    assert found["driver"]["modules"] == "open"


# ---------------------------------------------------------------- kernel modules


def test_proprietary_modules_may_be_chosen_where_both_work() -> None:
    found = plan(nvidia_stack_kernel_modules="proprietary")
    assert (found["problems"], found["driver"]["modules"]) == ([], "proprietary")


def test_old_open_modules_do_not_compile() -> None:
    data = copy.deepcopy(TABLES)
    data["nvidia_stacks"]["old"] = TABLES["nvidia_stacks"]["r580-cuda13.0"] | {"driver": "580.95.05"}
    assert_says(problem(data=data, nvidia_stack_name="old"), "580.95.05", "compile", "580.126.09 or newer")
    assert (
        plan(data=data, nvidia_stack_name="old", nvidia_stack_kernel_modules="proprietary")["problems"] == []
    )


def test_the_first_open_modules_that_compile_are_good_enough() -> None:
    data = copy.deepcopy(TABLES)
    data["nvidia_stacks"]["old"] = TABLES["nvidia_stacks"]["r580-cuda13.0"] | {"driver": "580.126.09"}
    assert plan(data=data, nvidia_stack_name="old")["problems"] == []


def test_the_last_branch_with_proprietary_modules_has_a_successor_without() -> None:
    data = copy.deepcopy(TABLES)
    for name in ("615", "620"):
        data["nvidia_driver_branches"][name] = TABLES["nvidia_driver_branches"]["595"]
        data["nvidia_stacks"][name] = TABLES["nvidia_stacks"]["r595-cuda13.2"] | {"driver": f"{name}.10.01"}
    assert (
        plan(data=data, nvidia_stack_name="615", nvidia_stack_kernel_modules="proprietary")["problems"] == []
    )
    text = problem(data=data, nvidia_stack_name="620", nvidia_stack_kernel_modules="proprietary")
    assert_says(text, "620", "no proprietary kernel modules", "nvidia_stack_kernel_modules: auto")


# ---------------------------------------------------------------- the machine


def disk(path: str, free_gib: float) -> dict[str, Any]:
    return {"path": path, "total_bytes": 100 * GIB, "free_bytes": int(free_gib * GIB)}


def read_only(path: str) -> dict[str, Any]:
    return {"disks": [disk("/", 50), disk(path, 50) | {"read_only": True}]}


@each(
    (read_only("/var"), "disk-read-only", {"path": "/var"}),
    ({"being_set_up": True}, "first-boot", {}),
)
def test_a_node_that_cannot_be_changed_now_is_refused(
    changes: dict[str, Any], code: str, facts: dict[str, str]
) -> None:
    for made in (plan(node(**changes)), plan(settled(**changes))):
        assert [(one["code"], one["facts"]) for one in made["refusals"]] == [(code, facts)]


@each(
    (300, ""),
    (-300, ""),
    (2 * 3600, "2 h ahead of"),
    (-3 * 86400 - 3600, "3 d 1 h behind"),
)
def test_a_clock_that_is_wrong_is_named(ahead_s: float, words: str) -> None:
    facts = NodeFacts.from_dict(node(clock_s=1.7e9 + ahead_s))
    found = clock_warnings(facts, Target(now_s=1.7e9))
    assert [words in one for one in found] == ([True] if words else [])
    # Nobody compares.
    assert clock_warnings(facts, Target()) == []


def test_a_disk_that_a_hook_of_apts_makes_writable_stops_nothing() -> None:
    assert plan(node(**read_only("/boot")))["refusals"] == []


def test_each_disk_that_is_full_is_named() -> None:
    facts = node(disks=[disk("/", 14.96), disk("/usr", 15), disk("/var", 3), disk("/boot", 0.1)])
    assert plan(facts)["problems"] == [
        f"{path} has {free} GiB free, the stack needs 15 GiB there; "
        "free space or lower preflight_minimum_free_gib"
        for path, free in (("/", "15.0"), ("/var", "3.0"))
    ]


@each(
    (node(disks=[disk("/", 1)]), {"preflight_minimum_free_gib": 1}),
    (settled(disks=[disk("/", 1)]), {}),
    (node(nvidia=BUSY), {"nvidia_stack_busy_ok": True}),
    (settled(nvidia=BUSY), {}),
    (node(secure_boot="enabled"), {"preflight_secure_boot_ok": True}),
)
def test_what_is_allowed_or_changes_nothing_is_no_problem(
    facts: dict[str, Any], values: dict[str, Any]
) -> None:
    assert plan(facts, **values)["problems"] == []


def test_of_many_processes_some_are_named() -> None:
    assert "4 python3" not in problem(node(nvidia=BUSY))


def test_all_problems_are_found_at_once() -> None:
    facts = node(
        pci=gpus(V100, "ffff"), kernel=NO_HEADERS, secure_boot="enabled", disks=[disk("/", 1)], nvidia=BUSY
    )
    beginnings = [
        "GPU with PCI id 10de:ffff",
        "Tesla V100 SXM2 32 GB (volta) works with CUDA 12.9",
        "Secure Boot",
        "the headers",
        "/ has 1.0 GiB",
        "the driver would change",
    ]
    found = plan(facts, nvidia_stack_name="r580-cuda13.0")["problems"]
    pairs = zip(found, beginnings, strict=True)
    assert [text for text, beginning in pairs if not text.startswith(beginning)] == []


# ---------------------------------------------------------------- repositories


def test_repositories_are_nvidias() -> None:
    cuda, toolkit = plan()["repositories"]
    base = "https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64/"
    assert cuda == {
        "name": "nvidia-cuda",
        "kind": "apt",
        "uri": base,
        "suite": "/",
        "key_url": f"{base}3bf863cc.pub",
        "fingerprints": ["EB693B3035CD5710E231E123A4B469963BF863CC"],
    }
    assert toolkit == {
        "name": "nvidia-container-toolkit",
        "kind": "apt",
        "uri": "https://nvidia.github.io/libnvidia-container/stable/deb/amd64/",
        "suite": "/",
        "key_url": "https://nvidia.github.io/libnvidia-container/gpgkey",
        "fingerprints": ["C95B321B61E88C1809C4F759DDCAE044F796ECB0"],
    }


def test_repositories_follow_release_and_architecture() -> None:
    os = node()["os"] | {"version_id": "13"}
    cuda, toolkit = plan(node(os=os, architecture="aarch64"))["repositories"]
    assert cuda["uri"].endswith("/debian13/sbsa/")
    assert cuda["key_url"].endswith("/debian13/sbsa/8793F200.pub")
    assert toolkit["uri"].endswith("/stable/deb/arm64/")


def test_a_mirror_with_a_key_of_its_own() -> None:
    cuda, toolkit = plan(
        nvidia_stack_cuda_repository_url="http://mirror/cuda/",
        nvidia_stack_cuda_key_url="http://mirror/key",
        nvidia_stack_cuda_key_fingerprints=["A" * 40],
        nvidia_stack_container_repository_url="http://mirror/toolkit/",
        nvidia_stack_container_key_fingerprints=["B" * 40],
    )["repositories"]
    assert (cuda["uri"], cuda["key_url"], cuda["fingerprints"]) == (
        "http://mirror/cuda/debian12/x86_64/",
        "http://mirror/key",
        ["A" * 40],
    )
    assert (toolkit["uri"], toolkit["key_url"], toolkit["fingerprints"]) == (
        "http://mirror/toolkit/stable/deb/amd64/",
        "http://mirror/toolkit/gpgkey",
        ["B" * 40],
    )
