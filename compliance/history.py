"""What earlier checks have found: one SQLite file on the controller, one writer at a time.

A control's state has a beginning, a drift also an end. Written in one transaction, so that a check that is
killed leaves the history as it was.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from compliance.model import State

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from compliance.model import Statement

VERSION = 1
#: Another check may be writing; it takes seconds for thousands of nodes.
PATIENCE_S = 60
TABLES = """
CREATE TABLE state (
  node TEXT, control TEXT, state TEXT, since TEXT, PRIMARY KEY (node, control)
) WITHOUT ROWID;
CREATE TABLE drift (node TEXT, control TEXT, began TEXT, ended TEXT);
CREATE INDEX open_drift ON drift (node, control) WHERE ended IS NULL;
CREATE TABLE report (name TEXT PRIMARY KEY, made_at TEXT, manifest_sha256 TEXT) WITHOUT ROWID;
"""


@dataclass(frozen=True)
class Known:
    """The state of a control on a node, and since when it has that (ISO 8601, UTC)."""

    state: State
    since: str


class HistoryError(Exception):
    """The history cannot be used; the message is a sentence for the operator. Nothing was changed."""


class History:
    """The file, which is made where it is not there. Raises HistoryError throughout."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Transactions begin where the code says so.
            with closing(sqlite3.connect(self.path, timeout=PATIENCE_S, isolation_level=None)) as connection:
                (version,) = connection.execute("PRAGMA user_version").fetchone()
                if version > VERSION:
                    raise HistoryError(
                        f"{self.path} is of version {version}, and this Temper reads up to {VERSION}: take "
                        "a newer Temper, or move the file away to begin a new history"
                    )
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("BEGIN IMMEDIATE")
                if not connection.execute("PRAGMA user_version").fetchone()[0]:
                    for statement in filter(str.strip, TABLES.split(";")):
                        connection.execute(statement)
                    connection.execute(f"PRAGMA user_version = {VERSION}")
                yield connection
                connection.execute("COMMIT")
        except (sqlite3.Error, OSError) as error:
            raise HistoryError(
                f"the history {self.path} cannot be read or written: {error}; nothing was recorded"
            ) from error

    def states(self) -> dict[tuple[str, str], Known]:
        """The last known state of each (node, control)."""
        with self._open() as connection:
            rows = connection.execute("SELECT node, control, state, since FROM state").fetchall()
        return {(node, control): Known(State(state), since) for node, control, state, since in rows}

    def record(self, statement: Statement, report: str, manifest_sha256: str, previous: str) -> None:
        """Add a check whose report was written whole. Reports have the names of their folders."""
        now = statement.made_at
        with self._open() as connection:
            last = connection.execute("SELECT name FROM report ORDER BY made_at DESC, name DESC").fetchone()
            if (last[0] if last else "") != previous:
                raise HistoryError(f"another check has ended while this one ({report}) was made: check again")
            connection.execute("INSERT INTO report VALUES (?, ?, ?)", (report, now, manifest_sha256))
            known = {
                (node, control): state
                for node, control, state in connection.execute("SELECT node, control, state FROM state")
            }
            for told in statement.nodes:
                for control in told.controls:
                    place = (told.node, control.id)
                    if known.get(place) == control.state:
                        continue
                    values = (*place, control.state.value, control.since)
                    connection.execute("INSERT OR REPLACE INTO state VALUES (?, ?, ?, ?)", values)
                    self._mark_drift(connection, place, control.state, now)

    @staticmethod
    def _mark_drift(connection: sqlite3.Connection, place: tuple[str, str], now: State, moment: str) -> None:
        """Begin or end a drift. What was not checked has neither begun nor ended one."""
        is_open = connection.execute(
            "SELECT 1 FROM drift WHERE node = ? AND control = ? AND ended IS NULL", place
        ).fetchone()
        if now is State.FAIL and not is_open:
            connection.execute("INSERT INTO drift VALUES (?, ?, ?, NULL)", (*place, moment))
        elif is_open and now not in (State.FAIL, State.NOT_CHECKED):
            connection.execute(
                "UPDATE drift SET ended = ? WHERE node = ? AND control = ? AND ended IS NULL",
                (moment, *place),
            )

    def drifts(self) -> list[tuple[str, str, str, str | None]]:
        """Node, control, beginning and end (None: not yet) of every drift, by their beginnings."""
        with self._open() as connection:
            return connection.execute("SELECT * FROM drift ORDER BY began, node, control").fetchall()

    def reports(self) -> dict[str, str]:
        """The digest of the manifest of each report, by its folder's name, the oldest first."""
        with self._open() as connection:
            rows = connection.execute("SELECT name, manifest_sha256 FROM report ORDER BY made_at, name")
            return dict(rows.fetchall())
