"""The line that says what a run waits for."""

import io

import pytest

from temper.output.progress import CLEAR, Line, Progress


@pytest.fixture
def progress() -> Progress:
    progress = Progress("Validate")
    for number in range(1, 6):
        progress.begin(f"n{number}", "Measure", 100.0)
    return progress


def test_it_says_the_task_its_time_and_who_is_at_it(progress: Progress) -> None:
    assert progress.line(350.0) == "Validate: Measure: 4 min 10 s; waiting for 5 nodes"


def test_the_last_nodes_are_named(progress: Progress) -> None:
    for node in ("n1", "n3", "n4"):
        progress.end(node, "Measure")
    assert progress.line(141.0) == "Validate: Measure: 41 s; 3 done, waiting for n2, n5"


def test_tries_that_are_left_are_time_at_most(progress: Progress) -> None:
    progress.retry("n1", {"retries": 20, "attempts": 2}, 5.0, 110.0)
    progress.retry("n2", {"retries": 20, "attempts": 8}, 5.0, 110.0)
    assert progress.line(120.0).endswith("waiting for 5 nodes, at most 1 min 20 s more")


def test_what_the_node_said_last_is_shown(progress: Progress) -> None:
    progress.retry("n1", {"stdout": "10 %\n40 %\n", "msg": "non-zero return code"}, 5.0, 110.0)
    assert progress.line(120.0).endswith("(40 %)")
    progress.retry("n1", {"stdout": "x" * 1_000_000}, 5.0, 110.0)
    assert len(progress.line(120.0)) < 1000


def test_nodes_that_run_ahead_are_at_several_tasks(progress: Progress) -> None:
    progress.begin("n1", "Judge", 130.0)
    progress.begin("n2", "Report", 130.0)
    progress.begin("n3", "Judge", 131.0)
    assert progress.line(141.0) == (
        "Validate: Measure: 41 s; waiting for n4, n5 | Judge: 11 s; waiting for n1, n3 | 1 more"
    )


def test_a_result_of_a_node_that_nobody_knows_is_no_error() -> None:
    progress = Progress("Validate")
    progress.retry("n1", {}, 5.0, 0.0)
    progress.end("n1", "Measure")
    assert progress.line(1.0) == ""


def test_the_line_is_cut_to_the_terminal_and_cleared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    stream = io.StringIO()
    line = Line(stream)
    line.clear()
    line.show("0123456789012345678901234567890")
    line.clear()
    line.clear()
    assert stream.getvalue() == f"{CLEAR}0123456789012345...{CLEAR}"
