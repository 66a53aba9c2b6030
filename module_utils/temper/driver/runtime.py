"""Libraries and daemons of the stack, asked for their own versions in processes of their own."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

from ansible.module_utils.temper import process

# By name: what was expected, what was found, and in which file.
Versions = dict[str, dict[str, Any]]
# NVML initialises every GPU before it answers.
TIMEOUT_S = 120
TITLES = {
    "cudnn": "cuDNN",
    "nccl": "NCCL",
    "cuda_driver": "the CUDA driver library",
    "driver": "NVML",
    "fabric_manager": "the fabric manager",
}

# Runs in the child: loads a library by its soname, calls one function, prints its answer and the file that
# the loader chose. Arguments: the soname, then the name of one of the functions below.
PROBE = r"""
import ctypes, json, sys
soname, kind = sys.argv[1:]
library = ctypes.CDLL(soname)
stem = soname.split(".so")[0]
with open("/proc/self/maps") as maps:
    files = [line.split(None, 5)[-1].strip() for line in maps if "/" + stem + ".so" in line]

def by_return():
    library.cudnnGetVersion.restype = ctypes.c_size_t
    return library.cudnnGetVersion()

def by_reference(function):
    value = ctypes.c_int()
    status = function(ctypes.byref(value))
    if status:
        raise OSError("%s returned status %d" % (function.__name__, status))
    return value.value

def nvml():
    library.nvmlErrorString.restype = ctypes.c_char_p
    def call(function, *arguments):
        status = function(*arguments)
        if status:
            raise OSError(library.nvmlErrorString(status).decode())
    call(library.nvmlInit_v2)
    text = ctypes.create_string_buffer(96)
    call(library.nvmlSystemGetDriverVersion, text, 96)
    library.nvmlShutdown()
    return text.value.decode()

answers = {
    "cudnn": by_return,
    "nccl": lambda: by_reference(library.ncclGetVersion),
    "cuda_driver": lambda: by_reference(library.cuDriverGetVersion),
    "driver": nvml,
}
try:
    print(json.dumps({"file": files[0] if files else soname, "answer": answers[kind]()}))
except (OSError, AttributeError) as error:
    print(json.dumps({"file": files[0] if files else soname, "error": str(error)}))
"""


class ProbeError(Exception):
    """Why something did not tell its version: the end of a sentence that begins with its name."""


def decode_cudnn(number: int) -> str:
    """9.19.0 for 91900, 8.9.7 for 8907: cudnn_version.h changed the factors with cuDNN 9."""
    if number >= 90000:
        return f"{number // 10000}.{number // 100 % 100}.{number % 100}"
    return f"{number // 1000}.{number // 100 % 10}.{number % 100}"


def decode_nccl(number: int) -> str:
    """2.28.9 for 22809, 2.8.4 for 2804: NCCL_VERSION in nccl.h changed the factors with 2.9."""
    factor = 10000 if number >= 10000 else 1000
    return f"{number // factor}.{number % factor // 100}.{number % 100}"


def decode_cuda(number: int) -> str:
    """13.0 for 13000: CUDA_VERSION of cuda.h."""
    return f"{number // 1000}.{number % 1000 // 10}"


DECODERS: dict[str, Callable[[int], str]] = {
    "cudnn": decode_cudnn,
    "nccl": decode_nccl,
    "cuda_driver": decode_cuda,
}


def soname(kind: str, expected: str) -> str:
    """Return the name under which programs load it; cuDNN's has its major version."""
    if kind == "cudnn":
        return f"libcudnn.so.{expected.partition('.')[0]}"
    return {"nccl": "libnccl.so.2", "cuda_driver": "libcuda.so.1", "driver": "libnvidia-ml.so.1"}[kind]


def ask(command: list[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Run the child. Raises ProbeError where it hangs, dies or fails."""
    try:
        child = process.complete(command, timeout_s)
    except subprocess.TimeoutExpired:
        raise ProbeError(f"did not answer within {timeout_s} s") from None
    except OSError as error:
        raise ProbeError(f"could not be asked: {error}") from None
    if child.returncode < 0:
        raise ProbeError(f"crashed with {signal.Signals(-child.returncode).name} when asked for its version")
    if child.returncode:
        words = (child.stderr.strip() or child.stdout.strip() or "without a word").splitlines()[-1]
        raise ProbeError(f"could not be asked: {words.removeprefix('OSError: ')}")
    return child


def probe_library(kind: str, expected: str, timeout_s: float) -> tuple[str, str]:
    """Return the version that a library tells, and its file. Raises ProbeError."""
    command = [sys.executable, "-I", "-c", PROBE, soname(kind, expected), kind]
    result: dict[str, Any] = json.loads(ask(command, timeout_s).stdout)
    if "error" in result:
        raise ProbeError(f"could not tell its version: {result['error']} ({result['file']})")
    answer = result["answer"]
    return DECODERS[kind](answer) if kind in DECODERS else str(answer), str(result["file"])


def probe_fabric_manager(timeout_s: float) -> tuple[str, str]:
    """Return the version that the installed daemon tells, and its file. Raises ProbeError."""
    program = process.which("nv-fabricmanager")
    if not program:
        raise ProbeError("has no program nv-fabricmanager")
    match = re.search(r"\d+\.\d+(\.\d+)?", ask([program, "--version"], timeout_s).stdout)
    if not match:
        raise ProbeError(f"tells no version ({program} --version)")
    return match[0], program


def agree(kind: str, expected: str, found: str) -> bool:
    """Return whether all parts that both have are the same: a library tells 9.19.0 of 9.19.0.56.

    A driver speaks every CUDA version up to its own.
    """
    wanted, told = expected.split("."), found.split(".")
    if kind == "cuda_driver":
        return [int(part) for part in told] >= [int(part) for part in wanted]
    return all(one == other for one, other in zip(wanted, told))  # noqa: B905 - strict= is not in Python 3.9


def prove(expected: Mapping[str, str | None], timeout_s: float = TIMEOUT_S) -> tuple[Versions, str]:
    """Return what is found of each expected part, and a sentence on what differs, "" where nothing does."""
    versions: Versions = {}
    problems = []
    for kind, title in TITLES.items():
        wanted = expected.get(kind)
        if not wanted:
            continue
        found = file = None
        try:
            if kind == "fabric_manager":
                found, file = probe_fabric_manager(timeout_s)
            else:
                found, file = probe_library(kind, wanted, timeout_s)
        except ProbeError as reason:
            problems.append(f"{title} {reason}; expected {wanted}")
        else:
            if not agree(kind, wanted, found):
                problems.append(f"{title}: expected {wanted}, found {found} in {file}")
        versions[kind] = {"expected": wanted, "found": found, "file": file}
    if not problems:
        return versions, ""
    return versions, (
        f"Not what the plan says: {'. '.join(problems)}. Another copy in the loader's path "
        "(`ldconfig -p`), or a driver that is installed but not loaded, is the usual cause."
    )
