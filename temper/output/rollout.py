"""Show the progress of a roll-out in the last line of a terminal: nodes, their steps, the expected end."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import TextIO

from temper.output.progress import Line, Progress, Waiting
from temper.rollout.engine import limit_of
from temper.rollout.forecast import expected_end
from temper.rollout.machine import upcoming
from temper.rollout.model import BACK, FORWARD, Course, Record, Rollout, Step, Transition
from temper.rollout.planner import moment

#: How often the end is computed anew: for a thousand nodes it takes two seconds, and with their square.
ANEW = timedelta(minutes=1)


def line(rollout: Rollout, now: datetime, end: datetime | None) -> str:
    """Return the progress in one line; `end` is when the roll-out is expected to end."""
    ended = sum(record.ended and record.step is None for record in rollout.records.values())
    stage = f"{ended} of {len(rollout.nodes)} nodes done"
    if end:
        stage += f", end expected at {moment(end)}"
    shown = Progress(stage)
    for name, record in rollout.records.items():
        transition = upcoming(record)
        if record.step is None or transition is None:
            continue
        since = record.step_since or now
        until = since + limit_of(transition, rollout.policy)
        shown.waiting[name] = Waiting(_numbered(record, transition), since.timestamp(), until.timestamp())
    return shown.line(now.timestamp())


def _numbered(record: Record, transition: Transition) -> str:
    """Return a step with its number."""
    rows = {Course.FORWARD: FORWARD, Course.BACK: BACK}.get(record.course, ())
    if transition not in rows:
        return str(transition.step)
    back = " of the way back" if record.course is Course.BACK else ""
    return f"step {rows.index(transition) + 1} of {len(rows)}{back}, {transition.step}"


class Terminal:
    """Lines that stay, and on a terminal a line below them that is rewritten."""

    def __init__(self, taken: Callable[[], Mapping[Step, float]], stream: TextIO | None = None) -> None:
        """`taken` says how long steps have taken so far, in minutes."""
        self._stream = stream or sys.stdout
        self._line = Line(self._stream) if self._stream.isatty() else None
        self._taken = taken
        self._end: datetime | None = None
        self._computed_at: datetime | None = None

    def say(self, text: str) -> None:
        """Write a line that stays."""
        # A terminal that is gone must not end a roll-out: what counts is in its records.
        with contextlib.suppress(OSError):
            self.clear()
            print(text, file=self._stream, flush=True)

    def show(self, rollout: Rollout, now: datetime) -> None:
        """Show how far the roll-out is."""
        if not self._line:
            return
        if self._computed_at is None or now - self._computed_at >= ANEW:
            self._end, self._computed_at = expected_end(rollout, now, self._taken()), now
        with contextlib.suppress(OSError):
            self._line.show(line(rollout, now, self._end))

    def clear(self) -> None:
        """Take the moving line away."""
        if self._line:
            self._line.clear()
