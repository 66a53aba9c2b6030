"""The data files and argument specs as the preflight role reads them."""

from pathlib import Path
from typing import Any

import yaml

from temper.plan.role_variables import argument_specs
from temper.plan.tables import LOADER

ROOT = Path(__file__).resolve().parents[2]
#: The argument specs of all roles by the role's name, read once.
specs = argument_specs


def tables() -> dict[str, Any]:
    """All of data/*.yml as one mapping; a new one for every call, so that a test may change it."""
    merged: dict[str, Any] = {}
    for path in sorted((ROOT / "data").glob("*.yml")):
        merged |= yaml.load(path.read_text(encoding="utf-8"), Loader=LOADER)  # noqa: S506 - a safe loader
    return merged
