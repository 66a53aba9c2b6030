"""How Ansible's ssh reaches a node, as `ssh -G` says with the inventory's options, and the keys it knows."""

from __future__ import annotations

import shlex
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PROGRAM_S = 10
#: Addresses of one name.
MOST_ADDRESSES = 4
NONE = ("", "none")
OPTIONS = {"port": "Port", "remote_user": "User"}


class RouteError(Exception):
    """It is not known how the node is reached; the message says why."""


@dataclass(frozen=True)
class Route:
    """Where sshd answers, and how one comes there.

    With `proxy`, a command, through whatever `through` names; `known_as` is the node's name in the files
    `known_hosts`.
    """

    host: str
    port: int
    user: str
    known_as: str
    known_hosts: tuple[str, ...] = ()
    proxy: tuple[str, ...] = ()
    through: str = ""

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
            for line in _output(["ssh-keygen", "-F", self.known_as, "-f", str(file)], (0, 1)).splitlines():
                # A line of an authority or of a revoked key begins with its mark.
                words = line.split()
                if len(words) > 2 and line[0] not in "#@":
                    found.setdefault(words[1], set()).add(words[2])
        return found


def route(options: Mapping[str, object]) -> Route:
    """Return the route from the options of Ansible's connection plugin ssh. Raises RouteError.

    `ssh -G` connects to nothing.
    """
    program = str(options.get("ssh_executable") or "ssh")
    words: list[str] = []
    # In Ansible's order, because ssh takes the first value that it reads.
    for name in ("ssh_args", "port", "remote_user", "ssh_common_args", "ssh_extra_args"):
        value = options.get(name)
        if value and name in OPTIONS:
            words += ["-o", f"{OPTIONS[name]}={value}"]
        else:
            try:
                words += shlex.split(str(value or ""))
            except ValueError as error:
                raise RouteError(f"{name} cannot be read: {error}") from None
    command = [program, *words, "-G", "--", str(options["host"])]
    lines = [line.partition(" ") for line in _output(command).splitlines()]
    return read_route({name: value for name, _, value in lines}, program, words)


def read_route(said: Mapping[str, str], program: str, words: Sequence[str]) -> Route:
    """Return the route from what `ssh -G` says. Raises RouteError."""
    try:
        host, user, port = said["hostname"], said["user"], int(said["port"])
    except (KeyError, ValueError) as error:
        raise RouteError(f"ssh -G says nothing that can be read of it: {error}") from None
    alias = said.get("hostkeyalias", "")
    known_as = alias if alias not in NONE else host if port == 22 else f"[{host}]:{port}"
    files = (*said.get("userknownhostsfile", "").split(), *said.get("globalknownhostsfile", "").split())
    jump, command = said.get("proxyjump", ""), said.get("proxycommand", "")
    proxy: tuple[str, ...] = ()
    if jump not in NONE:
        *before, last = jump.split(",")
        file = words[words.index("-F") + 1 :][:1] if "-F" in words else []
        options = [*(["-F", *file] if file else []), *(["-J", ",".join(before)] if before else [])]
        target = last if last.startswith("ssh://") else f"ssh://{last}"
        proxy = (program, *options, "-o", "BatchMode=yes", "-W", f"[{host}]:{port}", target)
    elif command not in NONE:
        tokens = {"%%": "%", "%h": host, "%p": str(port), "%r": user, "%n": host}
        text = "".join(_replaced(command, tokens))
        proxy = ("/bin/sh", "-c", f"exec {text}")
    through = "" if not proxy else jump if jump not in NONE else command
    return Route(host, port, user, known_as, files, proxy, through)


def _replaced(text: str, tokens: Mapping[str, str]) -> list[str]:
    """Return the text with ssh's tokens replaced, piece by piece."""
    pieces, place = [], 0
    while place < len(text):
        two = text[place : place + 2]
        pieces.append(tokens.get(two, text[place]))
        place += 2 if two in tokens else 1
    return pieces


def _output(command: Sequence[str], good: Sequence[int] = (0,)) -> str:
    try:
        done = subprocess.run(  # noqa: S603 - ssh and ssh-keygen, with the inventory's own options
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PROGRAM_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RouteError(f"{command[0]} could not be run: {error}") from None
    if done.returncode not in good:
        raise RouteError(f"{command[0]} says: {done.stderr.strip()[-200:]}")
    return done.stdout
