"""Hardening of nodes with the shape of Rocky Linux: it converges, and is taken back.

tests/lab/rocky.py says what of it they have.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.lab import node_state, rocky
from tests.lab.fleet import Fleet, Run, assert_refused, on_node
from tests.lab.node_state import Exemption
from tests.lab.settings import Lab
from tests.lab.test_take_back import ABSENT, EXEMPTIONS

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.lab, pytest.mark.slow]

FLEET = Fleet(Lab(name="rocky"), size=3)
EIGHT, TEN, NINE = NODES = FLEET.lab.nodes(FLEET.size)
RELEASES = {EIGHT: rocky.GREEN_OBSIDIAN, NINE: rocky.BLUE_ONYX, TEN: rocky.RED_QUARTZ}
#: Enterprise Linux 8 has an sshd that reads no drop-in. The node has no firewalld, either.
SSH = {"ssh_hardening_state": "{{ 'absent' if inventory_hostname == '" + EIGHT.name + "' else 'present' }}"}
TAKEN_OVER = SSH | {"firewall_disable_other": True}
STRICT = TAKEN_OVER | {"os_hardening_profile": "stig", "ssh_hardening_ports": [22, 2222]}
LEFT = (
    Exemption(
        r"file /etc/systemd/system/nftables\.service\.d", "the undo of a take-back writes there", only="new"
    ),
    Exemption(r"file /var/(cache/dnf|lib/dnf)(/.*)?", "dnf's lists, caches and history"),
    Exemption(r"file /(var/lib|usr/lib/sysimage)/rpm/.*", "a database; its packages are compared one by one"),
)
#: An upgrade replaces files that packages have brought, where they are no %config(noreplace).
PACKAGED = "/etc/login.defs /etc/security/faillock.conf /etc/audit/auditd.conf"
SET_ASIDE, UPGRADED = f"mkdir /root/new; cp -a --parents {PACKAGED} /root/new", "cp -a /root/new/. /"
#: What programs make of it on each node: a script, and its output.
HARDENED = {
    "authselect current --raw | grep -o with-faillock; authselect check": (
        "with-faillock\nCurrent configuration is valid."
    ),
    "grep -c pam_faillock.so /etc/pam.d/system-auth /etc/pam.d/password-auth": (
        "/etc/pam.d/system-auth:3\n/etc/pam.d/password-auth:3"
    ),
    "update-crypto-policies --show": "DEFAULT",
    "rpm -q audispd-plugins | cut -d- -f1,2": "audispd-plugins",
    "stat -c %a /etc/shadow": "0",
    "grep -E '^unlock_time' /etc/security/faillock.conf": "unlock_time = 0",
    "rpm -q nss-tools | cut -d- -f1,2": "nss-tools",
}
#: Likewise, but on the first.
WAYS = {
    "systemctl is-active firewalld.service; systemctl is-enabled firewalld.service": "inactive\ndisabled",
    "nft list tables | grep -v proof": "table inet temper",
    # The crypto policy has no aes192-ctr, and none of hmac-sha1's.
    "sshd -T | grep -c -E '^(ciphers .*aes192|macs .*sha1)'": "0",
    "sshd -T | grep -E '^(passwordauthentication|x11forwarding)'": (
        "passwordauthentication no\nx11forwarding no"
    ),
}
#: SELinux's labels of ports, on the node that has it on.
LABELLED = {"semanage port -l -C -n": "ssh_port_t                     tcp      2222"}
SAID = {EIGHT: HARDENED, NINE: HARDENED | WAYS | LABELLED, TEN: HARDENED | WAYS}


@pytest.fixture(scope="module", autouse=True)
def lab() -> Iterator[None]:
    with FLEET.booted():
        with ThreadPoolExecutor() as pool:
            list(pool.map(rocky.dress, RELEASES, RELEASES.values()))
        for node in (NINE, TEN):
            on_node(
                node, "firewall-cmd --quiet --permanent --add-port=8443/tcp; firewall-cmd --quiet --reload"
            )
        # There dnf has to bring a package, and to remove it.
        on_node(
            EIGHT, "systemctl disable --quiet --now firewalld; rpm -e --justdb --nodeps nftables firewalld"
        )
        on_node(NINE, "sed -i s/^SELINUX=.*/SELINUX=enforcing/ /etc/selinux/config")
        for node in NODES:
            FLEET.command("reboot", node.name)
        yield


def harden(**variables: object) -> Run:
    return FLEET.playbook("harden", None, **variables)


def settled(**variables: object) -> None:
    run = harden(**variables)
    assert run.status == 0, run.output
    assert {node.name: run.changed(node) for node in NODES} == {node.name: 0 for node in NODES}, run.output


def said() -> dict[str, dict[str, str]]:
    return {
        node.name: {script: on_node(node, f"{{ {script}; }} || :").strip() for script in scripts}
        for node, scripts in SAID.items()
    }


def test_what_stands_in_the_way_is_known_before_any_role_changes_a_thing() -> None:
    """Each node has several obstacles, and says all of them at once."""
    masquerade = "firewall-cmd --quiet --permanent --{}-masquerade; firewall-cmd --quiet --reload"
    on_node(NINE, masquerade.format("add"))
    on_node(TEN, "echo '# by hand' >>/etc/authselect/system-auth")
    on_node(EIGHT, "mv /etc/authselect/authselect.conf /root/")
    try:
        refused = harden(firewall_disable_other=True, ssh_hardening_ports=[22, 443])
    finally:
        on_node(NINE, masquerade.format("remove"))
        on_node(TEN, "sed -i '/# by hand/d' /etc/authselect/system-auth")
        on_node(EIGHT, "mv /root/authselect.conf /etc/authselect/")
    assert_refused(refused, *(f"{node.name} is refused; nothing was changed on it" for node in NODES))
    assert_refused(refused, "knows no Include", "names no profile", "authselect check", "443 (http_port_t)")
    assert_refused(refused, "zone public (masquerade)", "waive the control failed-logins")
    assert {node.name: refused.changed(node) for node in NODES} == {node.name: 0 for node in NODES}
    ours = "ls -d /etc/temper /etc/ssh/sshd_config.d/00-temper.conf /var/lib/temper/settings 2>/dev/null || :"
    assert [on_node(node, ours) for node in NODES] == ["", "", ""]


def test_nodes_are_hardened_stay_so_and_are_given_back() -> None:
    wanted = {node.name: dict(scripts) for node, scripts in SAID.items()}
    for node in NODES:
        on_node(node, SET_ASIDE)
    before = node_state.capture_all(NODES)
    assert_refused(harden(**SSH), "firewalld filters here as well", "firewall_disable_other: true")
    assert_refused(harden(firewall_disable_other=True), "knows no Include", "ssh_hardening_state: absent")

    first = harden(**TAKEN_OVER)
    assert first.status == 0, first.output
    assert "which is what the site offers of it" in first.said
    assert on_node(EIGHT, "rpm -q nftables").startswith("nftables-")
    settled(**TAKEN_OVER)
    strict = harden(**STRICT)
    assert strict.status == 0, strict.output
    settled(**STRICT)
    assert said() == wanted
    for node in NODES:
        FLEET.command("reboot", node.name)
    assert said() == wanted
    settled(**STRICT)

    for node in NODES:
        on_node(node, UPGRADED)
    back = harden(**ABSENT)
    assert back.status == 0, back.output
    settled(**ABSENT)
    found = []
    for node, after in node_state.capture_all(NODES).items():
        differing = node_state.compare(before[node], after, (*EXEMPTIONS, *LEFT))
        found += [f"{node.name}: {difference}" for difference in differing]
    assert not found, "\n".join(found)
    for node in (NINE, TEN):
        assert on_node(node, "firewall-cmd --list-ports").split() == ["8443/tcp"]
