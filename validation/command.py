"""Run a program of the system with a time limit that holds.

subprocess.run waits for a program that it has killed, for ever if that sleeps in the kernel: nvidia-smi does
when a GPU is wedged, which is when its answer matters most.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass

#: How long a killed program may take to go away.
REAP_S = 2.0


class CommandTimeoutError(Exception):
    """A program gave no answer in time; the message says so, and whether it could be ended."""


@dataclass(frozen=True)
class Done:
    """How a program ended and what it printed, undecodable bytes replaced."""

    status: int
    output: str
    errors: str


def run(command: list[str], timeout_s: float) -> Done:
    """Run a program to its end. Raises OSError where it cannot be started, CommandTimeoutError."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=os.environ | {"LC_ALL": "C.UTF-8"},
    )
    try:
        output, errors = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        process.kill()
        stuck = "" if _ends(process) else "; it cannot be killed: it is stuck in the kernel"
        raise CommandTimeoutError(f"no answer within {timeout_s:.0f} s{stuck}") from error
    except BaseException:
        process.kill()
        _ends(process)
        raise
    return Done(process.returncode, output, errors)


def _ends(process: subprocess.Popen[str]) -> bool:
    for pipe in (process.stdout, process.stderr):
        if pipe:
            pipe.close()
    try:
        process.wait(REAP_S)
    except subprocess.TimeoutExpired:
        return False
    return True
