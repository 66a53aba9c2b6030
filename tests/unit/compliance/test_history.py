"""The history: states have a beginning, drifts an end, and a file that cannot be used stays as it is."""

import sqlite3
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from temper.base.nodes import utc
from temper.base.store import HistoryError
from temper.compliance.history import Drift, History
from temper.compliance.model import State
from temper.compliance.statement import statement
from tests.unit.compliance.fleets import NOW, RULES, checked, observation, waiver

SSHD = "sshd:PasswordAuthentication"
PLACE = ("gpu01", f"ssh_hardening/{SSHD}")


@pytest.fixture
def history(tmp_path: Path) -> History:
    return History(tmp_path / "reports" / "history.sqlite")


def check(history: History, hours: int, state: State = State.PASS) -> str:
    """One check; returns since when the control is in its state."""
    rules = replace(RULES, now=NOW + timedelta(hours=hours))
    made = statement([checked("gpu01", observation(SSHD, state))], rules, history.states())
    history.record(made, f"report {hours}", "0" * 64, next(reversed(history.reports()), ""))
    (control,) = [control for control in made.nodes[0].controls if control.id == PLACE[1]]
    return control.since


def hour(number: int) -> str:
    return utc(NOW + timedelta(hours=number))


def test_a_state_lasts_until_another_one_begins(history: History) -> None:
    assert history.states() == {}
    assert check(history, 0) == hour(0)
    assert check(history, 1) == hour(0)
    assert check(history, 2, State.FAIL) == hour(2)
    assert history.states()[PLACE[0]][PLACE[1]].state is State.FAIL


def test_what_is_known_is_what_stands_in_the_file_and_is_shared_by_nodes_of_which_it_is_the_same(
    history: History,
) -> None:
    nodes = [checked("gpu01"), checked("gpu02"), checked("gpu03", observation(SSHD, State.FAIL))]
    history.record(statement(nodes, RULES, {}), "report", "0" * 64, "")
    with sqlite3.connect(history.path) as connection:
        rows = connection.execute("SELECT node, control, state, since FROM state").fetchall()
    known = history.states()
    assert sorted(rows) == sorted(
        (node, control, one.state.value, one.since)
        for node, controls in known.items()
        for control, one in controls.items()
    )
    assert known["gpu01"] is known["gpu02"]


def test_a_drift_has_a_beginning_and_an_end(history: History) -> None:
    for number, state in enumerate([State.PASS, State.FAIL, State.FAIL, State.PASS, State.FAIL]):
        check(history, number, state)
    assert history.drifts() == [Drift(*PLACE, hour(1), hour(3)), Drift(*PLACE, hour(4))]


def test_what_was_not_checked_neither_begins_nor_ends_a_drift(history: History) -> None:
    for number, state in enumerate(
        [State.NOT_CHECKED, State.FAIL, State.NOT_CHECKED, State.FAIL, State.NOT_APPLICABLE]
    ):
        check(history, number, state)
    assert history.drifts() == [Drift(*PLACE, hour(1), hour(4))]


def test_a_drift_that_somebody_waives_is_waived_and_has_not_ended(history: History) -> None:
    def waived(hours: int, state: State) -> None:
        rules = replace(RULES, now=NOW + timedelta(hours=hours))
        accepted = checked("gpu01", observation(SSHD, state), waivers=(waiver(PLACE[1]),))
        made = statement([accepted], rules, history.states())
        history.record(made, f"report {hours}", "0" * 64, next(reversed(history.reports()), ""))

    check(history, 0, State.FAIL)
    waived(1, State.FAIL)
    assert history.drifts() == [Drift(*PLACE, hour(0), waived=True)]
    # The waiver is over: it is the same drift.
    check(history, 2, State.FAIL)
    assert history.drifts() == [Drift(*PLACE, hour(0))]
    waived(3, State.FAIL)
    waived(4, State.PASS)
    assert history.drifts() == [Drift(*PLACE, hour(0), hour(4))]


def test_a_check_that_another_one_has_overtaken_is_refused(history: History) -> None:
    check(history, 0)
    check(history, 1)
    made = statement([checked()], RULES, {})
    with pytest.raises(HistoryError, match="late"):
        history.record(made, "late", "1" * 64, "report 0")
    assert list(history.reports()) == ["report 0", "report 1"]
