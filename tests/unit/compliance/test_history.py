"""The history: states have a beginning, drifts an end, and a file that cannot be used stays as it is."""

import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
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
from tests.unit.each import each

SSHD = "sshd:PasswordAuthentication"
PLACE = ("gpu01", f"ssh_hardening/{SSHD}")
ROOT = Path(__file__).resolve().parents[3]


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


@each(
    (
        [State.PASS, State.FAIL, State.FAIL, State.PASS, State.FAIL],
        [Drift(*PLACE, hour(1), hour(3)), Drift(*PLACE, hour(4))],
    ),
    (
        [State.NOT_CHECKED, State.FAIL, State.NOT_CHECKED, State.FAIL, State.NOT_APPLICABLE],
        [Drift(*PLACE, hour(1), hour(4))],
    ),
)
def test_a_drift_begins_and_ends_where_it_is_checked(
    states: list[State], drifts: list[Drift], tmp_path: Path
) -> None:
    history = History(tmp_path / "history.sqlite")
    for number, state in enumerate(states):
        check(history, number, state)
    assert history.drifts() == drifts


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


def test_a_history_with_the_former_ids_of_controls_is_gone_on_with(history: History) -> None:
    check(history, 0)
    umask = "os_hardening/umask"
    with sqlite3.connect(history.path) as connection:
        connection.execute("UPDATE part SET version = 2 WHERE name = 'compliance'")
        connection.execute("UPDATE state SET control = replace(control, 'os_hardening/', '')")
        connection.execute("INSERT INTO drift VALUES ('gpu01', 'umask', 'then', NULL)")
    # Of a copy that nobody can write to, the ids are the same.
    assert history.states()["gpu01"][umask].since == hour(0)
    assert history.drifts() == [Drift("gpu01", umask, "then")]
    made = statement([checked()], replace(RULES, now=NOW + timedelta(hours=1)), history.states())
    assert made.changed == ()
    check(history, 1)
    assert history.states()["gpu01"][umask].since == hour(0)
    assert all("/" in control for control in history.states()["gpu01"])


def test_a_check_that_another_one_has_overtaken_is_refused(history: History) -> None:
    check(history, 0)
    check(history, 1)
    made = statement([checked()], RULES, {})
    with pytest.raises(HistoryError, match="late"):
        history.record(made, "late", "1" * 64, "report 0")
    assert list(history.reports()) == ["report 0", "report 1"]


def test_a_file_of_compliance_alone_is_taken_over_once(history: History, tmp_path: Path) -> None:
    """The form of before: the same tables, no parts."""
    check(history, 0)
    check(history, 1, State.FAIL)
    former = tmp_path / "former.sqlite"
    with sqlite3.connect(history.path) as source, sqlite3.connect(former) as target:
        source.backup(target)
        target.execute("DROP TABLE part")
        target.execute("PRAGMA application_id = 0")
        target.execute("PRAGMA user_version = 1")
    new = History(tmp_path / "new" / "history.sqlite")
    for _ in range(2):
        new.take_over(former)
        assert (new.states(), new.drifts(), new.reports()) == (
            history.states(),
            history.drifts(),
            history.reports(),
        )
    former.write_text("nothing that anybody could read, and long enough to be looked at" * 20)
    new.take_over(former)
    with pytest.raises(HistoryError, match=r"former\.sqlite"):
        History(tmp_path / "newer" / "history.sqlite").take_over(former)


@pytest.mark.component
def test_a_writer_that_is_killed_leaves_what_was_there(history: History) -> None:
    check(history, 0)
    writer = textwrap.dedent(
        f"""
        import os, signal
        from pathlib import Path
        from temper.compliance import history
        from tests.unit.compliance.test_history import State, check
        history.History._mark_drift = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        check(history.History(Path({str(history.path)!r})), 1, State.FAIL)
        """
    )
    killed = subprocess.run(
        [sys.executable, "-c", writer], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert killed.returncode == -signal.SIGKILL
    assert history.states()[PLACE[0]][PLACE[1]].state is State.PASS
    assert history.drifts() == []
    assert check(history, 2, State.FAIL) == hour(2)


def test_validations_and_checks_live_in_one_file(history: History) -> None:
    from temper.judge.history_store import History as Runs
    from tests.unit.validation.test_history_store import run

    runs = Runs(history.path)
    check(history, 0)
    assert runs.append([run(1)]) == 1
    check(history, 1, State.FAIL)
    assert dict(runs.past(["gpu01"]))["gpu01"].runs == (run(1),)
    assert history.drifts() == [Drift(*PLACE, hour(1))]
