"""What people were told last of each scheduled check, as a part of the fleet's history."""

from __future__ import annotations

from pathlib import Path

from temper.base.store import Part, Store

#: A check is its command: another one asks other nodes, or other things.
PART = Part(
    "notification",
    1,
    (
        "CREATE TABLE told (command TEXT, channel TEXT, at TEXT, outcome TEXT, "
        "PRIMARY KEY (command, channel)) WITHOUT ROWID",
    ),
)


class Told:
    """The part of the file. Raises HistoryError throughout."""

    def __init__(self, path: Path) -> None:
        self._store = Store(path, PART)

    def last(self, command: str, channel: str) -> str | None:
        """Return the outcome that this channel was told last; None where it was told nothing yet."""
        query = "SELECT outcome FROM told WHERE command = ? AND channel = ?"
        return next((str(outcome) for (outcome,) in self._store.rows(query, command, channel)), None)

    def record(self, command: str, channel: str, at: str, outcome: str) -> None:
        """Note that a channel was told an outcome, or has nothing to hear of a good one."""
        with self._store.writing() as connection:
            connection.execute(
                "INSERT OR REPLACE INTO told VALUES (?, ?, ?, ?)", (command, channel, at, outcome)
            )
