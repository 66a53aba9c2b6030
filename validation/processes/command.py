"""Run a program of the system within bounds that hold: of time, of what it prints, of its life.

subprocess.run waits for a program that it has killed, for ever if that sleeps in the kernel: nvidia-smi does
when a GPU is wedged, which is when its answer matters most. It waits for whoever else holds the pipes, and it
reads a program that never stops printing until memory is full.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import selectors
import signal
import subprocess
import time
from dataclasses import dataclass

#: How long a killed program may take to go away.
REAP_S = 2.0
#: The kernel log of a bad day has megabytes; what is longer than this is no answer.
MOST_BYTES = 64 << 20
#: How often to see whether a program has ended whose pipes somebody else holds.
LOOK_S = 0.2
PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None, use_errno=True)


class CommandError(Exception):
    """A program gave no answer; the message goes on after "the program gave"."""


class CommandTimeoutError(CommandError):
    """It gave none in time; the message says so, and whether it could be ended."""


@dataclass(frozen=True)
class Done:
    """How a program ended and what it printed, undecodable bytes replaced."""

    status: int
    output: str
    errors: str

    @property
    def ending(self) -> str:
        """How it ended, in words."""
        if self.status >= 0:
            return f"it ended with exit status {self.status}"
        names = {number.value: number.name for number in signal.Signals}
        return f"it was killed by {names.get(-self.status, f'signal {-self.status}')}"


def run(command: list[str], timeout_s: float) -> Done:
    """Run a program to its end. Raises OSError where it cannot be started, CommandError."""
    return Running(command).finish(timeout_s)


class Running:
    """A program that was started; `finish` is to follow. Raises OSError where it cannot be started."""

    def __init__(self, command: list[str]) -> None:
        self._started = time.monotonic()
        parent = os.getpid()

        def end_with_parent() -> None:
            _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)

        self._process = subprocess.Popen(  # noqa: S603 - words of ours and names that were checked
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | {"LC_ALL": "C.UTF-8"},
            # Nobody would be left to end it. There are no threads here that could hold a lock.
            preexec_fn=end_with_parent,  # noqa: PLW1509 - no threads, see above
        )

    def finish(self, timeout_s: float) -> Done:
        """Wait for the end, not longer than so long after the start. Raises CommandError."""
        try:
            output, errors = printed(self._process, self._started + timeout_s)
        except BaseException:
            self._end()
            raise
        status = self._process.poll()
        stuck = "" if self._end() else "; it cannot be killed: it is stuck in the kernel"
        if status is None:
            raise CommandTimeoutError(f"no answer within {timeout_s:.0f} s{stuck}")
        return Done(status, output.decode(errors="replace"), errors.decode(errors="replace"))

    def _end(self) -> bool:
        """End it, if it has not ended; whether that worked."""
        self._process.kill()
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe:
                pipe.close()
        try:
            self._process.wait(REAP_S)
        except subprocess.TimeoutExpired:
            return False
        return True


def printed(process: subprocess.Popen[bytes], deadline: float) -> tuple[bytes, bytes]:
    """Return what a program prints until it ends, or until `deadline`; others may hold its pipes for longer.

    Raises CommandError where that is more than MOST_BYTES.
    """
    assert process.stdout is not None
    assert process.stderr is not None
    said = {process.stdout.fileno(): bytearray(), process.stderr.fileno(): bytearray()}
    with selectors.DefaultSelector() as selector:
        for descriptor in said:
            selector.register(descriptor, selectors.EVENT_READ)
        while selector.get_map() and (left_s := deadline - time.monotonic()) > 0:
            # In this order: what it said before it ended is there when it has ended.
            ended = process.poll() is not None
            ready = selector.select(0 if ended else min(left_s, LOOK_S))
            for key, _ in ready:
                if not _take(key.fd, said[key.fd]):
                    selector.unregister(key.fd)
            if ended and not ready:
                break
            if sum(map(len, said.values())) > MOST_BYTES:
                raise CommandError(f"more than {MOST_BYTES >> 20} MiB of text")
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(max(0.0, deadline - time.monotonic()))
    output, errors = said.values()
    return bytes(output), bytes(errors)


def _take(descriptor: int, into: bytearray) -> bool:
    """Return whether there was something to read, and not the end."""
    data = os.read(descriptor, 1 << 16)
    into += data
    return bool(data)
