"""How a node is reached, as the real ssh says, and which host keys this machine knows of it."""

import subprocess
from typing import Any

import pytest

from temper.compliance.outside import node
from temper.compliance.outside.look import Look
from temper.compliance.outside.ports import Answer, Port
from temper.compliance.outside.route import Route, RouteError, route
from temper.compliance.outside.ssh import SshServer
from temper.plan.ssh_client import fingerprint, host_keys
from tests.unit.compliance.fleets import plan

# isort: split
from pathlib import Path

from ansible.module_utils.temper.settings.base import RefusedError

from temper.compliance.model import Observation
from temper.compliance.outside.expected import Expected

pytestmark = pytest.mark.component

KEY = "AAAAC3NzaC1lZDI1NTE5AAAAIJLyR1Qn4Q3y0p6QeF3f2u1y0c3b8cVd0oVJ5r0T1f1N"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"host_key_checking": True}, ("192.0.2.7", 22, "ops", "192.0.2.7")),
        ({"port": 2222}, ("192.0.2.7", 2222, "ops", "[192.0.2.7]:2222")),
        ({"port": 2222, "ssh_args": "-F none -o Port=222"}, ("192.0.2.7", 222, "ops", "[192.0.2.7]:222")),
        ({"ssh_extra_args": "-o HostKeyAlias=gpu01"}, ("192.0.2.7", 22, "ops", "gpu01")),
    ],
)
def test_options_mean_what_ssh_makes_of_them(options: dict[str, Any], expected: tuple[object, ...]) -> None:
    way = route(Connection(remote_user="ops", **options))
    assert (way.host, way.port, way.user, way.known_as) == expected
    assert way.proxy == ()


@pytest.mark.parametrize(
    ("options", "through"),
    [
        ("-o ProxyJump=ada@gpu01:222", "gpu01"),
        ("-J edge,gpu01", "edge, gpu01"),
        ('-o ProxyCommand="nc -x proxy %h %p"', "proxy"),
        ("-o ProxyCommand=none", ""),
    ],
)
def test_what_lies_between_is_named(options: str, through: str) -> None:
    way = route(Connection(ssh_common_args=options))
    assert bool(way.proxy) is bool(through)
    assert through in way.through


@pytest.mark.parametrize("arguments", ['-o "unclosed', "-o NoSuchOption=1"])
def test_way_that_ssh_does_not_understand_is_an_error(arguments: str) -> None:
    with pytest.raises(RouteError):
        route(Connection(ssh_args=arguments))


def test_host_keys_come_from_all_files_hashed_or_not_without_revoked_ones(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("one", "two", "missing")]
    revoked = f"@revoked 192.0.2.7 ecdsa-sha2-nistp256 {KEY}\n"
    files[0].write_text(f"192.0.2.7 ssh-ed25519 {KEY}\n{revoked}192.0.2.8 ssh-dss {KEY}\n")
    files[1].write_text(f"192.0.2.7 ssh-rsa {KEY}\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", files[1]], check=True, capture_output=True)
    way = Route("192.0.2.7", 22, "ops", "192.0.2.7", tuple(map(str, files)))
    assert way.known_keys() == {"ssh-ed25519": {KEY}, "ssh-rsa": {KEY}}


@pytest.mark.parametrize(
    ("options", "known"),
    [
        ({"ssh_extra_args": "-o StrictHostKeyChecking=yes"}, True),
        ({"ssh_extra_args": "-o StrictHostKeyChecking=accept-new"}, True),
        ({"host_key_checking": True}, True),
        ({"host_key_checking": False}, False),
        ({"ssh_extra_args": "-o StrictHostKeyChecking=no"}, False),
        # The key that ssh has taken need not be the one in the file.
        ({"ssh_extra_args": "-o KnownHostsCommand=/bin/true -o StrictHostKeyChecking=yes"}, False),
        ({"ssh_extra_args": "-o VerifyHostKeyDNS=yes"}, False),
        ({"ssh_extra_args": "-o NoHostAuthenticationForLocalhost=yes"}, False),
        ({"port": 2222}, False),
        ({"ssh_args": '-o "unclosed'}, False),
        ({"transport": "docker"}, False),
    ],
)
def test_host_keys_count_where_ssh_checks_them(options: dict[str, Any], known: bool, tmp_path: Path) -> None:
    file = tmp_path / "known"
    file.write_text(
        f"192.0.2.7 ssh-ed25519 {KEY}\n192.0.2.8 ssh-rsa {KEY}\n@cert-authority *.example ssh-rsa {KEY}\n"
        f"@revoked 192.0.2.7 ssh-rsa {KEY}\n"
    )
    files = f"-o UserKnownHostsFile={file} -o GlobalKnownHostsFile=/dev/null"
    asked = Connection(**{"ssh_common_args": files, **options})
    assert host_keys(asked) == (f"ssh-ed25519 {fingerprint(KEY)}",) * known
    # An authority has vouched for it: the key may be an old one.
    file.write_text(file.read_text() + f"@cert-authority 192.0.2.* ssh-rsa {KEY}\n")
    assert host_keys(asked) == ()


def test_a_node_that_is_this_machine_has_its_keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-N", "", "-f", tmp_path / "ssh_host_ed25519_key"], check=True)
    monkeypatch.setattr("temper.plan.ssh_client.OWN_KEYS", tmp_path)
    shown = subprocess.run(
        ["ssh-keygen", "-l", "-f", tmp_path / "ssh_host_ed25519_key.pub"], check=True, capture_output=True
    )
    # What is left of keys that sshd has no more, and keys that it has not by itself.
    (tmp_path / "ssh_host_rsa_key.pub").write_text(f"ssh-rsa {KEY}\n")
    for name in ("ssh_host_old_key", "ssh_host_old_key.pub"):
        (tmp_path / name).write_text(f"ssh-ed25519 {KEY}\n")
    (found,) = host_keys(Connection("local"))
    assert found.split()[1] == shown.stdout.decode().split()[1]


class Connection:
    """A connection to a node, as Ansible has it."""

    def __init__(self, transport: str = "ssh", **options: object) -> None:
        self.transport = transport
        self.options = {"host": "192.0.2.7", "ssh_args": "-F none", **options}

    def get_option(self, option: str) -> object:
        return self.options.get(option)


def fact(**variables: Any) -> dict[str, Any]:
    return plan(**variables).as_fact()


def seen_by(connection: Connection) -> tuple[Observation, ...]:
    outside = node.Outside(connection)
    outside.expect(fact())
    return outside.observations({}, {})


def test_node_that_is_not_reached_by_ssh_has_no_outside() -> None:
    found = seen_by(Connection("local"))
    assert {one.state for one in found} == {"not-applicable"}


def test_node_whose_way_is_unknown_is_not_checked() -> None:
    found = seen_by(Connection(ssh_args="-o NoSuchOption=1"))
    assert {one.state for one in found} == {"not-checked"}


def test_plan_that_no_firewall_can_be_made_of_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object) -> Expected:
        raise RefusedError("a port is missing")

    monkeypatch.setattr(node, "look", lambda *_: Look())
    monkeypatch.setattr(node, "expected", refuses)
    assert {(one.state, one.reason) for one in seen_by(Connection())} == {
        ("not-checked", "the plan cannot be carried out: a port is missing")
    }


def test_look_that_fails_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> Look:
        raise RuntimeError("x")

    monkeypatch.setattr(node, "look", fails)
    found = seen_by(Connection())
    assert {(one.state, one.reason) for one in found} == {
        ("not-checked", "it could not be looked at: RuntimeError: x")
    }


def test_look_that_breaks_keeps_no_change_from_being_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*_: object) -> Look:
        raise RuntimeError("x")

    monkeypatch.setattr(node, "look_at_ssh", breaks)
    failure, (warning,) = node.contradicted("ssh", fact(), Connection())
    assert failure == ""
    assert "RuntimeError" in warning


@pytest.mark.parametrize(
    ("methods", "problem", "failed", "warned"),
    [
        (("publickey",), "", False, False),
        (("password", "publickey"), "", True, False),
        # Nobody sees what follows it, and a good change must not fail for that.
        (("keyboard-interactive",), "", False, True),
        ((), "it hangs", False, True),
    ],
)
def test_change_of_sshd_is_contradicted_by_what_is_seen_alone(
    methods: tuple[str, ...], problem: str, failed: bool, warned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered = dict.fromkeys(("ops", "root"), methods) if methods else {}
    server = SshServer("192.0.2.7", 22, methods=offered, problem=problem)
    monkeypatch.setattr(node, "look_at_ssh", lambda *_: Look((server,)))
    failure, warnings = node.contradicted("ssh", fact(), Connection())
    assert (bool(failure), bool(warnings)) == (failed, warned)


def test_ports_that_answer_beside_the_rules_are_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are forwarded: to take the rules back would close nothing."""
    ports = [Port("192.0.2.7", port, Answer.OPEN, "198.51.100.1") for port in (22, 8080)]
    monkeypatch.setattr(node, "look", lambda *_, **__: Look((SshServer("192.0.2.7", 22),), tuple(ports)))
    failure, (warning,) = node.contradicted("firewall", fact(), Connection())
    assert failure == ""
    assert "192.0.2.7:8080" in warning


@pytest.mark.parametrize(
    ("seen", "state", "reason"),
    [
        (Look((SshServer("192.0.2.7", 22),), (), through="bastion"), "not-applicable", "bastion"),
        (Look((SshServer("192.0.2.7", 22),)), "not-checked", "no port of it answers"),
        (Look(problem="it took too long"), "not-checked", "it took too long"),
    ],
)
def test_a_firewall_is_confirmed_with_the_looks_that_were_not_taken(
    seen: Look, state: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "look", lambda *_, **__: seen)
    failure, (warning,) = node.contradicted("firewall", fact(), Connection())
    assert failure == ""
    assert [one for one in ("outside/ports", state, reason) if one not in warning] == []


def test_accounts_have_nothing_that_a_stranger_sees() -> None:
    assert node.contradicted("accounts", fact(), Connection()) == ("", [])
