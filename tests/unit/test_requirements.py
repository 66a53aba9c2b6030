"""What is installed is what the requirements ask for: pinned, hashed, from wherever pip is told to look."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.unit.each import each

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENTS = ROOT / "requirements"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
WANTED = {"controller": PROJECT["project"]["dependencies"], "dev": PROJECT["dependency-groups"]["dev"]}
PIN = re.compile(r"^([a-z0-9-]+)==([^ ]+)", re.MULTILINE)
TABLES = yaml.safe_load((ROOT / "data/nvidia_compatibility.yml").read_text())
TORCHES = sorted(row["last"] for row in TABLES["nvidia_torch_releases"].values())
each_layer = each("controller", "dev")


def pins(layer: str) -> dict[str, str]:
    """Return the pinned versions by package."""
    return dict(PIN.findall((REQUIREMENTS / f"{layer}.txt").read_text()))


@each_layer
def test_every_wanted_package_is_pinned(layer: str) -> None:
    wanted = {re.split(r"[^a-z0-9-]", line.lower())[0] for line in WANTED[layer]}
    assert wanted
    assert wanted - pins(layer).keys() == set(), "run `make requirements`"


@each_layer
def test_every_pin_has_hashes_and_nothing_names_an_index(layer: str) -> None:
    text = (REQUIREMENTS / f"{layer}.txt").read_text()
    entries = re.split(r"^(?=[a-z])", text, flags=re.MULTILINE)[1:]
    assert [entry for entry in entries if "--hash=sha256:" not in entry] == []
    assert set(re.findall(r"--[a-z-]+", text)) == {"--hash"}


def test_developers_environment_holds_the_controllers_at_the_same_versions() -> None:
    assert pins("controller").items() <= pins("dev").items(), "tools/bootstrap.py installs dev.txt alone"


#: Runs what follows without what a node that pulls has not got: ansible-core is all that it needs.
ALONE = """
import runpy, sys
sys.modules |= dict.fromkeys(("ansible_runner", "ClusterShell", "paramiko"))
for path in sys.argv[1:]:
    found = runpy.run_path(path)
"""
# What compliance.yml and tune.yml load; the others do what a node does not do to itself.
ACTIONS = ("compliance_check", "compliance_report", "fleet_ways", "preflight_plan", "settle")


def alone(*paths: str, then: str = "") -> str:
    """Return what Python says after files were loaded there."""
    command = [sys.executable, "-c", ALONE + then, *(str(ROOT / path) for path in paths)]
    return subprocess.run(
        command, cwd="/", env={"PYTHONPATH": str(ROOT)}, check=True, text=True, stdout=-1
    ).stdout


@pytest.mark.component
def test_actions_load_on_a_node_that_pulls_and_has_ansible_core_alone() -> None:
    alone(*(f"plugins/action/{name}.py" for name in ACTIONS))


@pytest.mark.component
def test_look_without_paramiko_says_what_to_install() -> None:
    asked = "ask_server(SshServer('127.0.0.1', 22), ['ops'], None).problem"
    said = alone("temper/compliance/outside/ssh.py", then=f"print(eval({asked!r}, found))")
    assert "paramiko" in said
    assert "requirements/controller.txt" in said


@each(*TORCHES)
def test_everything_that_comes_with_a_torch_is_pinned_with_hashes(torch: str) -> None:
    text = (REQUIREMENTS / "torch" / f"{torch}.txt").read_text()
    entries = re.split(r"^(?=[a-z])", text, flags=re.MULTILINE)[1:]
    assert [entry for entry in entries if not re.search(r"--hash=sha256:[0-9a-f]{64}", entry)] == []
    found = PIN.findall(text)
    assert ("torch", torch) in found
    assert {"sympy", "filelock", "triton"} <= {name for name, _ in found}
    assert set(re.findall(r"--[a-z-]+", text)) == {"--hash"}, "no index, and no option that undoes the hashes"
