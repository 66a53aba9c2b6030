"""NCCL's RAS: which ranks have launched fewer collectives than others, or do not answer.

Since NCCL 2.24 each process has a thread that knows of all others and answers on a socket: as text, and since
2.28.7 as JSON (NCCL's user guide, "RAS"; src/ras/client_support.cc of releases 2.24.3 to 2.30.7).
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import socket
import time
from dataclasses import dataclass, field
from typing import Any

VARIABLE, PORT = "NCCL_RAS_ADDR", 28028
#: The commands of one query. A release before 2.28.7 knows no formats, says so, and answers as text.
QUERY = b"CLIENT PROTOCOL 2\nTIMEOUT 1\nSET FORMAT json\nVERBOSE STATUS\n"
#: How long all of a query may take, and one process to begin an answer: all of a node listen on one port, and
#: the kernel may choose one that is stopped.
WITHIN_S, FIRST_S = 3.0, 0.5
MOST_BYTES = 4 << 20

#: "collective" before 2.26, which has one count for all kinds; then the kind.
COUNTS = re.compile(r"  Communicator ranks have different (\w{1,40}) operation counts")
LAUNCHED = r"(?:launched up to operation (\d{1,18})|not launched any operations)"
GROUP = re.compile(rf"  (\d{{1,7}}) ranks have {LAUNCHED}")
ALONE = re.compile(rf"  Rank (\d{{1,7}}) has {LAUNCHED} -- ")
MEMBER = re.compile(r"  Rank (\d{1,7}) -- ")
MISSING = re.compile(r"  Missing communicator data from (\d{1,7}) ranks?")
THE_MISSING = re.compile(r"  The missing ranks?: ([\d, ]{1,2000})")
SUMMARY = re.compile(r" *\d+ +\d+ +\d+ +[\d-]+ +(\d{1,7}) +\d+ +[A-Z]+ +[A-Z,]+")


class RasError(Exception):
    """NCCL's RAS gave no answer, or none that can be read; the message says why."""


@dataclass(frozen=True)
class Lag:
    """Ranks that launched fewer collectives of one kind than the others, or are missing (kind is empty)."""

    size: int
    ranks: frozenset[int]
    kind: str = ""


@dataclass
class _Counts:
    """What the text has of one kind: how many ranks for each count, and those that it names."""

    kind: str
    ranks: dict[int, int] = field(default_factory=dict)
    named: dict[int, set[int]] = field(default_factory=dict)


def own_address() -> str:
    """Return an address of this machine that no other job has: one at random, as containers share numbers.

    A foreign communicator of as many ranks is told apart by nothing else.
    """
    return f"127.{1 + secrets.randbelow(254)}.{secrets.randbelow(256)}.{1 + secrets.randbelow(254)}:{PORT}"


def ask(address: str) -> str:
    """Return what RAS answers at `HOST:PORT`, without the answers to the commands before. Raises RasError."""
    host, _, port = address.rpartition(":")
    if not port.isdigit():
        raise RasError(f"expected HOST:PORT in {VARIABLE}, found {address[:80]!r}")
    until, reason = time.monotonic() + WITHIN_S, "it began no answer"
    while time.monotonic() < until:
        try:
            return _ask(host.strip("[]"), int(port), until)
        except TimeoutError:
            continue  # perhaps of a process that is stopped; the next one may answer
        except OSError as error:
            reason = error.strerror or str(error)
            break
    raise RasError(f"NCCL's RAS at {address} did not answer: {reason}")


def _ask(host: str, port: int, until: float) -> str:
    with contextlib.closing(socket.create_connection((host, port), FIRST_S)) as asked:
        asked.sendall(QUERY)
        answer = bytearray()
        while piece := asked.recv(1 << 16):
            answer += piece
            if len(answer) > MOST_BYTES:
                raise RasError(f"NCCL's RAS at {host}:{port} answered more than {MOST_BYTES} bytes")
            asked.settimeout(max(0.01, until - time.monotonic()))
    lines = answer.decode(errors="replace").split("\n", 3)
    if len(lines) < 4 or not lines[0].startswith("SERVER PROTOCOL ") or lines[1] != "OK":
        raise RasError(f"what answers at {host}:{port} is not NCCL's RAS")
    return lines[3]


def read(text: str, size: int) -> list[Lag]:
    """Return the lags in communicators of `size` ranks, missing ranks first. Raises RasError."""
    found = _of_json(text) if text.lstrip().startswith("{") else _of_text(text)
    lags = {lag for lag in found if lag.size == size and all(rank < size for rank in lag.ranks)}
    return sorted(lags, key=lambda lag: (lag.kind, sorted(lag.ranks)))


def _of_json(text: str) -> list[Lag]:
    try:
        said = json.loads(text)
        found = []
        for communicator in said["communicators"]:
            size = _whole(communicator["size"])
            missing = frozenset(_whole(rank["rank"]) for rank in communicator["missing_ranks"])
            counts: dict[str, dict[int, int]] = {}
            for rank in communicator["ranks"]:
                for kind, count in rank["collective_counts"].items():
                    counts.setdefault(_name(kind), {})[_whole(rank["rank"])] = _whole(count)
            if missing:
                found.append(Lag(size, missing))
            found += [Lag(size, behind, kind) for kind, ranks in counts.items() if (behind := _behind(ranks))]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise RasError(
            f"NCCL's RAS answered other JSON than that of NCCL 2.28.7 to 2.30: {error!r:.200}"
        ) from error
    return found


def _behind(counts: dict[int, int]) -> frozenset[int]:
    most = max(counts.values(), default=0)
    return frozenset(rank for rank, count in counts.items() if count < most)


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 64:
        raise ValueError("expected a whole number")
    return value


def _name(value: str) -> str:
    if not re.fullmatch(r"\w{1,40}", value):
        raise ValueError("expected the name of a collective")
    return value


def _of_text(text: str) -> list[Lag]:
    """From text, which names the ranks of small groups alone: under half of all.

    A lag counts where every rank behind is named. Missing ranks are named in the same way.
    """
    if "Communicators..." not in text:
        raise RasError("NCCL's RAS answered without its table of communicators")
    sizes = {int(row[1]) for line in text.splitlines() if (row := SUMMARY.fullmatch(line))}
    found: list[Lag] = []
    counts: _Counts | None = None
    members: set[int] | None = None
    missing = 0
    for line in [*text.splitlines(), ""]:
        if said := COUNTS.match(line):
            counts = _Counts("collectives" if said[1] == "collective" else said[1])
        elif said := MISSING.match(line):
            missing, members = int(said[1]), set()
        elif counts and (said := GROUP.match(line)):
            count = int(said[2] or 0)
            counts.ranks[count] = int(said[1])
            members = counts.named.setdefault(count, set())
        elif counts and (said := ALONE.match(line)):
            count = int(said[2] or 0)
            counts.ranks[count], counts.named[count] = 1, {int(said[1])}
        elif members is not None and (said := MEMBER.match(line)):
            members.add(int(said[1]))
        elif members is not None and (said := THE_MISSING.match(line)):
            members |= {int(one) for one in re.findall(r"\d{1,7}", said[1])}
        elif not line.strip():
            if missing and members and len(members) == missing:
                found += [Lag(size, frozenset(members)) for size in sizes]
            found += _lags_of(counts)
            counts, members, missing = None, None, 0
    return found


def _lags_of(counts: _Counts | None) -> list[Lag]:
    if counts is None or not counts.ranks:
        return []
    most = max(counts.ranks)
    behind = [count for count in counts.ranks if count < most]
    ranks = frozenset().union(*(counts.named.get(count, set()) for count in behind))
    if not ranks or len(ranks) != sum(counts.ranks[count] for count in behind):
        return []
    return [Lag(sum(counts.ranks.values()), ranks, counts.kind)]
