"""What waits for packets on this node, in the words of `ss`."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path

from ansible.module_utils.process import run, which

EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
# A client waits for answers on its own port, without being a service.
CLIENTS = {("udp", 68), ("udp", 546)}  # DHCP


@dataclass(frozen=True)
class Listener:
    """A port that a process listens on, on an address that is not loopback's."""

    protocol: str
    port: int
    process: str


def listeners() -> list[Listener]:
    """Ask the kernel; nothing is known where iproute2 is not installed."""
    if not which("ss"):
        return []
    first_ephemeral = int(EPHEMERAL.read_text(encoding="ascii").split()[0])
    return parse(run(["ss", "-H", "-l", "-n", "-t", "-u", "-p"]), first_ephemeral)


def parse(text: str, first_ephemeral: int) -> list[Listener]:
    """Read the output of `ss -Hlntup`.

    UDP has no listening state: a socket on an ephemeral port is a client's that waits for an answer.
    """
    found = set()
    for line in text.splitlines():
        protocol, _, _, _, local, _, *process = line.split(None, 6)
        address, _, port = local.rpartition(":")
        if _is_loopback(address):
            continue
        if protocol == "udp" and ((protocol, int(port)) in CLIENTS or int(port) >= first_ephemeral):
            continue
        name = re.search(r'"([^"]*)"', process[0]) if process else None
        found.add(Listener(protocol, int(port), name[1] if name else "unknown process"))
    return sorted(found, key=lambda one: (one.protocol, one.port, one.process))


def _is_loopback(address: str) -> bool:
    """Whether an address is loopback's; ss writes 0.0.0.0, [::], *, 127.0.0.53%lo, [::ffff:127.0.0.1]."""
    bare, _, interface = address.strip("[]").partition("%")
    if interface == "lo":
        return True
    try:
        parsed = ipaddress.ip_address(bare)
    except ValueError:  # * is every address
        return False
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return (mapped or parsed).is_loopback
