"""The command line as its users run it: the checkout and the one-file build, good input and bad."""

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from temper.cli import main as temper
from temper.judge.history_store import History
from tests.unit.each import each
from tests.unit.executables import executable
from tests.unit.validation.samples import expectation, measurement, node_result, one_test
from tests.waiting import wait_until
from validation.checks import registry
from validation.cli import archive, commands, main
from validation.model import gpu_models
from validation.model.contract import (
    EXPECTATIONS_VERSION,
    FABRIC_VERSION,
    NodeResult,
    State,
    TestResult,
    dumps,
    encode,
    loads,
)
from validation.model.contract import node_result as read
from validation.model.expectations import FleetExpectations
from validation.model.plans import NO_OPTIONS, PLANS, Plan
from validation.probes import machine
from validation.probes.node_probe import Facts, NodeProbe
from validation.processes import files
from validation.processes.pool import ROOT
from validation.run import runner

Judge = Callable[..., subprocess.CompletedProcess[str]]

PYTHON = [sys.executable]


@pytest.fixture(scope="module")
def payload(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The one-file build."""
    path = tmp_path_factory.mktemp("payload") / "temper-validation.pyz"
    assert main.main(["build", "--output", str(path)]) == 0
    return path


def run(command: Sequence[str | Path], **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)


def test_the_same_source_builds_the_same_bytes(payload: Path) -> None:
    assert archive.build() == payload.read_bytes() == archive.build()


def test_a_build_does_not_touch_a_file_that_is_current(payload: Path) -> None:
    before = payload.stat().st_mtime_ns
    assert main.main(["build", "--output", str(payload)]) == 0
    assert payload.stat().st_mtime_ns == before


def test_a_change_of_the_source_changes_the_build(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name / "validation").mkdir(parents=True)
        (tmp_path / name / "validation" / "__main__.py").write_text(f"x = '{name}'\n")
    assert archive.build(tmp_path / "one" / "validation") != archive.build(tmp_path / "two" / "validation")


@pytest.mark.component
def test_an_older_python_is_told_what_is_needed(tmp_path: Path) -> None:
    """Its status must not be that of a broken GPU."""
    payload = tmp_path / "validation.pyz"
    payload.write_bytes(archive.build())
    as_older = (
        "import runpy, sys; sys.version_info = (3, 9, 2); runpy.run_path(sys.argv[1], run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", as_older, payload], capture_output=True, text=True)
    said = f"validation: it needs Python 3.10 or newer, {sys.executable} is 3.9\n"
    assert (done.returncode, done.stderr) == (2, said)


@pytest.mark.component
def test_an_isolated_run_imports_nothing_that_its_surroundings_bring(payload: Path, tmp_path: Path) -> None:
    """As root runs it on a node, with the processes that it starts."""
    folders = [tmp_path / name for name in ("cwd", "path")]
    for folder in folders:
        folder.mkdir()
        for module in ("csv", "json", "mmap", "struct", "sitecustomize", "usercustomize"):
            (folder / f"{module}.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w')\n")
    done = run(
        [sys.executable, "-I", payload, "run", "--test=platform", "--output=-"],
        cwd=folders[0],
        env={**os.environ, "PYTHONPATH": str(folders[1])},
    )
    # Without a GPU it does not run: what the process that reads the machine has found out.
    assert len(json.loads(done.stdout)["tests"]) == 1, done.stderr
    assert not (tmp_path / "imported").exists()


@pytest.mark.component
def test_the_one_file_build_carries_the_references_for_a_python_without_yaml(
    payload: Path, tmp_path: Path
) -> None:
    program = (
        f"import sys; sys.path.insert(0, {str(payload)!r})\n"
        "from validation.model import gpu_models\n"
        "print(gpu_models.available().model_of('2330')['floor']['bf16_tflops']['value'])"
    )
    done = run([sys.executable, "-I", "-S", "-c", program], cwd=tmp_path)
    table = yaml.safe_load((ROOT / "data/gpu_models.yml").read_text())
    (model,) = [model for model in table["models"].values() if "2330" in model["pci_ids"]]
    assert float(done.stdout) == model["floor"]["bf16_tflops"]["value"], done.stderr


@pytest.mark.component
@pytest.mark.parametrize("where", ["one file", "checkout"])
def test_findings_are_explained_by_a_python_without_yaml(where: str, payload: Path, tmp_path: Path) -> None:
    program = [str(payload)] if where == "one file" else ["-m", "validation"]
    done = run(
        [sys.executable, "-S", *program, "explain", "row-remap-failure"],
        cwd=tmp_path if where == "one file" else ROOT,
    )
    assert "have the GPU replaced" in done.stdout, done.stderr


SQUARE = {"m": 8192, "n": 8192, "k": 8192, "dtype": "bf16"}


@each(None, '{"required_tests": ["gpu_matmul"]}')
def test_a_run_by_hand_or_with_expectations_is_judged_by_the_references_at_hand(
    expected: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    number = measurement("bf16_tflops", 100.0, conditions=SQUARE)
    slow = node_result(one_test("gpu_matmul", State.PASS, number))
    monkeypatch.setattr(commands, "run_plan", lambda *_: slow)
    (tmp_path / "expect.json").write_text(expected or "")
    assert main.main(["run", *([f"--expect={tmp_path / 'expect.json'}"] if expected else [])]) == 1
    assert "floor" in capsys.readouterr().out


def test_a_run_by_hand_compares_the_gpus_of_the_node(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    values = [730, 731, 728, 735, 731, 690, 729, 733]
    numbers = [
        measurement("bf16_tflops", value, device=gpu, conditions=SQUARE) for gpu, value in enumerate(values)
    ]
    result = node_result(one_test("gpu_matmul", State.PASS, *numbers), one_test("health"), gpus=8)
    monkeypatch.setattr(commands, "run_plan", lambda *_: result)
    assert main.main(["run", "--test", "gpu_matmul"]) == 0
    said = capsys.readouterr().out
    assert "below the median of 8 equal GPUs" in said
    assert "1 degraded" in said


def test_where_no_table_is_at_hand_there_are_no_references(tmp_path: Path) -> None:
    assert gpu_models.table(tmp_path / "gpu_models.yml") is None


@pytest.mark.component
@pytest.mark.parametrize("how", ["checkout", "file"])
def test_list_names_every_test_and_plan(how: str, payload: Path, tmp_path: Path) -> None:
    if how == "checkout":
        done = run([*PYTHON, "-m", "validation", "list"], cwd=ROOT)
    else:
        done = run([*PYTHON, payload, "list"], cwd=tmp_path)
    assert done.returncode == 0
    for word in (*registry.TESTS, "quick", "standard"):
        assert f"  {word} " in done.stdout


@pytest.mark.component
def test_the_one_file_build_runs_on_a_machine_without_torch_and_says_what_is_missing(
    payload: Path, tmp_path: Path
) -> None:
    # An empty PATH has no nvidia-smi; -I -S hides whatever packages this Python has.
    output = tmp_path / "result.json"
    command = [sys.executable, "-I", "-S", str(payload), "run", f"--output={output}", "--node=bare"]
    done = run(command, cwd=tmp_path, env={"PATH": ""})
    assert done.returncode == 2, done.stderr
    written = json.loads(output.read_text())
    jsonschema.validate(
        written, json.loads((ROOT / "validation/schemas/node-result.schema.json").read_text())
    )
    result = read(written)
    assert (result.node, {test.state for test in result.tests}) == ("bare", {State.NOT_RUN})
    assert tuple(test.id for test in result.tests) == registry.in_plan("quick", NO_OPTIONS)
    assert "torch is not installed for" in done.stdout
    assert "Verdict: not-run" in done.stdout
    assert "cpu_matmul not-run" in done.stderr


@pytest.mark.component
def test_processes_of_the_one_file_build_import_nothing_from_the_current_folder(
    payload: Path, tmp_path: Path
) -> None:
    (tmp_path / "ctypes.py").write_text("raise SystemExit('this is somebody else's')\n")
    missing = tmp_path / "missing"
    command = [sys.executable, str(payload), "run", "--test=storage_read", f"--storage={missing}"]
    done = run([*command, "--output=-"], cwd=tmp_path)
    (test,) = loads(NodeResult, done.stdout).tests
    assert f"{missing} cannot be used" in test.reason


@pytest.mark.component
def test_an_expectation_is_read_from_standard_input_and_the_result_written_to_standard_output(
    payload: Path,
) -> None:
    wanted = dataclasses.replace(expectation(), gpus=None, required_tests=("cpu_matmul",))
    command = [
        sys.executable,
        "-I",
        "-S",
        str(payload),
        "run",
        "--test=cpu_matmul",
        "--expect=-",
        "--output=-",
    ]
    done = run(command, input=dumps(wanted), env={"PATH": ""})
    assert done.returncode == 2
    (test,) = loads(NodeResult, done.stdout).tests
    assert (test.id, test.state) == ("cpu_matmul", State.NOT_RUN)


@each(
    ("{", "not JSON"),
    (
        '{"required_tests": ["gpu_matmull"]}',
        "required test gpu_matmull is unknown; known are health, platform",
    ),
    ('{"required": []}', "required: no such field"),
    ('{"schema_version": 7}', "expectations of schema version 7"),
)
def test_a_wrong_expectation_is_an_error_before_anything_runs(
    content: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "expect.json"
    path.write_text(content)
    assert main.main(["run", "--expect", str(path)]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""


@pytest.mark.component
def test_a_path_that_cannot_be_measured_is_not_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    passing, name = Passing(), "storage_read"
    monkeypatch.setattr(runner, "CHECKS", {passing.id: passing, name: registry.CHECKS[name]})
    assert main.main(["run", "--test=health", f"--storage={tmp_path / 'missing'}"]) == 2
    assert f"{name} is required and was not run" in capsys.readouterr().out


def test_a_floor_without_storage_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["run", "--storage-floor=3"]) == 2
    assert "--storage-floor needs a --storage" in capsys.readouterr().err


@each("nan", "inf", "0", "-1", "fast")
def test_a_floor_that_nothing_can_be_compared_with_is_refused(
    floor: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main.main(["run", f"--storage={tmp_path}", f"--storage-floor={floor}"])
    assert f"expected GB/s, a number above 0, found {floor}" in capsys.readouterr().err


def test_a_test_that_was_asked_for_by_name_must_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    passing = Passing()
    monkeypatch.setattr(runner, "CHECKS", {passing.id: passing, "gpu_matmul": registry.CHECKS["gpu_matmul"]})
    monkeypatch.setattr(NodeProbe, "facts", lambda *_: Facts())
    assert main.main(["run", "--test=health", "--test=gpu_matmul"]) == 2
    assert "gpu_matmul is required and was not run: no NVIDIA GPU" in capsys.readouterr().out
    assert main.main(["run", "--test=health"]) == 0


def test_what_is_required_is_run_beside_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    passing = Passing()
    assert "gpu_amp" not in registry.in_plan("quick", NO_OPTIONS)
    monkeypatch.setattr(runner, "CHECKS", {passing.id: passing, "gpu_amp": registry.CHECKS["gpu_amp"]})
    monkeypatch.setattr(NodeProbe, "facts", lambda *_: Facts())
    (tmp_path / "expect.json").write_text('{"required_tests": ["health", "gpu_amp"]}')
    assert main.main(["run", "--plan=quick", f"--expect={tmp_path / 'expect.json'}"]) == 2
    assert "gpu_amp is required and was not run: no NVIDIA GPU" in capsys.readouterr().out


def test_where_there_is_a_gpu_it_must_be_measured_without_being_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    passing = Passing()
    monkeypatch.setattr(runner, "CHECKS", {passing.id: passing})
    monkeypatch.setattr(NodeProbe, "facts", lambda *_: Facts())
    assert main.main(["run"]) == 0
    one = Facts(pci_gpus=(machine.PciGpu("0000:1b:00.0", "2330"),))
    monkeypatch.setattr(NodeProbe, "facts", lambda *_: one)
    assert main.main(["run"]) == 2
    assert "gpu_matmul is required and was not run" in capsys.readouterr().out


@pytest.mark.component
def test_a_run_by_hand_can_say_how_many_gpus_there_must_be(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    passing = Passing()
    monkeypatch.setattr(runner, "CHECKS", {passing.id: passing})
    assert main.main(["run", "--test=health", "--gpus=9"]) == 1
    assert "0 GPUs were found on this node, expected 9" in capsys.readouterr().out


class Passing:
    """A check of which nothing can go wrong."""

    id = "health"

    def run(self, _node: Any) -> TestResult:
        return one_test("health")


@each(
    ["run", "--plan", "slow"],
    ["run", "--test", "gpu_matmull"],
    *(["run", "--hours", hours] for hours in ("nan", "inf", "0", "-1", "many")),
    *(["run", "--gpus", count] for count in ("-1", "eight", "")),
    *(["run", "--node", name] for name in ("../x", "", ".", "a/b")),
    [],
)
def test_a_wrong_command_line_ends_with_status_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main.main(arguments)
    assert ended.value.code == 2


def test_every_command_says_what_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    def said(*words: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main.main([*words, "--help"])
        assert ended.value.code == 0
        return capsys.readouterr().out

    names = re.findall(r"^    ([a-z]+) ", said(), re.MULTILINE)
    assert "batch" in names
    assert [name for name in names if f"usage: validation {name}" not in said(name)] == []


def test_an_old_result_is_not_left_to_be_taken_for_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any) -> NodeResult:
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "run_plan", interrupt)
    output = tmp_path / "result.json"
    output.write_text(dumps(node_result()))
    assert main.main(["run", "--output", str(output)]) == 130
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fills_up_costs_the_file_and_not_the_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(path: Path, *_: Any) -> None:
        raise OSError(f"{path}: cannot be written: No space left on device")

    monkeypatch.setattr(files, "write_atomically", full)
    for state, status in ((State.FAIL, 1), (State.PASS, 2)):
        result = node_result(one_test("gpu_matmul", state, measurement()), one_test("health"))
        monkeypatch.setattr(commands, "run_plan", lambda *_, result=result: result)
        output = str(tmp_path / "result.json")
        assert main.main(["run", "--test", "gpu_matmul", "--output", output]) == status
        said = capsys.readouterr()
        assert f"Verdict: {state.value}" in said.out
        assert "No space left" in said.err


@each(b"\xff\xfe", b'{"power_limit_w": 1' + b"0" * 400 + b"}")
def test_input_that_makes_no_sense_is_status_2_and_one_sentence(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "expect.json").write_bytes(content)
    assert main.main(["run", "--expect", str(tmp_path / "expect.json")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_fault_of_this_program_is_not_a_fault_of_a_gpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(commands, "run_plan", None)
    assert main.main(["run"]) == 2
    assert "this is a fault of this program; nothing was judged" in capsys.readouterr().err


Fleet = dict[str, Any]


@pytest.fixture
def fleet() -> Fleet:
    """Two nodes, of which one has a result."""
    good = node_result(one_test("gpu_matmul", State.PASS, measurement(value=730.0)))
    return {
        "expectations": {
            "schema_version": EXPECTATIONS_VERSION,
            "nodes": {
                "gpu01": json.loads(dumps(expectation(1))),
                "gpu02": json.loads(dumps(expectation(not_run="it cannot be reached"))),
            },
        },
        "results": {"gpu01": encode(good)},
    }


@pytest.fixture
def judge(run_temper: Judge, tmp_path: Path) -> Judge:
    """Run `report --fleet` on a fleet, writing to `reports/now`."""

    def call(fleet: Fleet, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        words = ["report", "--fleet", "--latest", *arguments, f"--output={tmp_path / 'reports' / 'now'}"]
        return run_temper(*words, given=json.dumps(fleet))

    return call


def test_a_fleet_with_a_missing_node_names_it_and_has_not_passed(
    fleet: Fleet, judge: Judge, tmp_path: Path
) -> None:
    done = judge(fleet)
    assert done.returncode == 2
    for name, file in (("summary", "summary.json"), ("expectations", "expectations.json")):
        schema = json.loads((ROOT / f"validation/schemas/{name}.schema.json").read_text())
        jsonschema.validate(json.loads((tmp_path / "reports/latest" / file).read_text()), schema)
    assert "gpu02: not-run\n  - it cannot be reached" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("Verdict: not-run. 1 of 2 nodes passed")
    assert json.loads((tmp_path / "reports" / "latest" / "summary.json").read_text())["exit_status"] == 2


@pytest.mark.parametrize("name", ["rack1/gpu02", "../../gpu02", ".gpu02"])
def test_a_node_whose_name_preflight_refuses_costs_the_others_no_report(
    name: str, fleet: Fleet, judge: Judge, tmp_path: Path
) -> None:
    nodes = fleet["expectations"]["nodes"]
    nodes[name] = nodes.pop("gpu02")
    metrics = tmp_path / "metrics"
    metrics.mkdir()
    done = judge(fleet, "--metrics", metrics)
    assert done.returncode == 2
    assert done.stdout.splitlines()[-1].startswith(
        f"Verdict: not-run. 1 of 2 nodes passed; 1 of 2 nodes not run ({name})"
    )
    assert len([*metrics.iterdir()]) == 2
    assert [path.name for path in (tmp_path / "reports/now/results").iterdir()] == ["gpu01.json"]


def test_a_whole_fleet_that_passed_has_status_0(fleet: Fleet, judge: Judge) -> None:
    del fleet["expectations"]["nodes"]["gpu02"]
    assert judge(fleet).returncode == 0


def test_a_slow_gpu_has_status_1(fleet: Fleet, judge: Judge) -> None:
    fleet["results"]["gpu01"]["tests"][0]["measurements"][0]["value"] = 612.0
    done = judge(fleet)
    assert done.returncode == 1
    assert "bf16 612 TFLOP/s on GPU 0, floor 672 (H100 SXM 80 GB)" in done.stdout


def test_a_result_of_a_node_that_nobody_expects_is_an_error(fleet: Fleet, judge: Judge) -> None:
    del fleet["expectations"]["nodes"]["gpu01"]
    done = judge(fleet)
    assert done.returncode == 2
    assert "there is a result of gpu01, but nothing is expected of a node of this name" in done.stderr


def test_a_report_can_be_made_again_from_its_own_folder(fleet: Fleet, judge: Judge, tmp_path: Path) -> None:
    judge(fleet)
    first = tmp_path / "reports" / "now"
    status = temper.main(
        [
            "report",
            f"--results={first / 'results'}",
            f"--expectations={first / 'expectations.json'}",
            f"--output={tmp_path / 'again'}",
        ]
    )
    assert status == 2
    assert (tmp_path / "again" / "summary.json").read_text() == (first / "summary.json").read_text()


def test_the_page_of_a_report_says_what_changed_since_the_last(
    fleet: Fleet, judge: Judge, tmp_path: Path
) -> None:
    judge(fleet)
    (tmp_path / "reports/now").rename(tmp_path / "reports/last")
    (tmp_path / "reports/latest").unlink()
    (tmp_path / "reports/latest").symlink_to("last")
    fleet["results"]["gpu01"]["tests"][0]["measurements"][0]["value"] = 612.0
    done = judge(fleet)
    assert f"Report: {tmp_path / 'reports/now/report.html'}" in done.stdout
    page = (tmp_path / "reports/now/report.html").read_text()
    assert "since last" in page
    changed = page[page.index('id="changed"') : page.index('id="attention"')]
    assert "gpu01" in changed
    assert 'class="state pass"' in changed
    assert 'class="state fail"' in changed


def test_the_page_names_the_fleet_and_the_groups_of_its_nodes(
    fleet: Fleet, judge: Judge, tmp_path: Path
) -> None:
    fleet["groups"] = {"gpu01": ["gpu_nodes", "rack1"], "gpu02": ["gpu_nodes", "rack2"]}
    judge(fleet, "--inventory", "/etc/fleets/prod/hosts.yml")
    page = (tmp_path / "reports/now/report.html").read_text()
    assert "– prod –" in page[: page.index("</title>")]
    assert "<option>rack1</option>" in page
    assert "ansible-playbook -i /etc/fleets/prod/hosts.yml playbooks/preflight.yml --limit gpu02" in page


def test_a_second_report_compares_with_the_first(fleet: Fleet, judge: Judge, tmp_path: Path) -> None:
    del fleet["expectations"]["nodes"]["gpu02"]
    result = fleet["results"]["gpu01"]
    number = result["tests"][0]["measurements"][0]
    number["value"] = 900.0
    kept = tmp_path / "history.sqlite"
    assert "no earlier run of the same kind passed" in judge(fleet, "--history", kept).stdout
    number["value"] = 730.0
    result["started_at"] = "2026-11-21T12:00:00+00:00"
    done = judge(fleet, "--history", kept)
    assert done.returncode == 1
    assert "bf16 730 TFLOP/s on GPU 0, 19% below its only earlier run (900 TFLOP/s)" in done.stdout
    assert len(dict(History(kept).past(["gpu01"]))["gpu01"].runs) == 1


def test_a_history_that_cannot_be_used_costs_no_verdict_but_is_the_status(
    fleet: Fleet, judge: Judge, tmp_path: Path
) -> None:
    """The results of hours must not be lost with it."""
    del fleet["expectations"]["nodes"]["gpu02"]
    (tmp_path / "history.sqlite").write_text("no database, and long enough to be looked at\n" * 50)
    done = judge(fleet, "--history", tmp_path / "history.sqlite")
    assert (done.returncode, done.stderr) == (2, "")
    assert (tmp_path / "reports" / "now" / "summary.json").is_file()
    assert "history.sqlite cannot be read" in done.stdout.splitlines()[-1]
    assert "not compared with its own past" in done.stdout


def test_files_of_an_earlier_form_are_taken_over_once_and_that_is_said(
    fleet: Fleet, judge: Judge, tmp_path: Path
) -> None:
    (tmp_path / "history").mkdir()
    (tmp_path / "history" / "gpu01.jsonl").write_text("not a run\n")
    said = judge(fleet, "--history", tmp_path / "history.sqlite").stdout
    assert "0 runs from 1 files" in said
    assert "gpu01.jsonl, line 1:" in said
    assert "taken over" not in judge(fleet, "--history", tmp_path / "history.sqlite").stdout
    refused = judge(fleet, "--history", tmp_path / "history")
    assert refused.returncode == 2
    assert "is a folder" in refused.stderr


def test_a_node_is_measured_by_its_next_runs_where_the_operator_accepts_its_level(
    fleet: Fleet, judge: Judge, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "history.sqlite"
    judge(fleet, "--history", kept)
    assert temper.main(["accept", "gpu01", "--history", str(kept)]) == 0
    assert "1 earlier run," in capsys.readouterr().out
    assert dict(History(kept).past(["gpu01"]))["gpu01"].runs == ()
    for wrong in ("gpu01", "gpu99"):
        assert temper.main(["accept", wrong, "--history", str(kept)]) == 2
        assert f"no run of {wrong} that counts" in capsys.readouterr().err
    assert temper.main(["accept", "gpu01", "--history", str(tmp_path / "none")]) == 2
    assert "no such file" in capsys.readouterr().err


def test_nodes_are_told_whom_to_measure_with_and_the_report_says_what_came_of_it(
    fleet: Fleet, judge: Judge, run_temper: Judge, tmp_path: Path
) -> None:
    del fleet["expectations"]["nodes"]["gpu02"]
    between: dict[str, Any] = {
        "schema_version": FABRIC_VERSION,
        "library": "gloo",
        "plan": "quick",
        "port": 29511,
        "pairs": "auto",
        "nodes": [{"name": name, "address": "192.0.2.1", "ranks": 1} for name in ("gpu01", "gpu02")],
        "rounds": [],
    }
    ((group,),) = json.loads(run_temper("groups", given=json.dumps(between)).stdout)
    assert [member["name"] for member in group["group"]] == ["gpu01", "gpu02"]
    ((again,),) = json.loads(run_temper("groups", given=json.dumps(between)).stdout)
    assert group["run"] != again["run"]
    part = {"schema_version": FABRIC_VERSION, "node": "gpu01", "not_run": "torch is not installed"}
    attempt = {"group": ["gpu01", "gpu02"], "part": part, "problem": ""}
    done = judge(fleet | {"fabric": between | {"rounds": [{"gpu01": attempt}]}})
    assert "  - fabric is required and was not run: torch is not installed" in done.stdout
    first = tmp_path / "reports" / "now"
    again = ["report", f"--results={first / 'results'}", f"--expectations={first / 'expectations.json'}"]
    again += [f"--fabric={first / 'fabric.json'}", f"--output={tmp_path / 'again'}"]
    assert temper.main(again) == done.returncode
    assert (tmp_path / "again" / "summary.json").read_text() == (first / "summary.json").read_text()


@each(([], "quick"), (["--hours", "4"], "quick, repeated for 4 h"))
def test_what_is_lowest_in_hours_is_not_compared_with_a_single_run(
    arguments: list[str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def start(plan: Plan, *_: object) -> NodeResult:
        asked.append(plan.name)
        return node_result(one_test("health", State.PASS))

    priced = []
    monkeypatch.setattr(commands, "say_price", lambda node, _: priced.append(node.plan.name))
    monkeypatch.setattr(commands, "run_plan", start)
    assert main.main(["run", "--test", "health", *arguments]) == 0
    assert asked == [name]
    # What takes hours says what it costs, before it begins.
    assert priced == [name] * (name != "quick")


@each(*((plan, missing) for plan in PLANS for missing in (False, True)))
def test_each_plan_passes_by_hand_where_its_own_tests_did_and_fails_where_one_did_not_run(
    plan: str, missing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = [check.id for check in registry.CHECKS.values() if plan in check.plans]
    needed = "gpu_corruption" if plan == "corruption" else "gpu_matmul"

    def measured(*_: object) -> NodeResult:
        states = {test: State.NOT_RUN if missing and test == needed else State.PASS for test in own}
        tests = [one_test(test, state, measurement()) for test, state in states.items()]
        return dataclasses.replace(node_result(*tests), plan=plan)

    monkeypatch.setattr(commands, "say_price", lambda *_: None)
    monkeypatch.setattr(commands, "run_plan", measured)
    assert (main.main(["run", "--plan", plan]) == 0) is not missing


def test_an_order_for_a_stranger_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    order = {
        "schema_version": FABRIC_VERSION,
        "node": "x",
        "group": [],
        "port": 1,
        "library": "gloo",
        "plan": "quick",
    }
    order |= {"run": "5c1a-0", "nodes_in_round": 2}
    (tmp_path / "order.json").write_text(json.dumps(order))
    assert main.main(["fabric", "--order", str(tmp_path / "order.json")]) == 2
    assert "one of them is unknown" in capsys.readouterr().err


@each(
    (["--results", "{}", "--expectations", "{}/expectations"], "a second result of node gpu01"),
    (["--results", "{}/none", "--expectations", "{}/expectations"], "none: no such folder"),
    ([], "report needs either --results DIR and --expectations FILE, or --fleet"),
)
def test_a_report_that_cannot_be_made_is_one_sentence(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.json").write_text(dumps(node_result()))
    expected = FleetExpectations(EXPECTATIONS_VERSION, {"gpu01": expectation()})
    (tmp_path / "expectations").write_text(dumps(expected))
    arguments = [word.format(tmp_path) for word in words]
    assert temper.main(["report", *arguments, "--output", str(tmp_path / "out")]) == 2
    assert said in capsys.readouterr().err


def test_a_report_answers_programs_with_its_summary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results/a.json").write_text(dumps(node_result()))
    expectations = tmp_path / "expectations"
    expectations.write_text(dumps(FleetExpectations(EXPECTATIONS_VERSION, {"gpu01": expectation()})))
    words = ["report", f"--results={tmp_path / 'results'}", f"--expectations={expectations}", "--json"]
    status = temper.main([*words, f"--output={tmp_path / 'out'}"])
    shown = json.loads(capsys.readouterr().out)
    assert shown == json.loads((tmp_path / "out/summary.json").read_text())
    assert (shown["exit_status"], [node["node"] for node in shown["nodes"]]) == (status, ["gpu01"])


@pytest.mark.component
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_run_that_is_stopped_writes_no_result(number: signal.Signals, tmp_path: Path) -> None:
    # A nvidia-smi that hangs keeps the run busy until it is stopped.
    executable(tmp_path / "nvidia-smi", f"echo > {tmp_path}/asked\nexec sleep 600")
    output = tmp_path / "result.json"
    process = subprocess.Popen(
        [*PYTHON, "-m", "validation", "run", "--test=health", f"--output={output}"],
        cwd=ROOT,
        env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until((tmp_path / "asked").exists, "the run asks nvidia-smi")
    process.send_signal(number)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "interrupted" in errors
    assert not output.exists()
