"""Autotune's search on simulated nodes whose truth is known and whose noise has a measured shape.

`python -m tests.unit.validation.test_autotune_search KNOBS` prints the table of docs/operate/autotune.md.
"""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass, field
from math import log
from typing import TYPE_CHECKING

import pytest

from tests.unit.each import each
from tests.unit.rollout.results import drawn_from, recorded_noise
from validation.autotune.search import (
    LEAST_GAIN,
    Decision,
    Failed,
    Knob,
    Pair,
    SearchStage,
    Trial,
    ratio_of,
    search,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SHAPES = recorded_noise()
#: The scatter of a trial: that of one run on a quiet node, and what the gate of a roll-out is held to.
SCATTERS = (0.01, 0.03)


@dataclass
class SimulatedNode:
    """A node on which each objective has a rate that depends on the settings, and on chance.

    `rate` says how fast the settings really are; what drifts is the same for both trials of a pair.
    """

    rate: Callable[[Trial], float]
    scatter: float = 0.01
    seed: int = 1
    drift: float = 0.0
    trials: list[Trial] = field(default_factory=list)

    def tune(self, knobs: Sequence[Knob]) -> Decision:
        draw = drawn_from(SHAPES, self.scatter, random.Random(self.seed))
        asking = search(knobs, self.seed)
        trial = next(asking)
        while True:
            self.trials.append(trial)
            drifted = 1 - self.drift * len(self.trials)
            try:
                trial = asking.send(self.rate(trial) * max(drifted, 0.1) * (1 + draw()))
            except StopIteration as done:
                decision: Decision = done.value
                return decision


def kept(decision: Decision) -> dict[str, str]:
    return {one.name: one.kept for one in decision.knobs if one.kept is not None}


def knobs_of(count: int) -> list[Knob]:
    """Knobs of two values, each with an objective of its own."""
    return [Knob(f"knob{number}", f"objective{number}", "off", ("on",)) for number in range(count)]


def gains(gain: float) -> Callable[[Trial], float]:
    """Every knob that is on brings its objective so much."""

    def rate(trial: Trial) -> float:
        own = trial.objective.replace("objective", "knob")
        return 100 * (1 + gain * (trial.settings[own] == "on"))

    return rate


@each(*SCATTERS)
def test_of_200_knobs_without_effect_none_is_kept(scatter: float) -> None:
    assert kept(SimulatedNode(gains(0), scatter).tune(knobs_of(200))) == {}


@each(*SCATTERS)
def test_at_least_95_percent_of_planted_gains_of_5_percent_are_found(scatter: float) -> None:
    found = sum(len(kept(SimulatedNode(gains(0.05), scatter, seed).tune(knobs_of(1)))) for seed in range(200))
    assert found >= 190


def test_a_gain_among_knobs_without_effect_is_the_only_one_kept() -> None:
    node = SimulatedNode(lambda trial: 100 * (1 + 0.05 * (trial.settings["knob7"] == "on")), 0.02)
    knobs = [Knob(f"knob{number}", "rate", "off", ("on",)) for number in range(40)]
    assert kept(node.tune(knobs)) == {"knob7": "on"}


def test_a_gain_below_what_is_worth_a_line_is_not_kept() -> None:
    found = [kept(SimulatedNode(gains(0.01), 0.01, seed).tune(knobs_of(1))) for seed in range(40)]
    assert found.count({}) >= 39


def threads(curve: dict[str, float]) -> Callable[[Trial], float]:
    return lambda trial: 100 * curve[trial.settings["threads"]]


#: 8 cores: more threads than cores slow each other down.
CURVE = {"1": 0.125, "2": 0.25, "4": 0.5, "8": 1.0, "16": 0.8, "64": 0.35}


@each(*range(20))
def test_far_too_many_threads_are_found_and_repaired(seed: int) -> None:
    knob = Knob("threads", "matmul", "64", ("1", "2", "4", "8", "16"))
    decision = SimulatedNode(threads(CURVE), 0.03, seed).tune([knob])
    assert kept(decision) == {"threads": "8"}
    (final,) = decision.final
    assert final.gain == pytest.approx(1 / 0.35 - 1, rel=0.1)
    assert final.low is not None
    assert final.low > 1


@each(*range(20))
def test_an_optimum_is_left_alone(seed: int) -> None:
    knob = Knob("threads", "matmul", "8", ("1", "2", "4", "16", "64"))
    assert kept(SimulatedNode(threads(CURVE), 0.03, seed).tune([knob])) == {}


def test_of_candidates_that_are_about_as_good_the_first_is_taken() -> None:
    curve = {"0": 0.2, "2": 1.0, "4": 1.0, "8": 1.0}
    knob = Knob("threads", "loading", "0", ("2", "4", "8"))
    for seed in range(10):
        assert kept(SimulatedNode(threads(curve), 0.002, seed).tune([knob])) == {"threads": "2"}


def test_a_node_that_slows_down_all_the_time_fakes_no_gain() -> None:
    for seed in range(20):
        assert kept(SimulatedNode(gains(0), 0.01, seed, drift=0.002).tune(knobs_of(3))) == {}


def test_trials_of_a_pair_come_in_random_order() -> None:
    decision = SimulatedNode(gains(0), 0.03).tune(knobs_of(20))
    orders = [pair.base_first for one in decision.knobs for tried in one.tried for pair in tried.pairs]
    assert 0.4 < sum(orders) / len(orders) < 0.6


def test_two_that_win_alone_and_lose_together_are_not_kept() -> None:
    """The second is confirmed on top of the first, so only what changes until the end can take it back."""
    seen: list[SearchStage] = []

    def rate(trial: Trial) -> float:
        seen.append(trial.stage)
        on = sum(value == "on" for value in trial.settings.values())
        return 100 * (1 if trial.stage is SearchStage.FINAL else 1 + 0.1 * on)

    knobs = [Knob(name, "rate", "off", ("on",)) for name in ("a", "b")]
    decision = SimulatedNode(rate).tune(knobs)
    assert kept(decision) == {}
    assert SearchStage.FINAL in seen
    assert all("at the end" in one.reason for one in decision.knobs)


def test_what_is_kept_for_one_objective_must_not_slow_another() -> None:
    def rate(trial: Trial) -> float:
        on = trial.settings["a"] == "on"
        return 100 * (1.1 if on else 1) if trial.objective == "matmul" else 100 * (0.8 if on else 1)

    knobs = [Knob("a", "matmul", "off", ("on",)), Knob("b", "loading", "off", ("on",))]
    decision = SimulatedNode(rate).tune(knobs)
    assert kept(decision) == {}
    assert "loading became slower" in decision.knobs[0].reason


def with_a_failing_bystander(fails: Callable[[Trial], bool]) -> Decision:
    """A knob with a true gain for `matmul`, beside an objective of which some trials fail."""
    knobs = [Knob("a", "matmul", "off", ("on",)), Knob("b", "loading", "off", ("on",))]
    asking = search(knobs)
    trial = next(asking)
    while True:
        try:
            gained = trial.objective == "matmul" and trial.settings["a"] == "on"
            trial = asking.send(Failed("a process died") if fails(trial) else 110.0 if gained else 100.0)
        except StopIteration as done:
            decision: Decision = done.value
            return decision


def test_what_keeps_another_objective_from_being_measured_is_not_kept() -> None:
    decision = with_a_failing_bystander(
        lambda trial: (
            trial.objective == "loading" and trial.stage is SearchStage.FINAL and trial.settings["a"] == "on"
        )
    )
    assert kept(decision) == {}
    assert decision.knobs[0].reason == ("all together, loading: it could not be measured: a process died")


def test_an_objective_that_the_node_could_never_measure_costs_no_gain() -> None:
    decision = with_a_failing_bystander(lambda trial: trial.objective == "loading")
    assert kept(decision) == {"a": "on"}
    assert [one.reason for one in decision.final if one.objective == "loading"] != [""]


def test_what_does_not_hold_up_is_dropped_and_the_rest_measured_again() -> None:
    def rate(trial: Trial) -> float:
        lost = trial.objective == "objective0" and trial.stage is SearchStage.FINAL
        return gains(0.0 if lost else 0.1)(trial)

    decision = SimulatedNode(rate).tune(knobs_of(2))
    assert kept(decision) == {"knob1": "on"}
    assert [one.value for one in decision.final] == ["knob0=on, knob1=on"] * 2 + ["knob1=on"] * 2


@each(("on", "it could not"), ("off", "the settings before it"))
def test_a_trial_that_fails_leaves_the_start_and_says_why(failing: str, words: str) -> None:
    asking = search(knobs_of(1))
    trial = next(asking)
    with pytest.raises(StopIteration) as done:
        while True:
            failed = trial.settings["knob0"] == failing
            trial = asking.send(Failed("no memory") if failed else 100.0)
    decision: Decision = done.value.value
    assert kept(decision) == {}
    assert words in decision.knobs[0].reason
    assert "no memory" in decision.knobs[0].reason


@each((4, False), (5, False), (15, True))
def test_candidates_that_no_time_was_left_for_are_not_said_to_be_no_better(measured: int, rest: bool) -> None:
    asking = search([Knob("threads", "training", "", ("1", "2"))])
    next(asking)
    with pytest.raises(StopIteration) as done:
        for number in range(200):
            asking.send(100.0 if number < measured else Failed("the minutes are over"))
    reason = done.value.value.knobs[0].reason
    assert "the minutes are over" in reason
    assert ("better" in reason) is rest


@each((0.0, 0, 45), (1.0, 57, 85))
def test_noise_takes_no_more_pairs_than_it_has_to(gain: float, least_found: int, most_pairs: int) -> None:
    """Trials that scatter by 40 %, as those of a busy machine: what cannot be seen is given up in time."""
    nodes = [SimulatedNode(gains(gain), 0.4, seed) for seed in range(10)]
    assert sum(len(kept(node.tune(knobs_of(6)))) for node in nodes) >= least_found
    assert sum(len(node.trials) for node in nodes) / 2 / 60 <= most_pairs


@each(0.0, float("nan"), float("inf"))
def test_a_rate_that_is_none_is_no_gain(rate: float) -> None:
    node = SimulatedNode(lambda trial: rate if trial.settings["knob0"] == "on" else 100)
    assert kept(node.tune(knobs_of(1))) == {}


def test_the_same_seed_asks_for_the_same_trials() -> None:
    first, second = (SimulatedNode(gains(0.05), seed=4) for _ in range(2))
    assert first.tune(knobs_of(5)) == second.tune(knobs_of(5))
    assert first.trials == second.trials


def test_two_knobs_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="found two"):
        next(search([*knobs_of(1), *knobs_of(1)]))


def test_a_moment_in_which_something_else_ran_moves_no_gain() -> None:
    calm = [Pair(100 + number % 3, 105 + number % 3, True) for number in range(12)]
    disturbed = [*calm[:-1], Pair(100, 20, True)]
    assert ratio_of(disturbed)[0] == pytest.approx(ratio_of(calm)[0], abs=0.002)
    assert ratio_of(calm)[0] == pytest.approx(log(1.05), abs=0.002)
    assert ratio_of(calm)[0] > log(1 + LEAST_GAIN)


def main(knobs: int) -> None:
    """Print how often the search errs: in searches of six knobs, as many as a node has, for so many knobs."""
    print("scatter  gain  kept  pairs a knob")
    for scatter in (0.005, 0.01, 0.02, 0.03, 0.05):
        for gain in (0.0, 0.01, 0.05, 0.10):
            found, pairs = 0, 0
            searches = max(1, knobs // 6)
            for seed in range(searches):
                node = SimulatedNode(gains(gain), scatter, seed)
                found += len(kept(node.tune(knobs_of(6))))
                pairs += len(node.trials) // 2
            count = 6 * searches
            print(f"{scatter:7.1%} {gain:5.0%} {found / count:6.2%} {pairs / count:6.1f}")


if __name__ == "__main__":
    main(int(sys.argv[1]))
