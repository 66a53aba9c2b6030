"""The recipes of CONTRIBUTING: one file is changed in a copy of the tree, and everything else follows."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from temper.plan.node_plan import NodePlan
from temper.plan.wanted import Kind
from tests.unit.planning_nodes import gpus, node
from tests.unit.tables import ROOT
from tests.unit.validation.samples import measurement, node_result, one_test
from validation.model.contract import State
from validation.model.expectations import References
from validation.verdict.judge import judge_node

if TYPE_CHECKING:
    from pathlib import Path

    from temper.plan.node_plan import PlannedSetting
    from validation.verdict.verdicts import NodeVerdict

pytestmark = pytest.mark.component

CODE = (
    *("library", "module_utils", "plugins", "roles", "temper"),
    *("tools", "validation"),
)
PARTS = (*CODE, "data", "docs", "tests/unit", "tests/conftest.py", "tests/waiting.py", "pyproject.toml")

NEW_ID, NEW_CHIPS_ID = "2fff", "2ffe"
NEW_MODEL = f"""
  h300_sxm:
    name: H300 SXM
    product_names: [NVIDIA H300]
    pci_ids: ["{NEW_ID}"]
    pci_source: kernel_modules
    architecture: hopper
    compute_capability: "9.0"
    chip: gh100
    brand: data_center
    form_factor: sxm
    nvswitch_system_possible: true
    pcie: {{generation: 5, width: 16, source: ml_engineering}}
    peak:
      bf16_tflops: {{value: 1200, source: ml_engineering}}
    measured:
      bf16_tflops: {{value: 1000, source: gpu_benchmark, shape: [8192, 8192, 8192]}}
    floor:
      bf16_tflops: {{value: 920, source: temper_floor, shape: [8192, 8192, 8192]}}
"""
NEW_CHIP = f"""
  gb299:
    architecture: blackwell
    compute_capability: "12.0"
    gpus:
      NVIDIA RTX NEW: "{NEW_CHIPS_ID}"
"""
NEW_CONTROL = """
  new-control:
    title: Nobody learns where the kernel is
    level: 0
    anssi: [R99]
    why: Addresses help an attacker.
    profiles:
      gpu:
        sysctls: {kernel.new_parameter: 1}
        files:
          /etc/temper/new-control.conf: |
            # Managed by Temper.
            strict = no
      cis-level2:
        sysctls: {kernel.new_parameter: 2}
        files:
          /etc/temper/new-control.conf: |
            # Managed by Temper.
            strict = yes
    waivers:
      gpu: Profilers read addresses.
"""

NEW_ORDER = "    kernel.new_parameter: at least\n"
#: Inventories with the control as two profiles have it, and without.
CONTROLLED: tuple[dict[str, Any], ...] = (
    {},
    {"os_hardening_profile": "cis-level2"},
    {"os_hardening_waivers": [{"id": "new-control", "reason": "We debug."}]},
)

PLAN = """
import json, sys
from temper.plan.preflight import preflight_plan
known = {"address": "192.0.2.7", "user": "root", "today": "2026-11-21"}
nodes = [({"ansible_facts": {"temper": facts}}, variables) for facts, variables in json.load(sys.stdin)]
print(json.dumps([preflight_plan(result, variables, known) for result, variables in nodes]))
"""
CARRIED = """
import json
from validation.model import gpu_models
from validation.model.contract import encode
print(json.dumps(encode(gpu_models.available())))
"""


class Checkout:
    """A copy of the tree. Its programs run in processes of their own: this one has read the data already."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for part in PARTS:
            source, target = ROOT / part, root / part
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, target)
        (root / "tests" / "__init__.py").touch()

    def append(self, path: str, text: str) -> None:
        """Add to the end of one file."""
        with (self.root / path).open("a", encoding="utf-8") as file:
            file.write(text)

    def python(self, *arguments: str, given: object = None) -> str:
        """What a program of the copy prints."""
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(self.root), "LC_ALL": "C.UTF-8"}
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.root,
            env=environment,
            input=json.dumps(given),
            text=True,
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def plans(self, *nodes: tuple[dict[str, Any], dict[str, Any]]) -> list[NodePlan]:
        """The plans of nodes, each by its facts and the variables of its inventory."""
        plans = [NodePlan.from_fact(fact) for fact in json.loads(self.python("-c", PLAN, given=nodes))]
        assert [plan.problems for plan in plans] == [()] * len(nodes)
        return plans

    def holds(self, *tests: str) -> None:
        """Run tests of the copy: none of them has to be told of what is new."""
        self.python("-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A copy in which three recipes were followed."""
    made = Checkout(tmp_path_factory.mktemp("checkout"))
    made.append("data/gpu_models.yml", NEW_MODEL)
    made.append("data/gpu_ids.yml", NEW_CHIP)
    made.append("data/os_controls/kernel.yml", NEW_CONTROL)
    made.append("data/strictness.yml", NEW_ORDER)
    made.python("-m", "tools.control_docs")
    return made


@pytest.fixture(scope="module")
def plans(checkout: Checkout) -> list[NodePlan]:
    """Of nodes with the new model, with a GPU of the new chip, and with each of CONTROLLED."""
    new = [node(pci=gpus(number, number)) for number in (NEW_ID, NEW_CHIPS_ID)]
    return checkout.plans(*((facts, {}) for facts in new), *((node(), variables) for variables in CONTROLLED))


def verdict(plan: NodePlan, bf16_tflops: float) -> NodeVerdict:
    """The verdict on a node of two new GPUs that multiply so fast."""
    assert plan.expectation
    conditions: dict[str, int | str] = {"m": 8192, "n": 8192, "k": 8192}
    numbers = [measurement(value=bf16_tflops, device=gpu, conditions=conditions) for gpu in (0, 1)]
    result = node_result(one_test("gpu_matmul", State.PASS, *numbers))
    named = tuple(dataclasses.replace(gpu, name="NVIDIA H300", pci_id=NEW_ID) for gpu in result.gpus)
    expected = dataclasses.replace(plan.expectation, required_tests=())
    return judge_node("gpu01", dataclasses.replace(result, gpus=named), expected, {})


def test_a_gpu_model_is_one_entry(checkout: Checkout, plans: list[NodePlan]) -> None:
    plan = plans[0]
    (gpu,) = plan.gpus
    assert (gpu.model, gpu.name, gpu.architecture, gpu.count) == ("h300_sxm", "H300 SXM", "hopper", 2)
    assert plan.unknown_gpus == ()
    assert (plan.stack, plan.driver and plan.driver.modules) == ("r580-cuda13.0", "open")
    assert plan.locked_clocks.memory
    assert plan.expectation
    assert plan.expectation.gpu_count == 2
    entry = yaml.safe_load(NEW_MODEL)["h300_sxm"]
    assert plan.expectation.references.model_of(NEW_ID) == entry

    assert verdict(plan, 950).state is State.PASS
    slow = verdict(plan, 900)
    assert slow.state is State.FAIL
    assert "H300 SXM" in " ".join(slow.reasons)

    carried = References(**json.loads(checkout.python("-c", CARRIED)))
    assert carried.model_of(NEW_ID) == entry


def test_a_gpu_of_which_nothing_is_measured_is_one_entry(plans: list[NodePlan]) -> None:
    plan = plans[1]
    (gpu,) = plan.gpus
    assert (gpu.name, gpu.architecture, gpu.count) == ("NVIDIA RTX NEW", "blackwell", 2)
    assert plan.unknown_gpus == plan.warnings == ()
    assert plan.expectation
    assert plan.expectation.gpu_count == 2
    model = plan.expectation.references.model_of(NEW_CHIPS_ID)
    assert model
    assert (model["name"], model["compute_capability"]) == ("NVIDIA RTX NEW", "12.0")
    assert verdict(plan, 1.0).state is State.PASS


def test_the_tests_of_data_hold_what_is_new(checkout: Checkout) -> None:
    unit = ("validation/test_gpu_models.py", "test_gpu_ids.py", "harden/test_os_controls.py")
    checkout.holds(*(f"tests/unit/{path}" for path in unit))


def test_no_program_names_a_gpu_model() -> None:
    models = yaml.safe_load((ROOT / "data" / "gpu_models.yml").read_text(encoding="utf-8"))["models"]
    names = {*models, *(name for model in models.values() for name in model["product_names"])}
    for part in CODE:
        for path in (ROOT / part).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            assert [name for name in names if f'"{name}"' in text] == [], path


def new_settings(plan: NodePlan) -> dict[str, PlannedSetting]:
    """What the new control sets, by key; the file of all kernel parameters it shares with others."""
    settings = plan.role("os_hardening").settings
    return {found.key: found for found in settings if found.controls == ("new-control",)}


def assert_control_arrives(
    checkout: Checkout, relaxed: NodePlan, strict: NodePlan, taken_out: NodePlan
) -> None:
    """The settings with their control, the waivers of a profile and of the operator, and the page."""
    found = new_settings(relaxed)
    assert {(setting.kind, key) for key, setting in found.items()} == {
        (Kind.SYSCTL, "kernel.new_parameter"),
        (Kind.FILE, "/etc/temper/new-control.conf"),
    }
    assert {(setting.why, setting.waiver) for setting in found.values()} == {
        ("Nobody learns where the kernel is", "Profilers read addresses.")
    }
    assert (found["kernel.new_parameter"].wanted, found["kernel.new_parameter"].order) == ("1", "at least")
    (waived,) = (waived for waived in relaxed.waived if waived.id == "new-control")
    assert (waived.reason, waived.by) == ("Profilers read addresses.", "the profile gpu")

    assert new_settings(strict)["kernel.new_parameter"].wanted == "2"
    assert "new-control" not in [waived.id for waived in strict.waived]

    assert new_settings(taken_out) == {}
    (waived,) = (waived for waived in taken_out.waived if waived.id == "new-control")
    assert (waived.reason, waived.by) == ("We debug.", "the operator")

    page = (checkout.root / "docs/reference/os_hardening.md").read_text(encoding="utf-8")
    assert "### new-control\n\nNobody learns where the kernel is (ANSSI R99;" in page


def test_a_control_is_one_entry(checkout: Checkout, plans: list[NodePlan]) -> None:
    assert_control_arrives(checkout, *plans[2:])


@pytest.mark.nightly
def test_an_area_of_controls_is_one_file(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path)
    area = textwrap.dedent("""\
        ---
        heading: A new area
        os_controls:
    """)
    checkout.append("data/os_controls/new.yml", area + NEW_CONTROL)
    checkout.append("data/strictness.yml", NEW_ORDER)
    checkout.python("-m", "tools.control_docs")
    assert_control_arrives(checkout, *checkout.plans(*((node(), variables) for variables in CONTROLLED)))
    checkout.holds("tests/unit/harden/test_os_controls.py")
    assert "\n## A new area\n" in (checkout.root / "docs/reference/os_hardening.md").read_text(
        encoding="utf-8"
    )
