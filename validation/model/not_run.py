"""The environment keeps a measurement from running: as an exception, which a measuring process raises."""

from __future__ import annotations

import re


class NotRunError(Exception):
    """The environment keeps this measurement from running; the message is the reason, a sentence."""


def out_of_memory(error: BaseException) -> str | None:
    """What to say of an error that means that somebody else has the memory; None for any other error."""
    text = str(error)
    if (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or re.search(r"out of memory|can't allocate memory|CUBLAS_STATUS_ALLOC_FAILED", text, re.IGNORECASE)
    ):
        return f"memory ran out: {text.splitlines()[0] if text else type(error).__name__}"
    return None
