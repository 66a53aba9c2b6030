"""Compile the small shared libraries that stand for NVIDIA's: they load, and tell their versions when called.

Their sources are in `packages/`, without a header and without a library to link with, so that a C compiler
alone is enough. Each carries a JSON text for the simulated programs, as the other stand-ins do.
"""

from __future__ import annotations

import functools
import json
import subprocess
import tempfile
from pathlib import Path

FILES = Path(__file__).resolve().parent / "packages"
COMPILER = "gcc"
# No build id and no comment: the same source gives the same bytes.
_OPTIONS = (
    *("-x", "c", "-Os", "-Wall", "-Wextra", "-Werror", "-fPIC", "-fno-ident", "-shared", "-nostdlib", "-s"),
    *("-Wl,--build-id=none", "-Wl,-z,noseparate-code"),
)


def code(version: str, *factors: int) -> int:
    """Encode the first numbers of a version as NVIDIA's libraries do: their sum, each with its factor."""
    numbers = [int(part) for part in version.split(".")]
    return sum(number * factor for number, factor in zip(numbers, factors, strict=False))


@functools.cache
def shared_library(source: str, soname: str, version: str, code: int, **facts: str) -> bytes:
    """Compile `packages/SOURCE.c`; `facts` go into its JSON text beside the version.

    Raises RuntimeError with the compiler's words.
    """
    stand_in = json.dumps({"simulated": f"stands for {soname}", "version": version, **facts})
    text = (FILES / f"{source}.c").read_text()
    for key, value in (("STAND_IN", json.dumps(stand_in)), ("VERSION", version), ("CODE", str(code))):
        text = text.replace(f"@{key}@", value)
    with tempfile.TemporaryDirectory() as directory:
        output = Path(directory) / soname
        command = [COMPILER, *_OPTIONS, f"-Wl,-soname,{soname}", "-o", str(output), "-"]
        result = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            raise RuntimeError(f"{COMPILER} does not compile {source}.c: {result.stderr.strip()}")
        return output.read_bytes()
