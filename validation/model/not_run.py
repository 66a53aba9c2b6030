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
#: How much of an error's message is searched: what went wrong stands at its beginning.
SEARCHED = 4096
#: What stands before the cause in the message of torch's NCCL errors.
NCCL_LAST = "Last error:"


class NotRunError(Exception):
    """The environment keeps this measurement from running; the message is the reason, a sentence."""


def cause(error: BaseException) -> str:
    """Return the line of an error's message that says what went wrong.

    CUDA's says it first, then how to debug it; so does NCCL's, of which the last one has the cause.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    if lines[0].startswith("NCCL error") and lines[1:]:
        # An empty last error leaves the kind: "ncclInternalError: Internal check failed."
        return f"{lines[0]}; {[line for line in lines if line != NCCL_LAST][-1]}"
    return lines[0]


def out_of_memory(error: BaseException) -> str | None:
    """Return what to say of an error that means that there was no memory; None for any other error.

    Nothing in its words shows that the GPU is at fault: torch asks how much is free after the failed call,
    when another process may have given memory back, and CUDA says the same where the host has none.
    """
    text = str(error)[:SEARCHED]
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


def _gpu_is_full() -> bool:
    """Return whether this process has a GPU without room for a library's handle.

    Not where it does not answer.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return False
    try:
        return bool(torch.cuda.mem_get_info()[0] < HANDLE_BYTES)
    except RuntimeError:
        return False
