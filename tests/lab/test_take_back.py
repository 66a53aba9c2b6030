"""All hardening is taken back: each node is what it was, file by file, and what is in force."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.lab import node_state
from tests.lab.fleet import Fleet, Run, installed, on_node
from tests.lab.node_state import VOLATILE, Exemption
from tests.lab.settings import Lab

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from tests.lab.settings import Node

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
PACKAGES = "made by the installation of packages, which stay"
EXEMPTIONS = (
    *VOLATILE,
    Exemption(r"(account|group|password) alice", ACCOUNT, only="new"),
    Exemption(r"group adm", ACCOUNT),
    Exemption(r"file /home/alice(/.*)?", ACCOUNT, only="new"),
    Exemption(
        r"file /etc/(passwd|group|shadow|gshadow|subuid|subgid)",
        "accounts and groups are compared one by one",
        only="content",
    ),
    Exemption(
        r"(file /etc/systemd/system/(sysinit\.target\.wants/)?|unit file )temper-rollback\.service",
        "taking the ways in back is confirmed, too; it does nothing without such a change",
        only="new",
    ),
    Exemption(r"file (/etc/temper|/var/lib/temper(/rollback)?)", "empty folders", only="new"),
    Exemption(r"(account|group|password) _chrony", PACKAGES, only="new"),
    Exemption(r"file /var/lib/(dpkg|ucf)/.*", PACKAGES),
    Exemption(r"file /var/cache/(debconf|cracklib|apparmor)(/.*)?", PACKAGES),
    Exemption(r"file /etc/ld\.so\.cache", PACKAGES, only="content"),
    Exemption(r"file /etc/(alternatives|rc[0-6S]\.d)/.*", PACKAGES, only="new"),
    Exemption(r"file /var/lib/systemd/deb-systemd-helper-(enabled|masked)(/.*)?", PACKAGES, only="new"),
    Exemption(r"file /etc/systemd/system/.*\.wants/audit-rules\.service", PACKAGES, only="new"),
    Exemption(r"file /etc/(apparmor\.d|audit|chrony|cracklib)(/.*)?", PACKAGES, only="new"),
    Exemption(r"file /etc/apt/apt\.conf\.d/(20auto|50unattended)-upgrades", PACKAGES, only="new"),
    Exemption(r"file /usr/(bin|share/man)/.*", "links to alternatives of packages, which stay", only="new"),
    Exemption(r"file /usr/(lib|share)/.*/__pycache__(/.*)?", PACKAGES, only="new"),
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


def belong_to(node: Node, packages: Iterable[str]) -> set[str]:
    """The facts that installed packages bring: files, unit files, and that they are there."""
    names = sorted(packages)
    if not names:
        return set()
    # Debian's /bin, /lib and /sbin are links into /usr, where the files are.
    paths = {
        re.sub(r"^/(bin|lib\w*|sbin)(?=/)", r"/usr/\1", line)
        for line in on_node(node, f"dpkg --listfiles {' '.join(names)}").splitlines()
    }
    units = {path.rpartition("/")[2] for path in paths if "/systemd/system/" in path}
    architecture = on_node(node, "dpkg --print-architecture").strip()
    return {
        *(f"file {path}" for path in paths),
        *(f"unit file {unit}" for unit in units),
        *(f"package {name}:{kind}" for name in names for kind in ("all", architecture)),
        *(f"package mark {name}" for name in names),
    }


def test_all_hardening_taken_back_leaves_the_nodes_as_they_were(tmp_path: Path) -> None:
    """First the defaults, then much more: what a later run finds must not be taken for what was there."""
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    alice = {"name": "alice", "keys": [key.with_suffix(".pub").read_text()], "groups": ["adm"]}
    for node in NODES:
        on_node(node, TUNING)
    had = {node: installed(node).keys() for node in NODES}
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
    found = []
    for node, after in node_state.capture_all(NODES).items():
        brought = belong_to(node, installed(node).keys() - had[node])
        found += [
            f"{node.name}: {difference}"
            for difference in node_state.compare(before[node], after, EXEMPTIONS)
            if difference.before is not None or difference.name not in brought
        ]
    assert not found, "\n".join(found)
