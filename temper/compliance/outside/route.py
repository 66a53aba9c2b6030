"""How Ansible's ssh reaches a node, and which keys this machine knows of it, as ssh itself says."""

import os
import shlex
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from temper.plan.ssh_client import Connection, SshClient
from temper.plan.ssh_ways import DEFAULT_PORT

PROGRAM_S = 10
#: Addresses of one name.
MOST_ADDRESSES = 4
OPTIONS = {"port": "Port", "remote_user": "User"}


class RouteError(Exception):
    """It is not known how the node is reached; the message says why."""


@dataclass(frozen=True)
class Route:
    """Where sshd answers, and how one comes there.

    With `proxy`, a command, through whatever `through` names, and first of all its `gate`; `known_as` is the
    node's name in the files `known_hosts`.
    """

    host: str
    port: int
    user: str
    known_as: str
    known_hosts: tuple[str, ...] = ()
    proxy: tuple[str, ...] = ()
    through: str = ""
    gate: str = ""

    def addresses(self) -> tuple[str, ...]:
        """Return the addresses of the host, which this machine looks up. Raises RouteError."""
        try:
            found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise RouteError(f"this machine knows no address of {self.host}: {error}") from None
        return tuple(dict.fromkeys(str(entry[4][0]) for entry in found))[:MOST_ADDRESSES]

    def known_keys(self) -> dict[str, set[str]]:
        """Return the host keys that this machine knows of the node, by their types, as base64."""
        found: dict[str, set[str]] = {}
        for name in self.known_hosts:
            file = Path(name).expanduser()
            if not file.is_file():
                continue
            for line in _lines("ssh-keygen", "-F", self.known_as, "-f", str(file)):
                # A line of an authority or of a revoked key begins with its mark.
                words = line.split()
                if len(words) > 2 and line[0] not in "#@":
                    found.setdefault(words[1], set()).add(words[2])
        return found


def route(options: Mapping[str, object]) -> Route:
    """Return the route from the options of Ansible's connection plugin ssh. Raises RouteError.

    Nothing is connected to.
    """
    words: list[str] = []
    # In Ansible's order, because ssh takes the first value that it reads.
    for name in ("ssh_args", "port", "remote_user", "ssh_common_args", "ssh_extra_args"):
        value = str(options.get(name) or "")
        try:
            words += [f"-o{OPTIONS[name]}={value}"] if value and name in OPTIONS else shlex.split(value)
        except ValueError as error:
            raise RouteError(f"{name} cannot be read: {error}") from None
    connection, client = Connection(str(options["host"]), tuple(words)), SshClient()
    end, way = client.ask(words, connection.host), client.way(connection)
    if end is None or way is None:
        raise RouteError(f"ssh does not say how it reaches {connection.host}")
    name = end.host if end.port == DEFAULT_PORT else f"[{end.host}]:{end.port}"
    # As ssh runs it.
    proxy = (os.environ.get("SHELL") or "/bin/sh", "-c", f"exec {way.command}") if way.command else ()
    through = ", ".join(hop.names[0] for hop in way.hops if hop.port) or end.command or way.command
    known = (end.known_as or name, end.known_hosts)
    return Route(end.host, end.port, end.user, *known, proxy, through, way.gate if way.command else "")


def _lines(*command: str) -> list[str]:
    """Return what a program prints. Raises RouteError."""
    try:
        done = subprocess.run(  # noqa: S603 - names of ssh's own, no shell
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=PROGRAM_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RouteError(f"{command[0]} could not be run: {error}") from None
    return done.stdout.decode(errors="replace").splitlines()
