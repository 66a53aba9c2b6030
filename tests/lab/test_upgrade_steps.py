"""The steps of a roll-out on a real node: there, and back without any repository.

Measuring is left out: what the gate makes of numbers has tests of its own, and a machine that runs tests
beside each other is no measure. The tests run in the order in which they stand.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from temper.rollout import gate, gpu_settings
from temper.rollout.model import Course, Outcome, Step
from tests.lab import rollouts
from tests.lab.fleet import Fleet, loaded_driver, on_node
from tests.lab.repository_faults import Repositories
from tests.lab.rollouts import DRIVERS, NEW, OLD, Way
from tests.lab.settings import Lab

pytestmark = pytest.mark.lab

LAB = Lab(name="upgrade")
FLEET = Fleet(LAB, size=1)
(NODE,) = LAB.nodes(1)
OLD_DRIVER, NEW_DRIVER = DRIVERS[OLD], DRIVERS[NEW]


@pytest.fixture(scope="module", autouse=True)
def lab() -> Iterator[None]:
    """A node with the old stack."""
    with rollouts.booted(FLEET):
        for stage in ("provision", "tune"):
            run = FLEET.playbook(stage)
            assert run.status == 0, run.output
        yield


@pytest.fixture(scope="module")
def way(tmp_path_factory: pytest.TempPathFactory) -> Way:
    return Way(tmp_path_factory.mktemp("rollout"), NODE, stack=NEW)


def staged() -> str:
    return on_node(NODE, "ls /var/cache/temper/former-packages 2>/dev/null || true")


def test_the_playbook_for_one_node_says_what_it_would_do_also_while_it_has_work() -> None:
    FLEET.command("fault", NODE.name, "compute-process", "on")
    try:
        run = FLEET.run(
            ["ansible-playbook", "playbooks/upgrade.yml", "--check", "-e", f"upgrade_stack={NEW}"]
        )
    finally:
        FLEET.command("fault", NODE.name, "compute-process", "off")
    assert run.status == 0, run.output
    assert f"Stack {NEW}: 1 of 1 nodes" in run.said
    assert f"{OLD_DRIVER}-1 -> {NEW_DRIVER}-1" in run.said
    assert run.changed(NODE) == 0


@pytest.mark.smoke
def test_before_anything_is_changed_both_stacks_are_on_the_node(way: Way) -> None:
    way.goes(Step.LEASE, Step.STAGE, Step.DRAIN)
    assert way.facts["former_stack"] == OLD
    assert f"nvidia-driver-cuda_{OLD_DRIVER}-1" in staged()
    assert loaded_driver(NODE) == OLD_DRIVER


def test_another_roll_out_does_not_get_the_node(way: Way, tmp_path: Path) -> None:
    result = Way(tmp_path, NODE, stack=NEW, identity="somebody else").go(Step.LEASE)
    assert result.outcome is Outcome.REFUSED
    assert "held by tests:1" in result.reason


def test_who_holds_a_gpu_is_named_and_the_node_left_alone(way: Way) -> None:
    # What stands for a device file here is a file; the kernel names it alike.
    run = "systemd-run --quiet --unit=holder --service-type=exec --property=StandardInput=file:/dev/nvidia0"
    on_node(NODE, f"touch /dev/nvidia0; {run} sleep 600")
    try:
        result = way.go(Step.DRAIN)
    finally:
        on_node(NODE, "systemctl stop holder; rm /dev/nvidia0")
    assert result.outcome is Outcome.REFUSED
    assert "holder.service" in result.reason


@pytest.mark.smoke
def test_the_node_gets_the_new_stack(way: Way) -> None:
    assert way.note_settings() == 8
    settings = way.executor._read(way.ticket(Step.BASELINE), "settings.json")
    way.goes(Step.INSTALL)
    assert loaded_driver(NODE) == OLD_DRIVER
    way.goes(Step.REBOOT)
    boot = on_node(NODE, "cat /proc/sys/kernel/random/boot_id")
    way.goes(Step.REBOOT)  # as after a crash of the controller: it has booted already
    assert on_node(NODE, "cat /proc/sys/kernel/random/boot_id") == boot
    way.goes(Step.LOAD, Step.SETTLE)
    assert loaded_driver(NODE) == NEW_DRIVER
    lost: list[str] = []
    gate.judge_settings(settings, gpu_settings.parse(on_node(NODE, "nvidia-smi -q -x")), lost, [])
    assert lost == []


@pytest.mark.smoke
def test_the_way_back_needs_no_repository(way: Way) -> None:
    repositories = Repositories(LAB)
    repositories.silence()
    try:
        way.goes(Step.UNDO, Step.REBOOT, Step.LOAD, Step.SETTLE, course=Course.BACK)
    finally:
        repositories.close()
    assert loaded_driver(NODE) == OLD_DRIVER


@pytest.mark.slow
def test_errors_of_a_gpu_since_its_return_are_found(way: Way) -> None:
    # It is the measurement before that brings the payload; how it ends does not matter here.
    assert "Verdict" in FLEET.playbook("validate", gpu_validation_timeout_s=3).output
    way.goes(Step.WATCH)
    FLEET.command("fault", NODE.name, "ecc-errors", "on")
    result = way.go(Step.WATCH)
    FLEET.command("fault", NODE.name, "ecc-errors", "off")
    assert result.outcome is Outcome.FAILED
    assert "uncorrectable" in result.reason.lower()


@pytest.mark.smoke
def test_nothing_of_it_stays_on_the_node(way: Way, tmp_path: Path) -> None:
    way.goes(Step.RETURN)
    assert staged() == ""
    assert on_node(NODE, "ls /etc/apt/sources.list.d | grep former || true") == ""
    assert Way(tmp_path, NODE, stack=NEW, identity="somebody else").go(Step.LEASE).outcome is Outcome.DONE
