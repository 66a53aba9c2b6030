"""One setting is read, refused, compared and made as every module promises."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest
from ansible.module_utils.access.commit_confirm import Change, ConfirmedSetting
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.process import CommandError
from ansible.module_utils.settings.base import Difference, RefusedError, SettingError, WayIn
from ansible.module_utils.settings.module import settle, settle_one

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


class Node:
    """What drives a setting."""

    def __init__(self, *, check_mode: bool = False) -> None:
        self.check_mode = check_mode
        self.warnings: list[str] = []

    def warn(self, warning: str) -> None:
        self.warnings.append(warning)


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
        self.error: Exception | None = None
        self.packages: list[str] = []
        self.open = False
        self.guarded = True

    @property
    def pending(self) -> Noted:
        return self.noted

    @property
    def missing_packages(self) -> list[str]:
        return self.packages

    def look(self) -> str:
        if self.refusal:
            raise RefusedError(self.refusal)
        return "closed"

    def settled(self) -> bool:
        return self.open

    def change(self) -> list[Difference]:
        return [Difference("door", "closed", "open")]

    def prepare(self) -> None:
        self.calls.append("prepared")

    def apply(self) -> None:
        self.calls.append("apply")
        if self.error:
            raise self.error

    def way_in(self) -> WayIn | None:
        return WayIn("door", "the door") if self.guarded else None

    def warnings(self) -> list[str]:
        return ["it creaks"]

    def result(self) -> dict[str, Any]:
        return {"port": 22}


@pytest.fixture
def door(tmp_path: Path) -> Door:
    return Door(tmp_path)


def test_what_differs_is_made_under_the_timer_and_waits_for_its_confirmation(door: Door) -> None:
    node = Node()
    result = settle(node, door)
    assert door.calls == ["prepared", "armed 60", "apply", "applied"]
    assert (result["changed"], result["confirm"], result["port"]) == (True, True, 22)
    assert result["diff"] == [
        {"before_header": "door", "after_header": "door", "before": "closed\n", "after": "open\n"}
    ]
    assert node.warnings == ["it creaks"]


def test_what_nobody_can_be_locked_out_by_needs_no_confirmation(door: Door) -> None:
    door.guarded = False
    assert not settle(Node(), door)["confirm"]
    assert door.calls == ["prepared", "apply"]


def test_what_is_settled_is_left_alone(door: Door) -> None:
    door.open = True
    result = settle(Node(), door)
    assert (result["changed"], result["diff"], result["port"]) == (False, [], 22)
    assert door.calls == []


def test_check_mode_tells_and_makes_nothing(door: Door) -> None:
    result = settle(Node(check_mode=True), door)
    assert (result["changed"], result["confirm"], len(result["diff"])) == (True, False, 1)
    assert door.calls == []


def test_an_obstacle_is_refused_before_anything_is_touched(door: Door) -> None:
    door.refusal = "no hinges"
    with pytest.raises(RefusedError, match="no hinges"):
        settle(Node(), door)
    assert door.calls == []


def test_check_mode_takes_a_missing_package_for_one_that_will_come(door: Door) -> None:
    door.refusal, door.packages = "no hinges", ["hinges"]
    assert settle(Node(check_mode=True), door)["changed"]
    with pytest.raises(RefusedError):
        settle(Node(), door)


def test_nothing_is_made_before_its_package_is_there(door: Door) -> None:
    door.packages = ["hinges"]
    assert not settle(Node(), door)["changed"]
    assert door.calls == []
    assert settle(Node(check_mode=True), door)["changed"]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (SettingError("it is stuck"), "it is stuck"),
        (CommandError("`open` failed"), "`open` failed"),
        (OSError(5, "Input/output error"), "could not be read or written"),
    ],
)
def test_a_failure_is_a_sentence(
    door: Door, error: Exception, words: str, run_module: Callable[..., dict[str, Any]]
) -> None:
    door.error = error
    result = run_module(lambda: settle_one(AnsibleModule(argument_spec={}), door))
    assert result["failed"]
    assert words in result["msg"]
