"""How often the gate errs, in whole gates over simulated nodes whose noise has a measured shape.

`python -m tests.unit.rollout.test_gate_rates GATES` prints the table of docs/upgrading.md.
"""

from __future__ import annotations

import random
import statistics
import sys
from dataclasses import dataclass

import pytest

from rollout.gate import Rules, Verdict, judge
from tests.unit.rollout.results import NEW, drawn_from, recorded_noise, runs_of

SHAPES = recorded_noise()
RULES = Rules()


@dataclass(frozen=True)
class Rates:
    """Parts of the gates that rolled back, and the rounds that a gate took."""

    rolled_back: float
    rounds: float


def gates(count: int, sigma: float, loss: float, *, gpus: int = 8, seed: int = 1) -> Rates:
    """Whole gates, with as many rounds as they ask for. Each number of each GPU has noise of its own."""
    chance = random.Random(seed)
    draw = drawn_from(SHAPES, sigma, chance)
    failed, rounds = 0, []
    for _ in range(count):
        before, after = [], []
        for round_number in range(1, RULES.rounds + 1):
            before += runs_of(RULES.runs, draw, gpus=gpus)
            after += runs_of(RULES.runs, draw, loss=loss, gpus=gpus, driver=NEW)
            verdict = judge(before, after, rules=RULES, round_number=round_number).verdict
            if verdict is not Verdict.MEASURE_AGAIN:
                break
        failed += verdict is Verdict.FAIL
        rounds.append(round_number)
    return Rates(failed / count, statistics.fmean(rounds))


# The scatter of a GPU's runs is 1 to 2 % (cohort.py, history.py).
@pytest.mark.parametrize("sigma", [0.005, 0.01, 0.02])
@pytest.mark.parametrize("gpus", [1, 8])
def test_a_good_driver_is_seldom_rolled_back(sigma: float, gpus: int) -> None:
    assert gates(100, sigma, 0.0, gpus=gpus).rolled_back <= 0.01


@pytest.mark.parametrize("sigma", [0.005, 0.01])
@pytest.mark.parametrize("gpus", [1, 8])
def test_a_loss_of_six_percent_is_found(sigma: float, gpus: int) -> None:
    assert gates(50, sigma, 0.06, gpus=gpus).rolled_back >= 0.95


@pytest.mark.parametrize("sigma", [0.005, 0.01])
def test_a_loss_of_one_percent_is_let_through(sigma: float) -> None:
    assert gates(50, sigma, 0.01).rolled_back <= 0.02


def table(count: int) -> None:
    """Print false rollbacks and what is found of losses, by scatter and number of GPUs."""
    for gpus in (1, 8):
        for sigma in (0.005, 0.01, 0.02, 0.03):
            cells = [gates(count, sigma, loss, gpus=gpus) for loss in (0.0, 0.01, 0.06, 0.10)]
            shown = " | ".join(f"{one.rolled_back:.1%}, {one.rounds:.1f} rounds" for one in cells)
            print(f"| {gpus} | {sigma:.1%} | {shown} |", flush=True)


if __name__ == "__main__":
    table(int(sys.argv[1]))
