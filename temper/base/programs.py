"""Programs of the controller: no shell, bounds of time and text, and who is ended takes its children along.

The payload and the modules of nodes run without this package, and have runners of their own
(validation/processes/command.py, module_utils/temper/process.py). temper/plan/inventory.py runs Ansible.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass

from validation.processes.command import CommandError, printed

#: How long a program that was killed may hold its pipes.
REAP_S = 10.0
MOST_COMPLAINT = 1000


@dataclass(frozen=True)
class Answer:
    """How a program ended, and what it printed, undecodable bytes replaced."""

    status: int
    output: str
    errors: str

    @property
    def complaint(self) -> str:
        """The reason for its status, in one line."""
        said = " ".join((self.errors or self.output).split())[:MOST_COMPLAINT]
        return said or f"exit status {self.status}, and no word"


class EndlessError(OSError):
    """A program printed more than anybody expects of it, and was ended; the message names it."""


def ask(command: Sequence[str], timeout_s: float, given: bytes = b"", **environment: str) -> Answer:
    """Run a program, with `given` as its input. It has no terminal. If it is ended, so are its children.

    What it leaves behind by itself, as an ssh that keeps its connection open, is not waited for.

    Raises:
        TimeoutError: it gave no answer in time.
        EndlessError: its answer is too long.
        OSError: it cannot be started.
    """
    with tempfile.TemporaryFile() as text:
        text.write(given)
        text.seek(0)
        process = subprocess.Popen(  # noqa: S603 - names of programs are ours or the operator's
            list(command),
            stdin=text,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **environment},
            start_new_session=True,
        )
    try:
        output, errors = printed(process, time.monotonic() + timeout_s)
        if process.poll() is None:
            raise TimeoutError(f"`{command[0]}` gave no answer within {timeout_s:g} s")
    except BaseException as error:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(REAP_S)
        if isinstance(error, CommandError):
            raise EndlessError(f"`{command[0]}` gave {error}") from None
        raise
    finally:
        for pipe in filter(None, (process.stdout, process.stderr)):
            pipe.close()
    return Answer(process.returncode, output.decode(errors="replace"), errors.decode(errors="replace"))
