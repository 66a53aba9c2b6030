"""Reboot a node and wait for it, as Ansible's own action does; but only where it is still this run's."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action.reboot import ActionModule as Reboot

#: The status of a module that has failed by itself. One that the reboot has ended has another.
FAILED = 1


class ActionModule(Reboot):  # type: ignore[misc]  # Ansible ships no types
    """reboot_node: msg, reboot_timeout (seconds), as ansible.builtin.reboot has them.

    The lease is looked at on the node as the reboot begins (node_reboot), in one step: an attempt of a run
    that was given up must not reboot a node that a later one works on.
    """

    _VALID_ARGS = frozenset(("msg", "reboot_timeout"))

    def get_distribution(self, _task_vars: dict[str, Any]) -> dict[str, str]:
        """Ansible asks for it because commands differ elsewhere; all that Temper takes is Linux."""
        return {"name": "linux", "version": "", "family": "linux"}

    def perform_reboot(self, task_vars: dict[str, Any], _distribution: dict[str, str]) -> dict[str, Any]:
        """Begin it. Where the connection ends with the node, it has begun."""
        arguments = {"message": str(self._task.args["msg"])}
        if lease := task_vars.get("ansible_facts", {}).get("temper_lease"):
            arguments["lease"] = lease
        try:
            answer = self._execute_module("node_reboot", arguments, task_vars=task_vars)
        except AnsibleConnectionFailure:
            answer = {}
        start = datetime.now(UTC)
        if answer.get("failed") and answer.get("rc", FAILED) == FAILED:
            kept = {key: answer[key] for key in ("msg", "refused", "module_stderr") if key in answer}
            return {"failed": True, "rebooted": False, "start": start, **kept}
        return {"failed": False, "start": start}
