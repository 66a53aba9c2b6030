"""How often the gate errs, in whole gates over simulated nodes whose noise has a measured shape.

`python -m tests.unit.rollout.test_gate_rates GATES` prints the table of docs/operate/upgrading.md.
"""

from __future__ import annotations

import random
import statistics
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from temper.rollout.gate import GateState, Rules, judge, judge_baseline
from tests.unit.each import each
from tests.unit.rollout.results import NEW, drawn_from, recorded_noise, runs_of

if TYPE_CHECKING:
    from validation.model.contract import NodeResult

SHAPES = recorded_noise()
RULES = Rules()


@dataclass(frozen=True)
class Rates:
    """Parts of the nodes that were refused before the upgrade, and rolled back after it; rounds after it."""

    refused: float
    rolled_back: float
    rounds: float


def gates(count: int, sigma: float, loss: float, *, gpus: int = 8, shapes: int = 1, seed: int = 1) -> Rates:
    """Whole gates, with as many rounds as they ask for. Each number of each GPU has noise of its own."""
    draw = drawn_from(SHAPES, sigma, random.Random(seed))
    refused, rolled_back, rounds = 0, 0, [0]
    for _ in range(count):
        before: list[NodeResult] = []
        after: list[NodeResult] = []
        for round_number in range(1, RULES.rounds + 1):
            before += runs_of(RULES.runs, draw, gpus=gpus, shapes=shapes)
            verdict = judge_baseline(before, rules=RULES, round_number=round_number).verdict
            if verdict is not GateState.MEASURE_AGAIN:
                break
        if verdict is GateState.FAIL:
            refused += 1
            continue
        for round_number in range(1, RULES.rounds + 1):
            after += runs_of(RULES.runs, draw, loss=loss, gpus=gpus, shapes=shapes, driver=NEW)
            verdict = judge(before, after, rules=RULES, round_number=round_number).verdict
            if verdict is not GateState.MEASURE_AGAIN:
                break
        rolled_back += verdict is GateState.FAIL
        rounds.append(round_number)
    return Rates(refused / count, rolled_back / count, statistics.fmean(rounds[1:] or [0]))


# The scatter of a GPU's runs is 1 to 2 % (cohort.py, history.py).
@each((1, 0.005), (1, 0.01), (8, 0.01), (8, 0.02))
def test_a_good_driver_is_seldom_rolled_back(gpus: int, sigma: float) -> None:
    assert gates(40, sigma, 0.0, gpus=gpus).rolled_back <= 0.01


def test_of_many_noisy_numbers_one_has_runs_that_stand_out() -> None:
    # 3 of 340 gates with other seeds (docs/operate/upgrading.md); one of these 40 may be among them.
    assert gates(40, 0.02, 0.0, gpus=1, shapes=7).rolled_back <= 0.03


@each((1, 0.005), (8, 0.01))
def test_a_loss_of_six_percent_is_found(gpus: int, sigma: float) -> None:
    assert gates(20, sigma, 0.06, gpus=gpus).rolled_back >= 0.95


def test_a_loss_of_one_percent_is_let_through() -> None:
    assert gates(20, 0.01, 0.01).rolled_back <= 0.02


def table(count: int) -> None:
    """Print false rollbacks and what is found of losses, by GPUs, numbers of each, and their scatter."""
    for gpus, shapes in ((1, 1), (1, 7), (8, 1), (8, 3)):
        for sigma in (0.005, 0.01, 0.02):
            losses = (0.0, 0.01, 0.06)
            cells = [gates(count, sigma, loss, gpus=gpus, shapes=shapes) for loss in losses]
            shown = " | ".join(f"{one.rolled_back:.1%}" for one in cells)
            first = cells[0]
            place = f"| {gpus} | {3 * shapes} | {sigma:.1%} | {first.refused:.1%}"
            print(f"{place} | {shown} | {first.rounds:.1f} |", flush=True)


if __name__ == "__main__":
    table(int(sys.argv[1]))
