"""Connections that sshd has opened to other machines for those who are logged in.

Whoever has one is on the way through this node, whatever the inventory says.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import pwd
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from ansible.module_utils.temper.process import parsed

PROC = Path("/proc")
ESTABLISHED = "01"  # include/net/tcp_states.h
SSH_PORT = 22
#: A user may call a process as he likes, but not put a program into these folders.
PROGRAMS = ("/usr/sbin/sshd", "/usr/lib/openssh/sshd-session", "/usr/libexec/openssh/sshd-session")
MOST_CHANNELS = 64


@dataclass(frozen=True)
class Channel:
    """A connection to the sshd of another machine, opened for an account of this node."""

    account: str
    address: str

    def __str__(self) -> str:
        return f"{self.account} to {self.address}"


@dataclass(frozen=True)
class _Connection:
    local_port: int
    address: ipaddress.IPv4Address | ipaddress.IPv6Address
    port: int
    inode: str


def channels(own_ports: Collection[str], proc: Path = PROC) -> list[Channel]:
    """Return what sshd has open to port 22, or to its own ports, elsewhere. Raises OutputError."""
    ports = {SSH_PORT, *map(int, own_ports)}
    found = {
        f"socket:[{one.inode}]": one
        for one in _connections(proc)
        # What came in has our own port here.
        if one.port in ports and one.local_port not in ports and not one.address.is_loopback
    }
    open_ = set()
    for process in os.listdir(proc) if found else ():  # noqa: PTH208 - names
        with contextlib.suppress(OSError, KeyError):  # it has ended, or nobody has its number
            if not process.isdecimal() or _program(proc / process) not in PROGRAMS:
                continue
            account = pwd.getpwuid((proc / process).stat().st_uid).pw_name
            for descriptor in os.scandir(proc / process / "fd"):
                with contextlib.suppress(OSError):
                    link = os.readlink(descriptor.path)  # noqa: PTH115 - as a text
                    if one := found.get(link):
                        open_.add(Channel(account, str(one.address)))
    return sorted(open_, key=str)[:MOST_CHANNELS]


def _program(process: Path) -> str:
    """Return the file of a process's program. One that an upgrade has replaced runs on."""
    text = os.readlink(process / "exe")  # noqa: PTH115 - as a text
    return text[: -len(" (deleted)")] if text.endswith(" (deleted)") else text


def _connections(proc: Path) -> Iterator[_Connection]:
    for table in ("tcp", "tcp6"):
        path = proc / "net" / table
        if not path.exists():  # IPv6 is switched off
            continue
        with path.open(encoding="ascii", errors="replace") as file:
            next(file, None)
            for line in file:
                if one := parsed(str(path), line, _connection):
                    yield one


def _connection(line: str) -> _Connection | None:
    """Read a row of /proc/net/tcp; None where it is no open connection."""
    _, local, remote, state, _, _, _, _, _, inode, *_ = line.split()
    if state != ESTABLISHED:
        return None
    host, _, port = remote.rpartition(":")
    # Each word of 32 bits is a number in the byte order of the machine.
    words = (int(host[start : start + 8], 16) for start in range(0, len(host), 8))
    address = ipaddress.ip_address(b"".join(word.to_bytes(4, sys.byteorder) for word in words))
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return _Connection(int(local.rpartition(":")[2], 16), mapped or address, int(port, 16), inode)
