"""Tunnels that end on the node, and how their outer packets get in.

A connection through a tunnel has two ways: that of its own packets, and that of the outer ones, which carry
them. For the outer ones the kernel remembers a flow (conntrack), so that they pass rules that would not let
them in again after some minutes of silence, or after a reboot. No test within a change's window shows that,
because each packet of the node itself renews the flow. So the rules are asked: they have to let the outer
packets in by themselves.
"""

from __future__ import annotations

import contextlib
import fnmatch
import ipaddress
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Union

from ansible.module_utils.temper.access.listeners import (
    PROC,
    Socket,
    ephemeral_from,
    is_loopback,
    open_files,
    sockets,
)
from ansible.module_utils.temper.access.network_interfaces import Interface, is_guests
from ansible.module_utils.temper.access.nftables_rules import (
    PROTOCOLS,
    Network,
    Rule,
    Trusted,
    source_matches,
    within,
)
from ansible.module_utils.temper.files import read_regular
from ansible.module_utils.temper.process import CommandError, parsed, run, which

Address = Union[ipaddress.IPv4Address, ipaddress.IPv6Address]  # noqa: UP007 - also runs on Python 3.9

#: IPsec's policies need no interface; this names them to the operator.
IPSEC = "ipsec"
IKE_PORTS = (500, 4500)
#: Kinds of links as the kernel names them. These have their UDP port among their own data ...
PORT_KEYS = {"vxlan": "port", "geneve": "port", "bareudp": "dstport"}
#: ... these are IP protocols ...
IP_TUNNELS = {
    **dict.fromkeys(("gre", "gretap", "erspan", "ip6gre", "ip6gretap", "ip6erspan"), "gre"),
    **{"ipip": "ipip", "sit": "sit", "ip6tnl": "sit", "vti": "esp", "vti6": "esp", "xfrm": "esp"},
}
#: ... and of these another program knows the port, if any.
PORT_ELSEWHERE = {
    **{"wireguard": "wg", "amneziawg": "awg", "ovpn": "", "ovpn-dco": ""},
    # By L2TP, PPTP or SSTP, whose daemons hand their packets on to it; or a modem that has dialled.
    "ppp": "",
}
#: A cluster joins its nodes by these; the link names no single other end.
OVERLAYS = (*PORT_KEYS, *IP_TUNNELS)
#: Where peers are configured: wg-quick(8), systemd.netdev(5), NetworkManager; netplan writes for these two.
WIREGUARD_FILES = (
    *("etc/wireguard/*.conf", "etc/amnezia/amneziawg/*.conf"),
    *(
        f"{place}/systemd/network/{name}"
        for place in ("etc", "run")
        for name in ("*.netdev", "*.netdev.d/*.conf")
    ),
    *(f"{place}/NetworkManager/system-connections/*" for place in ("etc", "run")),
)
_PAIR = re.compile(r"^[ \t]*(\w+)[ \t]*=[ \t]*(\S+)", re.MULTILINE)
ROOT = Path("/")
MOST_FILES, MOST_BYTES = 500, 2**20
#: Links that pass on what another one, named as theirs, receives.
STACKED = ("vlan", "macvlan", "macvtap", "ipvlan", "macsec")
#: A virtual machine monitor has a tap, too, which is no tunnel.
VIRTUAL_MACHINE = "anon_inode:kvm-vm"


@dataclass(frozen=True)
class Entrance:
    """What outer packets are: of a protocol, and to one of the ports where it has ports."""

    protocol: str
    ports: tuple[int, ...] = ()

    def __str__(self) -> str:
        if not self.ports:
            return f"IP protocol {PROTOCOLS[self.protocol]}, {self.protocol}"
        return f"{self.protocol} port {' or '.join(map(str, self.ports))}"

    def opened_by(self, rule: Rule) -> bool:
        """Return whether a rule is for them."""
        return rule.protocol == self.protocol and (
            not self.ports or any(first <= port <= last for port in self.ports for first, last in rule.ports)
        )


@dataclass(frozen=True)
class Peer:
    """The other end of a tunnel.

    `remote` is the address that its outer packets come from, if known, `networks` what is behind it, if the
    tunnel knows. `dialled` says that the node itself keeps the flow open, and opens it again after a boot.
    One that `roams` may come from another address at any time, and after a boot the node does not know where
    it is.
    """

    remote: Address | None = None
    networks: tuple[Network, ...] = ()
    dialled: bool = False
    roams: bool = False


@dataclass(frozen=True)
class Tunnel:
    """A tunnel that ends on the node. All of its entrances are needed; none are known where it is None."""

    name: str
    kind: str
    entrances: tuple[Entrance, ...] | None
    peers: tuple[Peer, ...] = (Peer(),)

    def named_by(self, patterns: Iterable[str]) -> bool:
        """Return whether the operator has named it."""
        return any(fnmatch.fnmatchcase(self.name, pattern) for pattern in patterns)

    def peers_towards(self, address: Address) -> list[Peer]:
        """Return the peers that an address may be behind, those with the narrowest network alone."""
        if not any(peer.networks for peer in self.peers):
            return list(self.peers)
        lengths = {
            peer: max((one.prefixlen for one in peer.networks if address in one), default=-1)
            for peer in self.peers
        }
        longest = max(lengths.values())
        return [peer for peer, length in lengths.items() if length == longest >= 0]


@dataclass(frozen=True)
class Way:
    """A tunnel and a peer, by which packets come."""

    tunnel: Tunnel
    peer: Peer

    def __str__(self) -> str:
        """Name it, and what its outer packets are."""
        entrances = " and ".join(map(str, self.tunnel.entrances or ())) or "outer port unknown"
        remote = f" from {self.peer.remote}" if self.peer.remote else ""
        roams = ", a peer whose endpoint is configured nowhere" if self.peer.roams else ""
        return f"{self.tunnel.name} ({self.tunnel.kind}, {entrances}{remote}{roams})"

    @property
    def rules_to_add(self) -> list[str]:
        """Return entries of `firewall_rules` that let the outer packets in."""
        one_place = self.peer.remote and not self.peer.roams
        sources = f'"{self.peer.remote}"' if one_place else '0.0.0.0/0, "::/0"'
        return [
            f"{{name: {self.tunnel.name}, protocol: {one.protocol}"
            + (f", ports: [{one.ports[0]}]" if one.ports else "")
            + f", sources: [{sources}]}}"
            for one in self.tunnel.entrances or ()
        ]

    @property
    def untracked(self) -> list[str]:
        """Return lines of nft that keep the kernel from taking the outer packets for a flow it knows."""
        remote = [ipaddress.ip_network(str(self.peer.remote))] if self.peer.remote else []
        source = source_matches(remote)[0] if remote else ""
        return [
            f"{source}{one.protocol} dport {{ {', '.join(map(str, one.ports))} }} notrack"
            if one.ports
            else f"{source}meta l4proto {PROTOCOLS[one.protocol]} notrack"
            for one in self.tunnel.entrances or ()
        ]


@dataclass(frozen=True)
class Filter:
    """What decides whether outer packets are let in: the rules, who is trusted, the way to an address."""

    rules: list[Rule]
    trusted: Trusted
    interface_to: Callable[[str], str]

    def admits(self, way: Way) -> bool:
        """Return whether the outer packets of a way are let in without a flow that the kernel knows."""
        if way.peer.dialled:
            return True
        remote = ipaddress.ip_network(str(way.peer.remote)) if way.peer.remote else None
        opened = way.tunnel.entrances is not None and all(
            any(
                one.opened_by(rule) and (not remote or any(within(remote, net) for net in rule.sources))
                for rule in self.rules
            )
            for one in way.tunnel.entrances
        )
        # Last: the way to an address costs a program, and there may be thousands of peers.
        return opened or bool(
            remote
            and (
                self.trusted.admits_address(remote)
                or self.trusted.admits_interface(self.interface_to(str(way.peer.remote)))
            )
        )

    def admits_overlay(self, way: Way) -> bool:
        """Return whether a way may be among the nodes of a cluster, which are peers."""
        return not way.peer.remote and way.tunnel.kind in OVERLAYS and bool(self.trusted.peers)


def ways_from(
    client: str, found: Collection[Tunnel], links: Collection[Interface], interface_to: Callable[[str], str]
) -> list[Way]:
    """Return the tunnels that a client's packets come through, and those that carry these tunnels."""
    named = {tunnel.name: tunnel for tunnel in found}
    ways: list[Way] = []
    passed: set[str] = set()
    pending = [ipaddress.ip_address(client)]
    while pending:
        address = pending.pop()
        names = [*carriers(interface_to(str(address)), {*named}, links), IPSEC]
        for name in names:
            if name not in named or name in passed:
                continue
            peers = named[name].peers_towards(address)
            if peers:
                passed.add(name)
            ways += [Way(named[name], peer) for peer in peers]
            pending += [peer.remote for peer in peers if peer.remote]
    return ways


def carriers(name: str, tunnels: set[str], links: Collection[Interface]) -> list[str]:
    """Return the tunnels that bring what an interface receives.

    A bridge that also has other members may have it from them, and is none.
    """
    found: list[str] = []
    seen: set[str] = set()
    pending = [name]
    while pending:
        current = pending.pop()
        if current in seen:
            continue
        seen.add(current)
        if current in tunnels:
            found.append(current)
            continue
        members = [link.name for link in links if link.master == current and not is_guests(link.name)]
        below = [link.lower for link in links if link.name == current and link.kind in STACKED]
        if not members and not below:
            return []
        pending += [*members, *below]
    return found


def tunnels(links: Collection[Interface], proc: Path = PROC) -> list[Tunnel]:
    """Return the tunnels that end on the node. Raises CommandError."""
    if not which("ip"):
        return []
    keys = ike_entrances(proc)
    # Without a daemon for its keys there is no IPsec, and to ask would load the kernel's module.
    policies = ipsec_policies_now() if keys else []
    ipsec = (*keys, *esp_entrance(policies)) if policies else ()
    holders = tun_holders(proc) if any(link.kind == "tun" for link in links) else {}
    taken = {link_port(link) for link in links if link.kind in PORT_KEYS}
    read = [_tunnel(link, holders.get(link.name), policies, ipsec, taken, proc) for link in links]
    found = [one for one in read if one]
    peers = tuple(policy.peer for policy in policies if not policy.of_an_interface)
    return [*found, Tunnel(IPSEC, "IPsec", ipsec, peers)] if peers else found


def _tunnel(
    link: Interface,
    holder: set[str] | None,
    policies: list[Policy],
    ipsec: tuple[Entrance, ...],
    taken: set[int],
    proc: Path,
) -> Tunnel | None:
    """Return what an interface is as a tunnel; None where it is none."""
    if link.kind in PORT_KEYS:
        port = link_port(link)
        remotes = vxlan_remotes(link.name) if link.kind == "vxlan" else _remote(link)
        return Tunnel(link.name, link.kind, (Entrance("udp", (port,)),), _peers(remotes))
    if link.kind in IP_TUNNELS:
        protocol = IP_TUNNELS[link.kind]
        remotes = _remote(link)
        if protocol != "esp":
            if str(link.data.get("proto")) in {"ipip", "ip4ip6"}:  # what an ip6tnl or sit carries
                protocol = "ipip"
            # In UDP (foo over UDP), the port is another program's matter.
            entrances = None if link.data.get("encap") else (Entrance(protocol),)
            return Tunnel(link.name, link.kind, entrances, _peers(remotes))
        if link.kind == "xfrm":
            remotes = [one.peer.remote for one in policies if one.of_an_interface and one.peer.remote]
        return Tunnel(link.name, link.kind, ipsec or (Entrance("esp"),), _peers(remotes))
    if link.kind in PORT_ELSEWHERE:
        return wireguard(link, taken, proc)
    if link.kind == "tun" and holder is not None:
        return Tunnel(link.name, "tun", daemon_entrances(link, holder, proc))
    return None


def link_port(link: Interface) -> int:
    """Return the UDP port among the data of a link."""
    return parsed("ip -details -json address show", str(link.data.get(PORT_KEYS[link.kind])), int)


def _peers(remotes: Iterable[Address]) -> tuple[Peer, ...]:
    return tuple(Peer(remote) for remote in dict.fromkeys(remotes)) or (Peer(),)


def _address(text: object) -> Address | None:
    """Return the address of one machine; None for `any`, a multicast group and the like."""
    try:
        address = ipaddress.ip_address(str(text))
    except ValueError:
        return None
    return None if address.is_multicast or address.is_unspecified else address


def _remote(link: Interface) -> list[Address]:
    address = _address(link.data.get("remote") or link.data.get("remote6"))
    return [address] if address else []


def vxlan_remotes(name: str) -> list[Address]:
    """Return the other ends that a VXLAN sends to: its own, and those that a cluster's agent has added."""
    if not which("bridge"):
        return []
    command = ["bridge", "-json", "fdb", "show", "dev", name]
    entries = parsed(
        " ".join(command), run(command), lambda text: [one.get("dst") for one in json.loads(text or "[]")]
    )
    return [address for address in map(_address, entries) if address]


def wireguard(link: Interface, taken: set[int], proc: Path = PROC) -> Tunnel:
    """Return a tunnel whose port its own program knows.

    Where that one is not installed, it may be any of the kernel's sockets but those of other links (`taken`).
    """
    program = which(PORT_ELSEWHERE[link.kind]) if PORT_ELSEWHERE[link.kind] else None
    if not program:
        found = {one.port for one in kernel_sockets(proc)} - taken if link.kind == "wireguard" else set()
        return Tunnel(link.name, link.kind, tuple(Entrance("udp", (one,)) for one in sorted(found)) or None)
    # `wg show wg0 dump` would be one call, and prints the private key.
    port, endpoints, allowed, keepalive = (
        run([program, "show", link.name, what])
        for what in ("listen-port", "endpoints", "allowed-ips", "persistent-keepalive")
    )
    return parsed(
        f"{program} show {link.name}",
        "\n".join((port, endpoints, allowed, keepalive)),
        lambda _: Tunnel(
            link.name,
            link.kind,
            (Entrance("udp", (int(port),)),),
            wireguard_peers(endpoints, allowed, keepalive, dialled_keys()),
        ),
    )


def dialled_keys() -> set[str]:
    """Return the keys of peers for which a file has an endpoint: `wg show` has those that it learned, too."""
    found: set[str] = set()
    for path in sorted(path for pattern in WIREGUARD_FILES for path in ROOT.glob(pattern))[:MOST_FILES]:
        with contextlib.suppress(OSError):
            found.update(
                keys_with_endpoint(read_regular(path, MOST_BYTES, follow=True).decode(errors="replace"))
            )
    return found


def keys_with_endpoint(text: str) -> Iterator[str]:
    """Read peers of wg(8), systemd.netdev(5) or NetworkManager's keyfiles, where the section has the key."""
    for section in re.split(r"^[ \t]*(?=\[)", text, flags=re.MULTILINE):
        named = re.match(r"\[wireguard-peer\.([^\]\n]+)\]", section)
        pairs = {name.lower(): value for name, value in _PAIR.findall(section)}
        key = named[1] if named else pairs.get("publickey")
        if key and "endpoint" in pairs:
            yield key


def wireguard_peers(
    endpoints: str, allowed: str, keepalive: str, configured: Collection[str]
) -> tuple[Peer, ...]:
    """Read what `wg show` prints of peers: a key and a value in each line.

    `configured` are the keys of those that the node can dial. One that only keeps an endpoint alive that it
    has learned loses it with a boot, and the flow as the peer comes from another address.
    """
    remotes, networks, intervals = (
        dict(line.split(None, 1) for line in text.splitlines() if len(line.split(None, 1)) == 2)
        for text in (endpoints, allowed, keepalive)
    )
    return tuple(
        Peer(
            _address(remotes.get(key, "").rpartition(":")[0].strip("[]").partition("%")[0]),
            tuple(ipaddress.ip_network(one) for one in networks.get(key, "").split() if one != "(none)"),
            dialled=intervals.get(key, "off").strip() not in {"off", "0"} and key in configured,
            roams=key not in configured,
        )
        for key in remotes
    )


def kernel_sockets(proc: Path = PROC) -> list[Socket]:
    """Return UDP sockets that root's kernel has and no process: WireGuard's, a VXLAN's."""
    found = [one for one in sockets("udp", proc) if not one.uid]
    held = {target for _, _, target in open_files(proc)}
    return [one for one in found if f"socket:[{one.inode}]" not in held]


def tun_holders(proc: Path = PROC) -> dict[str, set[str]]:
    """Return by the name of a tun or tap interface the sockets of the process that has it open."""
    names: dict[str, set[str]] = {}
    targets: dict[str, set[str]] = {}
    for process, descriptor, target in open_files(proc):
        if target.endswith("/dev/net/tun"):
            with contextlib.suppress(OSError):  # it is closed by now
                text = (proc / process / "fdinfo" / descriptor).read_text(errors="replace")
                names.setdefault(process, set()).update(re.findall(r"^iff:\t(.+)$", text, re.MULTILINE))
        targets.setdefault(process, set()).add(target)
    found: dict[str, set[str]] = {}
    for process, interfaces in names.items():
        if VIRTUAL_MACHINE not in targets[process]:
            for name in interfaces:
                found.setdefault(name, set()).update(targets[process])
    return found


def daemon_entrances(link: Interface, targets: set[str], proc: Path = PROC) -> tuple[Entrance, ...]:
    """Return how the outer packets of a program's tunnel come in: to one of its ports that wait for anybody.

    UDP comes before TCP, which may be its metrics, and a chosen port before ephemeral ones. A program with
    none has dialled: its packets are answers.
    """
    for protocol in ("udp", "tcp"):
        ports = {
            one.port
            for one in sockets(protocol, proc)
            if f"socket:[{one.inode}]" in targets
            and not is_loopback(one.address)
            and str(one.address) not in link.addresses
        }
        chosen = {port for port in ports if port < ephemeral_from(proc)}
        if ports:
            return (Entrance(protocol, tuple(sorted(chosen or ports))),)
    return ()


@dataclass(frozen=True)
class Policy:
    """What IPsec demands of packets from some addresses."""

    peer: Peer
    of_an_interface: bool = False


def ike_entrances(proc: Path = PROC) -> tuple[Entrance, ...]:
    """Return how a daemon that exchanges IPsec's keys is reached, where one waits for it."""
    waiting = {one.port for one in sockets("udp", proc)}
    return tuple(Entrance("udp", (port,)) for port in IKE_PORTS if port in waiting)


def ipsec_policies_now() -> list[Policy]:
    """Return the kernel's policies; none where it has no IPsec of its own."""
    try:
        text = run(["ip", "xfrm", "policy", "list"])
    except CommandError:
        return []
    return parsed("ip xfrm policy list", text, ipsec_policies)


def ipsec_policies(text: str) -> list[Policy]:
    """Read the policies of `ip xfrm policy list` that demand a tunnel or encryption of what comes in."""
    found = []
    for block in re.split(r"^(?=src )", text, flags=re.MULTILINE):
        selector = re.match(r"src (\S+) dst \S+", block)
        template = re.search(r"^\s+tmpl src (\S+) dst \S+\s+proto esp\b", block, re.MULTILINE)
        if not selector or not template or not re.search(r"^\s+dir in\b", block, re.MULTILINE):
            continue
        # The kernel keeps an address within a network as it was given.
        network = ipaddress.ip_network(selector[1], strict=False)
        # Between two machines without a tunnel, the packets' own source is the outer one.
        alone = network.network_address if network.num_addresses == 1 else None
        peer = Peer(_address(template[1]) or alone, (network,))
        of_an_interface = bool(re.search(r"^\s+(?:if_id|mark) ", block, re.MULTILINE))
        found.append(Policy(peer, of_an_interface))
    return found


def esp_entrance(policies: list[Policy]) -> tuple[Entrance, ...]:
    """Return how IPsec's packets come: by themselves, or where all of them do so, to the keys' port."""
    try:
        states = run(["ip", "xfrm", "state", "list", "nokeys"])
    except CommandError:  # an old ip
        states = ""
    in_udp = {
        block.split()[1]
        for block in re.split(r"^(?=src )", states, flags=re.MULTILINE)
        if "encap type espinudp" in block
    }
    return () if all(str(policy.peer.remote) in in_udp for policy in policies) else (Entrance("esp"),)
