"""One after the other: measuring processes start together, because starting takes long, and take turns."""

from __future__ import annotations

import contextlib
import fcntl
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from validation.checks.measured import failures

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from validation.child import Outcome, Request
    from validation.contract import Finding

WAITING = "waiting for its turn"


@contextlib.contextmanager
def taking_turns() -> Iterator[str]:
    """The name of a lock file, for the parameter `turn` of the processes."""
    with tempfile.NamedTemporaryFile(prefix="temper-validation-") as lock:
        yield lock.name


@contextlib.contextmanager
def my_turn(request: Request, stage: Callable[[str], None]) -> Iterator[None]:
    """In a child: wait until nobody else measures; a process that dies gives its turn back."""
    path = request.parameters.get("turn")
    if path is None:
        yield
        return
    stage(WAITING)
    with Path(path).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def blame(outcomes: list[Outcome]) -> list[Finding]:
    """A finding for each GPU that failed; those that only waited for one that hung are not to blame."""
    culprits = [outcome for outcome in outcomes if outcome.stage != WAITING]
    return failures(culprits) or failures(outcomes)
