"""Hardening of nodes with the shape of Ubuntu: it converges, survives a reboot, and is taken back.

tests/lab/ubuntu.py says what of Ubuntu they have.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.lab import node_state, ubuntu
from tests.lab.fleet import Fleet, Run, on_node
from tests.lab.settings import Lab
from tests.lab.test_take_back import ABSENT, EXEMPTIONS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.lab.settings import Node

pytestmark = [pytest.mark.lab, pytest.mark.slow]

FLEET = Fleet(Lab(name="ubuntu"), size=4)
ALL = FLEET.lab.nodes(FLEET.size)
RELEASES = {ALL[0]: ubuntu.JAMMY, ALL[1]: ubuntu.NOBLE, ALL[3]: ubuntu.RESOLUTE}
NODES = list(RELEASES)
#: The node whose site keeps ufw.
OWN_FIREWALL = ALL[1]
#: 26.04 has no STIG.
WITHOUT_STIG = ALL[3]
STRICT = {
    "os_hardening_profile": "{{ 'cis-level2' if inventory_hostname == '"
    + WITHOUT_STIG.name
    + "' else 'stig' }}"
}
#: An upgrade whose package brings its file in the place of the changed one.
UPGRADE = (
    "cd $(mktemp -d); apt-get download -qq libpam-modules; "
    "dpkg --force-confask,confnew --install *.deb >/dev/null; rm -f /etc/security/*.dpkg-old; "
    "grep -c ^unlock_time /etc/security/faillock.conf || :"
)
MASK = "awk '$1 == \"UMASK\" {print $2}' /etc/login.defs"
#: What programs make of it in the strictest profile: a script, and its output on every node.
SAID = {
    "sshd -T | awk '$1 == \"passwordauthentication\"'": "passwordauthentication no",
    "apt-config dump Unattended-Upgrade::Allowed-Origins | grep -c codename": "4",
    "apt-config dump Unattended-Upgrade::Origins-Pattern | grep -c =": "0",
    "systemctl is-active apport.service whoopsie.path | sort -u": "inactive",
    "sysctl -n net.ipv4.conf.all.log_martians": "1",
    "sysctl -n fs.protected_fifos": "2",
    "useradd probe 2>&1; userdel probe 2>&1": "",
    "stat -c '%a %G' /etc/cron.allow": "640 root",
}


@pytest.fixture(scope="module", autouse=True)
def lab() -> Iterator[None]:
    with FLEET.booted():
        for node, release in RELEASES.items():
            ubuntu.dress(node, release)
        on_node(OWN_FIREWALL, "ufw allow 22/tcp; ufw --force enable")
        # What the first boot alone starts, and what was installed since, is the same after every later boot.
        for node in NODES:
            FLEET.command("reboot", node.name)
        yield


def harden(**variables: object) -> Run:
    """Harden all nodes; the one with ufw keeps it."""
    others = {
        "firewall_state": "{{ 'absent' if inventory_hostname == '" + OWN_FIREWALL.name + "' else 'present' }}"
    }
    limit = ",".join(node.name for node in NODES)
    run = FLEET.run(
        [
            "ansible-playbook",
            "playbooks/harden.yml",
            "--limit",
            limit,
            "--extra-vars",
            json.dumps(others | variables),
        ]
    )
    assert run.status == 0, run.output
    return run


def settled(**variables: object) -> None:
    run = harden(**variables)
    assert {node.name: run.changed(node) for node in NODES} == dict.fromkeys([n.name for n in NODES], 0), (
        run.output
    )


def said(node: Node) -> dict[str, str]:
    return {script: on_node(node, f"{{ {script}; }} || :").strip() for script in SAID}


def a_closed_account_is_opened_by_its_key(node: Node) -> None:
    """With the STIG no time opens it, and still nobody is locked out who has a key."""
    word = "Ri9-ke8.To3-vu2"
    su = "echo {} | runuser -u nobody -- su ops -c true 2>&1 || :"
    on_node(node, f"cp -p /etc/shadow /etc/shadow- /root/; echo ops:{word} | chpasswd")
    on_node(node, f"for n in 1 2 3 4 5; do {su.format('wrong')}; done")
    try:
        assert "locked" in on_node(node, su.format(word))
        if node != WITHOUT_STIG:
            assert on_node(node, "grep -E '^ *unlock_time *= *0$' /etc/security/faillock.conf")
        login = FLEET.run(["ansible", node.name, "--module-name", "raw", "--args", "sudo -n id -u"])
        assert login.status == 0, login.output
        assert "locked" not in on_node(node, su.format(word))
    finally:
        on_node(node, "faillock --user ops --reset; mv /root/shadow /root/shadow- /etc/")


def test_ubuntus_shape_is_hardened_by_its_own_benchmark_stays_so_and_is_given_back() -> None:
    before = node_state.capture_all(NODES)
    first = harden()
    for release in (
        "22.04 LTS Benchmark 2.0.0",
        "24.04 LTS Benchmark 1.0.0",
        "as 26.04 has none of its own yet",
    ):
        assert release in first.said, first.output
    settled()
    harden(**STRICT)
    assert {node.name: on_node(node, MASK).strip() for node in NODES} == {
        node.name: "027" if node == WITHOUT_STIG else "077" for node in NODES
    }
    settled(**STRICT)
    for node in NODES:
        a_closed_account_is_opened_by_its_key(node)
    on_node(OWN_FIREWALL, "ufw reload")
    assert {node.name: said(node) for node in NODES} == {node.name: SAID for node in NODES}
    for node in NODES:
        FLEET.command("reboot", node.name)
    assert {node.name: said(node) for node in NODES} == {node.name: SAID for node in NODES}
    settled(**STRICT)
    assert [on_node(node, UPGRADE).strip() for node in NODES] == ["0"] * len(NODES)
    harden(**ABSENT)
    settled(**ABSENT)
    found = []
    for node, after in node_state.capture_all(NODES).items():
        differing = node_state.compare(before[node], after, (*EXEMPTIONS, *node_state.REMOVED))
        found += [f"{node.name}: {difference}" for difference in differing]
    assert not found, "\n".join(found)
