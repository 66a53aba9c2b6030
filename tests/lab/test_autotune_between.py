"""Autotune between nodes with a slow network and a fast one: the fast one is proposed to both, by its name.

Their traffic is real. The slow network is the lab's own, limited for the while; the fast one is a cable from
node to node. A bridge of one address on both is what container engines leave everywhere, and leads nowhere.
"""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.lab import network
from tests.lab.fleet import Fleet, on_node
from tests.lab.settings import CHECKOUT, Lab, Node
from validation.autotune import evidence as documents
from validation.autotune.evidence import Evidence
from validation.autotune.trials import OVER, TOO_SHORT

pytestmark = [pytest.mark.lab, pytest.mark.slow]

LAB = Lab(name="between")
FLEET = Fleet(LAB, size=2)
NODES = LAB.nodes(2)
#: What each node calls its end of the cable.
CABLE = ("eth1", "fast0")
#: A search takes 52 trials here at least: on two busy CPUs three minutes.
MINUTES = 25
PROPOSAL = "temper-autotune.yml"
VARIABLE = "compute_environment_nccl_socket_ifname"


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


def wire() -> None:
    """Join the nodes by a cable, and limit the network that they had. Both end with the nodes."""
    network.create_cable(dict(zip(NODES, CABLE, strict=True)), "10.255.77.")
    for name in (node.unique_name for node in NODES):
        ip("-netns", name, "link", "add", "docker0", "type", "bridge")
        ip("-netns", name, "address", "add", "172.17.0.1/16", "dev", "docker0")
        ip("-netns", name, "link", "set", "docker0", "up")
        # The node's end on the host has its name: what it receives is limited.
        limit = "tbf rate 400mbit burst 256kb latency 200ms"
        subprocess.run(["tc", "qdisc", "add", "dev", name, "root", *limit.split()], check=True)


@pytest.fixture(scope="module", autouse=True)
def lab() -> Iterator[None]:
    """Two nodes with both networks, and nothing left of them afterwards."""
    with FLEET.booted():
        wire()
        yield


def tuned(folder: Path, minutes: float) -> dict[Node, Evidence]:
    """Run the playbook on both; they propose at most, and set nothing."""
    run = FLEET.playbook(
        "autotune",
        autotune_knobs=["nccl_socket_ifname"],
        autotune_minutes=minutes,
        autotune_directory=f"{folder}/{{{{ inventory_hostname }}}}",
        gpu_validation_fabric_library="gloo",
        gpu_validation_reports_directory=str(folder / "reports"),
    )
    assert run.status == 0, run.output
    left = [on_node(node, "ls /etc/nccl.conf /var/lib/temper 2>/dev/null || true") for node in NODES]
    assert "nccl.conf" not in "".join(left)
    assert not any((CHECKOUT / "inventory/lab/host_vars" / node.name).exists() for node in NODES)
    reports = folder / "reports/autotune"
    return {node: documents.read((reports / f"{node.name}.json").read_bytes()) for node in NODES}


def test_a_search_with_too_little_time_has_an_answer_for_both_nodes(tmp_path: Path) -> None:
    """Nine seconds: over while they meet, or in a trial, or no second one begins."""
    for node, evidence in tuned(tmp_path, 0.15).items():
        (knob,) = evidence.decision.knobs
        assert knob.kept is None
        assert [reason for reason in (OVER, TOO_SHORT) if reason in knob.reason]
        assert not (tmp_path / node.name / PROPOSAL).exists()


def test_a_faster_network_is_found_and_proposed_to_both_nodes_by_its_name(tmp_path: Path) -> None:
    found = tuned(tmp_path, MINUTES)
    for node, interface in zip(NODES, CABLE, strict=True):
        evidence = found[node]
        assert evidence.nodes == tuple(one.name for one in NODES)
        (knob,) = evidence.decision.knobs
        assert (knob.start, knob.kept) == ("=eth0", f"={interface}")
        (final,) = evidence.decision.final
        assert final.low is not None
        assert final.low > 0
        proposal = yaml.safe_load((tmp_path / node.name / PROPOSAL).read_text())
        assert proposal == {VARIABLE: f"={interface}"}
