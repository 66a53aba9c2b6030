"""Connections that sshd has opened to other machines for those who are logged in.

Whoever has one is on the way through this node, whatever the inventory says.
"""

from __future__ import annotations

import contextlib
import pwd
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from ansible.module_utils.temper.access.listeners import (
    ESTABLISHED,
    PROC,
    is_loopback,
    listed,
    open_files,
    unmapped,
)

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


def channels(own_ports: Collection[str], proc: Path = PROC) -> list[Channel]:
    """Return what sshd has open to port 22, or to its own ports, elsewhere. Raises OutputError."""
    ports = {SSH_PORT, *map(int, own_ports)}
    peers = {
        f"socket:[{one.inode}]": unmapped(one.peer)
        for table in ("tcp", "tcp6")
        for one in listed(table, proc)
        # What came in has our own port here.
        if one.state == ESTABLISHED and one.peer_port in ports and one.port not in ports
        if not is_loopback(one.peer)
    }
    found = set()
    for process, _, target in open_files(proc, programs=PROGRAMS, whole=True) if peers else ():
        if target in peers:
            with contextlib.suppress(OSError, KeyError):  # it has ended, or nobody has its number
                account = pwd.getpwuid((proc / process).stat().st_uid).pw_name
                found.add(Channel(account, str(peers[target])))
    return sorted(found, key=str)[:MOST_CHANNELS]
