"""What follows from a check's description of itself, and the recipe of CONTRIBUTING.md to add one."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.unit.each import each
from tools import check_docs
from validation.checks.registry import CHECKS, PROVE_A_GPU, TESTS
from validation.model.plans import PLANS
from validation.processes.pool import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from validation.checks.check import Check

#: The parts of the tree that the recipe speaks of.
PARTS = (
    *("validation", "tools", "data", "roles/gpu_validation"),
    *("docs/operate/validation.md", "docs/reference/findings.md", "docs/reference/xids.md"),
)
#: The parts of `make docs` that read checks and findings.
GENERATORS = ("tools.check_docs", "tools.finding_docs")
SPECS = "roles/gpu_validation/meta/argument_specs.yml"
SOURCE = '''
"""How long this machine takes to count."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from validation.checks.check import Check, Scope
from validation.checks.check import CostStep, IdleNode
from validation.checks.measured import result
from validation.findings.catalogue import finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from validation.checks.node import Node
    from validation.model.contract import TestResult


class Counting(Check):
    """Counts to a million."""

    id = "counting"
    title = "counting on the CPU"
    place = 130
    scope = Scope.CPU
    plans = ("quick",)
    passes = "it takes less than an hour"

    def cost(self, idle: IdleNode) -> Iterator[Step]:
        """How long it takes."""
        yield CostStep("count", 0.5)

    def perform(self, node: Node) -> TestResult:
        """Count on this node."""
        started = time.monotonic()
        total = sum(range(1_000_000))
        hours = (time.monotonic() - started) / 3600
        slow = [finding("counting-slow", hours=hours, total=total)] if hours > 1 else []
        return result(self, findings=slow)
'''
ENTRY = """
counting-slow:
  title: It counts slowly
  meaning: It counts
  causes: [a slow CPU]
  severity: fail
  sentence: it took {hours:.1f} h to find {total}
  remedy: [wait]
  machine_action: none
"""


def contents(tree: Path) -> dict[str, bytes]:
    """All files of a tree but what Python compiles."""
    return {
        path.relative_to(tree).as_posix(): path.read_bytes()
        for path in tree.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }


def python(tree: Path, *arguments: object) -> str:
    """What a program says that must succeed."""
    done = subprocess.run(
        [sys.executable, *map(str, arguments)], cwd=tree, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree in which nothing is new but the file of a check and the entry of its finding."""
    return with_one_more(tmp_path_factory.mktemp("tree"))


@pytest.fixture(scope="module")
def documented(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, after `make docs`."""
    tree = with_one_more(tmp_path_factory.mktemp("documented"))
    for generator in GENERATORS:
        python(tree, "-m", generator)
    return tree


def with_one_more(tree: Path) -> Path:
    """Copy what the recipe speaks of, and write by hand what it asks for."""
    for part in PARTS:
        (tree / part).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, tree / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / part, tree / part)
    (tree / "validation/checks/counting.py").write_text(SOURCE.lstrip())
    with (tree / "data/findings/tests.yml").open("a") as entries:
        entries.write(ENTRY)
    return tree


@pytest.mark.component
def test_a_new_check_is_known_and_runs_in_its_place(tree: Path) -> None:
    listing = python(tree, "-m", "validation", "list")
    names = re.findall(r"^  (\w+) ", listing.partition("Plans:")[0], re.MULTILINE)
    assert names == [*TESTS[: names.index("counting")], "counting", *TESTS[names.index("counting") :]]
    assert names[names.index("counting") - 1] == "cpu_all_reduce"
    assert "standard        about 28 minutes on eight GPUs, 5 for each storage path" in listing
    assert "(without tensorflow, egl, counting, gpu_corruption)" in listing
    result = json.loads(python(tree, "-m", "validation", "run", "--test=counting", "--output=-"))
    assert [(test["id"], test["state"]) for test in result["tests"]] == [("counting", "pass")]


@pytest.mark.component
def test_a_new_check_and_its_finding_are_in_the_one_file_build(documented: Path, tmp_path: Path) -> None:
    python(documented, "-m", "validation", "build", "--output", tmp_path / "payload.pyz")
    assert "counting on the CPU" in python(tmp_path, "payload.pyz", "list")
    assert "It counts slowly" in python(tmp_path, "payload.pyz", "explain", "counting-slow")


@pytest.mark.component
def test_a_new_check_is_in_plan_and_estimate(tree: Path) -> None:
    program = """
from validation.checks.registry import in_plan
from validation.model.plans import PLANS
from validation.model.plans import NO_OPTIONS
from tools import check_docs
print([name for name in PLANS if "counting" in in_plan(name, NO_OPTIONS)])
print(check_docs.rows(PLANS["quick"])["counting"])
"""
    assert python(tree, "-c", program) == "['quick']\n(0.5, 'count 0.5')\n"


@pytest.mark.component
def test_make_docs_writes_a_new_check_where_people_inventories_and_nodes_look(
    tree: Path, documented: Path
) -> None:
    before, after = contents(tree), contents(documented)
    assert {name for name in after if after[name] != before.get(name)} == {
        "docs/operate/validation.md",
        "docs/reference/findings.md",
        "validation/findings/catalogue.json",
        SPECS,
    }
    page = after["docs/operate/validation.md"].decode()
    row = "| `counting` | CPU | Counts to a million. Not in `standard` and `burn-in`. | nothing | it takes "
    assert row in page
    assert "| `counting` | 0.5 | count 0.5 |" in page
    assert "counting" in required_tests(after[SPECS].decode())["choices"]
    findings = after["docs/reference/findings.md"].decode()
    assert "| `counting-slow` | It counts slowly | fail | wait | none |" in findings


def required_tests(specs: str) -> dict[str, Any]:
    """The option that names tests."""
    option: dict[str, Any] = yaml.safe_load(specs)["argument_specs"]["main"]["options"][
        "gpu_validation_required_tests"
    ]
    return option


def test_the_role_offers_every_test_and_requires_those_that_prove_a_gpu() -> None:
    option = required_tests((ROOT / SPECS).read_text())
    assert (option["choices"], option["default"]) == (list(TESTS), list(PROVE_A_GPU))


def test_the_role_offers_every_plan() -> None:
    options = yaml.safe_load((ROOT / SPECS).read_text())["argument_specs"]["main"]["options"]
    assert options["gpu_validation_plan"]["choices"] == list(PLANS)


@each(*CHECKS.values())
def test_a_check_says_all_that_others_need(check: Check) -> None:
    assert check.__doc__
    assert check.title
    assert check.passes
    assert not check.passes.endswith(".")
    assert {*check.plans} <= PLANS.keys()
    assert check.scope.value


def test_every_check_has_a_place_of_its_own() -> None:
    places = [check.place for check in CHECKS.values()]
    assert places == sorted(set(places))


@each(*PLANS.values())
def test_the_budget_of_a_test_is_more_than_twice_what_it_costs(plan: Any) -> None:
    costs = {test: seconds for test, (seconds, _) in check_docs.rows(plan).items()}
    assert {test: cost for test, cost in costs.items() if not 0 < 2 * cost < plan.budget_s} == {}


def test_a_plan_without_its_own_tests_costs_nothing() -> None:
    assert check_docs.rows(dataclasses.replace(PLANS["quick"], name="none")) == {}
