"""All hardening is taken back: each node is what it was, file by file, and what is in force."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.lab import node_state
from tests.lab.fleet import Fleet, Run
from tests.lab.node_state import VOLATILE
from tests.lab.settings import Lab

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.lab

FLEET = Fleet(Lab(name="takeback"))
NODES = FLEET.lab.nodes(FLEET.size)
STATES = ("admin_accounts", "firewall", "ssh_hardening", "os_hardening")
ABSENT = {f"{role}_state": "absent" for role in STATES}
EXEMPTIONS = VOLATILE


@pytest.fixture(scope="module", autouse=True)
def lab() -> Iterator[None]:
    """Two bare nodes, and nothing left of them afterwards."""
    FLEET.command("down")
    FLEET.command("up")
    yield
    FLEET.command("down")


def harden(**variables: object) -> Run:
    run = FLEET.playbook("harden", None, **variables)
    assert run.status == 0, run.output
    return run


def test_all_hardening_taken_back_leaves_the_nodes_as_they_were(tmp_path: Path) -> None:
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    strict = {
        "admin_accounts_users": [
            {"name": "alice", "keys": [key.with_suffix(".pub").read_text()], "groups": ["adm"]}
        ],
        "firewall_rules": [{"name": "exporter", "ports": [9100], "sources": ["10.213.0.0/16"]}],
        "ssh_hardening_max_auth_tries": 3,
        "os_hardening_profile": "cis-level2",
    }
    before = {node: node_state.capture(node) for node in NODES}
    harden()
    harden(**strict)
    harden(**ABSENT)
    assert {node.name: harden(**ABSENT).changed(node) for node in NODES} == dict.fromkeys(
        (node.name for node in NODES), 0
    )
    for node in NODES:
        after = node_state.capture(node)
        node_state.store(before[node], Path(f"/tmp/proofwork/tb-before-{node.name}.json"))
        node_state.store(after, Path(f"/tmp/proofwork/tb-after-{node.name}.json"))
        differences = node_state.compare(before[node], after, EXEMPTIONS)
        Path(f"/tmp/proofwork/tb-{node.name}.diff").write_text("\n".join(map(str, differences)))
        assert not differences, "\n".join(map(str, differences))
