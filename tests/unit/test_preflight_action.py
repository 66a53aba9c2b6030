"""Preflight's one task: which executions on the node it takes, and what of theirs it passes on."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.errors import AnsibleConnectionFailure, AnsibleError
from ansible.module_utils.temper.settings.in_place import digest

from plugins.action import preflight_plan
from temper.base import DATA
from temper.plan.os_controls import load_controls
from temper.plan.ssh_client import Look
from tests.unit.planning_nodes import node, system
from tools.bare_node import pci

KNOWN = {"address": "192.0.2.7", "user": "root", "today": "2026-11-22", "fleet": {}}
# Ansible fills in these two defaults, which name other variables.
VARIABLES = {"firewall_ssh_ports": [22], "ssh_hardening_penalty_exempt_networks": []}
NOTHING_SAID: dict[str, Any] = {"unknown": {}, "without": [], "refused": []}
PREVIEW: dict[str, Any] = {"transaction": {}, "resolved": {}, "problems": [], "refused": []}


class Controller:
    """Runs the task on a node whose modules answer as told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("temper.plan.node_action.ActionBase.run", lambda *_: {})
        self.executions: dict[str, dict[str, Any]] = {}
        self.facts = node()
        self.answers: dict[str, dict[str, Any] | AnsibleError] = {}
        self.in_play: dict[str, Any] = {}
        self.connection: dict[str, Any] = {}
        self.run_tags = ["all"]
        self.hardens = False

    def execute(self, module: str, arguments: dict[str, Any], task_vars: Any) -> dict[str, Any]:
        self.executions[module] = arguments
        read = {"ansible_facts": {"temper": self.facts}}
        usual = {"node_facts": read, "package_preview": PREVIEW, "node_programs": NOTHING_SAID}
        answer = self.answers.get(module, usual[module])
        if isinstance(answer, AnsibleError):
            raise answer
        return answer

    def task(self, *, simulate: bool = True, payload_python: str = "") -> dict[str, Any]:
        action = object.__new__(preflight_plan.ActionModule)
        action._task = SimpleNamespace(
            args={
                "known": KNOWN,
                "simulate": simulate,
                "installs": simulate,
                "hardens": self.hardens,
                "payload_python": payload_python,
                "lease": {},
            },
            get_play=lambda: SimpleNamespace(get_vars=lambda: self.in_play),
            get_vars=dict,
        )
        action._connection = SimpleNamespace(
            transport="local",
            has_option=self.connection.__contains__,
            get_option=self.connection.__getitem__,
        )
        action._execute_module = self.execute
        action._templar = SimpleNamespace(template=lambda value: value)
        result: dict[str, Any] = action.run(
            task_vars={
                **self.in_play,
                "inventory_hostname": "gpu01",
                "hostvars": {"gpu01": VARIABLES},
                "ansible_run_tags": self.run_tags,
                "ansible_skip_tags": [],
            }
        )
        return result


@pytest.fixture
def controller(monkeypatch: pytest.MonkeyPatch) -> Controller:
    return Controller(monkeypatch)


def test_a_node_with_something_to_install_is_read_and_asked_to_simulate_it(controller: Controller) -> None:
    result = controller.task()
    assert list(controller.executions) == ["node_facts", "package_preview"]
    asked = controller.executions["package_preview"]
    assert asked["packages"] == result["plan"]["packages"]
    assert asked["engines"] == result["plan"]["roles"]["container_engines"]
    assert (result["changed"], result["reached"], result["plan"]["problems"]) == (False, True, [])
    assert result["ansible_facts"] == {"temper": controller.facts}


@pytest.mark.parametrize("reason", ["told not to", "settled", "refused"])
def test_a_node_with_nothing_to_simulate_is_only_read(controller: Controller, reason: str) -> None:
    if reason == "settled":
        controller.facts = node(packages=controller.task()["plan"]["packages"])
        controller.executions.clear()
    elif reason == "refused":
        controller.facts = node(pci=pci())
    result = controller.task(simulate=reason != "told not to")
    assert list(controller.executions) == ["node_facts"]
    assert bool(result["plan"]["problems"]) == (reason == "refused")
    assert result["plan"]["settled"] == (reason == "settled")


def test_the_programs_of_a_node_that_is_hardened_are_asked_about_the_roles_of_the_run(
    controller: Controller,
) -> None:
    controller.hardens = True
    roles = ["firewall", "ssh_hardening", "os_hardening"]
    for tag, expected in {"all": roles, "harden": roles, "firewall": ["firewall"], "tune": []}.items():
        controller.run_tags = [tag]
        controller.executions.clear()
        controller.task(simulate=False)
        asked = controller.executions.get("node_programs", {"roles": "[]"})["roles"]
        assert [part["role"] for part in json.loads(asked)] == expected, tag


def test_programs_are_not_asked_about_what_is_in_place(controller: Controller) -> None:
    controller.hardens = True
    controller.task(simulate=False)
    parts = json.loads(controller.executions["node_programs"]["roles"])
    controller.facts |= {"in_place": {part["role"]: digest(part) for part in parts[1:]}}
    controller.task(simulate=False)
    (asked,) = json.loads(controller.executions["node_programs"]["roles"])
    assert asked["role"] == "firewall"
    controller.facts["in_place"][asked["role"]] = digest(asked)
    controller.executions.clear()
    assert controller.task(simulate=False)["plan"]["problems"] == []
    assert controller.executions.keys() == {"node_facts"}


def test_what_programs_say_is_in_the_plan_or_refuses_it(controller: Controller) -> None:
    controller.hardens = True
    reason = "sudo-rs 0.2.5 does not know its rule"
    without = "OpenSSH_9.2p1 does not know RequiredRSASize"
    controller.answers["node_programs"] = NOTHING_SAID | {"unknown": {"umask": reason}, "without": [without]}
    plan = controller.task(simulate=False)["plan"]
    (waived,) = [one for one in plan["waived"] if one["id"] == "umask"]
    assert (waived["reason"], plan["problems"]) == (reason, [])
    assert f"not applicable here: {without}" in plan["text"]
    sudoers = {"role": "os_hardening", "said": "visudo of this node refuses x: Bad."}
    refusing = NOTHING_SAID | {"refused": [sudoers, {"role": "ssh_hardening", "said": "sshd refuses: Bad."}]}
    unasked = NOTHING_SAID | {"unasked": {"nft": "no\nunshare"}}
    stranger = NOTHING_SAID | {"refused": [sudoers | {"role": "evil"}]}
    broken = {"failed": True, "msg": "no Python"}
    remedies = ["os_hardening_waivers", "ssh_hardening_state: absent"]
    for answer, problems, said in (
        (refusing, remedies, ""),
        (NOTHING_SAID | {"refused": [sudoers | {"said": "Do that. Bad;", "advises": True}]}, ["Do that"], ""),
        (broken, [], "no Python"),
        (unasked, [], "nft was not asked: no unshare"),
        (stranger, [], "not asked"),
    ):
        controller.answers["node_programs"] = answer
        plan = controller.task(simulate=False)["plan"]
        for word, found in zip(problems, plan["problems"], strict=True):
            assert "Bad;" in found
            assert word in found
        assert said in plan["text"]


def test_a_node_waives_only_what_its_sudo_was_asked_about_and_in_one_line(controller: Controller) -> None:
    controller.hardens = True
    said = "sudo does\nnot\x1b[1m know"
    controller.answers["node_programs"] = NOTHING_SAID | {
        "unknown": dict.fromkeys(("sudo-terminal", "kernel-pointers", "evil"), said),
        "without": [said] * 100,
    }
    plan = controller.task(simulate=False)["plan"]
    waived = {one["id"]: one["reason"] for one in plan["waived"] if one["by"] == "the node's programs"}
    controls = load_controls(DATA / "os_controls")
    assert waived
    for name, reason in waived.items():
        assert "/etc/sudoers.d/" in str(controls[name]), name
        assert reason.isprintable()
    assert "\x1b" not in plan["text"]
    assert plan["text"].count("not applicable here") <= 40


def test_what_the_simulation_finds_refuses_the_node(controller: Controller) -> None:
    controller.answers["package_preview"] = PREVIEW | {"problems": ["The mirror has no driver."]}
    assert controller.task()["plan"]["problems"] == ["The mirror has no driver."]


@pytest.mark.parametrize("module", ["node_facts", "package_preview"])
@pytest.mark.parametrize("error", [AnsibleConnectionFailure("no route to host"), AnsibleError("no Python")])
def test_an_execution_that_fails_is_a_problem_of_the_node(
    controller: Controller, module: str, error: AnsibleError
) -> None:
    controller.answers[module] = error
    result = controller.task()
    (problem,) = result["plan"]["problems"]
    assert str(error) in problem
    assert result["reached"] == (not isinstance(error, AnsibleConnectionFailure))


def test_what_the_modules_warn_of_is_passed_on(controller: Controller) -> None:
    controller.answers["package_preview"] = PREVIEW | {"warnings": ["Drain the node."]}
    assert controller.task()["warnings"] == ["Drain the node."]


def test_the_clocks_of_node_and_controller_are_compared(controller: Controller) -> None:
    assert not any("clock" in one for one in controller.task()["plan"]["warnings"])
    controller.facts = node(clock_s=1.0)
    assert any("behind this machine's" in one for one in controller.task()["plan"]["warnings"])


def test_the_payloads_python_is_asked_for_where_one_is_named(controller: Controller) -> None:
    controller.task(simulate=False)
    assert controller.executions["node_facts"] == {}
    controller.task(simulate=False, payload_python="/opt/python3")
    assert controller.executions["node_facts"] == {"payload_python": "/opt/python3"}


def test_a_variable_that_the_play_sets_is_refused_because_the_plan_would_go_without_it(
    controller: Controller,
) -> None:
    controller.in_play = {"preflight_plan_file": "", "firewall_ssh_ports": [22], "firewall_rules": ["x"]}
    (problem,) = controller.task()["plan"]["problems"]
    assert problem.startswith("firewall_rules is set in the play, where the plan does not see it")
    assert list(controller.executions) == ["node_facts"]


@pytest.mark.parametrize(
    ("connection", "said"),
    [
        ({"host": "2001:db8::7", "remote_user": "ops"}, "2001:db8::7 cannot be reached over SSH as ops"),
        ({"port": 2222}, "192.0.2.7 cannot be reached over SSH as root"),
        ({"host": None, "remote_user": None}, "192.0.2.7 cannot be reached over SSH as root"),
        ({}, "192.0.2.7 cannot be reached over SSH as root"),
    ],
)
def test_address_account_and_port_are_those_of_the_connection(
    controller: Controller, connection: dict[str, Any], said: str
) -> None:
    """The command line, the play and older names of variables say them, too."""
    controller.connection = connection
    controller.answers["node_facts"] = AnsibleConnectionFailure("Permission denied")
    (problem,) = controller.task()["plan"]["problems"]
    assert said in problem
    assert ("ssh-copy-id -p 2222 " in problem) == ("port" in connection)


@pytest.mark.parametrize(
    ("look", "said"),
    [
        (Look(reached=False, forbidden=True), "ssh_hardening_tcp_forwarding: local for gpu09"),
        (Look(reached=True), "ssh -O exit"),
        (Look(reached=False), ""),
    ],
)
def test_a_node_behind_another_learns_what_is_wrong_there(
    controller: Controller, monkeypatch: pytest.MonkeyPatch, look: Look, said: str
) -> None:
    monkeypatch.setattr(preflight_plan, "look_on_the_way", lambda *_: (["gpu09"], look))
    controller.answers["node_facts"] = AnsibleConnectionFailure("closed")
    _, *more = controller.task()["plan"]["problems"]
    assert [said in sentence for sentence in more] == [True] * bool(said)


def test_a_reboot_that_is_not_allowed_refuses_beside_what_the_simulation_finds(
    controller: Controller,
) -> None:
    nouveau = [device | {"driver": "nouveau"} for device in node()["pci"]]
    controller.facts = node(pci=nouveau)
    controller.answers["package_preview"] = PREVIEW | {"problems": ["there is no such package"]}
    found = controller.task()["plan"]["refusals"]
    assert {one["code"] for one in found} == {"reboot-forbidden", "transaction"}
    controller.run_tags = ["harden"]
    assert {one["code"] for one in controller.task()["plan"]["refusals"]} == {"transaction"}
    # A stage that installs nothing of the stack.
    assert controller.task(simulate=False)["plan"]["refusals"] == []


def test_a_system_without_controls_refuses_the_runs_that_harden_it(controller: Controller) -> None:
    controller.facts = system("sles", "15.6")
    controller.answers["package_preview"] = PREVIEW | {"problems": ["there is no such package"]}
    found = {}
    for hardens, tag in ((True, "all"), (True, "provision"), (False, "all")):
        controller.hardens, controller.run_tags = hardens, [tag]
        found[hardens, tag] = {one["code"] for one in controller.task()["plan"]["refusals"]}
    assert found == {
        (True, "all"): {"hardening-system", "system-unsupported"},
        (True, "provision"): {"system-unsupported"},
        (False, "all"): {"system-unsupported"},
    }
