"""One folder for the temporary files of all measuring processes: one that is killed cannot remove its own."""

from __future__ import annotations

import contextlib
import tempfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_folders: list[str] = []


@contextlib.contextmanager
def folder() -> Iterator[None]:
    """Have such a folder for a while; what is in it at the end is removed. Without room for one go on."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            own = tempfile.TemporaryDirectory(prefix="temper-validation-", ignore_cleanup_errors=True)
            _folders.append(stack.enter_context(own))
            stack.callback(_folders.pop)
        yield


def environment() -> dict[str, str]:
    """What a measuring process is to have in its environment.

    Only these: TMPDIR also moves where an engine unpacks the images that it pulls.
    """
    return {"TMPDIR": _folders[-1]} if _folders else {}
