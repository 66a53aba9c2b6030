"""Traces that do not arrive on the controller cost nobody a result: the role's own tasks, run by Ansible."""

import sys
from pathlib import Path

import pytest
import yaml

from tests.unit.ansible_commands import ansible

pytestmark = pytest.mark.component

ROOT = Path(__file__).parents[3]
TASKS = ROOT / "roles" / "gpu_validation" / "tasks" / "measure.yml"


def test_a_node_whose_traces_cannot_be_fetched_keeps_its_result(tmp_path: Path) -> None:
    (block,) = [
        task
        for task in yaml.safe_load(TASKS.read_text())
        if task["name"] == "Fetch the traces to the controller"
    ]
    went_on = {"name": "Go on", "ansible.builtin.debug": {"msg": "{{ inventory_hostname }} goes on"}}
    play = {"name": "Fetch", "hosts": "all", "gather_facts": False, "tasks": [block, went_on]}
    (tmp_path / "play.yml").write_text(yaml.safe_dump([play]))
    shared = {
        "gpu_validation_traces": True,
        "gpu_validation_reports_directory": "reports",
        "__gpu_validation_checkout": str(tmp_path),
        "__gpu_validation_run": {},
        "__gpu_validation_traces": str(tmp_path / "traces"),
        "ansible_python_interpreter": sys.executable,
        "ansible_connection": "local",
    }
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "trace-cpu.json.gz").write_bytes(b"trace")
    nodes = {
        # Without a Python every task on it fails.
        "stuck": {"ansible_python_interpreter": "/nowhere/python3"},
        "gone": {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1},
        "well": {},
    }
    inventory = tmp_path / "inventory.yml"
    inventory.write_text(yaml.safe_dump({"all": {"vars": shared, "hosts": nodes}}))
    run = ansible("playbook", str(tmp_path / "play.yml"), f"--inventory={inventory}")
    said = run.stdout + run.stderr
    assert [node for node in nodes if f"{node} goes on" not in said] == [], said
    assert "The traces of stuck could not be fetched from " in said
    assert (tmp_path / "reports" / "traces" / "well" / "trace-cpu.json.gz").read_bytes() == b"trace"
    assert not (tmp_path / "traces").exists()
