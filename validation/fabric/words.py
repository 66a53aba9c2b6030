"""Between nodes: what the verdicts on flat fleets and on trees say alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

from validation.model.quantities import number
from validation.verdict.verdicts import TestVerdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from validation.fabric.groups import Group
    from validation.model.contract import Finding, State

FABRIC = "fabric"


def how(group: Group, name: str = "") -> str:
    """How a group failed, by the node of this name if that says it."""
    said = {**group.absent, **{one: found[0].text for one, found in group.wrong.items()}, **group.suspects}
    return said.get(name) or next(iter(said.values()), "the group failed")


def some(names: Sequence[str], most: int = 8) -> str:
    """These names, or the first of them and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def headline(group: Group) -> str:
    """What a group reached."""
    return f"{number(group.busbw_gb_s)} GB/s" if group.measurements else ""


def verdict(
    state: State,
    findings: tuple[Finding, ...] = (),
    *,
    reason: str = "",
    headline: str = "",
    notes: tuple[str, ...] = (),
) -> TestVerdict:
    """The verdict on a node's part in the network."""
    # It runs only where it was asked for; then it must have run.
    return TestVerdict(FABRIC, state, True, headline, reason, findings, notes)
