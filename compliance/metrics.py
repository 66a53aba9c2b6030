"""A statement as metrics of the controller, for the textfile collector of a node_exporter there.

Each node has a file of its own, so that a check of some nodes leaves what is known of the others.
"""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import TYPE_CHECKING

from compliance.model import State, Verdict, WaiverFault
from validation.metrics.exposition import Exposition, Kind, Metric
from validation.processes.files import write_all

if TYPE_CHECKING:
    from pathlib import Path

    from compliance.model import NodeStatement, Statement

METRICS = (
    Metric(
        "temper_compliance_timestamp_seconds",
        Kind.GAUGE,
        "When the node was last checked, whatever came out.",
        ("node",),
    ),
    Metric(
        "temper_compliance_verdict",
        Kind.GAUGE,
        "The last verdict on the node's compliance: 1 for the one that it has.",
        ("node", "verdict"),
    ),
    Metric(
        "temper_compliance_controls",
        Kind.GAUGE,
        "Controls of the node by their state.",
        ("node", "state"),
    ),
)
OF_WAIVERS = (
    Metric(
        "temper_compliance_waivers",
        Kind.GAUGE,
        "Waivers that somebody has to look at, by what is wrong with them.",
        ("code",),
    ),
)


def of_node(node: NodeStatement, made_at: str) -> str:
    """A node in Prometheus' text format. One that did not answer has no controls."""
    said = Exposition(METRICS)
    said.set(
        "temper_compliance_timestamp_seconds", datetime.fromisoformat(made_at).timestamp(), node=node.node
    )
    for verdict in Verdict:
        said.set("temper_compliance_verdict", node.verdict is verdict, node=node.node, verdict=verdict)
    for state in State if node.controls else ():
        said.set("temper_compliance_controls", node.count(state), node=node.node, state=state)
    return said.text()


def of_waivers(statement: Statement) -> str:
    """All kinds of faults, those that no waiver has as well: an alert ends with its waiver."""
    said, counts = Exposition(OF_WAIVERS), Counter(finding.code for finding in statement.waivers)
    for code in WaiverFault:
        said.set("temper_compliance_waivers", counts[code], code=code)
    return said.text()


def write(directory: Path, statement: Statement, *, whole: bool = True) -> None:
    """Write a file for each node, and one for the waivers. Raises OSError.

    Of some nodes, not the `whole` fleet, a check leaves what is known of the waivers, too.
    """
    of_nodes = (
        (directory / f"temper-compliance-{node.node}.prom", of_node(node, statement.made_at))
        for node in statement.nodes
    )
    of_all = [(directory / "temper-compliance.prom", of_waivers(statement))] if whole else []
    write_all([*of_nodes, *of_all])
