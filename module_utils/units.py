"""Units of systemd: what it knows of them, and what it must not meet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ansible.module_utils.process import run

if TYPE_CHECKING:
    from collections.abc import Sequence

# Longer than the units that we start give themselves: the fabric manager of an HGX board takes minutes.
TIMEOUT_S = 600
PROPERTIES = "LoadState,UnitFileState,ActiveState,ConditionResult,ConditionTimestampMonotonic"


def unit_states(names: Sequence[str]) -> dict[str, dict[str, str]]:
    """Properties of units, asked in one call."""
    if not names:
        return {}
    output = run(["systemctl", "show", f"--property={PROPERTIES}", "--", *names])
    blocks = [
        dict(line.split("=", 1) for line in block.splitlines()) for block in output.strip().split("\n\n")
    ]
    return dict(zip(names, blocks))  # noqa: B905 - strict= is not in Python 3.9


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
