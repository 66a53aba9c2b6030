"""How Ansible's ssh reaches a node, and which keys this machine knows of it, as ssh itself says."""

from __future__ import annotations

import os
import socket
import subprocess
from dataclasses import dataclass

from temper.base.options import told
from temper.plan.ssh_client import Connection, Plugin, SshClient, known_keys

#: Addresses of one name.
MOST_ADDRESSES = 4


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
            raise RouteError(f"this machine knows no address of {self.host}: {told(error)}") from None
        return tuple(dict.fromkeys(str(entry[4][0]) for entry in found))[:MOST_ADDRESSES]

    def known_keys(self) -> dict[str, set[str]]:
        """Return the host keys that this machine knows of the node, by their types, as base64."""
        try:
            return known_keys(self.known_as, self.known_hosts)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise RouteError(f"ssh-keygen could not be run: {told(error)}") from None


def route(plugin: Plugin) -> Route:
    """Return the route of Ansible's connection plugin ssh. Raises RouteError.

    Nothing is connected to.
    """
    try:
        connection, client = Connection.of_plugin(plugin), SshClient()
    except ValueError as error:
        raise RouteError(str(error)) from None
    end, way = client.ask(connection.arguments, connection.host), client.way(connection)
    if end is None or way is None:
        raise RouteError(f"ssh does not say how it reaches {connection.host}")
    # As ssh runs it.
    proxy = (os.environ.get("SHELL") or "/bin/sh", "-c", f"exec {way.command}") if way.command else ()
    through = ", ".join(hop.names[0] for hop in way.hops if hop.port) or end.command or way.command
    known = (end.known_name, end.known_hosts)
    return Route(end.host, end.port, end.user, *known, proxy, through, way.gate if way.command else "")
