"""Run a plan's tests on this node, one after the other, once or for hours, and put the results together."""

from __future__ import annotations

import contextlib
import datetime
import time
from typing import TYPE_CHECKING

from validation import burn_in, machine
from validation.checks import Node
from validation.checks.registry import CHECKS
from validation.contract import SCHEMA_VERSION, NodeResult, State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from validation.contract import TestResult
    from validation.expectations import Expectation
    from validation.plans import Plan


def run_plan(
    plan: Plan,
    expectation: Expectation,
    name: str,
    tests: Iterable[str],
    progress: Callable[[str, TestResult | None], None],
    state: Path | None = None,
) -> NodeResult:
    """Run `tests` in the order of the registry; a plan with a duration again and again.

    `progress` hears of each test when it starts (None) and when it ends. The file `state` keeps the rounds of
    a plan with a duration, from which the next run goes on if this one is interrupted. Raises OSError.
    """
    wanted = set(tests)
    started_at, started = datetime.datetime.now(datetime.UTC), time.monotonic()
    rounds = burn_in.load(state if plan.duration_s else None, name, plan.name)
    while True:
        # A new node each time: what was asked once is not asked again, and a round is to see what changed.
        node, round_started = Node(plan, expectation), time.monotonic()
        results = []
        if "health" not in wanted:
            node.look()
        with contextlib.closing(node.kept):
            for check in CHECKS.values():
                if check.id in wanted:
                    progress(check.id, None)
                    results.append(check.run(node))
                    progress(check.id, results[-1])
                    if plan.duration_s and results[-1].state is State.FAIL:
                        break
        rounds = rounds.plus(results, time.monotonic() - round_started)
        if not plan.duration_s or rounds.ended_early or rounds.elapsed_s >= plan.duration_s:
            break
        burn_in.save(state, rounds)
    if state is not None:
        state.unlink(missing_ok=True)
    return NodeResult(
        schema_version=SCHEMA_VERSION,
        node=name,
        plan=plan.name,
        started_at=started_at.isoformat(timespec="seconds"),
        duration_s=round(time.monotonic() - started, 3),
        machine=machine.describe(),
        gpus=node.gpus,
        tests=rounds.tests,
    )
