"""The third judge: the node's own past. One file a node, one line a run, kept beside the reports.

Compared is like with like: the same test and method, metric and conditions, GPU (by its UUID) and torch, and
only with runs that passed. A driver is what one upgrades to be faster or to be rid of a fault, so another one
compares, and is named.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from validation.comparison import (
    Comparison,
    Crowd,
    Sensitivity,
    conditions_key,
    held_back,
    is_rate,
    label,
    number,
    on_gpu,
    quantity,
    unit,
)
from validation.contract import SCHEMA_VERSION, ContractError, Finding, State, encode, loads

if TYPE_CHECKING:
    from pathlib import Path

    from validation.contract import Measurement, NodeResult, TestResult
    from validation.judge import NodeVerdict

#: One GPU repeats itself to 1 or 2 %.
GPU = Sensitivity(degraded=0.05, fail=0.10)
CPU = Sensitivity(degraded=0.20, fail=None)
#: Of how many runs the median is taken, counted from the latest.
MOST_RUNS = 20


@dataclass(frozen=True)
class PastNumber:
    """One number of a test that passed. `where` is the UUID of its GPU, empty for the node as a whole."""

    test: str
    method: int
    name: str
    where: str
    value: float
    conditions: dict[str, int | str] = field(default_factory=dict)


@dataclass(frozen=True)
class PastRun:
    """What is kept of a run: one line of a node's history."""

    schema_version: int
    node: str
    started_at: str
    plan: str
    torch: str | None
    driver: str | None
    numbers: tuple[PastNumber, ...]


@dataclass(frozen=True)
class Past:
    """A node's earlier runs, and how many lines of its file could not be read."""

    runs: tuple[PastRun, ...] = ()
    unreadable: int = 0


def read(directory: Path, node: str) -> Past:
    """The earlier runs of a node. Raises OSError.

    A damaged line costs no verdict: it is left out, and that is said.
    """
    path = _path(directory, node)
    if not path.exists():
        return Past()
    runs, unreadable = [], 0
    for line in path.read_text(errors="replace").splitlines():
        try:
            run = loads(PastRun, line)
        except ContractError:
            unreadable += 1
        else:
            if run.schema_version == SCHEMA_VERSION:
                runs.append(run)
    return Past(tuple(runs), unreadable)


def append(directory: Path, result: NodeResult, verdict: NodeVerdict) -> None:
    """Add a run to its node's history, once. Raises OSError."""
    passed = {test.id for test in verdict.tests if test.state is State.PASS}
    numbers = tuple(
        PastNumber(test.id, test.method, one.name, _where(result, one), one.value, one.conditions)
        for test in result.tests
        if test.id in passed
        for one in filter(is_rate, test.measurements)
    )
    if not numbers or any(run.started_at == result.started_at for run in read(directory, result.node).runs):
        return
    machine = result.machine
    run = PastRun(
        SCHEMA_VERSION,
        result.node,
        result.started_at,
        result.plan,
        machine.torch,
        machine.driver,
        numbers,
    )
    directory.mkdir(parents=True, exist_ok=True)
    with _path(directory, result.node).open("a") as file:
        # One write: a run that is cut off leaves no half line.
        file.write(json.dumps(encode(run), allow_nan=False) + "\n")


def compare(result: NodeResult, past: Past) -> dict[str, Comparison]:
    """What a node's past says of each of its tests that measured something."""
    earlier = sorted(
        (run for run in past.runs if run.started_at < result.started_at), key=lambda run: run.started_at
    )
    said: dict[str, Comparison] = {}
    damaged = f"{past.unreadable} lines of the node's history cannot be read and are left out"
    for test in result.tests:
        for measurement in filter(is_rate, test.measurements):
            found = _numbers_like(test, measurement, result, earlier)
            said.setdefault(test.id, Comparison(notes=(damaged,) if past.unreadable else ()))
            said[test.id] += _judge(test, measurement, result, found[-MOST_RUNS:])
    return said


def _numbers_like(
    test: TestResult, measurement: Measurement, result: NodeResult, runs: list[PastRun]
) -> list[tuple[PastRun, float]]:
    """The same number in earlier runs."""
    wanted = (
        test.id,
        test.method,
        measurement.name,
        _where(result, measurement),
        conditions_key(measurement.conditions),
    )
    return [
        (run, one.value)
        for run in runs
        if run.torch == result.machine.torch
        for one in run.numbers
        if (one.test, one.method, one.name, one.where, conditions_key(one.conditions)) == wanted
    ]


def _judge(
    test: TestResult, measurement: Measurement, result: NodeResult, found: list[tuple[PastRun, float]]
) -> Comparison:
    if not found:
        return Comparison(notes=("not compared with its own past: no earlier run of the same kind passed",))
    crowd = Crowd.of([value for _, value in found])
    on_cpu = not test.id.startswith("gpu_")
    state = crowd.state_of(measurement, CPU if on_cpu else GPU)
    if state is State.PASS:
        return Comparison()
    runs = "its only earlier run" if len(found) == 1 else f"the median of its {len(found)} earlier runs"
    text = (
        f"{label(measurement.name)} {quantity(measurement)}{on_gpu(measurement.device)}, "
        f"{crowd.deficit(measurement.value):.0%} below {runs} ({number(crowd.median)} "
        f"{unit(measurement.name)}){_other_driver(result, found)}{held_back(test, measurement.device)}"
    )
    if on_cpu:
        # Whatever else runs on a node takes CPU time: worth knowing, no fault of the node.
        return Comparison(notes=(text,))
    finding = Finding(
        "below-own-past",
        state,
        text,
        "look for what changed on this node since (`validation compare` shows all of it); to accept the new "
        "level, remove the node's file from the history",
        measurement.device,
    )
    return Comparison((finding,))


def _other_driver(result: NodeResult, found: list[tuple[PastRun, float]]) -> str:
    drivers = Counter(run.driver for run, _ in found)
    common, _ = drivers.most_common(1)[0]
    now = result.machine.driver
    return "" if now == common else f"; driver {common or 'unknown'} then, {now or 'unknown'} now"


def _where(result: NodeResult, measurement: Measurement) -> str:
    return next((gpu.uuid for gpu in result.gpus if gpu.index == measurement.device), "")


def _path(directory: Path, node: str) -> Path:
    return directory / f"{node.replace('/', '_')}.jsonl"
