"""From checked input to the text of our nftables table. Nothing here touches a node."""

from __future__ import annotations

import difflib
import fnmatch
import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union

from ansible.module_utils.temper.settings.base import RefusedError

TABLE = "inet temper"
#: It is there while a change waits for its confirmation, and no boot loads it.
PROOF_TABLE = "inet temper_proof"
END_PROOF = f"add table {PROOF_TABLE}; delete table {PROOF_TABLE};"
LAST_PORT = 65535
Network = Union[ipaddress.IPv4Network, ipaddress.IPv6Network]  # noqa: UP007 - also runs on Python 3.9

# What a GPU node is asked for from outside. Slurm's ports are its defaults (slurm.conf(5)); srun's are the
# manual's example for SrunPortRange, without which srun uses any port.
SERVICES = {
    "slurmctld": ("tcp", "6817"),
    "slurmd": ("tcp", "6818"),
    "slurmdbd": ("tcp", "6819"),
    "srun": ("tcp", "60001-63000"),
    "node_exporter": ("tcp", "9100"),
    "dcgm_exporter": ("tcp", "9400"),
}

#: Protocols without ports (IANA's numbers, as a node's /etc/protocols may call them otherwise).
PROTOCOLS = {"ipip": 4, "sit": 41, "gre": 47, "esp": 50, "ah": 51, "ospf": 89, "vrrp": 112}

# Sources that a limit remembers at most. Where more come, the limit does not hold for the rest.
SET_SIZE = 65535
FORGET_AFTER = "1m"
# Whoever has one IPv6 address has a whole /64.
SOURCE_KEYS = {"4": ("ipv4_addr", "ip saddr"), "6": ("ipv6_addr", "ip6 saddr & ffff:ffff:ffff:ffff::")}


@dataclass(frozen=True)
class Limits:
    """What one source may do that no rule but those for everybody names. 0 is no limit."""

    ssh_new_per_minute: int = 0
    ssh_connections: int = 0
    new_per_second: int = 0
    connections: int = 0
    log_per_minute: int = 0

    def __post_init__(self) -> None:
        for name, number in vars(self).items():
            if number < 0:
                raise RefusedError(f"{name}: expected a number from 0 (no limit) on, found {number}.")


def _network_of(text: str) -> str:
    """Return a hint at the network of an address with a prefix, empty where it is neither."""
    try:
        return f"; its network is {ipaddress.ip_network(text, strict=False)}"
    except ValueError:
        return ""


def source_network(text: str) -> Network:
    """Return an address or network that packets can come from; raise ValueError with a hint, if any."""
    try:
        network = ipaddress.ip_network(text)
    except ValueError:
        raise ValueError(_network_of(text)) from None
    first = network.network_address
    mapped = first.ipv4_mapped if isinstance(first, ipaddress.IPv6Address) else None
    if mapped:
        raise ValueError(f"; no packet carries an IPv4 address in IPv6's form: write {mapped}")
    if first.is_multicast:
        raise ValueError("; no packet comes from a multicast address")
    if first.is_unspecified and network.prefixlen:
        raise ValueError("; everybody is 0.0.0.0/0 and ::/0")
    return network


def networks(where: str, items: Iterable[str]) -> list[Network]:
    """Return addresses and networks without overlaps (nft refuses them), IPv4 first."""
    found: list[Network] = []
    for item in items:
        try:
            found.append(source_network(item))
        except ValueError as error:
            raise RefusedError(
                f"{where}: expected an address or a network such as 192.0.2.0/24 or 2001:db8::/48, "
                f"found {item!r}{error}."
            ) from None
    version_4 = [network for network in found if isinstance(network, ipaddress.IPv4Network)]
    version_6 = [network for network in found if isinstance(network, ipaddress.IPv6Network)]
    return [*ipaddress.collapse_addresses(version_4), *ipaddress.collapse_addresses(version_6)]


def port_ranges(where: str, items: Iterable[int | str]) -> list[tuple[int, int]]:
    """Return ports and ranges as (first, last), sorted and without overlaps."""
    ranges = []
    for item in items:
        match = re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", str(item))
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        if not 1 <= first <= last <= LAST_PORT:
            raise RefusedError(
                f"{where}: expected a port from 1 to {LAST_PORT} or a range like 6000-6100, found {item!r}."
            )
        ranges.append((first, last))
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return merged


def interfaces(items: Iterable[str], where: str = "trusted interfaces") -> list[str]:
    """Return names of network interfaces; one that ends with * stands for all that begin so."""
    for item in items:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,14}\*?", item):
            raise RefusedError(
                f"{where}: expected the name of a network interface such as virbr0, or how some "
                f"begin (cni*), found {item!r}."
            )
    return sorted(set(items))


@dataclass(frozen=True)
class Rule:
    """Accept a protocol from networks, on ports where it has ports."""

    name: str
    protocol: str
    ports: list[tuple[int, int]]
    sources: list[Network]

    @property
    def for_everybody(self) -> bool:
        """Whether whoever comes by one of the IP versions may use it."""
        return any(network.prefixlen == 0 for network in self.sources)

    def lines(self, verdict: str = "") -> list[str]:
        """Return the rule in nft's language, one line for each IP version that it has sources in."""
        ports = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in self.ports)
        number = PROTOCOLS.get(self.protocol)
        match = f"{self.protocol} dport {{ {ports} }}" if number is None else f"meta l4proto {number}"
        return [
            f"{source}{match} " + (verdict or f'counter accept comment "{self.name}"')
            for source in source_matches(self.sources)
        ]


def parse_rule(index: int, rule: Mapping[str, Any]) -> Rule:
    """Check one of the further rules; raise RefusedError with a sentence that names it."""
    name = rule["name"]
    where = f"rule {index + 1} ({name})"
    if not re.fullmatch(r"[\w .,:/()+-]{1,60}", name, re.ASCII):
        raise RefusedError(
            f"{where}: expected a name of 1 to 60 letters, digits, blanks and .,:/()+-_ (it is a comment)."
        )
    protocol = rule.get("protocol", "tcp")
    portless = protocol in PROTOCOLS
    if portless and rule.get("ports"):
        raise RefusedError(f"{where}: expected no ports with protocol {protocol}, found {rule['ports']}.")
    for key in ("sources",) if portless else ("ports", "sources"):
        if not rule.get(key):
            everyone = " (for everyone: 0.0.0.0/0 and ::/0)" if key == "sources" else ""
            raise RefusedError(f"{where}: expected at least one item in {key}{everyone}, found none.")
    return Rule(
        name=name,
        protocol=protocol,
        ports=port_ranges(f"{where}, ports", rule.get("ports", ())),
        sources=networks(f"{where}, sources", rule["sources"]),
    )


def source_matches(sources: list[Network]) -> list[str]:
    """Return how nft rules for these sources begin: one for each IP version, or an empty one for everyone."""
    everything = {network.version for network in sources if network.prefixlen == 0}
    if everything == {4, 6}:
        return [""]
    matches = []
    for version, word in ((4, "ip"), (6, "ip6")):
        # A single address without its prefix length, the way nft prints it.
        texts = [
            str(network).removesuffix(f"/{network.max_prefixlen}")
            for network in sources
            if network.version == version
        ]
        if version in everything:
            matches.append(f"meta nfproto ipv{version} ")
        elif texts:
            matches.append(f"{word} saddr {{ {', '.join(texts)} }} ")
    return matches


def parse_service(name: str, sources: Any) -> Rule:
    """Return the rule for one of the services that have a name."""
    name = str(name)  # YAML may make a number of it
    if name not in SERVICES:
        close = difflib.get_close_matches(name, SERVICES, n=1)
        hint = f"; did you mean {close[0]}" if close else ""
        raise RefusedError(
            f"service {name}: expected one of {', '.join(SERVICES)}{hint}? Anything else is one of the rules."
        )
    where = f"service {name}"
    if not isinstance(sources, list) or not sources:
        raise RefusedError(
            f"{where}: expected a list of at least one source (for everyone: 0.0.0.0/0 and ::/0), "
            f"found {sources!r}."
        )
    protocol, ports = SERVICES[name]
    return Rule(name, protocol, port_ranges(where, [ports]), networks(where, map(str, sources)))


def shortened(items: Sequence[object], most: int = 5) -> str:
    """Return a list that stays readable."""
    return ", ".join([*map(str, items[:most]), *(["..."] if len(items) > most else [])])


def check_fleet(peers: list[Network], own: Iterable[str], unknown: Sequence[str] = ()) -> None:
    """Raise RefusedError where the fleet has nodes without an address, or none of this node's."""
    if unknown:
        raise RefusedError(
            "This would cut the fleet's own network off; nothing was changed: each node needs an address of "
            f"its own, and the machine that Ansible runs on knows none of {shortened(unknown)}. Give "
            "ansible_host as that address, or name the networks through which the nodes reach each other "
            "(firewall_peer_addresses)."
        )
    addresses = [ipaddress.ip_address(text) for text in own]
    fleet = sum(network.num_addresses for network in peers) > 1
    if fleet and addresses and not any(address in network for address in addresses for network in peers):
        raise RefusedError(
            "This would cut the fleet's own network off; nothing was changed: none of this node's addresses "
            f"({', '.join(map(str, addresses))}) is among the peers ({shortened(peers)}), so that the nodes "
            "would drop each other's packets: name the networks through which they reach each other."
        )


@dataclass(frozen=True)
class Limit:
    """Drops what is beyond a measure of nft (a rate or a count), taken for each source by itself.

    Sources are kept in two sets of this name, one for each IP version. One that does not fit goes unlimited.
    """

    sets: str
    measure: str
    comment: str

    def declarations(self) -> list[str]:
        """Return the sets."""
        forgetting = "" if self.counts else f", timeout; timeout {FORGET_AFTER}"
        return [
            f"set {self.sets}{version} {{ type {kind}; size {SET_SIZE}; flags dynamic{forgetting}; }}"
            for version, (kind, _) in SOURCE_KEYS.items()
        ]

    def lines(self, match: str = "") -> list[str]:
        """Return the rules."""
        statement = "add" if self.counts else "update"
        return [
            f"{match}{statement} @{self.sets}{version} {{ {key} {self.measure} }} "
            f'counter drop comment "{self.comment}"'
            for version, (_, key) in SOURCE_KEYS.items()
        ]

    @property
    def counts(self) -> bool:
        """Whether it counts open connections, which leave their set by themselves."""
        return self.measure.startswith("ct count")


def rate_limit(sets: str, number: int, unit: str, burst: int, comment: str) -> list[Limit]:
    """Return a limit of a rate, with so many at once; none for 0."""
    measure = f"limit rate over {number}/{unit} burst {max(burst, 1)} packets"
    return [Limit(sets, measure, comment)] if number else []


def count_limit(sets: str, number: int, comment: str) -> list[Limit]:
    """Return a limit of open connections; none for 0."""
    return [Limit(sets, f"ct count over {number}", comment)] if number else []


#: By it comes what the node sends to itself, whichever of its addresses that is.
LOOPBACK = "lo"


@dataclass(frozen=True)
class Trusted:
    """Who is let in to every port: the fleet, the node itself, and what comes by trusted interfaces.

    The table's rules and the check of Ansible's own way in are both made from it.
    """

    peers: list[Network]
    interfaces: list[str]

    @property
    def own_lines(self) -> list[str]:
        """Return the rules for what the node sends to itself."""
        return [f'iif "{LOOPBACK}" accept']

    @property
    def lines(self) -> list[str]:
        """Return the rules for the others."""
        return [
            *(f'{source}counter accept comment "fleet"' for source in source_matches(self.peers)),
            *(f'iifname "{name}" counter accept comment "trusted interface"' for name in self.interfaces),
        ]

    def admits_address(self, network: Network) -> bool:
        """Return whether whatever comes from an address or a network is let in."""
        return any(within(network, peers) for peers in self.peers)

    def admits_interface(self, name: str) -> bool:
        """Return whether whatever comes by an interface is let in."""
        return name == LOOPBACK or any(fnmatch.fnmatchcase(name, pattern) for pattern in self.interfaces)


def within(inner: Network, outer: Network) -> bool:
    """Return whether a network is a part of another."""
    if isinstance(inner, ipaddress.IPv4Network):
        return isinstance(outer, ipaddress.IPv4Network) and inner.subnet_of(outer)
    return isinstance(outer, ipaddress.IPv6Network) and inner.subnet_of(outer)


def render(ssh: Rule, rules: list[Rule], trusted: Trusted, limits: Limits) -> str:
    """Return a file for `nft -f` that replaces the table in one transaction."""
    of_everybody = [
        *rate_limit(
            "new", limits.new_per_second, "second", limits.new_per_second, "too many new connections"
        ),
        *count_limit("open", limits.connections, "too many open connections"),
    ]
    # Few enough at once for sshd's MaxStartups, which closes connections where this only delays them.
    of_ssh = [
        *rate_limit(
            "ssh_new",
            limits.ssh_new_per_minute,
            "minute",
            limits.ssh_new_per_minute // 6,
            "ssh: too many new connections",
        ),
        *count_limit("ssh_open", limits.ssh_connections, "ssh: too many open connections"),
    ]
    log = f'limit rate {limits.log_per_minute}/minute log prefix "temper drop: " level info'
    errors = "echo-request, destination-unreachable, time-exceeded, parameter-problem"
    ssh_chain = [*(line for limit in of_ssh for line in limit.lines()), 'counter accept comment "ssh"']
    input_chain = [
        "type filter hook input priority filter; policy drop;",
        *trusted.own_lines,
        "ct state vmap { established : accept, related : accept, invalid : drop }",
        "# Errors that path MTU discovery and traceroute need, and ping.",
        f"icmp type {{ {errors} }} counter accept",
        f"icmpv6 type {{ packet-too-big, {errors} }} counter accept",
        "# Unanswered, a switch ends the node's multicast. Only the link itself sends so (RFC 2236).",
        "igmp type membership-query ip ttl 1 counter accept",
        "# No neighbour discovery, no IPv6. Only the link itself can send it with this hop limit (RFC 4861).",
        "icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert, nd-router-advert } "
        "ip6 hoplimit 255 counter accept",
        "icmpv6 type { mld-listener-query } ip6 saddr fe80::/10 counter accept",
        "# The answer to a DHCPv6 request comes from another address than the request went to.",
        "ip6 saddr fe80::/10 udp sport 547 udp dport 546 counter accept",
        *trusted.lines,
        *ssh.lines("jump ssh"),
        *(line for rule in rules if not rule.for_everybody for line in rule.lines()),
        "# What is open to the world has limits; a load balancer that a rule names has none.",
        *(line for limit in of_everybody for line in limit.lines("meta l4proto tcp ")),
        *(line for rule in rules if rule.for_everybody for line in rule.lines()),
        "# Noise of the link, not worth a line in the log.",
        "meta pkttype { broadcast, multicast } counter drop",
        *([log] if limits.log_per_minute else []),
        'counter comment "dropped"',
    ]
    blocks = [
        *(line for limit in [*of_everybody, *of_ssh] for line in limit.declarations()),
        _chain("ssh", ssh_chain),
        _chain("input", input_chain),
    ]
    body = "".join(f"\t{block}\n" for block in blocks)
    return (
        "# Managed by Temper: input to this node. Loaded at boot and reloaded by temper-firewall.service.\n"
        f"table {TABLE}\ndelete table {TABLE}\ntable {TABLE} {{\n{body}}}\n"
    )


def _chain(name: str, lines: list[str]) -> str:
    body = "".join(f"\t\t{line}\n" for line in lines)
    return f"chain {name} {{\n{body}\t}}"
