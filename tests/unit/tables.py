"""The data files and argument specs as the preflight role reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]


def tables() -> dict[str, Any]:
    """All of data/*.yml as one mapping; a new one for every call, so that a test may change it."""
    merged: dict[str, Any] = {}
    for path in sorted((ROOT / "data").glob("*.yml")):
        merged |= yaml.safe_load(path.read_text(encoding="utf-8"))
    return merged


def specs() -> dict[str, Any]:
    """The argument specs of all roles by the role's name."""
    return {
        path.parts[-3]: yaml.safe_load(path.read_text(encoding="utf-8"))
        for path in (ROOT / "roles").glob("*/meta/argument_specs.yml")
    }
