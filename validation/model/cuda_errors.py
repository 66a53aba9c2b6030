"""Which finding an error of CUDA is: each has its own remedy.

The words are cudaGetErrorString's (CUDA 13.1, driver_types.h), which torch and NCCL hand on; some libraries
have the error's name alone.
"""

from __future__ import annotations

import re

from validation.model.not_run import MEMORY, SEARCHED

#: A word of the message by finding, the most telling first.
FINDINGS = {
    "cuda-ecc-error": re.compile(r"uncorrectable ECC error|ECC_?UNCORRECTABLE", re.IGNORECASE),
    "cuda-nvlink-error": re.compile(
        r"uncorrectable NVLink error|NVLINK_?UNCORRECTABLE|access of peer GPU memory over nvlink",
        re.IGNORECASE,
    ),
    "cuda-launch-error": re.compile(
        r"unspecified launch failure|hardware stack error|illegal instruction|invalid program counter"
        r"|illegal memory access|misaligned address|operation not supported on global/shared address space"
        r"|launch timed out",
        re.IGNORECASE,
    ),
    # Also what only MPS says, through which others share a GPU: nothing is known about the GPU.
    "cuda-busy": re.compile(
        r"busy or unavailable|device already in use by|\bMPS (?:client|server)\b", re.IGNORECASE
    ),
    # The second one is what not_run.py says of others.
    "cuda-out-of-memory": re.compile(rf"{MEMORY.pattern}|memory ran out: ", re.IGNORECASE),
}
#: Those of a GPU that is broken: no matter of the environment, wherever they show.
HARDWARE = {"cuda-ecc-error", "cuda-nvlink-error", "cuda-launch-error"}
#: Of those, what the GPU reports that reads over NVLink, whichever end of the link is broken.
OF_A_LINK = {"cuda-nvlink-error"}


def finding_of(words: str) -> str | None:
    """Return the code of the finding that an error's words stand for; None for any other error."""
    return next((code for code, pattern in FINDINGS.items() if pattern.search(words[:SEARCHED])), None)
