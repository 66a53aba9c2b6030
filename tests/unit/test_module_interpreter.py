"""`ansible_python_interpreter` names the Python of every module, as operators expect and as documented."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.component

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted(path.stem for path in (ROOT / "library").glob("*.py"))
# Stands for a Python: notes the module that it is to run, and runs nothing.
PYTHON = """\
#!/bin/sh
echo "$1" >>{log}
echo '{{"changed": false}}'
"""


def test_every_module_runs_with_the_python_that_the_inventory_names(tmp_path: Path) -> None:
    python, log, play = (tmp_path / name for name in ("another-python", "log", "play.json"))
    python.write_text(PYTHON.format(log=log))
    python.chmod(0o755)
    tasks: list[dict[str, dict[str, str]]] = [{name: {}} for name in MODULES]
    play.write_text(json.dumps([{"hosts": "localhost", "gather_facts": False, "tasks": tasks}]))
    program = str(Path(sys.executable).with_name("ansible-playbook"))
    options = ["-i", "localhost,", "-c", "local", "-e", f"ansible_python_interpreter={python}"]
    done = subprocess.run(
        [program, *options, str(play)],
        env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    ran = [Path(line).stem.replace("AnsiballZ_", "") for line in log.read_text().splitlines()]
    assert ran == MODULES
