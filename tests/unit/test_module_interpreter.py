"""`ansible_python_interpreter` names the Python of every module, as operators expect and as documented."""

import json
from pathlib import Path

import pytest

from tests.unit.ansible_commands import ansible
from tests.unit.executables import executable

pytestmark = pytest.mark.component

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted((ROOT / "library").glob("*.py"))
# Stands for a Python: notes the module that it is to run, and runs nothing.
PYTHON = """\
#!/bin/sh
echo "$1" >>{log}
echo '{{"changed": false}}'
"""


def test_every_module_runs_with_the_python_that_the_inventory_names(tmp_path: Path) -> None:
    """Ansible replaces the name in a module's first line, which is the same in all of them."""
    lines = {path.read_text().partition("\n")[0] for path in MODULES}
    assert lines == {"#!/usr/bin/python"}
    python, log, play = (tmp_path / name for name in ("another-python", "log", "play.json"))
    executable(python, PYTHON.format(log=log))
    one = {"hosts": "localhost", "gather_facts": False, "tasks": [{"node_facts": None}]}
    play.write_text(json.dumps([one]))
    here = ["-i", "localhost,", "-c", "local", "-e", f"ansible_python_interpreter={python}"]
    done = ansible("playbook", *here, str(play))
    assert done.returncode == 0, done.stdout + done.stderr
    assert Path(log.read_text().strip()).name == "AnsiballZ_node_facts.py"
