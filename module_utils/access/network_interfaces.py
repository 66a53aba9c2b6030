"""The node's network interfaces: their addresses, what is behind them, and by which a client comes."""

from __future__ import annotations

import fnmatch
import ipaddress
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ansible.module_utils.access.nftables_rules import LOOPBACK
from ansible.module_utils.process import CommandError, parsed, run, which

if TYPE_CHECKING:
    from collections.abc import Collection

    from ansible.module_utils.access.nftables_rules import Network

#: Docker names the bridge of a network by its id. Other bridges (br-ex) may lead outside.
DOCKER_NETWORK = f"br-{'[0-9a-f]' * 12}"
#: Behind these are containers and virtual machines of the node.
GUESTS = (
    *("cni*", "docker*", DOCKER_NETWORK, "cali*", "flannel*", "virbr*", "podman*", "lxdbr*", "incusbr*"),
)


@dataclass(frozen=True)
class Interface:
    """A network interface and its addresses, without those of loopback and of links alone."""

    name: str
    up: bool
    addresses: list[str]
    networks: list[Network]


def own_interfaces() -> list[Interface]:
    """Return the node's network interfaces."""
    if not which("ip"):
        return []
    text = run(["ip", "-json", "address", "show"])
    return parsed("ip -json address show", text, read_interfaces)


def read_interfaces(text: str) -> list[Interface]:
    """Read what `ip -json address show` prints."""
    found = []
    for entry in json.loads(text):
        addresses = [
            ipaddress.ip_interface(f"{info['local']}/{info['prefixlen']}")
            for info in entry.get("addr_info", [])
            if info.get("scope") == "global"
        ]
        found.append(
            Interface(
                entry["ifname"],
                {"UP", "LOWER_UP"} <= {*entry["flags"]},
                [str(address.ip) for address in addresses],
                [address.network for address in addresses],
            )
        )
    return found


def interface_to(client: str, own: Collection[str]) -> str:
    """Return the interface by which a client's packets come, as far as the answers tell; empty for none."""
    if is_own(client, own):
        return LOOPBACK
    if not which("ip"):
        return ""
    try:
        text = run(["ip", "-json", "route", "get", client])
    except CommandError:  # there is no way back to it
        return ""
    return parsed(f"ip -json route get {client}", text, lambda output: str(json.loads(output)[0]["dev"]))


def is_own(client: str, own: Collection[str]) -> bool:
    """Whether a client is on the node itself."""
    return ipaddress.ip_address(client).is_loopback or client in own


def is_guests(name: str) -> bool:
    """Whether containers or virtual machines are behind an interface, by its name."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in GUESTS)


def patterns(names: Collection[str]) -> list[str]:
    """Return names of interfaces to guests, several of a kind as their pattern."""
    found = []
    for pattern in GUESTS:
        matching = [name for name in names if fnmatch.fnmatchcase(name, pattern)]
        found += [pattern] if len(matching) > 1 and pattern != DOCKER_NETWORK else matching
    return found
