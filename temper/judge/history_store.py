"""The nodes' own past in the history of a fleet (processes/store.py): every run, number and checksum.

A run that the operator no longer wants to be measured by stays, and does not count.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from temper.base.store import Part, Store
from temper.judge.history import Past, PastDigest, PastNumber, PastRun, basis
from validation.model.contract import NodeResult

if TYPE_CHECKING:
    import sqlite3


#: A quantity and a place stand once: a number is four small integers and its value.
PART = Part(
    "validation",
    1,
    (
        "CREATE TABLE run (id INTEGER PRIMARY KEY, node TEXT, started_at TEXT, plan TEXT, torch TEXT, "
        "driver TEXT, counts INTEGER DEFAULT 1, UNIQUE (node, started_at))",
        "CREATE TABLE quantity (id INTEGER PRIMARY KEY, test TEXT, method INTEGER, name TEXT, "
        "conditions TEXT, UNIQUE (test, method, name, conditions))",
        "CREATE TABLE place (id INTEGER PRIMARY KEY, uuid TEXT UNIQUE)",
        "CREATE TABLE number (run INTEGER, position INTEGER, quantity INTEGER, place INTEGER, value REAL, "
        "PRIMARY KEY (run, position)) WITHOUT ROWID",
        "CREATE TABLE digest (run INTEGER, position INTEGER, quantity INTEGER, place INTEGER, value TEXT, "
        "PRIMARY KEY (run, position)) WITHOUT ROWID",
        "CREATE TABLE taken_over (file TEXT PRIMARY KEY) WITHOUT ROWID",
    ),
)
RUNS = "SELECT id, started_at, plan, torch, driver FROM run WHERE node = ? AND counts ORDER BY started_at"
VALUES = "SELECT quantity, place, value FROM {} WHERE run = ? ORDER BY position"
NUMBERS, DIGESTS = VALUES.format("number"), VALUES.format("digest")


class History:
    """What is known of all nodes' runs. Raises HistoryError throughout."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._store = Store(path, PART)

    def past(
        self, nodes: Iterable[str], results: Mapping[str, NodeResult] | None = None
    ) -> Iterator[tuple[str, Past]]:
        """Yield each node with its earlier runs that count, the oldest first; an unknown one has none.

        With `results`, only that on which a comparison with a node's result rests, and of a node without one
        when it was measured last. One node after the other: a year of a thousand nodes need not fit into
        memory.
        """
        with self._store.reading() as connection:
            reader = _Reader(connection) if connection else None
            for node in nodes:
                yield node, Past(reader.runs(node, results) if reader else ())

    def basis(self, result: NodeResult) -> tuple[PastRun, ...]:
        """Return the earlier runs on which the comparison with a result rests."""
        return next(self.past([result.node], {result.node: result}))[1].runs

    def append(self, runs: Iterable[PastRun], files: Iterable[str] = ()) -> int:
        """Add runs, each once; how many were new. `files` are those of an earlier form that they are of."""
        with self._store.writing() as connection:
            connection.executemany("INSERT OR IGNORE INTO taken_over VALUES (?)", ((name,) for name in files))
            writer = _Writer(connection)
            return sum(writer.add(run) for run in runs)

    def taken_over(self) -> set[str]:
        """Return the names of the files of an earlier form that `append` was told of."""
        return {name for (name,) in self._store.rows("SELECT file FROM taken_over")}

    def accept(self, node: str) -> int:
        """From now on a node is measured by its next runs alone; how many no longer count."""
        with self._store.writing() as connection:
            changed = connection.execute("UPDATE run SET counts = 0 WHERE node = ? AND counts", (node,))
            return changed.rowcount


class _Reader:
    """Reads runs, and what their numbers are of once for all of them."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._places: dict[int, str] = {}
        self._quantities: dict[int, tuple[str, int, str, dict[str, int | str]]] = {
            number: (test, method, name, json.loads(conditions))
            for number, test, method, name, conditions in connection.execute(
                "SELECT id, test, method, name, conditions FROM quantity"
            )
        }

    def runs(self, node: str, results: Mapping[str, NodeResult] | None) -> tuple[PastRun, ...]:
        """Return the runs of a node that count."""
        rows = self._connection.execute(RUNS, (node,)).fetchall()
        bare = [
            PastRun(node, started_at, plan, torch, driver, ()) for _, started_at, plan, torch, driver in rows
        ]

        @functools.cache
        def numbers(place: int) -> tuple[PastNumber, ...]:
            return tuple(PastNumber(*what) for what in self._values(NUMBERS, rows[place][0]))

        @functools.cache
        def digests(place: int) -> tuple[PastDigest, ...]:
            return tuple(PastDigest(*what) for what in self._values(DIGESTS, rows[place][0]))

        if results is None:
            return tuple(
                replace(run, numbers=numbers(place), digests=digests(place)) for place, run in enumerate(bare)
            )
        return basis(results[node], bare, numbers, digests) if node in results else tuple(bare[-1:])

    def _values(self, query: str, run: int) -> Iterator[tuple[Any, ...]]:
        """Yield the fields of each number or digest of a run."""
        for quantity, place, value in self._connection.execute(query, (run,)):
            test, method, name, conditions = self._quantities[quantity]
            yield test, method, name, self._place(place), value, conditions

    def _place(self, number: int) -> str:
        """Return the UUID of a GPU.

        Asked for one by one, because a fleet has many, and who asks is one node.
        """
        if number not in self._places:
            row = self._connection.execute("SELECT uuid FROM place WHERE id = ?", (number,)).fetchone()
            self._places[number] = str(row[0])
        return self._places[number]


class _Writer:
    """Adds runs in one transaction, and remembers what stands in the file already."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._quantities: dict[tuple[str, int, str, tuple[tuple[str, int | str], ...]], int] = {}
        self._places: dict[str, int] = {}

    def add(self, run: PastRun) -> bool:
        """Add a run unless it is there; whether it was new."""
        added = self._connection.execute(
            "INSERT OR IGNORE INTO run (node, started_at, plan, torch, driver) VALUES (?, ?, ?, ?, ?)",
            (run.node, run.started_at, run.plan, run.torch, run.driver),
        )
        if not added.rowcount:
            return False
        self._add("number", added.lastrowid, run.numbers)
        self._add("digest", added.lastrowid, run.digests)
        return True

    def _add(self, table: str, run: int | None, values: Iterable[PastNumber | PastDigest]) -> None:
        self._connection.executemany(
            f"INSERT INTO {table} VALUES (?, ?, ?, ?, ?)",  # noqa: S608 - one of two words of ours
            [
                (run, position, self._quantity(one), self._place(one.where), one.value)
                for position, one in enumerate(values)
            ],
        )

    def _quantity(self, one: PastNumber | PastDigest) -> int:
        key = (one.test, one.method, one.name, tuple(one.conditions.items()))
        if key not in self._quantities:
            row = (*key[:3], json.dumps(one.conditions, sort_keys=True))
            self._connection.execute(
                "INSERT OR IGNORE INTO quantity (test, method, name, conditions) VALUES (?, ?, ?, ?)", row
            )
            (self._quantities[key],) = self._connection.execute(
                "SELECT id FROM quantity WHERE (test, method, name, conditions) = (?, ?, ?, ?)", row
            ).fetchone()
        return self._quantities[key]

    def _place(self, uuid: str) -> int:
        if uuid not in self._places:
            self._connection.execute("INSERT OR IGNORE INTO place (uuid) VALUES (?)", (uuid,))
            (self._places[uuid],) = self._connection.execute(
                "SELECT id FROM place WHERE uuid = ?", (uuid,)
            ).fetchone()
        return self._places[uuid]
