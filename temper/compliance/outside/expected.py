"""What a node's plan lets a stranger find: methods of a login, algorithms, open ports. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from temper.plan import role_variables  # noqa: F401 - makes module_utils/ importable
from temper.plan.convert import plain
from temper.plan.node_plan import RolePlan
from temper.plan.wanted import AccountWanted, Kind
from validation.model.contract import decode, parse

# isort: split

from ansible.module_utils.temper.access.nftables_rules import (
    Network,
    Rule,
    networks,
    parse_rule,
    parse_service,
)
from ansible.module_utils.temper.access.sshd_strictness import METHODS

SSH, FIREWALL, ACCOUNTS = "ssh_hardening", "firewall", "admin_accounts"
#: Names of host key algorithms begin so, by the types that an operator names.
HOST_KEYS = {"ed25519": ("ssh-ed25519",), "rsa": ("rsa-sha2-", "ssh-rsa"), "ecdsa": ("ecdsa-sha2-",)}
#: What stands among the algorithms and is none (RFC 8308; OpenSSH's PROTOCOL, 1.10).
MARKS = ("ext-info-s", "kex-strict-s-v00@openssh.com")
LISTS = ("KexAlgorithms", "Ciphers", "MACs")


@dataclass(frozen=True)
class SshRules:
    """What sshd may offer. `algorithms` by sshd's keyword, without those that only sshd itself can list.

    `accepted` are the criteria of the site's Match blocks that may leave weaker ways in.
    """

    methods: frozenset[str]
    accepted: tuple[str, ...]
    algorithms: Mapping[str, frozenset[str]]
    host_keys: tuple[str, ...]
    ports: tuple[int, ...]


@dataclass(frozen=True)
class Expected:
    """A part is None where the plan leaves it as it is. `peers` are networks that everything is open to."""

    ssh: SshRules | None
    openings: tuple[Rule, ...] | None
    peers: tuple[Network, ...] = ()
    administrators: tuple[str, ...] = ()

    @property
    def ports(self) -> set[int]:
        """The ports that are open to somebody; of a range its ends."""
        return {port for one in self.openings or () for ends in one.ports for port in ends}

    def opening(self, port: int, source: str) -> Rule | None:
        """Return what opens a port to an address."""
        for one in self.openings or ():
            if any(first <= port <= last for first, last in one.ports) and within(source, one.sources):
                return one
        return None


def within(address: str, networks_of: Iterable[Network]) -> bool:
    """Return whether an address is in one of the networks."""
    host = ipaddress.ip_address(address.partition("%")[0])
    return any(host in network for network in networks_of)


def role_plans(fact: Mapping[str, Any]) -> dict[str, RolePlan]:
    """Return the parts of a plan (the fact) that say something about the ways in. Raises ContractError."""
    parts = {name: fact["roles"][name] for name in (SSH, FIREWALL, ACCOUNTS) if name in fact["roles"]}
    plans = {name: decode(RolePlan, parse(text), f"roles.{name}") for name, text in parts.items()}
    return {name: plan for name, plan in plans.items() if not plan.options.absent}


def expected(roles: Mapping[str, RolePlan], port: int) -> Expected:
    """Return what the plan lets a stranger find; `port` is the one that Ansible comes through.

    Raises RefusedError where the plan has what no firewall can be made of.
    """
    ssh = ssh_rules(roles[SSH]) if SSH in roles else None
    accounts = roles[ACCOUNTS].settings if ACCOUNTS in roles else ()
    present = tuple(
        one.key for one in accounts if isinstance(one.wanted, AccountWanted) and one.wanted.state == "present"
    )
    if FIREWALL not in roles:
        return Expected(ssh, None, administrators=present)
    wanted = _values(roles[FIREWALL], Kind.FIREWALL)
    ports = sorted({port, *(wanted["ssh_ports"] or (ssh.ports if ssh else ()))})
    management = networks("management_networks", wanted["management_networks"])
    openings = [Rule("SSH", "tcp", [(one, one) for one in ports], management)]
    openings += [parse_service(name, sources) for name, sources in wanted["services"].items()]
    openings += [parse_rule(place, rule) for place, rule in enumerate(wanted["rules"])]
    peers = networks("peers", wanted["peers"] or ())
    return Expected(ssh, tuple(one for one in openings if one.protocol == "tcp"), tuple(peers), present)


def ssh_rules(role: RolePlan) -> SshRules:
    """Return what sshd may offer by the role's part of the plan."""
    keywords = {name: one["value"] for name, one in _values(role, Kind.SSHD).items()}
    parameters = _values(role, Kind.SSHD_PARAMETER)
    others = {str(name).lower(): value for name, value in parameters["overrides"].items()}
    values = {name: others.get(name.lower(), value) for name, value in keywords.items()}
    lists = _values(role, Kind.SSHD_ALGORITHM)
    algorithms = {name: others.get(name.lower(), lists.get(name, [])) for name in LISTS}
    names = {
        name: str(value).split(",") if isinstance(value, str) else value for name, value in algorithms.items()
    }
    types = parameters["host_key_types"]
    ports = values.get("Port") or []
    return SshRules(
        frozenset(first_methods(values)),
        tuple(parameters["accepted_matches"]),
        # "+name" adds to what sshd has by itself, which only sshd knows.
        {name: frozenset(map(str, one)) for name, one in names.items() if str(one[0])[0] not in "+-^"},
        tuple(start for kind in types for start in HOST_KEYS[kind]),
        tuple(int(one) for one in (ports if isinstance(ports, list) else [ports])),
    )


def first_methods(keywords: Mapping[str, Any]) -> set[str]:
    """Return the methods with which a login may begin."""
    demanded = keywords.get("AuthenticationMethods", "any")
    ways = demanded if isinstance(demanded, list) else str(demanded).split()
    if ways != ["any"]:
        return {str(way).split(",")[0].partition(":")[0] for way in ways}
    on = {
        str(name).lower() for name, value in keywords.items() if value is True or str(value).lower() == "yes"
    }
    return {method for method, (switch, *_) in METHODS.items() if switch in on}


def _values(role: RolePlan, kind: Kind) -> dict[str, Any]:
    return {one.key: plain(one.wanted) for one in role.settings if one.kind == kind}
