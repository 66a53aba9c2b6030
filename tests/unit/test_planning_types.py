"""Functions of temper/plan/ pass typed values to each other; node_facts, tables and data classes agree."""

from __future__ import annotations

import ast
import shutil
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import node_facts
import pytest

from temper.plan.distributions import FAMILIES
from temper.plan.distributions.debian import Debian
from temper.plan.facts import NodeFacts
from temper.plan.tables import Tables, load_tables
from tests.unit.each import each
from tests.unit.planning_nodes import node, plan
from tests.unit.tables import ROOT, tables

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Where YAML and JSON come in and go out, and what tells `build` the type of a field.
BORDERS = {"from_dict", "from_fact", "as_dict", "as_fact", "plain", "read_yaml"}
UNTYPED_FILES = {
    "role_variables.py": "an inventory's values are of any type until they are checked there",
    "value_types.py": "likewise, with the options of an entry",
    "inventory.py": "what ansible-inventory prints, before its values are checked",
    "extra_vars.py": "likewise what the command line gives",
}
UNTYPED_FUNCTIONS = {
    # data/os_controls is as YAML has it.
    "os_controls.py": {
        *("add", "alone", "demand_of", "demanded", "hardening", "load_controls", "profile_of", "references"),
        *("settings_of", "waived_controls", "waiver_of", "waiver_problems"),
        *("on_system", "merged", "concerns", "condition_of", "lacking"),
    },
    "os_systems.py": {"numbers_of", "whole"},
    "programs.py": {"waived"},
    # The content of data/gpu_models.yml, of which validation knows the fields, and the rows that others add.
    "expectation.py": {"expectation", "as_limited"},
    "tables.py": {"load_models", "chip_models"},
    # What several runs hand to one controller.
    "fleet.py": {"part", "merged"},
    # What Ansible notes beside a value.
    "origin.py": {"shown", "stands_at"},
    # What Ansible collects and keeps.
    "node_plan.py": {"refused"},
    "preflight.py": {"located", "preflight_plan", "preview_arguments"},
    "ssh_client.py": {"of", "look_at", "look_on_the_way", "connections"},
    "node_action.py": {"__init__", "__getitem__", "raw", "run", "ask", "own", "known", "unseen"},
    "mirror_list.py": {"downloads", "mirror_list", "in_order", "size"},
    # What a node's modules answer, and what Ansible gets of it.
    "module_answers.py": {"as_result", "role_answers", "warnings", "failure", "node_facts", "reason"},
}


def untyped(source: str) -> Iterator[str]:
    """The functions that take or return a mapping of anything, or anything."""
    for found in ast.walk(ast.parse(source)):
        if not isinstance(found, ast.FunctionDef) or found.name in BORDERS:
            continue
        every = [*found.args.posonlyargs, *found.args.args, *found.args.kwonlyargs]
        hints = [found.returns, *(argument.annotation for argument in every)]
        if any(
            isinstance(part, ast.Name) and part.id == "Any"
            for hint in hints
            if hint
            for part in ast.walk(hint)
        ):
            yield found.name


@each(*[path for path in sorted((ROOT / "temper/plan").rglob("*.py")) if path.name not in UNTYPED_FILES])
def test_functions_pass_typed_values(path: Path) -> None:
    found = set(untyped(path.read_text(encoding="utf-8")))
    assert found == UNTYPED_FUNCTIONS.get(path.name, set())


def test_a_function_that_takes_anything_is_found() -> None:
    assert list(untyped("def f(plan: Mapping[str, Any]) -> None: ...")) == ["f"]


@pytest.mark.component
def test_facts_have_what_the_module_reports(tmp_path: Path) -> None:
    reported = node_facts.gather(tmp_path)
    assert reported.keys() == {field.name for field in fields(NodeFacts)}
    assert NodeFacts.from_dict(reported).architecture == reported["architecture"]


@each(
    ({"kernel": {"release": "6"}}, "node_facts.kernel: expected the key headers_present"),
    ({"secure_boot": None}, "node_facts.secure_boot: expected str, found None"),
    ({"disks": [{"path": "/", "total_bytes": "1", "free_bytes": 1}]}, r"disks\[0\].total_bytes"),
    ({"clock_s": -1.0}, "clock_s"),
    ({"clock_s": float("inf")}, "clock_s"),
    ({"clock_s": float("nan")}, "clock_s"),
    ({"nvlink_switch_managed": 1}, "node_facts.nvlink_switch_managed: expected bool, found 1"),
    ({"memory_bytes": True}, "node_facts.memory_bytes: expected int, found True"),
)
def test_facts_of_another_form_are_refused_by_name(change: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        NodeFacts.from_dict(node(**change))


def test_a_row_without_a_column_is_refused_by_name() -> None:
    data = tables()
    del data["nvidia_stacks"]["r580-cuda13.0"]["nccl_package"]
    with pytest.raises(ValueError, match=r"stacks\.r580-cuda13\.0: expected the key nccl_package"):
        Tables.from_dict(data)


def test_the_tables_of_a_folder_are_read_once(tmp_path: Path) -> None:
    for path in (ROOT / "data").glob("*.yml"):
        shutil.copy(path, tmp_path)
    first = load_tables(tmp_path)
    shutil.rmtree(tmp_path)
    assert load_tables(tmp_path) is first


def test_a_release_is_one_row() -> None:
    """What CONTRIBUTING says of a new release."""
    data = tables()
    row = data["nvidia_distributions"]["ubuntu-24.04"]
    data["nvidia_distributions"]["ubuntu-28.04"] = row | {"repository": "ubuntu2804"}
    facts = node(os={"id": "ubuntu", "version_id": "28.04", "codename": "", "pretty_name": "Ubuntu 28.04"})
    found = plan(facts, data=data)
    assert found["problems"] == []
    assert "/ubuntu2804/" in found["repositories"][0]["uri"]


def test_a_family_is_one_class_and_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """What CONTRIBUTING says of a new family."""

    class Other(Debian):
        def headers(self, kernel: str) -> dict[str, str]:
            return {"other-headers": kernel}

    monkeypatch.setitem(FAMILIES, "other", Other)
    data = tables()
    row = data["nvidia_distributions"]["debian-12"]
    data["nvidia_distributions"]["other-1"] = row | {"family": "other", "repository": "other1"}
    for stack in data["nvidia_stacks"].values():
        stack["driver_package"]["other"] = stack["driver_package"]["debian"]
    kernel = node()["kernel"] | {"headers_present": False}
    os = {"id": "other", "version_id": "1", "codename": "", "pretty_name": "Other 1"}
    found = plan(node(os=os, kernel=kernel), data=data)
    assert found["problems"] == []
    assert found["present"]["other-headers"] == "6.1.0-37-amd64"
