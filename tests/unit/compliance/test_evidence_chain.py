"""The chain of reports: no clock decides its order, and what is cut off, thinned or put in is noticed."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tarfile
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from temper.base.store import HISTORY
from temper.cli import compliance as command
from temper.compliance.evidence import MANIFEST, EvidenceError, Manifest, breaks, heads_of, verify
from temper.compliance.history import History
from temper.compliance.model import State
from temper.report.compliance import Settings, check
from tests.unit.compliance.fleets import NOW, checked, observation
from validation.model.contract import loads

if TYPE_CHECKING:
    from collections.abc import Callable

#: As the code of version 1 wrote them: three reports, and five of which the second has the date 2036.
FORMER = Path(__file__).with_name("reports_of_version_1.tar.xz")
AHEAD = timedelta(days=3650)


def problems(reports: Path, heads: str = "") -> list[str]:
    history = History(reports.parent / HISTORY)
    return verify(reports, history.reports(), None, heads_of(heads) if heads else (), history.number())


def execute(reports: Path, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(reports.parent / HISTORY)) as connection, connection:
        connection.execute(statement, values)


def remove(reports: Path, *numbers: int) -> None:
    """Remove reports from the folder and from the history; numbers count from 1."""
    names = list(History(reports.parent / HISTORY).reports())
    for number in numbers:
        shutil.rmtree(reports / names[number - 1])
        execute(reports, "DELETE FROM report WHERE name = ?", names[number - 1])


def former(name: str, folder: Path) -> Path:
    with tarfile.open(FORMER) as archive:
        archive.extractall(folder, filter="data")
    return folder / name / "compliance"


def test_a_clock_that_was_ahead_once_breaks_no_report(settings: Settings) -> None:
    for moment in (NOW, NOW + AHEAD, *(NOW + timedelta(hours=hour) for hour in range(1, 4))):
        check([checked()], settings, moment)
    assert problems(settings.directory) == []
    assert (settings.directory / "latest").resolve().name == "2026-11-22T15-00-00Z"


def test_each_manifest_counts_the_reports_and_has_the_head_before(reports: Path) -> None:
    recorded = History(reports.parent / HISTORY).reports()
    manifests = [loads(Manifest, (reports / name / MANIFEST).read_bytes()) for name in recorded]
    assert [one.number for one in manifests] == [1, 2, 3]
    assert [one.previous_sha256 for one in manifests] == ["", *list(recorded.values())[:2]]


@pytest.mark.parametrize("numbers", [(3,), (2, 3), (1,), (2,), (1, 2)])
def test_reports_that_were_removed_with_their_rows_are_noticed(
    reports: Path, numbers: tuple[int, ...]
) -> None:
    remove(reports, *numbers)
    assert problems(reports)


def test_a_report_after_all_were_removed_with_their_rows_has_the_next_number(
    reports: Path, settings: Settings
) -> None:
    remove(reports, 1, 2, 3)
    _, folder = check([checked()], settings, NOW + timedelta(hours=9))
    assert loads(Manifest, (folder / MANIFEST).read_bytes()).number == 4
    assert problems(reports)


@pytest.mark.parametrize("numbers", [(3,), (2, 3), (1,), (2,), (1, 2, 3)])
def test_reports_that_were_removed_with_every_trace_miss_a_head_that_was_kept(
    reports: Path, numbers: tuple[int, ...]
) -> None:
    kept = str(History(reports.parent / HISTORY).head())
    remove(reports, *numbers)
    execute(reports, "UPDATE sqlite_sequence SET seq = ? WHERE name = 'report'", 3 - len(numbers))
    assert problems(reports, kept)


def test_a_head_that_was_kept_holds_while_the_chain_goes_on(reports: Path, settings: Settings) -> None:
    kept = str(History(reports.parent / HISTORY).head())
    check([checked()], settings, NOW + timedelta(hours=9))
    later = str(History(reports.parent / HISTORY).head())
    assert problems(reports, f"{kept}\n{later}\n") == []


def test_a_chain_that_was_made_anew_misses_a_head_that_was_kept(settings: Settings) -> None:
    check([checked()], settings, NOW)
    kept = str(History(settings.validations / HISTORY).head())
    shutil.rmtree(settings.validations)
    check([checked("gpu01", observation("sshd:PasswordAuthentication", State.FAIL))], settings, NOW)
    assert problems(settings.directory) == []
    assert problems(settings.directory, kept)


def test_a_report_that_counts_otherwise_is_noticed() -> None:
    """Whoever makes the manifests after a removed report anew keeps their links, and not their numbers."""
    digests = {"a": "1", "b": "2"}
    first = Manifest("", "", "", "", "", "", number=1)
    second = replace(first, previous="a", previous_sha256="1", number=3)
    assert list(breaks(digests, {"a": first, "b": second}, 3)) == [
        "b: it is report 3 of the chain, expected 2"
    ]


def test_reports_in_another_order_are_noticed(reports: Path) -> None:
    for before, after in ((2, 9), (3, 2), (9, 3)):
        execute(reports, "UPDATE report SET sequence = ? WHERE sequence = ?", after, before)
    assert problems(reports)


PUT_IN: dict[str, Callable[[Path], object]] = {
    "link to a file": lambda folder: (folder / "more").symlink_to("/etc/hostname"),
    "link to a folder": lambda folder: (folder / "more").symlink_to("/etc"),
    "link to nothing": lambda folder: (folder / "more").symlink_to("/nowhere"),
    "pipe": lambda folder: os.mkfifo(folder / "more"),
    "folder": lambda folder: (folder / "more").mkdir(),
    "folder with a file": lambda folder: shutil.copytree(folder.parent / "latest", folder / "more"),
}


@pytest.mark.parametrize("what", PUT_IN)
def test_whatever_is_put_into_a_report_is_noticed(reports: Path, what: str) -> None:
    PUT_IN[what](reports / next(iter(History(reports.parent / HISTORY).reports())))
    found = problems(reports)
    assert found
    assert all("more" in problem for problem in found)


@pytest.mark.parametrize("name", [MANIFEST, "statement.json", "manifest.json.sig"])
@pytest.mark.parametrize("what", ["pipe", "link"])
def test_a_file_that_became_something_else_is_noticed_and_nobody_waits_for_it(
    reports: Path, tmp_path: Path, name: str, what: str
) -> None:
    file = (reports / "latest").resolve() / name
    if file.exists():
        shutil.move(file, tmp_path / name)
    if what == "pipe":
        os.mkfifo(file)
    else:
        file.symlink_to(tmp_path / name)
    assert problems(reports)


def test_the_command_prints_a_head_that_it_verifies_also_from_a_file(
    reports: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--reports", str(reports)]
    assert command.main(["head", *given]) == 0
    kept = capsys.readouterr().out.strip()
    (tmp_path / "heads").write_text(f"{kept}\n")
    assert command.main(["verify", *given, "--head", kept]) == 0
    assert command.main(["verify", *given, "--head", str(tmp_path / "heads")]) == 0
    (tmp_path / "my heads").write_text(f"{kept}\n")
    assert command.main(["verify", *given, "--head", str(tmp_path / "my heads")]) == 0
    (tmp_path / "cut off").write_bytes(b"")
    (tmp_path / "binary").write_bytes(b"\xff")
    for name in ("", str(tmp_path / "cut off"), str(tmp_path / "binary")):
        capsys.readouterr()
        assert command.main(["verify", *given, "--head", name]) == 2
        assert "expected a head" in capsys.readouterr().err
    assert command.main(["verify", *given, "--signers", str(tmp_path / "none")]) == 2
    assert str(tmp_path / "none") in capsys.readouterr().err
    remove(reports, 3)
    assert command.main(["verify", *given, "--head", str(tmp_path / "heads")]) == 1
    assert command.main(["verify", *given, "--head", "3 no head"]) == 2
    with pytest.raises(EvidenceError, match="no head"):
        heads_of("3 no head")


@pytest.mark.parametrize("name", ["plain", "ahead"])
def test_reports_of_version_1_verify_as_they_are_and_continued(
    settings: Settings, tmp_path: Path, name: str
) -> None:
    reports = former(name, tmp_path)
    before = (reports.parent / HISTORY).read_bytes()
    assert problems(reports) == []
    assert (reports.parent / HISTORY).read_bytes() == before
    mine = Settings(reports, reports.parent, settings.data, (), timedelta(days=30))
    states, drifts = History(reports.parent / HISTORY).states(), History(reports.parent / HISTORY).drifts()
    assert states
    assert drifts
    for hours in (10, 11):
        check([checked("gpu99")], mine, NOW + timedelta(hours=hours))
    assert problems(reports) == []
    known = History(reports.parent / HISTORY)
    assert known.states().items() >= states.items()
    assert known.number() == len(known.reports()) == {"plain": 5, "ahead": 7}[name]


@pytest.mark.parametrize("continued", [False, True])
@pytest.mark.parametrize(("name", "number"), [("plain", 1), ("plain", 2), ("ahead", 1), ("ahead", 5)])
def test_reports_of_version_1_that_were_removed_with_their_rows_are_noticed(
    settings: Settings, tmp_path: Path, name: str, number: int, continued: bool
) -> None:
    reports = former(name, tmp_path)
    if continued:
        mine = Settings(reports, reports.parent, settings.data, (), timedelta(days=30))
        check([checked()], mine, NOW + timedelta(hours=10))
    remove(reports, number)
    assert problems(reports)
