"""In which order the values of a setting stand, from data/strictness.yml."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from planning.tables import read_yaml

if TYPE_CHECKING:
    from collections.abc import Mapping

FILE = Path(__file__).resolve().parents[1] / "data" / "strictness.yml"
EXACTLY = "exactly"


@cache
def orders() -> Mapping[str, Mapping[str, str]]:
    """Return kind of setting -> key -> order; `every` is for all keys of a kind."""
    found: Mapping[str, Mapping[str, str]] = read_yaml(FILE)["strictness"]
    return found


def order_of(kind: str, key: str) -> str | None:
    """Return the order of a setting's values, None where the table has none."""
    of_kind = orders().get(kind, {})
    return of_kind.get(key, of_kind.get("every"))
