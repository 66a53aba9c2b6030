"""Versions of libraries as they are loaded: torch may have been built with others."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

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
    """The version of the library `name` (libcublas.so) in this process, by its own `getter`.

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
