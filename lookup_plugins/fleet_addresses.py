"""The addresses of the fleet's nodes, as this machine knows them."""

from __future__ import annotations

import ipaddress
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ansible.plugins.lookup import LookupBase

DOCUMENTATION = r"""
name: fleet_addresses
short_description: The addresses of nodes, whose names are looked up
description:
  - Takes each node's name and its C(ansible_host), if any. Addresses are taken as they are; names are looked
    up on this machine.
options:
  _terms:
    description: Pairs of a node's name and its C(ansible_host), or an empty text.
    required: true
"""
AT_ONCE = 32  # a name server that does not answer costs seconds for each name


def is_address(text: str) -> bool:
    """Whether a text is an IPv4 or IPv6 address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def resolve(name: str) -> set[str]:
    """The addresses of a name that other machines can send from; none where nobody knows it."""
    try:
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)}
    except (OSError, UnicodeError):
        return set()
    # An entry of /etc/hosts names the machine itself by 127.0.1.1; one with a zone is this machine's alone.
    return {text for text in found if "%" not in text and not ipaddress.ip_address(text).is_loopback}


def fleet(nodes: list[tuple[str, str]]) -> dict[str, list[str]]:
    """The addresses of all nodes, and the nodes of which none is known. A single node has no fleet."""
    addresses = {text for node in nodes for text in node if is_address(text)}
    names = {name: host or name for name, host in nodes if not is_address(host or name)}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = dict(zip(names, pool.map(resolve, names.values()), strict=True))
    unknown = sorted(name for name, resolved in found.items() if not resolved) if len(nodes) > 1 else []
    return {"addresses": sorted(addresses.union(*found.values())), "unknown": unknown}


class LookupModule(LookupBase):  # type: ignore[misc]  # Ansible ships no types
    """lookup('fleet_addresses', pairs): a mapping of `addresses` and `unknown`."""

    def run(self, terms: list[Any], variables: Any = None, **kwargs: Any) -> list[dict[str, list[str]]]:  # noqa: ARG002
        """Look all names up at once."""
        return [fleet([(str(name), str(host)) for name, host in terms[0]])]
