"""Programs of the controller: no shell, a bound in time, and nothing that they started outlives them.

The payload and the modules of nodes run without this package, and have runners of their own
(validation/processes/command.py, module_utils/temper/process.py). temper/plan/inventory.py runs Ansible.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

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


def ask(command: Sequence[str], timeout_s: float, given: bytes = b"", **environment: str) -> Answer:
    """Run a program, with `given` as its input. It has no terminal, and its children end with it.

    Raises:
        TimeoutError: it gave no answer in time.
        OSError: it cannot be started.
    """
    process = subprocess.Popen(  # noqa: S603 - names of programs are ours or the operator's
        list(command),
        stdin=subprocess.PIPE if given else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **environment},
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(given or None, timeout_s)
    except BaseException as error:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=REAP_S)
        if isinstance(error, subprocess.TimeoutExpired):
            raise TimeoutError(f"`{command[0]}` gave no answer within {timeout_s:g} s") from None
        raise
    return Answer(process.returncode, output.decode(errors="replace"), errors.decode(errors="replace"))
