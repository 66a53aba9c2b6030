"""A report made in several processes is the one that a single process makes, and ends as that would."""

from __future__ import annotations

import json
import os
import select
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from temper.judge.parts import Parts
from tests.unit.pages import made_up
from validation.model.contract import EXPECTATIONS_VERSION, encode
from validation.processes.pool import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

#: Small slices are not worth a process; here each gets one.
JUDGE = """
import sys
from temper.cli.main import main
from temper.report import make, part as fleet_part
make.LEAST_BYTES = 1
make.available_cpus = lambda: {parts}
{more}
raise SystemExit(main(sys.argv[1:]))
"""
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
        # Of these, a later slice, of another part, says something else.
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


def arguments(folder: Path, day: str, parts: int, more: str = "") -> list[str]:
    code = JUDGE.format(parts=parts, more=more)
    options = [
        f"--history={folder}/history.sqlite",
        f"--output={folder}/{day}",
        f"--metrics={folder}/metrics",
    ]
    return [sys.executable, "-c", code, "report", "--fleet", "--latest", *options]


def judge(
    folder: Path, parts: int, paths: list[str], day: str, more: str = ""
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        arguments(folder, day, parts, more), cwd=ROOT, input=given(paths), capture_output=True, check=False
    )


def files(folder: Path) -> dict[str, bytes]:
    """All files of a report but the database, whose rows come in any order."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes().replace(bytes(folder), b"")
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith("history.sqlite")
    }


def numbers(folder: Path) -> list[Any]:
    query = (
        "SELECT node, started_at, plan, torch, driver, test, method, name, conditions, uuid, position, value "
        "FROM run JOIN number ON number.run = run.id JOIN quantity ON quantity.id = quantity "
        "JOIN place ON place.id = place ORDER BY 1, 2, 11"
    )
    with closing(sqlite3.connect(folder / "history.sqlite")) as connection:
        return connection.execute(query).fetchall()


@pytest.mark.component
def test_parts_make_the_report_that_one_process_makes(tmp_path: Path) -> None:
    """Also the second one, which has a report and a past to compare with."""
    said, written, kept = [], [], []
    for parts in (1, 3):
        folder = tmp_path / f"{parts}"
        folder.mkdir()
        for day in DAYS:
            done = judge(folder, parts, slices(tmp_path, day), day)
            assert done.returncode == 1, done.stderr.decode()
            said.append((day, done.stdout.replace(bytes(folder), b""), done.stderr))
        written.append(files(folder))
        kept.append(numbers(folder))
    assert said[:2] == said[2:]
    assert written[0].keys() == written[1].keys()
    assert [name for name, content in written[0].items() if content != written[1][name]] == []
    assert kept[0] == kept[1]
    assert {row[1][:10] for row in kept[0]} == set(DAYS)
    states = {
        node["node"]: node["state"] for node in json.loads(written[0]["2026-11-23/summary.json"])["nodes"]
    }
    # Silent, unreadable, and what the last slice says of a node.
    assert [states[name] for name in ("zz", NAMES[5], NAMES[11], NAMES[4])] == ["not-run"] * 4
    assert states[NAMES[3]] != "not-run"
    assert states[NAMES[0]] != "not-run"
    assert len(states) == len(NAMES) + 1
    assert f"2026-11-23/nodes/{NAMES[0]}.html" in written[0]


@pytest.mark.component
def test_few_nodes_of_several_parts_are_one_page(tmp_path: Path) -> None:
    whole = json.loads(Path(slices(tmp_path, DAYS[0])[0]).read_text())["document"]
    few = []
    for name in NAMES[:12:4]:
        nodes = {name: whole["expectations"]["nodes"][name]}
        document = {
            "expectations": whole["expectations"] | {"nodes": nodes},
            "results": {name: whole["results"][name]},
        }
        few.append(str(tmp_path / f"{name}.json"))
        Path(few[-1]).write_text(json.dumps({"document": document}))
    written = []
    for parts in (1, 3):
        folder = tmp_path / f"few {parts}"
        folder.mkdir()
        judge(folder, parts, few, DAYS[0])
        written.append(files(folder))
    assert written[0] == written[1]
    assert b'id="node-' in written[0]["2026-11-22/report.html"]
    assert not any("/nodes/" in name for name in written[0])


@pytest.mark.component
@pytest.mark.parametrize("parts", [1, 3])
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
    tmp_path: Path, parts: int, content: bytes, said: str
) -> None:
    paths = slices(tmp_path, DAYS[0])
    Path(paths[3]).write_bytes(content)
    done = judge(tmp_path, parts, paths, DAYS[0])
    assert done.returncode == 2
    assert said in done.stderr.decode()
    assert done.stderr.count(b"\n") == 1
    assert not (tmp_path / DAYS[0]).exists()
    assert not (tmp_path / "history.sqlite").exists()


@pytest.mark.component
def test_a_part_that_is_killed_is_said_and_the_next_try_completes_the_report(tmp_path: Path) -> None:
    more = """
import os
def killed(part, asked, real=fleet_part.FleetPart.show):
    if "zz" not in part._expectations:
        os.kill(os.getpid(), 9)
    real(part, asked)
killed.__qualname__, killed.__module__ = "FleetPart.show", fleet_part.__name__
fleet_part.FleetPart.show = killed
"""
    paths = slices(tmp_path, DAYS[0])
    done = judge(tmp_path, 3, paths, DAYS[0], more)
    assert done.returncode == 2
    assert b"was ended by SIGKILL, as a machine without memory does" in done.stderr
    assert done.stderr.count(b"\n") == 1
    assert not (tmp_path / DAYS[0] / "summary.json").exists()
    assert not (tmp_path / "latest").exists()
    assert judge(tmp_path, 3, paths, DAYS[0]).returncode == 1
    assert (tmp_path / "latest" / "summary.json").is_file()


@pytest.mark.component
def test_a_history_that_one_part_cannot_read_costs_no_verdict_and_gets_no_runs(tmp_path: Path) -> None:
    more = """
from temper.base.store import HistoryError
def past(history, nodes, results, real=fleet_part._OwnPast.compare):
    if "zz" not in nodes:
        history.unusable = "the disk is gone"
    return real(history, nodes, results)
fleet_part._OwnPast.compare = past
"""
    done = judge(tmp_path, 3, slices(tmp_path, DAYS[0]), DAYS[0], more)
    assert done.returncode == 1
    assert done.stdout.startswith(b"the disk is gone\n")
    assert not (tmp_path / "history.sqlite").exists()


@pytest.mark.component
@pytest.mark.parametrize("parts", [1, 3])
def test_a_disk_that_becomes_full_leaves_neither_history_nor_metrics_of_no_report(
    tmp_path: Path, parts: int
) -> None:
    more = """
def full(*_):
    raise OSError("no space left")
make.fleet_report.conclude = full
"""
    done = judge(tmp_path, parts, slices(tmp_path, DAYS[0]), DAYS[0], more)
    assert (done.returncode, done.stderr) == (2, b"temper report: no space left\n")
    assert not (tmp_path / "history.sqlite").exists()
    assert not (tmp_path / "metrics").exists()


@pytest.mark.component
@pytest.mark.parametrize("place", ["fleet_part.FleetPart.show", "fleet_part.fleet_report.dumps"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_no_process_outlives_the_one_that_began_it(
    tmp_path: Path, number: signal.Signals, place: str
) -> None:
    """Nor does a draft, where it could still be removed."""
    more = f"""
import os, time
calls = []
def wait(*_):
    calls.append(1)
    if len(calls) == 3 - {place.endswith("show")} * 2:
        hang()
    return ""
def hang():
    folder = fleet_part.Path({str(tmp_path)!r})
    (folder / f"pid-{{os.getpid()}}").touch()
    while not (folder / "go on").exists():
        time.sleep(0.01)
wait.__qualname__, wait.__module__ = "FleetPart.show", fleet_part.__name__
{place} = wait
"""
    with subprocess.Popen(
        arguments(tmp_path, DAYS[0], 3, more),
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        assert process.stdin and process.stderr
        process.stdin.write(given(slices(tmp_path, DAYS[0])))
        process.stdin.close()
        while len(begun := [int(path.name[4:]) for path in tmp_path.glob("pid-*")]) < 3:
            assert process.poll() is None
            time.sleep(0.01)
        watched = [os.pidfd_open(pid) for pid in begun]
        if number is signal.SIGINT:
            os.killpg(process.pid, number)  # as a terminal does
        else:
            process.send_signal(number)
        process.wait()
        if number is signal.SIGKILL:
            # Nobody could tell them: they end where they would answer.
            (tmp_path / "go on").touch()
        said = process.stderr.read()
    for descriptor in watched:
        select.select([descriptor], [], [])
        os.close(descriptor)
    assert b"Traceback" not in said
    if number is not signal.SIGKILL:
        assert [path for path in tmp_path.rglob(".*") if path.is_file()] == [], "drafts"
    assert not (tmp_path / DAYS[0] / "summary.json").exists()


class OddError(Exception):
    """It cannot be made of what it is pickled as."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} {two}")


class Counter:
    """A part that remembers."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.heard: list[str] = []

    def hear(self, word: str) -> tuple[str, list[str], int]:
        if word == "fail":
            raise ValueError(f"{self.name} fails")
        if word == "odd":
            raise OddError(self.name, "cannot be sent")
        if word == "end":
            os._exit(3)
        self.heard.append(word)
        return self.name, self.heard, os.getpid()


def hear(words: list[str]) -> Callable[[Parts[Counter]], Any]:
    return lambda parts: parts.each(Counter.hear, words)


@pytest.mark.component
def test_parts_remember_and_answer_in_their_order() -> None:
    with Parts([Counter("a"), Counter("b")]) as parts:
        assert len(parts) == 2
        hear(["1", "2"])(parts)
        found = hear(["3", "4"])(parts)
    assert [(name, heard) for name, heard, _ in found] == [("a", ["1", "3"]), ("b", ["2", "4"])]
    assert len({os.getpid(), *(pid for _, _, pid in found)}) == 3


def test_a_single_part_stays_in_this_process() -> None:
    with Parts([Counter("a")]) as parts:
        assert hear(["1"])(parts) == [("a", ["1"], os.getpid())]


@pytest.mark.component
def test_the_first_part_that_fails_says_so() -> None:
    with pytest.raises(ValueError, match="b fails") as raised, Parts([*map(Counter, "abc")]) as parts:
        hear(["1", "fail", "fail"])(parts)
    assert "in hear" in str(raised.value.__cause__), "where it failed"


@pytest.mark.component
def test_an_error_that_cannot_be_sent_is_said_all_the_same() -> None:
    with (
        pytest.raises(RuntimeError, match="OddError: b cannot be sent"),
        Parts([*map(Counter, "ab")]) as parts,
    ):
        hear(["1", "odd"])(parts)


@pytest.mark.component
def test_a_part_that_ends_by_itself_is_not_blamed_on_memory() -> None:
    with pytest.raises(ChildProcessError, match="was ended: status 3"), Parts([*map(Counter, "ab")]) as parts:
        hear(["1", "end"])(parts)
