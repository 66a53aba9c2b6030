"""sshd on real nodes: what is in effect, what ssh-audit says, how it is activated."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.lab import node as machine
from tests.lab.hardening import NODES, ROLLBACK_S, SOON, Hardened, changed, wait_until
from tests.lab.settings import CHECKOUT

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.lab


def test_setting_that_another_file_overrules_is_refused(fleet: Hardened) -> None:
    fleet.side_door("echo 'PasswordAuthentication yes' >/etc/ssh/sshd_config.d/00-aaa.conf")
    try:
        run = fleet.harden()
    finally:
        fleet.side_door("rm /etc/ssh/sshd_config.d/00-aaa.conf")
    assert "PasswordAuthentication is yes, expected no (/etc/ssh/sshd_config.d/00-aaa.conf:1" in run.said


def test_configuration_that_reads_no_drop_ins_is_refused(fleet: Hardened) -> None:
    fleet.side_door("sed -i 's/^Include/#Include/' /etc/ssh/sshd_config")
    try:
        run = fleet.harden()
    finally:
        fleet.side_door("sed -i 's/^#Include/Include/' /etc/ssh/sshd_config")
    assert "put the line `Include /etc/ssh/sshd_config.d/*.conf` at its top" in run.said


def test_port_of_ssh_moves_and_comes_back(fleet: Hardened, tmp_path: Path) -> None:
    """Even where -e names the former port, which no fact can change."""
    assert fleet.harden(ssh_hardening_ports=[2222], ansible_port=22).status == 0
    for node in NODES:
        assert fleet.login(node, 2222).returncode == 0
        assert "Connection refused" in fleet.login(node, 22).stderr
    assert fleet.harden(*through(2222, fleet, tmp_path), ssh_hardening_ports=[22]).status == 0
    fleet.assert_everybody_gets_in()
    assert fleet.harden().status == 0


def through(port: int, fleet: Hardened, folder: Path) -> tuple[str, ...]:
    """Have Ansible come through another port from the start."""
    moved = folder / "hosts.json"
    hosts = {
        node: {
            "ansible_port": port,
            "ansible_ssh_extra_args": f"-o HostKeyAlias={fleet.nodes[node].address}",
        }
        for node in NODES
    }
    moved.write_text(json.dumps({"gpu_nodes": {"hosts": hosts}}))
    return ("--inventory", "inventory/lab", "--inventory", str(moved))


def audit(address: str) -> list[tuple[str, str, str]]:
    """What ssh-audit fails or warns about: (kind, algorithm, complaint)."""
    program = str(Path(sys.executable).with_name("ssh-audit"))
    # Its rate test is a flood, which the firewall's own test covers.
    command = [program, "--skip-rate-test", "--json", address]
    report = json.loads(subprocess.run(command, capture_output=True, text=True).stdout)
    assert report["cves"] == []
    kinds = ("kex", "key", "enc", "mac")
    assert all(report[kind] for kind in kinds), "ssh-audit reads nothing"
    return [
        (kind, entry["algorithm"], complaint)
        for kind in kinds
        for entry in report[kind]
        for severity in ("fail", "warn")
        for complaint in entry["notes"].get(severity, [])
    ]


def test_ssh_audit_finds_nothing_but_the_waivers_of_the_documentation(fleet: Hardened) -> None:
    page = (CHECKOUT / "docs/operate/hardening.md").read_text()
    for node in NODES:
        unexpected = [
            (kind, algorithm, complaint)
            for kind, algorithm, complaint in audit(fleet.nodes[node].address)
            if f"| `{algorithm}` | {complaint} |" not in page
        ]
        assert unexpected == [], node


def test_ssh_audit_finds_nothing_where_every_key_exchange_is_post_quantum(fleet: Hardened) -> None:
    specs = yaml.safe_load((CHECKOUT / "roles/ssh_hardening/meta/argument_specs.yml").read_text())
    usual = specs["argument_specs"]["main"]["options"]["ssh_hardening_kex_algorithms"]["default"]
    quantum = [name for name in usual if name.startswith(("mlkem", "sntrup"))]
    run = fleet.harden(ssh_hardening_kex_algorithms=quantum)
    assert run.status == 0, run.output
    assert [audit(fleet.nodes[node].address) for node in NODES] == [[], []]
    assert fleet.harden().status == 0


def test_settings_that_need_files_are_in_effect_and_go_again(fleet: Hardened) -> None:
    key = Path(f"{fleet.lab.ssh_key}.pub").read_text()
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


def test_second_factor_and_lower_limits_of_a_site_stay(fleet: Hardened) -> None:
    site = (
        "KbdInteractiveAuthentication yes\nAuthenticationMethods publickey,keyboard-interactive:pam\n"
        "MaxAuthTries 2\nMatch User ops\n    AuthenticationMethods publickey\n"
    )
    file = "/etc/ssh/sshd_config.d/40-site.conf"
    fleet.side_door(f"printf '{site}' >{file}; systemctl reload ssh")
    try:
        run = fleet.harden()
        assert run.status == 0, run.output
        assert "MaxAuthTries 2, which is stricter than 4" in run.output
        assert changed(fleet.harden()) == dict.fromkeys(NODES, 0)
        for text in fleet.side_door("sshd -T -C user=games,host=x,addr=192.0.2.1").values():
            assert "authenticationmethods publickey,keyboard-interactive:pam" in text
            assert "kbdinteractiveauthentication yes" in text
            assert "maxauthtries 2" in text
    finally:
        fleet.side_door(f"rm {file}; systemctl reload ssh")
        assert fleet.harden().status == 0
    for text in fleet.side_door("sshd -T").values():
        assert "authenticationmethods publickey\n" in text
        assert "maxauthtries 4" in text


def test_block_of_the_site_that_opens_a_weaker_way_in_is_refused_before_anything_changes(
    fleet: Hardened,
) -> None:
    file = "/etc/ssh/sshd_config.d/40-site.conf"
    block = "Match User games\n    AuthenticationMethods password\n    PasswordAuthentication yes\n"
    fleet.side_door(f"printf '{block}' >{file}")
    try:
        refused = fleet.harden(ssh_hardening_max_auth_tries=3)
        assert f"{file}:2 (Match User games) lets games in by password" in refused.said
        assert "maxauthtries 4" in fleet.side_door("sshd -T")["gpu01"]
        assert fleet.harden(ssh_hardening_accepted_matches=["User games"]).status == 0
    finally:
        fleet.side_door(f"rm {file}; systemctl reload ssh")
        assert fleet.harden().status == 0


def test_group_exchange_uses_large_groups_only(fleet: Hardened) -> None:
    sizes = fleet.side_door(
        "awk '{print $5}' $(sshd -T | awk '/^modulifile/ {print $2}') | sort -nu | head -1"
    )
    assert {int(size) for size in sizes.values()} == {3071}


@pytest.mark.slow
def test_socket_activated_sshd_is_hardened_and_never_masked(fleet: Hardened) -> None:
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


SOCKET, GENERATOR = "/etc/systemd/system/ssh.socket", "/etc/systemd/system-generators/sshd-socket-generator"


@pytest.fixture
def like_ubuntu(fleet: Hardened) -> Iterator[Hardened]:
    """Systemd listens in sshd's place, where sshd's Port says, as in Ubuntu since 24.04."""
    write = ""
    for path in (SOCKET, GENERATOR):
        text = (CHECKOUT / "tests/lab/ubuntu_ssh" / Path(path).name).read_text()
        write += f"mkdir -p {Path(path).parent}; printf %s {shlex.quote(text)} >{path};"
    units = "systemctl disable ssh.service; systemctl enable ssh.socket"
    try:
        fleet.side_door(
            f"{write} chmod 755 {GENERATOR}; systemctl daemon-reload; {units}; "
            "systemctl stop ssh.service; systemctl start ssh.socket"
        )
        yield fleet
    finally:
        fleet.side_door(
            "systemctl stop temper-firewall ssh.socket ssh.service; systemctl disable ssh.socket; "
            f"rm -f {SOCKET} {GENERATOR} /etc/ssh/sshd_config.d/00-temper.conf; systemctl daemon-reload; "
            "systemctl enable ssh.service; systemctl start ssh.service"
        )
        assert fleet.harden().status == 0


def at(port: str) -> dict[str, set[str]]:
    """One port on every node."""
    return {node: {port} for node in NODES}


def listening(fleet: Hardened) -> dict[str, set[str]]:
    """The ports that systemd or sshd listen on, by node."""
    listings = fleet.side_door("ss -Hltnp | grep -E 'sshd|systemd'")
    return {
        node: {line.split()[3].rpartition(":")[2] for line in text.splitlines()}
        for node, text in listings.items()
    }


@pytest.mark.slow
def test_port_of_a_socket_activated_sshd_moves_and_comes_back(like_ubuntu: Hardened, tmp_path: Path) -> None:
    fleet = like_ubuntu
    run = fleet.harden(ssh_hardening_ports=[2222])
    assert run.status == 0, run.output
    assert "ssh.socket takes its ports at a `systemctl daemon-reload`" in run.said
    assert listening(fleet) == at("2222")
    moved = through(2222, fleet, tmp_path)
    fleet.harden(*moved, ssh_hardening_ports=[2222])  # the firewall closes the former port
    assert changed(fleet.harden(*moved, ssh_hardening_ports=[2222])) == dict.fromkeys(NODES, 0)
    # Not by the lab, which waits for port 22.
    boot = "cat /proc/sys/kernel/random/boot_id"
    before = fleet.side_door(boot)
    nodes = list(fleet.nodes.values())
    for node in nodes:
        machine.shut_down(node, "reboot")
    for node in nodes:

        def rebooted(name: str = node.name) -> bool:
            answer = fleet.login(name, 2222, command=boot)
            return answer.returncode == 0 and answer.stdout.strip() not in before[name]

        wait_until(rebooted, f"{node.name} is back and answers at the new port")
    assert fleet.harden(*moved, ssh_hardening_ports=[22]).status == 0
    assert listening(fleet) == at("22")
    fleet.assert_everybody_gets_in()


@pytest.mark.slow
def test_port_of_a_socket_activated_sshd_that_nobody_reaches_is_undone(like_ubuntu: Hardened) -> None:
    fleet = like_ubuntu
    run = fleet.harden(firewall_ssh_ports=[22], ssh_hardening_ports=[2222], **SOON)
    assert "lets no new SSH connection in under the new settings of sshd" in run.said
    fleet.assert_undone(f"no new connection confirmed it within {ROLLBACK_S} s")
    assert listening(fleet) == at("22")


@pytest.mark.slow
@pytest.mark.parametrize("reboots", [False, True], ids=["timer", "reboot"])
def test_port_of_a_socket_activated_sshd_comes_back_after_a_killed_controller(
    like_ubuntu: Hardened, reboots: bool
) -> None:
    fleet = like_ubuntu
    when: dict[str, Any] = {} if reboots else SOON
    # The firewall has nothing to confirm: it was so before.
    fleet.harden_and_kill("ssh", firewall_ssh_ports=[22], ssh_hardening_ports=[2222], **when)
    if reboots:
        for node in NODES:
            fleet.command("reboot", node)
    reason = (
        "the node went down before a new connection confirmed it"
        if reboots
        else f"no new connection confirmed it within {ROLLBACK_S} s"
    )
    fleet.assert_undone(reason)
    assert listening(fleet) == at("22")


@pytest.mark.slow
def test_port_that_a_drop_in_of_ssh_socket_decides_is_refused(like_ubuntu: Hardened) -> None:
    fleet = like_ubuntu
    drop_in = "/etc/systemd/system/ssh.socket.d/listen.conf"
    fleet.side_door(
        f"mkdir -p {Path(drop_in).parent}; printf '[Socket]\nListenStream=2200\n' >{drop_in}; "
        "systemctl daemon-reload"
    )
    try:
        refused = fleet.harden(firewall_ssh_ports=[22], ssh_hardening_ports=[2222])
        assert f"take ListenStream out of {drop_in}" in refused.said
        assert changed(refused) == dict.fromkeys(NODES, 0)
    finally:
        fleet.side_door(f"rm -r {Path(drop_in).parent}; systemctl daemon-reload")
