"""The nightly run has every target, goes on after a failure, and says how each step ended."""

import re
from pathlib import Path

import pytest

from tests.nightly import __main__ as nightly


def test_every_target_is_a_step_or_left_out_for_a_reason() -> None:
    steps = {step.split()[0] for step in nightly.STEPS}
    documented = set(nightly.targets())
    assert documented - steps - nightly.LEFT_OUT.keys() == set(), (
        "add it to STEPS, or to LEFT_OUT with a reason"
    )
    assert (steps - nightly.COMMANDS.keys()) | nightly.LEFT_OUT.keys() <= documented
    assert steps & nightly.LEFT_OUT.keys() == set()
    assert nightly.NEEDS.keys() <= set(nightly.STEPS)


def test_targets_of_component_tests_unpack_what_these_are_skipped_without() -> None:
    for target, unpacked in (
        ("component", {"payload", "monitoring", "browser", "schedulers"}),
        ("thorough", {"payload", "monitoring", "browser", "schedulers"}),
    ):
        (line,) = re.findall(rf"^{target}: (.*) ## ", (nightly.ROOT / "Makefile").read_text(), re.MULTILINE)
        assert unpacked - set(line.split()) == set(), target


def test_make_component_finds_every_component_test_that_was_collected(
    hidden_component_tests: list[str],
) -> None:
    """It leaves out files whose text does not have `mark.component`, such as one that imports its marks."""
    assert hidden_component_tests == []


def run(monkeypatch: pytest.MonkeyPatch, folder: Path, *words: str, **scripts: str) -> tuple[int, list[str]]:
    """Run these scripts as steps; the exit status, and the rows of the table."""
    monkeypatch.setattr(nightly, "REPORTS", folder)
    monkeypatch.setattr(nightly, "STEPS", tuple(scripts))
    monkeypatch.setattr(nightly, "COMMANDS", scripts)
    status = nightly.main(list(words))
    (summary,) = folder.glob("*/summary.txt")
    return status, summary.read_text().splitlines()[1:]


@pytest.mark.component
def test_a_failure_does_not_end_the_run_and_fails_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    status, rows = run(monkeypatch, tmp_path, first="true", broken="echo why; exit 3", last="true")
    assert status == 1
    assert [row.split()[0] for row in rows] == ["first", "broken", "last"]
    assert [row.split()[2] for row in rows] == ["passed", "failed", "passed"]
    (log,) = tmp_path.glob("*/02-broken.log")
    assert log.read_text() == "why\n"
    assert str(log) in rows[1]


@pytest.mark.component
def test_what_make_nightly_was_given_reaches_no_other_target(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ARGS", "fuzz")
    monkeypatch.setenv("MAKEFLAGS", " -- ARGS=fuzz")
    assert run(monkeypatch, tmp_path, alone='test -z "$ARGS$MAKEFLAGS"')[0] == 0


@pytest.mark.component
def test_a_step_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(nightly, "LIMIT_S", 0.2)
    status, (row,) = run(monkeypatch, tmp_path, hanging="sleep 60")
    assert status == 1
    assert "not finished after 0.2 s" in row


@pytest.mark.component
def test_a_step_that_lacks_what_it_needs_is_skipped_and_fails_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(nightly, "NEEDS", {"far": "false"})
    status, (row,) = run(monkeypatch, tmp_path, far="exit 3")
    assert status == 0
    assert "skipped" in row


@pytest.mark.component
def test_words_choose_steps_and_must_name_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    steps = {"chosen": "true", "slow FILE=x": "true", "slow FILE=y": "false"}
    status, rows = run(monkeypatch, tmp_path, "chosen", "FILE=x", **steps)
    assert (status, len(rows)) == (0, 2)
    with pytest.raises(SystemExit):
        nightly.main(["chosn"])


@pytest.mark.component
def test_a_run_that_is_continued_repeats_only_what_has_not_passed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    steps = {
        "first": f"echo first >> {tmp_path}/ran",
        "second": f"echo second >> {tmp_path}/ran; test -e {tmp_path}/mended",
    }
    assert run(monkeypatch, tmp_path / "runs", **steps)[0] == 1
    (tmp_path / "mended").touch()
    status, rows = run(monkeypatch, tmp_path / "runs", "--continue", **steps)
    assert status == 0
    assert [row.split()[2] for row in rows] == ["passed", "passed"]
    assert (tmp_path / "ran").read_text().split() == ["first", "second", "second"]


@pytest.mark.component
def test_another_commit_does_not_continue_this_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(nightly, "REPORTS", tmp_path)
    first = nightly.folder_of("1234567", newest=True)
    assert nightly.folder_of("1234567", newest=True) == first
    assert (
        len({first, nightly.folder_of("7654321", newest=True), nightly.folder_of("1234567", newest=False)})
        == 3
    )
