"""An installed stack: nobody else moves it, and what others have broken of it is mended.

Real apt and dpkg on two nodes, against the simulated repositories. Each test also runs alone.
"""

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.lab import lab as labs
from tests.lab.fleet import Fleet, Run, assert_refused, installed, loaded_driver, on_node, stack_packages
from tests.lab.gpu_simulator import nvidia_packages
from tests.lab.repository_faults import NEWER_DRIVER, Repositories, bystander, newer_driver
from tests.lab.settings import Lab, Node

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("repositories")]

LAB = Lab(name="stack")
FLEET = Fleet(LAB)
BOOKWORM, TRIXIE = LAB.nodes(2)
DRIVER = "580.178.04"


@pytest.fixture
def settled(repositories: Repositories) -> None:
    """Both nodes have the stack, and its driver is loaded."""
    if any(loaded_driver(node) != DRIVER for node in (BOOKWORM, TRIXIE)):
        run = FLEET.playbook("provision")
        assert run.status == 0, run.output


def provision(node: Node, **variables: object) -> Run:
    return FLEET.playbook("provision", node, **variables)


def test_node_is_rebooted_where_that_is_allowed_and_the_planned_driver_loaded() -> None:
    before = labs.boot_id(BOOKWORM)
    run = provision(BOOKWORM, nvidia_stack_reboot_ok=True)
    assert run.status == 0, run.output
    assert labs.boot_id(BOOKWORM) not in (before, None)
    assert loaded_driver(BOOKWORM) == DRIVER


def test_second_run_changes_nothing(settled: None) -> None:
    run = FLEET.playbook("provision")
    assert run.status == 0, run.output
    assert {row["changed"] for row in run.recap.values()} == {0}


def test_newer_driver_in_the_repository_moves_nothing(settled: None, repositories: Repositories) -> None:
    before = stack_packages(TRIXIE)
    repositories.publish(TRIXIE, newer_driver())
    on_node(TRIXIE, "apt-get update")
    assert NEWER_DRIVER in on_node(TRIXIE, "apt-cache madison nvidia-driver-cuda")
    run = provision(TRIXIE)
    assert run.status == 0, run.output
    assert run.changed(TRIXIE) == 0
    assert stack_packages(TRIXIE) == before


def upgraded_with_bystander(
    node: Node, repositories: Repositories, upgrade: str
) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """What the stack was and is, after an upgrade that finds a newer driver and has moved a bystander."""
    repositories.publish(node, [bystander("1")])
    on_node(node, "apt-get update && apt-get install -y bystander")
    repositories.publish(node, [bystander("2"), *newer_driver()])
    on_node(node, "apt-get update")
    before = stack_packages(node)
    on_node(node, upgrade, 1800)
    assert installed(node)["bystander"] == "2"
    return before, stack_packages(node)


def test_upgrade_of_everything_leaves_the_stack_alone(settled: None, repositories: Repositories) -> None:
    upgrade = "apt-get dist-upgrade -y"
    before, after = upgraded_with_bystander(BOOKWORM, repositories, upgrade)
    assert after == before


def test_unattended_upgrade_leaves_the_stack_alone(settled: None, repositories: Repositories) -> None:
    """The run is real, and the operator has allowed the repository's origin."""
    on_node(TRIXIE, "apt-get install -y --no-install-recommends unattended-upgrades", 1800)
    allowed = 'Unattended-Upgrade::Origins-Pattern { "origin=NVIDIA"; };'
    on_node(TRIXIE, f"echo '{allowed}' >/etc/apt/apt.conf.d/60allowed")
    # Its own list has to be enough: holds are the second line of defence, and the pin is the third.
    on_node(TRIXIE, "apt-mark showhold >/root/held; xargs apt-mark unhold </root/held")
    on_node(TRIXIE, "mv /etc/apt/preferences.d/temper-nvidia /root")
    before, after = upgraded_with_bystander(TRIXIE, repositories, "unattended-upgrade -v")
    on_node(TRIXIE, "mv /root/temper-nvidia /etc/apt/preferences.d; xargs apt-mark hold </root/held")
    assert after == before


# ---------------------------------------------------------------- an installed stack that needs mending


@pytest.mark.slow
def test_rotated_key_is_refused_until_it_is_pinned(
    settled: None, repositories: Repositories, tmp_path: Path
) -> None:
    new = repositories.rotate_key(TRIXIE, tmp_path / "gnupg")
    # As an image that was cleaned: apt has to read the repository again before it can upgrade.
    on_node(TRIXIE, "rm -r /var/lib/apt/lists")
    newer_stack = {"nvidia_stack_name": "r595-cuda13.2"}
    assert_refused(provision(TRIXIE, **newer_stack), LAB.repository_url, new[-16:])
    assert stack_packages(TRIXIE)["nvidia-driver-cuda"] == f"{DRIVER}-1"
    pinned = provision(TRIXIE, nvidia_stack_cuda_key_fingerprints=[new], **newer_stack)
    assert pinned.status == 0, pinned.output
    assert loaded_driver(TRIXIE) == "595.91.07"


def test_the_stack_alone_starts_the_services_that_the_hardware_needs(settled: None) -> None:
    services = "nvidia-persistenced nvidia-fabricmanager"
    assert on_node(BOOKWORM, f"systemctl is-active {services}").split() == ["active", "active"]
    on_node(BOOKWORM, "systemctl disable --now nvidia-fabricmanager")
    run = provision(BOOKWORM)
    assert run.status == 0, run.output
    assert run.changed(BOOKWORM) == 1
    assert on_node(BOOKWORM, f"systemctl is-active {services}").split() == ["active", "active"]


def test_fabric_manager_of_another_version_is_brought_to_the_drivers(settled: None) -> None:
    other = min(nvidia_packages.DRIVERS)
    on_node(
        BOOKWORM,
        f"apt-get install -y --allow-downgrades --allow-change-held-packages nvidia-fabricmanager={other}-1",
    )
    run = provision(BOOKWORM)
    assert run.status == 0, run.output
    assert stack_packages(BOOKWORM)["nvidia-fabricmanager"] == f"{DRIVER}-1"
