"""Progress: whole lines for a file, one line that moves for a terminal."""

import io

from tests.unit.validation.samples import one_test
from tests.waiting import wait_until
from validation.model.contract import State
from validation.report.progress import CLEAR_LINE, Progress


class Terminal(io.StringIO):
    """Text that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_file_gets_a_line_when_a_test_starts_and_one_when_it_ends() -> None:
    stream = io.StringIO()
    with Progress(2, stream) as progress:
        progress("health", None)
        progress("health", one_test("health", State.NOT_RUN, reason="no driver"))
    assert stream.getvalue() == "health ...\nhealth not-run, 1.0 s: no driver\n"


def test_a_terminal_sees_what_runs_and_for_how_long() -> None:
    stream = Terminal()
    with Progress(2, stream) as progress:
        progress("health", None)
        wait_until(lambda: "[1 of 2] health, " in stream.getvalue(), "the line of a test that runs")
        progress("health", one_test("health"))
    lines = [line.split("\r\x1b[K")[-1] for line in stream.getvalue().split("\n")]
    assert lines[0] == "health pass, 1.0 s"
    assert stream.getvalue().endswith(CLEAR_LINE)
