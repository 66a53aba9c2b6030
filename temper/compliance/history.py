"""What earlier checks have found, as a part of the fleet's history (temper/base/store.py).

A control's state has a beginning, a drift also an end.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from temper.base.store import PATIENCE_S, HistoryError, Part, Store
from temper.compliance.evidence import Head
from temper.compliance.model import State

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection, Iterator, Mapping
    from pathlib import Path

    from temper.compliance.model import ControlResult, Statement

PART = Part(
    "compliance",
    3,
    (
        "CREATE TABLE state (node TEXT, control TEXT, state TEXT, since TEXT, PRIMARY KEY (node, control)) "
        "WITHOUT ROWID",
        "CREATE TABLE drift (node TEXT, control TEXT, began TEXT, ended TEXT)",
        "CREATE INDEX open_drift ON drift (node, control) WHERE ended IS NULL",
        # Because of AUTOINCREMENT, SQLite remembers how many reports there ever were.
        "CREATE TABLE report (sequence INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT UNIQUE, made_at TEXT, "
        "manifest_sha256 TEXT)",
    ),
)


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

    def __init__(self, path: Path, patience_s: float = PATIENCE_S) -> None:
        self.path = path
        self._store = Store(path, PART, patience_s)

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
            connection.execute(
                "INSERT INTO report (name, made_at, manifest_sha256) VALUES (?, ?, ?)",
                (report, now, manifest_sha256),
            )
            adrift = set(connection.execute("SELECT node, control FROM drift WHERE ended IS NULL"))
            known = dict(_states(connection))
            differing: dict[tuple[int, int], tuple[ControlResult, ...]] = {}
            for told in statement.nodes:
                before = known.get(told.node, NOTHING)
                # Both stay while this goes on, so that no others have their ids.
                key = id(told.controls), id(before)
                if key not in differing:
                    differing[key] = tuple(
                        one
                        for one in told.controls
                        if one.id not in before or before[one.id].state is not one.state
                    )
                changed = differing[key]
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
        rows = self._rows(
            "SELECT drift.node, drift.control, began, ended, state FROM drift "
            "LEFT JOIN state USING (node, control) ORDER BY began, drift.node, drift.control"
        )
        return [
            Drift(node, control, began, ended, ended is None and state == State.WAIVED)
            for node, control, began, ended, state in rows
        ]

    def reports(self) -> dict[str, str]:
        """Return the digest of each report's manifest, by its folder's name, in the order of their making."""
        return dict(self._rows("SELECT name, manifest_sha256 FROM report ORDER BY sequence"))

    def head(self) -> Head | None:
        """Return the last report; None where there is none."""
        recorded = self.reports()
        last = next(reversed(recorded.items()), None)
        return Head(max(self.number(), len(recorded)), *last) if last else None

    def number(self) -> int:
        """Return how many reports there ever were, also those whose rows are gone."""
        rows = self._rows("SELECT seq FROM sqlite_sequence WHERE name = 'report'")
        return int(rows[0][0]) if rows else 0

    def _rows(self, query: str) -> list[Any]:
        with self._store.reading() as connection:
            return connection.execute(query).fetchall() if connection else []


NOTHING: Mapping[str, Known] = {}
STATES = (
    "SELECT node, json_group_array(json_array(control, state, since)) "
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
