"""The roles of a stage share one execution on a node, and each one's task shows its own part."""

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.errors import AnsibleActionFail
from ansible.parsing.dataloader import DataLoader
from ansible.parsing.vault import VaultLib, VaultSecret
from settled import has_nothing_to_do

from plugins.action import settle
from temper.plan.quiet import QUIET, RUN
from tests.unit.ansible_commands import ansible
from tests.unit.each import each

ROOT = Path(__file__).resolve().parents[2]
STAGE = ["firewall", "ssh_hardening", "os_hardening"]
SETTLED = {"changed": False, "needs": {}}


class Controller:
    """Runs tasks of one play after the other and keeps what Ansible keeps: facts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("ansible.plugins.action.ActionBase.run", lambda *_: {})
        self.loader = DataLoader()
        self.executions: list[dict[str, Any]] = []
        self.facts: dict[str, Any] = {}
        self.play = "play 1"
        self.check_mode = False
        self.answers: dict[str, dict[str, Any]] = {}
        self.plan = {role: json.dumps({"role": role, "stage": "harden", "settings": []}) for role in STAGE}
        self.run_tags, self.skip_tags = ["all"], list[str]()
        self.settle_ahead = False
        self.settle_later = list[str]()
        self.differ = set[str]()

    def execute(self, _module: str, arguments: dict[str, Any], task_vars: Any) -> dict[str, Any]:
        self.executions.append(arguments)
        results = {}
        for plan in json.loads(arguments["roles"]):
            results[plan["role"]] = self.answers.get(plan["role"], SETTLED)
            if results[plan["role"]].get("needs"):
                break
        ahead = {
            plan["role"]: SETTLED
            for plan in json.loads(arguments["ahead"] or "[]")
            if plan["role"] not in self.differ
        }
        return {"roles": results, "ahead": ahead, "warnings": ["mind it"]}

    def task(self, role: str, together: list[str] = STAGE, **arguments: Any) -> dict[str, Any]:
        action = object.__new__(settle.ActionModule)
        action._task = SimpleNamespace(
            args={"role": role, **arguments},
            tags=["harden", role],
            check_mode=self.check_mode,
            get_play=lambda: SimpleNamespace(_uuid=self.play),
        )
        action._execute_module = self.execute
        action._loader = self.loader
        result: dict[str, Any] = action.run(
            task_vars={
                "ansible_facts": self.facts,
                "preflight_plan": {"roles": self.plan} if self.plan else None,
                "settle_together": together,
                "settle_ahead": self.settle_ahead,
                "settle_later": self.settle_later,
                "ansible_run_tags": self.run_tags,
                "ansible_skip_tags": self.skip_tags,
            }
        )
        self.facts |= result.pop("ansible_facts", {})
        return result

    def roles(self, execution: int = -1) -> list[str]:
        return [plan["role"] for plan in json.loads(self.executions[execution]["roles"])]


@pytest.fixture
def controller(monkeypatch: pytest.MonkeyPatch) -> Controller:
    return Controller(monkeypatch)


def test_one_execution_does_the_work_of_the_stage(controller: Controller) -> None:
    controller.answers["os_hardening"] = {"changed": True, "needs": {}, "actions": ["x"]}
    results = [controller.task(role) for role in STAGE]
    assert controller.roles() == STAGE
    assert len(controller.executions) == 1
    assert [result["changed"] for result in results] == [False, False, True]
    # Each warning once, with the task that had the work done.
    assert [result.get("warnings", []) for result in results] == [["mind it"], [], []]


def test_the_node_is_told_which_roles_the_run_takes_back_later(controller: Controller) -> None:
    controller.settle_later = ["firewall", "os_hardening"]
    for run, skip, later in (
        (["all"], [], ["firewall", "os_hardening"]),
        (["all"], ["firewall"], ["os_hardening"]),
        (["all"], ["harden"], []),
        (["harden"], [], ["firewall", "os_hardening"]),
        (["os_hardening"], [], ["os_hardening"]),
        (["pull"], [], []),
    ):
        controller.run_tags, controller.skip_tags = run, skip
        controller.facts.clear()
        controller.task("firewall", together=[])
        assert controller.executions[-1]["later"] == later, (run, skip)


def test_a_role_that_is_not_of_the_stage_is_carried_out_alone(controller: Controller) -> None:
    controller.task("firewall", together=[])
    assert controller.roles() == ["firewall"]


@pytest.mark.parametrize(
    ("run_tags", "skip_tags", "roles"),
    [
        (["all"], [], STAGE),
        (["harden"], [], STAGE),
        (["tagged"], [], STAGE),
        (["firewall"], [], ["firewall"]),
        (["firewall", "os_hardening"], [], ["firewall", "os_hardening"]),
        (["all"], ["os_hardening"], ["firewall", "ssh_hardening"]),
    ],
)
def test_only_roles_that_this_run_comes_to_are_carried_out(
    controller: Controller, run_tags: list[str], skip_tags: list[str], roles: list[str]
) -> None:
    controller.run_tags, controller.skip_tags = run_tags, skip_tags
    controller.task("firewall")
    assert controller.roles() == roles


def test_the_stage_goes_on_behind_a_role_that_waited_for_the_controller(controller: Controller) -> None:
    controller.answers["ssh_hardening"] = {"changed": True, "needs": {"confirm": "ssh"}}
    results = [controller.task(role) for role in STAGE]
    assert results[1]["needs"] == {"confirm": "ssh"}
    assert [controller.roles(execution) for execution in (0, 1)] == [STAGE, ["os_hardening"]]


def test_the_same_role_once_more_is_another_execution(controller: Controller) -> None:
    controller.task("firewall")
    controller.task("firewall", after_boot_s=60)
    assert [execution["after_boot_s"] for execution in controller.executions] == [0, 60]


def test_results_are_for_the_same_play_only(controller: Controller) -> None:
    controller.task("firewall")
    controller.play = "play 2"
    controller.task("ssh_hardening")
    assert controller.roles() == ["ssh_hardening", "os_hardening"]


def test_what_check_mode_found_is_no_result_of_a_run(controller: Controller) -> None:
    controller.check_mode = True
    controller.task("firewall")
    controller.check_mode = False
    controller.task("ssh_hardening")
    assert controller.roles() == ["ssh_hardening", "os_hardening"]


def test_a_failure_is_that_of_its_own_role(controller: Controller) -> None:
    controller.answers["ssh_hardening"] = {"failed": True, "changed": False, "msg": "no"}
    assert not controller.task("firewall").get("failed")
    result = controller.task("ssh_hardening")
    assert (result["failed"], result["msg"]) == (True, "no")


def test_an_execution_that_ends_without_results_fails(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller, "execute", lambda *_, **__: {"failed": True, "msg": "unreachable"})
    assert controller.task("firewall")["msg"] == "unreachable"


def test_a_node_without_a_plan_is_a_sentence(controller: Controller) -> None:
    controller.plan = {}
    with pytest.raises(AnsibleActionFail, match="preflight"):
        controller.task("firewall")


def quiet(controller: Controller, together: Sequence[str] = STAGE) -> list[str]:
    """The roles that end before their task in a play with these roles together."""
    return [role for role in STAGE if has_nothing_to_do(role, controller.facts, together)]


@pytest.mark.parametrize(
    ("answer", "ends"),
    [
        ({}, True),
        ({"results": {"port": None, "report": []}}, True),
        ({"changed": True}, False),
        ({"failed": True, "msg": "no"}, False),
        ({"needs": {"confirm": "ssh"}}, False),
        ({"results": {"report": ["tcp 80 is open"]}}, False),
        ({"results": {"port": 2222}}, False),
        ({"actions": ["x"]}, False),
        ({"diff": [{"before": "a", "after": "b"}]}, False),
    ],
)
def test_a_role_that_changes_and_says_nothing_ends_before_its_task(
    answer: dict[str, Any], ends: bool, controller: Controller
) -> None:
    controller.answers["ssh_hardening"] = {**SETTLED, **answer}
    controller.task("firewall")
    assert ("ssh_hardening" in quiet(controller)) == ends
    if not ends:
        assert controller.task("ssh_hardening").get("changed") == answer.get("changed", False)
        assert len(controller.executions) == 1


def test_a_role_is_quiet_in_the_stage_that_said_so_alone(controller: Controller) -> None:
    controller.task("firewall")
    assert quiet(controller) == STAGE[1:]
    # What a later stage is about, it says itself; whoever comes without that is carried out.
    controller.play = "play 2"
    controller.plan |= {role: json.dumps({"role": role, "stage": "harden", "settings": []}) for role in "ab"}
    controller.task("a", together=["a", "b"])
    assert quiet(controller) == []
    assert has_nothing_to_do("b", controller.facts, ["a", "b"])


def test_no_other_play_reads_which_roles_are_quiet(controller: Controller) -> None:
    controller.task("firewall")
    others: list[list[str]] = [[], ["ssh_hardening"], STAGE[::-1], [*STAGE, "os_tuning"]]
    assert [quiet(controller, together) for together in (STAGE, *others)] == [STAGE[1:], [], [], [], []]


@pytest.mark.parametrize("tags", [["firewall"], ["ssh_hardening"]])
def test_a_role_that_this_run_does_not_come_to_is_not_said_to_be_quiet(
    tags: list[str], controller: Controller
) -> None:
    controller.run_tags = tags
    controller.task(tags[0])
    assert quiet(controller) == []


@each(
    5,
    {},
    {"roles": STAGE},
    {"run": "another", "stage": STAGE, "roles": STAGE},
    {"run": RUN, "stage": STAGE, "roles": "firewall"},
    {"run": RUN, "roles": STAGE},
    None,
)
def test_what_a_node_or_an_earlier_run_says_of_quiet_roles_is_not_believed(fact: Any) -> None:
    assert not has_nothing_to_do("firewall", {QUIET: fact}, STAGE)
    assert not has_nothing_to_do("firewall", {}, STAGE)


def test_each_role_behind_the_first_of_its_stage_may_end_before_its_task() -> None:
    """And none that comes first: it speaks for the others."""
    for name in ("provision", "tune", "harden"):
        text = (ROOT / f"playbooks/{name}.yml").read_text()
        (stage,) = re.findall(r"settle_together: (?:&together )?\[(.+)\]", text)
        first, *others = stage.split(", ")
        ends = {
            role: "has_nothing_to_do" in (ROOT / f"roles/{role}/tasks/main.yml").read_text()
            for role in (first, *others)
        }
        assert ends == {first: False, **dict.fromkeys(others, True)}


@pytest.fixture
def two_stages(controller: Controller) -> Controller:
    """A run in which the firewall is a stage of its own, and the others come in a later play."""
    controller.settle_ahead = True
    controller.task("firewall", together=["firewall"])
    controller.play = "play 2"
    return controller


def test_roles_of_later_stages_that_have_nothing_to_do_need_no_execution(two_stages: Controller) -> None:
    assert not any(two_stages.task(role, together=STAGE[1:])["changed"] for role in STAGE[1:])
    assert len(two_stages.executions) == 1


def test_a_role_of_a_later_stage_that_has_something_to_do_is_carried_out(controller: Controller) -> None:
    controller.settle_ahead = True
    controller.differ = {"os_hardening"}
    controller.task("firewall", together=["firewall"])
    controller.play = "play 2"
    controller.task("ssh_hardening", together=STAGE[1:])
    assert len(controller.executions) == 1
    controller.answers["os_hardening"] = {"changed": True, "needs": {}}
    assert controller.task("os_hardening", together=STAGE[1:])["changed"]
    assert controller.roles() == ["os_hardening"]


@pytest.mark.parametrize("what", ["plan", "run", "check_mode"])
def test_what_was_read_for_another_plan_run_or_mode_is_not_used(
    two_stages: Controller, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if what == "plan":
        two_stages.plan["ssh_hardening"] = json.dumps(
            {"role": "ssh_hardening", "settings": [], "options": {}}
        )
    elif what == "run":
        monkeypatch.setattr(settle, "RUN", "another")
    else:
        two_stages.check_mode = True
    two_stages.task("ssh_hardening", together=STAGE[1:])
    assert two_stages.roles() == ["ssh_hardening", "os_hardening"]


@pytest.mark.parametrize(("ahead", "tags"), [(False, ["all"]), (True, ["firewall"]), (True, ["harden"])])
def test_later_stages_are_read_only_where_this_run_comes_to_them(
    controller: Controller, ahead: bool, tags: list[str]
) -> None:
    controller.settle_ahead, controller.run_tags = ahead, tags
    controller.task("firewall", together=["firewall"])
    assert controller.executions[0]["ahead"] == ""


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "vault"])
def test_a_secret_is_read_from_the_controllers_file(
    controller: Controller, tmp_path: Path, encrypted: bool
) -> None:
    source = tmp_path / "mok.key"
    password = [("default", VaultSecret(b"open sesame"))]
    controller.loader.set_vault_secrets(password)
    source.write_bytes(VaultLib(password).encrypt("PRIVATE") if encrypted else b"PRIVATE")
    wanted = {"content": None, "secret": True, "source": str(source)}
    plain = {"content": "x"}
    settings = [
        {"kind": "file", "key": path, "wanted": details}
        for path, details in (("/key", wanted), ("/plain", plain), ("/gone", None))
    ]
    controller.plan["firewall"] = json.dumps({"role": "firewall", "settings": settings})
    controller.task("firewall")
    assert controller.executions[0]["secrets"] == {"/key": "PRIVATE"}
    assert "PRIVATE" not in controller.executions[0]["roles"]


def test_a_secret_that_cannot_be_read_is_a_sentence(controller: Controller, tmp_path: Path) -> None:
    wanted = {"content": None, "secret": True, "source": str(tmp_path / "mok.key")}
    settings = [{"kind": "file", "key": "/key", "wanted": wanted}]
    controller.plan["firewall"] = json.dumps({"role": "firewall", "settings": settings})
    with pytest.raises(AnsibleActionFail, match=r"mok\.key"):
        controller.task("firewall")


MODULE = """\
import json
from ansible.module_utils.basic import AnsibleModule
names = ("roles", "ahead", "secrets", "after_boot_s", "later")
module = AnsibleModule({name: {"type": "dict" if name == "secrets" else "raw"} for name in names})
module.warn("mind it")
names = [plan["role"] for plan in json.loads(module.params["roles"])]
failed = {"failed": True, "msg": "it is stuck"}
roles = {n: failed if n == "b" else {"changed": n == "a"} for n in names}
module.exit_json(changed=True, ahead={}, roles=roles)
"""
PLAYBOOK = """\
- hosts: localhost
  gather_facts: false
  vars:
    settle_together: [a, b]
    preflight_plan: {roles: {a: '{"role": "a", "settings": []}', b: '{"role": "b", "settings": []}'}}
  tasks:
    - {settle: {role: a}, tags: [a]}
    - {settle: {role: b}, tags: [b]}
"""


@pytest.mark.component
def test_ansible_keeps_results_between_tasks_and_shows_warnings(tmp_path: Path) -> None:
    (tmp_path / "library").mkdir()
    (tmp_path / "ansible.cfg").touch()
    (tmp_path / "library/node_settings.py").write_text(MODULE)
    (tmp_path / "play.yml").write_text(PLAYBOOK)
    environment = {
        "ANSIBLE_CONFIG": str(tmp_path / "ansible.cfg"),
        "ANSIBLE_ACTION_PLUGINS": str(ROOT / "plugins/action"),
        "ANSIBLE_LIBRARY": str(tmp_path / "library"),
        "ANSIBLE_INJECT_FACT_VARS": "false",
    }
    here = ["-i", "localhost,", "-c", "local", "-e", f"ansible_python_interpreter={sys.executable}"]
    done = ansible("playbook", *here, str(tmp_path / "play.yml"), environment=environment)
    assert "it is stuck" in done.stdout + done.stderr, done.stdout + done.stderr
    assert "changed=1" in done.stdout
    assert "failed=1" in done.stdout
    assert (done.stdout + done.stderr).count("mind it") == 1
