"""The installation of the stack when repositories, disks, dpkg and other tools do not do their part.

Real apt and dpkg on two nodes, against the simulated repositories. Every failure ends with a sentence and
leaves nothing half-configured that the next run does not complete; what is installed is moved by nobody else.

The tests run in the order in which they stand, first on bare nodes; each also runs alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.lab import lab as labs
from tests.lab import node as machine
from tests.lab.fleet import Fleet, Run, installed, on_node
from tests.lab.gpu_simulator import nvidia_packages
from tests.lab.repository_faults import NEWER_DRIVER, Repositories, bystander, newer_driver
from tests.lab.settings import Lab, Node

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

pytestmark = pytest.mark.lab

LAB = Lab(name="stack")
FLEET = Fleet(LAB)
BOOKWORM, TRIXIE = LAB.nodes(2)
DRIVER = "580.178.04"
NCCL = "2.28.9-1+cuda13.0"


@pytest.fixture(scope="module", autouse=True)
def lab() -> Iterator[None]:
    """Two bare nodes, and nothing left of them afterwards."""
    FLEET.command("down")
    FLEET.command("up")
    yield
    FLEET.command("down")


@pytest.fixture(autouse=True)
def repositories(lab: None) -> Iterator[Repositories]:
    """The lab's repositories, for a test to change; whole again for the next."""
    own = Repositories(LAB)
    yield own
    own.close()


@pytest.fixture
def bare(request: pytest.FixtureRequest, repositories: Repositories) -> Iterator[Node]:
    """A node of the release that a test is parametrized with, without any of the stack."""
    node: Node = request.param
    if family(node):
        machine.delete(node)
        FLEET.command("up")
        repositories.restore()
    yield node


@pytest.fixture
def settled(repositories: Repositories) -> None:
    """Both nodes have the stack, and its driver is loaded."""
    if any(loaded(node) != DRIVER for node in (BOOKWORM, TRIXIE)):
        run = FLEET.playbook("provision")
        assert run.status == 0, run.output


on_bookworm = pytest.mark.parametrize("bare", [BOOKWORM], indirect=True, ids=["debian12"])
on_trixie = pytest.mark.parametrize("bare", [TRIXIE], indirect=True, ids=["debian13"])


def provision(node: Node, **variables: object) -> Run:
    return FLEET.playbook("provision", node, **variables)


def family(node: Node) -> dict[str, str]:
    """The versions of what belongs to the stack."""
    words = ("nvidia", "cuda", "cudnn", "nccl")
    return {name: version for name, version in installed(node).items() if any(word in name for word in words)}


def half_way(node: Node) -> str:
    """What dpkg would have to complete, in its own words; nothing where all is well."""
    return on_node(node, "dpkg --audit")


def loaded(node: Node) -> str:
    return on_node(node, "cat /sys/module/nvidia/version 2>/dev/null || true").strip()


def assert_refused(run: Run, *sentences: str) -> None:
    assert run.status != 0, run.output
    for sentence in sentences:
        assert sentence in run.said, run.output


def assert_completes(node: Node) -> None:
    """Running again does what could not be done before."""
    run = provision(node, nvidia_stack_reboot_ok=False)
    assert_refused(run, f"reboot required. Driver {DRIVER} is installed")
    assert family(node)["nvidia-driver-cuda"] == f"{DRIVER}-1"
    assert half_way(node) == ""


# ---------------------------------------------------------------- a first installation that fails


@on_bookworm
def test_unreachable_repository_is_named_and_leaves_the_node_as_it_was(
    bare: Node, repositories: Repositories
) -> None:
    repositories.silence()
    run = provision(bare)
    assert_refused(run, LAB.repository_url, "Connection refused")
    assert run.changed(bare) == 0
    assert family(bare) == {}


@on_bookworm
def test_repository_that_loses_a_package_half_way_leaves_nothing_installed(
    bare: Node, repositories: Repositories
) -> None:
    repositories.lose(bare, "libnccl2", NCCL)
    assert_refused(provision(bare), f"libnccl2_{NCCL.replace('+', '%2b')}_", "404")
    assert family(bare) == {}
    repositories.restore()
    assert_completes(bare)


@on_trixie
def test_corrupt_package_leaves_nothing_installed(bare: Node, repositories: Repositories) -> None:
    repositories.corrupt(bare, "libnccl2", NCCL)
    assert_refused(provision(bare), "libnccl2", "Hash Sum mismatch")
    assert family(bare) == {}
    assert half_way(bare) == ""


@on_trixie
def test_full_package_cache_leaves_nothing_installed(bare: Node) -> None:
    archives = "/var/cache/apt/archives"
    on_node(bare, f"mount -t tmpfs -o size=16k tmpfs {archives}; mkdir -p {archives}/partial")
    try:
        run = provision(bare)
    finally:
        on_node(bare, f"umount {archives}")
    assert_refused(run, "/var/cache/apt/archives has 0 MiB free, and the transaction needs 1 MiB there")
    assert family(bare) == {}


@on_trixie
def test_disk_that_fills_up_while_dpkg_unpacks_is_completed_by_the_next_run(bare: Node) -> None:
    on_node(bare, "mount -t tmpfs -o nr_inodes=4 tmpfs /usr/local")
    try:
        run = provision(bare, preflight_minimum_free_gib=0)
    finally:
        on_node(bare, "umount /usr/local")
    assert_refused(run, "No space left on device")
    assert_completes(bare)


# dpkg tells it of every step; it ends dpkg in the middle of one, and keeps the next from undoing anything.
KILLER = """#!/bin/sh
while read -r step; do
    case $step in
    "status: nvidia-kernel-open-dkms"*": half-configured")
        echo no-such-option >/etc/dpkg/dpkg.cfg.d/refused
        kill -KILL "$(pgrep --oldest --exact dpkg)" ;;
    esac
done
"""


@on_bookworm
def test_killed_dpkg_is_completed_by_the_next_run(bare: Node) -> None:
    on_node(
        bare,
        f"cat >/root/killer <<'END'\n{KILLER}END\nchmod 755 /root/killer\n"
        "echo status-logger=/root/killer >/etc/dpkg/dpkg.cfg.d/killer",
    )
    run = provision(bare)
    assert_refused(run, "Sub-process /usr/bin/dpkg")
    on_node(bare, "rm /etc/dpkg/dpkg.cfg.d/killer /etc/dpkg/dpkg.cfg.d/refused")
    assert "nvidia-kernel-open-dkms" in half_way(bare)
    assert_completes(bare)


@on_bookworm
def test_module_that_does_not_compile_is_told_with_the_compilers_words_and_undone(bare: Node) -> None:
    labs.set_fault(bare, "module-build-fails", on=True)
    try:
        run = provision(bare)
    finally:
        labs.set_fault(bare, "module-build-fails", on=False)
    assert_refused(run, f"DKMS module nvidia/{DRIVER} does not build", "pci_resize_resource")
    assert "nvidia-kernel-open-dkms" not in family(bare)
    assert half_way(bare) == ""
    on_node(bare, "apt-get check -qq")
    assert_completes(bare)


@on_bookworm
def test_kernel_without_headers_is_refused_before_the_node_is_touched(bare: Node) -> None:
    headers = on_node(bare, "echo /lib/modules/$(uname -r)/build").strip()
    on_node(bare, f"mv {headers} /root/headers")
    try:
        run = provision(bare)
    finally:
        on_node(bare, f"mv /root/headers {headers}")
    # What to do depends on whose kernel this machine has.
    assert_refused(run, "the running kernel", "no driver module can be built", "boot a kernel")
    assert run.changed(bare) == 0


@on_bookworm
def test_version_that_no_repository_has_is_refused(bare: Node, repositories: Repositories) -> None:
    repositories.withdraw(bare, f"{DRIVER}-1")
    run = provision(bare)
    assert_refused(run, f"{DRIVER}-1", "nvidia-driver-cuda")
    assert run.changed(bare) == 0
    assert family(bare) == {}


def test_node_is_rebooted_where_that_is_allowed_and_the_planned_driver_loaded() -> None:
    before = labs.boot_id(BOOKWORM)
    run = provision(BOOKWORM, nvidia_stack_reboot_ok=True)
    assert run.status == 0, run.output
    assert labs.boot_id(BOOKWORM) not in (before, None)
    assert loaded(BOOKWORM) == DRIVER


# ---------------------------------------------------------------- an installed stack that others would move


def test_second_run_changes_nothing(settled: None) -> None:
    run = FLEET.playbook("provision")
    assert run.status == 0, run.output
    assert {row["changed"] for row in run.recap.values()} == {0}


def test_newer_driver_in_the_repository_moves_nothing(settled: None, repositories: Repositories) -> None:
    before = family(TRIXIE)
    repositories.publish(TRIXIE, newer_driver())
    on_node(TRIXIE, "apt-get update")
    assert NEWER_DRIVER in on_node(TRIXIE, "apt-cache madison nvidia-driver-cuda")
    run = provision(TRIXIE)
    assert run.status == 0, run.output
    assert run.changed(TRIXIE) == 0
    assert family(TRIXIE) == before


def upgraded_with_bystander(
    node: Node, repositories: Repositories, upgrade: str
) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """What the stack was and is, after an upgrade that finds a newer driver and has moved a bystander."""
    repositories.publish(node, [bystander("1")])
    on_node(node, "apt-get update && apt-get install -y bystander")
    repositories.publish(node, [bystander("2"), *newer_driver()])
    on_node(node, "apt-get update")
    before = family(node)
    on_node(node, upgrade, 300)
    assert installed(node)["bystander"] == "2"
    return before, family(node)


def test_upgrade_of_everything_leaves_the_stack_alone(settled: None, repositories: Repositories) -> None:
    upgrade = "apt-get dist-upgrade -y"
    before, after = upgraded_with_bystander(BOOKWORM, repositories, upgrade)
    assert after == before


def test_unattended_upgrade_leaves_the_stack_alone(settled: None, repositories: Repositories) -> None:
    """The run is real, and the operator has allowed the repository's origin."""
    on_node(TRIXIE, "apt-get install -y --no-install-recommends unattended-upgrades", 300)
    allowed = 'Unattended-Upgrade::Origins-Pattern { "origin=NVIDIA"; };'
    on_node(TRIXIE, f"echo '{allowed}' >/etc/apt/apt.conf.d/60allowed")
    # Its own list has to be enough: holds are the second line of defence, and the pin is the third.
    on_node(TRIXIE, "apt-mark showhold >/root/held; xargs apt-mark unhold </root/held")
    on_node(TRIXIE, "mv /etc/apt/preferences.d/temper-nvidia /root")
    before, after = upgraded_with_bystander(TRIXIE, repositories, "unattended-upgrade -v")
    on_node(TRIXIE, "mv /root/temper-nvidia /etc/apt/preferences.d; xargs apt-mark hold </root/held")
    assert after == before


# ---------------------------------------------------------------- an installed stack that needs mending


def test_rotated_key_is_refused_until_it_is_pinned(
    settled: None, repositories: Repositories, tmp_path: Path
) -> None:
    new = repositories.rotate_key(TRIXIE, tmp_path / "gnupg")
    # As an image that was cleaned: apt has to read the repository again before it can upgrade.
    on_node(TRIXIE, "rm -r /var/lib/apt/lists")
    newer_stack = {"nvidia_stack_name": "r595-cuda13.2"}
    assert_refused(provision(TRIXIE, **newer_stack), LAB.repository_url, new[-16:])
    assert family(TRIXIE)["nvidia-driver-cuda"] == f"{DRIVER}-1"
    pinned = provision(TRIXIE, nvidia_stack_cuda_key_fingerprints=[new], **newer_stack)
    assert pinned.status == 0, pinned.output
    assert loaded(TRIXIE) == "595.91.07"


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
    assert family(BOOKWORM)["nvidia-fabricmanager"] == f"{DRIVER}-1"
