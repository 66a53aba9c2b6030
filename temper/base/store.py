"""The history of a fleet: one SQLite file on the controller, which its parts share.

Each part (validation, compliance) has its own tables and their version, and knows nothing of the others'.
What is written is written in one transaction, by one writer at a time: a process that is killed leaves the
file as it was. Readers wait for nobody, and need no right to write.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from temper.base.options import told
from validation.processes.files import own, own_file

#: Its name, in the folder of validation's reports unless somebody says otherwise.
HISTORY = "history.sqlite"
#: "Tmpr": what marks a database as one of these (PRAGMA application_id).
APPLICATION_ID = 0x546D7072
#: Of the file as a whole: of the table `part`. 1 was a file of compliance alone.
FILE_VERSION = 2
#: Another run may be writing; it takes seconds for thousands of nodes.
PATIENCE_S = 60.0
FILE_TABLES = ("CREATE TABLE part (name TEXT PRIMARY KEY, version INTEGER) WITHOUT ROWID",)
NEWER = "take a newer Temper, or move the file away to begin a new history"

DAMAGED = "put back a copy of it, or move it away to begin a new one"


class HistoryError(Exception):
    """The history cannot be used; the message is a sentence for the operator. Nothing was changed."""


@dataclass(frozen=True)
class Part:
    """One owner of tables in the file: a name, their version, and the statements that make them.

    `later` has for each former version the statements that turn its tables into those of the next one. A
    reader finds former tables until something is written.
    """

    name: str
    version: int
    tables: tuple[str, ...]
    later: Mapping[int, tuple[str, ...]] = field(default_factory=dict)


class Store:
    """The file, as one part of it sees it, made where it is not there. Raises HistoryError throughout."""

    def __init__(self, path: Path, part: Part) -> None:
        self.path = path
        self.part = part

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Hold a transaction that is committed at its end, and undone where that is not reached."""
        try:
            own(self.path.parent)
            own_file(self.path)
            self._require_file()
            # Transactions begin where the code says so.
            with closing(sqlite3.connect(self.path, timeout=PATIENCE_S, isolation_level=None)) as connection:
                # Of one moment: another may be making the tables.
                connection.execute("BEGIN")
                self._refuse_strangers(connection)
                connection.execute("COMMIT")
                try:
                    connection.execute("PRAGMA journal_mode = WAL")
                except sqlite3.OperationalError as error:
                    # SQLite does not wait here. Beside another writer this is left to a later one.
                    if not _in_use(error):
                        raise
                connection.execute("BEGIN IMMEDIATE")
                self._make_tables(connection)
                yield connection
                connection.execute("COMMIT")
        except (sqlite3.Error, OSError) as error:
            raise self._unusable("written", error) from error

    def rewrite(self) -> None:
        """Write the file anew, so that nothing which was removed is left in it."""
        try:
            with closing(sqlite3.connect(self.path, timeout=PATIENCE_S, isolation_level=None)) as connection:
                connection.execute("VACUUM")
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.Error as error:
            raise self._unusable("written", error) from error

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection | None]:
        """Provide a view of the file at one moment; None where nothing of this part is there yet."""
        try:
            if not self.path.exists():
                yield None
                return
            self._require_file()
            with closing(self._connect_to_read()) as connection:
                connection.execute("BEGIN")
                self._refuse_strangers(connection)
                yield connection if self._version(connection) else None
        except (sqlite3.Error, OSError) as error:
            raise self._unusable("read", error) from error

    def _require_file(self) -> None:
        """Raise OSError for a folder, which SQLite calls a disk I/O error, and a pipe, which it waits for."""
        if self.path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if self.path.exists() and not self.path.is_file():
            raise OSError("expected a file")

    def rows(self, query: str, *values: object) -> list[Any]:
        """Return what a query finds; nothing where nothing of this part is there yet."""
        with self.reading() as connection:
            return connection.execute(query, values).fetchall() if connection else []

    def _connect_to_read(self) -> sqlite3.Connection:
        """SQLite's readers keep a file beside the database, which a read-only folder cannot have."""
        mode = "mode=ro"
        if not os.access(self.path.parent, os.W_OK):
            log = self.path.with_name(f"{self.path.name}-wal")
            if log.exists() and log.stat().st_size:
                raise HistoryError(
                    f"{self.path} has changes in {log.name} that cannot be read in a folder that nobody may "
                    "write to: copy both files to another folder"
                )
            mode = "immutable=1"
        return sqlite3.connect(
            f"{self.path.absolute().as_uri()}?{mode}",
            uri=True,
            timeout=PATIENCE_S,
            isolation_level=None,
        )

    def _refuse_strangers(self, connection: sqlite3.Connection) -> None:
        """Refuse what another program, or a newer version of this one, has made."""
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if version > FILE_VERSION:
            raise HistoryError(
                f"{self.path} is of version {version}, and this Temper reads up to {FILE_VERSION}: {NEWER}"
            )
        if tables and application != APPLICATION_ID:
            raise HistoryError(f"{self.path} is no history of Temper: name another file, or move it away")
        if tables and (found := self._version(connection)) > self.part.version:
            raise HistoryError(
                f"{self.path} has its part {self.part.name} in version {found}, and this Temper reads up to "
                f"{self.part.version}: {NEWER}"
            )

    def _version(self, connection: sqlite3.Connection) -> int:
        """Of this part's tables; 0 where they are not there yet."""
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'part'").fetchone():
            return 0
        row = connection.execute("SELECT version FROM part WHERE name = ?", (self.part.name,)).fetchone()
        return int(row[0]) if row else 0

    def _make_tables(self, connection: sqlite3.Connection) -> None:
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'part'").fetchone():
            for statement in FILE_TABLES:
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {FILE_VERSION}")
        found = self._version(connection)
        if found == self.part.version:
            return
        steps = [self.part.later[number] for number in range(found, self.part.version)] if found else []
        for statement in chain(*steps) if found else self.part.tables:
            connection.execute(statement)
        connection.execute("INSERT OR REPLACE INTO part VALUES (?, ?)", (self.part.name, self.part.version))

    def _unusable(self, purpose: str, error: Exception) -> HistoryError:
        outcome = "; nothing was recorded" if purpose == "written" else ""
        if _in_use(error):
            return HistoryError(
                f"the history {self.path} is in use: another run has been writing to it for "
                f"{PATIENCE_S:g} s; run again when that has ended{outcome}"
            )
        if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError):
            outcome += f"; {DAMAGED}"
        elif purpose == "written":
            outcome += f"; see that {self.path.parent} can be written to and has space left"
        return HistoryError(f"the history {self.path} cannot be {purpose}: {told(error)}{outcome}")


def _in_use(error: Exception) -> bool:
    """Return whether another connection has the file.

    Extended codes have the primary one in their last byte.
    """
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
