"""What measurements recommend to whoever trains on a node: settings, gains and savings, as numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from temper.report import svg
from temper.report.words import SHARE, is_number, number, percent
from validation.backends.protocol import MIXED
from validation.model.contract import NodeResult, TestResult

WAYS = {
    "accumulated": "Accumulating gradients over four parts of the batch",
    "checkpointed": "Checkpointing activations",
}
AMP = "Automatic mixed precision"
#: Of a profile: the end of its metric's name, the class of its colour, what the part is called.
SHARES = (
    ("computing", "good", "computing"),
    ("loading", "degraded", "loading data"),
    ("idle", "unknown", "idle"),
)


@dataclass(frozen=True)
class Advice:
    """One recommendation: its subject, what to do or expect, which test says so, and a chart, if any."""

    subject: str
    text: str
    test: str
    where: str = ""
    chart: str = ""


def of_node(result: NodeResult) -> list[Advice]:
    """Return what the tests of a node recommend; nothing where none of them ran."""
    return [advice for test in result.tests for advice in _of_test(test)]


def _of_test(test: TestResult) -> Iterator[Advice]:
    found: dict[str, list[str]] = {}
    for who, details in test.details.items():
        if isinstance(details, dict):
            for subject, text in _said(details):
                found.setdefault(f"{subject}\0{text}", []).append(who)
    for key, members in found.items():
        subject, _, text = key.partition("\0")
        yield Advice(subject, text, test.id, _together(members))
    if test.id.endswith("_batch"):
        yield from _batches(test)
    if test.id.endswith("_profile"):
        yield from _profiles(test)


def _said(details: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what the details of one process say."""
    advice = details.get("advice")
    # Results from before 2026-11-23 have one text, which is about this subject.
    for subject, texts in ({"DataLoader": [advice]} if isinstance(advice, str) else _lists(advice)).items():
        yield from ((subject, text) for text in texts if isinstance(text, str))
    for mixed in MIXED:
        for way, gain in _numbers(details.get(f"{mixed}_gain_over")):
            verb = "times as fast as" if gain >= 1 else "times as fast as (slower than)"
            yield AMP, f"a step in {mixed} is {number(gain)} {verb} in {way}"
    if skipped := dict(_numbers(details.get("skipped_steps"))):
        steps = f"{number(skipped.get('skipped', 0))} of {number(skipped.get('steps'))} steps"
        yield AMP, f"{steps} in fp16 were skipped, because gradients were not finite at first; that is usual"
    speeds = dict(_numbers(details.get("speed_over_plain")))
    for way, memory in _numbers(details.get("memory_over_plain")):
        saved = f"needs {percent(memory)} of the memory of a plain step"
        speed = f", at {percent(speeds[way])} of its speed" if way in speeds else ""
        yield "Memory of a training step", f"{WAYS.get(way, way)} {saved}{speed}"


def _lists(found: Any) -> dict[str, list[Any]]:
    """Return what a check advises, by subject; nothing of any other form."""
    return (
        {str(subject): texts for subject, texts in found.items() if isinstance(texts, list)}
        if isinstance(found, dict)
        else {}
    )


def _numbers(found: Any) -> list[tuple[str, float]]:
    return (
        [(str(name), value) for name, value in found.items() if is_number(value)]
        if isinstance(found, dict)
        else []
    )


def _batches(test: TestResult) -> Iterator[Advice]:
    batches: dict[float, list[str]] = {}
    for one in test.measurements:
        if one.name == "largest_batch_samples":
            batches.setdefault(one.value, []).append("the CPU" if one.device is None else f"GPU {one.device}")
    for batch, members in batches.items():
        text = f"the largest batch of the test's model that fits is {number(batch)}"
        yield Advice("Batch size", text, test.id, _together(members))


def _profiles(test: TestResult) -> Iterator[Advice]:
    shares: dict[int | None, dict[str, float]] = {}
    for one in test.measurements:
        if one.name.endswith(SHARE) and is_number(one.value):
            shares.setdefault(one.device, {})[one.name.removesuffix(SHARE)] = one.value
    alike: dict[tuple[tuple[str, str, float], ...], list[str]] = {}
    for device, found in shares.items():
        parts = tuple((kind, name, found[part]) for part, kind, name in SHARES if part in found)
        alike.setdefault(parts, []).append("the CPU" if device is None else f"GPU {device}")
    for parts, members in alike.items():
        text, where = ", ".join(f"{name} {percent(part)}" for _, name, part in parts), _together(members)
        yield Advice(
            "Where a step's time goes", text, test.id, where, svg.shares(parts, f"Profile of {where}")
        )


def _together(members: list[str]) -> str:
    """`GPU 0, 1, 2`."""
    names = [member.removeprefix("GPU ") if place else member for place, member in enumerate(members)]
    return ", ".join(names)
