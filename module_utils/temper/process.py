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
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

TIMEOUT_S = 90
KILL_TIMEOUT_S = 2
SYSTEM_PATH = "/usr/local/sbin:/usr/sbin:/sbin"
#: Far more than any program prints that is asked here, and little beside a node's memory.
MOST_BYTES = 64 * 2**20
#: How often the size of a running program's output is looked at.
LOOK_S = 0.1
MOST_SHOWN = 200
MOST_COMPLAINT = 4000
#: What reading a text that is of another form than expected raises.
MISREAD = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)

Value = TypeVar("Value")


class CommandError(Exception):
    """A program failed; the message names it, its status and its complaint."""


class OutputError(CommandError):
    """A program printed what cannot be read, or too much; the message names the program and the line."""


def parsed(program: str, text: str, read: Callable[[str], Value]) -> Value:
    """Return what `read` makes of a text that a program printed. Raises OutputError where it fails."""
    try:
        return read(text)
    except MISREAD as error:
        raise OutputError(
            f"`{program}` printed what cannot be read ({str(error)[:MOST_SHOWN]}): {shown(text)}; run it on "
            "the node to see why."
        ) from error


def each_line(program: str, text: str, read: Callable[[str], Value]) -> list[Value]:
    """Return what `read` makes of each line that is not blank. Raises OutputError with the line.

    Only a line feed ends a line: names in a line may have what str.splitlines takes for an end as well.
    """
    return [parsed(program, line, read) for line in text.split("\n") if line.strip()]


def shown(text: str) -> str:
    """Return the beginning of a text in quotes, without control characters."""
    return ascii(text[:MOST_SHOWN]) + (" ..." if len(text) > MOST_SHOWN else "")


def printable(text: str, most: int = MOST_SHOWN) -> str:
    """Return a name that somebody else has chosen in a form for people: one line, bounded."""
    clean = "".join(letter if letter.isprintable() else "?" for letter in text[:most])
    return clean + ("..." if len(text) > most else "")


def process_name(process: Path) -> str:
    """Return the name of a process, which it chose itself, from its folder in /proc. Raises OSError."""
    return printable((process / "comm").read_text(encoding="utf-8", errors="replace").rstrip("\n"))


def search_path() -> str:
    """PATH with the administrator's programs, which a login by key need not have on it."""
    return f"{os.environ.get('PATH', '/usr/bin:/bin')}:{SYSTEM_PATH}"


def which(program: str) -> str | None:
    """Return where a program is installed, or None."""
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
    grows: tuple[Path, int] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Return the finished command with its output, whatever its status. `text` is its standard input.

    `grows` is a folder that it writes to, with the bytes that this may have.

    Raises:
        OSError: it is not installed, or cannot be started.
        subprocess.TimeoutExpired: it took longer than `timeout_s` and was killed.
        OutputError: it printed more than MOST_BYTES, or wrote more than it may, and was killed.
    """
    variables = {
        **os.environ,
        "LC_ALL": "C.UTF-8",
        "DEBIAN_FRONTEND": "noninteractive",
        "PATH": search_path(),
        **(environment or {}),
    }
    with contextlib.ExitStack() as stack:
        # Only a line feed ends a line, also where a name in it has a carriage return.
        files = [
            stack.enter_context(tempfile.TemporaryFile("w+", -1, "utf-8", "\n", errors="replace"))
            for _ in range(3)
        ]
        given, output, errors = files
        given.write(text)
        given.seek(0)
        process = subprocess.Popen(  # noqa: S603 - without a shell; callers check names that come from elsewhere
            list(command), stdin=given, stdout=output, stderr=errors, env=variables
        )
        try:
            _wait_and_watch(process, command, timeout_s, (output.fileno(), errors.fileno()), grows)
        except BaseException as error:
            process.kill()
            if isinstance(error, OutputError):
                _kill_writers(output.fileno(), errors.fileno())
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(KILL_TIMEOUT_S)
            raise
        output.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(list(command), process.returncode, output.read(), errors.read())


def _wait_and_watch(
    process: subprocess.Popen[Any],
    command: Sequence[str],
    timeout_s: float,
    outputs: Sequence[int],
    grows: tuple[Path, int] | None,
) -> None:
    """Wait for the end as `wait` does. Raises OutputError where output or folder grows too large."""
    deadline = time.monotonic() + timeout_s
    ended = False
    while not ended:
        left_s = deadline - time.monotonic()
        try:
            wait(process, max(0.0, min(LOOK_S, left_s)))
            ended = True
        except subprocess.TimeoutExpired:
            if left_s <= LOOK_S:
                raise subprocess.TimeoutExpired(list(command), timeout_s) from None
        if max(os.fstat(output).st_size for output in outputs) > MOST_BYTES:
            raise OutputError(
                f"`{shlex.join(command)[:MOST_SHOWN]}` printed more than {MOST_BYTES // 2**20} MiB, which "
                "nobody expects of it, and was ended; run it on the node to see why."
            )
        if grows and folder_bytes(grows[0]) > grows[1]:
            raise OutputError(
                f"`{shlex.join(command)[:MOST_SHOWN]}` made {grows[0]} larger than {grows[1] // 2**20} MiB, "
                "and was ended."
            )


def folder_bytes(folder: Path) -> int:
    """Return how many bytes the files below a folder have; those that go away meanwhile have none."""
    total = 0
    for name, _, files in os.walk(folder):
        for file in files:
            with contextlib.suppress(FileNotFoundError):
                total += Path(name, file).lstat().st_size
    return total


def _kill_writers(*outputs: int) -> None:
    """End the children of a program that was ended: they print, too."""
    files = [os.fstat(output) for output in outputs]
    for process in filter(str.isdecimal, os.listdir("/proc")):  # noqa: PTH208 - names are all there is to know
        for descriptor in ("1", "2"):
            with contextlib.suppress(OSError):  # it has ended
                status = Path("/proc", process, "fd", descriptor).stat()
                if any(os.path.samestat(status, file) for file in files):
                    os.kill(int(process), signal.SIGKILL)


def run(
    command: Sequence[str], timeout_s: float = TIMEOUT_S, environment: Mapping[str, str] | None = None
) -> str:
    """Return what the command prints.

    Raises CommandError with its complaint when it fails, hangs or is missing.
    """
    words = shlex.join(command)
    try:
        completed = complete(command, timeout_s, environment)
    except FileNotFoundError as error:
        raise CommandError(f"`{command[0]}` is not installed on this node") from error
    except subprocess.TimeoutExpired as error:
        raise CommandError(f"`{words}` has not come to an end within {timeout_s:g} s") from error
    if completed.returncode:
        complaint = " ".join((completed.stderr or completed.stdout).split())[-MOST_COMPLAINT:]
        raise CommandError(f"`{words}` failed with status {completed.returncode}: {complaint}")
    return completed.stdout


def succeeds(command: Sequence[str]) -> bool:
    """Return whether the command is there and ends with status 0, in time."""
    try:
        return complete(command).returncode == 0
    except (OSError, subprocess.TimeoutExpired, OutputError):
        return False
