"""Refuse a node before anything is changed on it: a failure that says `refused`."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):  # type: ignore[misc]  # Ansible ships no types
    """refuse: msg, why, and what to do. As ansible.builtin.fail, but the result tells it from a failure."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _VALID_ARGS = frozenset(("msg",))

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return a result that is `failed` and `refused`, with the message."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        return result | {"failed": True, "refused": True, "msg": str(self._task.args["msg"])}
