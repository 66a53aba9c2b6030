"""What was seen from outside against the plan, and against what the node says of itself. Pure.

Where the two contradict each other, what was seen counts, and the reason says both.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from temper.compliance.model import Change, Observation, State
from temper.compliance.outside.claims import Claims
from temper.compliance.outside.expected import MARKS, Expected, SshRules, within
from temper.compliance.outside.look import ROOT, Look
from temper.compliance.outside.ports import Answer, Port
from temper.compliance.outside.ssh import NO_PROOF, SshServer, fingerprint

# isort: split

from ansible.module_utils.temper.access.sshd_matches import Block, Who, meets_account
from ansible.module_utils.temper.access.sshd_strictness import as_strict

METHODS, LOGIN_AS_ROOT = "ssh-methods", "ssh-root"
ALGORITHMS, HOST_KEYS, PORTS = "ssh-algorithms", "ssh-host-keys", "ports"
KEYS = (METHODS, LOGIN_AS_ROOT, ALGORITHMS, HOST_KEYS, PORTS)
INTERACTIVE = "keyboard-interactive"
#: The criterion of a Match line that names accounts.
USER = "user"


def judge(
    seen: Look, wanted: Expected, claims: Claims | None, passing: Collection[str] = ()
) -> tuple[Observation, ...]:
    """Return an observation for each of `KEYS`.

    `claims` is what the node says of itself, None where it was not asked; `passing` are the controls that
    pass by its own word.
    """
    if seen.problem:
        return tuple(_open(key, seen.problem) for key in KEYS)
    return (
        _methods(METHODS, seen, wanted.ssh, claims, passing),
        _methods(LOGIN_AS_ROOT, seen, wanted.ssh, claims, passing),
        _algorithms(seen.servers[0], wanted.ssh, passing),
        _host_keys(seen, claims or Claims()),
        _ports(seen, wanted, claims or Claims(), passing),
    )


def unseen(reason: str) -> tuple[Observation, ...]:
    """Return the observations of a node that has no outside to be looked at from."""
    return tuple(Observation(key, (), State.NOT_APPLICABLE, reason) for key in KEYS)


def _open(key: str, reason: str) -> Observation:
    return Observation(key, (), State.NOT_CHECKED, reason)


def _failed(
    key: str, what: str, changes: Sequence[Change], control: str, passing: Collection[str]
) -> Observation:
    said = f"; the node itself says that {control} is as it should be" if control in passing else ""
    return Observation(key, (), State.FAIL, f"seen from this machine, {what}{said}", tuple(changes))


def _methods(
    key: str, seen: Look, rules: SshRules | None, claims: Claims | None, passing: Collection[str]
) -> Observation:
    """Return whether no server offers an account, root or all others, more than the plan lets it."""
    if rules is None:
        return Observation(key, (), State.NOT_APPLICABLE, "the plan leaves sshd as it is")
    changes, doubtful, problems = [], [], [one.problem for one in seen.servers if one.problem]
    for server in seen.servers:
        for account, offered in server.methods.items():
            if (account == ROOT) is not (key == LOGIN_AS_ROOT):
                continue
            extra = set(offered) - rules.methods
            if not extra or (NO_PROOF not in extra and _accepted(account, rules.accepted)):
                continue
            if extra == {INTERACTIVE} and (claims is None or _after_a_key(claims.methods)):
                # The first of two factors, or all that it takes: only another step would show it.
                doubtful.append(f"{account} may begin with {INTERACTIVE}")
                continue
            found = "a login without any proof" if NO_PROOF in extra else ", ".join(sorted(offered))
            place = f"{account} at {_place(server.address, server.port)}"
            changes.append(Change(place, found, ", ".join(sorted(rules.methods))))
    if changes:
        return _failed(
            key, "sshd offers methods that the plan does not have", changes, "ssh_hardening/sshd", passing
        )
    # With what the node says of it, a second factor that comes first explains what was seen.
    if doubtful and claims is None:
        return _open(key, f"{'; '.join(doubtful)}: nobody sees from outside what follows it")
    asked = {account for server in seen.servers[:1] for account in server.methods}
    if problems or (ROOT not in asked if key == LOGIN_AS_ROOT else not asked - {ROOT}):
        return _open(key, problems[0] if problems else "the server was not asked")
    return Observation(key, (), State.PASS, "")


def _accepted(account: str, criteria: Sequence[str]) -> bool:
    """Return whether the operator accepts a Match block of the site that may be about the account.

    One that names groups or addresses may be about any.
    """
    blocks = [Block("", text) for text in criteria]
    return any(
        {name for name, _ in block.tests} != {USER} or meets_account(block, Who(account)) for block in blocks
    )


def _after_a_key(methods: str) -> bool:
    """Return whether each list of AuthenticationMethods has a key in it, wherever it stands."""
    return bool(methods) and as_strict("AuthenticationMethods", [methods], ["publickey"])


def _algorithms(server: SshServer, rules: SshRules | None, passing: Collection[str]) -> Observation:
    """Return whether the server that Ansible comes through lists no algorithm that the plan does not have."""
    if rules is None:
        return Observation(ALGORITHMS, (), State.NOT_APPLICABLE, "the plan leaves sshd as it is")
    if server.hello is None:
        return _open(ALGORITHMS, server.problem or "the server was not asked")
    offered = {
        "KexAlgorithms": server.hello.kex,
        "Ciphers": server.hello.ciphers,
        "MACs": server.hello.macs,
    }
    extra = {name: set(offered[name]) - planned - set(MARKS) for name, planned in rules.algorithms.items()}
    if rules.host_keys:
        keys = {name for name in server.hello.host_keys if not name.startswith(rules.host_keys)}
        extra["HostKeyAlgorithms"] = keys
    changes = [Change(name, ", ".join(sorted(more)), "not offered") for name, more in extra.items() if more]
    if changes:
        what = "sshd offers algorithms that the plan does not have"
        return _failed(ALGORITHMS, what, changes, "ssh_hardening/sshd", passing)
    return Observation(ALGORITHMS, (), State.PASS, "")


def _host_keys(seen: Look, claims: Claims) -> Observation:
    """Return whether each key is known to this machine, or, of a type that is not, the node's own."""
    server = seen.servers[0]
    if not server.host_keys:
        return _open(HOST_KEYS, server.problem or "the server was not asked")
    own: dict[str, set[str]] = {}
    for text in claims.host_keys:
        kind, _, key = text.partition(" ")
        own.setdefault(kind, set()).add(key)
    changes, unknown = [], []
    for kind, key in server.host_keys.items():
        for known, whose in ((seen.known_keys, "this machine knows"), (own, "the node says it has")):
            if kind in known:
                if key not in known[kind]:
                    names = ", ".join(sorted(map(fingerprint, known[kind])))
                    changes.append(Change(kind, fingerprint(key), f"{names}, which {whose}"))
                break
        else:
            unknown.append(kind)
    if changes:
        what = "sshd has host keys that are not the node's, as another machine in its place would"
        return _failed(HOST_KEYS, what, changes, "", ())
    if unknown and len(unknown) == len(server.host_keys):
        return _open(HOST_KEYS, f"this machine knows no key of the node of type {', '.join(unknown)}")
    return Observation(HOST_KEYS, (), State.PASS, "")


def _ports(seen: Look, wanted: Expected, claims: Claims, passing: Collection[str]) -> Observation:
    """Return whether nothing answers that the plan does not open to this machine, and what it opens does."""
    if seen.through:
        reason = (
            f"this machine reaches it through {seen.through} alone: no port of it is open to this machine"
        )
        return Observation(PORTS, (), State.NOT_APPLICABLE, reason)
    if wanted.openings is None:
        return Observation(PORTS, (), State.NOT_APPLICABLE, "the plan has no firewall")
    sources = {one.source for one in seen.ports if one.source}
    if not sources:
        return _open(PORTS, "no port of it answers this machine")
    if translated := _translated(sources, claims, wanted):
        return _open(PORTS, translated)
    if any(within(one, wanted.peers) for one in sources):
        reason = "this machine is of the fleet, to which the plan opens every port"
        return Observation(PORTS, (), State.NOT_APPLICABLE, reason)
    changes = [change for one in seen.ports for change in _of_port(one, sources, wanted, claims)]
    if changes:
        what = "ports answer otherwise than the plan has it"
        return _failed(PORTS, what, changes, "firewall/firewall", passing)
    return Observation(PORTS, (), State.PASS, "")


def _translated(sources: Collection[str], claims: Claims, wanted: Expected) -> str:
    """Return why it is unknown who this machine is to the node; empty where its own address tells it.

    Behind a translation of addresses the node sees another one, for which it alone can vouch. It could name
    one of the fleet's, to which everything is open.
    """
    if claims.client and claims.client not in sources and within(claims.client, wanted.peers):
        return f"the node says that this machine comes from {claims.client}, an address of the fleet"
    return ""


def _of_port(one: Port, sources: Collection[str], wanted: Expected, claims: Claims) -> Iterator[Change]:
    """Compare a port with what the plan opens to this machine's addresses of the same IP version."""
    own = [one.source] if one.source else [*sources]
    own = [text for text in (*own, claims.client) if text and (":" in text) is (":" in one.address)]
    opened = {source: opening for source in own if (opening := wanted.opening(one.port, source))}
    place = f"tcp {_place(one.address, one.port)}"
    if one.answer is Answer.OPEN and not opened:
        unheard = claims.listening and one.port not in claims.listening
        listens = ", where the node says that nothing listens" if unheard else ""
        yield Change(place, f"open to {one.source}{listens}", "closed")
    elif one.answer is Answer.SILENT and opened and one.port in claims.listening:
        source, opening = next(iter(opened.items()))
        yield Change(place, "no answer", f"open to {source} ({opening.name}), where the node says it listens")


def _place(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
