"""How numbers, conditions and states are written."""

from __future__ import annotations

import hashlib
import math
import re
from datetime import datetime
from functools import lru_cache

from validation.model import quantities

#: A state by its class in the style sheet: what it is called, and its sign, so that no colour says it alone.
SIGNS = {
    "pass": "✓",
    "compliant": "✓",
    "degraded": "!",
    "waived": "~",
    "fail": "✕",
    "not-compliant": "✕",
    "not-run": "?",
    "not-checked": "?",
    "not-applicable": "·",
}
#: What several states come down to, the worst first: how lists are filtered and counted.
KINDS = {
    "fail": ("fail", "not-compliant"),
    "unknown": ("not-run", "not-checked"),
    "degraded": ("degraded",),
    "good": ("pass", "compliant"),
}
#: Parts of a whole, by the end of a metric's name.
SHARE = "_share"
LONGEST_NAME = 80


def kind(*states: str) -> str:
    """Return the worst of some states, as one of KINDS; `unknown` for none."""
    return next((name for name, members in KINDS.items() if set(members) & set(states)), "unknown")


def is_number(value: object) -> bool:
    """Return whether something can be written and drawn as a number."""
    if type(value) is float:
        return math.isfinite(value)
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def number(value: float | None) -> str:
    """Return a value with about three digits; a dash where there is none."""
    if value is None or not is_number(value):
        return "–"
    if value == int(value) and abs(value) < 1e6:
        return f"{value:.0f}"
    return f"{value:.3g}" if abs(value) < 1 or abs(value) >= 1e6 else quantities.number(value)


def quantity(value: float | None, name: str) -> str:
    """Return a value with the unit of its metric's name."""
    if value is not None and name.endswith(SHARE):
        return percent(value)
    return f"{number(value)} {quantities.unit(name)}".rstrip() if value is not None else "–"


def percent(part: float | None) -> str:
    """Return a part of a whole."""
    return f"{100 * part:.3g} %" if part is not None and is_number(part) else "–"


def difference(value: float, other: float | None) -> str:
    """Return how much more or less than another value: `+1.2 %`, with a real minus; empty without one."""
    if other is None or not is_number(other) or not other or not is_number(value):
        return ""
    part = 100 * (value - other) / other
    return f"{'−' if round(part, 1) < 0 else '+' if round(part, 1) > 0 else '±'}{abs(part):.1f} %"


def size(count: int) -> str:
    """Return a number of bytes in the binary units that message sizes are given in."""
    for unit, step in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= step:
            return f"{count / step:.4g} {unit}"
    return f"{count} B"


def conditions(found: dict[str, int | str], leave_out: tuple[str, ...] = ()) -> str:
    """Return what a number was taken under: `8192 × 8192 × 8192, bf16`."""
    return _conditions(tuple(found.items()), leave_out) if found else ""


@lru_cache(maxsize=1 << 16)
def _conditions(found: tuple[tuple[str, int | str], ...], leave_out: tuple[str, ...]) -> str:
    """Written once for all numbers of a fleet that were taken in the same way."""
    left = {name: value for name, value in found if name not in leave_out}
    parts = []
    if {"m", "n", "k"} <= left.keys():
        parts.append(" × ".join(str(left.pop(edge)) for edge in ("m", "n", "k")))
    for name, value in left.items():
        if name == "size_bytes" and isinstance(value, int):
            parts.append(size(value))
        elif name in ("dtype", "path"):
            parts.append(str(value))
        elif name == "pin_memory":
            parts.append("pinned" if value else "not pinned")
        else:
            parts.append(f"{name.replace('_', ' ')} {value}")
    return ", ".join(parts)


def moment(text: str) -> str:
    """Return an instant as people write it, in UTC; as it is where it is none."""
    try:
        return f"{datetime.fromisoformat(text):%Y-%m-%d %H:%M} UTC" if text else ""
    except ValueError:
        return text


def duration(seconds: float) -> str:
    """Return a time of some seconds, minutes or hours."""
    if not is_number(seconds):
        return "–"
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def slug(name: str) -> str:
    """Return a node's name as part of a file's name and of an address.

    The same every time, never two alike.
    """
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", name)[:LONGEST_NAME].lstrip(".")
    if plain == name:
        return plain
    return f"{plain}-{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:10]}"
