"""Files of ours, replaced in one step."""

from __future__ import annotations

import contextlib
import os
import tempfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
