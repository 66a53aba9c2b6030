"""Temper's version."""

from __future__ import annotations

import tomllib
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"


def version() -> str:
    """Return the version in the project's own file: Temper runs from its checkout and is never installed."""
    return str(tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["version"])
