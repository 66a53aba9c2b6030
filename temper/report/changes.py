"""What is another than last time: the first thing that a report shows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from temper.compliance.model import Statement
from temper.report.words import KINDS, kind
from validation.model.contract import Measurement
from validation.model.quantities import NOISY_SPREAD
from validation.verdict.verdicts import FleetVerdict, NodeVerdict, TestVerdict

NEW, GONE = "not there", "gone"
#: A number that moved by less, or by less than its runs spread, has not changed.
MOVED = 0.02


@dataclass(frozen=True)
class Change:
    """One thing that changed: on which node, what, its state before and now, and why."""

    node: str
    what: str
    before: str
    now: str
    why: str = ""

    @property
    def rank(self) -> int:
        """Its place in a list: what became worst first, what became good last."""
        order = list(KINDS)
        if self.now == GONE:
            return order.index("unknown")
        return order.index(kind(self.now))


def of_validation(before: FleetVerdict, now: FleetVerdict) -> list[Change]:
    """Nodes and tests whose state, or whose findings, are others than in the report before."""
    earlier = {node.node: node for node in before.nodes}
    found = [change for node in now.nodes for change in _of_node(earlier.get(node.node), node)]
    names = {node.node for node in now.nodes}
    found += [Change(name, "node", node.state, GONE) for name, node in earlier.items() if name not in names]
    return sorted(found, key=lambda change: (change.rank, change.node))


def _of_node(before: NodeVerdict | None, now: NodeVerdict) -> Iterator[Change]:
    why = now.reasons[0] if now.reasons else ""
    if before is None:
        yield Change(now.node, "node", NEW, now.state, why)
        return
    tests = {test.id: test for test in before.tests}
    changed = [
        Change(now.node, test.id, tests[test.id].state, test.state, _why(tests[test.id], test))
        for test in now.tests
        if test.id in tests and (tests[test.id].state, _codes(tests[test.id])) != (test.state, _codes(test))
    ]
    yield from changed
    if before.state != now.state and not any(one.now == now.state for one in changed):
        yield Change(now.node, "node", before.state, now.state, why)


def _codes(test: TestVerdict) -> set[str]:
    return {finding.code for finding in test.findings}


def _why(before: TestVerdict, now: TestVerdict) -> str:
    """Return what is found now and was not; else what is no longer found."""
    known = _codes(before)
    new = list(dict.fromkeys(finding.text for finding in now.findings if finding.code not in known))
    gone = sorted(known - _codes(now))
    if new:
        return f"{new[0]} (and {len(new) - 1} more)" if len(new) > 1 else new[0]
    return f"no longer: {', '.join(gone)}" if gone else now.reason


def of_compliance(statement: Statement) -> list[Change]:
    """Return controls whose state is another than in the check before."""
    changed = {(one.node, one.control) for one in statement.changed}
    names = {name for name, _ in changed}
    words = {
        (node.node, control.id): control.why or control.title
        for node in statement.nodes
        if node.node in names
        for control in node.controls
        if (node.node, control.id) in changed
    }
    found = [
        Change(one.node, one.control, one.before, one.now, words.get((one.node, one.control), ""))
        for one in statement.changed
    ]
    return sorted(found, key=lambda change: (change.rank, change.node))


def moved(measurement: Measurement, last: float) -> bool:
    """Return whether a number is another than in its last run by more than it scatters."""
    if not last:
        return False
    part = abs(measurement.value - last) / abs(last)
    return part > max(MOVED, measurement.spread if measurement.spread > NOISY_SPREAD else 0.0)
