"""When people hear of a check, what of, and how a check ended by its report."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from temper.base.store import HistoryError
from temper.compliance import document
from temper.notify.outcome import CheckOutcome, CheckState, is_news, message, names, outcome
from temper.notify.told import Told
from temper.report import origin
from temper.report.origin import Origin
from tests.unit.each import each
from tests.unit.pages import made_up
from validation.model.contract import json_text
from validation.report.fleet_report import point_latest_to

if TYPE_CHECKING:
    from pathlib import Path

TOKEN = "a1b2"
GOOD = CheckOutcome(CheckState.GOOD, "2 of 2 nodes passed.")
ONE = CheckOutcome(CheckState.BAD, "1 of 2 nodes failed.", {"gpu01": "failed"}, "/r/report.html")
OTHER = CheckOutcome(CheckState.BAD, "1 of 2 nodes failed.", {"gpu02": "failed"}, "/r/report.html")
AWAY = CheckOutcome(CheckState.BAD, "1 of 2 nodes failed.", {"gpu01": "unreachable"})
UNKNOWN = CheckOutcome(CheckState.NOT_CHECKED, "1 of 2 nodes was not checked.", {"gpu01": "not checked"})
BROKEN = CheckOutcome(CheckState.NOT_CARRIED_OUT, "`x` ended with status 4 and wrote no report.")
ALL = (GOOD, ONE, OTHER, AWAY, UNKNOWN, BROKEN)


def test_another_outcome_than_the_one_told_last_is_news() -> None:
    assert [(a, b) for a in ALL for b in ALL if is_news(b, a.remembered(None)) != (a is not b)] == []
    assert not is_news(replace(ONE, sentence="Other numbers.", report="/another"), ONE.remembered(None))


def test_nodes_that_people_heard_of_stay_known_while_no_check_is_carried_out() -> None:
    told = BROKEN.remembered(ONE.remembered(None))
    assert not is_news(BROKEN, told)
    again = message(
        "compliance", "hall 3", "ctl1", "", replace(ONE, nodes={**ONE.nodes, **OTHER.nodes}), told
    )
    assert ("(was not carried out)" in again.subject, "new: gpu02" in again.text) == (True, True)
    good = message("compliance", "hall 3", "ctl1", "", GOOD, told)
    assert "good again: gpu01" in good.text


def test_of_a_first_check_only_what_is_not_good_is_news() -> None:
    assert [one for one in ALL if is_news(one, None)] == [*ALL[1:]]


@each(
    (ONE, None, "bad", [], ["new:", "good again:"]),
    (ONE, GOOD, "bad (was good)", ["new: gpu01"], ["good again:"]),
    (GOOD, ONE, "good (was bad)", ["good again: gpu01"], ["new:"]),
    (OTHER, ONE, "bad", ["failed: gpu02", "new: gpu02", "good again: gpu01"], ["was"]),
    (AWAY, ONE, "bad", ["unreachable: gpu01"], ["new:", "good again:", "was"]),
    (BROKEN, ONE, "not carried out (was bad)", ["status 4", "report: none"], ["good again:"]),
)
def test_a_message_says_what_differs(
    now: CheckOutcome, told: CheckOutcome | None, state: str, said: list[str], unsaid: list[str]
) -> None:
    made = message(
        "compliance", "hall 3", "ctl1", "2026-11-26T10:00:00Z", now, told.remembered(None) if told else None
    )
    assert made.subject == f"Temper: compliance of hall 3 is {state}"
    assert [word for word in [now.sentence, "ctl1", *said] if word not in made.text] == []
    assert [word for word in unsaid if word in made.text] == []
    assert made.document["state"] == now.state.value
    assert made.document["before"] == (told.state.value if told else "")
    assert made.document["nodes"] == now.nodes


def test_words_of_a_report_begin_no_line_and_no_header() -> None:
    made = message("compliance", "a\nBcc: x", "ctl1", "", replace(ONE, sentence="a\nfailed: gpu09"), None)
    assert "\n" not in made.subject
    assert "\nfailed: gpu09" not in made.text


def belongs(folder: Path, token: str) -> None:
    """Say which check made a report."""
    origin.write(folder, Origin(check=token))
    point_latest_to(folder)


def of_compliance(folder: Path) -> None:
    folder.mkdir(parents=True)
    document.write(folder, made_up.statement())
    belongs(folder, TOKEN)


def of_validation(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "summary.json").write_text("".join(json_text(made_up.validation().verdict)))
    belongs(folder, TOKEN)


def test_a_report_of_compliance_has_the_nodes_that_are_not_good(tmp_path: Path) -> None:
    of_compliance(tmp_path / "1")
    found = outcome("compliance", tmp_path, (), TOKEN, 2, "it ended")
    assert (found.state, found.exit_status) == (CheckState.BAD, 1)
    assert found.nodes == {"gpu-002": "failed", "gpu-009": "failed", made_up.SILENT: "not checked"}
    assert found.sentence == made_up.statement().sentence
    assert found.report == str(tmp_path / "1" / "report.html")


def test_a_report_of_validation_has_the_nodes_that_are_not_good(tmp_path: Path) -> None:
    of_validation(tmp_path / "1")
    found = outcome("validation", tmp_path, (), TOKEN, 2, "it ended")
    verdict = made_up.validation().verdict
    assert found.exit_status == verdict.exit_status == 1
    wanted = {node.node for node in verdict.nodes if node.exit_status}
    assert wanted
    assert found.nodes.keys() == wanted


def test_a_check_without_a_new_report_was_not_carried_out(tmp_path: Path) -> None:
    assert outcome("compliance", tmp_path, (), TOKEN, 4, "it ended").state is CheckState.NOT_CARRIED_OUT
    of_compliance(tmp_path / "1")
    before = names(tmp_path)
    found = outcome("compliance", tmp_path, before, TOKEN, 4, "it ended with status 4")
    assert (found.state, found.exit_status) == (CheckState.NOT_CARRIED_OUT, 2)
    assert "it ended with status 4" in found.sentence
    assert str(tmp_path) in found.sentence
    (tmp_path / "1" / document.FILE).write_text("{")
    assert outcome("compliance", tmp_path, (), TOKEN, 0, "it ended").state is CheckState.NOT_CARRIED_OUT


def test_the_report_of_another_run_that_ends_meanwhile_is_not_that_of_this_check(tmp_path: Path) -> None:
    for name, token in (("1", "another"), ("2", TOKEN), ("3", "another"), ("4", "")):
        of_compliance(tmp_path / name)
        belongs(tmp_path / name, token)
    (tmp_path / "5").mkdir()
    (tmp_path / "6").mkdir()
    (tmp_path / "6" / origin.FILE).write_text("{")
    found = outcome("compliance", tmp_path, (), TOKEN, 2, "it ended")
    assert found.report == str(tmp_path / "2" / "report.html")
    found = outcome("compliance", tmp_path, ("1", "2"), TOKEN, 2, "it ended")
    assert found.state is CheckState.NOT_CARRIED_OUT
    assert "3, 4, 5, 6" in found.sentence


def test_the_origin_of_a_report_names_its_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(origin.CHECK, TOKEN)
    assert origin.origin((), "", {}).check == TOKEN
    monkeypatch.delenv(origin.CHECK)
    assert origin.origin((), "", {}).check == ""


def test_a_good_report_of_a_command_that_failed_is_not_good(tmp_path: Path) -> None:
    good = replace(made_up.statement(), verdict=type(made_up.statement(1).verdict).COMPLIANT, nodes=())
    (tmp_path / "1").mkdir()
    document.write(tmp_path / "1", good)
    belongs(tmp_path / "1", TOKEN)
    assert outcome("compliance", tmp_path, (), TOKEN, 0, "it ended").state is CheckState.GOOD
    assert outcome("compliance", tmp_path, (), TOKEN, 3, "it ended").state is CheckState.NOT_CARRIED_OUT


def test_what_was_told_is_kept_for_each_command_and_channel(tmp_path: Path) -> None:
    told = Told(tmp_path / "history.sqlite")
    assert told.last("a", "mail") is None
    told.record("a", "mail", "2026-11-26T10:00:00Z", ONE.remembered(None))
    told.record("a", "mail", "2026-11-26T11:00:00Z", GOOD.remembered(None))
    assert told.last("a", "mail") == GOOD.remembered(None)
    assert told.last("a", "webhook") is told.last("b", "mail") is None
    (tmp_path / "history.sqlite").write_text("no database, however long this text may be")
    try:
        told.last("a", "mail")
    except HistoryError as error:
        assert "history.sqlite" in str(error)
