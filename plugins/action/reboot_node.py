"""Reboot a node and wait for it, as Ansible's own action does; but only where it is still this run's."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleConnectionFailure
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action.reboot import ActionModule as Reboot

# Ansible loads this file by its path, so that the repository's packages are not importable by themselves.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from temper.plan.module_answers import failure

#: The status of a module that has failed by itself. One that the reboot has ended has another.
FAILED = 1


class ActionModule(Reboot):  # type: ignore[misc]  # Ansible ships no types
    """reboot_node: msg, reboot_timeout (seconds), as ansible.builtin.reboot has them; busy_ok.

    The lease, and who uses GPUs unless `busy_ok`, is looked at on the node as the reboot begins
    (node_reboot), in one step: an attempt of a run that was given up must not reboot a node that a later one
    works on.
    """

    _VALID_ARGS = frozenset(("msg", "reboot_timeout", "busy_ok"))

    def get_distribution(self, _task_vars: dict[str, Any]) -> dict[str, str]:
        """Ansible asks for it because commands differ elsewhere; all that Temper takes is Linux."""
        return {"name": "linux", "version": "", "family": "linux"}

    def perform_reboot(self, task_vars: dict[str, Any], _distribution: dict[str, str]) -> dict[str, Any]:
        """Begin it. Where the connection ends with the node, it has begun."""
        arguments: dict[str, Any] = {"message": str(self._task.args["msg"])}
        arguments["busy_ok"] = bool(boolean(self._task.args.get("busy_ok", False)))
        if lease := task_vars.get("ansible_facts", {}).get("temper_lease"):
            arguments["lease"] = lease
        try:
            answer = self._execute_module("node_reboot", arguments, task_vars=task_vars)
        except AnsibleConnectionFailure:
            answer = {}
        start = datetime.now(UTC)
        if answer.get("failed") and answer.get("rc", FAILED) == FAILED:
            return {**failure(answer), "rebooted": False, "start": start}
        return {"failed": False, "start": start}
