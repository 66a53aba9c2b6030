"""Nobody is locked out: changes of sshd and nftables go wrong on real nodes, which come back by themselves.

These tests have a lab of their own, because they break ways into its nodes.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.lab

ROOT = Path(__file__).resolve().parents[2]
ROLLBACK_S = 6
PATIENCE_S = 30  # for what happens within a second or two on an idle machine
NODES = ("gpu01", "gpu02")  # Debian 12 and 13
ENVIRONMENT = {
    **os.environ,
    "LAB_NAME": "lockout",
    "LAB_NODES": str(len(NODES)),
    "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
    "ANSIBLE_TIMEOUT": "4",
    "LC_ALL": "C.UTF-8",
}
EXPORTER = {"name": "exporter", "ports": [9100], "sources": ["10.213.0.0/16", "fd00::/8"]}
# A new connection never gets anywhere with it; one that is shared needs no new one.
NO_NEW_CONNECTION = '-o ProxyCommand="sleep 600"'


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {PATIENCE_S} s: {what}"
        time.sleep(0.2)


class Fleet:
    """The lab's nodes: Ansible's way in, an administrator's, and the side door."""

    def __init__(self) -> None:
        self.status: dict[str, Any] = json.loads(self.lab("status", "--json"))
        self.nodes = {node["name"]: node for node in self.status["nodes"]}
        # The plan has no part in hardening.
        self.variables: dict[str, Any] = {
            "preflight_plan": {},
            "firewall_management_networks": ["10.213.0.0/16"],
            "firewall_rollback_after_s": ROLLBACK_S,
            "ssh_hardening_rollback_after_s": ROLLBACK_S,
        }

    def lab(self, *arguments: str) -> str:
        command = [sys.executable, "-m", "tests.lab", *arguments]
        return subprocess.run(
            command, cwd=ROOT, env=ENVIRONMENT, check=True, capture_output=True, text=True
        ).stdout

    def side_door(self, command: str) -> dict[str, str]:
        return {node: self.lab("shell", node, "sh", "-c", command) for node in NODES}

    def playbook(self, *arguments: str, **variables: Any) -> list[str]:
        return [
            str(Path(sys.executable).with_name("ansible-playbook")),
            "playbooks/harden.yml",
            "--skip-tags=os_hardening",
            "--extra-vars",
            json.dumps(self.variables | variables),
            *arguments,
        ]

    def harden(self, *arguments: str, **variables: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.playbook(*arguments, **variables),
            cwd=ROOT,
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            check=False,
        )

    def harden_and_kill(self, change: str, **variables: Any) -> None:
        """Apply a change and kill Ansible, with SIGKILL, before it can confirm it."""
        ping = [str(Path(sys.executable).with_name("ansible")), "gpu_nodes", "--module-name", "ping"]
        subprocess.run(ping, cwd=ROOT, env=ENVIRONMENT, check=True, capture_output=True)
        controller = subprocess.Popen(
            self.playbook(ansible_ssh_extra_args=NO_NEW_CONNECTION, **variables),
            cwd=ROOT,
            env=ENVIRONMENT,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            wait_until(lambda: self.pending(change) == set(NODES), f"the change of {change} is applied")
        finally:
            os.killpg(controller.pid, signal.SIGKILL)
            controller.wait()

    def pending(self, change: str) -> set[str]:
        states = self.side_door(f"test -d /var/lib/temper/rollback/{change} && echo pending; true")
        return {node for node, state in states.items() if state}

    def login(self, node: str, port: int = 22) -> subprocess.CompletedProcess[str]:
        """Log in over a new connection."""
        options = {
            "ControlPath": "none",
            "BatchMode": "yes",
            "ConnectTimeout": "3",
            "HostKeyAlias": self.nodes[node]["address"],
            "IdentityFile": self.status["ssh_key"],
            "Port": str(port),
            "StrictHostKeyChecking": "yes",
            "UserKnownHostsFile": self.status["known_hosts"],
        }
        arguments = [f"-o{name}={value}" for name, value in options.items()]
        command = ["ssh", "-F/dev/null", *arguments, f"ops@{self.nodes[node]['address']}", "true"]
        return subprocess.run(command, check=False, capture_output=True, text=True)

    def assert_everybody_gets_in(self) -> None:
        for node in NODES:
            assert self.login(node).returncode == 0, node

    def assert_undone(self, reason: str) -> None:
        """Wait for the undo, which the next run tells of."""
        wait_until(lambda: not self.pending("ssh") | self.pending("firewall"), "the change is undone")
        self.assert_everybody_gets_in()
        self.assert_told(reason)

    def assert_told(self, reason: str) -> None:
        """Run again: that tells of an undo and finds nothing else to do."""
        run = self.harden()
        assert run.returncode == 0, run.stdout
        assert f"was undone because {reason}" in run.stdout + run.stderr
        assert changed(run) == dict.fromkeys(NODES, 0)


def said(run: subprocess.CompletedProcess[str]) -> str:
    """Ansible's output without its line breaks."""
    return " ".join(run.stdout.split())


def changed(run: subprocess.CompletedProcess[str]) -> dict[str, int]:
    """The number of changed tasks by node, as the recap has it."""
    recap = run.stdout.partition("PLAY RECAP")[2].splitlines()
    lines = [line.split(":", 1) for line in recap if " changed=" in line]
    return {name.strip(): int(counts.split("changed=")[1].split()[0]) for name, counts in lines}


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    command = [sys.executable, "-m", "tests.lab"]
    subprocess.run([*command, "up"], cwd=ROOT, env=ENVIRONMENT, check=True)
    try:
        fleet = Fleet()
        run = fleet.harden()
        assert run.returncode == 0, run.stdout
        yield fleet
    finally:
        subprocess.run([*command, "down"], cwd=ROOT, env=ENVIRONMENT, check=True)


def test_second_run_changes_nothing(fleet: Fleet) -> None:
    assert changed(fleet.harden()) == dict.fromkeys(NODES, 0)


def test_new_connection_is_made_and_needed(fleet: Fleet) -> None:
    """A shared connection is kept for all of Ansible's tasks; without a new one there is no confirmation."""
    count = (
        "journalctl --sync; journalctl --unit=ssh --grep='Accepted publickey' --quiet --output=cat | wc -l"
    )
    fleet.harden()
    before = fleet.side_door(count)
    assert fleet.harden(ssh_hardening_max_auth_tries=5).returncode == 0
    after = fleet.side_door(count)
    assert fleet.harden().returncode == 0
    assert {node: int(after[node]) - int(before[node]) for node in NODES} == dict.fromkeys(NODES, 1)


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"ssh_hardening_allow_users": ["alice"]}, "AllowUsers (alice) lacks the account ops"),
        ({"ssh_hardening_allow_groups": ["wheel"]}, "AllowGroups (wheel) has no group of ops"),
        (
            {"ssh_hardening_extra_options": {"AuthorizedKeysFile": "/etc/keys/%u"}},
            "has no key in /etc/keys/%u",
        ),
        ({"ssh_hardening_extra_options": {"UsePAM": False}}, "ops is locked and UsePAM is no"),
        (
            {"ssh_hardening_extra_options": {"PermitRotLogin": False}},
            "Bad configuration option: PermitRotLogin",
        ),
        ({"ssh_hardening_ciphers": ["rot13"]}, "OpenSSH knows none of rot13"),
        ({"firewall_management_networks": ["192.0.2.0/24"]}, "which is in none of the management networks"),
        ({"firewall_management_networks": ["10.213.0.1/16"]}, "its network is 10.213.0.0/16"),
        ({"firewall_rules": [EXPORTER | {"ports": [70000]}]}, "rule 1 (exporter), ports: expected a port"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_lock_out_that_can_be_foreseen_is_refused(
    fleet: Fleet, variables: dict[str, Any], reason: str
) -> None:
    fleet.side_door("usermod --lock ops")
    run = fleet.harden(**variables)
    assert run.returncode != 0
    assert reason in said(run)
    assert changed(run) == dict.fromkeys(NODES, 0)


def test_setting_that_another_file_overrules_is_refused(fleet: Fleet) -> None:
    fleet.side_door("echo 'PasswordAuthentication yes' >/etc/ssh/sshd_config.d/00-aaa.conf")
    try:
        run = fleet.harden()
    finally:
        fleet.side_door("rm /etc/ssh/sshd_config.d/00-aaa.conf")
    assert "PasswordAuthentication is yes, expected no (/etc/ssh/sshd_config.d/00-aaa.conf:1" in said(run)


def test_configuration_that_reads_no_drop_ins_is_refused(fleet: Fleet) -> None:
    fleet.side_door("sed -i 's/^Include/#Include/' /etc/ssh/sshd_config")
    try:
        run = fleet.harden()
    finally:
        fleet.side_door("sed -i 's/^#Include/Include/' /etc/ssh/sshd_config")
    assert "put the line `Include /etc/ssh/sshd_config.d/*.conf` at its top" in said(run)


def test_ciphers_that_the_client_lacks_are_undone(fleet: Fleet) -> None:
    run = fleet.harden(
        ssh_hardening_ciphers=["aes256-ctr"], ansible_ssh_extra_args="-o Ciphers=aes128-gcm@openssh.com"
    )
    assert run.returncode != 0
    assert "no matching cipher found" in run.stdout
    fleet.assert_undone(f"no new connection confirmed it within {ROLLBACK_S} s")


def test_firewall_that_lets_no_new_connection_in_is_undone(fleet: Fleet) -> None:
    """Something that nobody could foresee is in the way: here, another table."""
    trap = "type filter hook input priority 10; tcp dport 22 ct state new drop;"
    fleet.side_door(f"nft 'table inet trap {{ chain input {{ {trap} }}; }}'")
    try:
        run = fleet.harden(firewall_rules=[EXPORTER])
        assert run.returncode != 0
        assert "lets no new SSH connection in under the new firewall" in said(run)
        wait_until(lambda: not fleet.pending("firewall"), "the firewall is undone")
    finally:
        fleet.side_door("nft delete table inet trap")
    for rules in fleet.side_door("nft list table inet temper; cat /etc/temper/firewall.nft").values():
        assert "exporter" not in rules
    fleet.assert_undone(f"no new connection confirmed it within {ROLLBACK_S} s")


SLOW = {"firewall_rollback_after_s": 600, "ssh_hardening_rollback_after_s": 600}
CHANGES = pytest.mark.parametrize(
    ("change", "variables"),
    [("ssh", {"ssh_hardening_max_auth_tries": 3}), ("firewall", {"firewall_rules": [EXPORTER]})],
    ids=["ssh", "firewall"],
)


@CHANGES
def test_change_of_a_killed_controller_is_undone(
    fleet: Fleet, change: str, variables: dict[str, Any]
) -> None:
    fleet.harden_and_kill(change, **variables)
    fleet.assert_undone(f"no new connection confirmed it within {ROLLBACK_S} s")


def test_run_after_a_killed_controller_starts_over(fleet: Fleet) -> None:
    fleet.harden_and_kill("ssh", ssh_hardening_max_auth_tries=3, **SLOW)
    fleet.assert_told("another run began before it was confirmed")
    fleet.assert_everybody_gets_in()


@CHANGES
def test_reboot_before_the_confirmation_undoes(fleet: Fleet, change: str, variables: dict[str, Any]) -> None:
    fleet.harden_and_kill(change, **variables, **SLOW)
    # The network namespace outlives the reboot: only rules that the boot loads may count.
    fleet.side_door("nft flush ruleset")
    for node in NODES:
        fleet.lab("reboot", node)
    fleet.assert_undone("the node went down before a new connection confirmed it")


def test_firewall_follows_what_the_kernel_holds_and_leaves_other_tables_alone(fleet: Fleet) -> None:
    fleet.side_door("nft 'add rule inet temper input tcp dport 23 accept'; nft add table ip docker_like")
    run = fleet.harden("--diff")
    assert "-\t\ttcp dport 23 accept" in run.stdout
    for listing in fleet.side_door("nft list ruleset; nft delete table ip docker_like").values():
        assert "dport 23" not in listing
        assert "table ip docker_like" in listing


def test_firewall_comes_back_when_nftables_service_flushes_everything(fleet: Fleet) -> None:
    fleet.side_door("systemctl start nftables")
    fleet.harden()
    for command in ("restart", "reload"):
        fleet.side_door(f"systemctl {command} nftables")
        for node in NODES:
            wait_until(
                lambda node=node: "temper" in fleet.lab("shell", node, "nft", "list", "tables"),  # type: ignore[misc]
                f"the table is back on {node} after a {command}",
            )
    fleet.side_door("systemctl stop nftables")
    fleet.harden()


def connects(address: str, port: int) -> bool:
    with contextlib.suppress(TimeoutError):
        socket.create_connection((address, port), timeout=2).close()
        return True
    return False


def test_packets_pass_where_a_rule_says_so_and_nowhere_else(fleet: Fleet) -> None:
    for port in (9100, 9101):
        fleet.side_door(f"systemd-run --quiet --unit=listen-{port} python3 -m http.server --bind :: {port}")
    try:
        assert fleet.harden(firewall_rules=[EXPORTER]).returncode == 0
        for node in NODES:
            for address in (fleet.nodes[node]["address"], fleet.nodes[node]["address6"]):
                wait_until(lambda address=address: connects(address, 9100), "the exporter answers")  # type: ignore[misc]
                assert not connects(address, 9101)
    finally:
        fleet.side_door("systemctl stop listen-9100 listen-9101")
        fleet.harden()


def test_port_of_ssh_moves_and_comes_back(fleet: Fleet, tmp_path: Path) -> None:
    assert fleet.harden(ssh_hardening_ports=[2222]).returncode == 0
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
    assert fleet.harden(*inventories, ssh_hardening_ports=[22]).returncode == 0
    fleet.assert_everybody_gets_in()
    assert fleet.harden().returncode == 0


def test_absent_restores_what_was_there(fleet: Fleet) -> None:
    run = fleet.harden(firewall_state="absent", ssh_hardening_state="absent")
    assert run.returncode == 0, run.stdout
    for node, state in fleet.side_door("nft list tables; ls /etc/temper; sshd -T").items():
        assert "temper" not in state, node
        assert "passwordauthentication yes" in state
    fleet.assert_everybody_gets_in()
