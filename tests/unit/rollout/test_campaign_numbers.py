"""The campaign of upgrades expects of its made-up numbers what the gate says of them."""

from __future__ import annotations

import random
import re
from typing import TYPE_CHECKING

from temper.rollout.gate import Rules, Verdict, judge, judge_baseline
from tests.lab.rollouts import RUNS, Numbers
from tests.lab.upgrade_faults import FAULTS
from tests.unit.rollout.results import GPUS, NEW, drawn_from, recorded_noise, run_of

if TYPE_CHECKING:
    from temper.rollout.gate import GateVerdict

RULES = Rules(runs=RUNS)


def verdict_on(numbers: Numbers) -> GateVerdict:
    """What the gate says of a node with these numbers: before the upgrade, or else after it."""
    draw = drawn_from(recorded_noise(), numbers.scatter, random.Random(1))
    before, after = [], []
    for number in range(1, RULES.rounds + 1):
        before += [run_of([1.0] * GPUS, draw=draw, findings=numbers.findings) for _ in range(RUNS)]
        verdict = judge_baseline(before, rules=RULES, round_number=number)
        if verdict.verdict is not Verdict.MEASURE_AGAIN:
            break
    if verdict.verdict is not Verdict.PASS:
        return verdict
    for number in range(1, RULES.rounds + 1):
        after += [run_of([numbers.after] * GPUS, draw=draw, driver=NEW) for _ in range(RUNS)]
        verdict = judge(before, after, rules=RULES, round_number=number)
        if verdict.verdict is not Verdict.MEASURE_AGAIN:
            break
    return verdict


def test_faults_of_numbers_have_the_reason_that_the_gate_gives() -> None:
    tried, wrong = 0, []
    for fault in FAULTS:
        # That the former driver is slower, too, the engine says before the gate's own words.
        if fault.numbers == Numbers() or fault.numbers.back != 1.0:
            continue
        tried += 1
        reasons = " ".join(verdict_on(fault.numbers).reasons)
        if bool(reasons) != bool(fault.said) or not re.search(fault.said, reasons):
            wrong.append((fault.name, fault.said, reasons))
    assert wrong == []
    assert tried == 5
