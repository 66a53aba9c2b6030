"""The node's own past as a judge: what compares, and what is said."""

from __future__ import annotations

import dataclasses
import datetime
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.validation.samples import expectation, measurement, node_result, one_test
from validation.model.contract import NodeResult, State
from validation.verdict import history
from validation.verdict.history import Past
from validation.verdict.history_store import History
from validation.verdict.judge import judge_node

if TYPE_CHECKING:
    from pathlib import Path


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


@pytest.mark.parametrize(
    ("value", "state"), [(49.5, None), (46.0, State.DEGRADED), (40.0, State.FAIL), (80.0, None)]
)
def test_a_gpu_that_was_faster_before_is_named(value: float, state: State | None, tmp_path: Path) -> None:
    before = past(tmp_path, result_of(50.0, 1), result_of(50.2, 2), result_of(49.9, 3))
    said = history.compare(result_of(value, 4), before)["gpu_matmul"]
    assert [finding.state for finding in said.findings] == ([state] if state else [])


def test_a_past_that_scatters_too_far_to_tell_anything_is_said(tmp_path: Path) -> None:
    before = past(tmp_path, *(result_of(value, day) for day, value in enumerate((50, 40, 60, 45, 55), 1)))
    said = history.compare(result_of(40.0, 6), before)["gpu_matmul"]
    assert said.findings == ()
    assert said.notes == (
        "fp32: the median of its 5 earlier runs (50.0 TFLOP/s) comes of numbers that scatter so far that "
        "only 52% below it is told from chance",
    )


def test_the_reason_says_both_numbers_and_how_many_runs(tmp_path: Path) -> None:
    before = past(tmp_path, result_of(50.0, 1), result_of(50.2, 2), result_of(49.9, 3))
    (finding,) = history.compare(result_of(40.0, 4), before)["gpu_matmul"].findings
    assert finding.code == "below-own-past"
    assert finding.text == (
        "fp32 40.0 TFLOP/s on GPU 0, 20% below the median of its 3 earlier runs (50.0 TFLOP/s)"
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


@pytest.mark.parametrize("other", uncomparable())
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


def test_a_run_is_kept_once(tmp_path: Path) -> None:
    assert len(past(tmp_path, result_of(50.0, 1), result_of(50.0, 1)).runs) == 1


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


def test_a_gpu_that_was_there_in_the_last_run_is_missed(tmp_path: Path) -> None:
    two = node_result(one_test("gpu_matmul", State.PASS, measurement(), measurement(device=1)))
    two = dataclasses.replace(two, started_at="2026-11-01T12:00:00+00:00")
    one = node_result(one_test("health"), one_test("gpu_matmul", State.PASS, measurement()), gpus=1)
    (finding,) = history.compare(one, past(tmp_path, two))["health"].findings
    assert (finding.code, finding.state) == ("gpu-gone", State.FAIL)
    assert finding.text == "1 GPUs, and 2 in its run of 2026-11-01; gone: GPU-1"


def test_a_gpu_that_was_replaced_is_noted(tmp_path: Path) -> None:
    other = result_of(50.0, 1)
    other = dataclasses.replace(other, gpus=(dataclasses.replace(other.gpus[0], uuid="GPU-other"),))
    said = history.compare(result_of(50.0, 4), past(tmp_path, other))["gpu_matmul"]
    assert said.findings == ()
    assert "other GPUs than in its run of 2026-11-01: GPU-other" in said.notes
