"""A statement as metrics of the controller, for the textfile collector of a node_exporter there.

Each node has a file of its own, so that a check of some nodes leaves what is known of the others.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from datetime import datetime
from pathlib import Path

from temper.compliance.evidence import Head
from temper.compliance.model import NodeStatement, State, Statement, Verdict, WaiverFault
from validation.metrics.exposition import Exposition, gauge
from validation.model.contract import ContractError
from validation.model.expectations import file_name
from validation.processes.files import write_all

METRICS = (
    gauge("compliance_timestamp_seconds", "When the node was last checked, whatever came out.", "node"),
    gauge(
        "compliance_verdict",
        "The last verdict on the node's compliance: 1 for the one that it has.",
        "node",
        "verdict",
    ),
    gauge("compliance_controls", "Controls of the node by their state.", "node", "state"),
)
OF_WAIVERS = (
    gauge("compliance_waivers", "Waivers that somebody has to look at, by what is wrong with them.", "code"),
)
OF_THE_CHAIN = (
    gauge(
        "compliance_reports",
        "How many reports the chain has; the labels are its head, for temper compliance verify --head.",
        "report",
        "sha256",
    ),
)
ALL = (*METRICS, *OF_WAIVERS, *OF_THE_CHAIN)


def of_node(node: NodeStatement, made_at: str) -> str:
    """Return a node in Prometheus' text format. One that did not answer has no controls."""
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
    """Return all kinds of faults, those that no waiver has as well: an alert ends with its waiver."""
    said, counts = Exposition(OF_WAIVERS), Counter(finding.code for finding in statement.waivers)
    for code in WaiverFault:
        said.set("temper_compliance_waivers", counts[code], code=code)
    return said.text()


def of_chain(head: Head) -> str:
    """Return the chain's length and head, which a collector of metrics keeps elsewhere."""
    said = Exposition(OF_THE_CHAIN)
    said.set("temper_compliance_reports", head.number, report=head.report, sha256=head.sha256)
    return said.text()


def write(directory: Path, statement: Statement, *, whole: bool = True, head: Head | None = None) -> None:
    """Write a file for each node, one for the waivers, and one for the chain's `head`. Raises OSError.

    Of some nodes, not the `whole` fleet, a check leaves what is known of the waivers, too.
    """
    of_nodes = (
        (directory / f"temper-compliance-{file_part(node.node)}.prom", of_node(node, statement.made_at))
        for node in statement.nodes
    )
    of_all = [(directory / "temper-compliance.prom", of_waivers(statement))] if whole else []
    # No node's file has this name.
    of_reports = [(directory / "temper-compliance.chain.prom", of_chain(head))] if head else []
    write_all([*of_nodes, *of_all, *of_reports])


def file_part(node: str) -> str:
    """Return what names the file of a node: its name, or a digest of one that cannot be part of a path."""
    try:
        return file_name(node)
    except ContractError:
        return f"node.{hashlib.sha256(node.encode(errors='replace')).hexdigest()[:16]}"
