"""Signals that end a program with the processes that it has started, as Ctrl-C does."""

from __future__ import annotations

import signal
from types import FrameType
from typing import NoReturn


def end_on_signals() -> None:
    """Raise KeyboardInterrupt at SIGTERM and SIGHUP; under nohup a closed terminal ends nothing."""
    signal.signal(signal.SIGTERM, _stop)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _stop)


def _stop(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
