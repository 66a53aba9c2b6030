"""What a report is made from: verdicts and results of validation, a statement of compliance."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from temper.compliance.model import Statement
from temper.judge.history import PastRun
from temper.report.origin import Origin
from validation.model.contract import Measurement, NodeResult, TestResult
from validation.model.expectations import References
from validation.model.grouping import by_key
from validation.verdict.verdicts import FleetVerdict


class Metric(NamedTuple):
    """What is measured in the same way: numbers of one metric compare."""

    test: str
    method: int
    name: str
    conditions: tuple[tuple[str, str], ...]


def metric_of(test: TestResult, measurement: Measurement) -> Metric:
    """Return the metric of a number."""
    return Metric(test.id, test.method, measurement.name, measurement.taken)


@dataclass(frozen=True)
class PastValue:
    """A number of an earlier run, in the unit of its metric. `at` is when that run began (ISO 8601)."""

    at: str
    value: float


#: The earlier numbers of a node, the oldest first, by metric and by the UUID of the GPU; that is empty for
#: numbers of the node as a whole.
Past = Mapping[tuple[Metric, str], Sequence[PastValue]]


def no_past(_result: NodeResult) -> Past:
    """Of a node of which no earlier run is known."""
    return {}


@dataclass(frozen=True)
class Validation:
    """A validation of a fleet: the verdict, and the results that it was made from, by node.

    `references` are the published numbers that each node was held against. `past` reads a node's earlier
    numbers; it is asked once for each node. `before` is the verdict of the last report, and `before_name` is
    what people call that.
    """

    verdict: FleetVerdict
    results: Mapping[str, NodeResult]
    references: Mapping[str, References] = field(default_factory=dict)
    past: Callable[[NodeResult], Past] = no_past
    before: FleetVerdict | None = None
    before_name: str = ""


@dataclass(frozen=True)
class Report:
    """What there is of a fleet; a part that nobody has is None. `label` stands on top of every page."""

    validation: Validation | None = None
    compliance: Statement | None = None
    label: str = ""
    origin: Origin = field(default_factory=Origin)


#: More points make no better line.
MOST_VALUES = 20


def of_runs(runs: Iterable[PastRun], result: NodeResult) -> Past:
    """Return the numbers of earlier runs of the same plan with the same torch."""
    how = result.plan, result.machine.torch
    earlier = (run for run in runs if run.started_at < result.started_at and (run.plan, run.torch) == how)
    found = by_key(
        ((Metric(one.test, one.method, one.name, one.taken), one.where), PastValue(run.started_at, one.value))
        for run in sorted(earlier, key=lambda run: run.started_at)
        for one in run.numbers
    )
    return {key: values[-MOST_VALUES:] for key, values in found.items()}
