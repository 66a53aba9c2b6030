"""Reading and writing storage: a file of our own or one that is there, past the page cache, in threads.

A file of our own has no name: it is gone when its process is, however that ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import mmap
import os
import random
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from validation.model.not_run import NotRunError

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

MIB = 1 << 20
#: Bytes of one read, and of what is read between two looks at the clock.
BLOCK = 4 * MIB
SECTION = 64 * BLOCK
#: Less is too little to measure: a block for each of eight threads.
LEAST_BYTES = 8 * BLOCK
PAGE = 4096
#: How often it is looked at whether threads go on to read; it does not delay them.
LOOK_S = 1.0
#: Free space that is left alone: this part of the file system, and this much at least.
KEPT_SHARE, KEPT_BYTES = 0.05, 1 << 30
MEMORY_FILE_SYSTEMS = ("tmpfs", "ramfs", "devtmpfs")
#: How caches are kept out. ZFS takes O_DIRECT for a hint, and drops nothing of its own cache when asked to:
#: nobody can tell from outside whether it read its disks (OpenZFS, zfsprops(7): direct). Nor what a process
#: on this node, which is what FUSE asks for data, has in its memory.
DIRECT, DROPPED, UNKNOWN = "direct", "dropped", "unknown"
OWN_CACHE_FILE_SYSTEMS = ("zfs", "fuse")


@dataclass(frozen=True)
class Source:
    """An open file of `size_bytes`, whole blocks.

    `how` says what keeps reads from coming out of a cache: O_DIRECT, dropping the pages before, or UNKNOWN.
    """

    descriptor: int
    size_bytes: int
    how: str
    content: Content | None
    changed_ns: int

    def seconds(
        self,
        pool: ThreadPoolExecutor,
        threads: int,
        offset: int,
        size_bytes: int,
        go_on: Callable[[], None],
    ) -> float:
        """Read a part, each thread a piece of it from start to end. Raises OSError.

        `go_on` is called while blocks arrive.
        """
        self.forget(offset, size_bytes)
        pieces = _pieces(offset, size_bytes, threads)
        with contextlib.ExitStack() as stack:
            # Their pages are there before: to ask the kernel for them is no reading.
            buffers = [stack.enter_context(_buffer()) for _ in pieces]
            reads = [partial(self._read, *piece, into) for piece, into in zip(pieces, buffers, strict=True)]
            return _together(pool, reads, go_on)

    def write_seconds(
        self,
        pool: ThreadPoolExecutor,
        threads: int,
        offset: int,
        size_bytes: int,
        go_on: Callable[[], None],
    ) -> float:
        """Write a part of our own file, each thread a piece of it, until the storage has it. Raises OSError.

        What is written is new each time, and nobody knows it afterwards: see `restore`.
        """
        assert self.content is not None
        pieces = _pieces(offset, size_bytes, threads)
        with contextlib.ExitStack() as stack:
            buffers = [stack.enter_context(_buffer()) for _ in pieces]
            for number, buffer in enumerate(buffers):
                buffer[:] = self.content.block(number)
            writes = [partial(self._write, *piece, of) for piece, of in zip(pieces, buffers, strict=True)]
            seconds = _together(pool, writes, go_on)
            start = time.perf_counter()
            os.fdatasync(self.descriptor)
            return seconds + time.perf_counter() - start

    def restore(self, number: int) -> None:
        """Write the known content of a block of our own file again, so that `wrong` can tell."""
        assert self.content is not None
        with _buffer() as buffer:  # aligned
            buffer[:] = self.content.block(number)
            _write_block(self.descriptor, buffer, number * BLOCK)

    def random_seconds(
        self,
        pool: ThreadPoolExecutor,
        threads: int,
        count: int,
        size_bytes: int,
        go_on: Callable[[], None],
    ) -> float:
        """Read so many pieces of `size_bytes` in each thread, anywhere in the file. Raises OSError."""
        self.forget(0, self.size_bytes)
        # Else the kernel reads ahead, and so more than it is asked for.
        os.posix_fadvise(self.descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        try:
            with contextlib.ExitStack() as stack:
                buffers = [stack.enter_context(_buffer(size_bytes)) for _ in range(threads)]
                places = [
                    [
                        size_bytes * random.randrange(self.size_bytes // size_bytes)  # noqa: S311 - a workload
                        for _ in range(count)
                    ]
                    for _ in range(threads)
                ]
                reads = [
                    partial(self._read_at, some, into) for some, into in zip(places, buffers, strict=True)
                ]
                return _together(pool, reads, go_on)
        finally:
            os.posix_fadvise(self.descriptor, 0, 0, os.POSIX_FADV_NORMAL)

    def read(self, number: int) -> bytes:
        """Block `number`, not from the page cache. Raises OSError."""
        self.forget(number * BLOCK, BLOCK)
        with _buffer() as buffer:
            _fill(self.descriptor, buffer, number * BLOCK)
            return bytes(buffer)

    def wrong(self, number: int) -> bool:
        """Return whether a block is not what was written.

        Of a foreign file, whether it differs when read again.
        """
        right = self.content.block(number) if self.content else self.read(number)
        return self.read(number) != right

    @property
    def has_changed(self) -> bool:
        """Whether somebody has written to it since it was opened. Of our own nobody else knows."""
        return self.content is None and os.fstat(self.descriptor).st_ctime_ns != self.changed_ns

    def forget(self, offset: int, size_bytes: int) -> None:
        """Let the page cache drop a part."""
        os.posix_fadvise(self.descriptor, offset, size_bytes, os.POSIX_FADV_DONTNEED)

    def _read(self, offset: int, size_bytes: int, buffer: mmap.mmap, arrived: list[int]) -> None:
        for position in range(offset, offset + size_bytes, BLOCK):
            _fill(self.descriptor, buffer, position)
            arrived.append(position)

    def _read_at(self, places: list[int], buffer: mmap.mmap, arrived: list[int]) -> None:
        for place in places:
            _fill(self.descriptor, buffer, place)
            arrived.append(place)

    def _write(self, offset: int, size_bytes: int, buffer: mmap.mmap, written: list[int]) -> None:
        for position in range(offset, offset + size_bytes, BLOCK):
            # Some bytes of each page are new: no storage keeps a page once for many.
            for place in range(8):
                buffer[place::PAGE] = os.urandom(BLOCK // PAGE)
            _write_block(self.descriptor, buffer, position)
            written.append(position)


class Content:
    """Blocks that do not compress and of which no two sectors are alike: nothing is stored only once."""

    def __init__(self) -> None:
        self._key = os.urandom(16)
        self._random = int.from_bytes(os.urandom(BLOCK), "little")

    def block(self, number: int) -> bytes:
        """Block `number`: each of its pages is another random one, turned by a random one of its own."""
        mask = hashlib.shake_128(self._key + number.to_bytes(8, "little")).digest(PAGE)
        return (self._random ^ int.from_bytes(mask * (BLOCK // PAGE), "little")).to_bytes(BLOCK, "little")


@contextlib.contextmanager
def own_file(folder: Path, size_bytes: int) -> Iterator[tuple[int, bool]]:
    """Provide an empty file of our own, without a name, in a folder with room for so many bytes.

    Its descriptor, and whether its file system has a cache of its own. Raises NotRunError, with the reason.
    """
    try:
        if not _is_folder(folder, folder.stat().st_mode):
            raise NotRunError(f"{folder} is a file, and files are only read: name a folder")
        descriptor = _nameless(folder)
    except OSError as error:
        raise NotRunError(f"{folder} cannot be used: {error.strerror}") from error
    try:
        kind = _file_system(descriptor)
        if kind in MEMORY_FILE_SYSTEMS:
            raise NotRunError(f"{folder} is on {kind}, which is memory and no storage")
        if (allowed := room(folder)) < size_bytes:
            raise NotRunError(
                f"{folder} is too full: {size_bytes / 1e9:.2g} GB needed, {allowed / 1e9:.2g} GB may be used"
            )
        yield descriptor, kind.startswith(OWN_CACHE_FILE_SYSTEMS)
    except OSError as error:
        if reason := why_full(folder, error):
            raise NotRunError(reason) from error
        raise
    finally:
        os.close(descriptor)


def first_rate(descriptor: int, go_on: Callable[[], None]) -> float:
    """Bytes a second of a small write to a file of our own, until the storage has it. Raises OSError."""
    content = Content()
    blocks = [content.block(number) for number in range(LEAST_BYTES // BLOCK)]
    start = time.perf_counter()
    for number, block in enumerate(blocks):
        _write_block(descriptor, block, number * BLOCK)
        go_on()
    os.fdatasync(descriptor)
    return LEAST_BYTES / (time.perf_counter() - start)


def dropped(descriptor: int, size_bytes: int) -> str:
    """Have the page cache drop a file that the storage has: DROPPED, or UNKNOWN where pages stay."""
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    return UNKNOWN if _is_cached(descriptor, size_bytes) else DROPPED


def why_full(folder: Path, error: OSError) -> str | None:
    """Return what to say of an error that means that there is no room for more; None for any other."""
    if error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
        return f"{folder} is full, or a limit or quota is: {error.strerror}"
    return None


@contextlib.contextmanager
def opened(
    path: Path, most_bytes: int, write_s: float, go_on: Callable[[], None], *, through_cache: bool = False
) -> Iterator[Source]:
    """Open a source at `path`: the file itself, or in a folder one of our own of up to `most_bytes`.

    It is written for `write_s` at most; `go_on` is called block by block. `through_cache`: as programs read
    it, of which the kernel reads ahead, though nothing of it is in the cache before. Raises NotRunError, with
    the reason, and OSError.
    """
    try:
        # Before it is opened: that alone waits at a FIFO, and makes a tape rewind.
        ours = _is_folder(path, path.stat().st_mode)
        descriptor = _nameless(path) if ours else os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        raise NotRunError(f"{path} cannot be used: {error.strerror}") from error
    try:
        _is_folder(path, os.fstat(descriptor).st_mode)  # it may be another by now
        kind = _file_system(descriptor)
        if kind in MEMORY_FILE_SYSTEMS:
            raise NotRunError(f"{path} is on {kind}, which is memory and no storage")
        content = Content() if ours else None
        size = (
            _write(descriptor, path, content, most_bytes, write_s, go_on)
            if content
            else _found(descriptor, path, most_bytes)
        )
        how = DROPPED if through_cache else _past_the_cache(descriptor)
        # fuse, fuseblk, fuse.juicefs and the like
        if kind.startswith(OWN_CACHE_FILE_SYSTEMS) or (how == DROPPED and _is_cached(descriptor, size)):
            how = UNKNOWN
        yield Source(descriptor, size, how, content, os.fstat(descriptor).st_ctime_ns)
    finally:
        os.close(descriptor)


def _is_folder(path: Path, mode: int) -> bool:
    """Return whether it is a folder, else a file. Raises NotRunError for anything else."""
    if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
        raise NotRunError(f"{path} is neither a folder nor a regular file: only these are read")
    return stat.S_ISDIR(mode)


def room(path: Path) -> int:
    """Bytes that may be written in a folder, so that enough stays free."""
    found = os.statvfs(path)
    pool = max(int(KEPT_SHARE * found.f_blocks * found.f_frsize), KEPT_BYTES)
    return max(0, found.f_bavail * found.f_frsize - pool)


def _nameless(folder: Path) -> int:
    """Return a file to read and write that no folder has, or only for as long as it takes to open it."""
    try:
        return os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)
    except OSError as error:
        if error.errno not in {errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL}:
            raise
    descriptor, name = tempfile.mkstemp(prefix=".temper-validation-", dir=folder)
    Path(name).unlink()
    return descriptor


def _found(descriptor: int, path: Path, most_bytes: int) -> int:
    """Return how much of a file that is there to read: whole blocks, all of them really stored."""
    size = min(most_bytes, os.fstat(descriptor).st_size) // BLOCK * BLOCK
    if size < LEAST_BYTES:
        raise NotRunError(f"{path} is smaller than {LEAST_BYTES // MIB} MiB: too little to measure")
    with contextlib.suppress(OSError):  # not every file system tells
        if (hole := os.lseek(descriptor, 0, os.SEEK_HOLE)) < size:
            raise NotRunError(
                f"{path} has a hole at byte {hole}, for which nothing is read: name a file without any"
            )
    return size


def _write(
    descriptor: int,
    folder: Path,
    content: Content,
    most_bytes: int,
    write_s: float,
    go_on: Callable[[], None],
) -> int:
    """Write whole blocks for some time, up to what may be; how many bytes there are then."""
    allowed = min(most_bytes, room(folder))
    if allowed < LEAST_BYTES:
        raise NotRunError(f"{folder} is too full: what is free is kept free, and nothing is written to it")
    started, written, portion = time.monotonic(), 0, BLOCK
    deadline = started + write_s
    try:
        while written + BLOCK <= allowed and time.monotonic() < deadline:
            portion_started, end = time.monotonic(), min(written + portion, allowed // BLOCK * BLOCK)
            while written < end and time.monotonic() < deadline:
                _write_block(descriptor, content.block(written // BLOCK), written)
                written += BLOCK
                go_on()
            # Each portion twice the last one, or as slow storage needs minutes for what the cache took.
            os.fdatasync(descriptor)
            portion = min(2 * portion, SECTION)
            if time.monotonic() + (time.monotonic() - portion_started) > deadline:
                break
    except OSError as error:
        os.ftruncate(descriptor, 0)
        if reason := why_full(folder, error):
            raise NotRunError(reason) from error
        raise
    if written < LEAST_BYTES:
        spent = time.monotonic() - started
        raise NotRunError(
            f"only {written // MIB} MiB could be written to {folder} in {spent:.0f} s, too little to measure"
        )
    return written


def _write_block(descriptor: int, block: bytes | mmap.mmap, offset: int) -> None:
    """Write all of it: a disk that gets full takes a part first, and says so only the next time."""
    with memoryview(block) as whole:
        done = 0
        while done < len(whole):
            done += os.pwrite(descriptor, whole[done:], offset + done)


def _together(
    pool: ThreadPoolExecutor, jobs: Sequence[Callable[[list[int]], None]], go_on: Callable[[], None]
) -> float:
    """Return seconds that jobs take in threads.

    Each adds to a list what it has done: while it grows, they go on.
    """
    done: list[int] = []
    start = time.perf_counter()
    running = [pool.submit(job, done) for job in jobs]
    before = 0
    while wait(running, LOOK_S).not_done:
        if len(done) > before:
            go_on()
        before = len(done)
    seconds = time.perf_counter() - start
    for one in running:
        one.result()
    return seconds


def _past_the_cache(descriptor: int) -> str:
    """Set O_DIRECT where the file system has it."""
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_DIRECT)
        with _buffer() as buffer:
            os.preadv(descriptor, [buffer], 0)
    except OSError as error:
        if error.errno not in {errno.EINVAL, errno.EOPNOTSUPP}:
            raise
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)
        return DROPPED
    return DIRECT


def _is_cached(descriptor: int, size_bytes: int) -> bool:
    """Return whether pages stay in the cache that it was asked to drop: those of files that somebody maps do.

    Of a file of another user the kernel tells nobody but root which pages those are. Then pages are asked
    for, which begins to read them, and fast storage may bring them before the kernel answers: so several are,
    and from the end to the start, as no read-ahead of one brings another then.
    """
    os.posix_fadvise(descriptor, 0, size_bytes, os.POSIX_FADV_DONTNEED)
    offsets = [size_bytes * quarter // 4 for quarter in (3, 2, 1)]
    if not _are_resident(descriptor, size_bytes, offsets):
        return False
    with contextlib.suppress(OSError):  # BlockingIOError: not there; others: not every file system tells
        for offset in offsets:
            os.preadv(descriptor, [bytearray(PAGE)], offset, os.RWF_NOWAIT)
        return True
    return False


def _are_resident(descriptor: int, size_bytes: int, offsets: Sequence[int]) -> bool:
    """Return whether all these pages of a file are in the cache, by mincore(2).

    True where that does not say.
    """
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    length, found = ctypes.c_size_t(size_bytes), ctypes.c_ubyte()
    address = libc.mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, ctypes.c_long(0))
    if address in (None, ctypes.c_void_p(-1).value):
        return True
    try:
        return all(
            libc.mincore(ctypes.c_void_p(address + offset), ctypes.c_size_t(PAGE), ctypes.byref(found)) != 0
            or found.value & 1
            for offset in offsets
        )
    finally:
        libc.munmap(ctypes.c_void_p(address), length)


def _buffer(size_bytes: int = BLOCK) -> mmap.mmap:
    """Memory for a block: aligned, as O_DIRECT wants it, with all its pages."""
    return mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE)


def _fill(descriptor: int, buffer: mmap.mmap, offset: int) -> None:
    with memoryview(buffer) as whole:
        done = 0
        while done < len(whole):
            count = os.preadv(descriptor, [whole[done:]], offset + done)
            if not count:
                if os.fstat(descriptor).st_size < offset + len(whole):
                    raise NotRunError("the file became shorter while it was read")
                raise OSError(errno.EIO, f"a read at byte {offset} brought {done} bytes of {len(whole)}")
            done += count


def _pieces(offset: int, size_bytes: int, threads: int) -> list[tuple[int, int]]:
    """Whole blocks for each thread, from start to end of its piece."""
    blocks, pieces, start = size_bytes // BLOCK, [], offset
    for thread in range(threads):
        size = (blocks * (thread + 1) // threads - blocks * thread // threads) * BLOCK
        if size:
            pieces.append((start, size))
        start += size
    return pieces


def _file_system(descriptor: int) -> str:
    """Return the kind of file system that an open file is on; empty where the kernel does not say."""
    own = f"/proc/self/fdinfo/{descriptor}"
    mount = next(
        (line.split()[1] for line in Path(own).read_text().splitlines() if line.startswith("mnt_id:")), ""
    )
    # As bytes: mounted folders may have any name.
    for line in Path("/proc/self/mountinfo").read_bytes().split(b"\n"):
        fields = line.split(b" ")
        if fields[0].decode() == mount:
            return fields[fields.index(b"-") + 1].decode()
    return ""
