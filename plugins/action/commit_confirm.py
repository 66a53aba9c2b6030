"""Confirm a change of a way in, through a new connection, once all that it must leave open is proven."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase

# Ansible loads this file by its path, so that the repository's packages are not importable by themselves.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from temper.compliance.outside.node import SEEN, contradicted
from temper.plan.jump_hosts import JumpHost, cut_off, forbidden, read
from temper.plan.module_answers import failure
from temper.plan.ssh_client import look_at, look_on_the_way

#: From a node's name, all jump hosts and its variables: what a failed result says, None where it holds.
Proof = Callable[[str, Mapping[str, JumpHost], dict[str, Any]], dict[str, Any] | None]

#: Causes of a failed result, one a line: Ansible's reader of documentation warns of more.
FORBIDDEN = "forwarding-forbidden"
CUT_OFF = "cut-off"
CONTRADICTED = "contradicted"


class ActionModule(ActionBase):  # type: ignore[misc]  # Ansible ships no types
    """commit_confirm: name, as module commit_confirm has it, which this runs last.

    The first proof that fails is the result: `failed`, `cause` (a code), `nodes` and `msg`. Then nothing is
    confirmed, and the node restores itself.
    """

    TRANSFERS_FILES = False
    _VALID_ARGS = frozenset(("name",))

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return one result; a node that lets no new connection in is unreachable, as with any module."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        jumps = read(variables.get("__preflight_ways"))
        name = str(variables["inventory_hostname"])
        arguments = dict(self._task.args)
        self.warnings: list[str] = []
        try:
            for proof in self.proofs():
                if found := proof(name, jumps, variables):
                    return result | found | {"failed": True}
            answer = self._execute_module("commit_confirm", arguments, task_vars=variables)
        except AnsibleConnectionFailure:
            through, looked = look_on_the_way(name, jumps, variables, self._templar)
            if looked.forbidden:
                why = {"cause": FORBIDDEN, "nodes": [name], "msg": f"{forbidden([name], through)}."}
                return result | why | {"failed": True}
            raise
        said = failure(answer) if answer.get("failed") else {"changed": True}
        return result | said | {"warnings": self.warnings}

    def proofs(self) -> list[Proof]:
        """Return what must hold before the change is confirmed."""
        return [self.nodes_behind, self.seen_from_outside]

    def seen_from_outside(
        self, name: str, _jumps: Mapping[str, JumpHost], variables: dict[str, Any]
    ) -> dict[str, Any] | None:
        """Return what the change offers to a stranger is what the plan has."""
        change, plan = str(self._task.args.get("name")), variables.get("preflight_plan")
        if change not in SEEN or not plan:
            return None
        # Where it lets nobody in at all, that is the reason.
        self._low_level_execute_command("true")
        why, self.warnings = contradicted(change, plan, self._connection)
        if not why:
            return None
        said = f"{why}. Nothing is confirmed, so {name} restores itself."
        return {"cause": CONTRADICTED, "nodes": [name], "msg": said}

    def nodes_behind(
        self, name: str, jumps: Mapping[str, JumpHost], variables: dict[str, Any]
    ) -> dict[str, Any] | None:
        """Nodes that are reached through this one still are, by connections of their own on each leg."""
        if not (jump := jumps.get(name)):
            return None
        # Where it lets nobody in at all, that is the reason.
        self._low_level_execute_command("true")
        before = variables.get("__nodes_behind", {}).get("reached")
        asked = [node for node in jump.sample if before is None or node in before]
        lost = {
            node: one
            for node, one in look_at(asked, variables, self._templar).items()
            # Without a look before, one that is away may have been so all the time.
            if not one.reached and (one.forbidden or before is not None)
        }
        if not lost:
            return None
        restored = f"Nothing is confirmed, so {name} restores itself"
        if closed := [node for node, one in lost.items() if one.forbidden]:
            return {"cause": FORBIDDEN, "nodes": closed, "msg": f"{forbidden(closed, [name])}. {restored}."}
        said = next(iter(lost.values())).said
        return {"cause": CUT_OFF, "nodes": [*lost], "msg": f"{cut_off([*lost], name, said)}. {restored}."}
