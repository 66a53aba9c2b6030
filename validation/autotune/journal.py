"""Values of the node that trials change, and their way back: at the end, after kill -9, at the next start.

What was there is in a journal on disk before it is changed for the first time. Three restore from it: the
program at its end; a guard, a process of its own that notices when the program is gone, however that ended;
and the next start of the program, where the guard was killed, too. What is changed here are values of the
kernel, and clocks of GPUs, which no reboot keeps: a journal of an earlier boot has nothing to restore.
"""

from __future__ import annotations

import contextlib
import errno
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from validation.autotune import clocks
from validation.model.contract import ContractError, dumps, loads
from validation.processes.files import write_atomically
from validation.processes.pool import ROOT, inherited
from validation.run.burn_in import boot_id, locked

JOURNAL_VERSION = 1
#: How long a killed program may still hold its lock: the kernel closes one file after the other.
LOCK_PATIENCE_S = 10.0
#: What a file of the kernel answers whose device is gone.
GONE = (errno.ENOENT, errno.ENODEV, errno.ENXIO)
#: Python imports from the current folder first, for which an empty entry stands; anybody may write to /tmp.
GUARD = """\
import sys
sys.path[:] = filter(None, sys.path)
from validation.autotune.journal import guard
guard(sys.argv[1])
"""


class ChangeError(Exception):
    """A value of the node that cannot be changed; the message says which and why."""


@dataclass(frozen=True)
class Change:
    """A file of the kernel, what it held before, and the values that trials write into it."""

    path: str
    before: str
    ours: tuple[str, ...]


@dataclass(frozen=True)
class Journal:
    """What has to be restored, and in which boot it was changed."""

    schema_version: int
    boot: str
    changes: tuple[Change, ...] = ()


@dataclass
class Changes:
    """Changes of this node, which end with this context. `journal` is where they are noted."""

    journal: Path
    _noted: Journal = field(default_factory=lambda: Journal(JOURNAL_VERSION, boot_id()))
    _guard: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Changes:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            restore(self.journal)
        finally:
            if self._guard is not None and self._guard.stdin is not None:
                self._guard.stdin.close()
                self._guard.wait()

    def allow(self, path: Path, values: Iterable[str]) -> str:
        """Note what a file holds, which it returns, and that these values may be set. Raises ChangeError."""
        try:
            before = _read(path)
            with path.open("r+"):
                pass
        except OSError as error:
            raise ChangeError(f"{path}: expected a value that may be written: {error.strerror}") from error
        except clocks.ClocksError as error:
            raise ChangeError(str(error)) from error
        change = Change(str(path), before, tuple(values))
        noted = replace(self._noted, changes=(*self._noted.changes, change))
        write_atomically(self.journal, dumps(noted))
        self._noted = noted
        if self._guard is None:
            self._guard = _start_guard(self.journal)
        return before

    def set(self, path: Path, value: str) -> None:
        """Write a value and read it back. Raises ChangeError."""
        change = next((one for one in self._noted.changes if one.path == str(path)), None)
        if change is None or value not in (change.before, *change.ours):
            raise ChangeError(f"{path}: {value} was not noted before it is set")
        _write(path, value)


def restore(journal: Path) -> list[str]:
    """Restore what a journal says, and remove it; a sentence for each value that was restored or left.

    Raises ChangeError where a value cannot be restored, or the journal cannot be read: then it stays.
    """
    try:
        noted = loads(Journal, journal.read_bytes())
    except FileNotFoundError:
        return []
    except (OSError, ContractError) as error:
        raise ChangeError(f"{journal}: expected a journal of autotune, which can be read: {error}") from error
    said = []
    if noted.schema_version != JOURNAL_VERSION:
        raise ChangeError(
            f"{journal}: expected version {JOURNAL_VERSION} of the journal, found {noted.schema_version}; "
            "restore it with the program that wrote it"
        )
    problems = []
    for change in noted.changes if noted.boot == boot_id() else ():
        try:
            said.append(_undo(change))
        except ChangeError as error:  # one that cannot be restored keeps no other from it
            problems.append(str(error))
    if problems:
        raise ChangeError("; ".join(problems))
    journal.unlink(missing_ok=True)
    return list(filter(None, said))


def _undo(change: Change) -> str:
    """Return what was done about a change; empty where nothing had to be."""
    path = Path(change.path)
    try:
        now = _read(path)
    except clocks.ClocksError as error:
        raise ChangeError(f"{path}: expected clocks {change.before}: {error}") from error
    except OSError as error:
        if error.errno not in GONE:
            raise ChangeError(
                f"{path}: expected {change.before}, and cannot be read: {error.strerror}"
            ) from error
        return f"{path} is gone, with its disk; nothing to restore."
    if now == change.before:
        return ""
    if now not in change.ours:
        return f"{path} is {now}, which is neither ours nor what was there ({change.before}); it was left."
    _write(path, change.before)
    what = "gpu_settings_clocks" if clocks.are_clocks(path) else path
    return f"{what} was restored to {change.before} from {now}."


def _read(path: Path) -> str:
    """Return what is in force: a value of the kernel, or clocks. Raises OSError and ClocksError."""
    return clocks.in_force(path) if clocks.are_clocks(path) else path.read_text().strip()


def _write(path: Path, value: str) -> None:
    try:
        if clocks.are_clocks(path):
            clocks.lock(path, value)
            return
        # Not replaced by a new file: these are files of the kernel.
        path.write_text(value)
        now = path.read_text().strip()
    except clocks.ClocksError as error:
        raise ChangeError(str(error)) from error
    except OSError as error:
        raise ChangeError(f"{path}: {value} could not be written: {error.strerror}") from error
    if now != value:
        raise ChangeError(f"{path}: {value} was written, and it holds {now}")


def _start_guard(journal: Path) -> subprocess.Popen[bytes]:
    """Return a process in a session of its own, which a killed process group does not take along."""
    environment = {**inherited(), "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.Popen(  # noqa: S603 - this Python, a program of ours
        [sys.executable, "-c", GUARD, str(journal.absolute())],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env=environment,
        cwd="/",
        start_new_session=True,
    )


def guard(journal: str) -> None:
    """In the guard: wait until the program is gone, and restore what it did not."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # whoever ends the program waits for its values, too
    # Nothing is ever written: the end of the pipe is the end of the program.
    with contextlib.suppress(OSError):
        sys.stdin.buffer.read()
    ends_at = time.monotonic() + LOCK_PATIENCE_S
    while Path(journal).exists():
        try:
            # Held by the program until the kernel is done with it, or by the next run, if there is one
            # already: that has restored everything before it began.
            with locked(Path(journal)):
                restore(Path(journal))
        except (OSError, ChangeError) as error:
            if isinstance(error, ChangeError) or time.monotonic() > ends_at:
                sys.stderr.write(f"validation: {error}\n")
                return
            time.sleep(0.1)
