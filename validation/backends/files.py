"""A DataLoader over the files of a folder: read past the page cache, handed over as bytes."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from validation.backends.protocol import Piece
from validation.model.not_run import NotRunError

#: A sample is a file, or so much of a larger one: a shard holds many samples.
PIECE_BYTES = 1 << 20
#: So many are enough to be read again only after a while; and so many entries of folders are looked at.
MOST_PIECES, MOST_ENTRIES = 4096, 100_000


@dataclass(frozen=True)
class Found:
    """Pieces of files, in an order of chance that is always the same, and when each file was changed.

    By the time that nobody can set (ctime): who writes there must not make the storage look broken.
    """

    pieces: tuple[Piece, ...]
    changed_ns: dict[str, int]

    @property
    def mean_bytes(self) -> float:
        """Of a sample."""
        return sum(piece.size_bytes for piece in self.pieces) / len(self.pieces)

    def has_changed(self) -> bool:
        """Return whether somebody has written to one of the files, or taken it away, since."""
        try:
            return any(os.stat(path).st_ctime_ns != then for path, then in self.changed_ns.items())  # noqa: PTH116
        except OSError:
            return True


def found(folder: Path, least: int, go_on: Callable[[], None]) -> Found:
    """Return the regular files below a folder, in pieces; links are not followed. Raises NotRunError."""
    try:
        if not stat.S_ISDIR(folder.stat().st_mode):
            raise NotRunError(f"{folder} is no folder: name one with files of training data")
        pieces, changed = _pieces(folder, go_on)
    except OSError as error:
        raise NotRunError(f"{folder} cannot be used: {error.strerror}") from error
    if len(pieces) < least:
        raise NotRunError(
            f"{folder} has {len(pieces)} files, or MiB of larger ones, that can be read: fewer than {least}"
        )
    random.Random(24).shuffle(pieces)  # noqa: S311 - a workload
    return Found(tuple(pieces), changed)


def _pieces(folder: Path, go_on: Callable[[], None]) -> tuple[list[Piece], dict[str, int]]:
    pieces: list[Piece] = []
    changed: dict[str, int] = {}
    entries, left = 0, [os.fspath(folder)]
    # Not os.walk: its users may have made folders that are nested deeper than it gets, or in any number.
    while left:
        go_on()
        parent, below = left.pop(), []
        for name in _names(parent):
            entries += 1
            if len(pieces) >= MOST_PIECES or entries > MOST_ENTRIES:
                return pieces[:MOST_PIECES], changed
            path = os.path.join(parent, name)  # noqa: PTH118 - of a hundred thousand
            with contextlib.suppress(OSError):  # it has gone
                status = os.lstat(path)
                if stat.S_ISDIR(status.st_mode):
                    below.append(path)
                elif stat.S_ISREG(status.st_mode) and status.st_size and os.access(path, os.R_OK):
                    changed[path] = status.st_ctime_ns
                    pieces += [
                        Piece(path, start, min(PIECE_BYTES, status.st_size - start))
                        for start in range(0, min(status.st_size, MOST_PIECES * PIECE_BYTES), PIECE_BYTES)
                    ]
        left += reversed(below)
    return pieces, changed


def _names(folder: str) -> list[str]:
    """Return what is in a folder, sorted, or its first part; nothing where it cannot be read."""
    with contextlib.suppress(OSError), os.scandir(folder) as found:
        return sorted(entry.name for entry in itertools.islice(found, MOST_ENTRIES + 1))
    return []


def read(piece: Piece) -> bytearray:
    """Return a piece of a file, not from the page cache.

    Raises OSError, also where it is not there any more.
    """
    # Nothing waits at a pipe that took the file's place.
    descriptor = os.open(piece.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        os.posix_fadvise(descriptor, piece.start, piece.size_bytes, os.POSIX_FADV_DONTNEED)
        content = bytearray(piece.size_bytes)
        with memoryview(content) as whole:
            done = 0
            while done < len(whole):
                count = os.preadv(descriptor, [whole[done:]], piece.start + done)
                if not count:
                    raise OSError(None, f"{piece.path} became shorter while it was read")
                done += count
        return content
    finally:
        os.close(descriptor)


def largest_batch(pieces: Sequence[Piece], batch: int) -> int:
    """Return the bytes of the largest batch that may come together."""
    return sum(sorted((piece.size_bytes for piece in pieces), reverse=True)[:batch])
