"""Compile what stands for NVIDIA's binaries: shared libraries that load and tell their versions, and modules.

Their sources are in `packages/`, without a header and without a library to link with, so that a C compiler
alone is enough. Each carries a JSON text for the simulated programs, as the other stand-ins do.
"""

from __future__ import annotations

import functools
import json
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

#: What a module has for the kernel that it is built for, until it is built: see packages/module-build.sh.
UNBUILT = "KERNEL".ljust(64, "_")
FILES = Path(__file__).resolve().parent / "packages"
COMPILER = "gcc"
# No build id and no comment: the same source gives the same bytes.
_OPTIONS = ("-x", "c", "-Os", "-Wall", "-Wextra", "-Werror", "-fno-ident", "-fno-asynchronous-unwind-tables")
_SHARED = ("-fPIC", "-shared", "-nostdlib", "-s", "-Wl,--build-id=none", "-Wl,-z,noseparate-code")


def code(version: str, *factors: int) -> int:
    """Encode the first numbers of a version as NVIDIA's libraries do: their sum, each with its factor."""
    numbers = [int(part) for part in version.split(".")]
    return sum(number * factor for number, factor in zip(numbers, factors, strict=False))


@functools.cache
def shared_library(source: str, soname: str, version: str, code: int, **facts: str) -> bytes:
    """Compile `packages/SOURCE.c`; `facts` go into its JSON text beside the version.

    Raises RuntimeError with the compiler's words.
    """
    values = {"STAND_IN": _stand_in(soname, version=version, **facts), "VERSION": version, "CODE": str(code)}
    return _compile(source, [*_SHARED, f"-Wl,-soname,{soname}"], values)


@functools.cache
def kernel_module(version: str, flavour: str) -> bytes:
    """Compile a kernel module's object, as `make` leaves it before it is signed; any kernel would refuse it.

    Raises RuntimeError with the compiler's words.
    """
    values = {
        "STAND_IN": _stand_in("nvidia.ko", version=version, flavour=flavour),
        "VERSION": version,
        "VERMAGIC": UNBUILT,
        "LICENSE": "Dual MIT/GPL" if flavour == "open" else "NVIDIA",
    }
    return _compile("nvidia-module", ["-c"], values)


def built_for(module: bytes, release: str) -> bytes:
    """Return what the build makes of a module's object for a kernel."""
    words = f"{release} SMP preempt mod_unload modversions".ljust(len(UNBUILT))
    return module.replace(UNBUILT.encode(), words.encode())


def _stand_in(what: str, **facts: str) -> str:
    """Return a C string: JSON that says what it is, and what the simulated programs ask of it."""
    return json.dumps(json.dumps({"simulated": f"stands for {what}", **facts}))


def _compile(source: str, options: Sequence[str], values: Mapping[str, str]) -> bytes:
    text = (FILES / f"{source}.c").read_text()
    for key, value in values.items():
        text = text.replace(f"@{key}@", value)
    with tempfile.TemporaryDirectory() as directory:
        output = Path(directory) / "output"
        command = [COMPILER, *_OPTIONS, *options, "-o", str(output), "-"]
        result = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            raise RuntimeError(f"{COMPILER} does not compile {source}.c: {result.stderr.strip()}")
        return output.read_bytes()
