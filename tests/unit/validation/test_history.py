"""The node's own past as a judge: what compares, and what is said."""

import dataclasses
import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from temper.judge import history
from temper.judge.history import Past, PastDigest, PastNumber, PastRun
from temper.judge.history_store import History
from tests.unit.each import each
from tests.unit.validation.samples import expectation, measurement, node_result, one_test
from validation.model.contract import Digest, NodeResult, State
from validation.verdict.judge import judge_node
from validation.verdict.verdicts import NodeVerdict


def result_of(value: float, day: int, test: str = "gpu_matmul", **changes: Any) -> NodeResult:
    """A run on a day of November with one number."""
    on_cpu = test.startswith("cpu_")
    one = measurement("fp32_gflops" if on_cpu else "fp32_tflops", value, device=None if on_cpu else 0)
    result = node_result(one_test(test, State.PASS, one))
    machine = dataclasses.replace(result.machine, **changes)
    return dataclasses.replace(result, started_at=f"2026-11-{day:02}T12:00:00+00:00", machine=machine)


def past(directory: Path, *results: NodeResult) -> Past:
    """What is known of gpu01 when these runs of it, and of whatever was before, are in the history."""
    kept = History(directory / "history.sqlite")
    runs = [history.run_of(result, judge_node(result.node, result, expectation(2), {})) for result in results]
    kept.append([run for run in runs if run])
    return dict(kept.past(["gpu01"]))["gpu01"]


@each((49.5, None), (46.0, State.DEGRADED), (40.0, State.FAIL), (80.0, None))
def test_a_gpu_that_was_faster_before_is_named(value: float, state: State | None, tmp_path: Path) -> None:
    before = past(tmp_path, result_of(50.0, 1), result_of(50.2, 2), result_of(49.9, 3))
    said = history.compare(result_of(value, 4), before)["gpu_matmul"]
    assert [(finding.code, finding.state) for finding in said.findings] == (
        [("below-own-past", state)] if state else []
    )
    if state is State.FAIL:
        assert said.findings[0].text == (
            "fp32 40.0 TFLOP/s on GPU 0, 20% below the median of its 3 earlier runs (50.0 TFLOP/s)"
        )


def test_a_past_that_scatters_too_far_to_tell_anything_is_said(tmp_path: Path) -> None:
    before = past(tmp_path, *(result_of(value, day) for day, value in enumerate((50, 40, 60, 45, 55), 1)))
    said = history.compare(result_of(40.0, 6), before)["gpu_matmul"]
    assert said.findings == ()
    assert said.notes == (
        "fp32: the median of its 5 earlier runs (50.0 TFLOP/s) comes of numbers that scatter so far that "
        "only 52% below it is told from chance",
    )


def test_another_driver_compares_and_is_named(tmp_path: Path) -> None:
    before = past(tmp_path, result_of(50.0, 1, driver="570.124.06"))
    (finding,) = history.compare(result_of(40.0, 4), before)["gpu_matmul"].findings
    assert finding.text.endswith(
        "below its only earlier run (50.0 TFLOP/s); driver 570.124.06 then, 580.178.04 now"
    )


def uncomparable() -> dict[str, NodeResult]:
    """Runs of which the number is another thing."""
    fast = result_of(50.0, 1)
    (test,) = fast.tests
    return {
        "torch": result_of(50.0, 1, torch="2.9.0"),
        "plan": dataclasses.replace(fast, plan="standard"),
        "method": dataclasses.replace(fast, tests=(dataclasses.replace(test, method=2),)),
        "gpu": dataclasses.replace(fast, gpus=(dataclasses.replace(fast.gpus[0], uuid="GPU-other"),)),
        "later": result_of(50.0, 9),
        "conditions": dataclasses.replace(
            fast,
            tests=(
                dataclasses.replace(
                    test, measurements=(measurement("fp32_tflops", 50.0, conditions={"size": 1}),)
                ),
            ),
        ),
    }


@each(*uncomparable())
def test_only_like_compares_with_like_and_that_is_said(other: str, tmp_path: Path) -> None:
    said = history.compare(result_of(40.0, 4), past(tmp_path, uncomparable()[other]))["gpu_matmul"]
    assert said.findings == ()
    assert "not compared with its own past: no earlier run of the same kind passed" in said.notes


def test_a_run_that_failed_is_no_measure(tmp_path: Path) -> None:
    failed = result_of(50.0, 1)
    failed = dataclasses.replace(failed, tests=(dataclasses.replace(failed.tests[0], state=State.FAIL),))
    assert past(tmp_path, failed) == Past()


def test_a_slower_cpu_is_a_note_and_no_fault(tmp_path: Path) -> None:
    before = past(tmp_path, result_of(100.0, 1, "cpu_matmul"))
    said = history.compare(result_of(50.0, 4, "cpu_matmul"), before)["cpu_matmul"]
    assert said.findings == ()
    assert said.notes == ("fp32 50.0 GFLOP/s, 50% below its only earlier run (100 GFLOP/s)",)


def test_a_node_has_no_past_at_first(tmp_path: Path) -> None:
    assert dict(History(tmp_path / "none" / "history.sqlite").past(["gpu01"])) == {"gpu01": Past()}
    assert not (tmp_path / "none").exists()


def test_a_gpu_that_becomes_slower_bit_by_bit_is_found(tmp_path: Path) -> None:
    """0.4 % less each day: the median of the last runs follows, the first runs do not."""
    days = [result_of(50.0 * 0.996**day, 1) for day in range(45)]
    start = datetime.date(2026, 1, 1)
    runs = [
        dataclasses.replace(run, started_at=f"{start + datetime.timedelta(days=day)}T12:00:00+00:00")
        for day, run in enumerate(days)
    ]
    said = history.compare(runs[-1], past(tmp_path, *runs[:-1]))["gpu_matmul"]
    (finding,) = said.findings
    assert finding.code == "below-own-past"
    assert "below the median of its first 20 runs, from 2026-01-01 on" in finding.text


def validated(directory: Path, result: NodeResult) -> NodeVerdict:
    """The verdict on a run as a report gives it: held against the past, and then a part of it."""
    kept = History(directory / "history.sqlite")
    known = dict(kept.past([result.node], {result.node: result}))[result.node]
    said = history.compare(result, known)
    verdict = judge_node(result.node, result, expectation(len(result.gpus)), {}, comparisons=said)
    kept.append(run for run in [history.run_of(result, verdict)] if run)
    return verdict


def test_a_gpu_that_is_gone_is_missed_in_every_run_until_the_operator_accepts_it(tmp_path: Path) -> None:
    two = node_result(
        one_test("health"), one_test("gpu_matmul", State.PASS, measurement(), measurement(device=1))
    )
    one = node_result(one_test("health"), one_test("gpu_matmul", State.PASS, measurement()), gpus=1)
    days = [f"2026-11-{day:02}T12:00:00+00:00" for day in range(1, 6)]
    assert validated(tmp_path, dataclasses.replace(two, started_at=days[0])).state is State.PASS
    for day in days[1:4]:
        verdict = validated(tmp_path, dataclasses.replace(one, started_at=day))
        (finding,) = [found for test in verdict.tests for found in test.findings]
        assert (verdict.state, finding.code, finding.state) == (State.FAIL, "gpu-gone", State.FAIL)
        assert finding.text == "1 GPUs, and 2 in its run of 2026-11-01; gone: GPU-1"
    History(tmp_path / "history.sqlite").accept("gpu01")
    assert validated(tmp_path, dataclasses.replace(one, started_at=days[4])).state is State.PASS


def test_a_gpu_that_was_replaced_is_noted(tmp_path: Path) -> None:
    other = result_of(50.0, 1)
    other = dataclasses.replace(other, gpus=(dataclasses.replace(other.gpus[0], uuid="GPU-other"),))
    said = history.compare(result_of(50.0, 4), past(tmp_path, other))["gpu_matmul"]
    assert said.findings == ()
    assert "other GPUs than in its run of 2026-11-01: GPU-other" in said.notes


DAYS = st.lists(
    st.tuples(
        st.sampled_from(["quick", "quick", "standard"]),
        st.sampled_from(["2.13.0", "2.14.0"]),
        st.sampled_from(["580.1", "590.1"]),
        st.sampled_from(["both", "numbers", "checksums", "neither"]),
        st.sampled_from(["a", "b"]),
        st.floats(10.0, 100.0),
    ),
    max_size=16,
)


@given(DAYS, st.integers(1, 17), st.booleans())
def test_what_is_read_for_a_result_says_what_the_whole_past_says(
    days: list[tuple[str, str, str, str, str, float]], judged_day: int, has_new_gpus: bool
) -> None:
    """Of a median of two runs, so that a past of a few days is a long one."""
    runs = [_day(number, *day) for number, day in enumerate(days, 1)]
    result, _ = _measured(judged_day, "quick", "2.13.0", "580.1", "both", "a", 40.0)
    if has_new_gpus:
        gpus = tuple(dataclasses.replace(gpu, uuid=f"{gpu.uuid}-new") for gpu in result.gpus)
        result = dataclasses.replace(result, gpus=gpus)
    bare = [dataclasses.replace(run, numbers=(), digests=()) for run in runs]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(history, "MOST_RUNS", 2)
        chosen = history.basis(
            result, bare, lambda place: runs[place].numbers, lambda place: runs[place].digests
        )
        assert history.compare(result, Past(chosen)) == history.compare(result, Past(tuple(runs)))
    begun = [run.started_at for run in chosen]
    assert begun == sorted(begun)
    assert begun[-1:] == [run.started_at for run in runs[-1:]], "when it was measured last"


def test_of_a_year_of_runs_a_result_has_a_few_read(tmp_path: Path) -> None:
    start = datetime.date(2025, 11, 1)
    runs = [
        dataclasses.replace(run, started_at=f"{start + datetime.timedelta(days=day)}T12:00:00+00:00")
        for day, run in enumerate([result_of(50.0, 1)] * 365)
    ]
    whole = past(tmp_path, *runs)
    kept = History(tmp_path / "history.sqlite")
    ((_, read),) = kept.past(["gpu01"], {"gpu01": result_of(40.0, 4)})
    assert [len([run for run in one.runs if run.numbers]) for one in (whole, read)] == [365, 40]
    said = history.compare(result_of(40.0, 4), read)
    assert said == history.compare(result_of(40.0, 4), whole)
    assert "median of its 20 earlier runs" in said["gpu_matmul"].findings[0].text


def test_of_a_node_without_a_result_is_read_when_it_was_measured_last(tmp_path: Path) -> None:
    past(tmp_path, result_of(50.0, 1), result_of(50.0, 2))
    ((_, read),) = History(tmp_path / "history.sqlite").past(["gpu01"], {})
    assert [(run.started_at[:10], run.numbers) for run in read.runs] == [("2026-11-02", ())]


def _measured(
    day: int, plan: str, torch: str, driver: str, has: str, bits: str, value: float
) -> tuple[NodeResult, PastRun]:
    """A result of a day of November, and what is kept of it: numbers, checksums, both or neither."""
    result = result_of(value, day, torch=torch, driver=driver)
    digest = Digest("bf16", bits, 0, {"m": 64})
    tests = tuple(dataclasses.replace(test, digests=(digest,)) for test in result.tests)
    result = dataclasses.replace(result, plan=plan, tests=tests)
    (number,), uuid = tests[0].measurements, result.gpus[0].uuid
    run = PastRun(
        result.node,
        result.started_at,
        *(plan, torch, driver),
        (PastNumber("gpu_matmul", tests[0].method, number.name, uuid, value, number.conditions),)
        if has in {"both", "numbers"}
        else (),
        (PastDigest("gpu_matmul", tests[0].method, "bf16", uuid, bits, {"m": 64}),)
        if has in {"both", "checksums"}
        else (),
    )
    return result, run


def _day(day: int, *of: Any) -> PastRun:
    return _measured(day, *of)[1]
