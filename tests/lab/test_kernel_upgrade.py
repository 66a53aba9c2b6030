"""A roll-out that brings a kernel to a real node: there, back, and where the new kernel hangs.

The node's boot loader and kernels are those of tests/lab/boot_simulator, which says what of them is real.
Measuring is left out, as in test_upgrade_steps. The tests run in the order in which they stand.
"""

import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from temper.rollout.model import Course, Outcome, Step
from temper.rollout.policy import Policy
from tests.lab import boot_simulator, rollouts
from tests.lab.boot_simulator import release_of
from tests.lab.fleet import Fleet, installed, loaded_driver, on_node
from tests.lab.rollouts import DRIVERS, OLD, Way
from tests.lab.settings import CHECKOUT, Lab

pytestmark = [pytest.mark.lab, pytest.mark.slow]

LAB = Lab(name="kernels")
FLEET = Fleet(LAB, size=1)
(NODE,) = LAB.nodes(1)
FIRST, SECOND, THIRD = 990, 991, 992
POLICY = Policy(kernel="newest")


@pytest.fixture(scope="module", autouse=True)
def lab() -> Iterator[None]:
    """A node with a kernel of its own and the stack."""
    with rollouts.booted(FLEET):
        boot_simulator.furnish(NODE, FIRST)
        run = FLEET.playbook("provision")
        assert run.status == 0, run.output
        yield


def begun(folder: Path) -> Way:
    """A way on which nothing is missing but the change."""
    way = Way(folder, NODE, policy=POLICY)
    way.goes(Step.LEASE, Step.STAGE, Step.DRAIN)
    way.note_settings()
    return way


def running() -> str:
    return on_node(NODE, "uname -r").strip()


def default() -> str:
    """What GRUB's script and environment say, in the words of its own file."""
    return on_node(
        NODE, "sed -n 's/^ *set default=\"\\(.*\\)\"$/\\1/p' /boot/grub/grub.cfg | tail -1"
    ).strip()


def armed() -> str:
    return on_node(NODE, "grub-editenv list | grep ^next_entry || true").strip()


def kernels(packages: Mapping[str, str]) -> set[str]:
    return {name for name in packages if name.startswith(("linux-image-6.", "linux-headers-6."))}


def plan() -> str:
    """What the operator is shown."""
    command = [sys.executable, "-m", "temper", "rollout", "plan", "-i", "inventory/lab", "--kernel", "newest"]
    return subprocess.run(command, cwd=CHECKOUT, env=FLEET.environment, capture_output=True, text=True).stdout


def test_the_node_runs_the_kernel_that_its_boot_loader_has_chosen() -> None:
    assert running() == release_of(FIRST)
    FLEET.command("reboot", NODE.name)
    assert running() == release_of(FIRST)
    assert loaded_driver(NODE) == DRIVERS[OLD]
    said = plan()
    assert f"left out: {NODE.name}: it has the newest kernel already: {release_of(FIRST)}" in said


def test_the_plan_says_what_a_node_would_get_and_changes_nothing() -> None:
    boot_simulator.publish(NODE, FIRST, SECOND)
    before = installed(NODE)
    said = plan()
    assert "The newest kernel: 1 of 1 nodes" in said
    assert f"{release_of(FIRST)} -> {release_of(SECOND)}" in said
    assert installed(NODE) == before


def test_the_node_gets_the_new_kernel_and_keeps_the_old_one(tmp_path: Path) -> None:
    way = begun(tmp_path)
    assert way.facts["kernel"] == release_of(SECOND)
    way.goes(Step.INSTALL)
    assert running() == release_of(FIRST)
    built = on_node(NODE, f"modinfo -k {release_of(SECOND)} -F vermagic nvidia").split()[0]
    assert built == release_of(SECOND)
    assert release_of(FIRST) in default()
    way.goes(Step.REBOOT)
    boot = on_node(NODE, "cat /proc/sys/kernel/random/boot_id")
    assert running() == release_of(SECOND)
    way.goes(Step.REBOOT)  # as after a crash of the controller: it has booted already, and nothing is armed
    assert on_node(NODE, "cat /proc/sys/kernel/random/boot_id") == boot
    assert armed() == ""
    assert release_of(FIRST) in default()
    way.goes(Step.LOAD, Step.RETURN)
    assert loaded_driver(NODE) == DRIVERS[OLD]
    FLEET.command("reboot", NODE.name)
    assert running() == release_of(SECOND)
    assert {f"linux-image-{release_of(FIRST)}", f"linux-headers-{release_of(FIRST)}"} <= installed(
        NODE
    ).keys()


def test_a_kernel_that_hangs_is_tried_once_and_the_node_goes_back(tmp_path: Path) -> None:
    boot_simulator.publish(NODE, FIRST, SECOND, THIRD)
    before = installed(NODE)
    way = begun(tmp_path)
    way.goes(Step.INSTALL)
    on_node(NODE, f"touch /boot/hangs-{release_of(THIRD)}")
    way.goes(Step.REBOOT)
    assert "hung" in on_node(NODE, "journalctl --boot --unit boot-simulator --output cat")
    assert running() == release_of(SECOND)
    result = way.go(Step.LOAD)
    assert result.outcome is Outcome.FAILED
    assert f"Expected kernel {release_of(THIRD)}, found {release_of(SECOND)} running" in result.reason
    way.goes(Step.UNDO, Step.REBOOT, Step.LOAD, Step.RETURN, course=Course.BACK)
    assert installed(NODE) == before
    assert default() == "0"
    on_node(NODE, f"rm /boot/hangs-{release_of(THIRD)}")


def test_from_a_kernel_that_runs_the_way_back_boots_the_former_one(tmp_path: Path) -> None:
    before = kernels(installed(NODE))
    way = begun(tmp_path)
    way.goes(Step.INSTALL, Step.REBOOT, Step.LOAD)
    assert running() == release_of(THIRD)
    way.goes(Step.UNDO, course=Course.BACK)
    assert running() == release_of(SECOND)
    way.goes(Step.REBOOT, Step.LOAD, Step.RETURN, course=Course.BACK)
    assert kernels(installed(NODE)) == before
    assert loaded_driver(NODE) == DRIVERS[OLD]
    assert on_node(NODE, "ls /etc/default/grub.d /var/lib/temper | grep kernel || true") == ""


def test_a_module_that_does_not_build_is_seen_before_any_boot(tmp_path: Path) -> None:
    before = kernels(installed(NODE))
    boot = on_node(NODE, "cat /proc/sys/kernel/random/boot_id")
    way = begun(tmp_path)
    FLEET.command("fault", NODE.name, "module-build-fails", "on")
    result = way.go(Step.INSTALL)
    FLEET.command("fault", NODE.name, "module-build-fails", "off")
    assert result.outcome is Outcome.FAILED
    assert "too few arguments to function 'pci_resize_resource'" in result.reason
    way.goes(Step.UNDO, Step.REBOOT, Step.LOAD, Step.RETURN, course=Course.BACK)
    assert kernels(installed(NODE)) == before
    assert on_node(NODE, "cat /proc/sys/kernel/random/boot_id") == boot
