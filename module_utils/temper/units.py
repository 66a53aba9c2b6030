"""Units of systemd: what it knows of them, and what it must not meet."""

from __future__ import annotations

from collections.abc import Sequence

from ansible.module_utils.temper.process import parsed, run

# Longer than the units that we start give themselves: the fabric manager of an HGX board takes minutes.
TIMEOUT_S = 600
PROPERTIES = "LoadState,UnitFileState,ActiveState,ConditionResult,ConditionTimestampMonotonic"


def unit_states(names: Sequence[str]) -> dict[str, dict[str, str]]:
    """Properties of units, asked in one call."""
    if not names:
        return {}
    output = run(["systemctl", "show", f"--property={PROPERTIES}", "--", *names])
    return parsed("systemctl show", output, lambda text: blocks(text, names, PROPERTIES.split(",")))


def blocks(text: str, names: Sequence[str], properties: Sequence[str]) -> dict[str, dict[str, str]]:
    """Read the properties of units from `systemctl show`. Raises ValueError where any is missing."""
    found = [dict(line.split("=", 1) for line in block.split("\n")) for block in text.strip().split("\n\n")]
    if len(found) != len(names) or not all(name in block for block in found for name in properties):
        raise ValueError(f"expected {', '.join(properties)} of {len(names)} units")
    return dict(zip(names, found))  # noqa: B905 - strict= is not in Python 3.9


def stop_lost(names: Sequence[str]) -> None:
    """Stop those that run although their file is gone; to be called before it comes back.

    systemd 252 does not load the new file while such a unit runs: "Device or resource busy". It knows no
    command to stop it by, so what a unit of one command has done stays done.
    """
    states = unit_states(names)
    lost = [
        name
        for name, state in states.items()
        if (state["LoadState"], state["ActiveState"]) == ("not-found", "active")
    ]
    if lost:
        run(["systemctl", "stop", "--", *lost], TIMEOUT_S)
