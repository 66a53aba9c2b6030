"""Write files so that a reader sees all of one or none, also after a crash."""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def ensure_writable(path: Path) -> None:
    """Make sure before the work that a file can be written after it, and that no old one is taken for it.

    Raises OSError.
    """
    if path.exists() and not path.is_file():
        raise OSError(f"{path}: expected a file, or none yet")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}."):
            path.unlink(missing_ok=True)
    except OSError as error:
        raise OSError(f"{path}: expected a place that can be written to: {error.strerror}") from error


def write_atomically(path: Path, content: bytes | str | Iterable[str], mode: int = 0o644) -> None:
    """Write a file so that a reader sees all of it or the old one, also after a crash. Raises OSError.

    A long content may come in pieces.
    """
    try:
        _write_atomically(path, content, mode)
    except OSError as error:
        raise OSError(f"{path}: cannot be written: {error.strerror or error}") from error


def _write_atomically(path: Path, content: bytes | str | Iterable[str], mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            if isinstance(content, bytes):
                file.buffer.write(content)
            else:
                file.writelines([content] if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, mode)  # noqa: PTH101 - a name, not a Path
        os.replace(temporary, path)  # noqa: PTH105 - likewise
    except BaseException:
        os.unlink(temporary)  # noqa: PTH108 - likewise
        raise
