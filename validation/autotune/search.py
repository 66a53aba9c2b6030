"""Which settings are worth keeping? Pure: asks for one trial after the other, and ends with decisions.

Whoever drives the search measures each Trial and sends the rate back (higher is better), or Failed. Nothing
is measured, set or read here, so that the same code runs on a node and in a simulation with known truths.

A candidate is compared with the settings so far in pairs: both are measured one right after the other, in
random order, so that what drifts on the node moves both. Its gain is the median of the pairs' ratios. Three
stages, each with trials of its own, so that a lucky number is never counted twice:

    screen   each candidate, until it is likely better by more than LEAST_GAIN, or is likely never seen to be
    confirm  the best one of a setting: better by more than LEAST_GAIN and by more than chance explains,
             3.5 standard errors from the median absolute deviation, more where many candidates are tried
    final    all that was kept, together, against the start: what does not hold up is not kept
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import expm1, inf, log, log1p, sqrt
from typing import Annotated

from validation.model.bounds import Bounds
from validation.model.contract import StringEnum
from validation.verdict.baseline import FEW_RUNS, MEDIAN_ERROR, OUTLIER_Z, among, usual_deviation

#: What a setting must bring to be worth a line in an inventory, as a part.
LEAST_GAIN = 0.02
#: A value that somebody sets in an inventory or a job: no template, and nothing that a shell acts on.
Value = Annotated[str, Bounds(64, pattern=r"[A-Za-z0-9_.,:=^@-]*")]
#: How many standard errors a candidate must stand out to be looked at again: it is confirmed by fresh trials.
LIKELY_Z = 2.0
#: After how many pairs it is looked at whether a comparison is decided; after the last nothing more is tried.
SCREEN_LOOKS = (6, 9, 13, 19, 28, 42, 63)
CONFIRM_LOOKS = (10, 14, 20, 28, 40, 56, 80, 112)
#: A gain is not said to be larger: what is measured once may be of any size.
MOST_RATIO = 1e6
#: In the reason of a comparison that ended before it was decided.
UNMEASURED = "could not be measured"
#: Whether an objective loses that nothing was kept for.
BYSTANDER_LOOKS = (20,)


class SearchStage(StringEnum):
    """What a trial is for."""

    SCREEN = "screen"
    CONFIRM = "confirm"
    FINAL = "final"


@dataclass(frozen=True)
class Knob:
    """A setting, the objective that it is for, its value at the start, and what is tried in its place.

    `candidates` stand in the order of preference: of those that are about as good the first is taken.
    """

    name: str
    objective: str
    start: str
    candidates: tuple[str, ...]


@dataclass(frozen=True)
class Trial:
    """What is to be measured next: an objective, with these values of all knobs.

    `after`: how many trials of each objective it takes at least, once this stage is over, to prove what was
    found. A stage that leaves no time for them finds nothing that is kept.
    """

    stage: SearchStage
    objective: str
    settings: Mapping[str, str]
    after: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Failed:
    """A trial that brought no number, and why."""

    reason: str


@dataclass(frozen=True)
class Pair:
    """The rates of two trials, one right after the other; which of them came first was chance."""

    base: float
    other: float
    base_first: bool


@dataclass(frozen=True)
class Compared:
    """A candidate against the settings before it; of the final stage all that was kept against the start.

    `gain` is a part of the rate; from `low` to `high` chance explains it. `reason` says why it is not better.
    """

    stage: SearchStage
    objective: str
    value: str
    pairs: tuple[Pair, ...] = ()
    gain: float | None = None
    low: float | None = None
    high: float | None = None
    better: bool = False
    reason: str = ""


@dataclass(frozen=True)
class KnobVerdict:
    """What became of a knob: `kept` is the value to set, null where the start stays."""

    name: str
    objective: str
    start: str
    kept: Value | None
    reason: str
    tried: tuple[Compared, ...]


@dataclass(frozen=True)
class Decision:
    """What to keep, and the comparisons of all of it together with the start, the last ones first to hold."""

    knobs: tuple[KnobVerdict, ...]
    final: tuple[Compared, ...]


Answer = float | Failed


def search(knobs: Sequence[Knob], seed: int = 0) -> Generator[Trial, Answer, Decision]:
    """Ask for trials until it is known what to keep of these knobs.

    Raises:
        ValueError: two knobs have one name.
    """
    start = {knob.name: knob.start for knob in knobs}
    if len(start) < len(knobs):
        raise ValueError("expected one knob of each name, found two of one")
    chance = random.Random(seed)  # noqa: S311 - the order of trials is no secret
    # Of many candidates one stands out by chance: all together are to err no more often than one.
    confirm_z = OUTLIER_Z * among(sum(len(knob.candidates) for knob in knobs))
    settings = dict(start)
    verdicts: list[KnobVerdict] = []
    for knob in knobs:
        verdict = yield from _tune(knob, settings, confirm_z, chance, _proof(verdicts, knob))
        if verdict.kept is not None:
            settings[knob.name] = verdict.kept
        verdicts.append(verdict)
    return (yield from _finish(verdicts, start, chance))


def least_trials(knobs: Sequence[Knob]) -> int:
    """Return how many trials a search takes at least, which is where no candidate is better."""
    return sum(2 * SCREEN_LOOKS[0] * len(knob.candidates) for knob in knobs)


def _proof(verdicts: Sequence[KnobVerdict], knob: Knob) -> dict[str, int]:
    """Return how many trials of each objective the final stage takes at least, if this knob is kept, too.

    A gain that took many pairs to confirm takes about as many again.
    """
    confirmed: dict[str, int] = {}
    for verdict in (one for one in verdicts if one.kept is not None):
        count = len(verdict.tried[-1].pairs)
        confirmed[verdict.objective] = max(count, confirmed.get(verdict.objective, 0))
    measured = {verdict.objective for verdict in verdicts for one in verdict.tried if one.pairs}
    pairs = dict.fromkeys([*measured, knob.objective], BYSTANDER_LOOKS[0])
    pairs |= confirmed or {knob.objective: CONFIRM_LOOKS[0]}
    return {objective: 2 * count for objective, count in pairs.items()}


def _tune(
    knob: Knob,
    settings: Mapping[str, str],
    confirm_z: float,
    chance: random.Random,
    proof: Mapping[str, int],
) -> Generator[Trial, Answer, KnobVerdict]:
    """Screen the candidates of a knob, and confirm the best. `proof`: the trials to prove it afterwards."""
    tried: dict[str, Compared] = {}
    both = {**proof, knob.objective: proof[knob.objective] + 2 * CONFIRM_LOOKS[0]}
    for value in chance.sample(knob.candidates, len(knob.candidates)):
        plan = _Comparison(SearchStage.SCREEN, knob.objective, value, LIKELY_Z, SCREEN_LOOKS, both)
        tried[value] = yield from plan.carry_out(settings, {**settings, knob.name: value}, chance)
    promising = [value for value in knob.candidates if tried[value].better]
    found = tuple(tried[value] for value in knob.candidates)
    verdict = KnobVerdict(knob.name, knob.objective, knob.start, None, "", found)
    if not promising:
        return replace(verdict, reason=_why_none(found))
    rates = {value: 1 + (tried[value].gain or 0.0) for value in promising}
    best = next(value for value in promising if rates[value] * (1 + LEAST_GAIN) >= max(rates.values()))
    plan = _Comparison(SearchStage.CONFIRM, knob.objective, best, confirm_z, CONFIRM_LOOKS, proof)
    confirmed = yield from plan.carry_out(settings, {**settings, knob.name: best}, chance)
    verdict = replace(verdict, tried=(*found, confirmed))
    if not confirmed.better:
        return replace(verdict, reason=f"{best} looked better, and was not confirmed: {confirmed.reason}")
    return replace(verdict, kept=best, reason="better, and confirmed by fresh trials")


def _why_none(tried: Sequence[Compared]) -> str:
    """Return why no candidate stood out; one that was not measured enough is not said to be no better."""
    if len(reasons := {one.reason for one in tried}) == 1:
        return reasons.pop()
    if not (unknown := [one for one in tried if UNMEASURED in one.reason]):
        return "no candidate is better"
    values = ", ".join(one.value for one in unknown)
    rest = ", and no other is better" if len(unknown) < len(tried) else ""
    return f"not compared to the end: {values} ({unknown[0].reason}){rest}"


def _finish(
    verdicts: list[KnobVerdict], start: Mapping[str, str], chance: random.Random
) -> Generator[Trial, Answer, Decision]:
    """Compare all that was kept with the start, until what is left holds up or nothing is."""
    compared: list[Compared] = []
    while kept := {one.name: one.kept for one in verdicts if one.kept is not None}:
        settings = {**start, **kept}
        value = ", ".join(f"{name}={value}" for name, value in kept.items())
        gained = {one.objective for one in verdicts if one.kept is not None}
        dropped = ""
        objectives = dict.fromkeys(one.objective for one in verdicts)
        # One that the node could never measure says nothing of what was kept.
        measured = {one.objective for verdict in verdicts for one in verdict.tried if one.pairs}
        for objective in objectives:
            looks = CONFIRM_LOOKS if objective in gained else BYSTANDER_LOOKS
            plan = _Comparison(SearchStage.FINAL, objective, value, OUTLIER_Z * among(len(objectives)), looks)
            found = yield from plan.carry_out(start, settings, chance)
            compared.append(found)
            lost = ""
            if found.gain is None and objective in measured - gained:
                lost = f"all together, {objective}: {found.reason}"
            elif (found.gain or 0.0) < -LEAST_GAIN and (found.high or 0.0) < 0:
                lost = f"all together, {objective} became slower by {-(found.gain or 0.0):.1%}"
            if lost:
                dropped = lost
                verdicts = [_without(one, dropped) for one in verdicts]
                break
            if objective in gained and not found.better:
                dropped = f"measured again at the end against the start: {found.reason}"
                verdicts = [_without(one, dropped) if one.objective == objective else one for one in verdicts]
        if not dropped:
            break
    return Decision(tuple(verdicts), tuple(compared))


def _without(verdict: KnobVerdict, reason: str) -> KnobVerdict:
    """Return the same knob left at its start, where it was kept."""
    return verdict if verdict.kept is None else replace(verdict, kept=None, reason=reason)


@dataclass(frozen=True)
class _Comparison:
    """A comparison in pairs: how far it must stand out, and after how many pairs that is looked at."""

    stage: SearchStage
    objective: str
    value: str
    z: float
    looks: tuple[int, ...]
    after: Mapping[str, int] = field(default_factory=dict)

    def carry_out(
        self, base: Mapping[str, str], other: Mapping[str, str], chance: random.Random
    ) -> Generator[Trial, Answer, Compared]:
        """Measure pairs until it is decided, or there were enough."""
        trials = {
            True: Trial(self.stage, self.objective, base, self.after),
            False: Trial(self.stage, self.objective, other, self.after),
        }
        pairs: list[Pair] = []
        compared = Compared(self.stage, self.objective, self.value)
        for count in self.looks:
            while len(pairs) < count:
                base_first = chance.random() < 0.5
                rates: dict[bool, float] = {}
                for is_base in (base_first, not base_first):
                    answer = yield trials[is_base]
                    if isinstance(answer, Failed) or not 0 < answer < inf:
                        why = answer.reason if isinstance(answer, Failed) else f"a rate of {answer}"
                        who = "the settings before it" if is_base else "it"
                        return replace(compared, pairs=tuple(pairs), reason=f"{who} {UNMEASURED}: {why}")
                    rates[is_base] = answer
                pairs.append(Pair(rates[True], rates[False], base_first))
            compared, decided = self._judged(tuple(pairs), last=count == self.looks[-1])
            if decided:
                break
        return compared

    def _judged(self, pairs: tuple[Pair, ...], *, last: bool) -> tuple[Compared, bool]:
        """Return what the pairs so far say, and whether more of them would be of use."""
        ratio, error = ratio_of(pairs)
        least, noise = log1p(LEAST_GAIN), self.z * error
        better = ratio > max(least, noise)
        # How much the pairs to come are likely to add at most, and what it must be after the last of them.
        part = len(pairs) / self.looks[-1]
        hopeless = ratio + LIKELY_Z * error * sqrt(1 - part) < max(least, noise * sqrt(part))
        gain, low, high = gain_of(pairs, self.z)
        reason = ""
        if not better:
            small = f"{gain:+.1%} is not more than {LEAST_GAIN:.0%}"
            lost = f"{gain:+.1%} in {len(pairs)} pairs; {gain - low:.1%} of it is chance"
            reason = small if gain <= LEAST_GAIN else lost
        compared = Compared(
            *(self.stage, self.objective, self.value, pairs),
            gain=round(gain, 5),
            low=round(low, 5),
            high=round(high, 5),
            better=better,
            reason=reason,
        )
        return compared, better or hopeless or last


def ratio_of(pairs: Sequence[Pair]) -> tuple[float, float]:
    """Return the logarithm of how many times as fast the second settings are, and its standard error.

    From two pairs on. The median of the ratios, and their scatter by the median absolute deviation: a moment
    in which something else ran moves neither. Logarithms, because those of a factor scatter up and down
    alike: noise that halves and doubles rates makes a factor of 5 one of 2.5 to 10.
    """
    ratios = [log(pair.other) - log(pair.base) for pair in pairs]
    median = statistics.median(ratios)
    few = 1 + FEW_RUNS / (len(pairs) - 1)
    return median, few * usual_deviation([ratios]) * MEDIAN_ERROR / sqrt(len(pairs))


def gain_of(pairs: Sequence[Pair], z: float) -> tuple[float, float, float]:
    """Return the gain of the second settings over the first, and its limits at so many standard errors."""
    ratio, error = ratio_of(pairs)
    gain, low, high = (expm1(min(ratio + by, log(MOST_RATIO))) for by in (0.0, -z * error, z * error))
    return gain, low, high
