"""Write files so that a reader sees all of one or none, also after a crash.

For the payload and the controller. Modules of nodes run without both: module_utils/temper/files.py.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from io import BufferedReader


#: What a file gets; a long text may come in pieces.
Content = bytes | str | Iterable[str]

#: Where reports go unless somebody says otherwise.
REPORTS = Path(__file__).resolve().parents[2] / "reports"
#: How many files the disk is asked to keep at a time; it does those together.
AT_ONCE = 16
#: How the name of a file begins that is being written. Without its own, which may have no room for more.
DRAFT = ".temper-"
#: So much of a file is read at a time.
PIECE_BYTES = 1 << 20
#: Of a name that is part of a file's name: what stands around it has room, too.
MOST_NAME_BYTES = 180


def file_stem(name: str) -> str:
    """Return a name as part of a file's name; of one that cannot be that its beginning and a checksum."""
    content = name.encode()
    usable = name.replace("/", "_")
    if len(content) <= MOST_NAME_BYTES and usable == name:
        return name
    beginning = usable.encode()[: MOST_NAME_BYTES - 11].decode(errors="ignore")
    return f"{beginning}-{hashlib.sha256(content).hexdigest()[:10]}"


def read_at_most(path: Path, most_bytes: int) -> bytes:
    """Return what a file holds. Raises OSError, also for one that holds more."""
    content = bytearray()
    with path.open("rb") as file:
        # Python takes memory for as much as is asked for, before it reads.
        while piece := file.read(PIECE_BYTES):
            content += piece
            if len(content) > most_bytes:
                raise OSError(f"{path}: expected at most {most_bytes} bytes, found more")
    return bytes(content)


def own(folder: Path) -> None:
    """Make a folder of reports for this account alone; what is in them is for nobody else. Raises OSError.

    That of the checkout loses what other accounts may. Another one that is there keeps its mode: its operator
    may publish it.
    """
    for one in reversed([one for one in (folder, *folder.parents) if not one.exists()]):
        with suppress(FileExistsError):
            one.mkdir(mode=0o700)
    if REPORTS.is_dir() and folder.resolve().is_relative_to(REPORTS.resolve()):
        _narrow(REPORTS)


def own_file(path: Path) -> None:
    """Make a file for this account alone, or take from one that is there what others may. Raises OSError."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        if path.is_file():
            _narrow(path)


def _narrow(path: Path) -> None:
    mode = path.stat().st_mode
    if mode & 0o077:
        # Whoever else works with it does so by the rights of its owner.
        with suppress(PermissionError):
            path.chmod(mode & 0o7700)


def ensure_writable(path: Path) -> None:
    """Make sure before the work that a file can be written after it, and that no old one is taken for it.

    Raises OSError.
    """
    if path.exists() and not path.is_file():
        raise OSError(f"{path}: expected a file, or none yet")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=DRAFT):
            path.unlink(missing_ok=True)
    except OSError as error:
        raise OSError(f"{path}: expected a place that can be written to: {error.strerror}") from error


def write_atomically(path: Path, content: Content, mode: int = 0o644) -> None:
    """Write a file so that a reader sees all of it or the old one, also after a crash. Raises OSError."""
    write_all([(path, content)], mode)


def write_all(files: Iterable[tuple[Path, Content]], mode: int = 0o644) -> list[Path]:
    """Write files as `write_atomically` does, each seen when all are written; returns them. Raises OSError.

    A disk takes milliseconds to keep a file, however short: those of a fleet are kept several at a time.
    """
    written: list[Path] = []
    drafts: deque[tuple[str, Path]] = deque()
    try:
        for path, content in files:
            with _naming(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                handle, draft = tempfile.mkstemp(dir=path.parent, prefix=DRAFT)
                drafts.append((draft, path))
                with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
                    _fill(file, content, mode)
        _keep(drafts)
        while drafts:
            draft, path = drafts[0]
            with _naming(path):
                os.replace(draft, path)  # noqa: PTH105 - a name, not a Path
            drafts.popleft()
            written.append(path)
    finally:
        for draft, _ in drafts:
            os.unlink(draft)  # noqa: PTH108 - likewise
    return written


def _fill(file: TextIO, content: Content, mode: int) -> None:
    if isinstance(content, bytes):
        file.buffer.write(content)
    else:
        file.writelines([content] if isinstance(content, str) else content)
    os.fchmod(file.fileno(), mode)


def _keep(drafts: Collection[tuple[str, Path]]) -> None:
    """Have the disk keep them. Not by one sync of the machine, which waits for any server that is away."""
    if len(drafts) == 1:
        _keep_one(*drafts)
        return
    # Late: a node writes one file.
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(AT_ONCE) as pool:
        for _ in pool.map(_keep_one, drafts):
            pass


def _keep_one(written: tuple[str, Path]) -> None:
    draft, path = written
    with _naming(path):
        file = os.open(draft, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)


def open_plain(path: Path) -> BufferedReader:
    """Open a file for reading. Raises OSError also for a link and a pipe, on which a reader would wait.

    For folders in which others write.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    file = os.fdopen(handle, "rb")
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        file.close()
        raise OSError(f"{path}: expected a file, found something else")
    return file


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno is None:  # named already
            raise
        raise OSError(f"{path}: cannot be written: {error.strerror}") from error
