"""The first installation of the stack when repositories, disks, dpkg and compilers do not do their part.

Real apt and dpkg on bare nodes, against the simulated repositories. Every failure ends with a sentence and
leaves nothing half-configured that the next run does not complete.
"""

from collections.abc import Iterator

import pytest

from tests.lab import lab as labs
from tests.lab import node as machine
from tests.lab.fleet import Fleet, Run, assert_refused, on_node, stack_packages
from tests.lab.repository_faults import Repositories
from tests.lab.settings import Lab, Node

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("repositories")]

LAB = Lab(name="bare")
FLEET = Fleet(LAB)
BOOKWORM, TRIXIE = LAB.nodes(2)
DRIVER = "580.178.04"
NCCL = "2.28.9-1+cuda13.0"


@pytest.fixture
def bare(request: pytest.FixtureRequest, repositories: Repositories) -> Iterator[Node]:
    """A node of the release that a test is parametrized with, without any of the stack."""
    node: Node = request.param
    if stack_packages(node):
        machine.delete(node)
        FLEET.command("up")
        repositories.restore()
    yield node


on_bookworm = pytest.mark.parametrize("bare", [BOOKWORM], indirect=True, ids=["debian12"])
on_trixie = pytest.mark.parametrize("bare", [TRIXIE], indirect=True, ids=["debian13"])


def provision(node: Node, **variables: object) -> Run:
    return FLEET.playbook("provision", node, **variables)


def half_way(node: Node) -> str:
    """What dpkg would have to complete, in its own words; nothing where all is well."""
    return on_node(node, "dpkg --audit")


def assert_completes(node: Node) -> None:
    """Running again does what could not be done before."""
    run = provision(node)
    assert run.status == 0, run.output
    assert stack_packages(node)["nvidia-driver-cuda"] == f"{DRIVER}-1"
    assert half_way(node) == ""


@on_bookworm
def test_unreachable_repository_is_named_and_leaves_the_node_as_it_was(
    bare: Node, repositories: Repositories
) -> None:
    repositories.silence()
    run = provision(bare)
    assert_refused(run, LAB.repository_url, "Connection refused")
    assert run.changed(bare) == 0
    assert stack_packages(bare) == {}


@on_bookworm
@pytest.mark.slow
def test_repository_that_loses_a_package_half_way_leaves_nothing_installed(
    bare: Node, repositories: Repositories
) -> None:
    repositories.lose(bare, "libnccl2", NCCL)
    assert_refused(provision(bare), f"libnccl2_{NCCL.replace('+', '%2b')}_", "404")
    assert stack_packages(bare) == {}
    repositories.restore()
    assert_completes(bare)


@on_trixie
def test_corrupt_package_leaves_nothing_installed(bare: Node, repositories: Repositories) -> None:
    repositories.corrupt(bare, "libnccl2", NCCL)
    assert_refused(provision(bare), "libnccl2", "Hash Sum mismatch")
    assert stack_packages(bare) == {}
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
    assert stack_packages(bare) == {}


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
@pytest.mark.slow
def test_module_that_does_not_compile_is_told_with_the_compilers_words_and_undone(bare: Node) -> None:
    labs.set_fault(bare, "module-build-fails", on=True)
    try:
        run = provision(bare)
    finally:
        labs.set_fault(bare, "module-build-fails", on=False)
    assert_refused(run, f"DKMS module nvidia/{DRIVER} does not build", "pci_resize_resource")
    assert "nvidia-kernel-open-dkms" not in stack_packages(bare)
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
    assert stack_packages(bare) == {}
