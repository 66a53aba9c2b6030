"""The gate: what passes, what fails, what is measured again, each with its sentence."""

import dataclasses
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from temper.rollout.gate import GateState, GateVerdict, Rules, errors_in_soak, judge, judge_baseline
from tests.unit.each import each
from tests.unit.rollout.results import GPUS, NEW, drawn_from, recorded_noise, run_of, runs_of
from tests.unit.validation.samples import measurement, one_test
from validation.model.contract import Finding, NodeResult, State
from validation.verdict.verdicts import NodeVerdict, TestVerdict

RUNS = 5
CALM = [0.002, -0.003, 0.001, 0.0, -0.001]
SLOW = Finding("below-own-past", State.DEGRADED, "GPU 3: bf16 is 8 % below its own past", device=3)
XID = Finding("xid-79", State.FAIL, "GPU 2 has fallen off the bus (Xid 79)", device=2)


def calm(count: int = RUNS, *, loss: float = 0.0, **changes: Any) -> list[NodeResult]:
    """Runs that repeat themselves to a third of a percent, as GPUs do."""
    return [
        run_of([(1 - loss) * (1 + CALM[(run + gpu) % 5]) for gpu in range(GPUS)], **changes)
        for run in range(count)
    ]


def after(**changes: Any) -> list[NodeResult]:
    return calm(driver=NEW, **changes)


def said(verdict: GateVerdict) -> str:
    return " ".join(verdict.reasons)


def without(run: NodeResult, test: str) -> NodeResult:
    return dataclasses.replace(run, tests=tuple(one for one in run.tests if one.id != test))


def test_a_node_that_is_as_fast_as_before_passes() -> None:
    verdict = judge(calm(), after())
    assert (verdict.verdict, verdict.reasons) == (GateState.PASS, ())
    assert len(verdict.compared) == 3


def test_one_percent_slower_passes_and_the_number_is_kept() -> None:
    verdict = judge(calm(), after(loss=0.01))
    assert verdict.verdict is GateState.PASS
    loss = next(value for name, value in verdict.numbers.items() if "bf16" in name and name.endswith("_loss"))
    assert loss == pytest.approx(0.01, abs=0.002)


def test_six_percent_slower_is_confirmed_once_and_then_fails() -> None:
    first = judge(calm(), after(loss=0.06))
    assert first.verdict is GateState.MEASURE_AGAIN
    assert "confirm" in said(first)
    second = judge(calm(10), after(count=10, loss=0.06), round_number=2)
    assert second.verdict is GateState.FAIL
    assert "gpu_matmul bf16: 730 -> 686 TFLOP/s (-6.0 %, median of 8 GPUs)." in said(second)


def test_a_gain_passes() -> None:
    assert judge(calm(), after(loss=-0.2)).verdict is GateState.PASS


def noisy(count: int, seed: int, width: float = 0.08, **changes: Any) -> list[NodeResult]:
    """Runs of which all GPUs together are off by up to 8 %, as when something else works on the node."""
    chance = random.Random(seed)
    return [run_of([1 + chance.uniform(-width, width)] * GPUS, **changes) for _ in range(count)]


def test_noise_of_eight_percent_is_measured_again() -> None:
    assert judge(noisy(5, 1), noisy(5, 2, driver=NEW)).verdict is GateState.MEASURE_AGAIN


def fallen(runs: list[NodeResult], by: float) -> list[NodeResult]:
    """The runs with every number lower by a part; negative for higher."""
    return [
        dataclasses.replace(
            run,
            tests=tuple(
                dataclasses.replace(
                    test,
                    measurements=tuple(
                        dataclasses.replace(one, value=one.value * (1 - by)) for one in test.measurements
                    ),
                )
                for test in run.tests
            ),
        )
        for run in runs
    ]


BACK, OVERRULED, NO_NUMBERS = Rules(way_back=True), Rules(overruled=True), Rules(numbers=())
WIDE = noisy(15, 2, 0.4, driver=NEW)


@pytest.mark.parametrize(
    ("before", "now", "rules", "fails", "words"),
    [
        pytest.param(calm(15), WIDE, Rules(), False, "", id="rose-and-noisy"),
        pytest.param(calm(15), fallen(WIDE, 0.2), Rules(), True, "Before the upgrade", id="fell-and-noisy"),
        pytest.param(calm(15), fallen(WIDE, 0.2), BACK, False, "", id="noisy-on-the-way-back"),
        pytest.param(noisy(15, 1, 0.4), WIDE, Rules(), False, "", id="always-noisy-and-rose"),
        pytest.param(noisy(15, 1, 0.4), fallen(WIDE, 0.2), Rules(), True, "No number", id="nothing-proven"),
        pytest.param(noisy(15, 1, 0.4), fallen(WIDE, 0.2), BACK, False, "", id="nothing-proven-back"),
        pytest.param(calm(15), after(count=15, loss=0.06), BACK, True, "-6.0 %", id="a-loss-on-the-way-back"),
        pytest.param(calm(15), after(count=15, loss=0.06), OVERRULED, False, "", id="a-loss-overruled"),
        pytest.param(calm(15), after(count=15, loss=0.06), NO_NUMBERS, False, "", id="no-number-decides"),
        pytest.param(
            calm(15),
            after(count=15, loss=0.06),
            Rules(numbers=("gpu_tr*",)),
            True,
            "h2d",
            id="one-number-decides",
        ),
        pytest.param(calm(15), after(count=15, findings=[SLOW]), OVERRULED, False, "", id="a-known-weakness"),
        pytest.param(calm(15), after(count=15, findings=[XID]), OVERRULED, True, "Xid", id="never-an-xid"),
        pytest.param(calm(15), after(count=15, findings=[XID]), NO_NUMBERS, True, "Xid", id="an-xid"),
    ],
)
def test_what_fell_fails_a_node_and_nothing_else_does(
    before: list[NodeResult], now: list[NodeResult], rules: Rules, fails: bool, words: str
) -> None:
    verdict = judge(before, now, rules=rules, round_number=3)
    assert (verdict.verdict is GateState.FAIL) is fails, verdict.reasons
    assert words in said(verdict)


@each(OVERRULED, NO_NUMBERS)
def test_a_baseline_of_noise_measures_what_is_no_number(rules: Rules) -> None:
    assert judge_baseline(noisy(15, 3, 0.4), rules=rules, round_number=3).verdict is GateState.PASS


def test_the_scatter_is_said_in_words() -> None:
    verdict = judge_baseline(noisy(15, 3, 0.4), round_number=3)
    assert "chance alone could explain" in said(verdict)
    assert "even a loss of 6 % could not be detected" in said(verdict)


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=4), st.sampled_from([1, 2, 3]))
def test_no_sentence_has_two_full_stops(losses: list[float], round_number: int) -> None:
    runs = [run_of([1 - 0.9 * loss] * GPUS, driver=NEW, findings=[SLOW]) for loss in losses]
    verdict = judge(calm(), runs, round_number=round_number)
    for text in (*verdict.reasons, *verdict.notes):
        assert ".." not in text
        assert ". (" not in text


def test_no_verdict_asks_for_another_round_after_the_last() -> None:
    pairs = [(noisy(15, seed), noisy(15, seed + 100, driver=NEW)) for seed in range(10)]
    assert {judge(*pair, round_number=3).verdict for pair in pairs} <= {GateState.PASS, GateState.FAIL}


def test_one_gpu_that_fell_alone_is_named_and_not_returned() -> None:
    factors = [1.0] * GPUS
    factors[5] = 0.8
    slow = [run_of([factor * (1 + CALM[run]) for factor in factors], driver=NEW) for run in range(RUNS)]
    assert judge(calm(), slow).verdict is GateState.MEASURE_AGAIN
    verdict = judge(calm(), slow, round_number=3)
    assert verdict.verdict is GateState.FAIL
    assert "GPU-5 alone: -20.0 %" in said(verdict)


def test_gpus_pair_by_uuid_when_a_reboot_numbers_them_anew() -> None:
    fast = [1.0] * 4 + [0.9] * 4
    before = [run_of(fast) for _ in range(RUNS)]
    turned = [run_of(fast[::-1], driver=NEW) for _ in range(RUNS)]
    # GPU-0 now has number 7, and so on: each is as fast as it was.
    turned = [
        dataclasses.replace(
            run, gpus=tuple(dataclasses.replace(gpu, uuid=f"GPU-{7 - gpu.index}") for gpu in run.gpus)
        )
        for run in turned
    ]
    verdict = judge(before, turned)
    assert verdict.verdict is GateState.PASS
    assert {loss for one in verdict.compared for loss in one.gpus.values()} == {0.0}


def test_a_gpu_that_is_gone_fails_and_is_named() -> None:
    verdict = judge(calm(), [run_of([1.0] * 7, driver=NEW) for _ in range(RUNS)])
    assert verdict.verdict is GateState.FAIL
    assert "GPU-7" in said(verdict)
    assert "gone" in said(verdict)


def test_another_gpu_in_its_place_fails() -> None:
    swapped = [
        dataclasses.replace(run, gpus=(*run.gpus[:-1], dataclasses.replace(run.gpus[-1], uuid="GPU-new")))
        for run in after()
    ]
    verdict = judge(calm(), swapped)
    assert verdict.verdict is GateState.FAIL
    assert "GPU-new" in said(verdict)


def test_a_test_that_is_not_run_any_more_fails_with_its_reason() -> None:
    gone = one_test("gpu_transfer", State.NOT_RUN, reason="no NVML")
    runs = [dataclasses.replace(run, tests=(*without(run, "gpu_transfer").tests, gone)) for run in after()]
    verdict = judge(calm(), runs)
    assert verdict.verdict is GateState.FAIL
    assert "gpu_transfer was measured before the upgrade and is not-run now: no NVML" in said(verdict)


def test_a_test_that_runs_only_sometimes_is_measured_again() -> None:
    gone = one_test("gpu_transfer", State.NOT_RUN, reason="busy")
    runs = after()
    runs[0] = dataclasses.replace(runs[0], tests=(*without(runs[0], "gpu_transfer").tests, gone))
    assert judge(calm(), runs).verdict is GateState.MEASURE_AGAIN


def test_a_number_that_is_missing_now_fails_and_a_new_one_is_noted() -> None:
    def drop(run: NodeResult) -> NodeResult:
        kept = [
            dataclasses.replace(
                test, measurements=tuple(one for one in test.measurements if one.name != "fp32_tflops")
            )
            for test in run.tests
        ]
        return dataclasses.replace(run, tests=tuple(kept))

    verdict = judge(calm(), [drop(run) for run in after()])
    assert verdict.verdict is GateState.FAIL
    assert "fp32" in said(verdict)
    verdict = judge([drop(run) for run in calm()], after())
    assert verdict.verdict is GateState.PASS
    assert any("fp32" in note for note in verdict.notes)


def test_a_searched_shape_that_flips_between_runs_says_nothing_of_the_driver() -> None:
    def searched(runs: list[NodeResult], *sizes: int) -> list[NodeResult]:
        """Runs whose search found these shapes, one after the other."""
        found = []
        for place, run in enumerate(runs):
            shape: dict[str, int | str] = {"m": sizes[place % len(sizes)], "n": 8192, "k": 8192}
            more = tuple(
                measurement("bf16_found_tflops", 800.0, device=gpu, conditions=shape) for gpu in range(GPUS)
            )
            tests = (
                replace(test, measurements=test.measurements + more) if test.id == "gpu_matmul" else test
                for test in run.tests
            )
            found.append(replace(run, tests=tuple(tests)))
        return found

    before = searched(calm(), 8192, 16384)
    assert judge_baseline(before).verdict is GateState.PASS
    for sizes in ((8192,), (4096,), (4096, 16384)):
        for round_number in (1, 3):
            verdict = judge(before, searched(after(), *sizes), round_number=round_number)
            assert (verdict.verdict, verdict.reasons) == (GateState.PASS, ())
            assert not any("found" in one.name for one in verdict.compared)


@each(
    {"plan": "standard"},
    {"conditions": {"m": 4096, "n": 4096, "k": 4096}},
)
def test_what_was_measured_in_another_way_is_measured_again_and_never_passes(changed: dict[str, Any]) -> None:
    assert judge(calm(), after(**changed)).verdict is GateState.MEASURE_AGAIN
    assert judge(calm(), after(**changed), round_number=3).verdict is GateState.FAIL


@each("torch", "method")
def test_other_software_of_the_payload_does_not_compare(what: str) -> None:
    def change(run: NodeResult) -> NodeResult:
        if what == "torch":
            return dataclasses.replace(run, machine=dataclasses.replace(run.machine, torch="2.14.0"))
        return dataclasses.replace(
            run, tests=tuple(dataclasses.replace(test, method=2) for test in run.tests)
        )

    verdict = judge(calm(), [change(run) for run in after()])
    assert verdict.verdict is GateState.MEASURE_AGAIN
    assert what in said(verdict)


def test_too_few_results_are_completed_first() -> None:
    assert judge(calm(2), after(), rules=Rules(runs=3)).verdict is GateState.MEASURE_AGAIN


def test_results_of_two_nodes_are_an_error() -> None:
    with pytest.raises(ValueError, match="gpu02"):
        judge(calm(), after(node="gpu02"))


def test_a_new_finding_in_most_runs_fails_and_in_one_is_looked_at_again() -> None:
    assert judge(calm(), after(findings=[SLOW])).verdict is GateState.FAIL
    once = after()
    once[0] = after(findings=[SLOW])[0]
    assert judge(calm(), once).verdict is GateState.MEASURE_AGAIN
    last = judge(calm(), once, round_number=3)
    assert last.verdict is GateState.PASS
    assert any(SLOW.text in note for note in last.notes)


def test_one_xid_is_enough() -> None:
    once = after()
    once[0] = after(findings=[XID])[0]
    assert judge(calm(), once).verdict is GateState.FAIL


@each(State.DEGRADED, State.FAIL)
def test_an_xid_in_the_soak_fails_however_bad_it_is(state: State) -> None:
    assert errors_in_soak([replace(XID, state=state), SLOW]) == [XID.text]


@each(
    ("MIG mode", "Enabled", "Disabled"),
    ("power limit", "600.00 W", "700.00 W"),
    ("graphics clock of applications", "1410 MHz", "1980 MHz"),
    ("ECC", "Enabled", "Disabled"),
)
def test_a_setting_that_was_lost_fails_with_both_values(name: str, was: str, now: str) -> None:
    verdict = judge(
        calm(), after(), settings_before={"GPU-0": {name: was}}, settings_after={"GPU-0": {name: now}}
    )
    assert verdict.verdict is GateState.FAIL
    assert name in said(verdict)
    assert was in said(verdict)
    assert now in said(verdict)


def test_a_setting_that_the_new_driver_does_not_say_is_noted() -> None:
    verdict = judge(calm(), after(), settings_before={"GPU-0": {"x": "1"}}, settings_after={"GPU-0": {}})
    assert verdict.verdict is GateState.PASS
    assert any("x" in note for note in verdict.notes)


def test_a_note_that_is_the_same_of_all_gpus_is_one() -> None:
    before, now = ({f"GPU-{index}": own for index in range(8)} for own in ({"x": "1"}, {}))
    verdict = judge(calm(), after(), settings_before=before, settings_after=now)
    (note,) = [note for note in verdict.notes if "x" in note and "GPUs" in note]
    assert note.startswith("8 GPUs (GPU-0, GPU-1 and 6 more): ")


def test_a_gpu_without_settings_fails() -> None:
    verdict = judge(calm(), after(), settings_before={"GPU-0": {"x": "1"}}, settings_after={})
    assert verdict.verdict is GateState.FAIL


def test_other_bits_of_all_equal_gpus_are_what_another_driver_may_make() -> None:
    verdict = judge(calm(bits=["a"] * GPUS), after(bits=["b"] * GPUS))
    assert verdict.verdict is GateState.PASS
    assert any("bits" in note for note in verdict.notes)


def test_other_bits_of_one_of_equal_gpus_fail() -> None:
    verdict = judge(calm(bits=["a"] * GPUS), after(bits=["a"] * 7 + ["b"]))
    assert verdict.verdict is GateState.FAIL
    assert "GPU-7" in said(verdict)


def test_bits_that_change_from_run_to_run_fail() -> None:
    runs = after(bits=["a"] * GPUS)
    runs[0] = run_of(driver=NEW, bits=["a"] * 7 + ["b"])
    assert judge(calm(bits=["a"] * GPUS), runs).verdict is GateState.FAIL


def test_other_bits_with_the_same_driver_fail() -> None:
    """A new kernel is no reason to compute otherwise."""
    assert judge(calm(bits=["a"] * GPUS), calm(bits=["b"] * GPUS)).verdict is GateState.FAIL


def test_a_good_baseline_passes() -> None:
    assert judge_baseline(calm()).verdict is GateState.PASS


def _judged(findings: Sequence[Finding]) -> NodeVerdict:
    test = TestVerdict("gpu_matmul", State.DEGRADED, True, "", "", tuple(findings), ())
    return NodeVerdict("gpu01", State.DEGRADED, 0, "", (test,), ())


def test_a_node_that_was_slow_before_is_refused_and_not_blamed_on_the_upgrade() -> None:
    verdict = judge_baseline(calm(), [_judged([SLOW])] * RUNS)
    assert verdict.verdict is GateState.FAIL
    assert "before the upgrade" in said(verdict)
    assert SLOW.text in said(verdict)


def test_a_finding_in_one_run_of_the_baseline_is_looked_at_again() -> None:
    judged = [_judged([SLOW])] + [_judged([])] * (RUNS - 1)
    assert judge_baseline(calm(), judged).verdict is GateState.MEASURE_AGAIN


def test_a_weakness_that_the_operator_knows_is_accepted_and_a_fault_never() -> None:
    rules = Rules(accepted=frozenset({SLOW.code, XID.code}))
    assert judge_baseline(calm(), [_judged([SLOW])] * RUNS, rules=rules).verdict is GateState.PASS
    assert judge_baseline(calm(), [_judged([XID])] * RUNS, rules=rules).verdict is GateState.FAIL


def test_a_baseline_of_noise_alone_is_refused_in_the_end() -> None:
    assert judge_baseline(noisy(5, 3)).verdict is GateState.MEASURE_AGAIN
    assert judge_baseline(noisy(15, 3, 0.2), round_number=3).verdict is GateState.FAIL


def test_bits_that_change_before_the_upgrade_refuse_the_node() -> None:
    runs = calm(bits=["a"] * GPUS)
    runs[2] = run_of(bits=["a"] * 7 + ["b"])
    assert judge_baseline(runs).verdict is GateState.FAIL


def test_an_empty_baseline_is_none() -> None:
    assert judge_baseline([]).verdict is GateState.MEASURE_AGAIN


def not_run(runs: list[NodeResult]) -> list[NodeResult]:
    tests = (one_test("gpu_matmul", State.NOT_RUN, reason="no torch"),)
    return [dataclasses.replace(run, tests=tests) for run in runs]


def no_test(runs: list[NodeResult]) -> list[NodeResult]:
    return [dataclasses.replace(run, tests=()) for run in runs]


@each(not_run, no_test)
@each(Rules(), NO_NUMBERS, OVERRULED, BACK)
def test_a_node_on_which_no_test_ran_never_passes(
    rules: Rules, empty: Callable[[list[NodeResult]], list[NodeResult]]
) -> None:
    before, now = empty(calm()), empty(after())
    for verdict in (
        judge_baseline(before, rules=rules, round_number=3),
        judge(before, now, rules=rules, round_number=3),
        judge(calm(), now, rules=rules, round_number=3),
    ):
        assert verdict.verdict is GateState.FAIL


@each(
    (RUNS, True, 1, GateState.FAIL),
    (1, True, 1, GateState.MEASURE_AGAIN),
    (1, True, 3, GateState.FAIL),
    (RUNS, False, 1, GateState.PASS),
)
@each(NO_NUMBERS, OVERRULED, Rules())
def test_a_baseline_without_a_required_test_is_none(
    rules: Rules, runs: int, required: bool, round_number: int, expected: GateState
) -> None:
    missing = TestVerdict("gpu_transfer", State.NOT_RUN, required, "", "no NVML", (), ())
    judged = [
        replace(_judged([]), tests=(*_judged([]).tests, *[missing] * (number < runs)))
        for number in range(RUNS)
    ]
    verdict = judge_baseline(calm(), judged, rules=rules, round_number=round_number)
    assert verdict.verdict is expected
    assert ("no NVML" in said(verdict)) is required


SHAPES = recorded_noise()


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), sigma=st.floats(0.001, 0.01), loss=st.floats(0.15, 0.6))
def test_a_great_loss_never_passes_whatever_the_noise(seed: int, sigma: float, loss: float) -> None:
    draw = drawn_from(SHAPES, sigma, random.Random(seed))
    for round_number in (1, 2, 3):
        runs = RUNS * round_number
        verdict = judge(
            runs_of(runs, draw), runs_of(runs, draw, loss=loss, driver=NEW), round_number=round_number
        )
        assert verdict.verdict is not GateState.PASS


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), scale=st.floats(0.01, 100))
def test_the_verdict_does_not_depend_on_units_or_on_the_order_of_runs(seed: int, scale: float) -> None:
    chance = random.Random(seed)
    draw = drawn_from(SHAPES, 0.02, chance)
    before, now = runs_of(RUNS, draw), runs_of(RUNS, draw, loss=chance.choice([0, 0.05]), driver=NEW)

    def scaled(run: NodeResult) -> NodeResult:
        tests = [
            dataclasses.replace(
                test,
                measurements=tuple(
                    dataclasses.replace(one, value=one.value * scale) for one in test.measurements
                ),
            )
            for test in run.tests
        ]
        return dataclasses.replace(run, tests=tuple(tests))

    expected = judge(before, now)
    assert judge(list(map(scaled, before)), list(map(scaled, now))).verdict is expected.verdict
    turned = judge(before[::-1], now[::-1])
    assert turned.verdict is expected.verdict
    assert dict(turned.numbers) == pytest.approx(dict(expected.numbers))


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_result_compared_with_itself_never_fails(seed: int) -> None:
    runs = runs_of(RUNS, drawn_from(SHAPES, 0.01, random.Random(seed)))
    assert judge(runs, runs).verdict is not GateState.FAIL
