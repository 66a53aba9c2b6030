"""Running commands, and saying what takes long."""

import contextlib
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

# A build gets namespaces of its own: nobody else sees its mounts, and when this process dies, however that
# happens, every process of the build dies with it.
ISOLATED = (
    *("setpriv", "--pdeathsig", "KILL"),
    *("unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--mount-proc"),
)


class LabError(Exception):
    """The lab cannot do what was asked; the message is for the user."""


class CommandError(LabError):
    """A command ended with this exit status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def run(command: Sequence[str], *, text: str | None = None, timeout_s: float = 600) -> str:
    """Run a short command and return its standard output.

    Args:
        command: the program and its arguments.
        text: what the program reads from its standard input.
        timeout_s: bound for a command that hangs, in seconds: a busy machine is ten times slower.

    Raises:
        CommandError: the command failed.
        LabError: it is missing or took too long.
    """
    try:
        result = subprocess.run(
            command,
            input="" if text is None else text,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except FileNotFoundError as error:
        raise LabError(f"{command[0]} is not installed.") from error
    except subprocess.TimeoutExpired as error:
        raise LabError(f"{shlex.join(command)} did not end within {timeout_s:g} s.") from error
    if result.returncode:
        said = (result.stderr or result.stdout).strip()
        message = f"{shlex.join(command)} failed with status {result.returncode}: {said}"
        raise CommandError(message, result.returncode)
    return result.stdout


def build(
    command: Sequence[str],
    log: Path,
    *,
    text: str = "",
    environment: Mapping[str, str] | None = None,
) -> None:
    """Run a long command in namespaces of its own; its output goes to a log.

    Raises:
        LabError: it failed; the message ends with the log's last lines.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as output:
        result = subprocess.run(
            [*ISOLATED, *command],
            input=text,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            text=True,
            check=False,
        )
    if result.returncode:
        raise LabError(f"{command[0]} failed with status {result.returncode}; the end of {log}:\n{tail(log)}")


def tail(path: Path, lines: int = 15) -> str:
    """The last lines of a log, indented; a sentence if there are none."""
    try:
        text = path.read_text(errors="replace").rstrip()
    except FileNotFoundError:
        text = ""
    return "\n".join(f"  | {line.rstrip()}" for line in text.splitlines()[-lines:]) or "  (it is empty)"


def say(message: str) -> None:
    """Print one line of progress."""
    print(message, flush=True)


def warn(message: str) -> None:
    """Print one line that the user should not miss."""
    print(f"Warning: {message}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def step(what: str, expected: str) -> Iterator[None]:
    """Announce something that takes long, with the time it should take, and say when it is done."""
    say(f"{what} ({expected}) ...")
    start = time.monotonic()
    yield
    say(f"  done after {time.monotonic() - start:.0f} s: {what[0].lower()}{what[1:]}")
