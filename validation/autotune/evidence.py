"""What a search found on a node: the document that it leaves, and what people read of it."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from validation.autotune.knobs import KINDS, UNSET
from validation.autotune.search import Compared, Decision, KnobVerdict
from validation.autotune.trials import METRICS
from validation.model.bounds import Moment, Name, Seconds
from validation.model.contract import MOST_RESULT_BYTES, ContractError, Machine, loads
from validation.model.printable import one_line
from validation.model.quantities import number, unit

AUTOTUNE_VERSION = 1


@dataclass(frozen=True)
class LeftOut:
    """A knob that was not tried here, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class Evidence:
    """What was tried on a node, every pair of it, and what is worth keeping.

    `processes` is how many a job was taken to have, `seed` repeats the order of the trials. `restored` says
    what had to be restored on the node at the start, from a run that was ended. `nodes` are those that were
    tuned together, with this `library`; none where the node was tuned by itself.
    """

    schema_version: int
    node: Name
    started_at: Moment
    duration_s: Seconds
    seed: int
    machine: Machine
    processes: int
    decision: Decision
    left_out: tuple[LeftOut, ...] = ()
    restored: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    library: str = ""


def as_another(evidence: Evidence, knob: str, names: Mapping[str, str]) -> Evidence:
    """Return the same as another of these nodes has it, which has other `names` for the values of a knob."""

    def named(value: str) -> str:
        return names.get(value, value)

    knobs = tuple(
        replace(
            one,
            start=named(one.start),
            kept=one.kept and named(one.kept),
            tried=tuple(replace(each, value=named(each.value)) for each in one.tried),
        )
        if one.name == knob
        else one
        for one in evidence.decision.knobs
    )
    final = []
    for one in evidence.decision.final:
        pairs = [pair.partition("=") for pair in one.value.split(", ")]
        values = ", ".join(f"{name}={named(value) if name == knob else value}" for name, _, value in pairs)
        final.append(replace(one, value=values))
    return replace(evidence, decision=Decision(knobs, tuple(final)))


def read(text: str | bytes) -> Evidence:
    """Evidence from JSON. Raises ContractError."""
    found = loads(Evidence, text, MOST_RESULT_BYTES)
    if found.schema_version != AUTOTUNE_VERSION:
        raise ContractError(
            f"evidence of schema version {found.schema_version}; this program reads {AUTOTUNE_VERSION}"
        )
    for knob in found.decision.knobs:
        if knob.name not in KINDS or not (knob.kept is None or knob.tried):
            raise ContractError(f"{knob.name} is no setting that this program knows, or nothing was tried")
    if any(one.gain is not None and not one.pairs for one in comparisons(found.decision)):
        raise ContractError("expected the pairs of trials that a gain comes from, found none")
    return found


def text(evidence: Evidence) -> str:
    """Return what people read at the end of a run."""
    trials = 2 * sum(len(one.pairs) for one in comparisons(evidence.decision))
    lines = [f"Autotune of {evidence.node}: {evidence.duration_s / 60:.0f} min, {trials} trials."]
    lines += [f"  {sentence}" for sentence in evidence.restored]
    for knob in evidence.decision.knobs:
        lines.append(f"  {knob.name}: {verdict(knob)}")
    lines += [f"  {one.name}: not tried: {one.reason}" for one in evidence.left_out]
    if proven := held(evidence.decision):
        lines.append("All that is kept, together, measured again against the start:")
        lines += [f"  {brought(one)}" for one in proven]
    else:
        lines.append("Nothing is kept: the node stays as it is.")
    return "".join(f"{one_line(line)}\n" for line in lines)


def verdict(knob: KnobVerdict) -> str:
    """`8 in place of 64: better, and confirmed by fresh trials`."""
    start = shown(knob.start)
    return f"{start} stays: {knob.reason}" if knob.kept is None else f"{knob.kept} in place of {start}"


def shown(value: str) -> str:
    """Return a value of a knob, for people."""
    return "unset" if value == UNSET else value


def held(decision: Decision) -> list[Compared]:
    """Return the last comparison of each objective with the start, of what was kept in the end."""
    kept = [f"{one.name}={one.kept}" for one in decision.knobs if one.kept is not None]
    return [one for one in decision.final if kept and one.value == ", ".join(kept)]


def brought(compared: Compared) -> str:
    """`cpu_training 30.1 -> 88.5 samples/s, +194.0% (+180.2% to +207.8%, 10 pairs)`."""
    if compared.gain is None or compared.low is None or compared.high is None:
        return f"{compared.objective}: {compared.reason}"
    rates = [
        number(statistics.median(side))
        for side in ([pair.base for pair in compared.pairs], [pair.other for pair in compared.pairs])
    ]
    return (
        f"{compared.objective} {' -> '.join(rates)} {unit(METRICS.get(compared.objective, ''))}, "
        f"{compared.gain:+.1%} ({compared.low:+.1%} to {compared.high:+.1%}, {len(compared.pairs)} pairs)"
    )


def comparisons(decision: Decision) -> Iterator[Compared]:
    """Yield every comparison that was made."""
    for knob in decision.knobs:
        yield from knob.tried
    yield from decision.final
