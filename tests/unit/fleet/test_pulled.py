"""What the controller makes of the results of nodes that pull."""

import argparse
import json
import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from pull.result import Control, Result
from temper.cli.main import main
from temper.fleet import pulled
from temper.fleet.pulled import PulledNode, Standing, judge
from tests.unit.each import each
from tools.schemas import PULL_RESULT

NOW = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)
OLD, NEW = "a" * 40, "b" * 40
GOOD = Result(
    node="gpu01",
    state="checked",
    started_at="2026-11-23T11:49:00Z",
    finished_at="2026-11-23T11:50:00Z",
    interval_s=1800,
    commit=NEW,
    commit_time="2026-11-22T09:00:00Z",
    ref="main",
    signer="ada",
    verdict="compliant",
)


def hand_back(folder: Path, result: Result, name: str = "", age: timedelta = timedelta(minutes=10)) -> Path:
    """A result as a node writes it, arrived a while ago by this machine's clock."""
    path = folder / f"{name or result.node}.json"
    path.write_text(result.text())
    arrived = (NOW - age).timestamp()
    os.utime(path, (arrived, arrived))
    return path


def judged(folder: Path, *names: str) -> dict[str, PulledNode]:
    return {node.name: node for node in judge(folder, names or ("gpu01",), 3, NOW).nodes}


def test_a_fleet_as_it_should_be_ends_with_0(tmp_path: Path) -> None:
    for name in ("gpu01", "gpu02"):
        hand_back(tmp_path, replace(GOOD, node=name))
    found = judge(tmp_path, ["gpu01", "gpu02"], 3, NOW)
    assert {node.standing for node in found.nodes} == {Standing.COMPLIANT}
    assert (found.exit_status, found.commit, found.strangers) == (0, NEW, ())


def test_what_no_terminal_can_write_costs_no_other_node_its_judgement(tmp_path: Path) -> None:
    hand_back(
        tmp_path, replace(GOOD, state="refused", reason="x\ud800", left=(Control("\udfff", "fail", ""),))
    )
    hand_back(tmp_path, replace(GOOD, node="gpu02"))
    (tmp_path / os.fsdecode(b"\xff.json")).touch()
    said = pulled.text(judge(tmp_path, ("gpu01", "gpu02"), 3, NOW)).encode().decode()
    assert "x\\ud800" in said
    assert "compliant    gpu02" in said


def test_the_words_of_a_node_do_not_look_like_the_line_of_another(tmp_path: Path) -> None:
    words = "x\n  compliant    gpu02\n" + "y" * 100_000
    hand_back(tmp_path, replace(GOOD, state="refused", reason=words, left=(Control(words, "fail", ""),)))
    lines = pulled.text(judge(tmp_path, ("gpu01",), 3, NOW)).splitlines()
    assert not [line for line in lines if line.startswith("  compliant")]
    assert max(map(len, lines)) < 1200


@each("0", "-1", "x", "1.5", "1000000000000000")
def test_intervals_are_a_number_that_clocks_can_count(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="expected a whole number"):
        pulled.positive(text)


@each(
    ({"state": "refused", "code": "unsigned", "reason": "not signed"}, Standing.REFUSED, 1),
    ({"verdict": "not-compliant", "left_count": 1}, Standing.DRIFTED, 1),
    ({"state": "failed", "reason": "no git"}, Standing.FAILED, 2),
    ({"state": "held", "reason": "roll-out 7"}, Standing.HELD, 2),
    ({"verdict": "not-checked", "reason": "no plan"}, Standing.NOT_CHECKED, 2),
    ({"finished_at": "2026-11-23T10:00:00Z"}, Standing.SILENT, 2),
)
def test_a_node_that_is_not_is_told_apart(
    values: dict[str, Any], standing: Standing, status: int, tmp_path: Path
) -> None:
    hand_back(tmp_path, replace(GOOD, **values))
    found = judge(tmp_path, ["gpu01"], 3, NOW)
    assert (found.nodes[0].standing, found.exit_status) == (standing, status)
    assert values.get("reason", "") in found.nodes[0].reason


def test_a_node_without_a_file_is_silent_by_name(tmp_path: Path) -> None:
    hand_back(tmp_path, GOOD)
    assert judged(tmp_path, "gpu01", "gpu02")["gpu02"].standing is Standing.SILENT


@each((100, False), (110, True))
def test_silence_is_three_intervals_by_this_machines_clock_too(
    minutes: int, silent: bool, tmp_path: Path
) -> None:
    """The node says that it was ten minutes ago; the file came earlier, and nothing since."""
    hand_back(tmp_path, GOOD, age=timedelta(minutes=minutes))
    assert (judged(tmp_path)["gpu01"].standing is Standing.SILENT) is silent


def test_a_node_on_an_older_commit_than_others_is_behind(tmp_path: Path) -> None:
    hand_back(tmp_path, GOOD)
    hand_back(tmp_path, replace(GOOD, node="gpu02", commit=OLD, commit_time="2026-11-01T00:00:00Z"))
    found = judge(tmp_path, ["gpu01", "gpu02"], 3, NOW)
    assert [node.standing for node in found.nodes] == [Standing.COMPLIANT, Standing.BEHIND]
    assert found.exit_status == 1


def test_a_node_is_not_behind_while_a_commit_is_on_its_way(tmp_path: Path) -> None:
    hand_back(tmp_path, replace(GOOD, commit_time="2026-11-23T11:30:00Z"))
    hand_back(tmp_path, replace(GOOD, node="gpu02", commit=OLD, commit_time="2026-11-01T00:00:00Z"))
    assert judge(tmp_path, ["gpu01", "gpu02"], 3, NOW).exit_status == 0


#: The parent of NEW, made where the clock was ten minutes fast: by the clocks it is the newer of the two.
FAST = replace(GOOD, commit=OLD, commit_time="2026-11-22T09:05:00Z")


def fleet(folder: Path, first: Result, *others: Result) -> list[PulledNode]:
    """The nodes gpu01, with its own result, and those after it."""
    for number, result in enumerate((first, *others), 1):
        hand_back(folder, replace(result, node=f"gpu{number:02}"))
    names = [f"gpu{number:02}" for number in range(1, len(others) + 2)]
    return list(judge(folder, names, 3, NOW).nodes)


STUCK: dict[str, Any] = {"code": "not-fetched", "reason": "no route to host"}
LONG_AGO = {"commit": OLD, "commit_time": "2026-11-01T00:00:00Z"}
LATER = replace(GOOD, commit=OLD, commit_time="2026-11-22T10:00:00Z")
C, B, N = Standing.COMPLIANT, Standing.BEHIND, Standing.NOT_CHECKED


@each(
    # The only commit that there is.
    ([GOOD, GOOD], [C, C], ""),
    ([replace(GOOD, **STUCK), GOOD], [C, C], ""),
    # Of commits made at close times, that of more nodes: whose clocks they were made by, nobody knows.
    ([FAST, GOOD, GOOD], [B, C, C], "--commit"),
    # Of others, the later one, also where a server holds it back from most; or its only witness lies.
    ([GOOD, GOOD, LATER], [B, B, C], "Only gpu03 says"),
    ([GOOD, LATER, LATER], [B, C, C], ""),
    # Who could fetch nothing does not say what is the newest.
    ([replace(FAST, commit_time="2026-11-22T20:00:00Z", **STUCK), GOOD, GOOD], [B, C, C], "no route to host"),
    # Others have a new commit for a moment before it, but nobody knows whether it would get it.
    (
        [replace(FAST, **STUCK), replace(GOOD, commit_time="2026-11-23T11:40:00Z")],
        [N, C],
        "no route to host",
    ),
    # The server is away for all of them.
    ([replace(GOOD, **STUCK | LONG_AGO), *[replace(GOOD, **STUCK)] * 2], [B, C, C], "no route to host"),
)
def test_a_node_is_behind_that_has_not_the_newest_commit(
    results: list[Result], standings: list[Standing], reason: str, tmp_path: Path
) -> None:
    found = fleet(tmp_path, *results)
    assert [node.standing for node in found] == standings
    assert reason in found[0].reason
    assert ("--commit" in found[0].reason) == (reason in ("--commit", "Only gpu03 says"))


def test_a_commit_that_the_operator_names_is_asked_of_all(tmp_path: Path) -> None:
    """What nodes say of commits is theirs alone."""
    hand_back(tmp_path, GOOD)
    assert judge(tmp_path, ["gpu01"], 3, NOW, commit=OLD).nodes[0].standing is Standing.BEHIND


@pytest.mark.component
@pytest.mark.parametrize("text", [NEW[:12], "main", NEW.upper()])
def test_a_commit_is_named_in_full_as_a_part_of_it_is_on_no_node(given: list[str], text: str) -> None:
    """The judgement for people shows twelve digits, which are near at hand to be typed."""
    with pytest.raises(SystemExit):
        command([*given, "--commit", text])
    assert command([*given, "--commit", NEW]) == 0


@each(
    {"node": "gpu02"},
    {"state": "fine"},
    {"verdict": "splendid"},
    {"left_count": 3},
    {"schema_version": 2},
    {"interval_s": 10**9},
    {"interval_s": 0},
    {"finished_at": "2027-01-01T00:00:00Z"},
    {"finished_at": "yesterday"},
    {"commit_time": "2027-01-01T00:00:00Z"},
)
def test_a_result_that_cannot_be_the_nodes_own_is_not_believed(
    values: dict[str, Any], tmp_path: Path
) -> None:
    hand_back(tmp_path, replace(GOOD, **values), name="gpu01")
    found = judge(tmp_path, ["gpu01"], 3, NOW)
    assert (found.nodes[0].standing, found.exit_status) == (Standing.UNREADABLE, 2)
    assert found.commit == ""


@each(b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000, b'{"node": "gpu01"}', b" " * (pulled.LARGEST_BYTES + 1))
def test_a_file_that_is_no_result_is_a_problem_of_that_node_alone(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "gpu01.json").write_bytes(data)
    hand_back(tmp_path, replace(GOOD, node="gpu02"))
    found = judged(tmp_path, "gpu01", "gpu02")
    assert (found["gpu01"].standing, found["gpu02"].standing) == (Standing.UNREADABLE, Standing.COMPLIANT)


def test_links_and_pipes_are_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    results = tmp_path / "results"
    results.mkdir()
    (results / "gpu01.json").symlink_to(hand_back(elsewhere, GOOD))
    os.mkfifo(results / "gpu02.json")
    found = judged(results, "gpu01", "gpu02")
    assert {node.standing for node in found.values()} == {Standing.UNREADABLE}


def test_files_of_no_node_are_named_and_count(tmp_path: Path) -> None:
    hand_back(tmp_path, GOOD)
    hand_back(tmp_path, replace(GOOD, node="mallory"))
    (tmp_path / ".gpu01.json.part").write_text("half")
    found = judge(tmp_path, ["gpu01"], 3, NOW)
    assert (found.strangers, found.exit_status) == (("mallory.json",), 1)


def test_many_nodes_are_told_in_few_lines_and_nothing_moves_the_cursor(tmp_path: Path) -> None:
    names = [f"gpu{number:03}" for number in range(1, 201)]
    left = (Control("os_tuning/sysctl:x", "fail", "it\x1b[2J drifted"),)
    for name in names:
        result = replace(GOOD, node=name, verdict="not-compliant", left=left, left_count=1)
        hand_back(tmp_path, replace(result, repair_problem="\x1b[31mred", repaired=("os_tuning/y",)))
    said = pulled.text(judge(tmp_path, names, 3, NOW))
    assert "200 nodes: gpu001-gpu200" in said
    assert len(said.splitlines()) < 10
    assert "\x1b" not in said


@pytest.fixture
def given(tmp_path: Path) -> list[str]:
    inventory = tmp_path / "hosts.yml"
    inventory.write_text("gpu_nodes: {hosts: {gpu01: {}}}\nothers: {hosts: {login: {}}}\n")
    results = tmp_path / "results"
    results.mkdir()
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    (results / "gpu01.json").write_text(replace(GOOD, finished_at=now).text())
    return [str(results), "--inventory", str(inventory)]


def command(words: list[str]) -> int:
    return main(["fleet", "pulled", *words])


@pytest.mark.component
def test_the_command_reads_the_inventory_and_prints_json(
    given: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command([*given, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [(node["name"], node["standing"]) for node in said["nodes"]] == [("gpu01", "compliant")]
    assert (said["schema_version"], said["commit"]) == (1, NEW)


@pytest.mark.component
@pytest.mark.parametrize("more", [["--group", "nobody"], ["--inventory", "/nonexistent"]])
def test_an_inventory_without_nodes_is_told(given: list[str], more: list[str]) -> None:
    assert command([*given, *more]) == 2


def test_a_folder_that_is_not_there_is_told(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["/nonexistent", *given[1:]]) == 2
    assert capsys.readouterr().err.startswith("temper fleet: /nonexistent: expected the folder of")


def test_an_inventory_has_to_be_named(
    given: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without one, Ansible would read the lab's."""
    monkeypatch.delenv("ANSIBLE_INVENTORY", raising=False)
    assert command(given[:1]) == 2
    assert "ANSIBLE_INVENTORY" in capsys.readouterr().err


def test_a_result_is_of_the_schema() -> None:
    full = replace(GOOD, left=(Control("a/b", "fail", "why"),), left_count=1, repaired=("c/d",))
    jsonschema.validate(json.loads(full.text()), json.loads(PULL_RESULT.read_text()))
