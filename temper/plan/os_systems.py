"""The systems that os_hardening knows: by which benchmark each is measured, and where it differs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from temper.plan.convert import build
from temper.plan.tables import read_yaml

#: The profile that is measured by the system's STIG.
STIG = "stig"
FOLDER = Path(__file__).resolve().parents[2] / "data" / "os_systems"


@dataclass(frozen=True)
class OsSystem:
    """A file of data/os_systems; the first of them explains the fields."""

    benchmark: str
    edition: str
    stream: str = ""
    stream_profiles: dict[str, str] = field(default_factory=dict)
    stig: str = ""
    numbered: str = ""
    numbers: dict[str, tuple[str, ...]] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    unproven: str = ""

    def edition_of(self, profile: str) -> str:
        """Return the whole name of what a profile is measured by; "" where the system has none."""
        return self.stig if profile == STIG else self.edition

    def numbers_of(self, name: str, control: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the benchmark's numbers of a control."""
        return tuple(control.get(self.numbered, ())) if self.numbered else self.numbers.get(name, ())


@cache
def systems() -> dict[str, OsSystem]:
    """Return the systems of data/os_systems by name, such as ubuntu-24.04. Raises ValueError."""
    rows = {path.stem: read_yaml(path) for path in sorted(FOLDER.glob("*.yml"))}

    def whole(name: str) -> dict[str, Any]:
        row: dict[str, Any] = rows[name]
        return (whole(row["like"]) if "like" in row else {}) | row

    return {name: build(OsSystem, whole(name), f"os_systems/{name}") for name in rows}


def hardened(profile: str = "") -> list[str]:
    """Return the names of the systems that os_hardening knows, with a profile or with any."""
    return [name for name, one in systems().items() if one.edition_of(profile)]
