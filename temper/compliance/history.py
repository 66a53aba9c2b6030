"""What earlier checks have found, as a part of the fleet's history (temper/base/store.py).

A control's state has a beginning, a drift also an end.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from temper.base.store import DAMAGED, HistoryError, Part, Store
from temper.compliance.alike import Once
from temper.compliance.evidence import Head
from temper.compliance.model import HARDENING, ControlResult, State, Statement

# Because of AUTOINCREMENT, SQLite remembers how many reports there ever were.
REPORT = (
    "CREATE TABLE report (sequence INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT UNIQUE, made_at TEXT, "
    "manifest_sha256 TEXT)"
)
BY_CLOCK = "SELECT name, made_at, manifest_sha256 FROM former ORDER BY made_at, name"
INTO_REPORT = "INSERT INTO report (name, made_at, manifest_sha256)"
#: The id of a control; those of the hardening had no role in front of them up to version 2.
FULL = f"CASE WHEN instr({{0}}, '/') THEN {{0}} ELSE '{HARDENING}/' || {{0}} END".format
PART = Part(
    "compliance",
    3,
    (
        "CREATE TABLE state (node TEXT, control TEXT, state TEXT, since TEXT, PRIMARY KEY (node, control)) "
        "WITHOUT ROWID",
        "CREATE TABLE drift (node TEXT, control TEXT, began TEXT, ended TEXT)",
        "CREATE INDEX open_drift ON drift (node, control) WHERE ended IS NULL",
        REPORT,
    ),
    # Version 1 put the reports in order by the clock.
    {
        1: ("ALTER TABLE report RENAME TO former", REPORT, f"{INTO_REPORT} {BY_CLOCK}", "DROP TABLE former"),
        2: (
            f"UPDATE state SET control = {FULL('control')}",  # noqa: S608 - our names
            f"UPDATE drift SET control = {FULL('control')}",  # noqa: S608 - likewise
        ),
    },
)
#: A history of compliance alone, as it was before: what its rows are written with, and read with.
ALONE = {
    "INSERT INTO state VALUES (?, ?, ?, ?)": f"SELECT node, {FULL('control')}, state, since FROM state",  # noqa: S608 - likewise
    "INSERT INTO drift VALUES (?, ?, ?, ?)": f"SELECT node, {FULL('control')}, began, ended FROM drift",  # noqa: S608 - likewise
    f"{INTO_REPORT} VALUES (?, ?, ?)": BY_CLOCK.replace("former", "report"),
}


@dataclass(frozen=True)
class Known:
    """The state of a control on a node, and since when it has that (ISO 8601, UTC)."""

    state: State
    since: str


@dataclass(frozen=True)
class Drift:
    """When a control began to fail on a node, and ceased to (None: not yet). Instants are ISO 8601, UTC.

    `waived`: it still fails, and somebody accepts that now.
    """

    node: str
    control: str
    began: str
    ended: str | None = None
    waived: bool = False


class History:
    """The file, which is made where it is not there. Raises HistoryError throughout."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._store = Store(path, PART)

    def take_over(self, former: Path) -> None:
        """Add what is in a file of compliance alone, which was its history before, unless that was done.

        The file stays, and is not read again.
        """
        if not former.is_file() or self.reports():
            return
        try:
            with closing(sqlite3.connect(f"{former.absolute().as_uri()}?mode=ro", uri=True)) as connection:
                rows = {name: connection.execute(query).fetchall() for name, query in ALONE.items()}
        except sqlite3.Error as error:
            raise HistoryError(
                f"the history {former} cannot be taken over into {self.path}: {error}; {DAMAGED}"
            ) from error
        with self._store.writing() as connection:
            for statement, of_table in rows.items():
                connection.executemany(statement, of_table)

    def states(self) -> dict[str, Mapping[str, Known]]:
        """Return the last known state of each control of each node.

        Nodes with the same history share it.
        """
        with self._store.reading() as connection:
            return dict(_states(connection)) if connection else {}

    def record(self, statement: Statement, report: str, manifest_sha256: str, previous: str) -> None:
        """Add a check whose report was written whole. Reports have the names of their folders."""
        now = statement.made_at
        with self._store.writing() as connection:
            last = connection.execute("SELECT name FROM report ORDER BY sequence DESC").fetchone()
            if (last[0] if last else "") != previous:
                raise HistoryError(f"another check has ended while this one ({report}) was made: check again")
            connection.execute(f"{INTO_REPORT} VALUES (?, ?, ?)", (report, now, manifest_sha256))
            adrift = set(connection.execute("SELECT node, control FROM drift WHERE ended IS NULL"))
            known = dict(_states(connection))
            # A fleet's nodes share their controls and what was known of them.
            differing = Once[tuple[ControlResult, ...], Once[Mapping[str, Known], list[ControlResult]]](
                lambda controls: Once(lambda before: _differing(controls, before))
            )
            for told in statement.nodes:
                changed = differing(told.controls)(known.get(told.node, NOTHING))
                connection.executemany(
                    "INSERT OR REPLACE INTO state VALUES (?, ?, ?, ?)",
                    [(told.node, one.id, one.state.value, one.since) for one in changed],
                )
                # A drift under a waiver ends where its state stays the same.
                open_here = [one for one in told.controls if one.measured and (told.node, one.id) in adrift]
                for one in dict.fromkeys([*changed, *open_here]):
                    self._mark_drift(connection, (told.node, one.id), one, now, adrift)

    @staticmethod
    def _mark_drift(
        connection: sqlite3.Connection,
        place: tuple[str, str],
        control: ControlResult,
        moment: str,
        adrift: Collection[tuple[str, str]],
    ) -> None:
        """Begin or end a drift. A control that was not checked does neither, and a waiver ends no drift."""
        is_open, now = place in adrift, control.measured or control.state
        if control.state is State.FAIL and not is_open:
            connection.execute("INSERT INTO drift VALUES (?, ?, ?, NULL)", (*place, moment))
        elif is_open and now not in (State.FAIL, State.NOT_CHECKED):
            connection.execute(
                "UPDATE drift SET ended = ? WHERE node = ? AND control = ? AND ended IS NULL",
                (moment, *place),
            )

    def drifts(self) -> list[Drift]:
        """Return every drift, by their beginnings."""
        rows = self._store.rows(
            f"SELECT drift.node, {FULL('drift.control')}, began, ended, state FROM drift "  # noqa: S608 - likewise
            "LEFT JOIN state USING (node, control) ORDER BY began, drift.node, drift.control"
        )
        return [
            Drift(node, control, began, ended, ended is None and state == State.WAIVED)
            for node, control, began, ended, state in rows
        ]

    def reports(self) -> dict[str, str]:
        """Return the digest of each report's manifest, by its folder's name, in the order of their making."""
        with self._store.reading() as connection:
            if not connection:
                return {}
            order = "sequence" if _numbered(connection) else "made_at, name"
            return dict(
                connection.execute(f"SELECT name, manifest_sha256 FROM report ORDER BY {order}")  # noqa: S608 - our names
            )

    def head(self) -> Head:
        """Return the last report; one without a name where there is none."""
        recorded = self.reports()
        return Head(max(self.number(), len(recorded)), *next(reversed(recorded.items()), ("", "")))

    def number(self) -> int:
        """Return how many reports there ever were, also those whose rows are gone; 0 where nobody counted."""
        with self._store.reading() as connection:
            if not connection or not _numbered(connection):
                return 0
            row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'report'").fetchone()
            return int(row[0]) if row else 0


def _differing(controls: Iterable[ControlResult], before: Mapping[str, Known]) -> list[ControlResult]:
    return [one for one in controls if one.id not in before or before[one.id].state is not one.state]


def _numbered(connection: sqlite3.Connection) -> bool:
    """Return whether reports have numbers: those of version 1 get them when the next one is recorded."""
    return any(row[1] == "sequence" for row in connection.execute("PRAGMA table_info(report)"))


NOTHING: Mapping[str, Known] = {}
STATES = (
    f"SELECT node, json_group_array(json_array({FULL('control')}, state, since)) "  # noqa: S608 - likewise
    "FROM (SELECT * FROM state ORDER BY node, control) GROUP BY node"
)


def _states(connection: sqlite3.Connection) -> Iterator[tuple[str, Mapping[str, Known]]]:
    """Yield each node with the states of its controls.

    A fleet has millions of them: SQLite makes one text of those of a node, which is taken apart once for all
    nodes that have the same.
    """
    taken_apart: dict[str, Mapping[str, Known]] = {}
    for node, text in connection.execute(STATES):
        if text not in taken_apart:
            rows = json.loads(text)
            taken_apart[text] = {control: _known(state, since) for control, state, since in rows}
        yield node, taken_apart[text]


@cache
def _known(state: str, since: str) -> Known:
    return Known(State(state), since)
