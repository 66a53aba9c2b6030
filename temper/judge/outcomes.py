"""From verdicts of validation to what nodes came to, in the words that all outputs count in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from validation.model.contract import ContractError, State, loads
from validation.verdict.verdicts import FleetVerdict

if TYPE_CHECKING:
    from pathlib import Path

    from validation.verdict.verdicts import NodeVerdict


def states_in(report: Path) -> dict[str, str]:
    """Return what each node came to by a report on validation; nothing where that could not be made."""
    try:
        fleet = loads(FleetVerdict, (report / "summary.json").read_bytes())
    except (OSError, ContractError):
        return {}
    return {node.node: state_of(node) for node in fleet.nodes}


def state_of(node: NodeVerdict) -> str:
    """Return what a node came to. A degraded one is good, unless it was to fail for that."""
    if node.state is State.NOT_RUN:
        return "not checked"
    return "failed" if node.exit_status else "ok"
