"""In which order the values of a setting stand, from data/strictness.yml."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from temper.plan.tables import read_yaml

FILE = Path(__file__).resolve().parents[2] / "data" / "strictness.yml"
EXACTLY = "exactly"
# Orders of whole files: see data/strictness.yml.
ALONE, ASKED, TELLS_NOTHING, LOADS_NOTHING = "alone", "asked", "tells nothing", "loads nothing"
# The key of an order that a file has as a whole.
WHOLE = "every"


@cache
def orders() -> Mapping[str, Mapping[str, str]]:
    """Return kind of setting -> key -> order; `every` is for all keys of a kind."""
    found: Mapping[str, Mapping[str, str]] = read_yaml(FILE)["strictness"]
    return found


def order_of(kind: str, key: str) -> str | None:
    """Return the order of a setting's values, None where the table has none."""
    of_kind = orders().get(kind, {})
    return of_kind.get(key, of_kind.get("every"))


def orders_of_files() -> Mapping[str, str | Mapping[str, str]]:
    """Return path -> the orders of its keys, or that of the file as a whole."""
    found: Mapping[str, str | Mapping[str, str]] = read_yaml(FILE)["files"]
    return found
