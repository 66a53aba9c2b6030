"""The third judge: the node's own past (history_store.py keeps it).

Numbers of GPUs, and the checksums of their products: one that changed on the same GPU with the same software
is silent data corruption (checksums.py).

Compared is like with like: the same test and method, plan (a GPU that is loaded for longer is warmer, and
slower), metric and conditions, GPU (by its UUID) and torch, and only with runs that passed. A driver is what
one upgrades to be faster or to be rid of a fault, so another one compares, and is named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeAlias, TypeVar

from validation.findings.catalogue import finding
from validation.model import checksums
from validation.model.bounds import Count, Moment, Name
from validation.model.contract import (
    Conditions,
    Digest,
    Measurement,
    NodeResult,
    State,
    TestResult,
    UnderConditions,
)
from validation.model.grouping import by_key
from validation.model.quantities import is_rate
from validation.verdict.baseline import Baseline, BaselineJudge, Comparison, Sensitivity
from validation.verdict.verdicts import NodeVerdict

#: What makes two numbers, or two digests, compare: test, method, name, GPU and conditions.
_Kind: TypeAlias = "tuple[str, int, str, str, tuple[tuple[str, str], ...]]"
#: One GPU repeats itself to 1 or 2 %.
JUDGE = BaselineJudge("below-own-past", Sensitivity(degraded=0.05, fail=0.10))
#: Of how many runs the median is taken: of the latest, and of the first, so that a GPU which becomes slower
#: bit by bit cannot take its measure along.
MOST_RUNS = 20
#: The finding on a node that has fewer GPUs than it had.
GONE = "gpu-gone"
NO_EARLIER_RUN = Comparison(notes=("not compared with its own past: no earlier run of the same kind passed",))


class _Comparable(UnderConditions):
    """What of a number or a digest says with which it compares."""

    test: str
    method: int
    name: str
    where: str

    @cached_property
    def kind(self) -> _Kind:
        """What makes it compare."""
        return (self.test, self.method, self.name, self.where, self.taken)


@dataclass(frozen=True)
class PastNumber(_Comparable):
    """One number of a test that passed. `where` is the UUID of its GPU, empty for the node as a whole."""

    test: Name
    method: Count
    name: Name
    where: Name
    value: float
    conditions: Conditions = field(default_factory=dict)


@dataclass(frozen=True)
class PastDigest(_Comparable):
    """One checksum, of a test with nothing wrong about its bits. `where` is the UUID of its GPU."""

    test: Name
    method: Count
    name: Name
    where: Name
    value: Name
    conditions: Conditions = field(default_factory=dict)


_One = TypeVar("_One", PastNumber, PastDigest)


@dataclass(frozen=True)
class PastRun:
    """What is kept of a run."""

    node: Name
    started_at: Moment
    plan: Name
    torch: Name | None
    driver: Name | None
    numbers: tuple[PastNumber, ...]
    digests: tuple[PastDigest, ...] = ()


@dataclass(frozen=True)
class Past:
    """A node's earlier runs, and what of its past does not count."""

    runs: tuple[PastRun, ...] = ()
    notes: tuple[str, ...] = ()


def run_of(result: NodeResult, verdict: NodeVerdict) -> PastRun | None:
    """Return what is kept of a run; None where nothing of it may be the measure of later ones.

    Of one in which a GPU was gone nothing is: after it, nobody would miss that GPU any more.
    """
    if any(found.code == GONE for test in verdict.tests for found in test.findings):
        return None
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
    if not (numbers or digests):
        return None
    machine = result.machine
    return PastRun(
        result.node, result.started_at, result.plan, machine.torch, machine.driver, numbers, digests
    )


def basis(
    result: NodeResult,
    runs: Sequence[PastRun],
    numbers: Callable[[int], tuple[PastNumber, ...]],
    digests: Callable[[int], tuple[PastDigest, ...]],
) -> tuple[PastRun, ...]:
    """Of a node's runs what `compare` with a result rests on: it says the same of that as of all of them.

    `runs` are whole but for their numbers and digests, the oldest first; the two functions read those of one,
    by its place. However long a history is, no more than twice MOST_RUNS are read of a node that passes.
    """
    earlier = [place for place, run in enumerate(runs) if run.started_at < result.started_at]
    same_kind = [place for place in earlier if _is_like(runs[place], result)]
    rates = {
        _kind(test, one, _where(result, one))
        for test in result.tests
        for one in filter(is_rate, test.measurements)
    }
    with_numbers = _with_enough(rates, same_kind, numbers) | _with_enough(rates, same_kind[::-1], numbers)
    for place in reversed(earlier):
        with_numbers.add(place)
        if any(one.where for one in numbers(place)):
            break
    with_digests = _with_digests(result, runs, earlier, digests)
    return tuple(
        replace(
            runs[place],
            numbers=numbers(place) if place in with_numbers else (),
            digests=digests(place) if place in with_digests else (),
        )
        for place in sorted({*with_numbers, *with_digests, len(runs) - 1} - {-1})
    )


def _with_enough(
    rates: set[_Kind], places: Sequence[int], numbers: Callable[[int], tuple[PastNumber, ...]]
) -> set[int]:
    """Return the first of these runs, until each kind has as many numbers as a median is taken of."""
    if rates and len(places) <= MOST_RUNS:
        return set(places)
    found: set[int] = set()
    left = dict.fromkeys(rates, MOST_RUNS)
    for place in places:
        if not left:
            break
        found.add(place)
        for kind in left.keys() & {one.kind for one in numbers(place)}:
            left[kind] -= 1
            if not left[kind]:
                del left[kind]
    return found


def _with_digests(
    result: NodeResult,
    runs: Sequence[PastRun],
    earlier: list[int],
    digests: Callable[[int], tuple[PastDigest, ...]],
) -> set[int]:
    """Return the last runs, until each kind has a digest with the driver of now, or with any without that."""
    found: set[int] = set()
    driver = result.machine.driver
    first_with_driver = next((place for place in earlier if runs[place].driver == driver), len(runs))
    left = {
        _kind(test, one, gpu.uuid)
        for test in result.tests
        for one in test.digests
        if (gpu := checksums.gpu_of(one, result)) and gpu.uuid
    }
    unknown = set(left)
    for place in reversed(earlier):
        if not left or (not unknown and place < first_with_driver):
            break
        found.add(place)
        there = {one.kind for one in digests(place)}
        unknown -= there
        if runs[place].driver == driver:
            left -= there
    return found


def compare(result: NodeResult, past: Past) -> dict[str, Comparison]:
    """Return what a node's past says of each test that measured something, and of GPUs that are gone."""
    earlier = sorted(
        (run for run in past.runs if run.started_at < result.started_at), key=lambda run: run.started_at
    )
    same_kind = [run for run in earlier if _is_like(run, result)]
    numbers = _by_kind((run, run.numbers) for run in same_kind)
    digests = _by_kind((run, run.digests) for run in earlier)
    said: dict[str, Comparison] = {}
    for test in result.tests:
        heard = [
            _judge(test, measurement, result, numbers) for measurement in filter(is_rate, test.measurements)
        ]
        if test.digests:
            heard.append(_same_bits(test, result, digests))
        if heard:
            said[test.id] = Comparison.of([Comparison(notes=past.notes), *heard])
    if result.tests:
        # Health tells of GPUs; a run without it must not lose them either.
        place = next((test.id for test in result.tests if test.id == "health"), result.tests[0].id)
        said[place] = said.get(place, Comparison()) + _gone(result, earlier)
    return said


def _with_sound_bits(verdict: NodeVerdict) -> set[str]:
    """Return tests whose checksums may be the measure of later ones.

    Those of a slow GPU may, and of one that differs from others: its past tells whether it repeats itself.
    """
    return {
        test.id
        for test in verdict.tests
        if test.state in {State.PASS, State.DEGRADED}
        and not checksums.UNSTABLE & {finding.code for finding in test.findings}
    }


def _by_kind(runs: Iterable[tuple[PastRun, Iterable[_One]]]) -> dict[_Kind, list[tuple[PastRun, _One]]]:
    """Return the numbers or digests of runs by what makes them compare.

    Looked for once, and not for each number.
    """
    return by_key((one.kind, (run, one)) for run, ones in runs for one in ones)


def _is_like(run: PastRun, result: NodeResult) -> bool:
    return (run.torch, run.plan) == (result.machine.torch, result.plan)


def _kind(test: TestResult, one: Measurement | Digest, where: str) -> _Kind:
    return (test.id, test.method, one.name, where, one.taken)


def _same_bits(
    test: TestResult, result: NodeResult, earlier: dict[_Kind, list[tuple[PastRun, PastDigest]]]
) -> Comparison:
    """Return whether the products of each GPU still have the bits that they had."""
    findings, alone, other_driver = [], 0, []
    for digest in test.digests:
        gpu = checksums.gpu_of(digest, result)
        # The same product on the same GPU with the same libraries.
        past = earlier.get(_kind(test, digest, gpu.uuid), []) if gpu and gpu.uuid else []
        with_driver = [one for one in past if one[0].driver == result.machine.driver]
        if not past:
            alone += 1
        elif not with_driver:
            # The driver compiles what a library does not bring for a newer GPU: other bits prove nothing.
            other_driver += [(run, digest) for run, one in past[-1:] if one.value != digest.value]
        elif with_driver[-1][1].value != digest.value:
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
        gone = finding(GONE, now=len(now), then=len(then), date=run.started_at[:10], lost=lost)
        return Comparison((gone,))
    return Comparison(notes=(f"other GPUs than in its run of {run.started_at[:10]}: {lost}",) if lost else ())


def _judge(
    test: TestResult,
    measurement: Measurement,
    result: NodeResult,
    earlier: dict[_Kind, list[tuple[PastRun, PastNumber]]],
) -> Comparison:
    found = earlier.get(_kind(test, measurement, _where(result, measurement))) if earlier else None
    if not found:
        return NO_EARLIER_RUN
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
    found: list[tuple[PastRun, PastNumber]],
    whose: str,
) -> Comparison:
    baseline = Baseline.of([one.value for _, one in found])
    return JUDGE.judge(test, measurement, baseline, whose, lambda: _other_driver(result, found))


def _other_driver(result: NodeResult, found: list[tuple[PastRun, PastNumber]]) -> str:
    drivers = Counter(run.driver for run, _ in found)
    common, _ = drivers.most_common(1)[0]
    now = result.machine.driver
    return "" if now == common else f"; driver {common or 'unknown'} then, {now or 'unknown'} now"


def _where(result: NodeResult, measurement: Measurement) -> str:
    """Return the UUID of the GPU that a number is of, empty for the node as a whole."""
    gpus = result.gpus_of(measurement.device)
    return gpus[0].uuid if gpus and measurement.device is not None else ""
