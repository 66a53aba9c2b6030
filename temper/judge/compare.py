"""Two results, or two reports, side by side: what became better, what worse, what is the same within noise.

Numbers pair by node, test, metric, conditions and GPU (by UUID; by index where the GPUs are others). Numbers
of different methods do not compare, and that is said.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import hypot

from temper.judge import pairing
from validation.model import checksums
from validation.model.contract import Finding, Measurement, NodeResult, State, StringEnum, TestResult
from validation.model.grouping import by_key
from validation.model.printable import one_line
from validation.model.quantities import is_searched, label, number, on_gpu, unit
from validation.verdict.baseline import IQR_TO_SIGMA

#: A smaller change is none: GPUs repeat themselves to 1 or 2 %.
LEAST_CHANGE = 0.02
#: How many standard deviations of both numbers a change must exceed.
NOISE_Z = 2.0


class Trend(StringEnum):
    """Which way something went."""

    WORSE = "worse"
    GONE = "gone"  # the first has it, the second could have and has not
    BETTER = "better"
    SAME = "same"
    UNKNOWN = "?"  # it is new, or was measured in another way


@dataclass(frozen=True)
class Change:
    """One thing that both sides, or one, say of a node; `text` is a sentence."""

    node: str
    trend: Trend
    text: str


def compare(before: Mapping[str, NodeResult], after: Mapping[str, NodeResult]) -> list[Change]:
    """Return every number, state and finding of both sides, node by node.

    Two single results compare whatever their nodes are called.
    """
    if len(before) == len(after) == 1 and before.keys() != after.keys():
        ((first, old),), ((second, new),) = before.items(), after.items()
        return list(_node(f"{first} and {second}", old, new))
    changes: list[Change] = []
    for name in sorted(before.keys() | after.keys()):
        if name in before and name in after:
            changes += _node(name, before[name], after[name])
        else:
            changes.append(_only(name, "", name in before))
    return changes


def text(changes: Iterable[Change], *, everything: bool = False) -> str:
    """Return the changes for people; what stayed the same is counted, or listed too."""
    by_node = by_key((change.node, change) for change in changes)
    lines = []
    for node, found in by_node.items():
        lines.append(f"{one_line(node)}:")
        for trend in Trend:
            if trend is not Trend.SAME or everything:
                lines += [
                    f"  {trend:<7} {one_line(change.text)}" for change in found if change.trend is trend
                ]
        same = sum(change.trend is Trend.SAME for change in found)
        if same and not everything:
            lines.append(f"  {same} of {len(found)} are the same within their noise")
    counts = {
        trend: sum(change.trend is trend for found in by_node.values() for change in found) for trend in Trend
    }
    gone = f", {counts[Trend.GONE]} gone" if counts[Trend.GONE] else ""
    lines.append(
        f"{counts[Trend.WORSE]} worse, {counts[Trend.BETTER]} better, {counts[Trend.SAME]} the same, "
        f"{counts[Trend.UNKNOWN]} not comparable{gone}."
    )
    return "\n".join(lines) + "\n"


def _node(name: str, before: NodeResult, after: NodeResult) -> Iterator[Change]:
    for what in ("system", "kernel", "driver", "torch", "cpu_model"):
        old, new = getattr(before.machine, what), getattr(after.machine, what)
        if old != new:
            yield Change(
                name, Trend.UNKNOWN, f"{what.replace('_', ' ')}: {old or 'none'}, now {new or 'none'}"
            )
    if len(after.gpus) < len(before.gpus):
        yield Change(name, Trend.WORSE, f"{len(after.gpus)} GPUs, were {len(before.gpus)}")
    old_tests, new_tests = ({test.id: test for test in result.tests} for result in (before, after))
    for test_id in dict.fromkeys([*old_tests, *new_tests]):
        old_test, new_test = old_tests.get(test_id), new_tests.get(test_id)
        if old_test and new_test:
            yield from _states(name, old_test, new_test)
            yield from _findings(name, old_test, new_test)
            yield from _numbers(name, before, old_test, after, new_test)
            yield from _digests(name, before, old_test, after, new_test)
        else:
            never = old_test is not None and old_test.state is State.NOT_RUN
            yield _only(name, test_id, old_test is not None, expected=before.plan == after.plan and not never)


def _states(name: str, old: TestResult, new: TestResult) -> Iterator[Change]:
    if old.state is not new.state:
        trend = Trend.WORSE if new.state.severity > old.state.severity else Trend.BETTER
        reason = f" ({new.reason or old.reason})" if State.NOT_RUN in {old.state, new.state} else ""
        yield Change(name, trend, f"{old.id}: was {old.state}, is {new.state}{reason}")


def _findings(name: str, old: TestResult, new: TestResult) -> Iterator[Change]:
    def keys(test: TestResult) -> dict[Hashable, Finding]:
        return {(finding.code, finding.device): finding for finding in test.findings}

    was, now = keys(old), keys(new)
    for key in now.keys() - was.keys():
        yield Change(name, Trend.WORSE, f"{new.id}: {now[key].text}")
    for key in was.keys() - now.keys():
        yield Change(name, Trend.BETTER, f"{old.id}: no longer: {was[key].text}")


def _numbers(
    name: str, before: NodeResult, old: TestResult, after: NodeResult, new: TestResult
) -> Iterator[Change]:
    if State.NOT_RUN in {old.state, new.state}:
        return
    by_uuid = pairing.same_gpus(before, after)
    was = pairing.numbers(old, before, by_uuid=by_uuid)
    now = pairing.numbers(new, after, by_uuid=by_uuid)
    if was and old.method != new.method:
        yield Change(
            name, Trend.UNKNOWN, f"{old.id}: measured by method {old.method}, now by method {new.method}"
        )
        return
    for key in dict.fromkeys([*was, *now]):
        one, other = was.get(key), now.get(key)
        known = other or one
        assert known is not None
        what = f"{old.id}: {label(known.name)}{_size(known)}{on_gpu(known.device)}"
        if one and other:
            yield _change(name, what, one, other)
        else:
            expected = before.plan == after.plan and not is_searched(known.name)
            yield _only(name, what, one is not None, expected=expected)


def _digests(
    name: str, before: NodeResult, old: TestResult, after: NodeResult, new: TestResult
) -> Iterator[Change]:
    """Yield the bits of products: they stay what they were, where hardware and software did."""
    if not (old.digests and new.digests):
        return
    by_uuid = pairing.same_gpus(before, after)
    was = pairing.digests(old, before, by_uuid=by_uuid)
    now = pairing.digests(new, after, by_uuid=by_uuid)
    common = [key for key in now if key in was]
    if len(common) < max(len(was), len(now)):
        left = max(len(was), len(now)) - len(common)
        text = f"{new.id}: {left} products not compared bit for bit: shapes, GPUs or libraries are others"
        yield Change(name, Trend.UNKNOWN, text)
    other_driver = before.machine.driver != after.machine.driver
    for key in common:
        what = f"{new.id}: the bits of the {checksums.product(now[key])}{on_gpu(now[key].device)}"
        if was[key].value == now[key].value:
            yield Change(name, Trend.SAME, f"{what} are the same")
        elif other_driver:
            yield Change(name, Trend.UNKNOWN, f"{what} are others, with another driver")
        else:
            yield Change(name, Trend.WORSE, f"{what} are others, with the same software")


def _only(name: str, what: str, in_first: bool, *, expected: bool = True) -> Change:
    """Something that is on one side only.

    What was not run before, and what another plan does not measure, is not `expected` and so not gone.
    """
    trend = Trend.GONE if in_first and expected else Trend.UNKNOWN
    side = f"only the {'first' if in_first else 'second'} has"
    return Change(name, trend, f"{what}: {side} it" if what else f"{side} a result of it")


def _change(name: str, what: str, old: Measurement, new: Measurement) -> Change:
    change = new.value / old.value - 1
    noise = max(LEAST_CHANGE, NOISE_Z * hypot(old.spread, new.spread) / IQR_TO_SIGMA)
    trend = Trend.SAME if abs(change) <= noise else Trend.BETTER if change > 0 else Trend.WORSE
    said = f"{number(old.value)}, now {number(new.value)} {unit(new.name)}, {change:+.0%} (noise {noise:.0%})"
    return Change(name, trend, f"{what} {said}")


def _size(measurement: Measurement) -> str:
    size = measurement.conditions.get("size_bytes")
    return f" of {size / 1e6:.0f} MB" if isinstance(size, int) else ""
