"""A setting is read, refused, compared and made as every role promises."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.temper.access.commit_confirm import Change, ConfirmedSetting
from ansible.module_utils.temper.process import CommandError
from ansible.module_utils.temper.settings import kinds
from ansible.module_utils.temper.settings.base import Difference, RefusedError, SettingError, WayIn

from tests.unit.settings.role_plans import item, with_packages

Run = Callable[..., dict[str, Any]]


class Noted(Change):
    """A change that notes how it was armed instead."""

    calls: list[str]

    @contextlib.contextmanager
    def armed(self, files: Any, live: Any, timeout_s: int, login: Any) -> Iterator[None]:
        self.calls.append(f"armed {timeout_s}")
        yield
        self.calls.append("applied")


class Door(ConfirmedSetting[str]):
    """A setting that tests tell what it finds."""

    key = "door"
    change_name = "door"
    subject = "the door"

    def __init__(self, state: Path) -> None:
        super().__init__(60, None)
        self.calls: list[str] = []
        self.noted = Noted("door", "the door", state)
        self.noted.calls = self.calls
        self.refusal = ""
        self.hindrance = ""
        self.error: Exception | None = None
        self.open = False
        self.guarded = True

    def from_items(self, items: Any, options: Any) -> Door:
        """The same one, whatever the plan says: the test holds it."""
        return self

    @property
    def pending(self) -> Noted:
        return self.noted

    def look(self) -> str:
        if self.refusal:
            raise RefusedError(self.refusal)
        return "open" if self.open else "closed"

    def settled(self) -> bool:
        return self.outlook == "open"

    def obstacle(self) -> str | None:
        return self.hindrance or super().obstacle()

    def change(self) -> list[Difference]:
        return [Difference("door", "closed", "open")]

    def prepare(self) -> None:
        self.calls.append("prepared")

    def apply(self) -> None:
        self.calls.append("apply")
        if self.error:
            raise self.error
        self.open = True
        self.forget()

    def way_in(self) -> WayIn | None:
        return WayIn("door", "the door") if self.guarded else None

    def warnings(self) -> list[str]:
        return ["it creaks"]

    def result(self) -> dict[str, Any]:
        return {"port": 22}


@pytest.fixture
def door(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Door:
    """What stands for sshd in the plan of its role."""
    door = Door(tmp_path)
    folded_class = kinds.folded_class
    monkeypatch.setattr(kinds, "folded_class", lambda kind: door if kind == "sshd" else folded_class(kind))
    return door


@pytest.fixture
def settle(carry_out: Run, door: Door) -> Run:
    """Have the role carried out, with what a test adds to it."""

    def run(*more: dict[str, Any], check_mode: bool = False) -> dict[str, Any]:
        return carry_out("ssh_hardening", [item("sshd", "Port", 22), *more], check_mode=check_mode)

    return run


def test_what_differs_is_made_under_the_timer_and_waits_for_its_confirmation(settle: Run, door: Door) -> None:
    result = settle()
    assert door.calls == ["prepared", "armed 60", "apply", "applied"]
    assert (result["changed"], result["needs"], result["port"]) == (True, {"confirm": "door"}, 22)
    assert result["diff"] == [
        {"before_header": "door", "after_header": "door", "before": "closed\n", "after": "open\n"}
    ]
    assert [warning["event"]["msg"] for warning in result["warnings"]] == ["it creaks"]


def test_what_nobody_can_be_locked_out_by_needs_no_confirmation(settle: Run, door: Door) -> None:
    door.guarded = False
    assert settle()["needs"] == {}
    assert door.calls == ["prepared", "apply"]


def test_what_is_settled_is_left_alone(settle: Run, door: Door) -> None:
    door.open = True
    result = settle()
    assert (result["changed"], result["diff"], result["port"]) == (False, [], 22)
    assert door.calls == []


def test_check_mode_tells_and_makes_nothing(settle: Run, door: Door) -> None:
    result = settle(check_mode=True)
    assert (result["changed"], result["needs"], len(result["diff"])) == (True, {}, 1)
    assert door.calls == []


@pytest.mark.parametrize("check_mode", [False, True])
def test_an_obstacle_is_refused_before_anything_is_touched(settle: Run, door: Door, check_mode: bool) -> None:
    door.refusal = "no hinges"
    result = settle(check_mode=check_mode)
    assert (result["failed"], result["changed"]) == (True, False)
    assert "no hinges" in result["msg"]
    assert door.calls == []


HINGES = item("package", "hinges", {"version": "", "held": False})


def test_check_mode_takes_a_missing_package_for_one_that_will_come(
    settle: Run, door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = with_packages(monkeypatch)
    door.hindrance = "no hinges"
    assert settle(HINGES, check_mode=True)["changed"]
    assert (manager.calls, door.calls) == ([], [])
    assert "no hinges" in settle(HINGES)["msg"]


def test_nothing_is_made_before_its_package_is_there(
    settle: Run, door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = with_packages(monkeypatch)
    manager.brings = lambda: door.calls.append("installed")
    assert settle(HINGES)["changed"]
    assert door.calls == ["installed", "prepared", "armed 60", "apply", "applied"]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (SettingError("it is stuck"), "it is stuck"),
        (CommandError("`open` failed"), "`open` failed"),
        (OSError(5, "Input/output error"), "could not be read or written"),
    ],
)
def test_a_failure_is_a_sentence(settle: Run, door: Door, error: Exception, words: str) -> None:
    door.error = error
    result = settle()
    assert result["failed"]
    assert words in result["msg"]
