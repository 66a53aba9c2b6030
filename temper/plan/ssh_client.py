"""What ssh on this machine says of its ways to the nodes, and whether a node can be reached by one.

It runs the operator's own ssh with the operator's own arguments, as Ansible does.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re
import selectors
import shlex
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from ansible.constants import DEFAULT_TRANSPORT, config
from ansible.errors import AnsibleError
from ansible.plugins.loader import connection_loader

from temper.plan.jump_hosts import JumpHost
from temper.plan.node_action import TaskValues
from temper.plan.ssh_turns import Turn
from temper.plan.ssh_ways import Client, Way, parsed, way
from validation.model.printable import one_line

AT_ONCE = 8
#: For one answer, and for all of them: `Match exec` runs what the operator likes.
ANSWER_S = 10
ANSWERS_S = 60
#: To a node's sshd, behind others.
REACHED_S = 15
MOST_CHARACTERS = 64 << 10
#: Options of Ansible's connection plugin ssh, and keywords of ssh.
PLUGIN_OPTIONS = (
    *("ssh_args", "host_key_checking", "port", "remote_user", "ssh_common_args", "ssh_extra_args"),
)
KEYWORDS = {"port": "Port", "remote_user": "User"}
#: Of a node that is this machine: where sshd has its keys where nobody says otherwise (sshd_config(5)).
OWN_KEYS = Path("/etc/ssh")
OWN_KINDS = ("rsa", "ecdsa", "ed25519")
#: Of ssh's own words, in a message.
SAID = 300
#: Stands for any node: no name server knows it (RFC 2606).
ANY_HOST = "node.invalid"
READ = re.compile(r"^debug1: Reading configuration data (.+?)\r?$", re.MULTILINE)
#: A proxy for some host. systemd 256 has one for machines on this one, in everybody's configuration.
PROXY = r"Proxy(?:Jump|Command)\b(?!.*/systemd-ssh-proxy\s)|Include\b.*%"
MAY_JUMP = re.compile(rf"^\s*(?:{PROXY})", re.MULTILINE | re.IGNORECASE)
#: What makes ssh go another way to one host than to another.
DECIDES = re.compile(rf"^\s*(?:HostName|{PROXY})", re.MULTILINE | re.IGNORECASE)
#: ssh's words for the code SSH_OPEN_ADMINISTRATIVELY_PROHIBITED (RFC 4254, 5.1), which it does not pass on.
FORBIDDEN = "administratively prohibited"


class Plugin(Protocol):
    """What is asked of Ansible's connection to a node."""

    transport: str

    def get_option(self, option: str) -> object:
        """Return an option, evaluated for the node."""


@dataclass(frozen=True)
class Connection:
    """How Ansible calls ssh for a node."""

    host: str
    arguments: tuple[str, ...]

    @classmethod
    def of(cls, name: str, variables: Mapping[str, Any]) -> Connection | None:
        """From the variables of a node; None where Ansible does not reach it by ssh. Raises AnsibleError."""
        # Of a node that pulls, all connections are local.
        fixed = variables.get("__preflight_ways_by")
        kind = str(fixed or variables.get("ansible_connection") or DEFAULT_TRANSPORT)
        if kind.rpartition(".")[2] not in ("ssh", "smart"):
            return None
        connection_loader.get("ssh", class_only=True)  # its options are known once it is loaded

        options = {
            option: config.get_config_value(
                option, plugin_type="connection", plugin_name="ssh", variables=variables
            )
            for option in PLUGIN_OPTIONS
        }
        host = variables.get("ansible_host") or variables.get("ansible_ssh_host") or name
        return cls.of_options(str(host), options)

    @classmethod
    def of_options(cls, host: str, options: Mapping[str, object]) -> Connection:
        """From the options of Ansible's connection plugin. Raises ValueError."""
        words: list[str] = []
        # In Ansible's order, because ssh takes the first value that it reads.
        for name in PLUGIN_OPTIONS:
            value = options.get(name)
            if name == "host_key_checking":
                words += ["-oStrictHostKeyChecking=no"] if value is False else []
            elif value and name in KEYWORDS:
                words.append(f"-o{KEYWORDS[name]}={value}")
            elif value:
                try:
                    words += shlex.split(str(value))
                except ValueError as error:
                    raise ValueError(f"{name} cannot be read: {error}") from None
        return cls(host, tuple(words))

    @classmethod
    def of_plugin(cls, plugin: Plugin) -> Connection:
        """From Ansible's connection plugin ssh. Raises ValueError."""
        return cls.of_options(
            str(plugin.get_option("host")), {name: plugin.get_option(name) for name in PLUGIN_OPTIONS}
        )


@dataclass(frozen=True)
class Look:
    """Whether a node's sshd answered, whether a machine on the way forbids it to forward, and ssh's words."""

    reached: bool
    forbidden: bool = False
    said: str = ""


class SshClient:
    """ssh, asked once for each configuration."""

    def __init__(self) -> None:
        self._said: dict[tuple[str, ...], Client | None] = {}
        self._until_s = time.monotonic() + ANSWERS_S

    def ask(self, arguments: Sequence[str], host: str) -> Client | None:
        """Return what ssh makes of arguments and a host, None where it does not say."""
        key = (*arguments, host)
        if key not in self._said:
            out, _ = self._asked(*key)
            try:
                self._said[key] = Client.from_text(out)
            except ValueError:
                self._said[key] = None
        return self._said[key]

    def _asked(self, *words: str) -> tuple[str, str]:
        left_s = min(ANSWER_S, self._until_s - time.monotonic())
        if left_s <= 0:
            return "", ""
        try:
            done = subprocess.run(  # noqa: S603 - the operator's own arguments, as Ansible gives them to ssh
                ["ssh", "-G", "-T", *words],  # noqa: S607 - the operator's PATH, as Ansible
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=left_s,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired, ValueError):
            return "", ""
        return done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")

    def ways(self, connections: Mapping[str, Connection]) -> dict[str, Way | None]:
        """Return how each node is reached, None where ssh does not say.

        Where nothing in ssh's files goes by the host, nodes with the same arguments cost one question.
        """
        files = {one.arguments: ssh_files(one.arguments) for one in connections.values()}
        by_host = {own: self.files_have(DECIDES, own) for own in set(files.values())}
        asked = {
            name: one if by_host[files[one.arguments]] else replace(one, host=ANY_HOST)
            for name, one in connections.items()
        }
        questions = list(dict.fromkeys(asked.values()))
        with ThreadPoolExecutor(AT_ONCE) as pool:
            found = dict(zip(questions, pool.map(self.way, questions), strict=True))
        return {
            name: answer
            and (answer if question.host != ANY_HOST else replace(answer, host=connections[name].host))
            for name, question in asked.items()
            for answer in [found[question]]
        }

    def way(self, connection: Connection) -> Way | None:
        """Return how a node is reached, None where ssh does not say."""
        return way(connection.arguments, connection.host, self.ask)

    def files_have(self, pattern: re.Pattern[str], files: tuple[str, ...]) -> bool:
        """Return whether a file that ssh reads, with these arguments, has a match; or cannot be read."""
        _, said = self._asked("-v", *files, ANY_HOST)
        try:
            texts = [Path(name).read_text(encoding="utf-8", errors="replace") for name in READ.findall(said)]
        except OSError:
            return True
        return any(map(pattern.search, texts))


def files_jump(arguments: Iterable[str]) -> bool:
    """Return whether ssh's files on this machine, with one of these arguments, have a proxy for any host."""
    files = set()
    for text in arguments:
        with suppress(ValueError):  # quotes that do not end: ssh gets none of it
            files.add(ssh_files(shlex.split(text)))
    client = SshClient()
    return any(client.files_have(MAY_JUMP, own) for own in files)


def ssh_files(arguments: Sequence[str]) -> tuple[str, ...]:
    """Return the arguments that name ssh's configuration."""
    return tuple(
        word
        for one in parsed(map(shlex.quote, arguments))[0]
        if one.flag == "F"
        for word in ("-F", one.value)
    )


def look(command: str, gate: str = "") -> Look:
    """Open a connection by a ProxyCommand without tokens, and see whether a sshd answers at its end."""
    # As ssh does it.
    shell = os.environ.get("SHELL") or "/bin/sh"
    with (
        Turn(gate, time.monotonic() + REACHED_S) as turn,
        subprocess.Popen(  # noqa: S603 - the operator's own proxy, as ssh runs it
            [shell, "-c", f"exec {command}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        ) as process,
    ):
        try:
            said = _until_greeted(process, time.monotonic() + REACHED_S)
        finally:
            turn.end()
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    out, errors = (text.decode(errors="replace") for text in said)
    reached = any(line.startswith("SSH-") for line in out.splitlines())
    return Look(reached, not reached and FORBIDDEN in errors, one_line(errors.strip())[-SAID:])


def _until_greeted(process: subprocess.Popen[bytes], until_s: float) -> tuple[bytes, bytes]:
    """Return what it has written to its outputs by the greeting, its end or the time given."""
    assert process.stdout
    assert process.stderr
    said = {process.stdout: b"", process.stderr: b""}
    with selectors.DefaultSelector() as selector:
        for stream in said:
            selector.register(stream, selectors.EVENT_READ)
        while selector.get_map() and b"SSH-" not in said[process.stdout]:
            ready = selector.select(max(0.0, until_s - time.monotonic()))
            if not ready:
                break
            for key, _ in ready:
                chunk = os.read(key.fd, 4096)
                stream = process.stdout if key.fd == process.stdout.fileno() else process.stderr
                said[stream] += chunk
                if not chunk or len(said[stream]) > MOST_CHARACTERS:
                    selector.unregister(stream)
    return said[process.stdout], said[process.stderr]


def looks(ways: Mapping[str, Way]) -> dict[str, Look]:
    """Look by several ways at once; again where one is not there: it may have been too many at once."""

    def at(name: str) -> Look:
        return look(ways[name].command, ways[name].gate)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = dict(zip(ways, pool.map(at, ways), strict=True))
        again = [name for name, one in found.items() if not one.reached]
        found |= zip(again, pool.map(at, again), strict=True)
    return found


def look_at(names: Iterable[str], variables: Mapping[str, Any], templar: Any) -> dict[str, Look]:
    """Open a new connection to each node that is reached through others; the rest is left out."""
    client = SshClient()
    found = {
        name: client.way(one) for name, one in connections(names, variables["hostvars"], templar).items()
    }
    return looks({name: way for name, way in found.items() if way and way.command})


def look_on_the_way(
    name: str, jumps: Mapping[str, JumpHost], variables: Mapping[str, Any], templar: Any
) -> tuple[list[str], Look]:
    """Return the nodes that one is reached through, and what came of a new connection through them."""
    through = [jump for jump, one in jumps.items() if name in one.behind]
    looked = look_at([name], variables, templar) if through else {}
    return through, looked.get(name, Look(reached=False))


def connections(names: Iterable[str], hostvars: Any, templar: Any) -> dict[str, Connection]:
    """Return how Ansible calls ssh for nodes, without those that it reaches in another way.

    A node whose variables cannot be evaluated is left out: its own tasks say so.
    """
    found = {}
    for name in names:
        own = {**hostvars.raw_get(name), "hostvars": hostvars}
        values = TaskValues(own, templar.copy_with_new_env(available_variables=own))
        try:
            connection = Connection.of(name, values)
        except (AnsibleError, ValueError):
            continue
        if connection:
            found[name] = connection
    return found


def known_keys(name: str, files: Iterable[str]) -> dict[str, set[str]]:
    """Return the keys that files `known_hosts` have of a host, by their types, as base64.

    Raises OSError, TimeoutExpired.
    """
    found: dict[str, set[str]] = {}
    for words in known_lines(name, files):
        # A line of an authority or of a revoked key begins with its mark.
        if not words[0].startswith("@"):
            found.setdefault(words[1], set()).add(words[2])
    return found


def known_lines(name: str, files: Iterable[str]) -> Iterator[list[str]]:
    """Return the lines that files `known_hosts` have of a host, as words. Raises OSError, TimeoutExpired."""
    for file in (Path(one).expanduser() for one in files):
        if not file.is_file():
            continue
        done = subprocess.run(  # noqa: S603 - names of ssh's own, no shell
            ["ssh-keygen", "-F", name, "-f", str(file)],  # noqa: S607 - as ssh above
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=ANSWER_S,
            check=False,
        )
        for line in done.stdout.decode(errors="replace").splitlines():
            words = line.split()
            if len(words) > 2 and line[0] != "#":
                yield words


def host_keys(plugin: Plugin) -> tuple[str, ...]:
    """Return the SSH host keys of a node that has answered, as far as this machine has made sure of them.

    A node cannot claim those of another one: ssh connects only where it has proven to have one that is known
    as its own. None where that is not checked, where an authority vouches for the node, or where Ansible
    reaches it in another way. A node that is this machine has those of this machine's sshd.
    """
    found: Iterable[tuple[str, str]] = ()
    try:
        if plugin.transport == "local":
            # Other ones, which sshd_config may name, only root can ask `sshd -T` for.
            keys = (OWN_KEYS / f"ssh_host_{kind}_key" for kind in OWN_KINDS)
            texts = [Path(f"{key}.pub").read_text(encoding="utf-8") for key in keys if key.exists()]
            found = [(words[0], words[1]) for text in texts if len(words := text.split()) > 1]
        elif plugin.transport == "ssh":
            one = Connection.of_plugin(plugin)
            client = SshClient().ask(one.arguments, one.host)
            if client and client.checks_keys:
                lines = [*known_lines(client.known_name, client.known_hosts)]
                # An old key may stand beside the authority that has vouched.
                vouched = any(words[0] == "@cert-authority" for words in lines)
                found = {(words[1], words[2]) for words in lines if words[0][0] != "@" and not vouched}
        return tuple(sorted(f"{kind} {fingerprint(key)}" for kind, key in found))
    except (OSError, ValueError, KeyError, subprocess.TimeoutExpired):
        return ()


def fingerprint(key: str) -> str:
    """Return a key as ssh-keygen -l shows it. Raises ValueError."""
    try:
        digest = hashlib.sha256(base64.b64decode(key, validate=True)).digest()
    except binascii.Error as error:
        raise ValueError(f"expected a key as base64, found {key:.40}") from error
    return f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}"
