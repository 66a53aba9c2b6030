"""What the playbook does with the nodes' evidence: the role's own tasks, run by Ansible."""

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.ansible_commands import ansible
from tests.unit.validation.test_autotune import evidence_of
from validation.model.contract import dumps
from validation.processes.pool import ROOT

pytestmark = pytest.mark.component

TASKS = ROOT / "roles" / "gpu_validation" / "tasks" / "autotune.yml"


def failed(folder: Path, name: str, nodes: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Run one of the role's tasks, or blocks; returns the message of each node that failed."""
    (task,) = [task for task in yaml.safe_load(TASKS.read_text()) if task["name"] == name]
    play = {"name": name, "hosts": "all", "gather_facts": False, "tasks": [task]}
    (folder / "play.yml").write_text(yaml.safe_dump([play]))
    values = {
        "gpu_validation_reports_directory": str(folder / "reports"),
        "__gpu_validation_checkout": str(ROOT),
        "ansible_python_interpreter": sys.executable,
        "ansible_connection": "local",
    }
    inventory = folder / "hosts.yml"
    inventory.write_text(yaml.safe_dump({"all": {"hosts": dict(nodes), "vars": values}}))
    said = ansible("playbook", "-i", str(inventory), str(folder / "play.yml")).stdout
    assert set(re.findall(r"^(\w+) +: ok=", said, flags=re.MULTILINE)) == set(nodes), said
    fatal = re.findall(r"^fatal: \[(\w+)[^=]*=> ?((?:\n +.*)+)", said, flags=re.MULTILINE)
    return {node: yaml.safe_load(result)["msg"] for node, result in fatal}


def test_evidence_becomes_a_proposal_that_ansible_reads_or_a_reason(tmp_path: Path) -> None:
    evidence = evidence_of(("omp_num_threads", "2"))
    won = {"__gpu_validation_run": {"stdout": dumps(evidence), "rc": 0}}
    broke = {"stdout": "", "rc": 2, "stderr": "validation: GPU 0 is in use by train"}
    target = tmp_path / "host_vars/node03/temper-autotune.yml"
    target.parent.mkdir(parents=True)
    target.write_text("mine: 1\n")
    nodes = {"node01": won, "node02": {"__gpu_validation_run": broke}, "node03": won}
    found = failed(tmp_path, "Propose the winners", nodes)
    assert found.keys() == {"node02", "node03"}
    assert "GPU 0 is in use by train" in found["node02"]
    assert "stays as it is" in found["node03"]
    assert target.read_text() == "mine: 1\n"
    assert not (tmp_path / "host_vars/node02").exists()
    assert json.loads((tmp_path / "reports/autotune/node01.json").read_text()) == json.loads(dumps(evidence))
    known = json.loads(ansible("inventory", "-i", f"{tmp_path}/hosts.yml", "--host", "node01").stdout)
    assert known["compute_environment_omp_num_threads"] == 2


def test_a_variable_that_there_is_not_is_refused_before_anything_is_tried(tmp_path: Path) -> None:
    nodes: dict[str, dict[str, Any]] = {
        "none": {},
        "known": {"autotune_knobs": ["omp_num_threads"], "autotune_minutes": 5, "autotune_directory": "x"},
        "another": {"autotune_minute": 5},
        "no_list": {"autotune_knobs": "omp_num_threads"},
    }
    found = failed(tmp_path, "Refuse variables that this playbook does not have", nodes)
    assert found.keys() == {"another", "no_list"}
    assert [node for node in found if f"{next(iter(nodes[node]))}: expected one of" not in found[node]] == []
