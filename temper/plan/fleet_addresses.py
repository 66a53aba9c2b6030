"""The addresses of the fleet's nodes, as this machine knows them."""

from __future__ import annotations

import ipaddress
import socket
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

AT_ONCE = 32  # a name server that does not answer costs seconds for each name


def is_address(text: str) -> bool:
    """Return whether a text is an IPv4 or IPv6 address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def resolve(name: str) -> set[str]:
    """Return the addresses of a name that other machines can send from; none where nobody knows it."""
    try:
        found = look_up(name)
    except (OSError, UnicodeError):
        return set()
    # One with a zone is this machine's alone.
    return usable(text for text in found if "%" not in text)


def look_up(name: str) -> set[str]:
    """Return what the name service says; asked once more where it is out of order for the moment."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        if error.errno != socket.EAI_AGAIN:
            raise
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return {str(entry[4][0]) for entry in found}


def usable(addresses: Iterable[str]) -> set[str]:
    """Return those that other machines can send from. /etc/hosts may name the machine itself by 127.0.1.1."""
    return {text for text in addresses if not ipaddress.ip_address(text).is_loopback}


def fleet(nodes: list[tuple[str, str]]) -> dict[str, list[str]]:
    """Return the addresses of all nodes, and the nodes of which none is known. A single node has no fleet.

    Nodes that have all their addresses in common are reached through them (NAT, tunnels), and do not send
    from them: beside the name of each stand the addresses, and how many nodes have them.
    """
    literal = {name: {text for text in (name, host) if is_address(text)} for name, host in nodes}
    names = {name: host or name for name, host in nodes if not is_address(host or name)}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = dict(zip(names, pool.map(resolve, names.values()), strict=True))
    own = {name: frozenset(usable(texts) | found.get(name, set())) for name, texts in literal.items()}
    shared = Counter(own.values())
    unknown = sorted(
        f"{name} ({', '.join(sorted(texts))}, as {shared[texts]} nodes have)" if texts else name
        for name, texts in own.items()
        if not texts or shared[texts] > 1
    )
    return {
        "addresses": sorted(set().union(*literal.values(), *found.values())),
        "unknown": unknown if len(nodes) > 1 else [],
    }
