"""Carry out one role's part of a node's plan, together with that of the roles after it in the play."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleError
from ansible.plugins.action import ActionBase

#: Play variable with the roles of a stage, in their order.
TOGETHER = "settle_together"
#: Fact that holds what one execution has done for the roles whose tasks are still to come.
DONE = "temper_settled"


class ActionModule(ActionBase):  # type: ignore[misc]  # Ansible ships no types
    """settle: role; after_boot_s, as module node_settings has it, which this runs.

    An execution on a node costs more than what it does there. So the first role of a stage has the whole
    stage carried out, as far as `settle_together` and the tags of this run say, and the tasks of the others
    report what was done for them. It ends before a role that waits for the controller or has failed: that
    role's own task goes on from there, or fails.
    """

    TRANSFERS_FILES = False
    _VALID_ARGS = frozenset(("role", "after_boot_s"))

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """The role's own part of the module's result; `confirm` and `driver` are what it waits for."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        role = str(self._task.args["role"])
        # What check mode has found is nothing that was done: preflight asks single roles so.
        play = [self._task.get_play()._uuid, bool(self._task.check_mode)]
        stored = variables.get("ansible_facts", {}).get(DONE) or {}
        done = dict(stored["roles"]) if stored.get("play") == play else {}
        if role not in done:
            executed = self.carry_out([role, *self.following(role, variables)], variables)
            if "roles" not in executed:
                return result | executed
            done = dict(executed["roles"])
            # Ansible shows them with the task that had the work done.
            result |= {"warnings": executed.get("warnings", [])}
        own = dict(done.pop(role))
        facts = {DONE: {"play": play, "roles": done}} if done or stored else {}
        return result | own | ({"ansible_facts": facts} if facts else {})

    def following(self, role: str, variables: dict[str, Any]) -> list[str]:
        """The roles of the stage whose tasks come after this one's in this run."""
        together = [str(name) for name in variables.get(TOGETHER, ())]
        if role not in together:
            return []
        stage = set(self._task.tags) - {role}
        run, skipped = set(variables["ansible_run_tags"]), set(variables["ansible_skip_tags"])
        return [
            name
            for name in together[together.index(role) + 1 :]
            if run & {"all", "tagged", name, *stage} and not skipped & {"all", "tagged", name, *stage}
        ]

    def carry_out(self, roles: list[str], variables: dict[str, Any]) -> dict[str, Any]:
        """What the module returns for these roles; only a failure of the first is one here."""
        plan = variables.get("preflight_plan")
        if not plan:
            raise AnsibleActionFail("There is no plan of this node: run playbooks/preflight.yml first.")
        parts = [str(plan["roles"][role]) for role in roles]
        arguments = {
            "roles": f"[{','.join(parts)}]",
            "secrets": self.secrets(parts),
            "after_boot_s": int(self._task.args.get("after_boot_s", 0)),
        }
        executed: dict[str, Any] = self._execute_module("node_settings", arguments, task_vars=variables)
        return executed

    def secrets(self, parts: list[str]) -> dict[str, str]:
        """The contents of files that are not in the plan, by their paths on the node."""
        items = [item for part in parts for item in json.loads(part)["settings"] if item["kind"] == "file"]
        return {
            item["key"]: self.secret(item["wanted"]["source"])
            for item in items
            if item["wanted"] and item["wanted"].get("secret") and item["wanted"].get("source")
        }

    def secret(self, source: str) -> str:
        """The content of a file of the controller, which ansible-vault may have encrypted."""
        path = Path(source).expanduser().resolve()
        try:
            return str(self._loader.get_text_file_contents(str(path)))
        except AnsibleError as error:
            raise AnsibleActionFail(
                f"A file that goes to the node cannot be read on this machine: {error}. It has to be there, "
                "readable, and where ansible-vault has encrypted it, this run needs the vault's password."
            ) from error
