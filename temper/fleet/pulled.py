"""Judge what nodes that pull have handed back: a folder with a result of each, against the inventory.

A result is a node's own word, and the folder is where many machines write. So a file counts only for the node
that it is named after, one that is too large or of another form is a problem by itself, and when a node last
spoke is judged by this machine's clock as well as by the node's.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import stat
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum
from pathlib import Path

from pull.result import CHECKED, FAILED, HELD, NOT_FETCHED, REFUSED, SCHEMA_VERSION, Result
from temper.base.nodes import counted, duration, number_of, printable, utc
from temper.base.options import named, told
from temper.plan.inventory import InventoryError, groups_of
from validation.model.contract import ContractError, StringEnum, loads
from validation.model.grouping import by_key

#: A result with as many controls as a node names has a quarter of that.
LARGEST_BYTES = 1 << 20
#: The longest interval that the role knows: a node cannot ask to be waited for longer.
LONGEST_INTERVAL_S = 86_400
#: What clocks may differ by.
CLOCKS = timedelta(minutes=5)
#: Commits whose times differ by no more may have been made in the other order: their authors' clocks differ.
CLOSE = timedelta(minutes=15)
#: A node works for some time before it hands its result back.
WORK = timedelta(minutes=15)
USAGE_ERROR = 2
#: Characters of a node's words in the text for people; JSON has all of them.
MOST_SHOWN = 1000
#: SHA-1, or in newer repositories SHA-256.
COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
NEVER = "1970-01-01T00:00:00Z"
VERDICTS = ("compliant", "not-compliant", "not-checked")


class Standing(StringEnum):
    """How a node stands, the worst first."""

    UNREADABLE = "unreadable"
    REFUSED = "refused"
    FAILED = "failed"
    SILENT = "silent"
    DRIFTED = "drifted"
    BEHIND = "behind"
    NOT_CHECKED = "not-checked"
    HELD = "held"
    COMPLIANT = "compliant"

    @property
    def exit_status(self) -> int:
        """0 as it should be, 1 where somebody has to act, 2 where nobody knows."""
        unknown = (Standing.UNREADABLE, Standing.FAILED, Standing.SILENT, Standing.NOT_CHECKED, Standing.HELD)
        return 0 if self is Standing.COMPLIANT else 2 if self in unknown else 1


@dataclass(frozen=True)
class PulledNode:
    """A node, as its newest result and its silence show it. `heard_at` is UTC, empty where it never spoke."""

    name: str
    standing: Standing
    reason: str = ""
    commit: str = ""
    heard_at: str = ""
    repaired: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    left_count: int = 0


@dataclass(frozen=True)
class Judgement:
    """All nodes of the inventory, files that belong to none of them, and the commit that is the newest."""

    made_at: str
    commit: str
    nodes: tuple[PulledNode, ...]
    strangers: tuple[str, ...] = ()
    schema_version: int = field(default=1)

    @property
    def exit_status(self) -> int:
        """1 where somebody has to act, else 2 where something is not known, else 0."""
        found = {node.standing.exit_status for node in self.nodes} | ({1} if self.strangers else set())
        return 1 if 1 in found else max(found, default=2)


@dataclass(frozen=True)
class Heard:
    """A result that can be read, and when it arrived by this machine's clock."""

    result: Result
    arrived: datetime

    @property
    def at(self) -> datetime:
        """When the node spoke: the earlier of what both clocks say."""
        return min(self.arrived, instant(self.result.finished_at))

    def limit(self, intervals: int) -> timedelta:
        """After how long a silence means something."""
        return timedelta(seconds=self.result.interval_s * intervals) + WORK


class UnreadableError(Exception):
    """A file is no result of its node; the message is a sentence."""


def instant(text: str) -> datetime:
    """Return an instant in UTC as results have it. Raises ValueError."""
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)


def read(path: Path, now: datetime) -> Heard:
    """Return the result in a file.

    Raises:
        UnreadableError: it is no result, or not one of the node that the file is named after.
    """
    try:
        # Neither a link nor a pipe: whoever writes here must not have us read or wait elsewhere.
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(handle, "rb") as file:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                raise UnreadableError("it is no file")
            data = file.read(LARGEST_BYTES + 1)
        if len(data) > LARGEST_BYTES:
            raise UnreadableError(f"it is larger than {LARGEST_BYTES >> 10} KiB")
        result = loads(Result, data)
        finished, committed = instant(result.finished_at), instant(result.commit_time or NEVER)
        arrived = datetime.fromtimestamp(status.st_mtime, UTC)
    except (OSError, ContractError, ValueError, OverflowError, RecursionError) as error:
        raise UnreadableError(f"it is no result: {told(error)}") from error
    problems = {
        f"it is of schema version {result.schema_version}, and this program reads {SCHEMA_VERSION}": (
            result.schema_version != SCHEMA_VERSION
        ),
        f"it names the node {result.node[:100]}": result.node != path.stem,
        f"its state is {result.state[:40]}": result.state not in (CHECKED, REFUSED, HELD, FAILED),
        f"its verdict is {result.verdict[:40] or 'empty'}": (
            result.state == CHECKED and result.verdict not in VERDICTS
        ),
        "it says compliant and names controls that are not": (
            result.verdict == "compliant" and result.left_count > 0
        ),
        f"its interval is {result.interval_s} s": not 0 < result.interval_s <= LONGEST_INTERVAL_S,
        f"the node's clock says {result.finished_at}, which is yet to come": finished > now + CLOCKS,
        f"its commit is of {result.commit_time}, which is yet to come": committed > now + CLOCKS,
    }
    if wrong := next((sentence for sentence, holds in problems.items() if holds), ""):
        raise UnreadableError(wrong)
    return Heard(result, arrived)


@dataclass(frozen=True)
class Newest:
    """The commit that nodes are expected to have, and its time (UTC); both empty where there is none.

    `witness` is the node by whose word alone it is the newest, if one is.
    """

    commit: str
    committed: str = NEVER
    witness: str = ""


def newest_commit(heard: Iterable[Heard]) -> Newest:
    """Return the newest commit that a node says it has accepted.

    Of commits made at close times it is the one that most nodes have. A node that could fetch nothing is
    asked only where no node could: it does not know what is the newest.
    """
    known = [one.result for one in heard if one.result.commit_time]
    found = [one for one in known if one.code != NOT_FETCHED] or known
    times = {one.commit: instant(one.commit_time) for one in found}
    if not times:
        return Newest("")
    nodes = Counter(one.commit for one in found)
    close = [one for one, time in times.items() if max(times.values()) - time <= CLOSE]
    commit = max(close, key=lambda one: (nodes[one], times[one], one))
    witnesses = [one.node for one in known if one.commit == commit]
    return Newest(commit, utc(times[commit]), witnesses[0] if len(witnesses) == 1 else "")


def standing(heard: Heard, newest: Newest, intervals: int, now: datetime) -> tuple[Standing, str]:
    """Return how a node stands, and why."""
    result, commit, committed = heard.result, newest.commit, newest.committed
    if now - heard.at > heard.limit(intervals):
        silence = duration((now - heard.at).total_seconds())
        return Standing.SILENT, f"heard last {silence} ago, in the state {result.state}"
    if result.state in (REFUSED, FAILED, HELD):
        return Standing(result.state), result.reason
    if result.verdict == "not-compliant":
        said = f"{result.left_count} controls differ"
        return Standing.DRIFTED, " ".join(filter(None, (said, result.repair_problem, result.reason)))
    if result.commit != commit:
        others = f"on commit {result.commit[:12]}, others have {commit[:12]}."
        stuck = result.code == NOT_FETCHED
        if not stuck and abs(instant(result.commit_time or NEVER) - instant(committed)) <= CLOSE:
            others += " Their times are too close to tell which is newer, and at least as many nodes have the"
            others += " other one: --commit says which is expected."
        elif not stuck and newest.witness:
            others += (
                f" Only {newest.witness} says that there is this one: look at the repository, and name the"
            )
            others += " right one with --commit."
        said = f"{others} {result.reason}".strip()
        if now - instant(committed) > heard.limit(intervals):
            return Standing.BEHIND, said
        if stuck:
            return Standing.NOT_CHECKED, said
    if result.verdict == "not-checked":
        return Standing.NOT_CHECKED, result.reason or f"{result.left_count} controls were not checked"
    return Standing.COMPLIANT, result.reason


def judge(folder: Path, names: Iterable[str], intervals: int, now: datetime, commit: str = "") -> Judgement:
    """Judge the results in a folder. Raises OSError where that cannot be listed.

    Every node is expected to be on `commit`; without one, on the newest that a node has accepted.
    """
    expected = set(names)
    heard: dict[str, Heard] = {}
    nodes: dict[str, PulledNode] = {}
    strangers = []
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):  # on its way
            continue
        if path.suffix != ".json" or path.stem not in expected:
            strangers.append(path.name)
            continue
        try:
            heard[path.stem] = read(path, now)
        except UnreadableError as error:
            nodes[path.stem] = PulledNode(path.stem, Standing.UNREADABLE, f"{path.name}: {error}")
    newest = Newest(commit) if commit else newest_commit(heard.values())
    for name, one in heard.items():
        result = one.result
        nodes[name] = PulledNode(
            name,
            *standing(one, newest, intervals, now),
            commit=result.commit,
            heard_at=utc(one.at),
            repaired=result.repaired,
            left=tuple(control.id for control in result.left),
            left_count=result.left_count,
        )
    for name in expected - nodes.keys():
        nodes[name] = PulledNode(name, Standing.SILENT, "never heard of")
    ordered = tuple(nodes[name] for name in sorted(nodes))
    return Judgement(utc(now), newest.commit, ordered, tuple(strangers))


def text(judgement: Judgement) -> str:
    """Return the judgement for people: nodes by standing, reasons, frequent drift, and what was repaired."""
    by_standing = by_key((node.standing, node) for node in judgement.nodes)
    commit = judgement.commit[:12] or "none"
    lines = [f"{number_of(len(judgement.nodes), 'node')}, newest commit {commit}"]
    lines += [
        f"  {one:<12} {counted(node.name for node in by_standing[one])}"
        for one in Standing
        if one in by_standing
    ]
    for one in Standing:
        nodes = by_standing.get(one, ())
        reasons = by_key((one_line(node.reason), node.name) for node in nodes if node.reason)
        lines += [f"{counted(names)} {one}: {reason}" for reason, names in reasons.items()]
    for title, found in (("differs", "left"), ("repaired", "repaired")):
        controls = by_key(
            (one_line(control), node.name) for node in judgement.nodes for control in getattr(node, found)
        )
        ordered = sorted(controls.items(), key=lambda item: (-len(item[1]), item[0]))
        lines += [f"{control} {title} on {counted(names)}" for control, names in ordered]
    if judgement.strangers:
        lines.append(
            f"{number_of(len(judgement.strangers), 'file')} of no node of the inventory: "
            f"{', '.join(judgement.strangers[:20])}"
        )
    return printable("\n".join(lines))


def one_line(words: str) -> str:
    """Return a node's words as a short line: they must not look like the line of another node."""
    return printable(" ".join(words[:MOST_SHOWN].split()))


def as_json(judgement: Judgement) -> str:
    """Return the judgement for programs."""

    def plain(pairs: list[tuple[str, object]]) -> dict[str, object]:
        return {name: value.value if isinstance(value, Enum) else value for name, value in pairs}

    return json.dumps(asdict(judgement, dict_factory=plain), indent=1) + "\n"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("results", type=named, help="folder with a file NODE.json of each node")
    parser.add_argument(
        "-i",
        "--inventory",
        action="append",
        default=[],
        type=named,
        help="inventory whose nodes are expected (default: ANSIBLE_INVENTORY); may be given again",
    )
    parser.add_argument(
        "--group", default="gpu_nodes", help="group of the nodes that are expected (%(default)s)"
    )
    parser.add_argument(
        "--intervals",
        type=positive,
        default=3,
        metavar="N",
        help="a node is silent after this many of its intervals (%(default)s)",
    )
    parser.add_argument(
        "--commit",
        type=commit_name,
        default="",
        help="commit that every node shall have, in full; the newest that a node has accepted",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def positive(text: str) -> int:
    """Return a whole number above 0, with at most six digits. Raises ArgumentTypeError."""
    if not text.isdecimal() or len(text) > 6 or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 to 999999, found {text}")
    return int(text)


def commit_name(text: str) -> str:
    """Return a commit's name in full: a part of it is what no node has. Raises ArgumentTypeError."""
    if text and not COMMIT.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"expected a commit in full, as `git rev-parse {text}` says it, found {text}"
        )
    return text


def expected(groups: Mapping[str, Iterable[str]], group: str) -> list[str]:
    """Return the nodes of a group."""
    return [name for name, own in groups.items() if group in own]


def run(arguments: argparse.Namespace) -> int:
    """Print the judgement: 0 all as it should be, 1 somebody has to act, 2 something is not known."""
    given = [Path(one) for one in os.environ.get("ANSIBLE_INVENTORY", "").split(",") if one]
    if not arguments.results.is_dir():
        raise InventoryError(
            f"{arguments.results}: expected the folder of the nodes' results, NODE.json each, found none"
        )
    if not (sources := arguments.inventory or given):
        raise InventoryError("expected -i INVENTORY, or its name in ANSIBLE_INVENTORY, found none")
    names = expected(groups_of([os.path.realpath(path) for path in sources]), arguments.group)
    if not names:
        raise InventoryError(f"{arguments.group}: expected nodes of this group in the inventory, found none.")
    judgement = judge(arguments.results, names, arguments.intervals, datetime.now(UTC), arguments.commit)
    print(as_json(judgement) if arguments.json else text(judgement))
    return judgement.exit_status
