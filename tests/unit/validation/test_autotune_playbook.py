"""What the playbook does with a node's evidence: the role's own tasks, run by Ansible."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.unit.validation.test_autotune import evidence_of
from validation.model.contract import dumps
from validation.processes.pool import ROOT

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.component

TASKS = ROOT / "roles" / "gpu_validation" / "tasks" / "autotune.yml"


def propose(folder: Path, run: dict[str, object]) -> subprocess.CompletedProcess[str]:
    """Run the last tasks of the role on what the payload brought home, with an inventory in this folder."""
    return carry_out(folder, "Propose what wins", __gpu_validation_run=run)


def carry_out(folder: Path, name: str, **variables: object) -> subprocess.CompletedProcess[str]:
    """Run one of the role's tasks, or blocks, with an inventory in this folder."""
    (task,) = [task for task in yaml.safe_load(TASKS.read_text()) if task["name"] == name]
    play = {"name": name, "hosts": "all", "gather_facts": False, "tasks": [task]}
    (folder / "play.yml").write_text(yaml.safe_dump([play]))
    values = {
        "gpu_validation_reports_directory": str(folder / "reports"),
        "__gpu_validation_checkout": str(ROOT),
        "ansible_python_interpreter": sys.executable,
        "ansible_connection": "local",
        **variables,
    }
    inventory = folder / "hosts.yml"
    inventory.write_text(yaml.safe_dump({"all": {"hosts": {"node01": {}}, "vars": values}}))
    command = [sys.executable, "-m", "ansible", "playbook", "-i", str(inventory), str(folder / "play.yml")]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120)


def test_evidence_is_kept_and_the_proposal_is_where_ansible_reads_it(tmp_path: Path) -> None:
    evidence = evidence_of(("omp_num_threads", "2"))
    done = propose(tmp_path, {"stdout": dumps(evidence), "rc": 0})
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((tmp_path / "reports/autotune/node01.json").read_text()) == json.loads(dumps(evidence))
    command = [
        sys.executable,
        "-m",
        "ansible",
        "inventory",
        "-i",
        str(tmp_path / "hosts.yml"),
        "--host",
        "node01",
    ]
    known = json.loads(subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120).stdout)
    assert known["compute_environment_omp_num_threads"] == 2


@pytest.mark.parametrize("trouble", ["a run that failed", "a file of the operator"])
def test_what_is_in_the_way_fails_the_node_with_its_reason(tmp_path: Path, trouble: str) -> None:
    target = tmp_path / "host_vars/node01/temper-autotune.yml"
    run: dict[str, object] = {"stdout": "", "rc": 2, "stderr": "validation: GPU 0 is in use by train"}
    words = "GPU 0 is in use by train"
    if trouble == "a file of the operator":
        target.parent.mkdir(parents=True)
        target.write_text("mine: 1\n")
        run, words = {"stdout": dumps(evidence_of(("omp_num_threads", "2"))), "rc": 0}, "stays as it is"
    done = propose(tmp_path, run)
    assert done.returncode != 0
    assert words in done.stdout
    assert not target.exists() or target.read_text() == "mine: 1\n"


@pytest.mark.parametrize(
    ("given", "refused"),
    [
        ({}, False),
        ({"autotune_knobs": ["omp_num_threads"], "autotune_minutes": 5, "autotune_directory": "x"}, False),
        ({"autotune_minute": 5}, True),
        ({"autotune_knobs": "omp_num_threads"}, True),
    ],
)
def test_a_variable_that_there_is_not_is_refused_before_anything_is_tried(
    tmp_path: Path, given: dict[str, object], refused: bool
) -> None:
    done = carry_out(tmp_path, "Refuse variables that this playbook does not have", **given)
    assert bool(done.returncode) is refused, done.stdout + done.stderr
    if refused:
        assert f"{next(iter(given))}: expected one of" in done.stdout
