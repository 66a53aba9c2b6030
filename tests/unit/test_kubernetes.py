"""The page for Kubernetes: its values fit each other, and what Temper does on the nodes."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from temper.plan.convert import plain
from tests.unit.planning_roles.plans import whole_plan
from tests.unit.tables import ROOT, specs

PAGE = ROOT / "docs/operate/kubernetes.md"
#: A block of YAML, named by its first line.
BLOCK = re.compile(r"^```yaml\n# ([^\n]+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RUNTIME = "nvidia"  # the name that nvidia-ctk registers with containerd and CRI-O


@pytest.fixture(scope="module")
def blocks() -> dict[str, Any]:
    """The page's blocks of YAML, by name."""
    text = PAGE.read_text(encoding="utf-8")
    found = {name: yaml.safe_load(body) for name, body in BLOCK.findall(text)}
    assert len(found) == text.count("```yaml") == 4
    return found


def test_nodes_with_the_variables_of_the_page_get_toolkit_and_runtime(blocks: dict[str, Any]) -> None:
    plan = whole_plan(**blocks["group_vars of the cluster's nodes"])
    engines = {setting.key: plain(setting.wanted) for setting in plan.role("container_engines").settings}
    assert not plan.problems
    assert "nvidia-container-toolkit" in plan.packages
    assert (engines["engines"], "default_runtime" in engines) == (["containerd"], True)


def test_the_class_stands_for_the_runtime_that_nvidia_ctk_registers(blocks: dict[str, Any]) -> None:
    found = blocks["runtime-class.yml"]
    assert (found["apiVersion"], found["kind"]) == ("node.k8s.io/v1", "RuntimeClass")
    assert found["handler"] == RUNTIME


def test_the_device_plugin_names_the_class(blocks: dict[str, Any]) -> None:
    name = blocks["runtime-class.yml"]["metadata"]["name"]
    assert blocks["device-plugin-values.yml"]["runtimeClassName"] == name


def test_the_operator_leaves_driver_toolkit_and_instances_to_us(blocks: dict[str, Any]) -> None:
    values = blocks["gpu-operator-values.yml"]
    assert [values[part]["enabled"] for part in ("driver", "toolkit", "migManager")] == [False] * 3


def test_both_charts_have_the_strategy_of_whole_gpus(blocks: dict[str, Any]) -> None:
    found = blocks["device-plugin-values.yml"]["migStrategy"], blocks["gpu-operator-values.yml"]["mig"]
    assert found == ("none", {"strategy": "none"})


def test_every_variable_that_the_page_names_is_one_of_a_role() -> None:
    options = [spec["argument_specs"]["main"]["options"] for spec in specs().values()]
    known = {name for one in options for name in one}
    prefixes = "container_engines|nvidia_stack|gpu_settings"
    named = set(re.findall(rf"\b(?:{prefixes})_\w+", PAGE.read_text(encoding="utf-8")))
    assert named
    assert named <= known
