"""Debian's own driver for real: installed by the playbook, its kernel module compiled for Debian's kernel.

Two nodes with one L4 each, Debian 12 and 13, and Debian's kernel headers. Packages and compiler are Debian's;
what cannot be had in a node is the kernel itself: it is this machine's. So DKMS is told, in its own settings,
to build for Debian's kernels and for no other, and the module is built and installed but never loaded: that
this machine's kernel would boot without it is where the proof ends.

Three compilations of minutes each on two cores: not part of `make lab-test`, but of `make slow-test`.
"""

import json
import os
import re

import pytest

from tests.lab.fleet import Fleet, Run, installed, on_node
from tests.lab.gpu_simulator import profiles
from tests.lab.settings import Lab, Node
from tests.unit.settings.role_plans import item, role_plan

pytestmark = [pytest.mark.lab, pytest.mark.slow, pytest.mark.usefixtures("lab")]

LAB = Lab(name="debdriver")
FLEET = Fleet(LAB)
BOOKWORM, TRIXIE = LAB.nodes(2)
# Not 2 GB more of CUDA: what has to be proven is the driver.
WISHES = {
    "nvidia_stack_source": "distro",
    "nvidia_stack_distro_cuda_toolkit": False,
}
INSTALL_TIMEOUT_S = 600


def prepare(node: Node) -> None:
    """Make a node a server with one L4 and the headers of Debian's kernel."""
    hardware = json.dumps(profiles.hardware("l4-1", node.name))
    on_node(node, f"cat >/var/lib/gpu-simulator/hardware.json <<'END'\n{hardware}\nEND")
    FLEET.command("reboot", node.name)
    on_node(
        node,
        "mkdir -p /etc/dkms; echo 'autoinstall_all_kernels=\"yes\"' >/etc/dkms/framework.conf;"
        "for module in nvidia-current nvidia-current-open; do"
        "    echo 'BUILD_EXCLUSIVE_KERNEL=\"-amd64$\"' >/etc/dkms/$module.conf;"
        "done;"
        "apt-get install -q -y --no-install-recommends linux-headers-$(dpkg --print-architecture);"
        # What makes it a kernel that could boot.
        "for kernel in $(ls /lib/modules); do touch /boot/vmlinuz-$kernel; done",
        INSTALL_TIMEOUT_S,
    )


@pytest.fixture(scope="module", params=[BOOKWORM, TRIXIE], ids=["debian12", "debian13"])
def node(request: pytest.FixtureRequest, lab: None) -> Node:
    """A node with one L4 and headers."""
    found: Node = request.param
    prepare(found)
    return found


@pytest.fixture(scope="module")
def provisioned(node: Node) -> Run:
    """What the playbook came to."""
    return FLEET.playbook("provision", node, **WISHES)


def kernel(node: Node) -> str:
    """Debian's kernel that the node has headers of."""
    releases = on_node(node, "ls /lib/modules").split()
    (release,) = (release for release in releases if release.endswith("-amd64"))
    return release


def driver(node: Node) -> str:
    return installed(node)["nvidia-kernel-dkms"].partition("-")[0]


def test_open_modules_that_fail_to_build_all_the_same_are_told_and_undone() -> None:
    """What an administrator may do behind the plan's back, with the action that the role installs with."""
    prepare(TRIXIE)
    sources = "/etc/apt/sources.list.d/debian.sources"
    more = "s/^Components: main$/& contrib non-free non-free-firmware/"
    on_node(TRIXIE, f"cp {sources} /root; sed -i '{more}' {sources}")
    package = item("package", "nvidia-open-kernel-dkms", {"version": "", "held": True})
    run = FLEET.settle(TRIXIE, role_plan("nvidia_stack", [package]))
    assert run.status != 0
    assert "DKMS module nvidia-current-open/550.163.01 does not build" in run.said, run.output
    assert "too few arguments to function" in run.said, run.output
    assert "pci_resize_resource" in run.said, run.output
    on_node(TRIXIE, f"mv /root/debian.sources {sources}")
    assert "nvidia-open-kernel-dkms" not in installed(TRIXIE)
    assert on_node(TRIXIE, "dpkg --audit; apt-get check -qq") == ""


def test_open_modules_that_do_not_build_are_refused_before_the_node_is_touched(node: Node) -> None:
    run = FLEET.playbook("provision", node, **WISHES, nvidia_stack_kernel_modules="open")
    assert "nvidia-open-kernel-dkms does not build" in run.said
    assert (run.recap[node.name]["failed"], run.changed(node)) == (1, 0)


def test_of_all_kernels_only_the_one_that_is_not_debians_lacks_the_driver(provisioned: Run) -> None:
    assert provisioned.status != 0
    lacking = set(re.findall(r"Kernel (\S+) would boot without the driver", provisioned.said))
    assert lacking == {os.uname().release}, provisioned.output


def test_module_is_built_for_debians_kernel(provisioned: Run, node: Node) -> None:
    status = on_node(node, "dkms status")
    assert f"nvidia-current/{driver(node)}, {kernel(node)}, x86_64: installed" in status, provisioned.output
    (module,) = on_node(node, f"ls /lib/modules/{kernel(node)}/updates/dkms/nvidia-current.ko*").split()
    assert on_node(node, f"modinfo --field version {module}").strip() == driver(node)
    assert on_node(node, f"modinfo --field vermagic {module}").split()[0] == kernel(node)


def test_dpkg_is_clean_and_the_driver_held(provisioned: Run, node: Node) -> None:
    assert on_node(node, "dpkg --audit; apt-get check -qq") == ""
    held = set(on_node(node, "apt-mark showhold").split())
    of_one_version = {name for name, version in installed(node).items() if version.startswith(driver(node))}
    assert {"nvidia-kernel-dkms", "nvidia-smi", "libcuda1", "nvidia-alternative"} <= of_one_version
    assert {name for name in of_one_version if re.search("nvidia|cuda", name)} <= held


def test_second_run_changes_nothing(provisioned: Run, node: Node) -> None:
    assert FLEET.playbook("provision", node, **WISHES).changed(node) == 0
