"""One run over slices on helpers: nodes that are helpers, a helper and a controller that die, a held node."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab import helpers, many_nodes
from tests.lab import node as machine
from tests.lab.cutoff import wait_until
from tests.lab.fleet import Fleet, on_node
from tests.lab.settings import CHECKOUT, Lab, Node

pytestmark = [pytest.mark.lab, pytest.mark.slow]
FLEET = Fleet(Lab(name="slicing"), 5)
# Debian 12 and 13 in turn: helpers need the controller's Python.
FIRST, SECOND, HELPER, OTHER_PYTHON, SECOND_HELPER = FLEET.lab.nodes(5)
TARGETS = f"{FIRST.name},{SECOND.name}"
RUNS = FLEET.lab.state / "runs"  # is gone with the lab


def places(*nodes: Node) -> list[str]:
    return helpers.options(FLEET, *nodes)


def run(*words: str, timeout_s: float = 3600) -> tuple[int, str]:
    done = subprocess.run(
        helpers.command(RUNS, *words),
        cwd=CHECKOUT,
        env=FLEET.environment,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    return done.returncode, " ".join((done.stdout + done.stderr).split())


@pytest.fixture(scope="module", autouse=True)
def lab() -> Iterator[None]:
    """Five nodes, two of which may work on the others."""
    os.environ["LAB_NAME"] = FLEET.lab.name
    FLEET.command("down")
    many_nodes.boot(FLEET)
    try:
        helpers.equip(FLEET, [HELPER, SECOND_HELPER, OTHER_PYTHON])
        yield
    finally:
        FLEET.command("down")


def test_helpers_carry_out_what_one_process_would() -> None:
    stages = ["--tags", "provision,tune,harden"]
    there = places(HELPER, SECOND_HELPER)
    status, said = run("run", "site.yml", "--limit", TARGETS, *stages, "--slice", "1", *there)
    assert status == 0, said
    assert "2 of 2 nodes planned" in said
    assert f"changed: 2 nodes: {FIRST.name}, {SECOND.name}" in said
    assert "sent to 2 nodes" in said
    assert helpers.lease_owner(FIRST) == helpers.lease_owner(SECOND) == ""
    one = FLEET.run(["ansible-playbook", "site.yml", "--limit", TARGETS, *stages])
    assert one.status == 0, one.output
    assert (one.changed(FIRST), one.changed(SECOND)) == (0, 0), one.output


def test_slices_measure_their_nodes_and_one_report_has_all_of_them() -> None:
    there = places(HELPER)
    status, said = run("run", "playbooks/validate.yml", "--limit", TARGETS, "--slice", "1", *there)
    # Good or bad, as far as they are set up: they were measured, and are judged together.
    assert status in {0, 1}, said
    assert "of 2 nodes" in said.partition("Verdict: ")[2], said
    assert all(f"{node.name} " in said for node in (FIRST, SECOND))
    assert "GFLOP/s" in said, said
    assert helpers.lease_owner(FIRST) == helpers.lease_owner(SECOND) == ""


def test_compliance_of_slices_is_one_statement_and_takes_no_node(tmp_path: Path) -> None:
    held = on_node(FIRST, "stat -c %Y /var/lib/temper/lease.json")
    folders = ("compliance_reports_directory", "gpu_validation_reports_directory")
    reports = ["-e", json.dumps(dict.fromkeys(folders, str(tmp_path)))]
    status, said = run("run", "compliance", "--limit", TARGETS, "--slice", "1", *reports, *places(HELPER))
    # Nothing of these nodes was ever measured, and that is all.
    assert status == 1, said
    assert "no report on this machine has a validation of it" in said
    (statement,) = tmp_path.glob("2*/statement.json")
    assert [node["node"] for node in json.loads(statement.read_text())["nodes"]] == [FIRST.name, SECOND.name]
    assert "sent to" not in said
    assert on_node(FIRST, "stat -c %Y /var/lib/temper/lease.json") == held


def test_a_helper_with_another_python_is_refused_and_the_others_do_its_work() -> None:
    there = places(OTHER_PYTHON, HELPER)
    status, said = run("run", "preflight", "--limit", TARGETS, "--slice", "1", *there)
    assert status == 0, said
    assert f"{OTHER_PYTHON.address} cannot be used: expected Python 3.11" in said
    status, said = run("run", "preflight", "--limit", TARGETS, *places(OTHER_PYTHON))
    assert status == 3
    assert f"left: 2 nodes: {FIRST.name}, {SECOND.name}" in said
    assert "there is no place to run it" in said


def test_a_node_that_somebody_else_holds_is_refused() -> None:
    on_node(
        FIRST,
        "cp /var/lib/temper/lease.json /tmp/lease.json; python3 - <<'END'\n"
        "import json, time\n"
        "held = json.load(open('/tmp/lease.json'))\n"
        "held |= {'owner': 'rollout 7', 'fencing': held['fencing'] + 1, 'ttl_s': 3600.0,\n"
        "         'boot_id': open('/proc/sys/kernel/random/boot_id').read().strip(),\n"
        "         'beat_s': time.clock_gettime(time.CLOCK_BOOTTIME)}\n"
        "json.dump(held, open('/var/lib/temper/lease.json', 'w'))\nEND",
    )
    try:
        status, said = run("run", "tune", "--limit", TARGETS)
        assert status == 1, said
        assert f"refused: {FIRST.name}" in said
        assert "This node is held by rollout 7" in said
        assert f"ok: {SECOND.name}" in said
        assert helpers.lease_owner(FIRST) == "rollout 7"
    finally:
        on_node(FIRST, "cp /tmp/lease.json /var/lib/temper/lease.json")


def drift() -> None:
    """Give the nodes something to do."""
    for node in (FIRST, SECOND):
        on_node(node, "rm -f /etc/sysctl.d/*temper* /etc/security/limits.d/*temper*")


def begin(*there: str) -> subprocess.Popen[str]:
    """Start a run, and wait until it has taken both nodes."""
    words = ["run", "tune", "--limit", TARGETS, "--slice", "1", *there]
    controller = subprocess.Popen(
        helpers.command(RUNS, *words),
        cwd=CHECKOUT,
        env=FLEET.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    wait_until(
        lambda: bool(helpers.lease_owner(FIRST) and helpers.lease_owner(SECOND)), "both nodes are taken", 900
    )
    on_node(FIRST, "cp /var/lib/temper/lease.json /var/tmp/held.json")
    return controller


def test_a_helper_that_dies_leaves_its_nodes_to_the_other() -> None:
    drift()
    controller = begin(*places(HELPER, SECOND_HELPER))
    machine.stop(HELPER)
    try:
        said, _ = controller.communicate(timeout=3600)
    finally:
        controller.kill()
        many_nodes.boot(FLEET)
    assert controller.returncode == 0, said
    assert "is lost" in said
    assert helpers.lease_owner(FIRST) == helpers.lease_owner(SECOND) == ""
    one = FLEET.run(["ansible-playbook", "playbooks/tune.yml", "--limit", TARGETS])
    assert (one.changed(FIRST), one.changed(SECOND)) == (0, 0), one.output


def kill_a_controller() -> None:
    """Begin a run, kill its controller, and wait until its slices are gone."""
    controller = begin(*places(HELPER, SECOND_HELPER))
    controller.send_signal(signal.SIGKILL)
    controller.communicate()
    for helper in (HELPER, SECOND_HELPER):
        wait_until(lambda node=helper: not helpers.workers(node), "nothing runs for it", 900)  # type: ignore[misc]


def test_a_controller_that_is_killed_takes_its_slices_with_it_and_the_next_one_goes_on() -> None:
    drift()
    kill_a_controller()
    status, said = run("status")
    assert status == 3
    assert "was cut off" in said
    status, said = run("run", "tune", "--limit", TARGETS)
    assert status == 2
    assert "has not ended and may hold nodes" in said
    status, said = run("resume", "--slice", "1", *places(HELPER, SECOND_HELPER))
    assert status == 0, said
    assert helpers.lease_owner(FIRST) == helpers.lease_owner(SECOND) == ""
    status, said = run("resume")
    assert status == 2
    assert "nothing is left of the last run" in said


def test_what_a_killed_controller_holds_is_given_back_where_nobody_goes_on() -> None:
    drift()
    kill_a_controller()
    # As one that lost its power would leave it: the workers that were cut off have given theirs back.
    on_node(FIRST, "cp /var/tmp/held.json /var/lib/temper/lease.json")
    status, said = run("abort", *places(SECOND_HELPER))
    assert status == 0, said
    assert "given up; 1 of 2 nodes given back" in said
    assert helpers.lease_owner(FIRST) == helpers.lease_owner(SECOND) == ""
    status, said = run("run", "tune", "--limit", TARGETS)
    assert status == 0, said
