"""What the person at the terminal sees while a plan runs: one line that moves, then one line a test."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from types import TracebackType
from typing import TextIO

from validation.model.contract import TestResult
from validation.model.printable import one_line

CLEAR_LINE = "\r\x1b[K"
INTERVAL_S = 0.5


class Progress:
    """Tell each test on standard error when it starts and ends; on a terminal, also how long it takes."""

    def __init__(self, tests: int, stream: TextIO | None = None) -> None:
        self._tests = tests
        self._stream: TextIO | None = stream or sys.stderr
        self._live = self._stream is not None and self._stream.isatty()
        self._current: tuple[str, float] | None = None
        self._count = 0
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Progress:
        if self._live:
            self._thread.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._live:
            self._thread.join()
            self._write(CLEAR_LINE)

    def __call__(self, test: str, result: TestResult | None) -> None:
        """Show that a test starts (None) or has ended."""
        with self._lock:
            if result is None:
                self._count += 1
                self._current = test, time.monotonic()
                if not self._live:
                    self._write(f"{test} ...\n")
                return
            self._current = None
            reason = f": {one_line(result.reason)}" if result.reason else ""
            clear = CLEAR_LINE if self._live else ""
            self._write(f"{clear}{test} {result.state}, {result.duration_s:.1f} s{reason}\n")

    def say(self, text: str) -> None:
        """Say something that is of no test."""
        if text:
            with self._lock:
                self._write(f"{CLEAR_LINE if self._live else ''}{one_line(text)}\n")

    def line(self) -> str:
        """`[3 of 7] gpu_matmul, 12 s`: what runs now."""
        if self._current is None:
            return ""
        test, started = self._current
        return f"[{self._count} of {self._tests}] {test}, {time.monotonic() - started:.0f} s"

    def _run(self) -> None:
        while not self._ended.wait(INTERVAL_S):
            with self._lock:
                if self._current:
                    self._write(CLEAR_LINE + self.line())

    def _write(self, text: str) -> None:
        """Say it, if anybody listens: a run goes on without a reader of its progress."""
        if self._stream is not None:
            with contextlib.suppress(OSError):
                self._stream.write(text)
                self._stream.flush()
