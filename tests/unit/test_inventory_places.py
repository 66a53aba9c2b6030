"""A wrong value is named with file, line, entry and what was meant; what looks like ours is asked about."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar

from temper.plan.inventory import InventoryError, read
from temper.plan.node_action import TaskValues
from temper.plan.preflight import preflight_plan
from temper.plan.role_variables import role_variables
from tests.unit.ansible_commands import ansible
from tests.unit.planning_nodes import node
from tests.unit.tables import specs

#: What stands in a file of variables, the line that is named, and what the sentence says.
WRONG = [
    ("nvidia_stack_reboot_ok: maybe", 1, ["expected true or false, found 'maybe'"]),
    ("site: x\n\nnvidia_stack_reboot_ok: maybe", 3, ["nvidia_stack_reboot_ok"]),
    ("nvidia_stack_reboot_timeout_s: true", 1, ["a whole number (seconds), found True"]),
    ("nvidia_stack_reboot_timeout_s:", 1, ["found no value"]),
    ("gpu_settings_power_limit_w: lots", 1, ["expected a number (watts), found 'lots'"]),
    ("firewal_management_networks: []", 1, ["did you mean firewall_management_networks?"]),
    ("firewall_state: presen", 1, ["got: presen", "did you mean present?"]),
    ("firewall_management_networks:\n  - 10.0.0.0/8\n  - 10.1.0.0/33", 3, ["found '10.1.0.0/33'"]),
    ("gpu_validation_hours: -1", 1, ["expected hours"]),
    (
        "admin_accounts_users:\n  - name: alice\n    key: [x]",
        3,
        ["entry 1 (alice)", "no option key", "did you mean keys?"],
    ),
    (
        "firewall_rules:\n  - {name: a, sources: [x]}\n  - name: b\n    sources: []\n    protocol: tpc",
        5,
        ["entry 2 (b)", "protocol", "did you mean tcp?"],
    ),
    ("firewall_rules:\n  - name: b", 2, ["entry 1 (b)", "sources"]),
    ("container_engines_ulimits: {memlok: 5}", 1, ["no option memlok", "did you mean memlock?"]),
]
ASKED = [
    ("reboot_ok: true", ["nvidia_stack_reboot_ok"]),
    ("management_network: []", ["firewall_management_networks"]),
    ("power_limit_w: 5", ["gpu_settings_power_limit_w"]),
    # A template of its own, and a variable whose name is longer.
    ("reboot_ok: '{{ x and reboot_ok_here }}'\nx: '{{ reboot_ok_here }}'", ["nvidia_stack_reboot_ok"]),
    ("busy_ok: true", ["nvidia_stack_busy_ok", "os_tuning_busy_ok"]),
    ("firewall_management_networks: 192.0.2.0/24", ["expected a list", "read as ['192.0.2.0/24']"]),
    ("firewall_management_networks: 192.0.2.0/24,::/0", ["read as ['192.0.2.0/24', '::/0']"]),
]


def checked(text: str, folder: Path) -> dict[str, list[str]]:
    path = folder / "gpu_nodes.yml"
    path.write_text(text, encoding="utf-8")
    found: dict[str, list[str]] = role_variables(DataLoader().load_from_file(str(path)), specs())
    return found


def test_a_wrong_value_is_named_with_its_file_and_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    wrong = []
    for text, line, words in WRONG:
        found = checked(text, tmp_path)["problems"]
        place = f" (gpu_nodes.yml:{line})"
        if len(found) != 1 or not found[0].endswith(place) or not all(word in found[0] for word in words):
            wrong.append((text, found))
    assert not wrong


def test_a_stack_that_there_is_not_is_named_with_its_line_and_the_nearest(tmp_path: Path) -> None:
    path = tmp_path / "all.yml"
    path.write_text("\nnvidia_stack_name: r580-cuda13.1\n")
    values = DataLoader().load_from_file(str(path))
    known = {"address": "192.0.2.7", "user": "ops", "today": ""}
    (problem,) = preflight_plan({"ansible_facts": {"temper": node()}}, values, known)["problems"]
    assert f"({path}:2)" in problem
    assert problem.endswith("did you mean r580-cuda13.0?")


def test_a_template_that_cannot_be_evaluated_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "all.yml"
    path.write_text("\nfirewall_management_networks: '{{ my_nets }}'\n")
    own = DataLoader().load_from_file(str(path), trusted_as_template=True)
    variables = {"inventory_hostname": "n", "hostvars": {"n": own}, **own}
    values = TaskValues(variables, Templar(DataLoader(), variables=variables))
    (problem,) = role_variables(values, specs())["problems"]
    assert "'my_nets' is undefined" in problem
    assert problem.endswith(f"({path}:2)")


def test_elsewhere_the_whole_path_is_named(tmp_path: Path) -> None:
    (problem,) = checked("nvidia_stack_reboot_ok: maybe", tmp_path)["problems"]
    assert problem.endswith(f" ({tmp_path}/gpu_nodes.yml:1)")


def test_a_line_that_another_file_overrides_is_not_named(tmp_path: Path) -> None:
    variables = DataLoader().load("os_tuning_nofile: 5000", file_name=str(tmp_path / "all.yml"))
    # As Ansible merges: the key stays that of the first file, and true has no origin.
    variables.update({"os_tuning_nofile": True})
    (problem,) = role_variables(variables, specs())["problems"]
    assert "found True" in problem
    assert "all.yml" not in problem


def test_what_may_be_meant_is_asked_and_refuses_nothing(tmp_path: Path) -> None:
    wrong = []
    for text, words in ASKED:
        found = checked(text, tmp_path)
        (asked,) = found["warnings"]
        if found["problems"] or ":1)" not in asked or not all(word in asked for word in words):
            wrong.append((text, found["problems"], asked))
    assert not wrong


def test_variables_of_the_operator_s_own_are_not_asked_about(tmp_path: Path) -> None:
    own = ("ansible_host", "state", "name", "rack", "site_name", "users", "profile", "plan", "__reboot_ok")
    found = checked("".join(f"{name}: x\n" for name in own), tmp_path)
    assert (found["warnings"], found["problems"]) == ([], [])


#: Values that make use of the operator's own reboot_ok.
USES = ["'{{ reboot_ok }}'", "'{% if reboot_ok %}x{% endif %}'", "[{a: 'x {{ not reboot_ok }}'}]"]


def test_variables_that_other_values_use_are_not_asked_about(tmp_path: Path) -> None:
    asked = [(use, checked(f"reboot_ok: true\nsite_name: {use}\n", tmp_path)["warnings"]) for use in USES]
    assert asked == [(use, []) for use in USES]


def test_a_task_shows_which_values_are_templates() -> None:
    variables = {"inventory_hostname": "n", "hostvars": {"n": {"a": "yes", "b": 1}}, "a": "{{ x }}", "c": 1}
    values = TaskValues(variables, SimpleNamespace(template=lambda _: "yes"))
    assert (values["a"], values.raw) == ("yes", {"a": "{{ x }}"})


#: What is no YAML, and the line that is named.
BROKEN = [("a: 1\nb:\n\tc: 1\n", 3), ("a: 1\nb: 2\na: 3\n", 3)]


@pytest.mark.component
@pytest.mark.usefixtures("forked_ansible")
def test_a_file_that_is_no_yaml_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "hosts.yml").write_text("gpu_nodes: {hosts: {gpu01: {ansible_connection: local}}}\n")
    path = tmp_path / "group_vars" / "gpu_nodes.yml"
    path.parent.mkdir()
    config = {"ANSIBLE_STDOUT_CALLBACK": "temper"}
    for text, line in BROKEN:
        path.write_text(text)
        run = ansible("playbook", "-i", str(tmp_path), "playbooks/preflight.yml", environment=config)
        assert run.returncode
        assert f"({path}:{line})" in run.stderr
        with pytest.raises(InventoryError) as error:
            read([str(tmp_path)])
        assert str(error.value).endswith(f"({path}:{line})")
