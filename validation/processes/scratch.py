"""One folder for the temporary files of a run, and of its measuring processes, which may be killed.

The run holds a lock on its folder. Where it is killed itself the kernel lets go of that, and the next run
removes every folder of this user that nobody holds.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

PREFIX = "temper-validation-run-"
#: A folder that is younger may be about to be locked.
NEW_S = 2.0
#: Where CUDA looks for a daemon that shares GPUs, which it does without where there is none (NVIDIA,
#: "Multi-Process Service"). Any user can make the folder, and decide what CUDA is told there, at any time.
MPS, MPS_VARIABLE = Path("/tmp/nvidia-mps"), "CUDA_MPS_PIPE_DIRECTORY"  # noqa: S108 - CUDA's own
#: Nothing is there, and nobody can make it.
NO_MPS = "/proc/nvidia-mps"

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
    with contextlib.suppress(OSError), os.scandir(place) as entries:
        # One at a time: everybody may have put millions there.
        for entry in entries:
            if not entry.name.startswith(PREFIX):
                continue
            # One that is still held, or of somebody else, says so; whatever it says, it stays.
            with contextlib.suppress(OSError), _held(Path(entry.path)) as descriptor:
                found = os.fstat(descriptor)
                if found.st_uid == os.getuid() and time.time() - found.st_mtime > NEW_S:
                    shutil.rmtree(entry.path, ignore_errors=True)


@contextlib.contextmanager
def _held(path: Path) -> Iterator[int]:
    """Hold the lock of a folder, and have it open. Raises OSError, also where another process holds it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield descriptor
    finally:
        os.close(descriptor)


def environment() -> dict[str, str]:
    """Return what a measuring process is to have in its environment.

    Only these: TMPDIR also moves where an engine unpacks the images that it pulls.
    """
    folder = {"TMPDIR": _folders[-1]} if _folders else {}
    return folder if MPS_VARIABLE in os.environ or _is_trusted(MPS) else {MPS_VARIABLE: NO_MPS, **folder}


def _is_trusted(folder: Path) -> bool:
    """Return whether it is a folder of root or of this user, and no link."""
    with contextlib.suppress(OSError):
        found = folder.lstat()
        return stat.S_ISDIR(found.st_mode) and found.st_uid in (0, os.getuid())
    return False
