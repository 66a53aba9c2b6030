"""Read a node, make its plan, and have the node simulate it: see planning/preflight.py."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleConnectionFailure, AnsibleError
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase

# Ansible loads this file by its path, so that the repository's packages are not importable by themselves.
ROOT = str(Path(__file__).resolve().parents[3])
if ROOT not in sys.path:
    sys.path.append(ROOT)

from planning.os_controls import load_controls  # noqa: E402 - needs the path above
from planning.preflight import DATA, preflight_plan, preview_arguments  # noqa: E402 - likewise
from planning.role_variables import argument_specs  # noqa: E402 - likewise
from planning.tables import load_models, load_tables  # noqa: E402 - likewise

# Ansible forks a process for each node's task, and before that imports an action in the process that all of
# them come from (a filter it does not): what is imported and read here is imported and read once a run.
argument_specs()
load_tables(DATA)
load_models(DATA)
load_controls(DATA / "os_controls")


class ActionModule(ActionBase):  # type: ignore[misc]  # Ansible ships no types
    """preflight_plan: known, simulate, payload_python. At most two executions, and nothing is changed."""

    TRANSFERS_FILES = False
    _VALID_ARGS = frozenset(("known", "simulate", "payload_python"))

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """The plan is `plan`, for the fact of this name; `reached` whether the node answered."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        self.warnings: list[str] = []
        self.reached = True
        variables = task_vars or {}
        own = variables["hostvars"][variables["inventory_hostname"]]
        known = self._task.args["known"]
        python = self._task.args["payload_python"]
        node = self.ask("node_facts", {"payload_python": python} if python else {}, variables)
        plan = preflight_plan(node, own, known)
        if boolean(self._task.args["simulate"]) and not plan["problems"] and not plan["settled"]:
            preview = self.ask("package_preview", preview_arguments(plan), variables)
            plan = preflight_plan(node, own, known, preview)
        return result | {
            "changed": False,
            "plan": plan,
            "reached": self.reached,
            "ansible_facts": node.get("ansible_facts", {}),
            "warnings": self.warnings,
        }

    def ask(self, module: str, arguments: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        """What a module returns. A node that cannot be reached has a plan, too: a problem like any other."""
        try:
            found: dict[str, Any] = self._execute_module(module, arguments, task_vars=variables)
        except AnsibleError as error:
            self.reached = not isinstance(error, AnsibleConnectionFailure)
            return {"msg": str(error), "unreachable": not self.reached}
        self.warnings += found.get("warnings", [])
        return found
