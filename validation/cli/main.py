"""Command line: measure a node, explain findings, build the one-file payload.

Exit status: 0 passed (degraded counts as passed unless --fail-on-degraded), 1 a GPU or the node failed, 2 the
environment kept something required from running, or the command line is wrong, 130 interrupted. Status 1 is
never anything else: a full disk or a closed pipe is 2.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from validation.cli import arguments
from validation.model.contract import ContractError, UsageError
from validation.model.printable import printable
from validation.processes.interrupts import end_on_signals
from validation.verdict.judge import EXIT_ENVIRONMENT

INTERRUPTED = 130
#: What the payload no longer does: it measures and judges one node.
MOVED = ("report", "compare", "accept", "groups", "propose")


def main(command_line: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A name that a terminal's encoding does not have costs no verdict.
            stream.reconfigure(errors="backslashreplace")
    words = sys.argv[1:] if command_line is None else command_line
    if words and words[0] in MOVED:
        _tell(f"validation: {words[0]} is a command of the controller: temper {words[0]}\n")
        return EXIT_ENVIRONMENT
    options = arguments.parser().parse_args(words)
    end_on_signals()
    try:
        status: int = options.function(options)
        if sys.stdout is not None:
            sys.stdout.flush()
    except (UsageError, ContractError, OSError) as error:
        _tell(printable(f"validation: {error}\n"))
        status = EXIT_ENVIRONMENT
    except KeyboardInterrupt:
        _tell("validation: interrupted; every process of the run was ended and no result written\n")
        status = INTERRUPTED
    except Exception:  # noqa: BLE001 - Python would end with 1, which says that a GPU failed
        _tell(f"{traceback.format_exc()}validation: this is a fault of this program; nothing was judged\n")
        status = EXIT_ENVIRONMENT
    _close_output()
    return status


def _tell(text: str) -> None:
    """Say what went wrong, if anybody hears it."""
    with contextlib.suppress(OSError, AttributeError):
        sys.stderr.write(text)
        sys.stderr.flush()


def _close_output() -> None:
    """Python flushes its streams once more at its end, and would end with 120 where nobody reads them."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            with contextlib.suppress(OSError), Path(os.devnull).open("w") as nowhere:
                os.dup2(nowhere.fileno(), stream.fileno())
