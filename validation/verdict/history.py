"""The third judge: the node's own past. One file a node, one line a run, kept beside the reports.

Numbers of GPUs, and the checksums of their products: one that changed on the same GPU with the same software
is silent data corruption (checksums.py).

Compared is like with like: the same test and method, plan (a GPU that is loaded for longer is warmer, and
slower), metric and conditions, GPU (by its UUID) and torch, and only with runs that passed. A driver is what
one upgrades to be faster or to be rid of a fault, so another one compares, and is named.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from validation.findings.catalogue import finding
from validation.model import checksums
from validation.model.contract import HISTORY_VERSION, ContractError, State, decode, encode, parse
from validation.model.quantities import conditions_key, is_rate
from validation.verdict.baseline import Baseline, BaselineJudge, Comparison, Sensitivity

if TYPE_CHECKING:
    from pathlib import Path

    from validation.model.contract import Digest, Measurement, NodeResult, TestResult
    from validation.verdict.verdicts import NodeVerdict

#: One GPU repeats itself to 1 or 2 %.
JUDGE = BaselineJudge("below-own-past", Sensitivity(degraded=0.05, fail=0.10))
#: Of how many runs the median is taken: of the latest, and of the first, so that a GPU which becomes slower
#: bit by bit cannot take its measure along.
MOST_RUNS = 20
#: Versions of a line that mean the same as this one: 2 had no checksums.
READABLE = {2, HISTORY_VERSION}


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
class PastDigest:
    """One checksum, of a test with nothing wrong about its bits. `where` is the UUID of its GPU."""

    test: str
    method: int
    name: str
    where: str
    value: str
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
    digests: tuple[PastDigest, ...] = ()


@dataclass(frozen=True)
class Past:
    """A node's earlier runs, and how many lines of its file could not be read, or are of another version."""

    runs: tuple[PastRun, ...] = ()
    unreadable: int = 0
    other_version: int = 0

    @property
    def notes(self) -> tuple[str, ...]:
        """What of the file does not count."""
        said = ((self.unreadable, "cannot be read"), (self.other_version, "are of another schema version"))
        return tuple(
            f"{count} lines of the node's history {why} and are left out" for count, why in said if count
        )


def read(directory: Path, node: str) -> Past:
    """The earlier runs of a node. Raises OSError.

    A damaged line costs no verdict: it is left out, and that is said.
    """
    path = _path(directory, node)
    if not path.exists():
        return Past()
    runs, unreadable, other_version = [], 0, 0
    for line in path.read_text(errors="replace").splitlines():
        try:
            value = parse(line)
            if isinstance(value, dict) and value.get("schema_version", HISTORY_VERSION) not in READABLE:
                other_version += 1
                continue
            runs.append(decode(PastRun, value))
        except ContractError:
            unreadable += 1
    return Past(tuple(runs), unreadable, other_version)


def append(directory: Path, result: NodeResult, verdict: NodeVerdict) -> None:
    """Add a run to its node's history, once. Raises OSError."""
    passed = {test.id for test in verdict.tests if test.state is State.PASS}
    numbers = tuple(
        PastNumber(test.id, test.method, one.name, _where(result, one), one.value, one.conditions)
        for test in result.tests
        if test.id in passed
        for one in filter(is_rate, test.measurements)
    )
    digests = tuple(
        PastDigest(test.id, test.method, one.name, gpu.uuid, one.value, one.conditions)
        for test in result.tests
        if test.id in _with_sound_bits(verdict)
        for one in test.digests
        if (gpu := checksums.gpu_of(one, result)) and gpu.uuid
    )
    if not (numbers or digests) or any(
        run.started_at == result.started_at for run in read(directory, result.node).runs
    ):
        return
    machine = result.machine
    run = PastRun(
        HISTORY_VERSION,
        result.node,
        result.started_at,
        result.plan,
        machine.torch,
        machine.driver,
        numbers,
        digests,
    )
    directory.mkdir(parents=True, exist_ok=True)
    with _path(directory, result.node).open("a") as file:
        # One write: a run that is cut off leaves no half line.
        file.write(json.dumps(encode(run), allow_nan=False) + "\n")


def compare(result: NodeResult, past: Past) -> dict[str, Comparison]:
    """What a node's past says of each of its tests that measured something, and of GPUs that are gone."""
    earlier = sorted(
        (run for run in past.runs if run.started_at < result.started_at), key=lambda run: run.started_at
    )
    said: dict[str, Comparison] = {}
    for test in result.tests:
        for measurement in filter(is_rate, test.measurements):
            found = _numbers_like(test, measurement, result, earlier)
            said.setdefault(test.id, Comparison(notes=past.notes))
            said[test.id] += _judge(test, measurement, result, found)
        if test.digests:
            said.setdefault(test.id, Comparison(notes=past.notes))
            said[test.id] += _same_bits(test, result, earlier)
    if result.tests:
        # Health tells of GPUs; a run without it must not lose them either.
        place = next((test.id for test in result.tests if test.id == "health"), result.tests[0].id)
        said[place] = said.get(place, Comparison()) + _gone(result, earlier)
    return said


def _with_sound_bits(verdict: NodeVerdict) -> set[str]:
    """Tests of which the checksums may be the measure of later ones.

    Those of a slow GPU may, and of one that differs from others: its past tells whether it repeats itself.
    """
    return {
        test.id
        for test in verdict.tests
        if test.state in {State.PASS, State.DEGRADED}
        and not checksums.UNSTABLE & {finding.code for finding in test.findings}
    }


def _same_bits(test: TestResult, result: NodeResult, earlier: list[PastRun]) -> Comparison:
    """Whether the products of each GPU still have the bits that they had."""
    findings, alone, other_driver = [], 0, []
    for digest in test.digests:
        past = _digests_like(test, digest, result, earlier)
        with_driver = [one for one in past if one[0].driver == result.machine.driver]
        if not past:
            alone += 1
        elif not with_driver:
            # The driver compiles what a library does not bring for a newer GPU: other bits prove nothing.
            other_driver += [(run, digest) for run, value in past[-1:] if value != digest.value]
        elif with_driver[-1][1] != digest.value:
            findings.append(
                finding(
                    "differs-from-own-past",
                    gpu=digest.device,
                    product=checksums.product(digest),
                    date=with_driver[-1][0].started_at[:10],
                )
            )
    notes = []
    if alone:
        every = "products were" if alone == len(test.digests) else f"{alone} of its products were"
        notes.append(
            f"{every} not compared bit for bit with its own past: no earlier run with the same software"
        )
    if other_driver:
        what = ", ".join(dict.fromkeys(checksums.product(digest) for _, digest in other_driver))
        run = other_driver[-1][0]
        notes.append(
            f"other bits than in its run of {run.started_at[:10]}, which proves nothing, because the driver "
            f"was {run.driver or 'unknown'} then and is {result.machine.driver or 'unknown'} now: {what}"
        )
    return Comparison(tuple(findings), tuple(notes))


def _digests_like(
    test: TestResult, digest: Digest, result: NodeResult, runs: list[PastRun]
) -> list[tuple[PastRun, str]]:
    """The same product on the same GPU in earlier runs with the same libraries."""
    gpu = checksums.gpu_of(digest, result)
    if gpu is None or not gpu.uuid:
        return []
    wanted = (test.id, test.method, digest.name, gpu.uuid, conditions_key(digest.conditions))
    return [
        (run, one.value)
        for run in runs
        for one in run.digests
        if (one.test, one.method, one.name, one.where, conditions_key(one.conditions)) == wanted
    ]


def _gone(result: NodeResult, earlier: list[PastRun]) -> Comparison:
    """GPUs of the latest run that has any, and that are not there any more.

    What is expected of a node comes from its PCI bus, where a GPU that fell off is not missed.
    """
    had = [(run, gpus) for run in earlier if (gpus := {one.where for one in run.numbers} - {""})]
    if not had:
        return Comparison()
    run, then = had[-1]
    now = {gpu.uuid for gpu in result.gpus}
    lost = ", ".join(sorted(then - now))
    if len(now) < len(then):
        gone = finding("gpu-gone", now=len(now), then=len(then), date=run.started_at[:10], lost=lost)
        return Comparison((gone,))
    return Comparison(notes=(f"other GPUs than in its run of {run.started_at[:10]}: {lost}",) if lost else ())


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
        if (run.torch, run.plan) == (result.machine.torch, result.plan)
        for one in run.numbers
        if (one.test, one.method, one.name, one.where, conditions_key(one.conditions)) == wanted
    ]


def _judge(
    test: TestResult, measurement: Measurement, result: NodeResult, found: list[tuple[PastRun, float]]
) -> Comparison:
    if not found:
        return Comparison(notes=("not compared with its own past: no earlier run of the same kind passed",))
    latest, first = found[-MOST_RUNS:], found[:MOST_RUNS]
    whose = "its only earlier run" if len(latest) == 1 else f"the median of its {len(latest)} earlier runs"
    said = _hold_against(test, measurement, result, latest, whose)
    if not said.findings and len(found) > MOST_RUNS:
        since = f"the median of its first {len(first)} runs, from {first[0][0].started_at[:10]} on"
        said += _hold_against(test, measurement, result, first, since)
    return said


def _hold_against(
    test: TestResult,
    measurement: Measurement,
    result: NodeResult,
    found: list[tuple[PastRun, float]],
    whose: str,
) -> Comparison:
    baseline = Baseline.of([value for _, value in found])
    return JUDGE.judge(test, measurement, baseline, whose, _other_driver(result, found))


def _other_driver(result: NodeResult, found: list[tuple[PastRun, float]]) -> str:
    drivers = Counter(run.driver for run, _ in found)
    common, _ = drivers.most_common(1)[0]
    now = result.machine.driver
    return "" if now == common else f"; driver {common or 'unknown'} then, {now or 'unknown'} now"


def _where(result: NodeResult, measurement: Measurement) -> str:
    return next((gpu.uuid for gpu in result.gpus if gpu.index == measurement.device), "")


def _path(directory: Path, node: str) -> Path:
    return directory / f"{node.replace('/', '_')}.jsonl"
