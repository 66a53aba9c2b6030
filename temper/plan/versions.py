"""Version numbers of NVIDIA's drivers, of CUDA, and of packages."""

from __future__ import annotations

from functools import cache


@cache
def version(text: str) -> tuple[int, ...]:
    """Return an NVIDIA version ("580.126.09", "12.9") as a tuple that compares numerically."""
    return tuple(int(part) for part in str(text).split("."))


def minor(text: str) -> str:
    """Return the first two numbers of a version, as text: 2.14 of "2.14.1"."""
    return ".".join(text.split(".")[:2])


def branch(driver: str) -> int:
    """Return the branch of a driver version: 580 of "580.126.09"."""
    return version(driver)[0]


def upstream(package_version: str) -> str:
    """Return what a package's version says of its content, without epoch and revision: 4.6.0 of 1:4.6.0-1."""
    return package_version.rpartition(":")[2].partition("-")[0]


def parts(package_version: str, count: int) -> tuple[int, ...]:
    """Return the first numbers of a package's version: (9, 19, 0) of 9.19.0.56-1."""
    return version(upstream(package_version))[:count]


def dotted(numbers: tuple[int, ...]) -> str:
    """Numbers as a version: 9.19.0."""
    return ".".join(str(number) for number in numbers)


def same(installed: str | None, wanted: str) -> bool:
    """Return whether a package is installed as wanted: at this version, or at any where none is named.

    A wanted version without an epoch stands for whatever epoch the package has, as it does for dnf.
    """
    if installed is None:
        return False
    return not wanted or installed == wanted or (":" not in wanted and installed.partition(":")[2] == wanted)
