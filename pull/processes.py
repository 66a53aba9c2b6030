"""Programs that a node starts for its pull: bounded in time, in what they say, and in what they write.

What they say may come from a server, which can talk for ever.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import selectors
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import IO

PROGRAMS = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
#: A list of all files of a repository has room in it.
MOST_OUTPUT = 32 << 20
#: No file that a program writes may be larger: a repository of text has no such pack.
LARGEST_FILE = 1 << 30
CHUNK = 1 << 16
LOOK_S = 1.0


class OutputError(Exception):
    """A program said or wrote more than it may, and was ended; the message is a sentence."""


def run(
    command: list[str],
    environment: Mapping[str, str],
    timeout_s: float,
    given: bytes = b"",
    cwd: Path = Path("/"),
    *,
    most: int = MOST_OUTPUT,
    tail: bool = False,
    into: IO[bytes] | None = None,
    grows: tuple[Path, int] | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """Run a program, which ends with all that it has started when it goes beyond a bound.

    It may say `most` bytes on both streams together; with `tail` it goes on, and the last bytes of each are
    kept. Its standard output may go `into` a file, which the limit of a file's size bounds. `grows` is a
    folder that it writes to, with the bytes that this may come to have.

    Raises:
        OSError: it cannot be started.
        OutputError: it was ended because it said or wrote too much.
        subprocess.TimeoutExpired: it was ended because it took longer than `timeout_s`.
    """
    with subprocess.Popen(  # noqa: S603 - git and ssh-keygen; names of objects are checked where they are read
        command,
        stdin=subprocess.PIPE,
        stdout=into or subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(environment),
        cwd=cwd,
        start_new_session=True,
        preexec_fn=limit_files,  # noqa: PLW1509 - this program has one thread
    ) as process:
        streams = [stream for stream in (process.stdout, process.stderr) if stream]
        said = {stream: bytearray() for stream in streams}
        end_s = time.monotonic() + timeout_s
        try:
            exchange(process, given, said, most=most, tail=tail, end_s=end_s, grows=grows)
            process.wait(max(0.0, end_s - time.monotonic()))
        except BaseException as error:
            end(process)
            if isinstance(error, subprocess.TimeoutExpired):
                raise subprocess.TimeoutExpired(command, timeout_s) from None
            raise
    out, err = (bytes(said[one]) if one else b"" for one in (process.stdout, process.stderr))
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def exchange(
    process: subprocess.Popen[bytes],
    given: bytes,
    said: Mapping[IO[bytes], bytearray],
    *,
    most: int,
    tail: bool,
    end_s: float,
    grows: tuple[Path, int] | None,
) -> None:
    """Give a program its input and collect what it says, until it says no more. Raises as `run` does."""
    stdin = cast("IO[bytes]", process.stdin)
    rest, looked_s = memoryview(given), time.monotonic()
    with selectors.DefaultSelector() as selector:
        for stream in said:
            selector.register(stream, selectors.EVENT_READ)
        if rest:
            selector.register(stdin, selectors.EVENT_WRITE)
        else:
            stdin.close()
        while selector.get_map():
            now_s = time.monotonic()
            if now_s >= end_s:
                raise subprocess.TimeoutExpired(process.args, 0)
            if grows and now_s - looked_s >= LOOK_S:
                looked_s = now_s
                require_room(*grows)
            for key, _ in selector.select(min(LOOK_S, end_s - now_s)):
                if key.fileobj is stdin:
                    with contextlib.suppress(BrokenPipeError):
                        rest = rest[os.write(key.fd, rest[: select.PIPE_BUF]) :]
                        if rest:
                            continue
                    selector.unregister(stdin)
                    stdin.close()
                elif data := os.read(key.fd, CHUNK):
                    kept = said[key.fileobj]  # type: ignore[index]  # what was registered above
                    kept += data
                    if tail and len(kept) > 2 * most:
                        del kept[:-most]
                    elif not tail and sum(map(len, said.values())) > most:
                        raise OutputError(f"it said more than {size(most)}, and was ended")
                else:
                    selector.unregister(key.fileobj)


def require_room(folder: Path, most: int) -> None:
    """Refuse a folder that has more bytes than it may. Raises OutputError."""
    if folder_bytes(folder) > most:
        raise OutputError(f"{folder} grew beyond {size(most)}, and it was ended")


def folder_bytes(folder: Path) -> int:
    """How many bytes the files below a folder have; those that go away meanwhile have none."""
    total = 0
    for name, _, files in os.walk(folder):
        for file in files:
            with contextlib.suppress(FileNotFoundError):
                total += Path(name, file).lstat().st_size
    return total


def size(number: int) -> str:
    """A number of bytes for people."""
    return f"{number >> 20} MiB" if number >> 20 else f"{number} bytes"


def end(process: subprocess.Popen[bytes]) -> None:
    """End a program with all that it has started.

    Ansible's processes for nodes have sessions of their own, and would go on with the repair.
    """
    below = descendants(process.pid)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for one in below:
        with contextlib.suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)
    process.wait()


def descendants(process_id: int) -> list[int]:
    """The processes that a process has started, and those that they have."""
    found = []
    for path in Path(f"/proc/{process_id}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # it has ended
            for child in map(int, path.read_text().split()):
                found += [child, *descendants(child)]
    return found


def limit_files() -> None:
    """Keep what is started from filling the disk with one file."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST_FILE, LARGEST_FILE))
