"""Who may read what is written on the controller."""

from pathlib import Path

import pytest

from temper.base.store import Part, Store
from validation.processes import files


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.fixture
def reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(files, "REPORTS", tmp_path / "reports")
    return tmp_path / "reports"


def test_folders_that_are_made_are_for_this_account_alone(reports: Path, tmp_path: Path) -> None:
    files.own(reports / "fleet")
    files.own(tmp_path / "elsewhere" / "below")
    made = (reports, reports / "fleet", tmp_path / "elsewhere", tmp_path / "elsewhere" / "below")
    assert {mode(path) for path in made} == {0o700}


def test_reports_of_the_checkout_that_others_could_read_are_theirs_no_more(reports: Path) -> None:
    reports.mkdir(mode=0o755)
    files.own(reports / "compliance")
    assert mode(reports) == 0o700


def test_a_folder_that_an_operator_publishes_stays_as_it_is(reports: Path, tmp_path: Path) -> None:
    published = tmp_path / "www"
    published.mkdir(mode=0o755)
    files.own(published)
    assert mode(published) == 0o755


def test_a_history_is_for_this_account_alone(reports: Path) -> None:
    path = reports / "history.sqlite"
    with Store(path, Part("x", 1, ("CREATE TABLE x (y)",))).writing() as connection:
        connection.execute("INSERT INTO x VALUES (1)")
        assert {mode(file) for file in reports.iterdir()} == {0o600}
