"""What waits for packets on this node: sockets as the kernel lists them, and whose they are.

A user may call a process as he likes, with line ends, quotes and the names of daemons in it. So no name is
ever part of a text that is taken apart here, and none decides anything: a socket's owner does.
"""

from __future__ import annotations

import contextlib
import ipaddress
import itertools
import os
import re
import sys
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Union

from ansible.module_utils.temper.process import CommandError, parsed

PROC = Path("/proc")
# A client waits for answers on its own port, without being a service.
CLIENTS = {("udp", 68), ("udp", 546)}  # DHCP
#: Accounts of people begin here (login.defs(5)); systemd gives services of its own others (DynamicUser=).
FIRST_USER = 1000
DYNAMIC_USERS = range(61184, 65520)
#: The states of include/net/tcp_states.h: LISTEN, and CLOSE for a socket of UDP that waits for anybody.
WAITING = {"tcp": "0A", "udp": "07"}
ESTABLISHED = "01"
UNKNOWN = "unknown process"
#: What a name may have in it for people: with a bracket or a comma it could pass for several.
STRANGE = re.compile(r"[^\w.:/@+ -]", re.ASCII)
#: Who opens a million files makes nobody wait for longer.
NAMES_TIMEOUT_S = 3.0

Address = Union[ipaddress.IPv4Address, ipaddress.IPv6Address]  # noqa: UP007 - also runs on Python 3.9


@dataclass(frozen=True)
class Socket:
    """A socket as the kernel lists it. `uid` is of who has opened it, `inode` its number."""

    protocol: str
    address: Address
    port: int
    peer: Address
    peer_port: int
    state: str
    uid: int
    inode: str


@dataclass(frozen=True)
class Listener:
    """A port that a process listens on, on an address that is not loopback's. `uid` is the socket's owner."""

    protocol: str
    port: int
    process: str
    uid: int = 0

    def __str__(self) -> str:
        owner = f", uid {self.uid}" if self.uid else ""
        return f"{self.protocol} {self.port} ({self.process}{owner})"


def listeners(proc: Path = PROC) -> list[Listener]:
    """Return what listens in this network namespace.

    UDP has no listening state. A connected socket is a client's, and one on an ephemeral port may be: it is
    taken for a service where it belongs to an account of the system, as a VPN's does, and outlasts the search
    for names, as that of a query does not.
    """
    ephemeral = ephemeral_from(proc)
    found = [
        one
        for protocol in WAITING
        for one in sockets(protocol, proc)
        if not is_loopback(one.address) and (protocol, one.port) not in CLIENTS and not _users(one, ephemeral)
    ]
    names = process_names({one.inode for one in found}, proc)
    if any(one.protocol == "udp" and one.port >= ephemeral for one in found):
        lasting = {one.inode for one in sockets("udp", proc)}
        found = [
            one for one in found if one.protocol != "udp" or one.port < ephemeral or one.inode in lasting
        ]
    listening = {Listener(one.protocol, one.port, names.get(one.inode, UNKNOWN), one.uid) for one in found}
    return sorted(listening, key=lambda one: (one.protocol, one.port, one.process, one.uid))


def ephemeral_from(proc: Path = PROC) -> int:
    """Return the first port that the kernel chooses for sockets that ask for none."""
    return int((proc / "sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0])


def _users(one: Socket, ephemeral: int) -> bool:
    """Return whether a UDP socket is on an ephemeral port and belongs to a user, whose jobs are clients."""
    system = one.uid < FIRST_USER or one.uid in DYNAMIC_USERS
    return one.protocol == "udp" and one.port >= ephemeral and not system


def sockets(protocol: str, proc: Path = PROC) -> Iterator[Socket]:
    """Return the sockets of `tcp` or `udp` that wait for packets. Raises OutputError."""
    for table in (protocol, f"{protocol}6"):
        found = listed(table, proc)
        if protocol == "tcp":
            # Those that listen come first (Documentation/networking/proc_net_tcp.rst). Users may have any
            # number of connections behind them.
            yield from itertools.takewhile(_waits, found)
        else:
            yield from filter(_waits, found)


def _waits(one: Socket) -> bool:
    return one.state == WAITING[one.protocol]


def listed(table: str, proc: Path = PROC) -> Iterator[Socket]:
    """Return the sockets of a table of /proc/net. Raises OutputError."""
    try:
        file = (proc / "net" / table).open(encoding="ascii", errors="replace")
    except FileNotFoundError:  # IPv6 is switched off
        return
    with file:
        next(file, None)
        for line in file:
            yield parsed(f"/proc/net/{table}", line, lambda text: _socket(table.rstrip("6"), text))


def _socket(protocol: str, line: str) -> Socket:
    _, local, peer, state, _, _, _, uid, _, inode, *_ = line.split()
    return Socket(protocol, *_endpoint(local), *_endpoint(peer), state, int(uid), inode)


def _endpoint(text: str) -> tuple[Address, int]:
    host, _, port = text.rpartition(":")
    # Each word of 32 bits is a number in the byte order of the machine.
    words = (int(host[start : start + 8], 16) for start in range(0, len(host), 8))
    packed = b"".join(word.to_bytes(4, sys.byteorder) for word in words)
    return ipaddress.ip_address(packed), int(port, 16)


def process_names(inodes: set[str], proc: Path = PROC) -> dict[str, str]:
    """Return the name of a process that has each socket open, as far as it is found in time."""
    found: dict[str, str] = {}
    if not inodes:
        return found
    for process, _, target in open_files(proc):
        inode = target[len("socket:[") : -1] if target.startswith("socket:[") else ""
        if inode in inodes and inode not in found:
            with contextlib.suppress(OSError):  # it has ended
                name = (proc / process / "comm").read_text(errors="replace")
                found[inode] = STRANGE.sub("?", name.rstrip("\n"))
            if len(found) == len(inodes):
                break
    return found


def open_files(
    proc: Path = PROC, *, programs: Collection[str] = (), whole: bool = False
) -> Iterator[tuple[str, str, str]]:
    """Return processes, their descriptors and what is open by them, as far as they are found in time.

    Of `programs` by their names or paths, or of all. Raises CommandError where the `whole` is asked for and
    takes longer.
    """
    deadline = time.monotonic() + NAMES_TIMEOUT_S
    names = filter(str.isdecimal, os.listdir(proc))  # noqa: PTH208 - thousands of Paths take much longer
    for process in sorted(names, key=int):
        if programs:
            # An upgrade puts another file in the place of the one that runs.
            path = _target(f"{proc}/{process}/exe").removesuffix(" (deleted)")
            if path not in programs and os.path.basename(path) not in programs:  # noqa: PTH119 - as above
                continue
        # Suppressed where it has ended.
        with contextlib.suppress(OSError), os.scandir(proc / process / "fd") as descriptors:
            for descriptor in descriptors:
                if time.monotonic() > deadline:
                    if whole:
                        raise CommandError(
                            f"not all open files of processes were read in {NAMES_TIMEOUT_S:g} s"
                        )
                    return
                yield process, descriptor.name, _target(descriptor.path)


def _target(path: str) -> str:
    try:
        return os.readlink(path)  # noqa: PTH115 - of thousands: a Path for each would take as long again
    except OSError:  # it is closed by now
        return ""


def is_loopback(address: Address) -> bool:
    """Return whether only the node itself reaches an address."""
    return unmapped(address).is_loopback


def unmapped(address: Address) -> Address:
    """Return an address of IPv4 for one in IPv6's form, and any other as it is."""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address
