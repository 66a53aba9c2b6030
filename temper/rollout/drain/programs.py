"""The scheduler's own programs: no shell, a bound, and one sentence when they give no answer."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from temper.base import programs
from temper.base.programs import Answer
from temper.rollout.drain.base import DrainError

#: A scheduler that answers later than this is not at work.
TIMEOUT_S = 30.0


def ask(command: Sequence[str], timeout_s: float = TIMEOUT_S) -> Answer:
    """Run a program of the scheduler. Raises DrainError where it is not installed, or gives no answer."""
    try:
        # Formats of times are a user's choice in Slurm, and we compare texts.
        return programs.ask(command, timeout_s, LC_ALL="C.UTF-8", SLURM_TIME_FORMAT="standard")
    except TimeoutError as error:
        raise DrainError(f"`{_shown(command)}` gave no answer within {timeout_s:g} s.") from error
    except programs.EndlessError as error:
        raise DrainError(f"{error}.") from error
    except OSError as error:
        raise DrainError(
            f"`{command[0]}` cannot be started on the controller ({error.strerror}): install it, or say "
            f"where it is."
        ) from error


def output_of(command: Sequence[str], timeout_s: float = TIMEOUT_S) -> str:
    """Return what a program prints. Raises DrainError also where it fails, with its complaint."""
    answer = ask(command, timeout_s)
    if answer.status:
        raise DrainError(f"`{_shown(command)}` failed: {answer.complaint}")
    return answer.output


def _shown(command: Sequence[str]) -> str:
    text = shlex.join(command)
    return text if len(text) <= 120 else f"{text[:117]}..."
