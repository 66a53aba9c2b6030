"""Files of ours, replaced in one step."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path


def replace(path: Path, text: str, mode: int = 0o600) -> None:
    """Whoever reads the file, also after a power cut, has the old text or the new one. Raises OSError."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as draft:
            draft.write(text)
            draft.flush()
            os.fchmod(draft.fileno(), mode)
            os.fsync(draft.fileno())
        os.replace(name, path)  # noqa: PTH105 - mkstemp gave a name
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)  # noqa: PTH108 - likewise
        raise
    sync(path.parent)


def sync(path: Path) -> None:
    """Wait until the disk has a file, or a folder's names. Raises OSError."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_below(folder: Path) -> None:
    """Wait until the disk has all of a folder, and for no other file system. Raises OSError.

    `os.sync` waits for all of them, and so for a mount whose server is away.
    """
    for name, _, names in os.walk(folder, topdown=False):
        for path in (Path(name, one) for one in names):
            if not path.is_symlink():
                sync(path)
        sync(Path(name))
