"""sshd on real nodes: what is in effect, what ssh-audit says, how it is activated."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.hardening import NODES, ROOT, Fleet, changed

pytestmark = pytest.mark.lab


def test_setting_that_another_file_overrules_is_refused(fleet: Fleet) -> None:
    fleet.side_door("echo 'PasswordAuthentication yes' >/etc/ssh/sshd_config.d/00-aaa.conf")
    try:
        run = fleet.harden()
    finally:
        fleet.side_door("rm /etc/ssh/sshd_config.d/00-aaa.conf")
    assert "PasswordAuthentication is yes, expected no (/etc/ssh/sshd_config.d/00-aaa.conf:1" in run.said


def test_configuration_that_reads_no_drop_ins_is_refused(fleet: Fleet) -> None:
    fleet.side_door("sed -i 's/^Include/#Include/' /etc/ssh/sshd_config")
    try:
        run = fleet.harden()
    finally:
        fleet.side_door("sed -i 's/^#Include/Include/' /etc/ssh/sshd_config")
    assert "put the line `Include /etc/ssh/sshd_config.d/*.conf` at its top" in run.said


def test_port_of_ssh_moves_and_comes_back(fleet: Fleet, tmp_path: Path) -> None:
    """Even where -e names the former port, which no fact can change."""
    assert fleet.harden(ssh_hardening_ports=[2222], ansible_port=22).status == 0
    for node in NODES:
        assert fleet.login(node, 2222).returncode == 0
        assert "Connection refused" in fleet.login(node, 22).stderr
    moved = tmp_path / "hosts.json"
    hosts = {
        node: {
            "ansible_port": 2222,
            "ansible_ssh_extra_args": f"-o HostKeyAlias={fleet.nodes[node]['address']}",
        }
        for node in NODES
    }
    moved.write_text(json.dumps({"gpu_nodes": {"hosts": hosts}}))
    inventories = ("--inventory", "inventory/lab", "--inventory", str(moved))
    assert fleet.harden(*inventories, ssh_hardening_ports=[22]).status == 0
    fleet.assert_everybody_gets_in()
    assert fleet.harden().status == 0


def audit(address: str) -> list[tuple[str, str, str]]:
    """What ssh-audit fails or warns about: (kind, algorithm, complaint)."""
    program = str(Path(sys.executable).with_name("ssh-audit"))
    # Its rate test is a flood, which the firewall's own test covers.
    command = [program, "--skip-rate-test", "--json", address]
    report = json.loads(subprocess.run(command, capture_output=True, text=True).stdout)
    assert report["cves"] == []
    return [
        (kind, entry["algorithm"], complaint)
        for kind in ("kex", "key", "enc", "mac")
        for entry in report[kind]
        for severity in ("fail", "warn")
        for complaint in entry["notes"].get(severity, [])
    ]


def test_ssh_audit_finds_nothing_but_the_waivers_of_the_documentation(fleet: Fleet) -> None:
    page = (ROOT / "docs" / "hardening.md").read_text()
    for node in NODES:
        found = audit(fleet.nodes[node]["address"])
        assert found, "ssh-audit reads nothing"
        unexpected = [
            (kind, algorithm, complaint)
            for kind, algorithm, complaint in found
            if f"| `{algorithm}` | {complaint} |" not in page
        ]
        assert unexpected == [], node


def test_settings_that_need_files_are_in_effect_and_go_again(fleet: Fleet) -> None:
    key = Path(f"{fleet.status['ssh_key']}.pub").read_text()
    fleet.side_door("groupadd --force --users ops data 2>/dev/null || groupadd --force data")
    run = fleet.harden(
        ssh_hardening_banner="No trespassing",
        ssh_hardening_user_ca_keys=[key],
        ssh_hardening_forwarding_groups=["data"],
        ssh_hardening_penalty_exempt_networks=["10.213.0.0/16", "::/0"],
    )
    assert run.status == 0, run.output
    for node in NODES:
        assert "No trespassing" in fleet.login(node).stderr
    settings = fleet.side_door("sshd -T; usermod -aG data ops; sshd -T -C user=ops,host=x,addr=192.0.2.1")
    for node, text in settings.items():
        assert "trustedusercakeys /etc/ssh/temper_user_ca_keys" in text, node
        assert "hostkey /etc/ssh/ssh_host_ecdsa_key" not in text
        assert "allowtcpforwarding no" in text
        assert "allowtcpforwarding local" in text
    # Debian 13's OpenSSH has penalties.
    assert "persourcepenaltyexemptlist 10.213.0.0/16" in settings["gpu02"]
    fleet.side_door("gpasswd -d ops data; groupdel data")
    assert fleet.harden().status == 0
    for names in fleet.side_door("ls /etc/ssh").values():
        assert "temper_banner" not in names
        assert "ssh_host_ecdsa_key" in names
        assert "temper_moduli" in names


def test_group_exchange_uses_large_groups_only(fleet: Fleet) -> None:
    sizes = fleet.side_door(
        "awk '{print $5}' $(sshd -T | awk '/^modulifile/ {print $2}') | sort -nu | head -1"
    )
    assert {int(size) for size in sizes.values()} == {3071}


def test_socket_activated_sshd_is_hardened_and_never_masked(fleet: Fleet) -> None:
    fleet.side_door("systemctl stop ssh.service; systemctl start ssh.socket")
    try:
        run = fleet.harden(ssh_hardening_max_auth_tries=3)
        assert run.status == 0, run.output
        assert changed(run) == dict.fromkeys(NODES, 2)
        fleet.assert_everybody_gets_in()
        refused = fleet.harden(ssh_hardening_ports=[2222])
        assert "Here ssh.socket decides on which ports sshd is reached" in refused.said
        for state in fleet.side_door("systemctl is-enabled ssh.socket || true").values():
            assert "masked" not in state
    finally:
        fleet.side_door("systemctl stop ssh.socket ssh.service; systemctl start ssh.service")
        fleet.harden()
