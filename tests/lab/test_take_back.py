"""All hardening is taken back: each node is what it was, file by file, and what is in force."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.lab import node_state
from tests.lab.fleet import Fleet, Run, new_key, on_node
from tests.lab.node_state import PURGED, REMOVED, VOLATILE, Exemption
from tests.lab.settings import Lab

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.lab, pytest.mark.slow]

FLEET = Fleet(Lab(name="takeback"))
NODES = FLEET.lab.nodes(FLEET.size)
ROLES = ("admin_accounts", "firewall", "ssh_hardening", "os_hardening")
ABSENT = {f"{role}_state": "absent" for role in ROLES}
# Beside what another role, or the operator, has set: that stays as it is.
TUNING = """
echo kernel.perf_event_paranoid = -1 >/etc/sysctl.d/95-temper-tuning.conf
sysctl --quiet --load /etc/sysctl.d/95-temper-tuning.conf
"""

ACCOUNT = "an account that was added stays, expired, with its files and groups"
EXEMPTIONS = (
    *VOLATILE,
    *PURGED,
    Exemption(r"(account|group|password) alice", ACCOUNT, only="new"),
    Exemption(r"group adm", ACCOUNT),
    Exemption(r"file /home/alice(/.*)?", ACCOUNT, only="new"),
    Exemption(
        r"(file /etc/systemd/system/(sysinit\.target\.wants/)?|unit file )temper-rollback\.service",
        "taking the ways in back is confirmed, too; it does nothing without such a change",
        only="new",
    ),
    Exemption(r"file (/etc/temper|/var/lib/temper(/rollback)?)", "empty folders", only="new"),
)


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
    """First the defaults, then much more: what a later run finds must not be taken for what was there."""
    key = new_key(tmp_path)
    alice = {"name": "alice", "keys": [key.with_suffix(".pub").read_text()], "groups": ["adm"]}
    for node in NODES:
        on_node(node, TUNING)
    before = node_state.capture_all(NODES)
    harden()
    harden(
        admin_accounts_users=[alice],
        firewall_rules=[{"name": "exporter", "ports": [9100], "sources": ["10.213.0.0/16"]}],
        ssh_hardening_max_auth_tries=3,
        os_hardening_profile="anssi-high",
    )
    harden(**ABSENT)
    again = harden(**ABSENT)
    assert {node.name: again.changed(node) for node in NODES} == {node.name: 0 for node in NODES}
    found = [
        f"{node.name}: {difference}"
        for node, after in node_state.capture_all(NODES).items()
        for difference in node_state.compare(before[node], after, (*EXEMPTIONS, *REMOVED))
    ]
    assert not found, "\n".join(found)
