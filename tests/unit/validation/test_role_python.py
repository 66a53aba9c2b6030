"""The tasks that install the payload's torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PLAYBOOK = """\
- hosts: localhost
  gather_facts: false
  tasks:
    - ansible.builtin.include_tasks: {file: TASKS}
"""


@pytest.mark.parametrize(
    ("index", "shown"),
    [("https://ops:s3cret@mirror.example/whl", False), ("https://mirror.example/whl", True)],
    ids=["with a password", "without one"],
)
def test_the_password_of_an_index_is_in_no_log(tmp_path: Path, index: str, shown: bool) -> None:
    environment = tmp_path / "venv"
    environment.mkdir()
    (environment / "pyvenv.cfg").touch()
    (tmp_path / "ansible.cfg").touch()
    play = tmp_path / "play.yml"
    play.write_text(PLAYBOOK.replace("TASKS", str(ROOT / "roles/gpu_validation/tasks/python.yml")))
    variables = {
        "ansible_python_interpreter": sys.executable,
        # pip fails, and with it the task, which then shows its command.
        "gpu_validation_python": "/bin/false",
        "gpu_validation_pip_args": f"--index-url {index}",
        "preflight_plan": {
            "package_manager": "dnf",
            "payload": {"packages": [], "interpreter": sys.executable},
        },
        "__gpu_validation_environment": str(environment),
        "__gpu_validation_torch": {"rc": 2, "stdout": "", "stderr": ""},
        "__gpu_validation_torch_wanted": "2.11.0",
    }
    command = [str(Path(sys.executable).with_name("ansible-playbook")), "-i", "localhost,", "-c", "local"]
    done = subprocess.run(
        [*command, "-vvv", "-e", json.dumps(variables), str(play)],
        env={**os.environ, "ANSIBLE_CONFIG": str(tmp_path / "ansible.cfg")},
        capture_output=True,
        text=True,
        check=False,
    )
    after = (done.stdout + done.stderr).partition("TASK [Install torch]")[2]
    assert "failed=1" in after
    assert ("mirror.example" in after) is shown
    assert "s3cret" not in after
