"""Convert verdicts of validation into the states of nodes that all outputs count."""

from __future__ import annotations

from pathlib import Path

from validation.model.contract import ContractError, State, loads
from validation.verdict.verdicts import FleetVerdict, NodeVerdict


def states_in(report: Path) -> dict[str, str]:
    """Return each node's state from a report on validation; no node if there is no readable report."""
    try:
        fleet = loads(FleetVerdict, (report / "summary.json").read_bytes())
    except (OSError, ContractError):
        return {}
    return {node.node: state_of(node) for node in fleet.nodes}


def state_of(node: NodeVerdict) -> str:
    """Return a node's state. A degraded node is ok, unless its exit status says that it failed."""
    if node.state is State.NOT_RUN:
        return "not checked"
    return "failed" if node.exit_status else "ok"
