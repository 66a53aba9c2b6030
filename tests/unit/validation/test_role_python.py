"""The tasks that install the payload's torch: what root runs, and who can read what it is given."""

import json
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.ansible_commands import ansible
from tests.unit.executables import executable

ROOT = Path(__file__).resolve().parents[3]
PLAYBOOK = """\
- hosts: localhost
  gather_facts: false
  tasks:
    - ansible.builtin.include_tasks: {file: TASKS}
"""
# Stands for the environment's Python: notes how it is called, and fails, so that Ansible shows the command.
PYTHON = """\
#!/bin/sh
echo "$PWD" >{folder}/cwd
for word in "$@"; do echo "$word"; done >{folder}/argv
ulimit -v >{folder}/memory
[ -z "$PIP_CONFIG_FILE" ] || { stat -c %a "$PIP_CONFIG_FILE"; cat "$PIP_CONFIG_FILE"; } >{folder}/options
for word in "$@"; do case $word in --requirement=*) cat "${word#*=}" >{folder}/requirements;; esac; done
exit 1
"""
SECRET_INDEX = "https://ops:s3cret@mirror.example/whl"
pytestmark = [pytest.mark.component, pytest.mark.skipif(os.geteuid() != 0, reason="the files belong to root")]


@dataclass(frozen=True)
class Installation:
    """What the tasks have done."""

    folder: Path
    output: str

    @property
    def arguments(self) -> list[str]:
        return (self.folder / "argv").read_text().splitlines()


def install(
    folder: Path, pip_args: str = "", requirements: str = "", *, half_made: bool = False
) -> Installation:
    environment, python = folder / "venv", folder / "python"
    (environment / "bin").mkdir(parents=True)
    (environment / "pyvenv.cfg").touch()
    if not half_made:
        (environment / "bin/pip").touch()
    (folder / "ansible.cfg").touch()
    executable(python, PYTHON.replace("{folder}", str(folder)))
    play = folder / "play.yml"
    play.write_text(PLAYBOOK.replace("TASKS", str(ROOT / "roles/gpu_validation/tasks/python.yml")))
    variables = {
        "ansible_python_interpreter": sys.executable,
        "gpu_validation_python": str(python),
        "gpu_validation_pip_args": pip_args,
        "preflight_plan": {
            "payload": {"packages": [], "interpreter": sys.executable, "requirements": requirements}
        },
        "__gpu_validation_checkout": str(ROOT),
        "__gpu_validation_environment": str(environment),
        "__gpu_validation_pip_file": str(folder / "pip.conf"),
        "__gpu_validation_requirements_file": str(folder / "wanted.txt"),
        "__gpu_validation_torch": {"rc": 2, "stdout": "", "stderr": ""},
        "__gpu_validation_torch_wanted": "2.11.0",
    }
    settings = {
        "ANSIBLE_CONFIG": str(folder / "ansible.cfg"),
        "ANSIBLE_ACTION_PLUGINS": str(ROOT / "plugins/action"),
        "ANSIBLE_FILTER_PLUGINS": str(ROOT / "plugins/filter"),
        "ANSIBLE_LIBRARY": str(ROOT / "library"),
    }
    words = ["-i", "localhost,", "-c", "local", "-vvv", "-e", json.dumps(variables), str(play)]
    done = ansible("playbook", *words, environment=settings)
    return Installation(folder, done.stdout + done.stderr)


@pytest.fixture(scope="module")
def pinned(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """From an index with a password, with hashes."""
    folder = tmp_path_factory.mktemp("pinned")
    return install(folder, f"--index-url {SECRET_INDEX}", "requirements/torch/2.11.0.txt")


def test_the_password_of_an_index_is_in_no_log_and_no_process_list(pinned: Installation) -> None:
    after = pinned.output.partition("TASK [Write the options of pip]")[2]
    assert "failed=1" in after
    assert "s3cret" not in after
    assert "s3cret" not in " ".join(pinned.arguments)
    mode, *options = (pinned.folder / "options").read_text().split()
    assert (mode, options[-1]) == ("600", SECRET_INDEX)


def test_nothing_of_the_options_stays_on_the_node(pinned: Installation) -> None:
    assert not (pinned.folder / "pip.conf").exists()
    assert not (pinned.folder / "wanted.txt").exists()


def test_what_is_pinned_is_installed_with_hashes(pinned: Installation) -> None:
    assert {"--only-binary=:all:", "--require-hashes"} <= set(pinned.arguments)
    assert not any(word.startswith("torch") for word in pinned.arguments)
    wanted = (ROOT / "requirements/torch/2.11.0.txt").read_text()
    assert (pinned.folder / "requirements").read_text() == wanted


@pytest.mark.nightly
def test_without_hashes_wheels_alone_are_installed(tmp_path: Path) -> None:
    found = install(tmp_path)
    assert "--only-binary=:all:" in found.arguments
    assert found.arguments[-1] == "torch==2.11.0"


def test_an_environment_that_was_made_half_way_is_completed(tmp_path: Path) -> None:
    install(tmp_path, half_made=True)
    assert (tmp_path / "venv/bin/pip").exists()


def test_an_index_that_answers_without_end_does_not_take_the_nodes_memory(pinned: Installation) -> None:
    assert int((pinned.folder / "memory").read_text()) == 16 << 20  # KiB


def test_root_imports_nothing_from_where_it_stands(pinned: Installation) -> None:
    assert pinned.arguments[0] == "-I"
    assert (pinned.folder / "cwd").read_text().strip() == "/"


def test_every_python_of_the_role_is_isolated_and_starts_in_the_root_folder() -> None:
    """But those of the controller, which work in the checkout."""
    found = 0
    for path in sorted((ROOT / "roles/gpu_validation/tasks").glob("*.yml")):
        for task in commands(yaml.safe_load(path.read_text())):
            if task.get("delegate_to") == "localhost":
                continue
            command = task["ansible.builtin.command"]
            words = str(command["argv"])
            # These two are isolated, the latter as tested above.
            assert "-I" in words or re.search(r"__gpu_validation_(program|wheels)", words), path
            assert command["chdir"] == "/", path
            found += 1
    assert found >= 7
    variables = yaml.safe_load((ROOT / "roles/gpu_validation/vars/main.yml").read_text())
    assert variables["__gpu_validation_program"][1] == "-I"


def commands(tasks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All tasks that run a command, those of blocks included."""
    found: list[dict[str, Any]] = []
    for task in tasks:
        found += [task] if "ansible.builtin.command" in task else []
        for part in ("block", "rescue", "always"):
            found += commands(task.get(part, []))
    return found
