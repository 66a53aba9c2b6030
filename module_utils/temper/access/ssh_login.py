"""The SSH login that drives a module: whose it is, and where it comes from."""

from __future__ import annotations

import ipaddress
import os
import pwd
from dataclasses import dataclass, replace
from pathlib import Path


@dataclass(frozen=True)
class Login:
    """The SSH login that drives this process: whose it is, and its TCP connection as the node sees it.

    `by_sshd` is whether sshd has let it in, and not another server (Tailscale SSH, Teleport, dropbear).
    """

    account: str
    client: str
    client_port: int
    server: str
    server_port: int
    by_sshd: bool = True


def _status(process: Path) -> dict[str, str]:
    # The kernel escapes no more than line feeds in a process's name.
    lines = (process / "status").read_text(errors="replace").split("\n")
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


def ssh_login(pid: int | None = None, proc: Path = Path("/proc")) -> Login | None:
    """Find the SSH login that this process descends from, or None where it comes another way (say, locally).

    sudo hides SSH_CONNECTION, and each of sudo, su and doas has its own way to tell the login's name. So this
    looks at the ancestors: the one nearest to sshd has the login's own environment and runs as the account.
    """
    pid = os.getpid() if pid is None else pid
    login = None
    while pid > 1:
        try:
            status = _status(proc / str(pid))
            if status["Name"].startswith("sshd"):
                return login
            variables = (proc / str(pid) / "environ").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):
            break
        connections = [
            entry[15:].decode(errors="replace") for entry in variables if entry.startswith(b"SSH_CONNECTION=")
        ]
        if connections:
            login = _login(connections[0], uid=int(status["Uid"].split()[0]))
        pid = int(status["PPid"])
    return login and replace(login, by_sshd=False)


def _login(connection: str, uid: int) -> Login | None:
    """Read sshd's "client port server port". An address may have a zone (fe80::1%eth0) or be IPv4 in IPv6."""
    try:
        client, client_port, server, server_port = connection.split()
        return Login(
            pwd.getpwuid(uid).pw_name, _address(client), int(client_port), _address(server), int(server_port)
        )
    except ValueError:  # sshd says UNKNOWN where its input is no socket; an account may say what it likes
        return None


def _address(text: str) -> str:
    address = ipaddress.ip_address(text.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)
