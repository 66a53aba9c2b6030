"""Errors of a measuring process: their words, and which are the environment's."""

from __future__ import annotations

import re
import sys

#: What torch and its libraries say where there is no memory,
MEMORY = re.compile(
    r"out of memory|can't allocate memory|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_\w*ALLOC\w*_FAILED",
    re.IGNORECASE,
)
#: where there is none for their handles, and after other errors, too,
NO_HANDLE = re.compile(r"(CUBLAS|CUDNN)_STATUS_NOT_INITIALIZED")
HANDLE_BYTES = 256 << 20
#: and where the file system is full that processes share: 64 MB in a container that nobody gave more.
SHARED_MEMORY = re.compile(
    r"unable to (open|mmap|allocate|resize|write).*(shared memory|</torch_)|shared memory segment /dev/shm/"
)
#: What torch says of GPU memory that it asked for, and of what was free. Where it may take a part only, it
#: says how much is allowed.
ASKED = re.compile(
    r"Tried to allocate (?P<asked>[\d.]+) (?P<asked_unit>[KMG]iB).*? of which (?P<free>[\d.]+) "
    r"(?P<free_unit>[KMG]iB) is free(?!.*\ballowed;)",
    re.DOTALL,
)
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
#: What stands before the cause in the message of torch's NCCL errors.
NCCL_LAST = "Last error:"


class NotRunError(Exception):
    """The environment keeps this measurement from running; the message is the reason, a sentence."""


def cause(error: BaseException) -> str:
    """The line of an error's message that says what went wrong.

    CUDA's says it first, then how to debug it; so does NCCL's, of which the last one has the cause.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    if lines[0].startswith("NCCL error") and lines[1:]:
        # An empty last error leaves the kind: "ncclInternalError: Internal check failed."
        return f"{lines[0]}; {[line for line in lines if line != NCCL_LAST][-1]}"
    return lines[0]


def out_of_memory(error: BaseException) -> str | None:
    """What to say of an error that means that somebody else has the memory; None for any other error."""
    text = str(error)
    if SHARED_MEMORY.search(text):
        return f"shared memory (/dev/shm) ran out: {cause(error)}"
    if (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or MEMORY.search(text)
        or (NO_HANDLE.search(text) and _gpu_is_full())
    ):
        return f"memory ran out: {cause(error)}"
    return None


def had_room(error: BaseException) -> bool:
    """Whether a GPU refused less memory than it had free, twice over: then nobody else has taken it."""
    match = ASKED.search(str(error))
    if match is None:
        return False
    asked, free = (float(match[name]) * UNITS[match[f"{name}_unit"]] for name in ("asked", "free"))
    return free > 2 * asked


def _gpu_is_full() -> bool:
    """Whether this process has a GPU without room for a library's handle; not where it does not answer."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return False
    try:
        return bool(torch.cuda.mem_get_info()[0] < HANDLE_BYTES)
    except RuntimeError:
        return False
