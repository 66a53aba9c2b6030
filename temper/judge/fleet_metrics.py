"""The verdict on a node as metrics of the controller: what was measured, against fleet and own past.

Each node has a file of its own, so that a report of some nodes leaves what is known of the others.
"""

from __future__ import annotations

from validation.metrics.exposition import Exposition, gauge
from validation.model.bounds import moment
from validation.model.contract import State, worst
from validation.verdict.verdicts import NodeVerdict

METRICS = (
    gauge("validation_timestamp_seconds", "When the node was last measured, whatever came out.", "node"),
    gauge(
        "validation_state", "The last verdict on the node: 1 for the state that it is in.", "node", "state"
    ),
    gauge(
        "validation_finding",
        "1 for what the last validation found, by the code of the catalogue; gpu is empty for the node.",
        "node",
        "code",
        "severity",
        "gpu",
    ),
)


def text(verdict: NodeVerdict, measured_at: str | None) -> str:
    """Return the verdict in Prometheus' text format.

    `measured_at` is the time of the last run, as ISO 8601.
    """
    said, node = Exposition(METRICS), verdict.node
    if measured_at is not None:
        seconds = moment(measured_at).timestamp()
        said.set("temper_validation_timestamp_seconds", seconds, node=node)
    for state in State:
        said.set("temper_validation_state", verdict.state is state, node=node, state=state)
    found: dict[tuple[str, int | None], State] = {}
    for finding in (finding for test in verdict.tests for finding in test.findings):
        key = finding.code, finding.device
        found[key] = worst((finding.state, found.get(key, finding.state)))
    for (code, device), severity in found.items():
        gpu = "" if device is None else device
        said.set("temper_validation_finding", 1, node=node, code=code, severity=severity, gpu=gpu)
    return said.text()
