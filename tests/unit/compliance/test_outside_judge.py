"""What was seen from outside, against the plan and against what the node says of itself."""

from dataclasses import replace
from typing import Any

import pytest

from temper.compliance.model import Observation, State, Verdict
from temper.compliance.outside.claims import MOST_ACCOUNTS, Claims, ClaimsError, read_claims
from temper.compliance.outside.expected import Expected, expected
from temper.compliance.outside.hello import Hello
from temper.compliance.outside.judge import KEYS, METHODS, PORTS, judge
from temper.compliance.outside.look import NOBODY, Look
from temper.compliance.outside.ports import Answer, Port
from temper.compliance.outside.ssh import NO_PROOF, SshServer
from temper.compliance.statement import OUTSIDE_TITLES, statement
from temper.plan.node_plan import NodePlan
from tests.unit.compliance.fleets import RULES, checked, plan
from tests.unit.each import each

NODE, HERE, PEER = "192.0.2.7", "198.51.100.1", "192.0.2.8"
KEY, OTHER_KEY = "A" * 32, "B" * 32
RULE = {"name": "web", "protocol": "tcp", "ports": ["8000-8010"], "sources": ["198.51.100.0/24"]}
NETWORKS = {"firewall_management_networks": ["198.51.100.0/24"], "firewall_peer_addresses": ["192.0.2.0/24"]}
HELLO = Hello(
    "SSH-2.0-x",
    ("curve25519-sha256", "kex-strict-s-v00@openssh.com"),
    ("ssh-ed25519", "rsa-sha2-512"),
    ("aes256-gcm@openssh.com",),
    ("hmac-sha2-512-etm@openssh.com",),
)
SERVER = SshServer(
    NODE, 22, HELLO, {"ssh-ed25519": KEY}, dict.fromkeys(("ops", "root", NOBODY), ("publickey",))
)
GOOD = Look((SERVER,), (Port(NODE, 22, Answer.OPEN, HERE, b"SSH-2.0"),), {"ssh-ed25519": {KEY}})


def wanted(**variables: Any) -> Expected:
    # Without the cache, whose keys cannot be lists.
    made: NodePlan = plan.__wrapped__(**NETWORKS | variables)
    return expected({role.role: role for role in made.roles if not role.options.absent}, 22)


def states(seen: Look, claims: Claims | None, **variables: Any) -> dict[str, State]:
    return {one.key: one.state for one in judge(seen, wanted(**variables), claims)}


def server(**changes: Any) -> Look:
    return replace(GOOD, servers=(replace(SERVER, **changes),))


def offering(account: str, *methods: str) -> Look:
    return server(methods={**SERVER.methods, account: methods})


def answering(*ports: Port) -> Look:
    return replace(GOOD, ports=(*GOOD.ports, *ports))


def test_statement_has_a_title_for_each_control() -> None:
    assert list(OUTSIDE_TITLES) == list(KEYS)


def test_node_that_is_as_planned_passes() -> None:
    assert set(states(GOOD, Claims()).values()) == {State.PASS}


EXTRA = {"ssh_hardening_extra_options": {"PasswordAuthentication": True, "AuthenticationMethods": "any"}}
SECOND = {
    "ssh_hardening_extra_options": {
        "AuthenticationMethods": "publickey,password keyboard-interactive,publickey"
    }
}
OPEN = Port(NODE, 8000, Answer.OPEN, HERE)


@each(
    # Methods
    (offering("ops", "password", "publickey"), Claims(), {}, {"ssh-methods": State.FAIL}),
    (offering(NOBODY, "password"), Claims(), {}, {"ssh-methods": State.FAIL}),
    (offering("games", NO_PROOF), Claims(), {}, {"ssh-methods": State.FAIL}),
    (offering("root", "password"), Claims(), {}, {"ssh-root": State.FAIL}),
    (offering("ops", "password", "publickey"), Claims(), EXTRA, {}),
    (offering("ops", "gssapi-with-mic"), Claims(), EXTRA, {"ssh-methods": State.FAIL}),
    (offering("ops", "keyboard-interactive", "publickey"), Claims(), SECOND, {}),
    (offering("ops", "password"), Claims(), SECOND, {"ssh-methods": State.FAIL}),
    # The first of two factors looks like the only one
    (offering("ops", "keyboard-interactive"), Claims(), {}, {"ssh-methods": State.FAIL}),
    (
        offering("ops", "keyboard-interactive"),
        Claims(methods="keyboard-interactive:pam,publickey"),
        {},
        {},
    ),
    (
        offering("ops", "keyboard-interactive"),
        Claims(methods="keyboard-interactive,publickey password"),
        {},
        {"ssh-methods": State.FAIL},
    ),
    (offering("ops", "keyboard-interactive"), None, {}, {"ssh-methods": State.NOT_CHECKED}),
    # Blocks of the site that the operator accepts
    (offering("games", "password"), Claims(), {"ssh_hardening_accepted_matches": ["User games"]}, {}),
    (offering("games", "password"), Claims(), {"ssh_hardening_accepted_matches": ["Group sftponly"]}, {}),
    (
        offering("ops", "password"),
        Claims(),
        {"ssh_hardening_accepted_matches": ["User games"]},
        {"ssh-methods": State.FAIL},
    ),
    (
        offering("games", NO_PROOF),
        Claims(),
        {"ssh_hardening_accepted_matches": ["User games"]},
        {"ssh-methods": State.FAIL},
    ),
    # Another server of the node
    (
        replace(GOOD, servers=(SERVER, SshServer(NODE, 2222, HELLO, {}, {"ops": ("password",)}))),
        Claims(),
        {},
        {"ssh-methods": State.FAIL},
    ),
    # What could not be asked
    (
        server(methods={"ops": ("publickey",)}, problem="hung"),
        Claims(),
        {},
        {"ssh-methods": State.NOT_CHECKED, "ssh-root": State.NOT_CHECKED},
    ),
    (
        server(hello=None, host_keys={}, methods={}, problem="refused"),
        Claims(),
        {},
        {key: State.NOT_CHECKED for key in KEYS if key != PORTS},
    ),
    # Algorithms
    (
        server(hello=replace(HELLO, ciphers=("aes128-cbc",))),
        Claims(),
        {},
        {"ssh-algorithms": State.FAIL},
    ),
    (
        server(hello=replace(HELLO, kex=("diffie-hellman-group1-sha1",))),
        Claims(),
        {},
        {"ssh-algorithms": State.FAIL},
    ),
    (server(hello=replace(HELLO, macs=("hmac-md5",))), Claims(), {}, {"ssh-algorithms": State.FAIL}),
    (
        server(hello=replace(HELLO, host_keys=("ecdsa-sha2-nistp256",))),
        Claims(),
        {},
        {"ssh-algorithms": State.FAIL},
    ),
    (
        server(hello=replace(HELLO, ciphers=("aes128-cbc",))),
        Claims(),
        {"ssh_hardening_extra_options": {"ciphers": "aes128-cbc,aes256-ctr"}},
        {},
    ),
    (
        server(hello=replace(HELLO, ciphers=("aes128-cbc",))),
        Claims(),
        {"ssh_hardening_extra_options": {"Ciphers": "+aes128-cbc"}},
        {},
    ),
    # Host keys
    (server(host_keys={"ssh-ed25519": OTHER_KEY}), Claims(), {}, {"ssh-host-keys": State.FAIL}),
    (
        replace(GOOD, known_keys={}),
        Claims(host_keys=(f"ssh-ed25519 {OTHER_KEY}",)),
        {},
        {"ssh-host-keys": State.FAIL},
    ),
    (replace(GOOD, known_keys={}), Claims(host_keys=(f"ssh-ed25519 {KEY}",)), {}, {}),
    (replace(GOOD, known_keys={}), Claims(), {}, {"ssh-host-keys": State.NOT_CHECKED}),
    # The node's own word does not outweigh what this machine knows
    (
        server(host_keys={"ssh-ed25519": OTHER_KEY}),
        Claims(host_keys=(f"ssh-ed25519 {OTHER_KEY}",)),
        {},
        {"ssh-host-keys": State.FAIL},
    ),
    # Ports
    (answering(OPEN), Claims(), {}, {PORTS: State.FAIL}),
    (
        answering(replace(OPEN, address="2001:db8::7", source="2001:db8::1")),
        Claims(),
        {},
        {PORTS: State.FAIL},
    ),
    (answering(OPEN), Claims(), {"firewall_rules": [RULE]}, {}),
    (answering(replace(OPEN, port=8011)), Claims(), {"firewall_rules": [RULE]}, {PORTS: State.FAIL}),
    (
        answering(OPEN),
        Claims(),
        {"firewall_rules": [RULE | {"sources": ["203.0.113.0/24"]}]},
        {PORTS: State.FAIL},
    ),
    (answering(OPEN), Claims(), {"firewall_rules": [RULE | {"protocol": "udp"}]}, {PORTS: State.FAIL}),
    (answering(replace(OPEN, port=9100)), Claims(), {"firewall_services": {"node_exporter": [HERE]}}, {}),
    (answering(replace(OPEN, answer=Answer.CLOSED)), Claims(), {}, {}),
    # Open by the plan, and silent: a fault where the node says that it listens
    (
        answering(replace(OPEN, answer=Answer.SILENT, source="")),
        Claims(client=HERE, listening=(8000,)),
        {"firewall_rules": [RULE]},
        {PORTS: State.FAIL},
    ),
    (
        answering(replace(OPEN, answer=Answer.SILENT, source="")),
        Claims(client=HERE),
        {"firewall_rules": [RULE]},
        {},
    ),
    # What is open over one IP version may be silent over the other
    (
        answering(Port("2001:db8::7", 8000, Answer.SILENT)),
        Claims(client=HERE, listening=(8000,)),
        {"firewall_rules": [RULE]},
        {},
    ),
    # Behind a translation of addresses the node knows who this machine is, and may not name a peer
    (
        answering(OPEN),
        Claims(client="203.0.113.9"),
        {"firewall_rules": [RULE | {"sources": ["203.0.113.9"]}]},
        {},
    ),
    (answering(OPEN), Claims(client=PEER), {}, {PORTS: State.NOT_CHECKED}),
    (GOOD, Claims(), {"firewall_peer_addresses": ["198.51.100.0/24"]}, {PORTS: State.NOT_APPLICABLE}),
    (answering(OPEN), Claims(), {"firewall_state": "absent"}, {PORTS: State.NOT_APPLICABLE}),
    (replace(GOOD, ports=()), Claims(), {}, {PORTS: State.NOT_CHECKED}),
    (replace(GOOD, through="gpu01", ports=()), Claims(), {}, {PORTS: State.NOT_APPLICABLE}),
    (Look(problem="no route"), Claims(), {}, dict.fromkeys(KEYS, State.NOT_CHECKED)),
    (
        offering("ops", "password"),
        Claims(),
        {"ssh_hardening_state": "absent"},
        dict.fromkeys(("ssh-methods", "ssh-root", "ssh-algorithms"), State.NOT_APPLICABLE),
    ),
)
def test_what_was_seen_decides(
    seen: Look, claims: Claims | None, variables: dict[str, Any], differing: dict[str, State]
) -> None:
    assert states(seen, claims, **variables) == dict.fromkeys(KEYS, State.PASS) | differing


def test_contradiction_says_what_was_seen_wanted_and_what_the_node_says() -> None:
    seen = offering("games", "password")
    found = {one.key: one for one in judge(seen, wanted(), Claims(), ["ssh_hardening/sshd"])}[METHODS]
    (change,) = found.changes
    assert (change.name, change.before, change.after) == (f"games at {NODE}:22", "password", "publickey")
    assert "the node itself says that ssh_hardening/sshd is as it should be" in found.reason


def test_port_on_which_nothing_listens_by_the_nodes_word_is_said() -> None:
    seen = answering(OPEN)
    found = {one.key: one for one in judge(seen, wanted(), Claims(listening=(22,)))}[PORTS]
    assert found.changes[0].before == f"open to {HERE}, where the node says that nothing listens"


GOOD_CLAIMS = {
    "client": HERE,
    "listening": [22],
    "accounts": ["ops"],
    "host_keys": [f"ssh-ed25519 {KEY}"],
    "methods": "publickey",
}


def test_what_a_node_says_is_read() -> None:
    assert read_claims(GOOD_CLAIMS).listening == (22,)
    assert read_claims({}) == Claims()


@each(
    None,
    [],
    {"client": "gpu02"},
    {"client": 5},
    {"listening": [0]},
    {"listening": [1 << 16]},
    {"listening": ["22"]},
    {"listening": [True]},
    {"listening": list(range(1, 1000))},
    {"accounts": ["-oProxyCommand=id"]},
    {"accounts": ["a\nb"]},
    {"accounts": ["x"] * (MOST_ACCOUNTS + 1)},
    {"host_keys": ["ssh-ed25519"]},
    {"host_keys": ["ssh-ed25519 \x1b[2J" + KEY]},
    {"methods": {}},
)
def test_what_is_no_statement_is_refused(said: object) -> None:
    with pytest.raises(ClaimsError):
        read_claims(said)


@each(("ports", "firewall"), ("ssh-root", "ssh_hardening"))
def test_statement_counts_what_was_seen_and_names_its_repair(key: str, role: str) -> None:
    node = checked()
    assert node.observations
    seen = [Observation(one, (), State.FAIL if one == key else State.PASS, "") for one in KEYS]
    (told,) = statement([replace(node, observations={**node.observations, "outside": seen})], RULES, {}).nodes
    found = {control.id: control for control in told.controls}
    assert told.verdict is Verdict.NOT_COMPLIANT
    assert {f"outside/{one}" for one in KEYS} <= found.keys()
    assert f"--tags {role}" in found[f"outside/{key}"].remedy
