"""Preflight on bare nodes: the simulated transaction, what it refuses, and the file with all plans.

One lab of two bare nodes for the whole file; no test leaves them changed.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab import network
from tests.lab.fleet import Fleet, Run, on_node
from tests.lab.repository_faults import Repositories
from tests.lab.settings import Lab, Node

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab")]

LAB = Lab(name="preflight")
FLEET = Fleet(LAB)
BOOKWORM, TRIXIE = LAB.nodes(2)
DRIVER = "580.178.04"


@pytest.fixture(scope="module")
def own_repositories(lab: None) -> Iterator[Repositories]:
    repositories = Repositories(LAB)
    yield repositories
    repositories.close()


@pytest.fixture
def repositories(own_repositories: Repositories) -> Iterator[Repositories]:
    yield own_repositories
    own_repositories.restore()


def preflight(path: Path, node: Node | None = None, **variables: object) -> tuple[Run, dict[str, Any]]:
    """Run it; the plan file's content comes with it."""
    run = FLEET.playbook("preflight", node, preflight_plan_file=str(path), **variables)
    return run, json.loads(path.read_text())


def state(node: Node) -> str:
    """What preflight must leave alone."""
    folders = "/etc/apt /var/lib/apt /var/lib/dpkg /var/cache/apt"
    return on_node(node, f"find {folders} -type f -exec sha256sum {{}} + | sort; dpkg-query -W")


def test_the_plan_has_the_exact_transaction_and_the_node_stays_as_it_was(tmp_path: Path) -> None:
    before = [state(node) for node in (BOOKWORM, TRIXIE)]
    run, document = preflight(tmp_path / "plan.json")
    assert run.status == 0, run.output
    assert "2 of 2 nodes planned" in run.said
    for node in (BOOKWORM, TRIXIE):
        plan = document["nodes"][node.name]
        new = {change["name"]: change["version"] for change in plan["transaction"]["install"]}
        assert plan["packages"].items() <= new.items()
        assert not plan["transaction"]["remove"]
    assert [state(node) for node in (BOOKWORM, TRIXIE)] == before


@pytest.mark.smoke
def test_a_version_that_does_not_exist_refuses_that_node_alone(
    tmp_path: Path, repositories: Repositories
) -> None:
    repositories.withdraw(TRIXIE, f"{DRIVER}-1")
    run, document = preflight(tmp_path / "plan.json")
    assert run.status != 0
    assert {name: row["failed"] for name, row in run.recap.items()} == {BOOKWORM.name: 0, TRIXIE.name: 1}
    assert f"{DRIVER}-1" in "".join(document["nodes"][TRIXIE.name]["problems"])
    assert "1 of 2 nodes planned, 1 not: gpu02" in run.said


def test_the_plans_are_kept_where_every_node_is_refused(tmp_path: Path) -> None:
    run, document = preflight(tmp_path / "new/plan.json", nvidia_stack_name="r999")
    assert run.status != 0
    assert {name: row["failed"] for name, row in run.recap.items()} == {BOOKWORM.name: 1, TRIXIE.name: 1}
    for plan in document["nodes"].values():
        assert plan["problems"][0].startswith("nvidia_stack_name: no stack is named r999")


@pytest.mark.parametrize(
    ("os_release", "said"),
    [
        ("ID=ubuntu\nVERSION_ID=24.04\nPRETTY_NAME=Ubuntu", "/ubuntu2404/x86_64"),
        ("ID=rocky\nVERSION_ID=9.6\nPRETTY_NAME=Rocky", ""),
    ],
    ids=["ubuntu", "rocky"],
)
def test_a_system_that_is_not_what_it_says_is_refused_before_it_is_touched(
    tmp_path: Path, os_release: str, said: str
) -> None:
    """A Debian that calls itself Ubuntu or Rocky: the plan is theirs, the simulation cannot carry it out."""
    before = state(TRIXIE)
    on_node(TRIXIE, f"printf '{os_release}\n' >/run/os-release; mount --bind /run/os-release /etc/os-release")
    try:
        run, document = preflight(tmp_path / "plan.json", TRIXIE)
    finally:
        on_node(TRIXIE, "umount /etc/os-release")
    plan = document["nodes"][TRIXIE.name]
    assert run.status != 0
    assert plan["system"] == ("ubuntu-24.04" if said else "rhel-9")
    assert plan["problems"]
    assert said in " ".join(plan["problems"])
    assert state(TRIXIE) == before


#: What a hostile node answers to every module: a template, escape codes, and another way in to itself.
HOSTILE = {
    "changed": False,
    "ansible_facts": {
        "ansible_connection": "local",
        "temper": {"gpus": "{{ lookup('pipe', 'touch TRACE') }}", "system": "\x1b]0;owned\x07"},
    },
}


@pytest.mark.smoke
def test_a_hostile_answer_costs_its_own_node_alone(tmp_path: Path) -> None:
    trace, inventory, plans = (tmp_path / name for name in ("trace", "hostile.json", "plan.json"))
    answer = json.dumps(HOSTILE).replace("TRACE", str(trace))
    script = f"#!/bin/sh\ncat >/dev/null\ncat <<'ANSWER'\n{answer}\nANSWER\n"
    on_node(TRIXIE, f"cat >/run/hostile <<'END'\n{script}END\nchmod 755 /run/hostile")
    interpreter = {"ansible_python_interpreter": "/run/hostile"}
    inventory.write_text(json.dumps({"gpu_nodes": {"hosts": {TRIXIE.name: interpreter}}}))
    sources = ["-i", "inventory/lab", "-i", str(inventory), "-e", f"preflight_plan_file={plans}"]
    run = FLEET.run(["ansible-playbook", *sources, "playbooks/preflight.yml"])
    assert run.status != 0
    assert {name: row["failed"] for name, row in run.recap.items()} == {BOOKWORM.name: 0, TRIXIE.name: 1}
    assert json.loads(plans.read_text())["nodes"][BOOKWORM.name]["problems"] == []
    assert not trace.exists()
    assert "\x1b" not in run.output


def test_nccl_gets_each_nodes_own_name_of_the_interface_in_the_fleets_first_network(tmp_path: Path) -> None:
    """A cable beside the lab's network. Of both veth says 10 Gb/s, so that their order decides."""
    cable = {BOOKWORM: "eth1", TRIXIE: "fast0"}
    network.create_cable(cable, "10.255.76.")
    tune = ["ansible-playbook", "playbooks/tune.yml", "--tags", "compute_environment", "--extra-vars"]
    wanted: dict[str, Any] = {"compute_environment_fleet_networks": ["10.255.76.0/24", LAB.network]}
    try:
        run = FLEET.run([*tune, json.dumps(wanted)])
        assert run.status == 0, run.output
        for node, name in cable.items():
            assert f"NCCL_SOCKET_IFNAME=={name}\n" in on_node(node, "cat /etc/nccl.conf")
            assert on_node(node, f"cat /sys/class/net/{name}/speed /sys/class/net/eth0/speed").split() == (
                ["10000", "10000"]
            )
            assert f"{name} (10 Gb/s) in 10.255.76.0/24 before eth0 (10 Gb/s) in {LAB.network}" in run.said
        # One end is down, and the other has nobody to talk to.
        on_node(TRIXIE, "ip link set fast0 down")
        run, document = preflight(tmp_path / "plan.json", None, **wanted)
        for node, said in ((BOOKWORM, "eth1 with the address 10.255.76.1"), (TRIXIE, "fast0")):
            (problem,) = document["nodes"][node.name]["problems"]
            assert said in problem
        assert {name: row["failed"] for name, row in run.recap.items()} == {BOOKWORM.name: 1, TRIXIE.name: 1}
    finally:
        on_node(TRIXIE, "ip link delete fast0")
        FLEET.run([*tune, json.dumps({"compute_environment_state": "absent"})])
    assert [on_node(node, "ls /etc/nccl.conf 2>/dev/null || true") for node in cable] == ["", ""]
