"""What libraries are: in which version they are loaded, and for which GPUs they were built."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: Of a library that is not loaded under its own name (a torch that contains it), or does not say.
UNKNOWN = "unknown"
#: libraryPropertyType of library_types.h: MAJOR_VERSION, MINOR_VERSION, PATCH_LEVEL.
PROPERTIES = (0, 1, 2)


def loaded_version(
    name: str,
    getter: str,
    maps: Path = Path("/proc/self/maps"),
    load: Callable[[str], Any] = ctypes.CDLL,
) -> str:
    """Return the version of the library `name` (libcublas.so) in this process, by its own `getter`.

    NVIDIA's libraries have one of the form `status getter(libraryPropertyType, int *)`.
    """
    paths = {line.split(maxsplit=5)[-1] for line in maps.read_text().splitlines() if "/" in line}
    for path in sorted(path for path in paths if Path(path).name.startswith(name)):
        try:
            get = getattr(load(path), getter)
        except (OSError, AttributeError):
            continue
        numbers = [ctypes.c_int() for _ in PROPERTIES]
        if all(
            get(which, ctypes.byref(number)) == 0 for which, number in zip(PROPERTIES, numbers, strict=True)
        ):
            return ".".join(str(number.value) for number in numbers)
    return UNKNOWN


def runs_on(capability: tuple[int, ...], architectures: tuple[str, ...]) -> bool:
    """Return whether code for one of `architectures` runs on a GPU.

    Binary code (sm_80) runs on its own major version from its minor version on, as does a family's (sm_100f);
    an architecture-specific one (sm_90a) only on its own; PTX (compute_90) is compiled for anything newer.
    (CUDA C++ programming guide.)
    """
    for name in architectures:
        kind, _, number = name.partition("_")
        specific = number.endswith("a")
        digits = number.rstrip("abcdefghijklmnopqrstuvwxyz")
        if not digits.isdigit():
            continue
        built = int(digits[:-1]), int(digits[-1])
        if specific:
            fits = kind == "sm" and tuple(capability) == built
        elif kind == "compute":
            fits = tuple(capability) >= built
        else:
            fits = capability[0] == built[0] and capability[1] >= built[1]
        if fits:
            return True
    return False


def release(version: str) -> tuple[int, ...]:
    """`2.13.0+cu130` as (2, 13), `2.5.0a0` as (2, 5); nothing of a version without numbers."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])
