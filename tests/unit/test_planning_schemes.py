"""Package names, versions and repositories of each distribution."""

from fnmatch import fnmatch
from typing import Any

from tests.unit.each import each
from tests.unit.planning_nodes import (
    GPU,
    H100,
    L4,
    NVSWITCH,
    SWITCH,
    V100,
    assert_says,
    gpus,
    node,
    nvidia,
    plan,
    problem,
    system,
)
from tools.bare_node import pci

KEY = ["A" * 40]


def kernel(release: str, present: bool = True) -> dict[str, Any]:
    return {**node()["kernel"], "release": release, "headers_present": present}


def driver(found: dict[str, Any]) -> set[str]:
    """The packages at the driver's version."""
    return {
        name for name, version in found["packages"].items() if version == found["driver"]["package_version"]
    }


# ---------------------------------------------------------------- Ubuntu


@each("22.04", "24.04")
def test_up_to_580_ubuntus_names_end_in_the_branch(release: str) -> None:
    found = plan(system("ubuntu", release))
    assert found["problems"] == []
    assert (found["package_manager"], found["driver"]["package_version"]) == ("apt", "580.178.04-1ubuntu1")
    assert driver(found) == {
        "libnvidia-compute-580",
        "nvidia-dkms-580-open",
        "nvidia-persistenced",
        "nvidia-modprobe",
    }


def test_proprietary_modules_have_a_package_or_a_stream_of_their_own() -> None:
    found = plan(system("ubuntu", "22.04", pci=gpus(V100)))["packages"]
    assert ("nvidia-dkms-580" in found, "nvidia-dkms-580-open" in found) == (True, False)
    found = plan(system("rocky", "9.4", pci=gpus(V100)))
    assert found["module_streams"] == [{"name": "nvidia-driver", "stream": "580-dkms"}]
    assert "kmod-nvidia-latest-dkms" in found["packages"]


def test_from_590_ubuntus_names_are_plain_and_a_package_pins_them() -> None:
    found = plan(system("ubuntu", "24.04"), nvidia_stack_name="r595-cuda13.2")
    assert found["problems"] == []
    assert driver(found) == {
        "libnvidia-compute",
        "nvidia-dkms-open",
        "nvidia-persistenced",
        "nvidia-modprobe",
    }
    assert found["packages"]["nvidia-driver-pinning-595.91.07"] == ""


def test_what_ubuntus_packages_pull_in_is_pinned() -> None:
    pins = plan(system("ubuntu", "24.04"))["pins"]
    assert pins[0]["version"] == "580.178.04-1ubuntu1"
    assert fnmatch("libnvidia-cfg1-580", pins[0]["packages"].split()[0])


@each(
    (["linux-image-5.15.0-91-generic", "linux-image-generic"], ["generic"]),
    (["linux-image-6.8.0-45-generic", "linux-image-generic-hwe-22.04"], ["generic-hwe-22.04"]),
    (["linux-image-6.8.0-45-generic-64k", "linux-image-generic-64k"], ["generic-64k"]),
    (["linux-image-aws-lts-22.04", "linux-image-5.15.0-1051-aws"], ["aws-lts-22.04"]),
    (["linux-image-oem-24.04b", "linux-image-6.11.0-1010-oem"], ["oem-24.04b"]),
    (["linux-image-nvidia-64k-hwe-24.04"], ["nvidia-64k-hwe-24.04"]),
    (["linux-image-generic", "linux-image-generic-hwe-24.04"], ["generic", "generic-hwe-24.04"]),
    (["linux-image-virtual", "linux-image-extra-virtual"], ["virtual"]),
    (["linux-image-unsigned-6.8.0-45-generic", "linux-image-6.8.0-45-generic"], []),
    ([], []),
)
def test_headers_follow_the_packages_that_bring_ubuntus_kernels(images: list[str], metas: list[str]) -> None:
    running = kernel("6.8.0-45-generic") | {"image_packages": dict.fromkeys(images, "6")}
    found = plan(system("ubuntu", "24.04", kernel=running))["present"]
    assert found == {f"linux-headers-{meta}": "" for meta in metas}


@each(("22.04", {"gcc-12"}), ("24.04", set()))
def test_the_compiler_of_later_kernels_comes_on_ubuntu_22_04(release: str, compilers: set[str]) -> None:
    found = plan(system("ubuntu", release))["present"]
    assert {name for name in found if name.startswith("gcc")} == compilers


@each(
    (node(), "6.1.0-37-rt-amd64"),
    (system("ubuntu", "24.04"), "6.8.1-1015-realtime"),
    (system("debian", "13"), "6.12.30-rt11"),
)
def test_no_module_is_built_for_a_real_time_kernel_of_apts_distributions(
    facts: dict[str, Any], release: str
) -> None:
    running = facts | {"kernel": kernel(release)}
    assert_says(problem(running), release, "PREEMPT_RT", "boot a kernel of the distribution's")
    # Somebody has got it to build.
    module = {"version": "580.178.04", "signer": None, "signing_key": None}
    assert plan(running | {"nvidia": nvidia(modules={release: module})})["problems"] == []


def test_nvidias_rpms_build_for_real_time_kernels() -> None:
    assert plan(system("rhel", "9.6", kernel=kernel("5.14.0-611.el9_7.x86_64+rt")))["problems"] == []


def test_headers_of_ubuntus_running_kernel_have_its_release() -> None:
    running = kernel("6.8.0-1015-nvidia-64k", present=False) | {
        "image_packages": {"linux-image-nvidia-64k": "6"}
    }
    found = plan(system("ubuntu", "24.04", kernel=running))["present"]
    assert found == {"linux-headers-nvidia-64k": "", "linux-headers-6.8.0-1015-nvidia-64k": ""}


@each(("debian", "/var/lib/dkms/mok.pub"), ("ubuntu", "MOK.der"))
def test_the_key_of_dkms_lies_where_the_distribution_has_it(name: str, path: str) -> None:
    version = {"debian": "12", "ubuntu": "24.04"}[name]
    assert_says(problem(system(name, version, secure_boot="enabled")), f"{path}, the same way")


@each(
    ("nvidia-driver-580-server-open", None, True),
    ("nvidia-utils-535-server", None, False),
    ("libnvidia-compute-595-server", None, False),
    ("linux-modules-nvidia-580-server-open-aws", None, True),
    ("linux-modules-nvidia-580-server-open-6.8.0-134-generic", None, True),
    ("linux-modules-nvidia-595-server-7.0.0-134-generic", None, False),
    # Of a DGX Spark: the driver with a desktop, whose packages are others than those for servers.
    ("linux-modules-nvidia-580-open-nvidia-hwe-24.04", None, False),
    ("libcuda1", "nvidia-srv", True),
)
def test_ubuntus_own_driver_is_removed_first_or_kept_where_it_is_of_the_branch_that_temper_plans(
    package: str, module: str | None, kept: bool
) -> None:
    records = [{"module": module, "version": "535", "kernel": None, "architecture": None, "state": "added"}]
    facts = system("ubuntu", "26.04", packages={package: "1"}, dkms=records if module else [])
    text = problem(facts)
    assert_says(text, "the distribution's packages", "rain the node", "apt-get purge", package)
    assert ("Keep the driver with nvidia_stack_source: distro" in text) is kept


def test_ubuntus_own_driver_can_be_kept_where_a_table_knows_it() -> None:
    own = dict.fromkeys(
        ("nvidia-utils-580-server", "libnvidia-compute-580-server", "nvidia-fabricmanager-580"), "1"
    )
    text = problem(system("ubuntu", "24.04", packages=own))
    assert_says(text, "Keep the driver with nvidia_stack_source: distro", "apt-get purge")


@each("nvidia-dkms-580-open", "nvidia-utils-580", "nvidia-container-toolkit")
def test_nvidias_packages_for_ubuntu_are_no_driver_of_ubuntu(package: str) -> None:
    assert plan(system("ubuntu", "24.04", packages={package: "1"}))["problems"] == []


@each(
    ("6.1.0-37-amd64", "linux-headers-amd64"),
    ("6.1.0-37-cloud-amd64", "linux-headers-cloud-amd64"),
    ("6.12.117+deb13-amd64", "linux-headers-amd64"),
    ("6.12.117+deb13-arm64", "linux-headers-arm64"),
    ("6.12.117+deb13-arm64-16k", "linux-headers-arm64-16k"),
    ("6.17.2-1-pve", None),
    ("6.18.44", None),
)
def test_headers_follow_debians_kernel(kernel_release: str, meta: str | None) -> None:
    assert plan(node(kernel=kernel(kernel_release)))["present"] == ({meta: ""} if meta else {})


@each(
    (
        "6.12.95+deb12-amd64",
        {"linux-image-amd64": "6.12.95-1~bpo12+1"},
        {"linux-headers-amd64": "6.12.95-1~bpo12+1"},
    ),
    (
        "7.2.12+deb13-amd64",
        {"linux-image-amd64": "7.2.12-1~bpo13+1"},
        {"linux-headers-amd64": "7.2.12-1~bpo13+1"},
    ),
    ("6.12.117+deb13-amd64", {"linux-image-6.12.117+deb13-amd64": "6.12.117-1"}, {"linux-headers-amd64": ""}),
    ("6.12.30+bpo-amd64", {}, {}),
    ("6.12.95+deb12-amd64", {"linux-image-6.12.95+deb12-amd64": "6.12.95-1~bpo12+1"}, {}),
    ("7.2.12+deb13-amd64", {"linux-image-7.2.12+deb13-amd64": "7.2.12-1~bpo13+1"}, {}),
    (
        "6.12.95+deb12-amd64",
        {"linux-image-6.12.95+deb12-amd64": "6.12.95-1~bpo12+1", "linux-image-amd64": "6.1.176-1"},
        {"linux-headers-amd64": ""},
    ),
)
def test_headers_of_backports_follow_kernels_of_backports(
    kernel_release: str, images: dict[str, str], wanted: dict[str, str]
) -> None:
    """Apt by itself takes the release's own headers, which are of another kernel."""
    running = kernel(kernel_release) | {"image_packages": images}
    assert plan(node(kernel=running))["present"] == wanted


# ---------------------------------------------------------------- Enterprise Linux


@each("rhel", "rocky", "almalinux")
@each(("8.10", 8), ("9.6", 9))
def test_enterprise_linux_8_and_9_have_module_streams(release: str, major: int, name: str) -> None:
    found = plan(system(name, release))
    assert found["problems"] == []
    assert found["package_manager"] == "dnf"
    assert found["pins"][0] == {
        "packages": "nvidia-* libnvidia-* kmod-nvidia-*",
        "version": f"580.178.04-1.el{major}",
    }
    assert found["driver"]["package_version"] == f"580.178.04-1.el{major}"
    assert driver(found) == {
        "nvidia-driver-cuda",
        "kmod-nvidia-open-dkms",
        "nvidia-persistenced",
        "nvidia-modprobe",
    }
    assert found["module_streams"] == [{"name": "nvidia-driver", "stream": "580-open"}]
    assert found["packages"]["libnccl"] == "2.28.9-1+cuda13.0"
    assert found["packages"]["cudnn9-cuda-13"] == "9.19.0.56-1"
    assert found["packages"]["libcudnn9-cuda-13"] == "9.19.0.56-1"


def test_enterprise_linux_10_has_no_streams() -> None:
    found = plan(system("rhel", "10.1"), nvidia_stack_cuda_key_fingerprints=KEY)
    assert (found["problems"], found["module_streams"]) == ([], [])
    assert found["driver"]["package_version"] == "580.178.04-1.el10"


def test_enterprise_linux_10_needs_the_key_from_the_operator() -> None:
    text = problem(system("rhel", "10.1"))
    assert_says(text, "rhel-10", "CDF6BA43.pub", "nvidia_stack_cuda_key_fingerprints: [40 hexadecimal digits")


@each(
    ("8.10", "4.18.0-553.el8_10.x86_64", "kernel-devel", "4.18.0-553.el8_10"),
    ("8.10", "4.18.0-553.rt7.342.el8_10.x86_64", "kernel-rt-devel", "4.18.0-553.rt7.342.el8_10"),
    ("9.6", "5.14.0-611.el9.x86_64", "kernel-devel", "5.14.0-611.el9"),
    ("9.6", "5.14.0-611.13.1.el9_7.aarch64+64k", "kernel-64k-devel", "5.14.0-611.13.1.el9_7"),
    ("9.6", "5.14.0-611.el9_7.x86_64+rt", "kernel-rt-devel", "5.14.0-611.el9_7"),
    ("9.6", "5.14.0-611.el9_7.x86_64+rt-debug", "kernel-rt-debug-devel", "5.14.0-611.el9_7"),
)
def test_headers_of_enterprise_linux_have_a_name_and_the_kernels_version(
    release: str, running: str, name: str, version: str
) -> None:
    following = name if release.startswith("8") else f"{name}-matched"
    found = plan(system("rhel", release, kernel=kernel(running)))["present"]
    assert found == {following: "", "kernel-headers": "", "gcc-c++": ""}
    found = plan(system("rhel", release, kernel=kernel(running, present=False)))["present"]
    assert found == {following: "", "kernel-headers": "", "gcc-c++": "", name: version}


@each("6.12.1-1.el9.elrepo.x86_64", "6.12.58")
def test_no_package_of_enterprise_linux_follows_a_foreign_kernel(running: str) -> None:
    found = plan(system("rhel", "9.6", kernel=kernel(running)))
    assert (found["present"], found["problems"]) == ({"gcc-c++": ""}, [])


def test_enterprise_linux_needs_a_cxx_compiler_for_open_modules_alone() -> None:
    assert "gcc-c++" in plan(system("rhel", "9.6", pci=gpus(H100)))["present"]
    assert "gcc-c++" not in plan(system("rhel", "9.6", pci=gpus(V100)))["present"]


@each(
    (system("rocky", "9.7"), "6.18.3-1.el9.elrepo.x86_64"),
    (node(), "6.17.2-1-pve"),
    (system("ubuntu", "24.04"), "6.18.1-custom"),
)
def test_headers_of_a_foreign_kernel_are_named_by_nobody_and_have_to_be_there(
    facts: dict[str, Any], running: str
) -> None:
    missing = kernel(running, present=False) | {"headers_installable": False}
    text = problem(facts | {"kernel": missing})
    assert_says(text, f"kernel {running} is not", f"/lib/modules/{running}/build", "install its headers")
    assert plan(facts | {"kernel": kernel(running)})["problems"] == []


def test_headers_of_enterprise_linux_are_left_to_the_simulation() -> None:
    running = kernel("5.14.0-611.el9.x86_64", present=False) | {"headers_installable": False}
    assert plan(system("rhel", "9.6", kernel=running))["problems"] == []


def test_repositories_of_rpm_packages() -> None:
    cuda, toolkit = plan(system("rhel", "9.6", architecture="aarch64"))["repositories"]
    base = "https://developer.download.nvidia.com/compute/cuda/repos/rhel9/sbsa/"
    assert cuda == {
        "name": "nvidia-cuda",
        "kind": "dnf",
        "uri": base,
        "key_url": f"{base}D42D0685.pub",
        "fingerprints": ["610C7B14E068A878070DA4E99CD0A493D42D0685"],
        "signed": "packages",
        "exclude": ["mft", "mft-*", "kernel-mft*"],
    }
    assert toolkit["uri"] == "https://nvidia.github.io/libnvidia-container/stable/rpm/aarch64/"
    assert toolkit["signed"] == "metadata"


def test_an_installed_epoch_is_not_another_version() -> None:
    facts = system("rocky", "9.4")
    packages = {name: f"3:{version}" for name, version in plan(facts)["packages"].items()}
    assert plan(facts | {"packages": packages})["settled"]


def test_any_version_will_do_where_the_plan_names_none() -> None:
    facts = system("ubuntu", "24.04")
    wanted = plan(facts, nvidia_stack_name="r595-cuda13.2")["packages"]
    pinning = "nvidia-driver-pinning-595.91.07"
    have = wanted | {pinning: "595.91.07-1ubuntu1"}
    assert plan(facts | {"packages": have}, nvidia_stack_name="r595-cuda13.2")["settled"]
    del have[pinning]
    assert not plan(facts | {"packages": have}, nvidia_stack_name="r595-cuda13.2")["settled"]


# ---------------------------------------------------------------- what all have


@each(("debian", "12"), ("ubuntu", "24.04"), ("rocky", "9.4"))
def test_the_fabric_manager_has_the_drivers_version_everywhere(name: str, release: str) -> None:
    found = plan(system(name, release, pci=pci((H100, GPU), (SWITCH, NVSWITCH))))
    assert {"nvidia-fabricmanager", "libnvidia-nscq"} <= driver(found)


def test_a_driver_that_nobody_has_seen_in_a_repository_is_pointed_out() -> None:
    words = "no published source has shown driver 580.178.04-1.el8"
    mirror: dict[str, Any] = {"nvidia_stack_cuda_repository_url": "http://mirror/cuda"}
    assert any(words in text for text in plan(system("rocky", "8.10", pci=gpus(L4)))["warnings"])
    assert not any(words in text for text in plan(system("rocky", "8.10"), **mirror)["warnings"])


def test_an_nccl_that_a_repository_may_lack_is_the_first_warning() -> None:
    """Volta and older have no newer one than that of CUDA 12.9."""
    facts = system("debian", "12", pci=gpus(V100))
    assert_says(plan(facts)["warnings"][0], "debian-12", "2.27.5-1+cuda12.9", "nvidia_stack_source: distro")
    packages = plan(facts)["packages"]
    others = [
        system("debian", "12", pci=gpus(V100), packages=packages),
        system("debian", "12", pci=gpus(L4)),
        system("ubuntu", "22.04", pci=gpus(V100)),
    ]
    assert not [text for other in others for text in plan(other)["warnings"] if "NCCL" in text]
    assert not plan(facts, nvidia_stack_cuda_repository_url="http://mirror/cuda")["warnings"]


def test_where_the_driver_alone_was_seen_nccl_is_in_doubt() -> None:
    """Of branch 615, NCCL was seen on Enterprise Linux 9, and not on 10, which packages no driver itself."""
    options: dict[str, Any] = {
        "nvidia_stack_name": "r615-cuda13.4",
        "nvidia_stack_cuda_key_fingerprints": KEY,
    }
    found = {name: " ".join(plan(system("rocky", name), **options)["warnings"]) for name in ("9.6", "10.0")}
    assert "NCCL" not in found["9.6"]
    assert_says(found["10.0"], "rhel-10 may lack NCCL 2.32.3-1+cuda13.4", "it, use a mirror")


def test_a_system_that_no_lab_boots_is_pointed_out_until_it_is_installed() -> None:
    facts = system("ubuntu", "22.04")
    found = plan(facts)
    (text,) = found["warnings"]
    assert_says(text, "ubuntu-22.04", "tables", "one node first")
    assert plan(facts | {"packages": found["packages"]})["warnings"] == []
