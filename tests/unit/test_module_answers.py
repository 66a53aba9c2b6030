"""A node that answers what it likes says nothing but what an action names."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from ansible import constants
from ansible.vars.clean import remove_internal_keys

from temper.plan.module_answers import AnswerError, failure, node_facts, reason, role_answers
from tests.unit.each import each

EVIL = {
    "add_host": {
        "host_name": "evil01",
        "groups": ["gpu_nodes"],
        "host_vars": {"ansible_connection": "local"},
    },
    "add_group": "gpu_nodes",
    "ansible_facts": {"ansible_host": "192.0.2.1", "preflight_plan": {}},
    "ansible_stats": {"data": {}},
    "_ansible_verbose_override": True,
    "_ansible_no_log": True,
    "_ansible_item_label": "x",
    "include": "/etc/passwd",
    "invocation": {},
    "skipped": True,
    "unreachable": True,
    "results": [{"add_host": {"host_name": "evil02"}}],
}
SETTLED = {"changed": True, "actions": ["a"], "controls": ["c"], "needs": {}, "results": {}, "diff": []}
DIFF = {"before": "a", "after": "b", "before_header": "f", "after_header": "f"}
DRIVER = {"loaded_version": None, "nouveau_loaded": True, "compute_processes": ["7 python"]}
ASKED = dict.fromkeys(("firewall", "ssh_hardening"), "")


def answer(**said: Any) -> dict[str, Any]:
    return role_answers({"roles": {"firewall": {**SETTLED, **said}}}, "roles", ASKED)["firewall"]


def keys_of(value: Any) -> set[str]:
    """Every key at every depth."""
    if isinstance(value, dict):
        return {*value, *(key for item in value.values() for key in keys_of(item))}
    return {key for item in value for key in keys_of(item)} if isinstance(value, list) else set()


def test_a_role_says_what_later_tasks_read_of_it() -> None:
    said = answer(
        diff=[DIFF], results={"port": 2222, "report": ["tcp 80"], "left": ["f"]}, needs={"driver": DRIVER}
    )
    assert said == {
        **SETTLED,
        "diff": [DIFF],
        "results": {"port": 2222, "report": ["tcp 80"], "left": ["f"]},
        "needs": {"driver": DRIVER},
    }


@each([], ["results"], ["needs"], ["needs", "driver"], ["diff", 0])
@each(*EVIL, *constants.INTERNAL_RESULT_KEYS, *constants.RESTRICTED_RESULT_KEYS)
def test_no_key_of_ansibles_own_comes_through_at_any_depth(key: str, place: list[Any]) -> None:
    said: Any = json.loads(json.dumps({**SETTLED, "diff": [DIFF], "needs": {"driver": DRIVER}}))
    inner = said
    for step in place:
        inner = inner[step]
    inner.setdefault(key, EVIL.get(key, {"host_name": "evil01"}))
    try:
        found = answer(**said)
    except AnswerError:
        return  # such as results that are a list
    # An action's own keys, as Ansible takes them from a module, are left alone.
    assert not keys_of(found) & ({*EVIL} - {"results"})
    before = dict(found)
    remove_internal_keys(found)
    assert found == before


@each("22 -o ProxyCommand=id", "22", 0, -1, 65536, 10**400, True, 22.5, [22], {})
def test_a_port_that_becomes_an_option_of_ssh_is_a_port(port: object) -> None:
    with pytest.raises(AnswerError, match="port"):
        answer(results={"port": port})


@each(
    5,
    [],
    "roles",
    None,
    {"firewall": 5},
    {"firewall": []},
    {"evil": SETTLED},
    {"firewall": {"changed": "no"}},
)
def test_an_answer_in_another_form_is_said(said: object) -> None:
    with pytest.raises(AnswerError):
        role_answers({"roles": said}, "roles", ASKED)


def test_a_failed_role_says_why() -> None:
    said = answer(failed=True, refused=True, msg="no", output=["x"], changed=False, **EVIL | {"results": {}})
    assert said == {"changed": False, "failed": True, "refused": True, "msg": "no", "output": ["x"]}


def test_a_module_that_failed_says_why_and_nothing_else() -> None:
    said = failure({"failed": False, "msg": "x" * 100_000, "rc": 1, **EVIL})
    assert said.keys() == {"failed", "msg", "rc", "refused"}
    assert (said["failed"], len(said["msg"])) == (True, 64 << 10)
    assert failure({"msg": {"add_host": 1}})["failed"] is True
    assert failure({})["msg"]
    broken = SimpleNamespace(event=SimpleNamespace(msg="unexpected keyword"))
    for said, words in (
        ({"exception": broken}, "unexpected keyword"),
        ({"exception": broken, "msg": "no Python"}, "no Python"),
        ({"exception": "(traceback unavailable)", "module_stderr": "killed"}, "killed"),
        ({"exception": EVIL, "module_stderr": EVIL}, ""),
    ):
        assert reason(said) == words
        assert words in failure({"failed": True, **said})["msg"]


def test_a_node_has_facts_of_one_name_and_its_lease() -> None:
    facts = {"temper": {"boot_id": "b"}, "ansible_host": "192.0.2.1", "preflight_plan": {}}
    assert node_facts({"ansible_facts": facts}) == {"temper": {"boot_id": "b"}}
    lease = {"owner": "run 1", "fencing": 7, "ansible_connection": "local"}
    found = node_facts({"ansible_facts": {**facts, "temper_lease": lease}})
    assert found["temper_lease"] == {"owner": "run 1", "fencing": 7}
    assert node_facts({"ansible_facts": []}) == node_facts({"ansible_facts": {"temper": 5}}) == {}
