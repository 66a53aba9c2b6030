"""What is built once per machine and shared by all labs: built aside, then renamed into place."""

import contextlib
import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from tests.lab.process import LabError, say


@contextlib.contextmanager
def locked(path: Path, waiting: str) -> Iterator[None]:
    """Hold a lock that ends with this process; while another one has it, say so once and wait.

    Args:
        path: the lock file; it stays, since removing it would split the lock in two.
        waiting: what is said while another process, whose description follows, holds it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            say(f"{waiting} (held by process {file.read().strip() or 'unknown'}) ...")
            fcntl.flock(file, fcntl.LOCK_EX)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def digest(parts: Iterable[str | bytes]) -> str:
    """A short name for content: the parts and where each ends."""
    result = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        result.update(f"{len(data)}:".encode())
        result.update(data)
    return result.hexdigest()[:12]


def tree_parts(root: Path) -> Iterator[str | bytes]:
    """Everything in a directory that decides what a copy of it looks like, for `digest`."""
    for path in sorted(root.rglob("*")):
        if "__pycache__" in path.parts:
            continue
        yield str(path.relative_to(root))
        if path.is_symlink():
            yield str(path.readlink())
        elif path.is_file():
            yield oct(path.stat().st_mode & 0o111)
            yield path.read_bytes()


def obtain(cache: Path, name: str, build: Callable[[Path], None]) -> Path:
    """Return the directory `name` of the cache; if it is missing, have it built.

    Args:
        cache: root of the cache.
        name: what the content is and the digest of its inputs.
        build: fills the empty directory that it is given. If it fails or is killed, nothing remains but a
            directory that the next attempt removes.
    """
    result = cache / name
    if result.is_dir():
        return result
    with locked(cache / "locks" / name, f"Waiting for another process that builds {name}"):
        if result.is_dir():
            return result
        unfinished = cache / f"{name}.unfinished"
        remove_tree(unfinished)
        unfinished.mkdir(parents=True)
        build(unfinished)
        unfinished.rename(result)
    return result


def remove_tree(path: Path) -> None:
    """Remove a directory if it exists, but never what is mounted in it.

    Raises:
        LabError: something is mounted there.
    """
    resolved = path.resolve()
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        mount_point = Path(line.split()[4].replace("\\040", " "))
        if mount_point == resolved or resolved in mount_point.parents:
            raise LabError(f"{path} is not removed because {mount_point} is mounted; unmount it.")
    if path.exists():
        shutil.rmtree(path)
