"""The node's network interfaces: their addresses, what is behind them, and by which a client comes."""

from __future__ import annotations

import fnmatch
import ipaddress
import json
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from ansible.module_utils.temper.access.nftables_rules import LOOPBACK, Network
from ansible.module_utils.temper.process import CommandError, parsed, run, which

#: Docker names the bridge of a network by its id. Other bridges (br-ex) may lead outside.
DOCKER_NETWORK = f"br-{'[0-9a-f]' * 12}"
#: Behind these are containers and virtual machines of the node.
GUESTS = (
    *("cni*", "docker*", DOCKER_NETWORK, "cali*", "flannel*", "virbr*", "podman*", "lxdbr*", "incusbr*"),
)


@dataclass(frozen=True)
class Interface:
    """A network interface and its addresses, without those of loopback and of links alone.

    `kind` is the kernel's name for a virtual link ("vlan"), `data` what that kind has, `master` the bridge or
    bond that it belongs to, `lower` the interface that it is made on.
    """

    name: str
    up: bool
    addresses: list[str]
    networks: list[Network]
    kind: str = ""
    data: dict[str, Any] = field(default_factory=dict)
    master: str = ""
    lower: str = ""


def own_interfaces() -> list[Interface]:
    """Return the node's network interfaces."""
    if not which("ip"):
        return []
    text = run(["ip", "-details", "-json", "address", "show"])
    return parsed("ip -details -json address show", text, read_interfaces)


def read_interfaces(text: str) -> list[Interface]:
    """Read what `ip -details -json address show` prints."""
    found = []
    for entry in json.loads(text):
        addresses = [
            ipaddress.ip_interface(f"{info['local']}/{info['prefixlen']}")
            for info in entry.get("addr_info", [])
            if info.get("scope") == "global"
        ]
        info = entry.get("linkinfo", {})
        found.append(
            Interface(
                str(entry["ifname"]),
                {"UP", "LOWER_UP"} <= {*entry["flags"]},
                [str(address.ip) for address in addresses],
                [address.network for address in addresses],
                str(info.get("info_kind", "")),
                dict(info.get("info_data", {})),
                str(entry.get("master", "")),
                str(entry.get("link", "")),
            )
        )
    return found


def interface_to(client: str, own: Collection[str], server: str = "") -> str:
    """Return the interface by which a client's packets come, as far as the answers tell; empty for none.

    Where the node has ways of its own for each of its addresses, `server` is the one that the client uses.
    """
    if is_own(client, own):
        return LOOPBACK
    if not which("ip"):
        return ""
    try:
        text = run(["ip", "-json", "route", "get", client, *(["from", server] if server else [])])
    except CommandError:  # there is no way back to it
        return ""
    return parsed(f"ip -json route get {client}", text, lambda output: str(json.loads(output)[0]["dev"]))


def is_own(client: str, own: Collection[str]) -> bool:
    """Return whether a client is on the node itself."""
    return ipaddress.ip_address(client).is_loopback or client in own


def is_guests(name: str) -> bool:
    """Return whether containers or virtual machines are behind an interface, by its name."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in GUESTS)


def patterns(names: Collection[str]) -> list[str]:
    """Return names of interfaces to guests, several of a kind as their pattern."""
    found = []
    for pattern in GUESTS:
        matching = [name for name in names if fnmatch.fnmatchcase(name, pattern)]
        found += [pattern] if len(matching) > 1 and pattern != DOCKER_NETWORK else matching
    return found
