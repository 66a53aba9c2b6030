"""What a run is waiting for, in one line; and the line itself, which moves on a terminal."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TextIO

from temper.base.nodes import duration, printable, ranges

CLEAR = "\r\x1b[K"
MOST_NAMES = 3
MOST_TASKS = 2
#: Characters of what a node said last.
MOST_WORDS = 500


@dataclass
class Waiting:
    """A task that a node is at: since when, until when it is tried at most, and what the node said last."""

    task: str
    since_s: float
    until_s: float | None = None
    said: str = ""


@dataclass
class Progress:
    """Who is at what."""

    stage: str = ""
    waiting: dict[str, Waiting] = field(default_factory=dict)
    done: Counter[str] = field(default_factory=Counter)

    def begin(self, node: str, task: str, now_s: float) -> None:
        """Note that a node starts a task."""
        self.waiting[node] = Waiting(task, now_s)

    def retry(self, node: str, result: Mapping[str, object], delay_s: float, now_s: float) -> None:
        """Note that a node's task is tried again, until when at most, and what it said last."""
        if node not in self.waiting:
            return
        current = self.waiting[node]
        retries, attempts = result.get("retries"), result.get("attempts")
        if isinstance(retries, int) and isinstance(attempts, int):
            current.until_s = now_s + (retries - attempts) * delay_s
        words = str(result.get("stdout") or result.get("msg") or "").strip().splitlines()
        current.said = words[-1][:MOST_WORDS] if words else ""

    def end(self, node: str, task: str) -> None:
        """Note that a node has a result."""
        self.waiting.pop(node, None)
        self.done[task] += 1

    def line(self, now_s: float) -> str:
        """Return what is waited for, for how long, and for whom; nothing where nobody is at anything."""
        longest_first = sorted(self.waiting.values(), key=lambda waiting: waiting.since_s)
        tasks = Counter(waiting.task for waiting in longest_first).most_common()
        if not tasks:
            return ""
        said = [self.of_task(task, now_s) for task, _ in tasks[:MOST_TASKS]]
        if len(tasks) > MOST_TASKS:
            said.append(f"{len(tasks) - MOST_TASKS} more")
        return printable(f"{self.stage}: {' | '.join(said)}").replace("\n", " ")

    def of_task(self, task: str, now_s: float) -> str:
        """Return one task: its time, who has done it and who is at it, how long that may last."""
        nodes = {node: waiting for node, waiting in self.waiting.items() if waiting.task == task}
        elapsed = duration(now_s - min(waiting.since_s for waiting in nodes.values()))
        whom = ranges(nodes) if len(nodes) <= MOST_NAMES else f"{len(nodes)} nodes"
        done = f"{self.done[task]} done, " if self.done[task] else ""
        said = f"{task}: {elapsed}; {done}waiting for {whom}"
        left_s = max((waiting.until_s or now_s) - now_s for waiting in nodes.values())
        if left_s >= 1:
            said += f", at most {duration(left_s)} more"
        words = {waiting.said for waiting in nodes.values() if waiting.said}
        return f"{said} ({words.pop()})" if len(words) == 1 else said


class Line:
    """The last line of a terminal, written again and again. Nothing has to be restored but the line."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._shown = False

    def show(self, text: str) -> None:
        """Put this text there, cut to the width of the terminal."""
        if not text:
            self.clear()
            return
        width = shutil.get_terminal_size().columns - 1
        cut = text if len(text) <= width else f"{text[: max(0, width - 3)]}..."
        self._stream.write(f"{CLEAR}{cut}")
        self._stream.flush()
        self._shown = True

    def clear(self) -> None:
        """Make room for other lines."""
        if self._shown:
            self._stream.write(CLEAR)
            self._stream.flush()
            self._shown = False
