"""Make the plan of a node, see planning/preflight.py."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase

# Ansible loads this file by its path, so that the repository's packages are not importable by themselves.
ROOT = str(Path(__file__).resolve().parents[3])
if ROOT not in sys.path:
    sys.path.append(ROOT)

from planning.os_controls import load_controls  # noqa: E402 - needs the path above
from planning.preflight import DATA, preflight_plan  # noqa: E402
from planning.role_variables import argument_specs  # noqa: E402
from planning.tables import load_models, load_tables  # noqa: E402

# Ansible forks a process for each node's task, and before that imports an action in the process that all of
# them come from (a filter it does not): what is imported and read here is imported and read once a run.
argument_specs()
load_tables(DATA)
load_models(DATA)
load_controls(DATA / "os_controls")


class ActionModule(ActionBase):  # type: ignore[misc]  # Ansible ships no types
    """preflight_plan: node, known, preview, engines. On the controller alone, and in check mode too."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _VALID_ARGS = frozenset(("node", "known", "preview", "engines"))

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """The plan is `plan`, for the fact of this name."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        given = self._task.args
        own = variables["hostvars"][variables["inventory_hostname"]]
        plan = preflight_plan(given["node"], own, given["known"], given.get("preview"), given.get("engines"))
        return result | {"changed": False, "plan": plan}
