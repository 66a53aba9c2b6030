"""NVIDIA's version numbers."""

from __future__ import annotations


def version(text: str) -> tuple[int, ...]:
    """An NVIDIA version ("580.126.09", "12.9") as a tuple that compares numerically."""
    return tuple(int(part) for part in str(text).split("."))


def branch(driver: str) -> int:
    """The branch of a driver version: 580 of "580.126.09"."""
    return version(driver)[0]
