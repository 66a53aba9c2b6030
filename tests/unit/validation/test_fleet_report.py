"""The report of a fleet from what slices have handed over, and what is left of one that breaks off."""

import json
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from temper.base.store import HistoryError
from temper.judge.history_store import History
from tests.unit.pages import made_up
from validation.model.contract import EXPECTATIONS_VERSION, encode
from validation.processes.pool import ROOT
from validation.report import fleet_report

Judge = Callable[[list[str], str], subprocess.CompletedProcess[str]]

DAYS = ("2026-11-22", "2026-11-23")
#: More nodes than one page has, so that each has a page.
NAMES = made_up.names(34)
SILENT = {"schema_version": EXPECTATIONS_VERSION, "gpus": None, "not_run": "no route to host"}


def slices(folder: Path, day: str) -> list[str]:
    """What four slices hand over: results, two nodes without one, and a node of which two slices tell."""
    expected = encode(made_up.expectation())
    found = {
        name: encode(made_up.result(name, "quick")) | {"started_at": f"{day}T09:14:00+00:00"}
        for name in NAMES
    }
    found[NAMES[11]]["gpus"] = "eight"
    paths = []
    for number in range(4):
        names = NAMES[number::4]
        nodes = {name: SILENT if name == NAMES[5] else expected for name in names}
        results = {name: found[name] for name in names if name != NAMES[5]}
        # Of these, a later slice says something else.
        if number == 1:
            nodes[NAMES[3]] = SILENT
        if number == 3:
            nodes[NAMES[4]] = expected
        document = {
            "expectations": {"schema_version": EXPECTATIONS_VERSION, "nodes": nodes},
            "results": results,
            "fabric": None,
        }
        path = folder / f"{day}-{number}.json"
        path.write_text(json.dumps({"document": document}))
        paths.append(str(path))
    return paths


def given(paths: list[str]) -> bytes:
    """What a run over slices gives to the report. Of one of the silent nodes a slice tells after all."""
    nodes = {"zz": SILENT | {"not_run": "the helper died"}, NAMES[0]: SILENT}
    expectations = {"schema_version": EXPECTATIONS_VERSION, "nodes": nodes}
    return json.dumps({"document": {"expectations": expectations, "results": {}}, "slices": paths}).encode()


def arguments(folder: Path, day: str) -> list[str]:
    outputs = [
        f"--history={folder}/history.sqlite",
        f"--output={folder}/{day}",
        f"--metrics={folder}/metrics",
    ]
    return ["report", "--fleet", "--latest", *outputs]


@pytest.fixture
def judge(run_temper: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path) -> Judge:
    return lambda paths, day: run_temper(*arguments(tmp_path, day), given=given(paths))


def numbers(folder: Path) -> list[Any]:
    query = (
        "SELECT node, started_at, plan, torch, driver, test, method, name, conditions, uuid, position, value "
        "FROM run JOIN number ON number.run = run.id JOIN quantity ON quantity.id = quantity "
        "JOIN place ON place.id = place ORDER BY 1, 2, 11"
    )
    with closing(sqlite3.connect(folder / "history.sqlite")) as connection:
        return connection.execute(query).fetchall()


def test_the_last_slice_that_tells_of_a_node_holds_and_each_run_is_kept(judge: Judge, tmp_path: Path) -> None:
    for day in DAYS:
        done = judge(slices(tmp_path, day), day)
        assert done.returncode == 1, done.stderr
    assert {row[1][:10] for row in numbers(tmp_path)} == set(DAYS)
    summary = json.loads((tmp_path / "latest/summary.json").read_bytes())
    states = {node["node"]: node["state"] for node in summary["nodes"]}
    # Silent, unreadable, and what the last slice says of a node.
    assert [states[name] for name in ("zz", NAMES[5], NAMES[11], NAMES[4])] == ["not-run"] * 4
    assert states[NAMES[3]] != "not-run"
    assert states[NAMES[0]] != "not-run"
    assert len(states) == len(NAMES) + 1
    assert (tmp_path / "latest/nodes" / f"{NAMES[0]}.html").is_file()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"document": ', "3.json: expected what a slice has handed over: not JSON"),
        (b"", "3.json: expected what a slice has handed over: not JSON"),
        (b'{"document": {"results": {}}}', "it has no document with expectations and results"),
        (
            b'{"document": {"expectations": {"schema_version": 3, "nodes": []}, "results": {}}}',
            "expected an object, found []",
        ),
        (
            b'{"document": {"expectations": {"schema_version": 3, "nodes": {}}, "results": {"a": 1}}}',
            "3.json: expected what a slice has handed over",
        ),
    ],
)
def test_a_slice_that_cannot_be_read_is_named_and_nothing_is_written(
    judge: Judge, tmp_path: Path, content: bytes, said: str
) -> None:
    paths = slices(tmp_path, DAYS[0])
    Path(paths[3]).write_bytes(content)
    done = judge(paths, DAYS[0])
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / DAYS[0]).exists()
    assert not (tmp_path / "history.sqlite").exists()


def test_a_history_that_cannot_be_read_costs_no_verdict_and_gets_no_runs(
    judge: Judge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def past(*_: object) -> None:
        raise HistoryError("the disk is gone")

    monkeypatch.setattr(History, "past", past)
    done = judge(slices(tmp_path, DAYS[0]), DAYS[0])
    assert done.returncode == 1
    assert done.stdout.startswith("the disk is gone\n")
    assert not (tmp_path / "history.sqlite").exists()


def test_a_disk_that_becomes_full_leaves_neither_history_nor_metrics_of_no_report(
    judge: Judge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(fleet_report, "conclude", full)
    done = judge(slices(tmp_path, DAYS[0]), DAYS[0])
    assert (done.returncode, done.stderr) == (2, "temper report: no space left\n")
    assert not (tmp_path / "history.sqlite").exists()
    assert not (tmp_path / "metrics").exists()


#: The command, which hangs while it writes the report.
HANGS = """
import sys, time
from temper.cli.main import main
from temper.report import make
def hang(_result, real=make.fleet_report.dumps, calls=[]):
    calls.append(1)
    if len(calls) == 3:
        make.Path(sys.argv[1]).touch()
        while True:
            time.sleep(1)
    return real(_result)
make.fleet_report.dumps = hang
raise SystemExit(main(sys.argv[2:]))
"""


@pytest.mark.component
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_report_that_is_interrupted_leaves_no_draft_and_no_summary(
    tmp_path: Path, number: signal.Signals
) -> None:
    command = [sys.executable, "-c", HANGS, str(tmp_path / "hangs"), *arguments(tmp_path, DAYS[0])]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin and process.stderr
        process.stdin.write(given(slices(tmp_path, DAYS[0])))
        process.stdin.close()
        while not (tmp_path / "hangs").exists():
            assert process.poll() is None
            time.sleep(0.01)
        drafts = [path for path in tmp_path.rglob(".*") if path.is_file()]
        process.send_signal(number)
        assert process.wait() == 130
        assert process.stderr.read() == b"temper report: interrupted\n"
    assert drafts
    assert [path for path in tmp_path.rglob(".*") if path.is_file()] == []
    assert not (tmp_path / DAYS[0] / "summary.json").exists()
