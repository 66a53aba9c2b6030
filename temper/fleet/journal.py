"""What is known of runs, in one file that survives the controller: a run that was cut off goes on."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePath
from typing import Any

from temper.base.store import DAMAGED, HistoryError, Part, Store
from temper.fleet.slices import NodeOutcome
from temper.plan.convert import build

#: Playbooks that change nothing on nodes, and take no lease of them.
READING = ("compliance", "preflight")
TABLES = (
    """CREATE TABLE fleet_run (
        id TEXT PRIMARY KEY, job TEXT NOT NULL, ended TEXT NOT NULL DEFAULT ''
    ) WITHOUT ROWID""",
    """CREATE TABLE fleet_node (
        run TEXT NOT NULL, node TEXT NOT NULL, attempt INTEGER NOT NULL, place TEXT NOT NULL,
        state TEXT NOT NULL DEFAULT '', reason TEXT NOT NULL DEFAULT '', counts TEXT NOT NULL DEFAULT '{}',
        folder TEXT NOT NULL DEFAULT '', PRIMARY KEY (run, node)
    ) WITHOUT ROWID""",
)


@dataclass(frozen=True)
class Job:
    """What was asked for, as far as going on with it needs: the command line, and who takes part.

    The values of `variables` may be secrets, and are never recorded. `extra` says where they came from: names
    of variables, or @FILE; `seal` tells others from them.
    """

    playbook: str
    sources: tuple[str, ...]
    limit: str
    variables: dict[str, Any]
    options: tuple[str, ...]
    nodes: tuple[str, ...]
    extra: tuple[str, ...] = ()
    seal: str = ""

    @property
    def takes_nodes(self) -> bool:
        """Whether nodes are changed, and so taken."""
        return PurePath(self.playbook).stem not in READING and "--check" not in self.options


@dataclass(frozen=True)
class NodeRecord:
    """What is known of a node in a run. `state` is empty until its slice is through.

    `counts` are Ansible's (ok, changed, ...), `folder` has what its slice has handed over.
    """

    node: str
    attempt: int
    place: str
    state: str = ""
    reason: str = ""
    counts: Mapping[str, int] | None = None
    folder: str = ""

    def values(self) -> tuple[int, str, str, str, str, str]:
        """Return the columns but run and node."""
        counts = json.dumps(dict(self.counts or {}))
        return self.attempt, self.place, self.state, self.reason, counts, self.folder

    @property
    def outcome(self) -> NodeOutcome:
        """The same, for the board."""
        return NodeOutcome(self.state, self.reason, self.attempt, self.place)


def sealed(variables: Mapping[str, Any], salt: str = "") -> str:
    """Return a salt and a slow hash, which tell these variables from others and show nobody what they are."""
    salt = salt or secrets.token_hex(16)
    text = json.dumps(variables, sort_keys=True).encode()
    return f"{salt}-{hashlib.scrypt(text, salt=salt.encode(), n=1 << 14, r=8, p=1, dklen=32).hex()}"


def same(seal: str, variables: Mapping[str, Any]) -> bool:
    """Return whether these are the variables that were sealed."""
    return hmac.compare_digest(seal, sealed(variables, seal.partition("-")[0]))


def _recorded(job: Job) -> str:
    return json.dumps({name: value for name, value in asdict(job).items() if name != "variables"})


class Journal:
    """Runs and their nodes. Raises HistoryError throughout."""

    def __init__(self, path: Path) -> None:
        self.store = Store(path, Part("fleet", 1, TABLES))

    def begin(self, run: str, job: Job, instead_of: Iterable[str] = ()) -> None:
        """Record a run before anything of it is started. Those whose place it takes have ended with that."""
        values = (run, _recorded(job))
        with self.store.writing() as connection:
            connection.execute("INSERT INTO fleet_run (id, job) VALUES (?, ?)", values)
            connection.executemany(
                "UPDATE fleet_run SET ended = ? WHERE id = ?",
                [(f"run {run} has taken its place", other) for other in instead_of],
            )

    def start(self, run: str, nodes: Iterable[str], attempt: int, place: str) -> None:
        """Record that a slice is about to begin: a later controller must come as a later attempt."""
        with self.store.writing() as connection:
            connection.executemany(
                "INSERT INTO fleet_node (run, node, attempt, place) VALUES (?, ?, ?, ?) "
                "ON CONFLICT (run, node) DO UPDATE SET attempt = excluded.attempt, place = excluded.place",
                [(run, node, attempt, place) for node in nodes],
            )

    def end(self, run: str, records: Iterable[NodeRecord]) -> None:
        """Record the outcome of a slice."""
        with self.store.writing() as connection:
            connection.executemany(
                "UPDATE fleet_node SET attempt = ?, place = ?, state = ?, reason = ?, counts = ?, folder = ? "
                "WHERE run = ? AND node = ?",
                [(*one.values(), run, one.node) for one in records],
            )

    def finish(self, run: str, sentence: str) -> None:
        """Record that a run has ended, and its outcome."""
        with self.store.writing() as connection:
            connection.execute("UPDATE fleet_run SET ended = ? WHERE id = ?", (sentence, run))

    def last(self, run: str = "") -> tuple[str, Job, str] | None:
        """Return the last run, or the named one: id, job, and outcome; empty where it has not ended."""
        rows = self.store.rows(
            "SELECT id, job, ended FROM fleet_run WHERE ? IN ('', id) ORDER BY id DESC LIMIT 1", run
        )
        return next(((name, self._job(name, text), ended) for name, text, ended in rows), None)

    def _job(self, run: str, text: str) -> Job:
        try:
            data = json.loads(text)
            # Of a Temper that recorded values: `forget_values` takes them away.
            names = tuple(data.get("variables") or ())
            return build(Job, {"extra": names, **data, "variables": {}}, "job")
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise HistoryError(f"{self.store.path}: run {run} cannot be read: {error}; {DAMAGED}") from error

    def forget_values(self) -> list[str]:
        """Remove the values of variables that an earlier Temper recorded; returns the runs that had some."""
        old = []
        for run, text in self.store.rows("SELECT id, job FROM fleet_run"):
            job = self._job(run, text)
            if values := json.loads(text).get("variables"):
                old.append((_recorded(replace(job, seal=sealed(values))), run))
        if old:
            with self.store.writing() as connection:
                connection.executemany("UPDATE fleet_run SET job = ? WHERE id = ?", old)
            self.store.rewrite()
        return [run for _, run in old]

    def unended(self) -> list[tuple[str, Job]]:
        """Return the runs that have not ended, the newest first."""
        rows = self.store.rows("SELECT id, job FROM fleet_run WHERE ended = '' ORDER BY id DESC")
        return [(run, self._job(run, text)) for run, text in rows]

    def old(self, kept: int) -> list[str]:
        """Return the ended runs, but the last `kept` that take nodes and the last `kept` that do not.

        What reads every hour is not to push out what changed nodes: `abort` gives back a lease of that.
        """
        found, seen = [], {True: 0, False: 0}
        for run, text, ended in self.store.rows("SELECT id, job, ended FROM fleet_run ORDER BY id DESC"):
            takes_nodes = self._job(run, text).takes_nodes
            seen[takes_nodes] += 1
            if ended and seen[takes_nodes] > kept:
                found.append(run)
        return found

    def forget(self, runs: Iterable[str]) -> None:
        """Forget runs and their nodes' outcomes; the file's room is used again."""
        old = [(run,) for run in runs]
        with self.store.writing() as connection:
            connection.executemany("DELETE FROM fleet_node WHERE run = ?", old)
            connection.executemany("DELETE FROM fleet_run WHERE id = ?", old)

    def nodes(self, run: str) -> dict[str, NodeRecord]:
        """Return the nodes whose slice of a run has begun."""
        rows = self.store.rows(
            "SELECT node, attempt, place, state, reason, counts, folder FROM fleet_node WHERE run = ?", run
        )
        return {
            node: NodeRecord(node, attempt, place, state, reason, json.loads(counts), folder)
            for node, attempt, place, state, reason, counts, folder in rows
        }
