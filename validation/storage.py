"""Reading storage: a file of our own or one that is there, past the page cache, in several threads.

A file of our own has no name: it is gone when its process is, however that ends.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import stat
import struct
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from validation.backends import NotRunError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import ThreadPoolExecutor

MIB = 1 << 20
#: Bytes of one read, and of what is read between two looks at the clock.
BLOCK = 4 * MIB
SECTION = 64 * BLOCK
PAGE = 4096
#: Free space that is left alone: this part of the file system, and this much at least.
KEPT_SHARE, KEPT_BYTES = 0.05, 1 << 30
MEMORY_FILE_SYSTEMS = ("tmpfs", "ramfs")
#: How caches are kept out. ZFS takes O_DIRECT for a hint, and drops nothing of its own cache when asked to:
#: nobody can tell from outside whether it read its disks (OpenZFS, zfsprops(7): direct).
DIRECT, DROPPED, UNKNOWN = "direct", "dropped", "unknown"
OWN_CACHE_FILE_SYSTEMS = ("zfs",)


@dataclass(frozen=True)
class Source:
    """An open file of `size_bytes`, whole blocks.

    `how` says what keeps reads from coming out of a cache: O_DIRECT, dropping the pages before, or UNKNOWN.
    """

    descriptor: int
    size_bytes: int
    how: str
    content: Content | None

    def seconds(self, pool: ThreadPoolExecutor, threads: int, offset: int, size_bytes: int) -> float:
        """Read a part, each thread a piece of it from start to end. Raises OSError."""
        self.forget(offset, size_bytes)
        pieces = _pieces(offset, size_bytes, threads)
        start = time.perf_counter()
        for done in [pool.submit(self._read, *piece) for piece in pieces]:
            done.result()
        return time.perf_counter() - start

    def read(self, number: int) -> bytes:
        """Block `number`, not from the page cache. Raises OSError."""
        self.forget(number * BLOCK, BLOCK)
        with mmap.mmap(-1, BLOCK) as buffer:
            _fill(self.descriptor, buffer, number * BLOCK)
            return bytes(buffer)

    def wrong(self, number: int) -> bool:
        """Whether a block is not what was written; of a foreign file, whether it differs when read again."""
        right = self.content.block(number) if self.content else self.read(number)
        return self.read(number) != right

    def forget(self, offset: int, size_bytes: int) -> None:
        """Let the page cache drop a part."""
        os.posix_fadvise(self.descriptor, offset, size_bytes, os.POSIX_FADV_DONTNEED)

    def _read(self, offset: int, size_bytes: int) -> None:
        with mmap.mmap(-1, BLOCK) as buffer:  # aligned, as O_DIRECT wants it
            for position in range(offset, offset + size_bytes, BLOCK):
                _fill(self.descriptor, buffer, position)


class Content:
    """Blocks that do not compress and of which no two pages are alike."""

    def __init__(self) -> None:
        self._random = os.urandom(BLOCK)

    def block(self, number: int) -> bytes:
        """Block `number`: random, with the number of each page in front of it."""
        block = bytearray(self._random)
        pages = BLOCK // PAGE
        for page in range(pages):
            struct.pack_into("<Q", block, page * PAGE, number * pages + page)
        return bytes(block)


@contextlib.contextmanager
def opened(path: Path, most_bytes: int, write_s: float) -> Iterator[Source]:
    """A source at `path`: the file itself, or in a folder one of our own of up to `most_bytes`.

    It is written for `write_s` at most. Raises NotRunError, with the reason, and OSError.
    """
    kind = _file_system(path)
    if kind in MEMORY_FILE_SYSTEMS:
        raise NotRunError(f"{path} is on {kind}, which is memory and no storage")
    try:
        # Before it is opened: that alone waits at a FIFO, and makes a tape rewind.
        ours = _is_folder(path, path.stat().st_mode)
        descriptor = _nameless(path) if ours else os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        raise NotRunError(f"{path} cannot be used: {error.strerror}") from error
    try:
        _is_folder(path, os.fstat(descriptor).st_mode)  # it may be another by now
        content = Content() if ours else None
        size = (
            _write(descriptor, path, content, most_bytes, write_s)
            if content
            else min(most_bytes, os.fstat(descriptor).st_size) // BLOCK * BLOCK
        )
        if size < BLOCK:
            raise NotRunError(f"{path} is smaller than {BLOCK // MIB} MiB: too little to measure")
        how = _past_the_cache(descriptor)
        yield Source(descriptor, size, UNKNOWN if kind in OWN_CACHE_FILE_SYSTEMS else how, content)
    finally:
        os.close(descriptor)


def _is_folder(path: Path, mode: int) -> bool:
    """Whether it is a folder, else a file. Raises NotRunError for anything else."""
    if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
        raise NotRunError(f"{path} is neither a folder nor a regular file: only these are read")
    return stat.S_ISDIR(mode)


def room(path: Path) -> int:
    """Bytes that may be written in a folder, so that enough stays free."""
    found = os.statvfs(path)
    kept = max(int(KEPT_SHARE * found.f_blocks * found.f_frsize), KEPT_BYTES)
    return max(0, found.f_bavail * found.f_frsize - kept)


def _nameless(folder: Path) -> int:
    """A file for reading and writing that no folder has, or not for longer than it takes to open it."""
    try:
        return os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)
    except OSError as error:
        if error.errno not in {errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL}:
            raise
    descriptor, name = tempfile.mkstemp(prefix=".temper-validation-", dir=folder)
    Path(name).unlink()
    return descriptor


def _write(descriptor: int, folder: Path, content: Content, most_bytes: int, write_s: float) -> int:
    """Write whole blocks for some time, up to what may be; how many bytes there are then."""
    allowed = min(most_bytes, room(folder))
    if allowed < BLOCK:
        raise NotRunError(f"{folder} is too full: what is free is kept free, and nothing is written to it")
    deadline, written = time.monotonic() + write_s, 0
    while written + BLOCK <= allowed and time.monotonic() < deadline:
        try:
            os.pwrite(descriptor, content.block(written // BLOCK), written)
            written += BLOCK
            if written % SECTION == 0:
                os.fdatasync(descriptor)
        except OSError as error:
            os.ftruncate(descriptor, 0)
            if error.errno in {errno.ENOSPC, errno.EDQUOT}:
                raise NotRunError(f"{folder} is full, or its quota is: {error.strerror}") from error
            raise
    os.fdatasync(descriptor)
    return written


def _past_the_cache(descriptor: int) -> str:
    """Set O_DIRECT where the file system has it."""
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_DIRECT)
        with mmap.mmap(-1, BLOCK) as buffer:
            os.preadv(descriptor, [buffer], 0)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)
        return DROPPED
    return DIRECT


def _fill(descriptor: int, buffer: mmap.mmap, offset: int) -> None:
    count = os.preadv(descriptor, [buffer], offset)
    if count != BLOCK:
        raise OSError(errno.EIO, f"a read at byte {offset} brought {count} bytes of {BLOCK}")


def _pieces(offset: int, size_bytes: int, threads: int) -> list[tuple[int, int]]:
    """Whole blocks for each thread, from start to end of its piece."""
    blocks, pieces, start = size_bytes // BLOCK, [], offset
    for thread in range(threads):
        size = (blocks * (thread + 1) // threads - blocks * thread // threads) * BLOCK
        if size:
            pieces.append((start, size))
        start += size
    return pieces


def _file_system(path: Path) -> str | None:
    """The kind of file system that a path is on."""
    kinds = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split()
        mounted_at = fields[4].encode().decode("unicode_escape")
        kinds[mounted_at] = fields[fields.index("-") + 1]
    resolved = path.resolve()
    for place in (resolved, *resolved.parents):
        if kind := kinds.get(str(place)):
            return kind
    return None
