"""The scheduler's own programs: no shell, a bound, and one sentence when they give no answer."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from temper.rollout.drain.base import DrainError, one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

#: A scheduler that answers later than this is not at work.
TIMEOUT_S = 30.0
#: How long a program that was killed may hold its pipes.
REAP_S = 10.0


@dataclass(frozen=True)
class Answer:
    """What a program said."""

    status: int
    output: str
    errors: str

    @property
    def complaint(self) -> str:
        """The reason for its status, in one line."""
        return one_line(self.errors or self.output) or f"exit status {self.status}, and no word"


def ask(command: Sequence[str], timeout_s: float = TIMEOUT_S, text: str | None = None) -> Answer:
    """Run a program, with `text` as its input. Its children end with it.

    Raises:
        DrainError: it is not installed, or gives no answer in time.
    """
    # Formats of times are a user's choice in Slurm, and we compare texts.
    environment = os.environ | {"LC_ALL": "C.UTF-8", "SLURM_TIME_FORMAT": "standard"}
    try:
        process = subprocess.Popen(  # noqa: S603 - the policy's own commands; `checked` names of nodes
            list(command),
            stdin=subprocess.PIPE if text is not None else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        raise DrainError(
            f"`{command[0]}` cannot be started on the controller ({error.strerror}): install it, or say "
            f"where it is."
        ) from error
    try:
        output, errors = process.communicate(text, timeout_s)
    except BaseException as error:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=REAP_S)
        if isinstance(error, subprocess.TimeoutExpired):
            raise DrainError(f"`{_shown(command)}` gave no answer within {timeout_s:g} s.") from error
        raise
    return Answer(process.returncode, output, errors)


def output_of(command: Sequence[str], timeout_s: float = TIMEOUT_S) -> str:
    """What a program prints. Raises DrainError also where it fails, with its complaint."""
    answer = ask(command, timeout_s)
    if answer.status:
        raise DrainError(f"`{_shown(command)}` failed: {answer.complaint}")
    return answer.output


def _shown(command: Sequence[str]) -> str:
    text = shlex.join(command)
    return text if len(text) <= 120 else f"{text[:117]}..."
