"""Whether packets as large as an interface's MTU reach the neighbours that answer small ones."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from validation.processes.command import CommandError, Running, run

TIMEOUT_S = 10.0
#: Headers of IPv4 and of an ICMP echo: what the MTU has beside the bytes that ping is told.
HEADERS = 28
SMALL = 56
#: States in which the kernel knows a neighbour's address; nobody else is asked.
KNOWN = {"REACHABLE", "STALE", "DELAY", "PROBE"}
MOST_NEIGHBOURS = 4


@dataclass(frozen=True)
class Way:
    """An interface, which of its neighbours answer, and which of these packets of the whole MTU, too."""

    interface: str
    mtu: int
    answering: tuple[str, ...]
    passing: tuple[str, ...]


def read(root: Path = Path("/")) -> list[Way]:
    """Ask neighbours of each interface with hardware. Raises OSError without ping or ip, CommandError."""
    ways = []
    for name, mtu, neighbours in interfaces(root):
        answering = answers(name, neighbours, SMALL)
        ways.append(Way(name, mtu, answering, answers(name, answering, mtu - HEADERS)))
    return ways


def interfaces(root: Path = Path("/")) -> list[tuple[str, int, tuple[str, ...]]]:
    """Return names, MTUs and IPv4 neighbours of the interfaces that lead out of this machine."""
    near: dict[str, list[str]] = {}
    for neighbour in _ip("-4", "neighbour", "show"):
        if KNOWN & set(neighbour.get("state", [])):
            near.setdefault(neighbour["dev"], []).append(neighbour["dst"])
    return [
        (link["ifname"], link["mtu"], tuple(near[link["ifname"]][:MOST_NEIGHBOURS]))
        for link in _ip("link", "show", "up")
        if link["ifname"] in near and has_hardware(root / "sys/class/net" / link["ifname"])
    ]


def answers(interface: str, addresses: Iterable[str], size: int) -> tuple[str, ...]:
    """Return which of these answer a packet with so many bytes that nobody may take apart.

    Raises as `read` does.
    """
    asked = {
        address: Running(
            ["ping", "-n", "-q", "-c", "2", "-W", "1", "-M", "do", "-s", str(size), "-I", interface, address]
        )
        for address in addresses
    }
    # All of them have begun: the time is that of the slowest.
    return tuple(address for address, running in asked.items() if running.finish(TIMEOUT_S).status == 0)


def has_hardware(place: Path, depth: int = 4) -> bool:
    """Return whether there is a device below an interface, or below those that it is made of (bond, VLAN)."""
    if (place / "device").exists():
        return True
    return depth > 0 and any(has_hardware(one, depth - 1) for one in place.glob("lower_*"))


def _ip(*arguments: str) -> list[dict[str, Any]]:
    done = run(["ip", "-json", *arguments], TIMEOUT_S)
    try:
        found = json.loads(done.output or "[]")
    except ValueError as error:
        raise CommandError(f"something that is no JSON: {done.output[:80]}") from error
    return [one for one in found if one]
