"""Collectives between nodes under several leaves, over links that are really slow, or lose packets.

Six nodes under two or three leaves, each a bridge with one uplink. All links are shaped, so that a group
reaches what its links carry and not what this machine's processors do. Then one link is worse than the
others, and the rounds that the playbook measures say whose it is.
"""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING

import pytest

from tests.lab.fleet import Fleet, on_node
from tests.lab.leaves import wired
from tests.lab.process import run
from tests.lab.settings import Lab
from validation.cli import archive
from validation.fabric import groups
from validation.fabric.verdict import judge_fabric
from validation.model.contract import State, dumps, loads

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.lab.leaves import Leaves
    from tests.lab.settings import Node

pytestmark = [pytest.mark.lab, pytest.mark.slow]

LAB = Lab(name="leaves")
FLEET = Fleet(LAB, 6)
#: Of what the nodes reach without shaping, a healthy link carries this part: processors do not limit that.
HEALTHY_PART = 0.25
#: A slow one carries this part of a healthy one.
SLOW_PART = 0.1

#: So many packets of a hundred a lossy link loses.
LOST_PERCENT = 5

#: The tasks of validate.yml between the nodes, without what each node measures alone before.
PLAY = """
- hosts: gpu_nodes
  gather_facts: false
  become: true
  tasks:
    - ansible.builtin.set_fact:
        __gpu_validation_outcome: {result: {}, batch: all}
        preflight_plan: {gpus: []}
    - ansible.builtin.copy:
        src: "{{ payload }}"
        dest: /usr/local/lib/temper-validation.pyz
        mode: "0644"
    - ansible.builtin.include_role:
        name: gpu_validation
        tasks_from: fabric
        rolespec_validate: false
        public: true
    - ansible.builtin.copy:
        content: "{{ __gpu_validation_fabric | to_json }}"
        dest: "{{ measured }}"
        mode: "0644"
      delegate_to: localhost
      become: false
      run_once: true
"""


@pytest.fixture(scope="module", autouse=True)
def lab() -> Iterator[None]:
    """Six bare nodes, and nothing left of them afterwards."""
    with FLEET.booted():
        for node in LAB.nodes(6):
            # The host's may hardly mind losses, as bbr does, and cubic is not for a namespace to choose.
            choose = ["sysctl", "-qw", "net.ipv4.tcp_congestion_control=reno"]
            run(["ip", "netns", "exec", node.unique_name, *choose])
        yield


@pytest.fixture(scope="module")
def healthy_gb_s(lab: None, tmp_path_factory: pytest.TempPathFactory) -> float:
    """What a healthy link is to carry: a part of what a pair of nodes reaches without shaping."""
    with wired(LAB, [2, 2, 2]) as leaves:
        fleet = measure(leaves, tmp_path_factory.mktemp("unshaped"), gpu_validation_fabric_pairs="never")
    found = [group for attempts in fleet.rounds for group in groups.groups_of(attempts) if group.works]
    assert found, dumps(fleet)
    return HEALTHY_PART * min(group.fastest_gb_s for group in found)


def measure(leaves: Leaves, folder: Path, **variables: object) -> groups.Fleet:
    """Run the playbook's rounds on these leaves."""
    play, topology, measured = folder / "play.yml", folder / "topology.yml", folder / "measured.json"
    payload = folder / "payload.pyz"
    play.write_text(PLAY)
    payload.write_bytes(archive.build())
    topology.write_text(json.dumps(leaves.topology))
    given = {
        "gpu_validation_fabric": True,
        "gpu_validation_fabric_library": "gloo",
        "gpu_validation_fabric_topology": str(topology),
        "payload": str(payload),
        "measured": str(measured),
        **variables,
    }
    done = FLEET.run(["ansible-playbook", str(play), "--extra-vars", json.dumps(given)])
    assert done.status == 0, done.output
    return loads(groups.Fleet, measured.read_text())


def findings(fleet: groups.Fleet) -> dict[str, list[str]]:
    """Codes of what is said of each node that does not pass."""
    verdicts = judge_fabric(fleet)
    return {
        name: [one.code for one in test.findings]
        for name, test in verdicts.items()
        if test.state is not State.PASS
    }


def text(fleet: groups.Fleet, node: Node) -> str:
    return judge_fabric(fleet)[node.name].findings[0].text


def test_under_two_healthy_leaves_all_nodes_pass(healthy_gb_s: float, tmp_path: Path) -> None:
    with wired(LAB, [3, 3]) as leaves:
        leaves.shape(healthy_gb_s)
        fleet = measure(leaves, tmp_path)
    assert findings(fleet) == {}, dumps(fleet)


def test_a_node_behind_a_slow_link_is_named_in_a_leaf_of_three(healthy_gb_s: float, tmp_path: Path) -> None:
    with wired(LAB, [3, 3]) as leaves:
        leaves.shape(healthy_gb_s)
        slow = leaves.nodes["lf2"][1]
        leaves.node_link(slow).shape(SLOW_PART * healthy_gb_s)
        fleet = measure(leaves, tmp_path)
    assert findings(fleet) == {slow.name: ["fabric-node"]}, dumps(fleet)


def test_a_node_that_loses_packets_is_named_in_a_leaf_of_two(healthy_gb_s: float, tmp_path: Path) -> None:
    """Its partner would be as suspect: nodes of other leaves clear it."""
    with wired(LAB, [2, 2, 2]) as leaves:
        leaves.shape(healthy_gb_s)
        lossy = leaves.nodes["lf2"][0]
        with losing_packets(lossy):
            fleet = measure(leaves, tmp_path)
    assert findings(fleet) == {lossy.name: ["fabric-node"]}, dumps(fleet)


def test_a_slow_uplink_is_the_leafs_and_blames_no_node(healthy_gb_s: float, tmp_path: Path) -> None:
    with wired(LAB, [2, 2, 2]) as leaves:
        leaves.shape(healthy_gb_s)
        leaves.uplink("lf2").shape(SLOW_PART * healthy_gb_s * len(leaves.nodes["lf2"]))
        fleet = measure(leaves, tmp_path)
    behind = leaves.nodes["lf2"]
    assert findings(fleet) == {node.name: ["fabric-uplink"] for node in behind}, dumps(fleet)
    assert text(fleet, behind[0]).startswith("leaf lf2 reaches "), text(fleet, behind[0])


def test_of_two_leaves_it_is_said_that_nothing_tells_whose_uplink_is_slow(
    healthy_gb_s: float, tmp_path: Path
) -> None:
    with wired(LAB, [3, 3]) as leaves:
        leaves.shape(healthy_gb_s)
        leaves.uplink("lf2").shape(SLOW_PART * healthy_gb_s * len(leaves.nodes["lf2"]))
        fleet = measure(leaves, tmp_path)
    assert findings(fleet) == {node.name: ["fabric-slow"] for node in LAB.nodes(6)}, dumps(fleet)
    assert "of two leaves nothing tells which is slow" in text(fleet, LAB.node(1))


def test_a_node_that_hangs_is_named_in_a_leaf_of_two(healthy_gb_s: float, tmp_path: Path) -> None:
    with wired(LAB, [2, 2, 2]) as leaves:
        leaves.shape(healthy_gb_s)
        hung = leaves.nodes["lf2"][0]
        with halted(hung):
            fleet = measure(leaves, tmp_path)
    assert findings(fleet) == {hung.name: ["fabric-node"]}, dumps(fleet)


@contextlib.contextmanager
def losing_packets(node: Node) -> Iterator[None]:
    """Let a node lose a part of what reaches it over TCP, but not of SSH.

    On its way in: of a packet that is dropped on its way out its sender hears at once, so that none is lost.
    """
    rules = f"""table inet lossy {{
    chain input {{
        type filter hook input priority 0
        meta l4proto tcp tcp dport != 22 numgen random mod 100 < {LOST_PERCENT} drop
    }}
}}
"""
    inside = ["ip", "netns", "exec", node.unique_name, "nft"]
    run([*inside, "-f", "-"], text=rules)
    try:
        yield
    finally:
        run([*inside, "delete", "table", "inet", "lossy"])


@contextlib.contextmanager
def halted(node: Node) -> Iterator[None]:
    """Stop each rank of a node as it starts: it is there, and does nothing."""
    stop = "while :; do pkill -STOP -f '[v]alidation.processes.child'; sleep 0.1; done"
    on_node(node, f'systemd-run --quiet --unit=halt-ranks sh -c "{stop}"')
    try:
        yield
    finally:
        on_node(node, "systemctl stop halt-ranks")
