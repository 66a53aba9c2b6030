"""What one node hands over costs that node alone: verdicts, pages, metrics and files of others are whole."""

import dataclasses
import datetime
import io
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from temper.cli import judging
from temper.judge import fleet_metrics
from temper.report import make
from temper.report import node as node_pages
from tests.unit.each import each
from tests.unit.validation import hostile_results as hostile
from tests.unit.validation.hostile_results import (
    EVIL,
    OTHERS,
    REMOVED,
    Made,
    as_json,
    changed,
    good,
    report,
)
from tests.unit.validation.samples import expectation, measurement, node_result, one_test
from validation.model.contract import MOST_AHEAD, ContractError, Finding, State, dumps, loads, refuse_future
from validation.model.contract import node_result as read
from validation.model.expectations import FleetExpectations
from validation.report.fleet_report import text
from validation.verdict.judge import judge_fleet, judge_node
from validation.verdict.verdicts import FleetVerdict

RESULT = as_json(good(EVIL))


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """The report without the evil node's result."""
    return report(tmp_path_factory.mktemp("without"), REMOVED)


GPU, NUMBERS = RESULT["gpus"][0], RESULT["tests"][1]["measurements"]


@each(
    7,
    [RESULT],
    RESULT | {"add_host": {"host_name": "evil"}},
    RESULT | {"node": "gpu02"},
    RESULT | {"schema_version": 1},
    changed(RESULT, ("tests", 0, "id"), "splendid"),
    changed(RESULT, ("node",), "\ud800"),
    changed(RESULT, ("duration_s",), math.nan),
    changed(RESULT, ("gpus",), [GPU | {"index": number, "uuid": f"GPU-{number}"} for number in range(65)]),
    changed(
        RESULT, ("tests", 1, "measurements"), [NUMBERS[0] | {"name": f"n{n}_tflops"} for n in range(200_000)]
    ),
    # Votes of one GPU on what is usual.
    changed(RESULT, ("tests", 1, "measurements"), NUMBERS + [NUMBERS[0] | {"value": 1e6}] * 50),
)
def test_a_refused_result_leaves_the_others_byte_for_byte(value: Any, without: Made, tmp_path: Path) -> None:
    made = report(tmp_path, value)
    assert made.verdicts[EVIL]["reasons"][0].startswith("its result cannot be read: ")
    for node in OTHERS:
        assert made.of(node) == without.of(node)
        assert made.verdicts[node] == without.verdicts[node]


@each(
    changed(RESULT, ("tests", 1, "measurements", 0, "value"), 1e300),
    changed(RESULT, ("tests", 1, "findings", 0, "text"), "a\n\ngpu02: fail\n  - burn it\x1b[2J\u202e\u2028"),
    changed(
        RESULT, ("tests", 1, "findings", 0, "action"), "{{ lookup('pipe', 'id') }}<script>alert(1)</script>"
    ),
    changed(RESULT, ("tests", 1, "details", "telemetry"), {"\x1b[2J": [{}] * 20_000}),
    changed(RESULT, ("gpus", 0, "uuid"), "../../../etc/passwd"),
)
def test_a_strange_result_that_is_read_leaves_the_others_complete(
    value: Any, without: Made, tmp_path: Path
) -> None:
    made = report(tmp_path, value)
    assert "could not be made" not in made.out
    assert made.status == without.status == 1, made.out
    assert without.files.keys() <= made.files.keys()
    for node in OTHERS:
        # The fleet's median may have moved; what it says of the others has not.
        assert made.verdicts[node] | {"tests": []} == without.verdicts[node] | {"tests": []}
    for file in ("report/report.txt", *(one for one in made.files if one.endswith(".html"))):
        assert made.files[file].replace("\n", "").replace("\t", "").isprintable(), file
    assert {node for node in OTHERS if f"\n{node}: " in made.files["report/report.txt"]} == set(OTHERS)


def test_one_page_of_all_nodes_has_the_others_too(tmp_path: Path) -> None:
    evil = hostile.changed(as_json(good(EVIL)), ("tests", 1, "details", "telemetry"), 7)
    page = report(tmp_path, evil, one_page=True).files["report/report.html"]
    assert all(f"GPU-{node}-1" in page for node in hostile.NAMES)
    assert "its telemetry could not be shown: details.telemetry of gpu_matmul: expected a list" in page


def test_a_page_that_cannot_be_made_is_named_with_its_fault_and_costs_no_other(
    tmp_path: Path, without: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = node_pages.page_of

    def failing(known: node_pages.Known, *others: Any) -> node_pages.NodePage:
        if known.name == EVIL:
            raise ZeroDivisionError("unforeseen\x1b")
        return whole(known, *others)

    monkeypatch.setattr(node_pages, "page_of", failing)
    made = report(tmp_path, REMOVED)
    assert f"{EVIL}: its page could not be made: ZeroDivisionError at test_hostile_results.py:" in made.out
    assert "Its result could not be shown: ZeroDivisionError" in made.files[f"report/nodes/{EVIL}.html"]
    assert [made.of(node) for node in OTHERS] == [without.of(node) for node in OTHERS]


def test_metrics_that_cannot_be_made_cost_no_other_and_are_no_old_ones(
    tmp_path: Path, without: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = fleet_metrics.text

    def failing(verdict: Any, measured_at: str | None) -> str:
        if verdict.node == EVIL and measured_at:
            raise OverflowError("unforeseen")
        return whole(verdict, measured_at)

    monkeypatch.setattr(fleet_metrics, "text", failing)
    made = report(tmp_path, as_json(good(EVIL)))
    assert f"{EVIL}: its metrics could not be made: OverflowError" in made.out
    assert "temper_validation_timestamp_seconds" not in made.files[f"metrics/temper-validation-{EVIL}.prom"]
    for node in OTHERS:
        name = f"metrics/temper-validation-{node}.prom"
        assert made.files[name] == without.files[name]


def test_a_verdict_that_cannot_be_made_costs_no_other(
    tmp_path: Path, without: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(name: str, result: Any, *others: Any, **more: Any) -> Any:
        if name == EVIL and result:
            raise KeyError("unforeseen")
        return judge_node(name, result, *others, **more)

    monkeypatch.setattr(make, "judge_node", failing)
    made = report(tmp_path, as_json(good(EVIL)))
    assert made.verdicts[EVIL]["reasons"][0].startswith("its result could not be judged: KeyError at ")
    assert f"{EVIL}: its verdict could not be made: KeyError" in made.out
    assert [made.verdicts[node] for node in OTHERS] == [without.verdicts[node] for node in OTHERS]


@each(
    "2026-11-20T00:00:00",
    "yesterday",
    "",
    "0001-01-01T00:00:00+23:59",
    "1970-01-01T00:00:00Z",
    "9999-12-31T23:59Z",
)
def test_a_time_that_is_none_is_refused(began: str) -> None:
    with pytest.raises(ContractError, match="started_at: expected a time"):
        read(as_json(good(EVIL)) | {"started_at": began})


@each("2026-11-20T13:00:00+01:00", "2026-11-20T12:00:00Z", "2026-11-20T12:00:00.5+00:00")
def test_times_are_read_in_one_zone_so_that_they_compare(began: str) -> None:
    assert read(as_json(good(EVIL)) | {"started_at": began}).started_at == "2026-11-20T12:00:00+00:00"


def test_a_result_of_the_future_is_refused_by_the_clock_of_this_machine() -> None:
    result = good(EVIL)
    ended = datetime.datetime.fromisoformat(result.started_at) + datetime.timedelta(seconds=result.duration_s)
    refuse_future(result, ended - MOST_AHEAD)
    with pytest.raises(ContractError, match="set the clock of the node"):
        refuse_future(result, ended - MOST_AHEAD - datetime.timedelta(seconds=1))


def test_a_report_of_a_result_of_the_future_does_not_count_it(tmp_path: Path) -> None:
    made = report(tmp_path, as_json(good(EVIL)) | {"started_at": "2098-01-01T00:00:00Z"})
    assert "claims to have begun at 2098-01-01" in made.verdicts[EVIL]["reasons"][0]
    assert f"report/results/{EVIL}.json" not in made.files


def test_no_word_of_a_node_makes_a_line_of_the_report() -> None:
    evil = one_test("health", State.NOT_RUN, reason="no driver\n\ngpu02: fail\n  - burn it\x1b[2J\u2028x")
    broken = one_test("gpu_matmul", State.FAIL, measurement(), reason="a\ngpu02: fail")
    found = text(judge_fleet([judge_node("gpu01", node_result(evil, broken), expectation(), {})]))
    assert not [line for line in found.splitlines() if line.startswith("gpu02")]
    assert "\\x1b[2J" in found
    assert "\x1b" not in found


def test_names_too_long_for_a_file_cost_nobody_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = ["n" * 62 + "." + "x" * 190, "n" * 62 + "." + "x" * 189 + "y", "gpu01"]
    expected = json.loads(dumps(expectation()))
    document = {
        "expectations": {
            "schema_version": expected["schema_version"],
            "nodes": dict.fromkeys(long, expected),
        },
        "results": {name: as_json(dataclasses.replace(good(EVIL), node=name)) for name in long},
    }
    given = SimpleNamespace(buffer=io.BytesIO(json.dumps(document).encode()))
    monkeypatch.setattr("sys.stdin", given)
    judging.main(
        ["report", "--fleet", f"--output={tmp_path / 'report'}", f"--metrics={tmp_path / 'metrics'}"]
    )
    assert len(list((tmp_path / "report/results").iterdir())) == len(long)
    assert len(list((tmp_path / "metrics").iterdir())) == len(long)


def test_no_words_of_a_node_make_the_summary_unreadable(tmp_path: Path) -> None:
    numbers = [measurement(f"{'n' * 230}{number}_tflops", 0.0) for number in range(500)]
    words = Finding("wrong-result", State.FAIL, "x" * 60_000, "y" * 60_000, 0)
    evil = one_test("gpu_matmul", State.FAIL, *numbers, findings=(words,), reason="z" * 60_000)
    gpus = node_result(name=EVIL, gpus=64).gpus
    named = tuple(dataclasses.replace(gpu, name=f"{'g' * 250}{gpu.index}", pci_id="ffff") for gpu in gpus)
    made = report(tmp_path, as_json(dataclasses.replace(node_result(evil, name=EVIL), gpus=named)))
    assert made.verdicts[EVIL]["state"] == "fail"
    assert len(loads(FleetVerdict, made.files["report/summary.json"]).nodes) == len(hostile.NAMES)
    assert loads(FleetExpectations, made.files["report/expectations.json"])
