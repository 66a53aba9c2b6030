"""Run programs: bounded in time, in English, with the administrator's programs on PATH.

A wedged GPU or a dead network file system holds a process in the kernel, where no signal reaches it, and
subprocess.run would wait for ever for what it killed. Here the wait ends all the same.
"""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import shutil
import subprocess
import tempfile
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TIMEOUT_S = 90
KILL_TIMEOUT_S = 2
SYSTEM_PATH = "/usr/local/sbin:/usr/sbin:/sbin"


class CommandError(Exception):
    """A program failed; the message names it, its status and its complaint."""


def search_path() -> str:
    """PATH with the administrator's programs, which a login by key need not have on it."""
    return f"{os.environ.get('PATH', '/usr/bin:/bin')}:{SYSTEM_PATH}"


def which(program: str) -> str | None:
    """Where a program is installed, or None."""
    return shutil.which(program, path=search_path())


def wait(process: subprocess.Popen[Any], timeout_s: float) -> None:
    """Wait for its end. Popen.wait looks for that up to 50 ms later; the kernel says it at once (Linux 5.3).

    Raises:
        subprocess.TimeoutExpired: it still runs.
    """
    try:
        descriptor = os.pidfd_open(process.pid)
    except (AttributeError, OSError):
        process.wait(timeout_s)
        return
    try:
        ended = select.poll()
        ended.register(descriptor, select.POLLIN)
        if not ended.poll(timeout_s * 1000):
            raise subprocess.TimeoutExpired(process.args, timeout_s)
    finally:
        os.close(descriptor)
    process.wait()


def complete(
    command: Sequence[str],
    timeout_s: float = TIMEOUT_S,
    environment: Mapping[str, str] | None = None,
    text: str = "",
) -> subprocess.CompletedProcess[str]:
    """The finished command with its output, whatever its status. `text` is its standard input.

    Raises:
        OSError: it is not installed, or cannot be started.
        subprocess.TimeoutExpired: it took longer than `timeout_s` and was killed.
    """
    variables = {
        **os.environ,
        "LC_ALL": "C.UTF-8",
        "DEBIAN_FRONTEND": "noninteractive",
        "PATH": search_path(),
        **(environment or {}),
    }
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(tempfile.TemporaryFile("w+", errors="replace")) for _ in range(3)]
        given, output, errors = files
        given.write(text)
        given.seek(0)
        process = subprocess.Popen(list(command), stdin=given, stdout=output, stderr=errors, env=variables)
        try:
            wait(process, timeout_s)
        except BaseException:
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(KILL_TIMEOUT_S)
            raise
        output.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(list(command), process.returncode, output.read(), errors.read())


def run(
    command: Sequence[str], timeout_s: float = TIMEOUT_S, environment: Mapping[str, str] | None = None
) -> str:
    """What the command prints; raises CommandError with its complaint when it fails, hangs or is missing."""
    shown = shlex.join(command)
    try:
        completed = complete(command, timeout_s, environment)
    except FileNotFoundError as error:
        raise CommandError(f"`{command[0]}` is not installed on this node") from error
    except subprocess.TimeoutExpired as error:
        raise CommandError(f"`{shown}` has not come to an end within {timeout_s:g} s") from error
    if completed.returncode:
        complaint = " ".join((completed.stderr or completed.stdout).split())
        raise CommandError(f"`{shown}` failed with status {completed.returncode}: {complaint}")
    return completed.stdout


def succeeds(command: Sequence[str]) -> bool:
    """Whether the command is there and ends with status 0, in time."""
    try:
        return complete(command).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
