"""The version is written once, and the table of what is supported says what the data and the pins say."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import yaml

from temper.base.version import version
from temper.plan.roles.context import OLDEST_PYTHON
from tests.unit.each import each

ROOT = Path(__file__).resolve().parents[2]
CHANGELOG = (ROOT / "CHANGELOG.md").read_text()
SUPPORT = (ROOT / "docs/reference/releases.md").read_text()
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TABLES: dict[str, Any] = yaml.safe_load((ROOT / "data/nvidia_compatibility.yml").read_text())
TORCHES = [tuple(map(int, minor.split("."))) for minor in TABLES["nvidia_torch_releases"]]
PINNED = (ROOT / "requirements/controller.txt").read_text()
KINDS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def cells(name: str) -> list[list[str]]:
    """Return the cells of the support table's rows whose first one begins with `name`."""
    rows = [line.strip("| ").split(" | ") for line in SUPPORT.splitlines() if line.startswith(f"| {name}")]
    assert rows, f"docs/reference/releases.md has no row for {name}"
    return rows


def test_changelog_project_and_programs_name_one_version() -> None:
    headings = re.findall(r"^## \[(.+?)\](?: - (\d{4}-\d\d-\d\d))?$", CHANGELOG, re.MULTILINE)
    assert len(headings) == CHANGELOG.count("\n## ")
    assert headings[0] == ("Unreleased", "")
    assert [(number, date) for number, date in headings[1:] if not date] == []
    assert headings[1][0] == PROJECT["version"] == version()


def test_changelog_has_the_kinds_of_changes_that_its_form_has() -> None:
    assert set(re.findall(r"^### (.+)$", CHANGELOG, re.MULTILINE)) - KINDS == set()


@each(*TABLES["nvidia_distributions"].items())
def test_each_system_is_told_as_tested_where_the_lab_boots_it(system: str, row: dict[str, Any]) -> None:
    family, release = system.split("-")
    told = {
        (architecture, roles)
        for systems, architectures, roles, *_ in cells({"rhel": "RHEL"}.get(family, family.capitalize()))
        if release in systems.replace(",", "").split()
        for architecture in architectures.split(", ")
    }
    assert {architecture for architecture, _ in told} >= set(row["architectures"])
    booted = {architecture for architecture, roles in told if roles == "booted in the lab"}
    # The lab's nodes are machines of the one kind that it was run on.
    assert booted == ({"x86_64"} if row["booted_in_lab"] else set())
    assert {roles for _, roles in told} <= {"booted in the lab", "tables only"}


def test_versions_of_python_ansible_and_torch_are_those_of_pins_and_data() -> None:
    (ansible_core,) = (line for line in PROJECT["dependencies"] if line.startswith("ansible-core"))
    ((_, core, core_tested),) = cells("ansible-core")
    assert core == ansible_core.removeprefix("ansible-core")
    assert f"ansible-core=={core_tested} " in PINNED
    ((_, controller, _),) = cells("Python on the controller")
    assert controller == f"{PROJECT['requires-python'].removeprefix('>=')} or newer"
    ((_, node, _),) = cells("Python on nodes")
    assert node.startswith(f"{'.'.join(map(str, OLDEST_PYTHON))} or newer; 3.10 or newer")
    ((_, torch, _),) = cells("torch on nodes")
    assert torch == " to ".join(".".join(map(str, one)) for one in (min(TORCHES), max(TORCHES)))
