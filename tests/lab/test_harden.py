"""Nobody is locked out: changes of sshd and nftables go wrong on real nodes, which come back."""

from pathlib import Path
from typing import Any

import pytest

from tests.lab.hardening import EXPORTER, NODES, ROLLBACK_S, SOON, Hardened, changed, wait_until

pytestmark = pytest.mark.lab


@pytest.mark.smoke
def test_second_run_changes_nothing(fleet: Hardened) -> None:
    for _ in range(2):
        run = fleet.harden()
        assert changed(run) == dict.fromkeys(NODES, 0)
        assert "not asked" not in run.said
        # Then the nodes' programs are asked about what is in place, too.
        fleet.side_door("rm /run/temper/in-place.json")


def test_new_connection_is_made_and_needed(fleet: Hardened) -> None:
    """A shared connection is kept for all of Ansible's tasks; without a new one there is no confirmation.

    Two are made: one says whether the node lets anybody in, before the look from outside; one confirms.
    """
    count = (
        "journalctl --sync; journalctl --unit=ssh --grep='Accepted publickey' --quiet --output=cat | wc -l"
    )
    fleet.harden()
    before = fleet.side_door(count)
    assert fleet.harden(ssh_hardening_max_auth_tries=5).status == 0
    after = fleet.side_door(count)
    assert fleet.harden().status == 0
    assert {node: int(after[node]) - int(before[node]) for node in NODES} == dict.fromkeys(NODES, 2)


LOCK_OUTS = [
    ({"ssh_hardening_allow_users": ["alice"]}, "AllowUsers (alice) lacks the account ops"),
    (
        {"ssh_hardening_extra_options": {"PermitRotLogin": False}},
        "Bad configuration option: PermitRotLogin",
    ),
    ({"firewall_management_networks": ["192.0.2.0/24"]}, "which is in none of the management networks"),
    ({"firewall_peer_addresses": ["192.0.2.0/24"]}, "This would cut the fleet's own network off"),
    ({"ssh_hardening_user_ca_keys": ["-----BEGIN OPENSSH PRIVATE KEY-----"]}, "it is a private key"),
]
MORE_LOCK_OUTS = [
    ({"ssh_hardening_allow_groups": ["wheel"]}, "AllowGroups (wheel) has no group of ops"),
    ({"ssh_hardening_extra_options": {"AuthorizedKeysFile": "/etc/keys/%u"}}, "has no key in /etc/keys/%u"),
    ({"ssh_hardening_extra_options": {"UsePAM": False}}, "ops is locked and UsePAM is no"),
    ({"ssh_hardening_ciphers": ["rot13"]}, "OpenSSH knows none of rot13"),
    ({"firewall_management_networks": ["10.213.0.1/16"]}, "its network is 10.213.0.0/16"),
    ({"firewall_rules": [EXPORTER | {"ports": [70000]}]}, "rule 1 (exporter), ports: expected a port"),
    ({"firewall_services": {"dcgm-exporter": ["192.0.2.1"]}}, "did you mean dcgm_exporter?"),
    (
        {"ssh_hardening_extra_options": {"ListenAddress": "192.0.2.77"}},
        "sshd could not listen on 192.0.2.77:22",
    ),
    ({"ssh_hardening_rollback_after_s": 0}, "rollback_after_s: expected 5 to 3600 seconds, found 0"),
]


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        pytest.param(*LOCK_OUTS[0], marks=pytest.mark.smoke),
        *LOCK_OUTS[1:],
        *(pytest.param(*case, marks=pytest.mark.slow) for case in MORE_LOCK_OUTS),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_lock_out_that_can_be_foreseen_is_refused(
    fleet: Hardened, variables: dict[str, Any], reason: str
) -> None:
    fleet.side_door("usermod --lock ops")
    run = fleet.harden(**variables)
    assert run.status != 0
    assert reason in run.said
    assert changed(run) == dict.fromkeys(NODES, 0)


@pytest.mark.parametrize(
    ("spoil", "mend", "reason"),
    [
        ("chage -d 0 ops", "chage -d 2026-01-01 ops", "the password of ops has expired"),
        (
            "mv /home/ops/.ssh/authorized_keys /home/ops/.ssh/keys",
            "mv /home/ops/.ssh/keys /home/ops/.ssh/authorized_keys",
            "the account ops has no key",
        ),
    ],
    ids=["password-expired", "without-a-key"],
)
def test_account_that_could_not_log_in_again_is_refused(
    fleet: Hardened, spoil: str, mend: str, reason: str
) -> None:
    """The connection that Ansible shares is from before, as that of a long run is."""
    assert fleet.harden().status == 0
    fleet.side_door(spoil)
    try:
        run = fleet.harden(ssh_hardening_max_auth_tries=5, ansible_become_exe="sudo")
        assert changed(run) == dict.fromkeys(NODES, 0)
        assert reason in run.said
    finally:
        fleet.side_door(mend)
    fleet.assert_everybody_gets_in()


def test_expired_account_changes_nothing(fleet: Hardened) -> None:
    """It may do nothing as root any more, says sudo, even over a connection that is still open."""
    assert fleet.harden().status == 0
    fleet.side_door("chage -E 1 ops")
    try:
        run = fleet.harden(ssh_hardening_max_auth_tries=5)
        assert run.status != 0
        assert changed(run) == dict.fromkeys(NODES, 0)
    finally:
        fleet.side_door("chage -E -1 ops")
    fleet.assert_everybody_gets_in()


def test_key_of_ansible_that_is_revoked_is_refused(fleet: Hardened) -> None:
    key = Path(f"{fleet.lab.ssh_key}.pub").read_text()
    run = fleet.harden(ssh_hardening_revoked_keys=[key])
    assert "the account ops has no key" in run.said
    assert changed(run) == dict.fromkeys(NODES, 0)


def test_port_that_the_firewall_lacks_is_undone(fleet: Hardened) -> None:
    run = fleet.harden(firewall_ssh_ports=[22], ssh_hardening_ports=[2222], **SOON)
    assert run.status != 0
    assert "lets no new SSH connection in under the new settings of sshd" in run.said
    fleet.assert_undone(f"no new connection confirmed it within {ROLLBACK_S} s")


@pytest.mark.smoke
def test_ciphers_that_the_client_lacks_are_undone(fleet: Hardened) -> None:
    run = fleet.harden(
        ssh_hardening_ciphers=["aes256-ctr"],
        ansible_ssh_extra_args="-o Ciphers=aes128-gcm@openssh.com",
        **SOON,
    )
    assert run.status != 0
    assert "no matching cipher found" in run.output
    fleet.assert_undone(f"no new connection confirmed it within {ROLLBACK_S} s")


@pytest.mark.smoke
def test_firewall_that_lets_no_new_connection_in_is_undone(fleet: Hardened) -> None:
    """Something that nobody could foresee is in the way: here, another table."""
    trap = "type filter hook input priority 10; tcp dport 22 ct state new drop;"
    fleet.side_door(f"nft 'table inet trap {{ chain input {{ {trap} }}; }}'")
    try:
        run = fleet.harden(firewall_rules=[EXPORTER], **SOON)
        assert run.status != 0
        assert "lets no new SSH connection in under the new firewall" in run.said
        wait_until(lambda: not fleet.pending("firewall"), "the firewall is undone")
    finally:
        fleet.side_door("nft delete table inet trap")
    for rules in fleet.side_door("nft list table inet temper; cat /etc/temper/firewall.nft").values():
        assert "exporter" not in rules
    fleet.assert_undone(f"no new connection confirmed it within {ROLLBACK_S} s")


def test_sshd_that_ends_at_its_reload_is_started_again(fleet: Hardened) -> None:
    """Where it cannot listen anywhere, it is gone, and a reload of the former settings reaches nobody."""
    fleet.side_door("systemd-run --quiet --unit=busy python3 -m http.server --bind 127.0.0.1 2222")
    try:
        run = fleet.harden(ssh_hardening_ports=[2222], ssh_hardening_extra_options={"AddressFamily": "inet"})
        assert "sshd does not listen on port 2222" in run.said
    finally:
        fleet.side_door("systemctl stop busy")
    fleet.assert_everybody_gets_in()
    assert fleet.harden().status == 0


@pytest.mark.slow
def test_run_through_a_port_that_nobody_confirmed_closes_no_port(fleet: Hardened) -> None:
    """The port goes when the change is undone, so a firewall that fits it alone would keep everybody out."""
    both = {"firewall_ssh_ports": [22, 2222]}
    assert fleet.harden(**both).status == 0
    fleet.harden_and_kill("ssh", ssh_hardening_ports=[2222], **both)
    alias = "-o HostKeyAlias={{ ansible_host }}"
    run = fleet.harden(firewall_ssh_ports=[2222], ansible_port=2222, ansible_ssh_extra_args=alias, **SOON)
    assert "lets no new SSH connection in under the new firewall" in run.said
    wait_until(lambda: not fleet.pending("firewall"), "the firewall is undone")
    fleet.assert_everybody_gets_in()
    assert fleet.harden().status == 0


@pytest.mark.slow
def test_nftables_service_starts_after_an_undone_first_installation(fleet: Hardened) -> None:
    assert fleet.harden(firewall_state="absent").status == 0
    trap = "type filter hook input priority 10; tcp dport 22 ct state new drop;"
    fleet.side_door(f"nft 'table inet trap {{ chain input {{ {trap} }}; }}'")
    try:
        fleet.harden(**SOON)
        wait_until(lambda: not fleet.pending("firewall"), "the firewall is undone")
    finally:
        fleet.side_door("nft delete table inet trap")
    try:
        fleet.side_door("systemctl restart nftables")
    finally:
        fleet.side_door("systemctl stop nftables")
        assert fleet.harden().status == 0


CHANGES = pytest.mark.parametrize(
    ("change", "variables"),
    [("ssh", {"ssh_hardening_max_auth_tries": 3}), ("firewall", {"firewall_rules": [EXPORTER]})],
    ids=["ssh", "firewall"],
)


@CHANGES
def test_change_of_a_killed_controller_is_undone(
    fleet: Hardened, change: str, variables: dict[str, Any]
) -> None:
    fleet.harden_and_kill(change, **variables, **SOON)
    fleet.assert_undone(f"no new connection confirmed it within {ROLLBACK_S} s")


def test_run_after_a_killed_controller_starts_over(fleet: Hardened) -> None:
    fleet.harden_and_kill("ssh", ssh_hardening_max_auth_tries=3)
    fleet.assert_told("another run began before it was confirmed")
    timers = fleet.side_door("systemctl list-timers --no-legend 'temper-rollback-*'")
    assert not any(timers.values()), timers
    fleet.assert_everybody_gets_in()


@CHANGES
def test_reboot_before_the_confirmation_undoes(
    fleet: Hardened, change: str, variables: dict[str, Any]
) -> None:
    fleet.harden_and_kill(change, **variables)
    # The network namespace outlives the reboot: only rules that the boot loads may count.
    fleet.side_door("nft flush ruleset")
    for node in NODES:
        fleet.command("reboot", node)
    fleet.assert_undone("the node went down before a new connection confirmed it")
