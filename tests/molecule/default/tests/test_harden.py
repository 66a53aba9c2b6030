"""What an attacker meets, seen from outside and in sshd's and the kernel's own words."""

import socket
from collections.abc import Iterator

import paramiko
import pytest
from testinfra.host import Host

CLOSED_PORT = 9  # discard: nothing listens there
TIMEOUT_S = 3.0
CONNECT = "import socket, sys; print(socket.socket().connect_ex((sys.argv[1], int(sys.argv[2]))))"
CONNECTION_REFUSED = "111"


@pytest.mark.parametrize(
    "setting",
    [
        "permitrootlogin no",
        "passwordauthentication no",
        "kbdinteractiveauthentication no",
        "permitemptypasswords no",
        "pubkeyauthentication yes",
        "x11forwarding no",
        "allowagentforwarding no",
    ],
)
def test_sshd_setting_is_in_effect(host: Host, setting: str) -> None:
    """Also against the drop-in of cloud-init's kind that the image brings along, which allows passwords."""
    assert setting in host.check_output("sshd -T").splitlines()


@pytest.fixture
def transport(host: Host, addresses: dict[str, str]) -> Iterator[paramiko.Transport]:
    """A connection to the node's sshd that nobody has logged in through."""
    with (
        socket.create_connection((addresses[host.backend.host], 22), timeout=TIMEOUT_S) as connection,
        paramiko.Transport(connection) as transport,
    ):
        yield transport


def test_sshd_offers_login_by_key_only(transport: paramiko.Transport) -> None:
    transport.start_client(timeout=TIMEOUT_S)
    with pytest.raises(paramiko.BadAuthenticationType) as refusal:
        transport.auth_none("ops")
    assert refusal.value.allowed_types == ["publickey"]


def test_sshd_refuses_a_key_exchange_in_a_2048_bit_group(transport: paramiko.Transport) -> None:
    transport.get_security_options().kex = ["diffie-hellman-group14-sha256"]
    with pytest.raises(paramiko.SSHException):
        transport.start_client(timeout=TIMEOUT_S)


def test_firewall_is_silent_about_a_port_that_is_not_listed(host: Host, addresses: dict[str, str]) -> None:
    with pytest.raises(TimeoutError):
        socket.create_connection((addresses[host.backend.host], CLOSED_PORT), timeout=TIMEOUT_S)


def test_nodes_reach_every_port_of_each_other(host: Host, addresses: dict[str, str]) -> None:
    """NCCL and MPI choose their ports freely: the other node's kernel must answer, if only with a refusal."""
    others = [address for name, address in addresses.items() if name != host.backend.host]
    answers = [
        host.check_output(f"timeout 5 python3 -c '{CONNECT}' {other} {CLOSED_PORT}") for other in others
    ]
    assert answers == [CONNECTION_REFUSED] * len(others)


def test_firewall_drops_what_no_rule_accepts(host: Host) -> None:
    rules = host.check_output("nft list table inet temper")
    assert "hook input" in rules
    assert "policy drop" in rules


def test_no_change_waits_for_its_confirmation(host: Host) -> None:
    timers = host.check_output("systemctl list-timers --all --plain --no-legend").splitlines()
    assert [line for line in timers if "temper" in line and "rollback" in line] == []


def test_no_unit_has_failed(host: Host) -> None:
    assert host.check_output("systemctl list-units --failed --plain --no-legend") == ""


@pytest.mark.parametrize(
    ("key", "value"),
    [("kernel.yama.ptrace_scope", "1"), ("net.ipv4.conf.all.rp_filter", "2"), ("fs.suid_dumpable", "0")],
)
def test_hardened_kernel_parameter_is_in_effect(host: Host, key: str, value: str) -> None:
    assert host.check_output(f"sysctl --values {key}") == value


@pytest.mark.parametrize("path", ["/tmp", "/var/tmp", "/dev/shm"])
def test_shared_directories_have_no_devices_and_no_setuid_programs(host: Host, path: str) -> None:
    options = host.check_output(f"findmnt --noheadings --output VFS-OPTIONS --mountpoint {path}").split(",")
    assert {"nodev", "nosuid"} <= set(options)


def test_programs_run_in_tmp_and_jobs_share_memory(login: Host) -> None:
    assert login.run("cp /bin/true /tmp/program-$$ && /tmp/program-$$ && rm /tmp/program-$$").rc == 0
    share = (
        "import multiprocessing.shared_memory as m; s = m.SharedMemory(create=True, size=1 << 20); s.unlink()"
    )
    assert login.run(f"python3 -c '{share}'").rc == 0
