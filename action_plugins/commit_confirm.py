"""Confirm a change of a way in, through a new connection, once all that it must leave open is proven."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.plugins.action import ActionBase

# Ansible loads this file by its path, so that the repository's packages are not importable by themselves.
ROOT = str(Path(__file__).resolve().parents[1])
if ROOT not in sys.path:
    sys.path.append(ROOT)

from planning.module_answers import failure  # noqa: E402 - needs the path above

if TYPE_CHECKING:
    from collections.abc import Callable

    #: Looks at the node under its new rules; returns what is to be added to a failed result, else None.
    Proof = Callable[[dict[str, Any]], dict[str, Any] | None]


class ActionModule(ActionBase):  # type: ignore[misc]  # Ansible ships no types
    """commit_confirm: name, as module commit_confirm has it, which this runs last.

    The first proof that fails is the result: `failed`, `cause` (a code) and `msg`. Then nothing is confirmed,
    and the node restores itself.
    """

    TRANSFERS_FILES = False
    _VALID_ARGS = frozenset(("name",))

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """One result; a node that lets no new connection in is unreachable, as with any module."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        for proof in self.proofs():
            if found := proof(variables):
                return result | found | {"failed": True}
        arguments = {"name": self._task.args["name"]}
        answer = self._execute_module("commit_confirm", arguments, task_vars=variables)
        return result | (failure(answer) if answer.get("failed") else {"changed": True})

    def proofs(self) -> list[Proof]:
        """What must hold before the change is confirmed, cheapest first."""
        return []
