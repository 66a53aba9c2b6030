"""`temper uninstall`: what it asks of ansible-playbook, what it refuses, and the plan of a node."""

from __future__ import annotations

import json
import signal
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from temper.base.nodes import READING
from temper.cli import uninstall
from temper.cli.main import main
from temper.plan.preflight import TAKEN_BACK, preflight_plan
from temper.plan.role_variables import planned_variables
from temper.plan.roles import ROLES
from tests.unit.planning_nodes import node
from tools.bare_node import pci

if TYPE_CHECKING:
    from pathlib import Path


class Runs(list[list[str]]):
    """The command lines of ansible-playbook, and the status that it ends with."""

    status = 0


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    """Whoever starts it is at a terminal."""
    found = Runs()

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        found.append(command[1:])
        return subprocess.CompletedProcess(command, found.status)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    return found


def answer(monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    monkeypatch.setattr("builtins.input", lambda _question: word)


def test_it_shows_asks_once_and_does(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, "yes")
    words = ["-i", "hosts.yml", "--limit", "gpu07", "--ask-become-pass"]
    assert main(["uninstall", *words]) == 0
    book, same = str(uninstall.PLAYBOOK), ["-i", "hosts.yml", "--limit", "gpu07", "--ask-become-pass"]
    assert runs == [[book, "--check", *same], [book, *same]]


def test_something_is_said_before_ansible_is(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []

    def run(*_: object, **_how: object) -> int:
        said.append(capsys.readouterr().err)
        return 0

    monkeypatch.setattr(uninstall, "run", run)
    assert main(["uninstall", "--check"]) == 0
    assert len(said) == 1
    assert READING in said[0]


def test_no_answer_and_no_terminal_change_nothing(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer(monkeypatch, "n")
    assert main(["uninstall"]) == 2
    assert ["--check" in run for run in runs] == [True]
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    assert main(["uninstall"]) == 2
    assert len(runs) == 1
    assert "--yes" in capsys.readouterr().err


def test_ctrl_c_at_the_question_changes_nothing_and_says_so_once(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ask(_question: str) -> str:
        capsys.readouterr()
        raise KeyboardInterrupt

    monkeypatch.setattr("builtins.input", ask)
    assert main(["uninstall"]) == 130
    assert ["--check" in run for run in runs] == [True]
    assert capsys.readouterr().err.strip() == "temper uninstall: interrupted; nothing was changed"


def test_programs_are_not_asked_and_check_only_shows(runs: Runs) -> None:
    assert main(["uninstall", "--yes"]) == 0
    assert main(["uninstall", "--check", "--yes"]) == 0
    assert ["--check" in run for run in runs] == [True, False, True]
    runs.clear()
    runs.status = 2
    assert main(["uninstall", "--yes"]) == 1
    assert ["--check" in run for run in runs] == [True]


def test_what_has_begun_is_never_told_as_not_carried_out(monkeypatch: pytest.MonkeyPatch) -> None:
    for status, own in ((0, 0), (1, 1), (2, 1), (4, 1), (5, 1), (250, 1), (-9, 1), (99, 130)):

        def run(command: list[str], status: int = status, **_: object) -> subprocess.CompletedProcess[str]:
            return subprocess.CompletedProcess(command, 0 if "--check" in command else status)

        monkeypatch.setattr(subprocess, "run", run)
        assert main(["uninstall", "--yes"]) == own


def test_ctrl_c_lets_ansible_say_what_it_leaves(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        signal.raise_signal(signal.SIGINT)
        ended.append(command)
        return subprocess.CompletedProcess(command, 99)

    monkeypatch.setattr(subprocess, "run", run)
    assert main(["uninstall", "--yes"]) == 130
    assert len(ended) == 1
    assert "temper uninstall: interrupted" in capsys.readouterr().err
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_what_is_refused_is_not_asked_for(runs: Runs) -> None:
    for status, own in ((2, 1), (4, 1), (1, 2), (5, 2), (99, 130)):
        runs.status = status
        assert main(["uninstall"]) == own
    assert all("--check" in run for run in runs)


def test_what_is_kept_is_left_out(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    main(["uninstall", "--yes", "--keep", "driver,firewall", "--keep", "firewall"])
    assert runs[0][1:3] == ["--skip-tags", "nvidia_stack,firewall"]
    with pytest.raises(SystemExit) as ended:
        main(["uninstall", "--yes", "--keep", "drivers"])
    assert ended.value.code == 2
    assert "nvidia_stack" in capsys.readouterr().err


def test_what_stays_on_this_machine_is_said(tmp_path: Path) -> None:
    assert "reports" not in "".join(uninstall.left_here(tmp_path))
    (tmp_path / "reports").mkdir()
    assert str(tmp_path / "reports") in "".join(uninstall.left_here(tmp_path))


# ---------------------------------------------------------------- the plan


def taken_back(facts: dict[str, Any], **given: Any) -> dict[str, Any]:
    known = {"address": "192.0.2.7", "user": "", "port": "", "today": "2026-11-26", "takes_back": True}
    return preflight_plan(
        {"ansible_facts": {"temper": facts}}, {"inventory_hostname": "gpu07", **given}, known
    )


def test_every_role_is_taken_back_whatever_the_inventory_wants() -> None:
    assert set(TAKEN_BACK) <= planned_variables()
    plan = taken_back(node(), monitoring_enabled=True, profiling_tools_install=True, pull_enabled=False)
    roles = {name: json.loads(text) for name, text in plan["roles"].items()}
    assert list(roles) == [role.ROLE for role in ROLES]
    assert [name for name, role in roles.items() if not role["options"]["absent"]] == []
    wanted = [one["wanted"] for role in roles.values() for one in role["settings"]]
    # Nothing is to come, but for which engines are meant.
    assert [one for one in wanted if one and "secret" not in one and one != "auto"] == []
    assert (plan["problems"], plan["packages"], plan["reboot"]) == ([], {}, "")


def test_a_node_that_could_get_no_stack_can_be_taken_back() -> None:
    """A GPU that no table knows, a system that no table has, a full disk, Secure Boot without a key."""
    unknown = {"id": "arch", "version_id": "", "codename": "", "pretty_name": "Arch Linux"}
    facts = node(pci=pci(("ffff", "0302")), os=unknown, secure_boot="enabled")
    facts["disks"] = [{**one, "free_bytes": 0} for one in facts["disks"]]
    assert taken_back(facts)["problems"] == []


def test_a_wrong_value_in_the_inventory_is_still_said() -> None:
    assert "firewal_state" in " ".join(taken_back(node(), firewal_state="absent")["problems"])
