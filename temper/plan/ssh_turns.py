"""Connections through a machine that others are reached through begin one after the other.

sshd drops connections at random once more of them than MaxStartups allows have not logged in yet. Looks at
many nodes behind one jump host are that many. So all processes of this account take turns, by a lock in a
file.
"""

from __future__ import annotations

import fcntl
import hashlib
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import IO

from ansible.constants import config

from validation.processes.files import own

#: A connection that has not been greeted within this time keeps the next one from beginning no longer.
LONGEST_S = 3.0
#: Between two looks whether it is this one's turn.
PAUSE_S = 0.02


def folder() -> Path:
    """Return where the locks are."""
    return Path(str(config.get_config_value("ANSIBLE_HOME"))) / "temper"


class Turn:
    """A turn at a `gate`, the first machine of a way; every one is at once where there is none.

    It ends with `end`, which is for the moment when the far end greets, and by itself after a while. `taken`
    says whether it came before `until_s` of the monotonic clock.
    """

    def __init__(self, gate: str, until_s: float) -> None:
        self.taken = True
        self._lock: IO[str] | None = None
        if not gate:
            return
        try:
            own(folder())
            lock = (folder() / f"turn-{hashlib.sha256(gate.encode()).hexdigest()[:16]}").open("w")
        except OSError:  # without a place for it, all of them are at once
            return
        while not _locked(lock):
            if time.monotonic() >= until_s:
                lock.close()
                self.taken = False
                return
            time.sleep(PAUSE_S)
        self._lock = lock
        self._timer = threading.Timer(LONGEST_S, self.end)
        self._timer.daemon = True
        self._timer.start()

    def end(self) -> None:
        """Let the next one begin."""
        lock, self._lock = self._lock, None
        if lock:
            self._timer.cancel()
            lock.close()

    def __enter__(self) -> Turn:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()


def _locked(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
