"""A change is confirmed after the look from outside, and not where that contradicts it."""

from types import SimpleNamespace
from typing import Any

import pytest

from plugins.action import commit_confirm
from tests.unit.each import each


def confirmed(
    change: str, failure: str, warnings: list[str], monkeypatch: pytest.MonkeyPatch
) -> tuple[dict[str, Any], list[str]]:
    """The result of the action, and what it did in which order."""
    done: list[str] = []

    def contradicted(*_: object) -> tuple[str, list[str]]:
        done.append("look")
        return failure, warnings

    def execute(module: str, *_: object, **__: object) -> dict[str, Any]:
        done.append(module)
        return {"changed": True}

    monkeypatch.setattr(commit_confirm, "contradicted", contradicted)
    monkeypatch.setattr("ansible.plugins.action.ActionBase.run", lambda *_: {})
    action = object.__new__(commit_confirm.ActionModule)
    action._task = SimpleNamespace(args={"name": change})
    action._connection = SimpleNamespace(transport="ssh")
    action._templar = None
    action._low_level_execute_command = lambda *_: done.append("new connection")
    action._execute_module = execute
    variables = {"inventory_hostname": "gpu01", "preflight_plan": {"roles": {}}}
    return action.run(task_vars=variables), done


@each(
    ("ssh", "", ["new connection", "look", "commit_confirm"]),
    ("firewall", "", ["new connection", "look", "commit_confirm"]),
    ("accounts", "", ["commit_confirm"]),
    # A node that lets nobody in is told from one that offers too much.
    ("ssh", "sshd offers a password", ["new connection", "look"]),
)
def test_look_comes_after_a_new_connection_and_before_the_confirmation(
    change: str, failure: str, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    result, done = confirmed(change, failure, [], monkeypatch)
    assert done == expected
    assert bool(result.get("failed")) is bool(failure)
    assert result.get("cause") == ("contradicted" if failure else None)


def test_look_that_cannot_be_taken_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    result, _ = confirmed("ssh", "", ["it hangs"], monkeypatch)
    assert (result["changed"], result["warnings"]) == (True, ["it hangs"])
