"""Earlier numbers of a node from the runs that validation keeps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from temper.report.inputs import Metric, Past, PastValue
from validation.model.contract import NodeResult

if TYPE_CHECKING:
    from temper.judge.history import PastRun

#: More points make no better line.
MOST_VALUES = 20


def of_runs(runs: Iterable[PastRun], result: NodeResult) -> Past:
    """Return the numbers of earlier runs of the same plan with the same torch."""
    found: dict[tuple[Metric, str], list[PastValue]] = {}
    for run in sorted(runs, key=lambda run: run.started_at):
        if run.started_at < result.started_at and (run.plan, run.torch) == (
            result.plan,
            result.machine.torch,
        ):
            for one in run.numbers:
                metric = Metric(one.test, one.method, one.name, one.taken)
                found.setdefault((metric, one.where), []).append(PastValue(run.started_at, one.value))
    return {key: values[-MOST_VALUES:] for key, values in found.items()}
