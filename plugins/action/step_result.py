"""Report the result of a step of an upgrade to the roll-out: see temper/rollout/node_step.py."""

from __future__ import annotations

import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

# Ansible loads this file by its path, so that the repository's packages are not importable by themselves.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from temper.plan.convert import plain
from temper.rollout.node_step import NodeStepResult

#: Fields that are of the node's plan.
OF_PLAN = ("stack", "source", "system", "settled")


class ActionModule(ActionBase):  # type: ignore[misc]  # Ansible ships no types
    """step_result: the fields of NodeStepResult that tasks of the step say; the plan's it adds by itself."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _VALID_ARGS = frozenset(field.name for field in fields(NodeStepResult)) - {"boot_id", *OF_PLAN}

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return them as `step`. The task fails where the node has answered in another form."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        facts = variables.get("ansible_facts", {}).get("temper") or {}
        plan = variables.get("preflight_plan") or {}
        said = {name: plan[name] for name in OF_PLAN if plan.get(name) is not None}
        try:
            step = NodeStepResult.read({**said, "boot_id": facts.get("boot_id", ""), **self._task.args})
        except ValueError as error:
            raise AnsibleActionFail(f"The node answered in another form than expected: {error}.") from None
        return result | {"changed": False, "step": plain(step)}
