"""Refuse a node before anything is changed on it: a failure that says `refused`."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):  # type: ignore[misc]  # Ansible ships no types
    """refuse: msg, why, and what to do, or the `problems` one by one.

    As ansible.builtin.fail, but the result tells it from a failure.
    """

    TRANSFERS_FILES = False
    _requires_connection = False
    _VALID_ARGS = frozenset(("msg", "problems"))

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return a result that is `failed` and `refused`, with the message."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        result |= {"failed": True, "refused": True, "msg": str(self._task.args["msg"])}
        if found := [str(problem) for problem in self._task.args.get("problems", ())]:
            result["problems"] = found
            listed = (result["msg"], *(f"- {problem}" for problem in found), "Correct this and run again.")
            result["msg"] = "\n".join(listed)
        return result
