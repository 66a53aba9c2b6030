"""The files for Kubernetes: what they say of planned nodes, and which nodes are not ready."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from planning.fleet import FleetPlan
from planning.kubernetes import main
from planning.node_plan import NodePlan
from tests.unit.planning_nodes import assert_says
from tests.unit.planning_roles.plans import whole_plan

if TYPE_CHECKING:
    from pathlib import Path

KUBERNETES: dict[str, Any] = {"container_engines_manage": ["containerd"]}
SMALL, LARGE = "1g.10gb", "3g.40gb"


@pytest.fixture
def plans(tmp_path: Path) -> Path:
    """Where preflight wrote its plans."""
    return tmp_path / "plan.json"


def write(path: Path, **nodes: NodePlan) -> None:
    """The file that preflight writes for these nodes."""
    fleet = FleetPlan.from_dict({name: plan.as_fact() for name, plan in nodes.items()})
    path.write_text(json.dumps(fleet.as_dict()))


def made(plans: Path) -> dict[str, Any]:
    """The files that were written, by name."""
    folder = plans.parent / "out"
    assert main([str(plans), str(folder)]) == 0
    return {path.name: yaml.safe_load(path.read_text()) for path in folder.iterdir()}


def planned(**given: Any) -> NodePlan:
    """A node of Kubernetes with these variables."""
    return whole_plan(**{**KUBERNETES, **given})


def test_pods_name_the_runtime_that_nvidia_ctk_registers(plans: Path) -> None:
    write(plans, gpu01=planned())
    found = made(plans)
    assert found["runtime-class.yml"] == {
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": "nvidia"},
        "handler": "nvidia",
    }
    assert found["device-plugin-values.yml"]["runtimeClassName"] == "nvidia"


def test_the_device_plugin_needs_no_class_where_the_runtime_is_the_default(plans: Path) -> None:
    write(plans, gpu01=planned(container_engines_default_runtime=True))
    assert "runtimeClassName" not in made(plans)["device-plugin-values.yml"]


def test_one_node_without_the_default_needs_the_class(plans: Path) -> None:
    write(plans, gpu01=planned(container_engines_default_runtime=True), gpu02=planned())
    assert made(plans)["device-plugin-values.yml"]["runtimeClassName"] == "nvidia"


def test_the_operator_leaves_driver_toolkit_and_instances_to_us(plans: Path) -> None:
    write(plans, gpu01=planned())
    values = made(plans)["gpu-operator-values.yml"]
    assert [values[part]["enabled"] for part in ("driver", "toolkit", "migManager")] == [False] * 3


@pytest.mark.parametrize(
    ("layouts", "strategy"),
    [
        ([None], "none"),
        ([{"all": "disabled"}], "none"),
        ([{"all": [LARGE, LARGE]}], "single"),
        ([{"all": [LARGE, LARGE]}, {"all": [SMALL] * 7}], "single"),
        ([{"all": [LARGE, SMALL]}], "mixed"),
        ([{"0": [LARGE, LARGE]}], "mixed"),  # the other GPUs may be whole
        ([{"all": [LARGE, LARGE]}, None], "mixed"),
        ([{"all": [LARGE, LARGE], "0": "disabled"}], "mixed"),  # one is whole
        ([{"all": [SMALL] * 7, "0": [SMALL]}], "single"),
        ([{"0": "disabled"}], "none"),
    ],
)
def test_the_strategy_follows_the_layouts(
    plans: Path, layouts: list[dict[str, Any] | None], strategy: str
) -> None:
    write(plans, **{f"gpu{index}": planned(gpu_settings_mig=one) for index, one in enumerate(layouts)})
    found = made(plans)
    assert found["device-plugin-values.yml"]["migStrategy"] == strategy
    assert found["gpu-operator-values.yml"]["mig"]["strategy"] == strategy


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        ({"container_engines_exclude": ["containerd"]}, "container_engines_exclude"),
        ({"container_engines_manage": ["docker"]}, "container_engines_manage"),
        ({"container_engines_state": "absent"}, "container_engines_state: present"),
    ],
)
def test_a_node_that_is_not_ready_is_named_with_the_remedy(
    plans: Path, capsys: pytest.CaptureFixture[str], given: dict[str, Any], remedy: str
) -> None:
    write(plans, gpu01=planned(), gpu02=planned(**given))
    assert main([str(plans), str(plans.parent / "out")]) == 1
    assert_says(capsys.readouterr().err, "gpu02: ", remedy)
    assert "gpu02" not in (plans.parent / "out/runtime-class.yml").read_text()


def test_a_node_without_the_toolkit_is_not_ready(plans: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(plans, gpu01=planned())
    document = json.loads(plans.read_text())
    del document["nodes"]["gpu01"]["packages"]["nvidia-container-toolkit"]
    plans.write_text(json.dumps(document))
    assert main([str(plans), str(plans.parent / "out")]) == 2
    assert_says(capsys.readouterr().err, "gpu01: ", "nvidia_stack_distro_container_toolkit: true")


def test_of_refused_nodes_nothing_is_written(plans: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(plans, gpu01=NodePlan(problems=("out of reach",)))
    assert main([str(plans), str(plans.parent / "out")]) == 2
    assert_says(capsys.readouterr().err, "gpu01: preflight refuses it", "no node is ready")
    assert not (plans.parent / "out").exists()


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"nodes": 3, "settings": {}}'])
def test_a_file_that_is_no_plan_is_named(plans: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    plans.write_text(text)
    assert main([str(plans), str(plans.parent / "out")]) == 2
    assert_says(capsys.readouterr().err, str(plans), "playbooks/preflight.yml")


def test_a_file_that_is_not_there_is_named(plans: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(plans), str(plans.parent / "out")]) == 2
    assert str(plans) in capsys.readouterr().err
