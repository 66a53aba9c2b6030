"""The gate: what passes, what fails, what is measured again, each with its sentence."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from temper.rollout.gate import GateState, Rules, errors_in_soak, judge, judge_baseline
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


def without(run: NodeResult, test: str) -> NodeResult:
    return replace(run, tests=tuple(one for one in run.tests if one.id != test))


def test_a_node_that_is_as_fast_as_before_passes() -> None:
    verdict = judge(calm(), after())
    assert (verdict.verdict, verdict.reasons) == (GateState.PASS, ())
    assert len(verdict.compared) == 3


def test_one_percent_slower_passes_and_the_number_is_kept() -> None:
    verdict = judge(calm(), after(loss=0.01))
    assert verdict.verdict is GateState.PASS
    loss = next(value for name, value in verdict.numbers.items() if "bf16" in name and name.endswith("_loss"))
    assert loss == pytest.approx(0.01, abs=0.002)


def noisy(count: int, seed: int, width: float = 0.08, **changes: Any) -> list[NodeResult]:
    """Runs of which all GPUs together are off by up to 8 %, as when something else works on the node."""
    chance = random.Random(seed)
    return [run_of([1 + chance.uniform(-width, width)] * GPUS, **changes) for _ in range(count)]


def fallen(runs: list[NodeResult], by: float) -> list[NodeResult]:
    """The runs with every number lower by a part; negative for higher."""
    return [
        replace(
            run,
            tests=tuple(
                replace(
                    test,
                    measurements=tuple(replace(one, value=one.value * (1 - by)) for one in test.measurements),
                )
                for test in run.tests
            ),
        )
        for run in runs
    ]


BACK, OVERRULED, NO_NUMBERS = Rules(way_back=True), Rules(overruled=True), Rules(numbers=())
WIDE = noisy(15, 2, 0.4, driver=NEW)


def first(changed: NodeResult, runs: list[NodeResult]) -> list[NodeResult]:
    """The runs with another one in the first one's place."""
    return [changed, *runs[1:]]


def fell_alone() -> list[NodeResult]:
    factors = [0.8 if gpu == 5 else 1.0 for gpu in range(GPUS)]
    return [run_of([factor * (1 + CALM[run]) for factor in factors], driver=NEW) for run in range(RUNS)]


def swapped(run: NodeResult) -> NodeResult:
    return replace(run, gpus=(*run.gpus[:-1], replace(run.gpus[-1], uuid="GPU-new")))


def not_any_more(run: NodeResult, reason: str) -> NodeResult:
    gone = one_test("gpu_transfer", State.NOT_RUN, reason=reason)
    return replace(run, tests=(*without(run, "gpu_transfer").tests, gone))


def without_fp32(run: NodeResult) -> NodeResult:
    kept = (
        replace(test, measurements=tuple(one for one in test.measurements if one.name != "fp32_tflops"))
        for test in run.tests
    )
    return replace(run, tests=tuple(kept))


def with_torch(run: NodeResult) -> NodeResult:
    return replace(run, machine=replace(run.machine, torch="2.14.0"))


def with_method(run: NodeResult) -> NodeResult:
    return replace(run, tests=tuple(replace(test, method=2) for test in run.tests))


def settings_of(**values: tuple[str, str]) -> dict[str, Any]:
    """Settings of a GPU before and after."""
    sides = ({name: value[side] for name, value in values.items() if value[side]} for side in (0, 1))
    return dict(zip(("settings_before", "settings_after"), ({"GPU-0": one} for one in sides), strict=True))


PASS, AGAIN, FAIL = GateState.PASS, GateState.MEASURE_AGAIN, GateState.FAIL
LAST: dict[str, Any] = {"round_number": 3}
LOSS = after(count=15, loss=0.06)
OTHER_SHAPE = {"conditions": {"m": 4096, "n": 4096, "k": 4096}}
SAME_BITS, ODD_BITS = ["a"] * GPUS, ["a"] * 7 + ["b"]


@each(
    # A loss is confirmed once.
    (calm(), after(loss=0.06), {}, AGAIN, ["confirm"]),
    (
        calm(10),
        after(count=10, loss=0.06),
        {"round_number": 2},
        FAIL,
        ["gpu_matmul bf16: 730 -> 686 TFLOP/s (-6.0 %, median of 8 GPUs)."],
    ),
    (calm(), after(loss=-0.2), {}, PASS, []),
    (noisy(5, 1), noisy(5, 2, driver=NEW), {}, AGAIN, []),
    # In the last round, what fell fails a node, and nothing else does.
    (calm(15), WIDE, LAST, PASS, []),
    (calm(15), fallen(WIDE, 0.2), LAST, FAIL, ["Before the upgrade"]),
    (calm(15), fallen(WIDE, 0.2), LAST | {"rules": BACK}, PASS, []),
    (noisy(15, 1, 0.4), WIDE, LAST, PASS, []),
    (noisy(15, 1, 0.4), fallen(WIDE, 0.2), LAST, FAIL, ["No number"]),
    (noisy(15, 1, 0.4), fallen(WIDE, 0.2), LAST | {"rules": BACK}, PASS, []),
    (calm(15), LOSS, LAST | {"rules": BACK}, FAIL, ["-6.0 %"]),
    (calm(15), LOSS, LAST | {"rules": OVERRULED}, PASS, []),
    (calm(15), LOSS, LAST | {"rules": NO_NUMBERS}, PASS, []),
    (calm(15), LOSS, LAST | {"rules": Rules(numbers=("gpu_tr*",))}, FAIL, ["h2d"]),
    (calm(15), after(count=15, findings=[SLOW]), LAST | {"rules": OVERRULED}, PASS, []),
    (calm(15), after(count=15, findings=[XID]), LAST | {"rules": OVERRULED}, FAIL, ["Xid"]),
    (calm(15), after(count=15, findings=[XID]), LAST | {"rules": NO_NUMBERS}, FAIL, ["Xid"]),
    # A GPU that fell alone is named and not returned.
    (calm(), fell_alone(), {}, AGAIN, []),
    (calm(), fell_alone(), LAST, FAIL, ["GPU-5 alone: -20.0 %"]),
    (calm(), [run_of([1.0] * 7, driver=NEW)] * RUNS, {}, FAIL, ["GPU-7", "gone"]),
    (calm(), [swapped(run) for run in after()], {}, FAIL, ["GPU-new"]),
    # What was measured before must be measured now, in the same way.
    (
        calm(),
        [not_any_more(run, "no NVML") for run in after()],
        {},
        FAIL,
        ["gpu_transfer was measured before the upgrade and is not-run now: no NVML"],
    ),
    (calm(), first(not_any_more(after()[0], "busy"), after()), {}, AGAIN, []),
    (calm(), [without_fp32(run) for run in after()], {}, FAIL, ["fp32"]),
    ([without_fp32(run) for run in calm()], after(), {}, PASS, ["fp32"]),
    (calm(), after(plan="standard"), {}, AGAIN, []),
    (calm(), after(plan="standard"), LAST, FAIL, []),
    (calm(), after(**OTHER_SHAPE), {}, AGAIN, []),
    (calm(), after(**OTHER_SHAPE), LAST, FAIL, []),
    (calm(), [with_torch(run) for run in after()], {}, AGAIN, ["torch"]),
    (calm(), [with_method(run) for run in after()], {}, AGAIN, ["method"]),
    (calm(2), after(), {"rules": Rules(runs=3)}, AGAIN, []),
    # A finding in one of the runs is looked at again; one Xid is enough.
    (calm(), after(findings=[SLOW]), {}, FAIL, []),
    (calm(), first(after(findings=[SLOW])[0], after()), {}, AGAIN, []),
    (calm(), first(after(findings=[SLOW])[0], after()), LAST, PASS, [SLOW.text]),
    (calm(), first(after(findings=[XID])[0], after()), {}, FAIL, []),
    # A setting that was lost has both values; one that the new driver does not say is noted.
    *(
        (calm(), after(), settings_of(**{name: values}), FAIL, [name, *values])
        for name, values in (
            ("MIG mode", ("Enabled", "Disabled")),
            ("power limit", ("600.00 W", "700.00 W")),
            ("graphics clock of applications", ("1410 MHz", "1980 MHz")),
            ("ECC", ("Enabled", "Disabled")),
        )
    ),
    (calm(), after(), settings_of(x=("1", "")), PASS, ["x"]),
    (calm(), after(), {"settings_before": {"GPU-0": {"x": "1"}}, "settings_after": {}}, FAIL, []),
    # Another driver may make other bits of all equal GPUs; another kernel may not.
    (calm(bits=SAME_BITS), after(bits=["b"] * GPUS), {}, PASS, ["bits"]),
    (calm(bits=SAME_BITS), after(bits=ODD_BITS), {}, FAIL, ["GPU-7"]),
    (calm(bits=SAME_BITS), first(run_of(driver=NEW, bits=ODD_BITS), after(bits=SAME_BITS)), {}, FAIL, []),
    (calm(bits=SAME_BITS), calm(bits=["b"] * GPUS), {}, FAIL, []),
)
def test_what_the_upgrade_has_changed_decides(
    before: list[NodeResult],
    now: list[NodeResult],
    options: dict[str, Any],
    state: GateState,
    words: list[str],
) -> None:
    verdict = judge(before, now, **options)
    assert verdict.verdict is state, verdict.reasons
    said = " ".join(verdict.notes if state is PASS else verdict.reasons)
    assert [word for word in words if word not in said] == [], said


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


def test_gpus_pair_by_uuid_when_a_reboot_numbers_them_anew() -> None:
    fast = [1.0] * 4 + [0.9] * 4
    before = [run_of(fast) for _ in range(RUNS)]
    turned = [run_of(fast[::-1], driver=NEW) for _ in range(RUNS)]
    # GPU-0 now has number 7, and so on: each is as fast as it was.
    turned = [
        replace(run, gpus=tuple(replace(gpu, uuid=f"GPU-{7 - gpu.index}") for gpu in run.gpus))
        for run in turned
    ]
    verdict = judge(before, turned)
    assert verdict.verdict is GateState.PASS
    assert {loss for one in verdict.compared for loss in one.gpus.values()} == {0.0}


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


def test_results_of_two_nodes_are_an_error() -> None:
    with pytest.raises(ValueError, match="gpu02"):
        judge(calm(), after(node="gpu02"))


@each(State.DEGRADED, State.FAIL)
def test_an_xid_in_the_soak_fails_however_bad_it_is(state: State) -> None:
    assert errors_in_soak([replace(XID, state=state), SLOW]) == [XID.text]


def test_a_note_that_is_the_same_of_all_gpus_is_one() -> None:
    before, now = ({f"GPU-{index}": own for index in range(8)} for own in ({"x": "1"}, {}))
    verdict = judge(calm(), after(), settings_before=before, settings_after=now)
    (note,) = [note for note in verdict.notes if "x" in note and "GPUs" in note]
    assert note.startswith("8 GPUs (GPU-0, GPU-1 and 6 more): ")


def _judged(findings: Sequence[Finding]) -> NodeVerdict:
    test = TestVerdict("gpu_matmul", State.DEGRADED, True, "", "", tuple(findings), ())
    return NodeVerdict("gpu01", State.DEGRADED, 0, "", (test,), ())


ACCEPTED = Rules(accepted=frozenset({SLOW.code, XID.code}))


@each(
    (calm(), (), {}, PASS, []),
    # Not blamed on the upgrade.
    (calm(), [_judged([SLOW])] * RUNS, {}, FAIL, ["before the upgrade", SLOW.text]),
    (calm(), [_judged([SLOW]), *[_judged([])] * (RUNS - 1)], {}, AGAIN, []),
    # A weakness that the operator knows is accepted, a fault never.
    (calm(), [_judged([SLOW])] * RUNS, {"rules": ACCEPTED}, PASS, []),
    (calm(), [_judged([XID])] * RUNS, {"rules": ACCEPTED}, FAIL, []),
    (noisy(5, 3), (), {}, AGAIN, []),
    (noisy(15, 3, 0.2), (), LAST, FAIL, []),
    (
        noisy(15, 3, 0.4),
        (),
        LAST,
        FAIL,
        ["chance alone could explain", "even a loss of 6 % could not be detected"],
    ),
    (noisy(15, 3, 0.4), (), LAST | {"rules": OVERRULED}, PASS, []),
    (noisy(15, 3, 0.4), (), LAST | {"rules": NO_NUMBERS}, PASS, []),
    (first(run_of(bits=ODD_BITS), calm(bits=SAME_BITS)), (), {}, FAIL, []),
    ([], (), {}, AGAIN, []),
)
def test_a_baseline_is_of_a_good_node_that_repeats_itself(
    runs: list[NodeResult],
    judged: Sequence[NodeVerdict],
    options: dict[str, Any],
    state: GateState,
    words: list[str],
) -> None:
    verdict = judge_baseline(runs, judged, **options)
    assert verdict.verdict is state, verdict.reasons
    assert [word for word in words if word not in " ".join(verdict.reasons)] == []


def not_run(runs: list[NodeResult]) -> list[NodeResult]:
    tests = (one_test("gpu_matmul", State.NOT_RUN, reason="no torch"),)
    return [replace(run, tests=tests) for run in runs]


def no_test(runs: list[NodeResult]) -> list[NodeResult]:
    return [replace(run, tests=()) for run in runs]


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
    assert ("no NVML" in " ".join(verdict.reasons)) is required


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
            replace(
                test,
                measurements=tuple(replace(one, value=one.value * scale) for one in test.measurements),
            )
            for test in run.tests
        ]
        return replace(run, tests=tuple(tests))

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
