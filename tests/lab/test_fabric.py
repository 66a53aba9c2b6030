"""Collectives between real nodes over their network: a node that is slow or cannot take part is named.

The payload and its rounds as the playbook runs them, without Ansible between: four bare nodes, gloo.
"""

import dataclasses
import json
import os
import re
import secrets
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from temper.judge.fabric import judge_fabric
from temper.judge.fabric_search import next_rounds
from tests.lab.settings import CHECKOUT, Lab
from validation.cli import archive
from validation.fabric.groups import Attempt, Fleet, Member, Pairs, Part, groups_of, make_orders
from validation.model.contract import FABRIC_VERSION, ContractError, dumps, loads

pytestmark = [pytest.mark.lab, pytest.mark.slow]

LAB = Lab(name="rails")
NODES = LAB.nodes(4)
THIRD = NODES[2]
ENVIRONMENT = {**os.environ, "LAB_NAME": LAB.name, "LAB_NODES": "4"}
PAYLOAD = "/run/temper-validation.pyz"
PYTHON = "/opt/temper/venv/bin/python3"
#: A group takes seconds; the machine may be busy.
TIMEOUT_S = 900


def lab_command(*arguments: str, given: bytes | None = None) -> str:
    """Run one of the lab's own commands."""
    command = [sys.executable, "-m", "tests.lab", *arguments]
    done = subprocess.run(
        command,
        cwd=CHECKOUT,
        env=ENVIRONMENT,
        input=given,
        stdout=subprocess.PIPE,
        check=True,
        timeout=TIMEOUT_S,
    )
    return done.stdout.decode()


def on(node: str, command: str, given: bytes | None = None) -> str:
    return lab_command("shell", node, "sh", "-c", command, given=given)


@pytest.fixture(scope="module", autouse=True)
def lab() -> Iterator[None]:
    """Four nodes with the payload, and nothing left of them afterwards."""
    lab_command("down")
    lab_command("up")
    try:
        for node in NODES:
            on(node.name, f"cat > {PAYLOAD}", archive.build())
        yield
    finally:
        lab_command("down")


def measure(fleet: Fleet, groups: Sequence[tuple[str, ...]]) -> Fleet:
    """Run a round as the playbook does: all nodes that have an order at once."""
    orders = make_orders(fleet, groups, secrets.token_hex(8))

    def attempt(name: str) -> Attempt:
        order = orders[name]
        group = tuple(member.name for member in order.group)
        try:
            answer = on(name, f"{PYTHON} {PAYLOAD} fabric --order=-", dumps(order).encode())
            return Attempt(group, loads(Part, answer))
        except (subprocess.CalledProcessError, ContractError) as error:
            return Attempt(group, None, str(error))

    with ThreadPoolExecutor(len(orders)) as pool:
        found = dict(zip(orders, pool.map(attempt, orders), strict=True))
    return dataclasses.replace(fleet, rounds=(*fleet.rounds, found))


def measure_all_rounds(floor_gb_s: float = 0) -> Fleet:
    members = tuple(Member(node.name, node.address, 1) for node in NODES)
    fleet = Fleet(FABRIC_VERSION, "gloo", "quick", 29511, Pairs.AUTO, members, floor_gb_s=floor_gb_s)
    while rounds := next_rounds(fleet):
        for groups in rounds:
            fleet = measure(fleet, groups)
    return fleet


def states(fleet: Fleet) -> dict[str, str]:
    return {name: str(verdict.state) for name, verdict in judge_fabric(fleet).items()}


def test_nodes_measure_together_over_their_network() -> None:
    # So much any network does: nothing is left to find out.
    fleet = measure_all_rounds(floor_gb_s=0.001)
    assert set(states(fleet).values()) == {"pass"}, json.dumps(json.loads(dumps(fleet)), indent=1)
    assert len(fleet.rounds) == 1
    (group,) = groups_of(fleet.rounds[0])
    assert group.measurements[-1].conditions["ranks"] == 4
    assert group.busbw_gb_s > 0


@pytest.mark.slow
def test_a_node_behind_a_slow_link_is_named_and_no_other() -> None:
    link = f"{LAB.name}-{THIRD.name}"
    tc = [
        "tc",
        "qdisc",
        "add",
        "dev",
        link,
        "root",
        "tbf",
        "rate",
        "100mbit",
        "burst",
        "64kb",
        "latency",
        "200ms",
    ]
    subprocess.run(tc, check=True)
    try:
        fleet = measure_all_rounds()
    finally:
        subprocess.run(["tc", "qdisc", "del", "dev", link, "root"], check=True)
    verdicts = judge_fabric(fleet)
    assert states(fleet) == {node.name: "fail" if node is THIRD else "pass" for node in NODES}
    (finding,) = verdicts[THIRD.name].findings
    assert finding.code == "fabric-node"
    # A number, also on a busy machine: it never ran out of time.
    assert re.match(rf"{THIRD.name} reaches [\d.]+ GB/s with .*: its network is slow", finding.text), (
        finding.text
    )


def test_a_node_that_cannot_run_its_part_is_not_run_and_the_others_go_on_without_it() -> None:
    on(THIRD.name, f"mv {PAYLOAD} {PAYLOAD}.gone")
    try:
        fleet = measure_all_rounds()
    finally:
        on(THIRD.name, f"mv {PAYLOAD}.gone {PAYLOAD}")
    assert states(fleet) == {node.name: "not-run" if node is THIRD else "pass" for node in NODES}
