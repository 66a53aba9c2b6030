"""Burn-in: the same tests again and again for hours, stopped by the first fault, resumed when interrupted.

What is kept of all rounds is what a sceptic asks for: the worst state, every finding once, and each number at
its lowest.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from validation.comparison import conditions_key, is_rate
from validation.contract import SCHEMA_VERSION, ContractError, State, TestResult, dumps, loads
from validation.report import write_atomically

if TYPE_CHECKING:
    from pathlib import Path

    from validation.contract import Measurement

SEVERITY = (State.FAIL, State.NOT_RUN, State.DEGRADED, State.PASS)


@dataclass(frozen=True)
class Rounds:
    """What a burn-in has found so far; `elapsed_s` without the time in which it was interrupted."""

    schema_version: int
    node: str
    plan: str
    elapsed_s: float = 0.0
    count: int = 0
    tests: tuple[TestResult, ...] = ()

    @property
    def ended_early(self) -> bool:
        """Whether going on makes no sense: something failed, or nothing can run here."""
        states = {test.state for test in self.tests}
        return State.FAIL in states or not states - {State.NOT_RUN}

    def plus(self, results: list[TestResult], elapsed_s: float) -> Rounds:
        """The same with one round more."""
        before = {test.id: test for test in self.tests}
        merged = tuple(merge(before.get(test.id), test) for test in results)
        kept = tuple(test for test in self.tests if test.id not in {one.id for one in results})
        return dataclasses.replace(
            self, elapsed_s=self.elapsed_s + elapsed_s, count=self.count + 1, tests=(*kept, *merged)
        )


def merge(before: TestResult | None, now: TestResult) -> TestResult:
    """One result from two rounds of a test."""
    if before is None:
        return now
    worse = min((before, now), key=lambda test: SEVERITY.index(test.state))
    seen = {(finding.code, finding.device) for finding in before.findings}
    new = tuple(finding for finding in now.findings if (finding.code, finding.device) not in seen)
    lowest: dict[object, Measurement] = {}
    for one in (*before.measurements, *now.measurements):
        key = one.name, one.device, conditions_key(one.conditions)
        other = lowest.get(key)
        if other is None or (is_rate(one) and one.value < other.value):
            lowest[key] = one
    return dataclasses.replace(
        now,
        state=worse.state,
        reason=worse.reason,
        duration_s=round(before.duration_s + now.duration_s, 3),
        measurements=tuple(lowest.values()),
        findings=before.findings + new,
    )


def load(path: Path | None, node: str, plan: str) -> Rounds:
    """What an interrupted burn-in of this node and plan left, else a fresh start. Raises OSError."""
    fresh = Rounds(SCHEMA_VERSION, node, plan)
    if path is None or not path.exists():
        return fresh
    try:
        found = loads(Rounds, path.read_text())
    except ContractError:
        return fresh  # a damaged file costs the rounds, not the run
    same = (found.schema_version, found.node, found.plan) == (SCHEMA_VERSION, node, plan)
    return found if same else fresh


def save(path: Path | None, rounds: Rounds) -> None:
    """Keep what was found, for a run that is interrupted. Raises OSError."""
    if path is not None:
        write_atomically(path, dumps(rounds))
