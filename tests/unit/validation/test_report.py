"""The report: what a reader must find in the table, and files that are whole or not there."""

import gc
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from temper.report.make import uncollected
from tests.unit.each import each
from tests.unit.validation.samples import expectation, measurement, node_result, one_test
from validation.model.contract import Finding, State
from validation.model.expectations import Expectation
from validation.processes import files
from validation.processes.pool import ROOT
from validation.report import fleet_report
from validation.verdict.judge import judge_fleet, judge_node
from validation.verdict.verdicts import FleetVerdict

HEADLINES = {"gpu_matmul": ("bf16_tflops",)}
ONE_GPU = "one GPU has nobody to reduce with"
NO_CUDA = "torch is built without CUDA"


@pytest.fixture
def fleet() -> FleetVerdict:
    """One node that passed, one that is degraded, and one that was refused."""
    good = node_result(
        one_test("gpu_matmul", State.PASS, measurement(value=730.0), measurement(value=731.0, device=1)),
        one_test("gpu_all_reduce", State.NOT_RUN, reason=ONE_GPU),
        one_test("gpu_transfer", State.NOT_RUN, reason=NO_CUDA),
    )
    worn = node_result(
        one_test(
            "gpu_matmul",
            State.DEGRADED,
            measurement(value=735.0),
            measurement(value=736.0, device=1),
            findings=(Finding("x", State.DEGRADED, "persistence <off>"),),
        ),
        one_test("gpu_all_reduce", State.NOT_RUN, reason=NO_CUDA),
        one_test("gpu_transfer", State.NOT_RUN, reason=NO_CUDA),
        name="gpu02",
    )
    return judge_fleet(
        [
            judge_node("gpu01", good, expectation(), HEADLINES),
            judge_node("gpu02", worn, expectation(), HEADLINES),
            judge_node("gpu03", None, expectation(not_run="refused: disk full"), HEADLINES),
        ]
    )


def test_each_node_has_a_line_with_its_verdict_and_numbers(fleet: FleetVerdict) -> None:
    lines = fleet_report.text(fleet).splitlines()
    assert lines[0].split() == ["Node", "GPUs", "Verdict", "gpu_matmul"]
    assert lines[2].split() == ["gpu01", "2x", "H100", "SXM", "80", "GB", "pass", "pass", "730", "TFLOP/s"]
    assert lines[4].split() == ["gpu03", "2x", "H100", "SXM", "80", "GB", "not-run", "-"]


def test_the_reasons_stand_below_the_table(fleet: FleetVerdict) -> None:
    text = fleet_report.text(fleet)
    assert "gpu02: degraded\n  - gpu_matmul: persistence <off>" in text
    assert "gpu03: not-run\n  - refused: disk full" in text


def test_what_was_not_run_is_listed_once_for_each_reason(fleet: FleetVerdict) -> None:
    text = fleet_report.text(fleet)
    assert f"  - gpu_all_reduce on gpu01: {ONE_GPU}\n" in text
    assert f"  - gpu_transfer on gpu01, gpu02: {NO_CUDA}\n" in text


def test_tests_with_the_same_reason_on_the_same_nodes_share_a_line() -> None:
    node = node_result(
        one_test("health"),
        one_test("gpu_matmul", State.NOT_RUN, reason=NO_CUDA),
        one_test("gpu_transfer", State.NOT_RUN, reason=NO_CUDA),
    )
    text = fleet_report.text(judge_fleet([judge_node("gpu01", node, expectation(), {})]))
    assert f"  - gpu_matmul, gpu_transfer on gpu01: {NO_CUDA}\n" in text


def test_a_long_list_of_nodes_is_cut_with_its_number() -> None:
    nodes = [
        judge_node(
            f"gpu{n:02}", node_result(one_test("health", State.NOT_RUN, reason="x")), Expectation(), {}
        )
        for n in range(30)
    ]
    assert "gpu07 and 22 more: x" in fleet_report.text(judge_fleet(nodes))


def test_the_last_line_is_the_verdict(fleet: FleetVerdict) -> None:
    text = fleet_report.text(fleet, "Report: here")
    assert text.splitlines()[-1] == fleet.sentence
    assert "\nReport: here\n" in text


def test_no_line_ends_with_a_blank(fleet: FleetVerdict) -> None:
    assert [line for line in fleet_report.text(fleet).splitlines() if line != line.rstrip()] == []


def test_an_empty_fleet_is_said_to_be_empty() -> None:
    assert fleet_report.text(judge_fleet([])) == "Verdict: not-run. There is no node to judge.\n"


def test_a_report_is_written_whole(fleet: FleetVerdict, tmp_path: Path) -> None:
    fleet_report.write_results(tmp_path / "r", {"gpu01": node_result(one_test("health"))})
    fleet_report.write(tmp_path / "r", fleet, {"gpu01": expectation()})
    fleet_report.conclude(tmp_path / "r", fleet)
    assert sorted(
        path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()
    ) == [
        "r/expectations.json",
        "r/report.txt",
        "r/results/gpu01.json",
        "r/summary.json",
    ]
    assert json.loads((tmp_path / "r/summary.json").read_text())["sentence"] == fleet.sentence


def test_the_link_to_the_latest_report_moves(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        fleet_report.point_latest_to(tmp_path / name)
        assert (tmp_path / "latest").readlink().name == name


def test_a_file_that_cannot_be_written_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "result.json"
    path.write_text("old")

    def fail(_descriptor: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="no space left"):
        files.write_atomically(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.component
def test_a_file_that_cannot_be_written_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    """A file size limit of nothing stands for a full disk."""
    path = tmp_path / "result.json"
    write = "import sys, pathlib; from validation.processes import files; "
    write += "files.write_atomically(pathlib.Path(sys.argv[1]), 'x')"
    limited = ["sh", "-c", 'ulimit -f 0; exec "$@"', "sh", sys.executable, "-c", write, str(path)]
    done = subprocess.run(limited, cwd=ROOT, capture_output=True, text=True, check=False)
    assert f"OSError: {path}: cannot be written: File too large" in done.stderr
    assert list(tmp_path.iterdir()) == []


MANY = files.AT_ONCE + 5


def test_the_files_of_a_fleet_are_written_and_kept_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: set[int] = set()
    keep = os.fsync

    def note(file: int) -> None:
        keep(file)
        assert not list(tmp_path.glob("nodes/*.json")), "no name leads to a file that a crash could take away"
        kept.add(os.fstat(file).st_ino)

    monkeypatch.setattr("os.fsync", note)
    paths = [tmp_path / "nodes" / f"gpu{number}.json" for number in range(MANY)]
    assert files.write_all((path, path.name) for path in paths) == paths
    assert [path.read_text() for path in paths] == [path.name for path in paths]
    assert {path.stat().st_mode & 0o777 for path in paths} == {0o644}
    assert len(list((tmp_path / "nodes").iterdir())) == MANY
    assert kept == {path.stat().st_ino for path in paths}


def test_of_files_of_which_one_cannot_be_kept_none_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_file: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match=r"gpu\d+.json: cannot be written: Input/output error$"):
        files.write_all((tmp_path / f"gpu{number}.json", "new") for number in range(MANY))
    assert list(tmp_path.iterdir()) == []


@each(0, 3, MANY - 1)
def test_of_files_of_which_one_cannot_be_written_none_is_replaced(place: int, tmp_path: Path) -> None:
    paths = [tmp_path / f"gpu{number}.json" for number in range(MANY)]
    paths[place] = tmp_path / "gpu0.prom" / "no folder"
    (tmp_path / "gpu0.prom").write_text("a file")
    for path in paths[:place]:
        path.write_text("old")
    with pytest.raises(OSError, match=r"gpu0\.prom/no folder: cannot be written: File exists"):
        files.write_all((path, "new") for path in paths)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "gpu0.prom": "a file"
    } | dict.fromkeys((path.name for path in paths[:place]), "old")


def test_what_fails_while_a_text_is_made_is_not_said_of_a_file(tmp_path: Path) -> None:
    def texts() -> Iterator[tuple[Path, str]]:
        yield tmp_path / "gpu01.html", "a page"
        raise OSError("the history cannot be read")

    with pytest.raises(OSError, match=r"^the history cannot be read$"):
        files.write_all(texts())
    assert list(tmp_path.iterdir()) == []


def test_garbage_is_collected_again_after_work_that_fails() -> None:
    with pytest.raises(OSError, match="full"), uncollected():
        assert not gc.isenabled()
        raise OSError("full")
    assert gc.isenabled()
