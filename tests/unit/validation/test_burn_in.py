"""Burn-in: rounds until the time is over or something fails, and on from where it was interrupted."""

import dataclasses
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.each import each
from tests.unit.validation.samples import expectation, measurement, one_test
from validation.model.contract import RESULT_VERSION, Finding, Measured, NodeResult, State, TestResult
from validation.model.plans import PLANS
from validation.processes.child import Request
from validation.processes.pool import Ending, ProcessOutcome
from validation.run import burn_in, runner
from validation.run.burn_in import Rounds

Run = Callable[..., NodeResult]

SLOW = Finding("below-floor", State.FAIL, "slow", "look", 0)


class Scripted:
    """A check that gives one result after the other, the last for ever."""

    id = "gpu_matmul"
    title = needs = "a script"
    method = 1
    headline: tuple[str, ...] = ()

    def __init__(self, *results: TestResult | BaseException) -> None:
        self.results = list(results)
        self.runs = 0

    def run(self, node: Any) -> TestResult:
        self.runs += 1
        result = self.results.pop(0) if len(self.results) > 1 else self.results[0]
        if isinstance(result, BaseException):
            raise result
        return result


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a plan of a certain duration with one scripted check."""

    def call(
        check: Scripted, duration_s: float, state: Path | None = None, say: Callable[[str], None] = print
    ) -> NodeResult:
        monkeypatch.setattr(runner, "CHECKS", {check.id: check})
        plan = dataclasses.replace(PLANS["burn-in"], duration_s=duration_s)
        return runner.run_plan(plan, expectation(), "gpu01", [check.id], lambda *_: None, state, say=say)

    return call


def good(value: float = 730.0) -> TestResult:
    return one_test("gpu_matmul", State.PASS, measurement(value=value))


def bad() -> TestResult:
    return one_test("gpu_matmul", State.FAIL, measurement(value=100.0), findings=(SLOW,))


@pytest.mark.component
def test_a_plan_without_a_duration_runs_once(run: Run) -> None:
    check = Scripted(good())
    run(check, 0)
    assert check.runs == 1


@pytest.mark.component
def test_a_process_that_was_found_stuck_at_the_end_fails_the_last_test(run: Run) -> None:
    class LeavesOneStuck(Scripted):
        def run(self, node: Any) -> TestResult:
            asked = Request("GPU 3", "", "cuda", device=3)
            words = "GPU 3 did not end when it was killed"
            node.pool.stuck.append(
                ProcessOutcome(asked, Ending.UNKILLABLE, Measured(), words, "waiting", 1.0)
            )
            return super().run(node)

    (test,) = run(LeavesOneStuck(good()), 0).tests
    assert test.state is State.FAIL
    assert test.measurements == good().measurements
    assert [(one.code, one.device) for one in test.findings] == [("process-unkillable", 3)]


@pytest.mark.component
def test_a_burn_in_repeats_until_its_time_is_over(run: Run) -> None:
    check = Scripted(good())
    run(check, 1.0)
    assert check.runs > 1


@pytest.mark.component
def test_the_first_fault_ends_it(run: Run) -> None:
    check = Scripted(good(), good(), bad())
    (test,) = run(check, 3600).tests
    assert check.runs == 3
    assert (test.state, test.findings) == (State.FAIL, (SLOW,))


@pytest.mark.component
def test_what_cannot_run_is_not_repeated_for_hours(run: Run) -> None:
    check = Scripted(one_test("gpu_matmul", State.NOT_RUN, reason="no driver"))
    (test,) = run(check, 3600).tests
    assert (check.runs, test.reason) == (1, "no driver")


@pytest.mark.component
def test_an_interrupted_burn_in_goes_on_where_it_was(run: Run, tmp_path: Path) -> None:
    state = tmp_path / "rounds.json"
    with pytest.raises(KeyboardInterrupt):
        run(Scripted(good(700.0), good(730.0), KeyboardInterrupt()), 3600, state)
    assert json.loads(state.read_text())["count"] == 2
    (test,) = run(Scripted(bad()), 3600, state).tests
    assert [finding.code for finding in test.findings] == ["below-floor"]
    assert [one.value for one in test.measurements] == [100.0]
    assert not state.exists()


FRESH = Rounds(RESULT_VERSION, "gpu01", "burn-in", kind="driver 580, GPUs GPU-1")


def saved(folder: Path, **changed: Any) -> Path:
    """A round that was saved, and what was changed in it since then."""
    state = folder / "rounds.json"
    burn_in.save(state, FRESH.plus([good()], 60.0))
    state.write_text(json.dumps(json.loads(state.read_text()) | changed))
    return state


@each({"node": "gpu02"}, {"plan": "standard"}, {"kind": "driver 590, GPUs GPU-1"}, {"schema_version": 1})
def test_rounds_of_another_node_plan_driver_or_gpu_are_not_taken_up(
    other: dict[str, Any], tmp_path: Path
) -> None:
    state = saved(tmp_path)
    found, said = burn_in.load(state, FRESH)
    assert (found.elapsed_s, said) == (60.0, f"It goes on with the 1 round of 0.0167 h that {state} keeps.")
    found, said = burn_in.load(state, dataclasses.replace(FRESH, **other))
    assert (found.count, "begins anew" in said, "another node" in said) == (0, True, True)


def test_rounds_of_last_week_or_of_tomorrow_are_not_taken_up(tmp_path: Path) -> None:
    for age_s, older, set_back in ((2 * burn_in.MOST_PAUSE_S, True, False), (-3600, False, True)):
        found, said = burn_in.load(saved(tmp_path, saved_at=time.time() - age_s), FRESH)
        assert (found.count, "older than 24 h" in said, "set back" in said) == (0, older, set_back)


def test_a_boot_in_between_is_said(tmp_path: Path) -> None:
    (test,) = burn_in.load(saved(tmp_path, boot="another"), FRESH)[0].tests
    assert test.state is State.DEGRADED
    assert [finding.code for finding in test.findings] == ["burn-in-rebooted"]


@pytest.mark.component
def test_a_place_that_cannot_be_written_costs_no_hours(run: Run, tmp_path: Path) -> None:
    check = Scripted(good())
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        run(check, 3600, tmp_path / "file" / "rounds.json")
    assert check.runs == 0


@pytest.mark.component
def test_a_disk_that_fills_up_costs_the_rounds_and_not_the_hours(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saves, save = iter(range(9)), burn_in.save
    said: list[str] = []

    def full_after_one(path: Path | None, rounds: Rounds) -> None:
        if next(saves):
            raise OSError(28, "No space left on device", str(path))
        save(path, rounds)

    monkeypatch.setattr(burn_in, "save", full_after_one)
    check = Scripted(good(), good(), good(), bad())
    (test,) = run(check, 3600, tmp_path / "rounds.json", said.append).tests
    assert (check.runs, test.state) == (4, State.FAIL)
    # Nothing was there to go on from; the disk is said once.
    assert [("No space left" in text, "goes on" in text) for text in said] == [(False, False), (True, True)]


@pytest.mark.component
def test_a_run_of_another_plan_leaves_the_rounds_alone(run: Run, tmp_path: Path) -> None:
    state = tmp_path / "rounds.json"
    burn_in.save(state, FRESH)
    run(Scripted(good()), 0, state)
    assert state.exists()


@pytest.mark.component
def test_a_test_that_breaks_fails_and_takes_no_other_along(run: Run) -> None:
    (test,) = run(Scripted(KeyError("telemetry")), 0).tests
    assert (test.state, [finding.code for finding in test.findings]) == (State.FAIL, ["test-broke"])
    assert "KeyError: 'telemetry'" in test.findings[0].text


@pytest.mark.component
def test_what_the_system_does_not_give_is_no_fault_of_the_hardware(run: Run) -> None:
    (test,) = run(Scripted(OSError(28, "No space left on device", "/tmp/turn")), 0).tests
    assert (test.state, test.findings) == (State.NOT_RUN, ())
    assert test.reason.startswith("the system did not let it run: OSError: [Errno 28] No space left")


def test_a_damaged_file_costs_the_rounds_and_not_the_run(tmp_path: Path) -> None:
    state = tmp_path / "rounds.json"
    state.write_text('{"schema')
    found, said = burn_in.load(state, FRESH)
    assert (found.count, "is damaged" in said) == (0, True)


def test_what_was_degraded_before_it_failed_keeps_both_findings() -> None:
    noisy = dataclasses.replace(SLOW, state=State.DEGRADED, text="noisy")
    first = dataclasses.replace(good(), state=State.DEGRADED, findings=(noisy,))
    merged = burn_in.merge(first, bad())
    assert (merged.state, merged.findings) == (State.FAIL, (noisy, SLOW))


@pytest.mark.component
def test_rounds_of_another_method_are_not_taken_up(run: Run, tmp_path: Path) -> None:
    state, check = tmp_path / "rounds.json", Scripted(good(), good(), KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        run(check, 3600, state)
    for method, count in ((1, 2), (2, 0)):
        check.method, check.results = method, [KeyboardInterrupt()]
        with pytest.raises(KeyboardInterrupt):
            run(check, 3600, state)
        assert json.loads(state.read_text())["count"] == count


def test_rounds_keep_the_worst_of_each_number_and_every_finding_once() -> None:
    worn = Finding("persistence-off", State.DEGRADED, "off", device=0)
    first = dataclasses.replace(good(730.0), state=State.DEGRADED, findings=(worn,))
    merged = burn_in.merge(burn_in.merge(first, good(700.0)), dataclasses.replace(first, duration_s=2.0))
    assert merged.state is State.DEGRADED
    assert [one.value for one in merged.measurements] == [700.0]
    assert merged.findings == (worn,)
    assert merged.duration_s == 4.0


def test_what_hours_of_load_cost_is_said_before_they_begin() -> None:
    said = burn_in.price(72, [700.0] * 8, Path("rounds.json"))
    assert all(words in said for words in ("72 h", "5.6 kW, 403 kWh", "goes on with --state rounds.json"))
    assert all("not known" in burn_in.price(4, limits, None) for limits in ([700.0, None], []))
    assert "begins anew" in burn_in.price(4, [], None)
