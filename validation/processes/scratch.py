"""One folder for the temporary files of a run, and of its measuring processes, which may be killed.

The run holds a lock on its folder. Where it is killed itself the kernel lets go of that, and the next run
removes every folder of this user that nobody holds.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

PREFIX = "temper-validation-run-"
#: A folder that is younger may be about to be locked.
NEW_S = 2.0

_folders: list[str] = []


@contextlib.contextmanager
def folder() -> Iterator[None]:
    """Have such a folder for a while; what is in it at the end is removed. Without room for one go on."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            sweep(Path(tempfile.gettempdir()))
            own = tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True)
            _folders.append(stack.enter_context(own))
            stack.callback(_folders.pop)
            stack.callback(setattr, tempfile, "tempdir", tempfile.tempdir)
            tempfile.tempdir = own.name
            stack.enter_context(_held(Path(own.name)))
        yield


def sweep(place: Path) -> None:
    """Remove the folders that runs of this user left here which were killed."""
    with contextlib.suppress(OSError):
        for left in place.glob(f"{PREFIX}*"):
            # One that is still held, or of somebody else, says so; whatever it says, it stays.
            with contextlib.suppress(OSError), _held(left):
                found = left.stat()
                if found.st_uid == os.getuid() and time.time() - found.st_mtime > NEW_S:
                    shutil.rmtree(left, ignore_errors=True)


@contextlib.contextmanager
def _held(path: Path) -> Iterator[None]:
    """Hold the lock of a folder. Raises OSError, also where another process holds it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def environment() -> dict[str, str]:
    """What a measuring process is to have in its environment.

    Only these: TMPDIR also moves where an engine unpacks the images that it pulls.
    """
    return {"TMPDIR": _folders[-1]} if _folders else {}
