"""Temper's modules that this program uses: installed beside it, as the node's own Python has no Ansible."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from ansible.module_utils.temper import files, lease, process, records
else:
    try:
        from ansible.module_utils.temper import files, lease, process, records
    except ImportError:
        import files
        import lease
        import process
        import records

__all__ = ["files", "lease", "process", "records"]

PROGRAMS = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
#: How `timeout` ends where it had to end a program.
ENDED = (124, 137)


class EndedError(Exception):
    """A program went beyond a bound, and was ended; the message is the end of a sentence."""


def run(
    command: list[str],
    timeout_s: float,
    environment: dict[str, str],
    *,
    folder: str = "/",
    text: str = "",
    grows: tuple[Path, int] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program with nothing else in its environment; `timeout` ends it with what it has started.

    `text` is its standard input, `grows` a folder that it writes to, with the bytes that this may have.
    Raises EndedError, OSError.
    """
    variables = [f"{name}={value}" for name, value in environment.items()]
    bounds = ["timeout", "--kill-after=10", f"{timeout_s:g}"]
    whole = ["env", "-i", f"--chdir={folder}", *variables, *bounds, *command]
    try:
        done = process.complete(whole, timeout_s + 30, text=text, grows=grows)
    except (subprocess.TimeoutExpired, process.OutputError) as error:
        raise EndedError("said or wrote too much, or could not be ended in time") from error
    if done.returncode in ENDED:
        raise EndedError(f"did not end within {timeout_s:g} s, or was killed")
    return done
