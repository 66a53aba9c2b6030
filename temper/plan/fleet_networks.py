"""NCCL's interface from the networks that join all nodes of the fleet, as the operator names them."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

from temper.plan.facts import Interface
from temper.plan.refusals import Refusal, refusal
from validation.model.printable import first_of

VARIABLE = "compute_environment_fleet_networks"
BY_NAME = "compute_environment_nccl_socket_ifname"
INTERFACES_SHOWN = 8


@dataclass(frozen=True)
class Link:
    """An interface, and an address of it in one of the fleet's networks."""

    interface: Interface
    address: str
    network: str

    @property
    def works(self) -> bool:
        """Whether packets can leave by it."""
        return self.interface.up and self.interface.carrier

    def __str__(self) -> str:
        return with_speed(self.interface)


def with_speed(interface: Interface) -> str:
    """Name an interface, and its speed."""
    speed = interface.speed_mbit_s
    return f"{interface.name} ({f'{speed / 1000:g} Gb/s' if speed else 'speed unknown'})"


def list_problem(texts: Sequence[str]) -> str:
    """Return why these networks, each a valid one, cannot join the fleet's nodes; empty where they can."""
    networks = [ipaddress.ip_network(text) for text in texts]
    for network in networks:
        if network.prefixlen == network.max_prefixlen:
            return f"expected networks, found the address {network.network_address}; add its prefix length"
        if not network.prefixlen or network.is_link_local or network.is_loopback or network.is_multicast:
            return f"expected networks in which each node has an address of its own, found {network}"
    for one, other in combinations(networks, 2):
        if one.version == other.version and one.overlaps(other):
            return f"{one} and {other} overlap, so that an address would be in both; keep one of them"
    return ""


def links(interfaces: Iterable[Interface], networks: Iterable[str]) -> list[Link]:
    """Return every address that the node has in one of these networks."""
    known = [ipaddress.ip_network(text) for text in networks]
    return [
        Link(interface, address, str(network))
        for interface in interfaces
        for address in interface.addresses
        for network in known
        if ipaddress.ip_address(address) in network
    ]


def in_order(found: Iterable[Link], networks: Sequence[str], preferred: str) -> list[Link]:
    """Return one link for each interface that works: the fastest first, an unknown speed last.

    Those that are equally fast go by the order of their networks, then `preferred` (the interface of the
    inventory's address) comes first, then names decide.
    """
    places = {str(ipaddress.ip_network(text)): place for place, text in enumerate(networks)}
    ordered = sorted(
        (link for link in found if link.works),
        key=lambda link: (
            -(link.interface.speed_mbit_s or 0),
            places[link.network],
            link.interface.name != preferred,
            link.interface.name,
        ),
    )
    best: dict[str, Link] = {}
    for link in ordered:
        best.setdefault(link.interface.name, link)
    return list(best.values())


def reason(ordered: Sequence[Link], preferred: str) -> str:
    """Return why the first of these is NCCL's interface.

    Nothing of it is one node's own but interfaces' names.
    """
    first, *others = ordered
    said = f"{first} in {first.network}"
    if not others:
        return f"{said}, the only interface in the fleet's networks"
    second = others[0]
    if first.interface.speed_mbit_s != second.interface.speed_mbit_s:
        return f"{said}, the fastest in the fleet's networks; next is {second} in {second.network}"
    said = f"{said} before {second} in {second.network}"
    if first.network != second.network:
        return f"{said}: no slower, and its network comes first"
    if first.interface.name == preferred:
        return f"{said}: no slower, and the inventory's address is there"
    return f"{said}: no slower, and its name comes first"


def problems(interfaces: Collection[Interface], networks: Sequence[str]) -> list[Refusal]:
    """Return why the node cannot be joined to the fleet by these networks.

    An interface that is down refuses the node even where it has another network: with that one, jobs of the
    nodes whose interface is up would not start.
    """
    found = links(interfaces, networks)
    if not found:
        return [refusal("network-absent", networks=networks, found=shown(interfaces))]
    working = {link.network for link in found if link.works}
    return [
        refusal(
            "network-down",
            interface=link.interface.name,
            address=str(link.address),
            network=str(link.network),
            up=link.interface.up,
        )
        for link in found
        if link.network not in working
    ]


def shown(interfaces: Iterable[Interface]) -> str:
    """Interfaces and their addresses. Those of containers, which have none but link-local ones, are many."""
    found = []
    for interface in interfaces:
        own = [text for text in interface.addresses if not ipaddress.ip_address(text).is_link_local]
        if own:
            found.append(f"{interface.name} ({', '.join(own)})")
    return first_of(found, INTERFACES_SHOWN) or "none"
