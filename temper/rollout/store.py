"""What is recorded of roll-outs: one SQLite file on the controller, and a lease on it for one controller.

It is no part of the history (temper/base/store.py): a power cut must not take back what it says.

Every change is written in one transaction before it is acted on, so that a controller that is killed leaves
a state from which another one goes on. Each controller that takes the lease gets a higher fencing number;
writes with a lower one are refused, here and on the nodes. People hold, stop and resume without the lease.
"""

from __future__ import annotations

import getpass
import json
import os
import shlex
import socket
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from temper.base import ROOT
from temper.base.options import told
from temper.rollout.machine import after, begun, interrupted, tried_again, upcoming
from temper.rollout.model import (
    ALLOWED,
    OUT_SINCE,
    WATCH,
    Course,
    Mode,
    NodeState,
    Record,
    Rollout,
    RolloutNode,
    Step,
    StepResult,
    Try,
)
from temper.rollout.planner import Decision, Start, moment, some
from temper.rollout.policy import Policy, as_document, read
from validation.processes.files import own, own_file

#: Where roll-outs are recorded unless somebody says otherwise.
FOLDER = ROOT / "reports" / "rollouts"
VERSION = 1
#: Another process may be writing; it takes milliseconds.
PATIENCE_S = 30
#: A lease whose heartbeat is older may be taken over.
LEASE_TTL = timedelta(minutes=2)
_RECORD = tuple(field.name for field in fields(Record))
_COLUMNS = ", ".join(f'"{name}"' for name in _RECORD)  # "then" is a word of SQL
#: Columns that were added to the table of roll-outs; an older Temper neither needs nor minds them, so the
#: version stays.
ADDED = {name: f"{name} TEXT NOT NULL DEFAULT ''" for name in ("origin", "inventory")}
TABLES = f"""
CREATE TABLE rollout (
  number INTEGER PRIMARY KEY, stack TEXT NOT NULL, policy TEXT NOT NULL, created_at TEXT NOT NULL,
  mode TEXT NOT NULL, reason TEXT NOT NULL, sentence TEXT NOT NULL DEFAULT '', {", ".join(ADDED.values())}
);
CREATE UNIQUE INDEX one_at_a_time ON rollout (mode IS NOT 'done') WHERE mode IS NOT 'done';
CREATE TABLE node (
  rollout INTEGER NOT NULL REFERENCES rollout, name TEXT NOT NULL, cohort TEXT NOT NULL, groups TEXT NOT NULL,
  place INTEGER NOT NULL, {_COLUMNS}, PRIMARY KEY (rollout, name)
) WITHOUT ROWID;
CREATE TABLE event (
  number INTEGER PRIMARY KEY, rollout INTEGER NOT NULL, node TEXT NOT NULL, at TEXT NOT NULL,
  state TEXT NOT NULL, step TEXT NOT NULL, outcome TEXT NOT NULL, reason TEXT NOT NULL,
  numbers TEXT NOT NULL, who TEXT NOT NULL
);
CREATE INDEX event_of ON event (rollout, node);
CREATE TABLE lease (
  one INTEGER PRIMARY KEY CHECK (one = 1), owner TEXT NOT NULL, fence INTEGER NOT NULL,
  taken_at TEXT NOT NULL, heartbeat_at TEXT
)
"""


class StoreError(Exception):
    """The file cannot be used, or not for what was asked; the message is a sentence. Nothing changed."""


class HeldError(StoreError):
    """Another controller has the lease."""


class LostLeaseError(StoreError):
    """This controller's lease was taken over: whatever it still does must not count."""


@dataclass(frozen=True)
class Owner:
    """A controller's process. A number of a process comes back; with the time of its start it does not."""

    user: str
    host: str
    pid: int
    started: str
    boot: str

    @classmethod
    def of_this_process(cls) -> Owner:
        """Return who we are."""
        pid = os.getpid()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return cls(getpass.getuser(), socket.gethostname(), pid, _started(pid), boot)

    @property
    def is_gone(self) -> bool:
        """Whether it certainly does not run any more; of another machine's processes nobody can tell."""
        here = Owner.of_this_process()
        if self.host != here.host:
            return False
        return self.boot != here.boot or _started(self.pid) != self.started

    def __str__(self) -> str:
        return f"{self.user} on {self.host} (process {self.pid})"


def _started(pid: int) -> str:
    """Return when a process began, in ticks since the boot.

    Empty where there is none, or only its remains.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    state, *rest = stat.rpartition(")")[2].split()
    return "" if state in "ZX" else rest[18]


@dataclass(frozen=True)
class Lease:
    """The right to write. `fence` is higher than that of every lease before."""

    owner: Owner
    fence: int


@dataclass(frozen=True)
class Holder:
    """Who has the lease, since when, and when that controller was last heard of."""

    owner: Owner
    fence: int
    taken_at: datetime
    heartbeat_at: datetime


@dataclass(frozen=True)
class Event:
    """Something that happened to a node, or by hand to the whole roll-out (then `node` is empty)."""

    node: str
    at: datetime
    state: str
    step: str
    outcome: str
    reason: str
    numbers: Mapping[str, float]
    who: str


class RolloutStore:
    """The file, which is made where it is not there. Raises StoreError throughout."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def command(self, words: str) -> str:
        """Return a command on these roll-outs, as one types it."""
        folder = self.path.parent.resolve()
        where = "" if folder == FOLDER else f" --folder {shlex.quote(str(folder))}"
        return f"`temper rollout {words}{where}`"

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            own(self.path.parent)
            own_file(self.path)
            # Transactions begin where the code says so.
            with closing(sqlite3.connect(self.path, timeout=PATIENCE_S, isolation_level=None)) as connection:
                (version,) = connection.execute("PRAGMA user_version").fetchone()
                if version > VERSION:
                    raise StoreError(
                        f"{self.path} is of version {version}, and this Temper reads up to {VERSION}: take a "
                        "newer Temper"
                    )
                connection.execute("PRAGMA journal_mode = WAL")
                # A power cut must not take back what a node was already told to do.
                connection.execute("PRAGMA synchronous = FULL")
                connection.execute("BEGIN IMMEDIATE")
                if not connection.execute("PRAGMA user_version").fetchone()[0]:
                    for statement in filter(str.strip, TABLES.split(";")):
                        connection.execute(statement)
                    connection.execute(f"PRAGMA user_version = {VERSION}")
                columns = {column[1] for column in connection.execute("PRAGMA table_info(rollout)")}
                for name, column in ADDED.items():
                    if name not in columns:
                        connection.execute(f"ALTER TABLE rollout ADD COLUMN {column}")
                yield connection
                connection.execute("COMMIT")
        except (sqlite3.Error, OSError) as error:
            room = isinstance(error, sqlite3.OperationalError | OSError)
            raise StoreError(
                f"the roll-outs in {self.path} cannot be read or written: {told(error)}; nothing was recorded"
                + room * f"; see that {self.path.parent} can be written to and has space left"
            ) from error

    # The lease

    def acquire(self, owner: Owner, now: datetime) -> Lease:
        """Return the lease, where nobody has it, or who had it is gone or silent. Raises HeldError."""
        with self._open() as connection:
            holder = _holder(connection)
            if holder and holder.owner != owner and not self._may_take(holder, now):
                raise HeldError(
                    f"{self.path} is held by {holder.owner} since {moment(holder.taken_at)}, last heard of "
                    f"at {moment(holder.heartbeat_at)}: wait for it to end, or end it; its lease is free "
                    f"{LEASE_TTL.total_seconds() / 60:g} minutes after it was last heard of"
                )
            row = connection.execute("SELECT fence FROM lease").fetchone()
            fence = (row[0] if row else 0) + 1
            connection.execute(
                "INSERT OR REPLACE INTO lease VALUES (1, ?, ?, ?, ?)",
                (json.dumps(asdict(owner)), fence, _text(now), _text(now)),
            )
            return Lease(owner, fence)

    @staticmethod
    def _may_take(holder: Holder, now: datetime) -> bool:
        """Return whether it may be taken. A heartbeat of the future counts as one that far in the past."""
        return holder.owner.is_gone or abs(now - holder.heartbeat_at) > LEASE_TTL

    def heartbeat(self, lease: Lease, now: datetime) -> None:
        """Say that the controller lives. Raises LostLeaseError."""
        with self._open() as connection:
            self._check(connection, lease)
            connection.execute("UPDATE lease SET heartbeat_at = ?", (_text(now),))

    def give_back(self, lease: Lease) -> None:
        """End the lease. Its fencing number stays, so that the next one is higher."""
        with self._open() as connection:
            self._check(connection, lease)
            connection.execute("UPDATE lease SET heartbeat_at = NULL")

    def at_work(self, now: datetime) -> Holder | None:
        """Return who has the lease, and may not lose it yet."""
        holder = self.holder()
        return None if holder is None or self._may_take(holder, now) else holder

    def holder(self) -> Holder | None:
        """Return who has the lease; None where it was given back, or nobody ever had it."""
        with self._open() as connection:
            return _holder(connection)

    def _check(self, connection: sqlite3.Connection, lease: Lease) -> None:
        row = connection.execute("SELECT fence, heartbeat_at, owner FROM lease").fetchone()
        if row is None or row[0] != lease.fence or row[1] is None:
            by = f", taken by {Owner(**json.loads(row[2]))}" if row and row[0] != lease.fence else ""
            raise LostLeaseError(
                f"the lease on {self.path} (fencing number {lease.fence}) is over{by}: this controller "
                "writes nothing any more"
            )

    # A roll-out

    def create(
        self,
        stack: str,
        policy: Policy,
        nodes: Mapping[str, RolloutNode],
        records: Mapping[str, Record],
        now: datetime,
        inventory: Sequence[str] = (),
    ) -> int:
        """Begin a roll-out; returns its number. One that stopped, with no node on its way, is over with that.

        `inventory` are the files and folders that name its nodes, for who goes on. Raises StoreError where
        another one has not ended.
        """
        with self._open() as connection:
            row = connection.execute(
                "SELECT number, stack, mode FROM rollout WHERE mode != 'done'"
            ).fetchone()
            if row:
                before, to, mode = row
                self._end_stopped(connection, before, to, Mode(mode), now)
            origin = _origin(self.path.parent.resolve())
            number = connection.execute(
                "INSERT INTO rollout (stack, policy, created_at, mode, reason, origin, inventory) "
                "VALUES (?, ?, ?, ?, '', ?, ?) RETURNING number",
                (
                    stack,
                    json.dumps(as_document(policy)),
                    _text(now),
                    Mode.RUNNING.value,
                    origin,
                    json.dumps(list(inventory)),
                ),
            ).fetchone()[0]
            for name, node in nodes.items():
                own = (number, name, node.cohort, json.dumps(node.groups), node.place)
                values = (*own, *_row(records[name]))
                marks = ", ".join("?" * len(values))
                connection.execute(f"INSERT INTO node VALUES ({marks})", values)  # noqa: S608 - question marks
            return int(number)

    def _end_stopped(
        self, connection: sqlite3.Connection, number: int, stack: str, mode: Mode, now: datetime
    ) -> None:
        what = f"roll-out {number} to {stack or 'another kernel'} is {mode}"
        if mode is not Mode.STOPPED:
            raise StoreError(
                f"{what}: go on with {self.command('resume')}, or end it with "
                f"{self.command('abort --reason WHY')} before another one begins"
            )
        rows = connection.execute(
            f"SELECT name, {_COLUMNS} FROM node WHERE rollout = ?",  # noqa: S608 - the columns are ours
            (number,),
        )
        if left := [name for name, *values in rows if _record(values).on_its_way]:
            raise StoreError(
                f"{what}, with {some(left)} on the way: wait for the controller that is at work; where none "
                f"is, {self.command('resume --finish')} ends them and starts no other node"
            )
        connection.execute("UPDATE rollout SET mode = ? WHERE number = ?", (Mode.DONE.value, number))
        _note(connection, number, "", now, Mode.DONE, "", "decided", "another one begins", {}, "")

    def load(self, number: int | None = None) -> Rollout | None:
        """Return a roll-out, the newest without a number; None where there is none."""
        with self._open() as connection:
            row = connection.execute(
                "SELECT number, stack, policy, mode, reason FROM rollout WHERE number = coalesce(?, number) "
                "ORDER BY number DESC LIMIT 1",
                (number,),
            ).fetchone()
            if row is None:
                return None
            nodes, records = {}, {}
            for name, cohort, groups, place, *values in connection.execute(
                f"SELECT name, cohort, groups, place, {_COLUMNS} FROM node WHERE rollout = ? ORDER BY place",  # noqa: S608 - the columns are ours
                (row[0],),
            ):
                nodes[name] = RolloutNode(name, cohort, tuple(json.loads(groups)), place)
                records[name] = _record(values)
        return Rollout(row[1], read(json.loads(row[2])), nodes, records, Mode(row[3]), row[4], row[0])

    def identity(self, number: int) -> str:
        """By what nodes and schedulers know a roll-out: where it was begun, and its number.

        It stays, whatever the controller that goes on is called, and however it spells the folder: else the
        drains and leases of before would be somebody else's.
        """
        with self._open() as connection:
            row = connection.execute("SELECT origin FROM rollout WHERE number = ?", (number,)).fetchone()
        # One that was begun before this was recorded is known by what its controller was called then.
        return f"{(row and row[0]) or _origin(self.path.parent)}/{number}"

    def inventory(self, number: int) -> list[str]:
        """Return the inventory that a roll-out was begun with; none of one that an earlier version began."""
        with self._open() as connection:
            row = connection.execute("SELECT inventory FROM rollout WHERE number = ?", (number,)).fetchone()
        return list(map(str, json.loads(row[0]))) if row and row[0] else []

    def mode(self, number: int) -> tuple[Mode, str]:
        """Return what a roll-out does, and why."""
        with self._open() as connection:
            return self._mode(connection, number)

    def sentence(self, number: int) -> str:
        """Return what the controller last said of a roll-out."""
        with self._open() as connection:
            found = connection.execute("SELECT sentence FROM rollout WHERE number = ?", (number,)).fetchone()
        return str(found[0])

    def recover(self, lease: Lease, number: int, now: datetime) -> list[str]:
        """Note that the steps under way have lost whoever carried them out; returns the nodes' names."""
        with self._open() as connection:
            self._check(connection, lease)
            found = []
            for name, record in _under_way(connection, number).items():
                self._write(connection, number, name, interrupted(record))
                told = (number, name, now, record.state, record.step)
                _note(connection, *told, "interrupted", "", {}, str(lease.owner))
                found.append(name)
            return found

    def finish(
        self, lease: Lease, number: int, name: str, step: Step, result: StepResult, now: datetime
    ) -> Record:
        """Record the outcome of a step, and what follows from it for the node."""
        with self._open() as connection:
            self._check(connection, lease)
            before = self._one(connection, number, name)
            if before.step is not step:
                raise StoreError(
                    f"{name} has no step {step} under way: its result ({result.outcome}) is dropped"
                )
            record = after(before, result, now)
            self._move(connection, number, name, before, record)
            _note(
                connection, number, name, now, record.state, step, result.outcome, result.reason,
                result.numbers, str(lease.owner),
            )  # fmt: skip
            return record

    def apply(
        self, lease: Lease, rollout: Rollout, decision: Decision, now: datetime
    ) -> dict[str, Record] | None:
        """Record a decision of the planner, and that its steps are about to be carried out.

        Returns the records of the nodes whose steps begin; None, with nothing written, where somebody has
        changed the mode since the `rollout` was loaded. Raises StoreError where a step is not its node's
        next: a node that has one under way is never worked on twice at once.
        """
        number, who = rollout.number, str(lease.owner)
        expected, mode = (rollout.mode, rollout.reason), (decision.mode, decision.reason)
        with self._open() as connection:
            self._check(connection, lease)
            if self._mode(connection, number) != expected:
                return None
            for name, record in decision.moves.items():
                self._move(connection, number, name, self._one(connection, number, name), record)
                _note(connection, number, name, now, record.state, "", "decided", record.reason, {}, who)
            started = {}
            for start in decision.starts:
                started[start.node] = self._begin(connection, number, start, now)
                told = (number, start.node, now, started[start.node].state, start.transition.step)
                _note(connection, *told, "begun", "", {}, who)
            if mode != expected:
                _note(connection, number, "", now, mode[0], "", "decided", mode[1], {}, who)
            connection.execute(
                "UPDATE rollout SET mode = ?, reason = ?, sentence = ? WHERE number = ?",
                (mode[0].value, mode[1], decision.sentence, number),
            )
            return started

    def _begin(self, connection: sqlite3.Connection, number: int, start: Start, now: datetime) -> Record:
        before = self._one(connection, number, start.node)
        watches = start.transition is WATCH and before.state is NodeState.RETURNED
        if before.step or (upcoming(before) != start.transition and not watches):
            busy = f" with step {before.step} under way" if before.step else ""
            raise StoreError(
                f"{start.node} is {before.state}{busy}, and step {start.transition.step} does not follow: "
                "nothing was started"
            )
        record = begun(before, start.transition, now)
        self._write(connection, number, start.node, record)
        return record

    # By hand, without the lease: the controller looks at the mode before each decision

    def hold(self, number: int, who: str, reason: str, now: datetime) -> None:
        """Let no node start any more; those under way end."""
        self._by_hand(number, Mode.HELD, who, reason, now, {Mode.RUNNING})

    def stop(self, number: int, who: str, reason: str, now: datetime) -> None:
        """As hold, and nodes that were not changed yet are released."""
        self._by_hand(number, Mode.STOPPED, who, reason, now, {Mode.RUNNING, Mode.HELD})

    def resume(self, number: int, who: str, now: datetime) -> None:
        """Go on; whoever does has seen what failed and who was left out so far."""
        self._by_hand(number, Mode.RUNNING, who, "", now, {Mode.HELD, Mode.STOPPED}, accept=True)

    def _by_hand(
        self,
        number: int,
        mode: Mode,
        who: str,
        reason: str,
        now: datetime,
        of: set[Mode],
        *,
        accept: bool = False,
    ) -> None:
        with self._open() as connection:
            found, why = self._mode(connection, number)
            if found not in of:
                raise StoreError(
                    f"roll-out {number} is {found}{f' ({why})' if why else ''}, so nothing was done"
                )
            said = f"by {who}: {reason}" if reason else ""
            connection.execute(
                "UPDATE rollout SET mode = ?, reason = ? WHERE number = ?", (mode.value, said, number)
            )
            if accept:
                connection.execute(
                    "UPDATE node SET accepted = 1 WHERE rollout = ? AND (failures > 0 OR state = 'left-out' "
                    "OR instr(facts, ?))",
                    (number, OUT_SINCE),
                )
            _note(connection, number, "", now, mode, "", "by hand", reason, {}, who)

    def retry(
        self, number: int, name: str, who: str, now: datetime, verb: Try = Try.RETRY, reason: str = ""
    ) -> Record:
        """Have another try on a node that failed, was rolled back or left out, also after the end."""
        with self._open() as connection:
            before = self._one(connection, number, name)
            try:
                record = tried_again(before, verb, f"by {who}: {reason}", now)
            except ValueError as error:
                raise StoreError(f"{name}: {error}; nothing was changed") from None
            self._move(connection, number, name, before, record)
            _note(connection, number, name, now, record.state, "", verb, reason or before.reason, {}, who)
            connection.execute(
                "UPDATE rollout SET mode = 'held', reason = ? WHERE number = ? AND mode = 'done'",
                (f"by {who}: {verb} {name}", number),
            )
            return record

    def events(self, number: int) -> list[Event]:
        """Everything that happened, in order."""
        with self._open() as connection:
            rows = connection.execute(
                "SELECT node, at, state, step, outcome, reason, numbers, who FROM event WHERE rollout = ? "
                "ORDER BY number",
                (number,),
            ).fetchall()
        return [
            Event(node, _time(at), state, step, outcome, reason, json.loads(numbers), who)
            for node, at, state, step, outcome, reason, numbers, who in rows
        ]

    # Rows

    def _mode(self, connection: sqlite3.Connection, number: int) -> tuple[Mode, str]:
        row = connection.execute("SELECT mode, reason FROM rollout WHERE number = ?", (number,)).fetchone()
        if row is None:
            raise StoreError(f"{self.path} has no roll-out {number}")
        return Mode(row[0]), row[1]

    def _one(self, connection: sqlite3.Connection, number: int, name: str) -> Record:
        row = connection.execute(
            f"SELECT {_COLUMNS} FROM node WHERE rollout = ? AND name = ?",  # noqa: S608 - the columns are ours
            (number, name),
        ).fetchone()
        if row is None:
            raise StoreError(f"roll-out {number} has no node {name}")
        return _record(row)

    def _move(
        self, connection: sqlite3.Connection, number: int, name: str, before: Record, record: Record
    ) -> None:
        """Write a record whose state may follow the one before. Raises StoreError for any other."""
        if record.state is not before.state and record.state not in ALLOWED[before.state]:
            raise StoreError(f"{name}: {record.state} does not follow {before.state}; nothing was changed")
        self._write(connection, number, name, record)

    @staticmethod
    def _write(connection: sqlite3.Connection, number: int, name: str, record: Record) -> None:
        marks = ", ".join("?" * len(_RECORD))
        connection.execute(
            f"UPDATE node SET ({_COLUMNS}) = ({marks}) WHERE rollout = ? AND name = ?",  # noqa: S608 - the columns are ours
            (*_row(record), number, name),
        )


def _origin(folder: Path) -> str:
    return f"{socket.gethostname()}:{folder}"


def _holder(connection: sqlite3.Connection) -> Holder | None:
    row = connection.execute("SELECT owner, fence, taken_at, heartbeat_at FROM lease").fetchone()
    if row is None or row[3] is None:
        return None
    return Holder(Owner(**json.loads(row[0])), row[1], _time(row[2]), _time(row[3]))


def _under_way(connection: sqlite3.Connection, number: int) -> dict[str, Record]:
    rows = connection.execute(
        f"SELECT name, {_COLUMNS} FROM node WHERE rollout = ? AND step IS NOT NULL",  # noqa: S608 - the columns are ours
        (number,),
    ).fetchall()
    return {name: _record(values) for name, *values in rows}


def _note(
    connection: sqlite3.Connection,
    number: int,
    node: str,
    at: datetime,
    state: str,
    step: str | None,
    outcome: str,
    reason: str,
    numbers: Mapping[str, float],
    who: str,
) -> None:
    told = (number, node, _text(at), str(state), str(step or ""), str(outcome), reason)
    connection.execute(
        "INSERT INTO event (rollout, node, at, state, step, outcome, reason, numbers, who) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (*told, json.dumps(dict(numbers)), who),
    )


def _text(instant: datetime) -> str:
    return instant.astimezone(UTC).isoformat(timespec="microseconds")


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)


_STATES, _TIMES = ("state", "stage", "then"), ("since", "step_since", "not_before", "started_at")


def _row(record: Record) -> tuple[Any, ...]:
    """Return a record as SQLite takes it."""
    found = []
    for name in _RECORD:
        value = getattr(record, name)
        if name in _TIMES:
            value = value and _text(value)
        elif name == "facts":
            value = json.dumps(dict(value))
        elif isinstance(value, (NodeState, Course, Step)):
            value = value.value
        found.append(value)
    return tuple(found)


def _record(values: list[Any]) -> Record:
    """Return a record from a row."""
    found = dict(zip(_RECORD, values, strict=True))
    for name in _STATES:
        found[name] = NodeState(found[name])
    for name in _TIMES:
        found[name] = found[name] and _time(found[name])
    found |= {name: bool(found[name]) for name in ("out", "accepted", "cut_off")}
    found |= {"course": Course(found["course"]), "step": found["step"] and Step(found["step"])}
    found |= {"facts": json.loads(found["facts"])}
    found["watched"] = None if found["watched"] is None else bool(found["watched"])
    return Record(**found)
