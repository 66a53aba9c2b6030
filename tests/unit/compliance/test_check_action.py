"""The check's one task on a node: two executions, and what of theirs it passes on."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.errors import AnsibleConnectionFailure, AnsibleError

from plugins.action import compliance_check
from temper.compliance.statement import OUTSIDE_TITLES
from tests.unit.compliance.fleets import KNOWN, VARIABLES
from tests.unit.each import each
from tests.unit.planning_nodes import node

ANSWERS: dict[str, Any] = {
    "node_facts": {"ansible_facts": {"temper": node()}, "warnings": ["Its clock is off."]},
    "node_compliance": {"observations": {"node": []}, "warnings": ["A unit is unreadable."]},
}


def task(
    monkeypatch: pytest.MonkeyPatch,
    in_play: dict[str, Any] | None = None,
    *,
    outside: bool = False,
    **answers: Any,
) -> tuple[dict[str, Any], list[str]]:
    """The result of the task on a node whose modules answer so, and which modules were run."""
    asked: list[str] = []
    play = in_play or {}

    def execute(module: str, _arguments: dict[str, Any], task_vars: Any) -> dict[str, Any]:
        asked.append(module)
        answer = (ANSWERS | answers)[module]
        if isinstance(answer, AnsibleError):
            raise answer
        return dict(answer)

    monkeypatch.setattr("temper.plan.node_action.ActionBase.run", lambda *_: {})
    action = object.__new__(compliance_check.ActionModule)
    action._task = SimpleNamespace(
        args={"known": KNOWN, "outside": outside, "addresses": []},
        get_play=lambda: SimpleNamespace(get_vars=lambda: play),
        get_vars=dict,
    )
    action._connection = SimpleNamespace(has_option=lambda _: False)
    action._execute_module = execute
    action._connection = SimpleNamespace(transport="local", has_option=lambda _name: False)
    action._templar = SimpleNamespace(template=lambda value: value)
    variables = {**play, "inventory_hostname": "gpu01", "hostvars": {"gpu01": VARIABLES}}
    return action.run(task_vars=variables), asked


def test_a_node_that_answers_is_read_and_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    result, asked = task(monkeypatch)
    assert asked == ["node_facts", "node_compliance"]
    assert result["changed"] is False
    assert json.loads(result["answer"])["observations"] == {"node": "[]"}
    assert "problem" not in result


def test_what_was_seen_from_outside_is_the_controllers_own_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the node calls by that name."""
    own = {"observations": {"node": []}, "outside": [{"key": "ports"}], "self_report": {"listening": [22]}}
    result, _ = task(monkeypatch, outside=True, node_compliance=own)
    answered = json.loads(result["answer"])
    assert [one["key"] for one in answered["outside"]] == [*OUTSIDE_TITLES]
    assert {one["state"] for one in answered["outside"]} == {"not-applicable"}
    assert json.loads(task(monkeypatch, node_compliance=own)[0]["answer"])["outside"] == []


def test_self_report_of_another_form_is_the_nodes_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    own = {"observations": {"node": []}, "self_report": {"listening": [70000]}}
    result, _ = task(monkeypatch, outside=True, node_compliance=own)
    assert "found 70000" in result["problem"]
    assert "answer" not in result


def test_what_the_modules_warn_of_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    result, _ = task(monkeypatch)
    assert result["warnings"] == ["Its clock is off.", "A unit is unreadable."]


@each("node_facts", "node_compliance")
@each(
    (AnsibleConnectionFailure("no route to host"), "unreachable: no route to host"),
    # Ansible names what it waited for, which need not be what keeps the node from answering.
    (
        AnsibleConnectionFailure("Timeout (22s) waiting for privilege escalation prompt: "),
        "unreachable: it took the connection and gave no answer: check by hand whether it hangs or sudo "
        "waits for something (ssh -t root@192.0.2.7 sudo -v), and whether a firewall drops this machine",
    ),
    (AnsibleError("no Python"), "it could not be read: no Python"),
    ({"failed": True, "module_stderr": "Killed"}, "it could not be read: Killed"),
)
def test_an_execution_that_fails_is_part_of_the_result(
    error: Any, said: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, asked = task(monkeypatch, **{module: error})
    assert asked[-1] == module
    assert (result["problem"], result["changed"]) == (said, False)
    assert "answer" not in result


def test_a_variable_that_the_play_sets_is_a_problem_of_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    result, _ = task(monkeypatch, {"firewall_rules": ["x"], "compliance_timeout_s": 60})
    (problem,) = json.loads(result["answer"])["plan"]["problems"]
    assert problem.startswith("firewall_rules is set in the play, where the plan does not see it")
    assert json.loads(task(monkeypatch)[0]["answer"])["plan"]["problems"] == []


def test_a_node_is_asked_for_what_its_own_system_can_have() -> None:
    waived = [{"id": "password-hash", "by": "the profile gpu"}]
    asked = json.loads(compliance_check.demanded_of({"waived": waived, "system": "ubuntu-22.04"}))
    assert {one["key"]: one["wanted"] for one in asked}["/etc/login.defs:ENCRYPT_METHOD"] == "SHA512"
