"""How ssh on this machine reaches a host: through which others, and by a command that shares no connection.

Pure: what ssh makes of arguments and a host is asked for through `Ask`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath

#: Jump hosts one behind the other; ssh itself has no bound, and configurations can go round in circles.
MOST_HOPS = 8
MOST_PORT = (1 << 16) - 1
DEFAULT_PORT = 22
#: Values of StrictHostKeyChecking with which ssh connects to no host whose key is another than the known one,
#: and keeps one that it did not know.
CHECKS_KEYS = frozenset(("true", "yes", "ask", "accept-new"))
#: What makes ssh take a key that is in no file of keys, unless it has this value, its default.
KEYS_FROM_ELSEWHERE = {
    "knownhostscommand": "none",
    "verifyhostkeydns": "false",
    "nohostauthenticationforlocalhost": "no",
}
#: Options of ssh(1) that take an argument, and those that decide where it connects to.
WITH_ARGUMENT = frozenset("bceilmopBDEFIJLOPQRSwW")
WAY = frozenset("FJPlop")
#: Shares no connection, asks nobody, and says why it ends. ssh takes the first value of an option.
ALONE = ("-o", "ControlPath=none", "-o", "ControlMaster=no", "-o", "BatchMode=yes", "-o", "LogLevel=INFO")
#: What of a command is left out for that; a proxy stands there in another form.
LEFT_OUT = frozenset("JSMqv")
#: Programs that an ssh in their arguments is started by.
STARTERS = frozenset(
    ("ssh", "exec", "env", "nice", "setsid", "sshpass", "timeout", "torsocks", "proxychains4")
)
#: One word of a shell's command, as it is written.
WORD = re.compile(r"""(?:\\.|"(?:\\.|[^"\\])*"|'[^']*'|[^\s"'\\])+""", re.DOTALL)
#: What may be a host in the words of a proxy that is no ssh: netcat, socat, connect.
HOST = re.compile(r"\[([0-9A-Fa-f:.]+)\]|([\w.-]+)")
JUMP = re.compile(r"(?:ssh://)?(?:(?P<user>.*)@)?(?:\[(?P<v6>.*)\]|(?P<host>[^:]*))(?::(?P<port>\d{1,5}))?/?")


@dataclass(frozen=True)
class Client:
    """What ssh would do: connect to this host, by itself, through `jump` (ProxyJump) or by `command`.

    It knows the host's keys under the name `known_as`, where the host has another one, from `known_hosts`.
    With `checks_keys` it connects only where the host has one of them.
    """

    host: str
    port: int
    user: str
    jump: str = ""
    command: str = ""
    known_as: str = ""
    known_hosts: tuple[str, ...] = ()
    checks_keys: bool = False

    @property
    def known_name(self) -> str:
        """The name of the host in the files `known_hosts`."""
        return self.known_as or (self.host if self.port == DEFAULT_PORT else f"[{self.host}]:{self.port}")

    @classmethod
    def from_text(cls, text: str) -> Client:
        """From the output of `ssh -G`. Raises ValueError."""
        found: dict[str, str] = {}
        for line in text.splitlines():
            keyword, _, value = line.partition(" ")
            found.setdefault(keyword.lower(), value)
        port = int(text) if re.fullmatch(r"[0-9]{1,5}", text := found.get("port", "")) else 0
        if not found.get("hostname") or not 0 < port <= MOST_PORT:
            raise ValueError(f"ssh -G: expected a hostname and a port, found {found!r:.100}")
        jump, command, alias = (
            "" if found.get(one) == "none" else found.get(one, "")
            for one in ("proxyjump", "proxycommand", "hostkeyalias")
        )
        files = f"{found.get('userknownhostsfile', '')} {found.get('globalknownhostsfile', '')}".split()
        checks = found.get("stricthostkeychecking") in CHECKS_KEYS and all(
            found.get(keyword, usual) == usual for keyword, usual in KEYS_FROM_ELSEWHERE.items()
        )
        return cls(found["hostname"], port, found.get("user", ""), jump, command, alias, tuple(files), checks)


#: What ssh makes of arguments and a host; None where it could not be asked.
Ask = Callable[[Sequence[str], str], Client | None]


@dataclass(frozen=True)
class Hop:
    """A machine on a way. `names` are what it is called there; with port 0 they are all that might be it."""

    names: tuple[str, ...]
    port: int = 0
    user: str = ""
    #: Whether its sshd forwards the connection; otherwise a program there does.
    forwards: bool = False


@dataclass(frozen=True)
class Way:
    """How ssh reaches a host. `command` leads to its sshd, over connections that are shared with nobody."""

    host: str
    port: int
    hops: tuple[Hop, ...] = ()
    command: str = ""

    @property
    def gate(self) -> str:
        """The machine that this one connects to first, where it leads through others."""
        first = self.hops[0] if self.hops else None
        return f"{' '.join(first.names)} {first.port}" if first else self.command


def way(arguments: Sequence[str], host: str, ask: Ask, most: int = MOST_HOPS) -> Way | None:
    """Return how ssh with these arguments reaches a host; None where ssh cannot be asked."""
    client = ask(arguments, host)
    if client is None:
        return None
    direct = Way(client.host, client.port)
    if most and client.jump:
        return _by_jump(direct, client.jump, arguments, ask, most)
    return _by_command(direct, _expanded(client, host), ask, most) if most and client.command else direct


def _by_jump(target: Way, jumps: str, arguments: Sequence[str], ask: Ask, most: int) -> Way:
    """Return the way through hosts that ssh goes to by itself; for them it takes no argument but -F."""
    options, _ = parsed(map(shlex.quote, arguments))
    own = [text for one in options if one.flag == "F" for text in ("-F", one.value)]
    stops: list[tuple[list[str], str, Client]] = []
    for text in jumps.split(",")[:most]:
        if not (found := JUMP.fullmatch(text.strip())):
            continue
        host = found["v6"] or found["host"]
        given = [*own]
        for flag, name in (("-l", "user"), ("-p", "port")):
            given += [flag, found[name]] if found[name] else []
        default = Client(host, int(found["port"] or DEFAULT_PORT), found["user"] or "")
        stops.append((given, host, ask(given, host) or default))
    first = way(*stops[0][:2], ask, most - 1) if stops else None
    hops, command = (first.hops, first.command) if first else ((), "")
    ends: list[Way | Client] = [*(client for _, _, client in stops[1:]), target]
    for (given, host, client), end in zip(stops, ends, strict=True):
        words = [*_through(command), *map(shlex.quote, given)]
        command = " ".join(["ssh", *words, "-W", shlex.quote(f"[{end.host}]:{end.port}"), shlex.quote(host)])
        hops += (Hop((host, client.host), client.port, client.user, forwards=True),)
    return replace(target, hops=hops, command=command)


def _by_command(target: Way, text: str, ask: Ask, most: int) -> Way:
    """Return the way by a command: that of the ssh in it, or of any machine that its words name."""
    raw = WORD.findall(text)
    programs = [PurePath(_plain(word)).name for word in raw]
    place = programs.index("ssh") if "ssh" in programs and programs[0] in STARTERS else None
    if place is None:
        words = [v6 or name for word in raw for v6, name in HOST.findall(_plain(word))]
        # The target's own name may be others' too: those that share its address (NAT) are not on its way.
        names = [word for word in dict.fromkeys(words) if word != target.host]
        # A shell or a script, say, with an ssh in it that nobody reads here.
        forwards = bool(re.search(r"\bssh\b", text))
        return replace(target, hops=(Hop(tuple(names), forwards=forwards),), command=text)
    options, rest = parsed(raw[place + 1 :])
    asked = [part for one in options if one.flag in WAY for part in (f"-{one.flag}", one.value)]
    host = _plain(rest[0]) if rest else ""
    before, client = way(asked, host, ask, most - 1), ask(asked, host)
    if not before or not client:
        return replace(target, command=text)
    kept = [word for one in options if one.flag not in LEFT_OUT for word in one.raw]
    name = host.removeprefix("ssh://").rpartition("@")[2]
    forwards = any(one.flag == "W" for one in options)
    return replace(
        target,
        hops=(*before.hops, Hop((name, client.host), client.port, client.user, forwards)),
        command=" ".join([*raw[: place + 1], *_through(before.command), *kept, *rest]),
    )


def _through(command: str) -> list[str]:
    """Return the options, for a shell, of an ssh that shares no connection, behind the way by a command."""
    proxy = ["-o", "ProxyCommand=" + command.replace("%", "%%")] if command else []
    return [shlex.quote(word) for word in (*ALONE, *proxy)]


def _expanded(client: Client, host: str) -> str:
    """Return its ProxyCommand with the tokens of ssh_config(5) filled in."""
    values = {"%": "%", "h": client.host, "n": host, "p": str(client.port), "r": client.user}
    values |= {"u": "$USER", "d": "$HOME"}
    return re.sub("%(.)", lambda found: values.get(found[1], found[0]), client.command)


@dataclass(frozen=True)
class Option:
    """An option of ssh, and the words that say it to a shell."""

    flag: str
    value: str
    raw: tuple[str, ...]


def parsed(words: Iterable[str]) -> tuple[list[Option], list[str]]:
    """Return the options of an ssh, also from behind its host, and the rest: host and command."""
    options: list[Option] = []
    rest: list[str] = []
    left = list(words)
    while left:
        raw = left.pop(0)
        word = _plain(raw)
        if word == "--" and not rest:
            return options, left
        if len(rest) > 1 or not re.match("-[^-]", word):
            rest.append(raw)
            continue
        letters = word[1:]
        while letters:
            flag, letters = letters[0], letters[1:]
            if flag not in WITH_ARGUMENT:
                options.append(Option(flag, "", (f"-{flag}",)))
                continue
            value = shlex.quote(letters) if letters else left.pop(0) if left else "''"
            options.append(Option(flag, _plain(value), (f"-{flag}", value)))
            letters = ""
    return options, rest


def _plain(word: str) -> str:
    """Return a word without a shell's quotes."""
    try:
        return "".join(shlex.split(word))
    except ValueError:
        return word
