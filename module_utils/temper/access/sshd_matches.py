"""What the site's own files say to sshd: their lines, their Match blocks, and whom those let in more easily.

sshd has the last word on each login. What is read here only tells which logins it must be asked for.
"""

from __future__ import annotations

import glob
import grp
import ipaddress
import operator
import pwd
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING

from ansible.module_utils.temper.access.sshd import DROP_IN, MAIN, Effective, included
from ansible.module_utils.temper.access.sshd_strictness import METHODS, as_strict, ways_in
from ansible.module_utils.temper.settings.base import RefusedError

if TYPE_CHECKING:
    from ansible.module_utils.temper.access.ssh_login import Login

MOST_FILES = 256
DEEPEST_INCLUDE = 16  # sshd's own limit
MOST_LOGINS = 64  # of different kinds; sshd takes about 10 ms for each
# What no account of the node has, for a block whose accounts nobody can name.
NOBODY = "temper-no-such-account"
# For sshd -C: a login that no block meets. sshd -T alone takes a Match line with LocalPort for an error.
NO_LOGIN = "lport=65535"
WITHOUT_ARGUMENT = ("all", "canonical", "final", "invalid-user")
# Documentation's networks: addresses from anywhere.
ANYWHERE = ("192.0.2.1", "203.0.113.1", "2001:db8::1")
# sshd reads the first name as the second one.
ALIASES = {
    "challengeresponseauthentication": "kbdinteractiveauthentication",
    "skeyauthentication": "kbdinteractiveauthentication",
    "dsaauthentication": "pubkeyauthentication",
    "keepalive": "tcpkeepalive",
}
FORWARDING = (
    *("AllowTcpForwarding", "AllowStreamLocalForwarding", "AllowAgentForwarding"),
    *("X11Forwarding", "PermitTunnel", "GatewayPorts"),
)
WATCHED = frozenset(
    {
        *(switch for switch, *_ in METHODS.values()),
        *(keyword.lower() for keyword in FORWARDING),
        *("authenticationmethods", "permitrootlogin", "disableforwarding", "refuseconnection"),
    }
)


@dataclass(frozen=True)
class Block:
    """A Match line."""

    place: str
    criteria: str

    @cached_property
    def tests(self) -> list[tuple[str, str]]:
        """The criteria, each with its patterns. Names are in lower case."""
        words, found = _words(self.criteria), []
        while words:
            name, equals, value = words.pop(0).partition("=")
            name = name.lower()
            if not equals and name not in WITHOUT_ARGUMENT:
                value = words.pop(0) if words else ""
            found.append((name, value))
        return found


@dataclass(frozen=True)
class Line:
    """A setting, and the Match blocks that it stands in. The keyword is in lower case."""

    path: Path
    number: int
    keyword: str
    value: str
    blocks: tuple[Block, ...] = ()

    @property
    def words(self) -> list[str]:
        """Its values, without quotes and comments."""
        return _words(self.value)

    @property
    def place(self) -> str:
        """Where it stands, for people."""
        return f"{self.path}:{self.number}"


def site_lines(main: Path = MAIN, drop_in: Path = DROP_IN) -> list[Line]:
    """Return the settings in all files that sshd reads but ours, in sshd's order. Raises RefusedError."""
    opened: list[Path] = []

    def read(path: Path, blocks: tuple[Block, ...], depth: int) -> Iterator[Line]:
        opened.append(path)
        if len(opened) > MOST_FILES or depth > DEEPEST_INCLUDE:
            raise RefusedError(
                f"sshd's configuration has more than {MOST_FILES} files or Include lines nested more than "
                f"{DEEPEST_INCLUDE} deep, at {path}: put them together and run again."
            )
        inner = blocks
        for number, text in enumerate(path.read_text(encoding="utf-8", errors="replace").split("\n"), 1):
            match = re.match(r"\s*([A-Za-z0-9]+)(?:\s*=\s*|\s+)(.*\S)", text)
            if not match:
                continue
            keyword = ALIASES.get(match[1].lower(), match[1].lower())
            if keyword == "match":
                # A block ends where the next one begins, or with its file.
                criteria = " ".join(re.sub(r"\s#.*", "", match[2]).split())
                inner = (*blocks, Block(f"{path}:{number}", criteria))
            elif keyword == "include":
                for pattern in included(match[2]):
                    names = glob.glob(str(main.parent / pattern))  # noqa: PTH207 - as sshd's glob(3)
                    for name in sorted(names):
                        if Path(name) != drop_in and Path(name).is_file():
                            yield from read(Path(name), inner, depth + 1)
            else:
                yield Line(path, number, keyword, match[2], inner)

    return list(read(main, (), 0))


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text, comments=True)
    except ValueError:  # sshd says what is wrong with it
        return text.split()


@dataclass(frozen=True)
class Who:
    """An account, as Match lines look at it."""

    name: str
    groups: frozenset[str] = frozenset()
    is_root: bool = False


@dataclass(frozen=True)
class Connection:
    """The ends of a connection, as Match lines look at them."""

    client: str
    server: str = "192.0.2.2"
    port: str = "22"
    host: str = ""


@dataclass(frozen=True)
class Probe:
    """A kind of login that sshd is asked for, and the site's blocks that decide it.

    With `lines`, whom the block means is not known here: they are asked for as if it met everybody.
    """

    who: Who
    connection: Connection
    blocks: tuple[Block, ...]
    lines: tuple[Line, ...] = ()

    @property
    def text(self) -> str:
        """The argument of `sshd -T -C`."""
        to = self.connection
        return (
            f"user={self.who.name},host={to.host or to.client},addr={to.client},laddr={to.server},"
            f"lport={to.port}"
        )

    @property
    def subject(self) -> str:
        """Whom it stands for, in words."""
        if self.lines:
            return "whom it meets"
        address = any(name not in ("user", "group") for block in self.blocks for name, _ in block.tests)
        return f"{self.who.name} from {self.connection.client}" if address else self.who.name

    def added(self) -> str:
        """Return what stands after our settings so that the block meets everybody."""
        return "".join(
            ["Match all\n", *(f"    {line.keyword} {line.value}\n" for line in self.lines)]
            if self.lines
            else []
        )


@cache
def _glob(pattern: str) -> re.Pattern[str]:
    """Return sshd's wildcards as an expression: * and ? alone."""
    return re.compile("".join({"*": ".*", "?": "."}.get(one, re.escape(one)) for one in pattern), re.DOTALL)


def in_list(patterns: str, matches: Callable[[str], bool]) -> bool:
    """Return whether a list of patterns has one that matches, and none with a ! before it that does."""
    found = False
    for one in patterns.split(","):
        pattern = one.strip()
        if matches(pattern.lstrip("!")):
            if pattern.startswith("!"):
                return False
            found = True
    return found


def _is_name(name: str) -> Callable[[str], bool]:
    return lambda pattern: bool(_glob(pattern).fullmatch(name))


def _is_address(address: str) -> Callable[[str], bool]:
    def matches(pattern: str) -> bool:
        try:
            return ipaddress.ip_address(address) in ipaddress.ip_network(pattern, strict=False)
        except ValueError:
            return bool(_glob(pattern.lower()).fullmatch(address.lower()))

    return matches


def meets_account(block: Block, who: Who) -> bool:
    """Return whether the User and Group criteria of a Match line meet an account."""
    for name, patterns in block.tests:
        if name == "user" and not in_list(patterns, _is_name(who.name)):
            return False
        if name == "group" and not _any_group(patterns, who.groups):
            return False
        if name == "invalid-user":
            return False
    return True


def _any_group(patterns: str, groups: Iterable[str]) -> bool:
    negative = [one.strip()[1:] for one in patterns.split(",") if one.strip().startswith("!")]
    if any(_glob(pattern).fullmatch(group) for pattern in negative for group in groups):
        return False
    return any(in_list(patterns, _is_name(group)) for group in groups)


def meets_connection(block: Block, connection: Connection) -> bool:
    """Return whether the other criteria of a Match line meet a connection.

    One that we do not know does not.
    """
    for name, patterns in block.tests:
        tests = {
            "address": _is_address(connection.client),
            "localaddress": _is_address(connection.server),
            "host": _is_name(connection.host or connection.client),
            "localport": _is_name(connection.port),
        }
        if name in ("user", "group", "all", "canonical", "final", "invalid-user"):
            continue
        if name not in tests or not in_list(patterns, tests[name]):
            return False
    return True


def accounts(blocks: Iterable[Block]) -> list[Who]:
    """Return the accounts of the node, and those that Match lines name; people come first."""
    tests = [test for block in blocks for test in block.tests]
    named = {one.strip() for name, value in tests if name in ("user", "group") for one in value.split(",")}
    found = {user.pw_name: user for user in pwd.getpwall()}
    groups = {group.gr_name: group for group in grp.getgrall()}
    # A directory service names what it is asked for, and may list nothing.
    for name in sorted(named - groups.keys()):
        try:
            groups[name] = grp.getgrnam(name)
        except KeyError:
            continue
    members = {member for name, group in groups.items() if name in named for member in group.gr_mem}
    for name in sorted((named | members) - found.keys()):
        try:
            found[name] = pwd.getpwnam(name)
        except KeyError:
            continue
    of_member: dict[str, set[str]] = {}
    for group in groups.values():
        for member in group.gr_mem:
            of_member.setdefault(member, set()).add(group.gr_name)
    by_gid = {group.gr_gid: group.gr_name for group in groups.values()}
    known = [
        Who(
            user.pw_name,
            frozenset(of_member.get(user.pw_name, set()) | {by_gid.get(user.pw_gid, "")}) - {""},
            user.pw_uid == 0,
        )
        for user in sorted(found.values(), key=lambda user: (user.pw_uid < 1000, user.pw_uid))
    ]
    # Accounts that come later, or that a directory service does not list.
    patterns = [one.strip() for name, value in tests if name == "user" for one in value.split(",")]
    samples = {re.sub("[*?]", "x", one) for one in patterns if one and not one.startswith("!")}
    return [*known, *(Who(name) for name in sorted(samples - found.keys()))]


def connections(blocks: Iterable[Block], login: Login | None) -> list[Connection]:
    """Return the login's connection, and others that the Match lines tell apart."""
    usual = (
        Connection(login.client, login.server, str(login.server_port)) if login else Connection(ANYWHERE[0])
    )
    values: dict[str, list[str]] = {"address": [], "localaddress": [], "host": [], "localport": []}
    for block in blocks:
        for name, patterns in block.tests:
            if name in values:
                values[name] += [_sample(name, one.strip().lstrip("!")) for one in patterns.split(",")]
    found = [usual]
    if any(values.values()):
        clients = [usual.client, *values["address"], *ANYWHERE]
        found += [
            Connection(client, server, port, host)
            for client in clients
            for server in [usual.server, *values["localaddress"]]
            for port in [usual.port, *values["localport"]]
            for host in ["", *values["host"]]
        ]
    return list(dict.fromkeys(found))


def _sample(name: str, pattern: str) -> str:
    """Return what a pattern matches."""
    if name == "host":
        return re.sub("[*?]", "x", pattern)
    if name == "localport":
        return pattern
    try:
        network = ipaddress.ip_network(pattern, strict=False)
    except ValueError:
        text = re.sub("[*?]", "1", pattern)
        return text if ":" in text else ".".join([*text.split("."), "1", "1", "1"][:4])
    return str(network[min(1, network.num_addresses - 1)])


def probes(lines: Sequence[Line], own: Iterable[Block], login: Login | None) -> list[Probe]:
    """Return one login of each kind that the site's Match lines tell apart. `own` are the blocks of ours."""
    watched = [line for line in lines if line.keyword in WATCHED]
    blocks = list(dict.fromkeys(block for line in watched for block in line.blocks))
    if not blocks:
        return []
    # A block within a file that another block includes holds where both do.
    outer = {line.blocks[-1]: line.blocks for line in lines if line.blocks}
    everything = [*blocks, *own]
    kinds: dict[tuple[bool, ...], Who] = {}
    for who in accounts(blocks):
        kinds.setdefault((*(meets_account(block, who) for block in everything), who.is_root), who)
    ends: dict[tuple[bool, ...], Connection] = {}
    for connection in connections(blocks, login):
        ends.setdefault(tuple(meets_connection(block, connection) for block in everything), connection)
    found: dict[tuple[object, ...], Probe] = {}
    met: set[Block] = set()
    for whose, who in kinds.items():
        for which, connection in ends.items():
            met_at_all = set(compress(everything, map(operator.and_, whose, which)))
            ours = frozenset(met_at_all.intersection(own))
            hit = {block for block in blocks if met_at_all.issuperset(outer.get(block, (block,)))}
            if hit:
                met |= hit
                inner = tuple(block for block in blocks if block in hit)
                found.setdefault((inner, ours, who.is_root), Probe(who, connection, inner))
    unmet = [
        Probe(
            Who(NOBODY), Connection(ANYWHERE[0]), (block,), tuple(one for one in lines if block in one.blocks)
        )
        for block in blocks
        if block not in met
    ]
    return [*unmet, *found.values()]


def faults(
    probe: Probe,
    effective: Effective,
    expected: Effective,
    lines: Sequence[Line],
) -> dict[Line, str]:
    """Return the lines that give a login a weaker way in, or more rights, than expected, with sentences."""
    found: dict[Line, str] = {}
    if effective.get("refuseconnection") == ["yes"]:
        return found

    def blame(keywords: set[str], what: str) -> None:
        setting = [line for line in lines if line.blocks and line.keyword in keywords]
        # sshd's answer counts, also where our own reading of its Match lines found no block.
        meeting = [line for line in setting if set(line.blocks) <= set(probe.blocks)]
        for line in meeting or setting:
            found.setdefault(line, f"{line.place} (Match {line.blocks[-1].criteria}) {what}")

    usual = ways_in(expected)
    for way in ways_in(effective):
        if "publickey" not in way and way not in usual:
            keywords = {"authenticationmethods", *(METHODS[name][0] for name in way)}
            blame(keywords, f"lets {probe.subject} in by {' and '.join(way)}, without a key")
    compared = ["PermitEmptyPasswords"]
    if probe.who.is_root or probe.lines:
        compared.append("PermitRootLogin")
    if effective.get("disableforwarding") != ["yes"]:
        compared += FORWARDING
    for keyword in compared:
        name = keyword.lower()
        if name in expected and not as_strict(name, effective.get(name), expected[name]):
            value = " ".join(effective.get(name, ["unset"]))
            blame({name}, f"gives {probe.subject} {keyword} {value}, expected {' '.join(expected[name])}")
    return found
