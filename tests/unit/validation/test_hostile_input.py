"""Input that nobody should give and somebody will: one sentence, status 2, and never a verdict from it."""

import dataclasses
import fcntl
import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.each import each
from tests.unit.validation.samples import measurement, node_result, one_test
from validation.cli import commands, main
from validation.model import gpu_models
from validation.model.contract import (
    EXPECTATIONS_VERSION,
    ContractError,
    Finding,
    NodeResult,
    State,
    dumps,
    encode,
    parse,
)
from validation.model.contract import node_result as read
from validation.model.expectations import References, fleet_from, parse_expectation
from validation.processes.pool import ROOT
from validation.run import burn_in

Run = Callable[..., subprocess.CompletedProcess[str]]

GOOD = node_result(one_test("gpu_matmul", State.PASS, measurement(), measurement(device=1)))
VALIDATION = [sys.executable, "-m", "validation"]


@each(
    ('{"nodes": {"a": 1, "a": 2}}', "'a' is twice in one object"),
    ("[" * 100_000, "nested too deeply"),
    ("9" * 5000, "not JSON"),
    ("", "not JSON"),
    (bytes(range(256)), "not JSON"),
)
def test_text_that_two_readers_could_read_differently_is_refused(text: str | bytes, message: str) -> None:
    with pytest.raises(ContractError, match=message):
        parse(text)


@each(
    (dataclasses.replace(GOOD, tests=GOOD.tests * 2), "tests: gpu_matmul is there twice"),
    (dataclasses.replace(GOOD, gpus=GOOD.gpus[:1] * 2), "gpus: GPU 0 is there twice"),
    (node_result(one_test("splendid")), "splendid is no test that this program knows"),
    (
        node_result(one_test("health", findings=(Finding("x", State.PASS, "it is well"),))),
        "x of health is pass; expected degraded or fail",
    ),
    (
        node_result(one_test("health", findings=(Finding("x", State.NOT_RUN, "no idea"),))),
        "x of health is not-run; expected degraded or fail",
    ),
)
def test_a_result_that_contradicts_itself_is_refused(result: NodeResult, message: str) -> None:
    with pytest.raises(ContractError, match=message):
        read(encode_as_json(result), ("health", "gpu_matmul"))


def encode_as_json(result: Any) -> Any:
    return json.loads(dumps(result))


@each("2", None, 2.5, [])
def test_a_version_that_is_no_whole_number_is_named_as_that(version: Any) -> None:
    value = encode_as_json(GOOD) | {"schema_version": version}
    with pytest.raises(ContractError, match="schema_version: expected int"):
        read(value)


MODEL = {"name": "X", "pci_ids": ["2330"]}


@each(
    ({"models": {"x": []}}, "models.x: expected an object with a name"),
    ({"models": {"x": {}}}, "models.x: expected an object with a name"),
    ({"models": {"x": {"name": "X"}}}, "x.pci_ids: expected a list"),
    ({"models": {"x": MODEL | {"floor": []}}}, "x.floor: expected an object"),
    (
        {"models": {"x": MODEL | {"floor": {"bf16_tflops": 672}}}},
        "floor.bf16_tflops: expected an object with a value above 0",
    ),
    (
        {"models": {"x": MODEL | {"peak": {"bf16_tflops": {"value": -1}}}}},
        "peak.bf16_tflops: expected an object with a value above 0",
    ),
    (
        {"models": {"x": MODEL | {"floor": {"busbw_gb_s": [{"value": 1}]}}}},
        "floor.busbw_gb_s: expected gpus and size_bytes beside the value",
    ),
    ({"pcie_x16": {"5": 48}}, "pcie_x16.5: expected an object"),
)
def test_references_of_another_form_are_refused(references: dict[str, Any], message: str) -> None:
    with pytest.raises(ContractError, match=message):
        parse_expectation(json.dumps({"references": references}), ())


def test_the_table_of_models_has_the_form_of_references() -> None:
    references = encode(gpu_models.available())
    found = parse_expectation(json.dumps({"references": references}, default=str), ())
    assert found.references != References()


@each({"power_limit_w": 0}, {"gpus": [{"model": "x", "name": "X", "count": -1}]})
def test_an_expectation_that_no_node_can_meet_is_refused(wrong: dict[str, Any]) -> None:
    nodes = {"gpu01": {"schema_version": EXPECTATIONS_VERSION} | wrong}
    with pytest.raises(ContractError, match="gpu01: expected no negative count of GPUs"):
        fleet_from({"schema_version": EXPECTATIONS_VERSION, "nodes": nodes}, ())


@pytest.mark.parametrize("text", ["[]", "{}", '{"expectations": {}, "results": []}', "null"])
def test_a_fleet_of_another_form_is_one_sentence(text: str, run_temper: Run) -> None:
    done = run_temper("report", "--fleet", "--output=unused", given=text)
    assert done.returncode == 2
    assert done.stderr.startswith('temper report: standard input is not {"expectations"')


@each(
    ("--traces", "a file", "expected a folder to write to"),
    ("--traces", "/proc/none", "expected a folder to write to"),
    ("--output", "/proc/result.json", "expected a place that can be written to"),
    ("--output", ".", "expected a file, or none yet"),
)
def test_what_cannot_be_written_is_named_before_anything_runs(
    option: str,
    place: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(commands, "run_plan", None)
    (tmp_path / "a file").touch()
    assert main.main(["run", option, str(tmp_path / place)]) == 2
    assert f"{tmp_path / place}: {said}" in capsys.readouterr().err


def test_two_runs_with_one_state_do_not_measure_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(commands, "run_plan", None)
    state = tmp_path / "rounds.json"
    with burn_in.locked(state):
        assert main.main(["run", f"--state={state}"]) == 2
    assert f"{state} is used by another run on this machine" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_state_is_free_again_after_a_run_that_broke(tmp_path: Path) -> None:
    state = tmp_path / "rounds.json"
    with pytest.raises(ZeroDivisionError), burn_in.locked(state):
        _ = 1 / 0
    with burn_in.locked(state):
        assert [path.name for path in tmp_path.iterdir()] == [".rounds.json.lock"]


def test_a_lock_is_for_nobody_else(tmp_path: Path) -> None:
    with burn_in.locked(tmp_path / "new" / "rounds.json"):
        (lock,) = (tmp_path / "new").iterdir()
        assert stat.S_IMODE(lock.stat().st_mode) == 0o600
        assert stat.S_IMODE(lock.parent.stat().st_mode) == 0o700


def test_a_lock_that_others_could_open_and_one_of_them_holds_stops_no_run(tmp_path: Path) -> None:
    lock = tmp_path / ".rounds.json.lock"
    lock.touch(mode=0o644)
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with burn_in.locked(tmp_path / "rounds.json"):
            assert not os.path.samestat(lock.stat(), os.fstat(held.fileno()))


def test_a_link_in_the_place_of_a_lock_leads_nowhere(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("kept")
    (tmp_path / ".rounds.json.lock").symlink_to(other)
    with burn_in.locked(tmp_path / "rounds.json"):
        pass
    assert other.read_text() == "kept"


QUIET = "--test=platform"  # where there is no GPU, it says so at once; with one, it reads some files


@pytest.mark.component
@pytest.mark.parametrize(
    "redirection", ["2>/dev/full", "2>&-", "2> >(exit)", ">/dev/full 2>/dev/full", ">&- 2>&-"]
)
def test_a_place_that_takes_no_words_is_no_fault_of_a_gpu(redirection: str) -> None:
    command = f"exec {sys.executable} -m validation run {QUIET} {redirection}"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode in {0, 2}, done.stderr


@pytest.mark.component
@pytest.mark.parametrize("buffered", ["", "1"])
@pytest.mark.parametrize(("command", "statuses"), [("explain >/dev/full", {2}), ("explain | true", {0, 2})])
def test_output_that_nobody_reads_is_no_traceback(command: str, statuses: set[int], buffered: str) -> None:
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m validation {command}; exit ${{PIPESTATUS[0]}}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={"PYTHONUNBUFFERED": buffered},
    )
    assert done.returncode in statuses, done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


@pytest.mark.component
def test_a_name_that_the_terminal_cannot_show_costs_no_verdict() -> None:
    done = subprocess.run(
        [*VALIDATION, "run", QUIET, "--node=größe"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
    )
    assert "gr\\xf6\\xdfe" in done.stdout
    assert "Verdict: " in done.stdout


@pytest.mark.component
def test_the_one_file_builds_itself(tmp_path: Path) -> None:
    first, second = tmp_path / "first.pyz", tmp_path / "second.pyz"
    assert main.main(["build", f"--output={first}"]) == 0
    subprocess.run([sys.executable, "-I", "-S", first, "build", f"--output={second}"], check=True)
    assert second.read_bytes() == first.read_bytes()
