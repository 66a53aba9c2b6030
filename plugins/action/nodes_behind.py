"""See which nodes are reached through a jump host, before it changes: commit_confirm looks again."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase

# Ansible loads this file by its path, so that the repository's packages are not importable by themselves.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from temper.plan.jump_hosts import named, read
from temper.plan.ssh_client import look_at


class ActionModule(ActionBase):  # type: ignore[misc]  # Ansible ships no types
    """nodes_behind: no arguments. On the controller alone, and in check mode too: it only looks."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _VALID_ARGS: frozenset[str] = frozenset()

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the names of the nodes that are `reached`, of a sample of those behind this one."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        name = str(variables["inventory_hostname"])
        jump = read(variables.get("__preflight_ways"))[name]
        looked = look_at(jump.sample, variables, self._templar)
        reached = [node for node, one in looked.items() if one.reached]
        warnings = []
        if away := [node for node in jump.sample if node not in reached]:
            warnings.append(
                f"{named(away)}: reached through {name}, but not at the moment, so nothing shows whether a "
                f"change of {name} cuts the way"
            )
        if len(jump.sample) < len(jump.behind):
            warnings.append(
                f"{len(jump.behind)} nodes are reached through {name}: connections to {len(jump.sample)} of "
                "them prove its changes"
            )
        return result | {"changed": False, "reached": reached, "warnings": warnings}
