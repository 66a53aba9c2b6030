"""Run a plan's tests on this node, one after the other, and put the results together."""

from __future__ import annotations

import datetime
import time
from typing import TYPE_CHECKING

from validation import machine
from validation.checks import Node
from validation.checks.registry import CHECKS
from validation.contract import SCHEMA_VERSION, NodeResult

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from validation.contract import TestResult
    from validation.expectations import Expectation
    from validation.plans import Plan


def run_plan(
    plan: Plan,
    expectation: Expectation,
    name: str,
    tests: Iterable[str],
    progress: Callable[[str, TestResult | None], None],
) -> NodeResult:
    """Run `tests` in the order of the registry.

    `progress` hears of each test when it starts (None) and when it ends.
    """
    node = Node(plan, expectation)
    wanted = set(tests)
    started_at, started = datetime.datetime.now(datetime.UTC), time.monotonic()
    results = []
    for check in CHECKS.values():
        if check.id in wanted:
            progress(check.id, None)
            results.append(check.run(node))
            progress(check.id, results[-1])
    return NodeResult(
        schema_version=SCHEMA_VERSION,
        node=name,
        plan=plan.name,
        started_at=started_at.isoformat(timespec="seconds"),
        duration_s=round(time.monotonic() - started, 3),
        machine=machine.describe(),
        gpus=node.gpus,
        tests=tuple(results),
    )
