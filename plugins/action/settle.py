"""Carry out one role's part of a node's plan, together with that of the roles after it in the play."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleError
from ansible.plugins.action import ActionBase

# Ansible loads this file by its path, so that the repository's packages are not importable by themselves.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from temper.plan.module_answers import AnswerError, failure, role_answers, warnings
from temper.plan.quiet import QUIET, RUN, is_quiet, marked

#: Play variable with the roles of a stage, in their order.
TOGETHER = "settle_together"
#: Play variable: whether the roles of later stages are read along.
AHEAD = "settle_ahead"
#: Play variable: roles that later plays of the run take back, which inherit packages that they need.
LATER = "settle_later"
#: Fact that holds what one execution has done for the roles whose tasks are still to come.
DONE = "temper_settled"


class ActionModule(ActionBase):  # type: ignore[misc]  # Ansible ships no types
    """settle: role; after_boot_s, as module node_settings has it, which this runs.

    An execution on a node costs more than what it does there. So the first role of a stage has the whole
    stage carried out, as far as `settle_together` and the tags of this run say, and the tasks of the others
    report what was done for them. It ends before a role that waits for the controller or has failed: that
    role's own task goes on from there, or fails.

    Where `settle_ahead` says that later stages follow, and nothing had to change, their roles are read in the
    same execution. One that has nothing to do either needs none of its own.

    Of the others in the stage, those that have nothing to say end before their task (has_nothing_to_do).
    """

    TRANSFERS_FILES = False
    _VALID_ARGS = frozenset(("role", "after_boot_s"))

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the role's own part of the module's result; `confirm` and `driver` are what it waits for."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        role = str(self._task.args["role"])
        parts = self.parts(variables)
        # A fact: a node may have set it, but has no proof.
        before = variables.get("ansible_facts", {}).get(DONE) or {}
        done = dict(before) if isinstance(before, dict) else {}
        kept = done.pop(role, None)
        if not self.holds(kept, parts[role]):
            executed = self.carry_out(role, parts, variables)
            # Ansible shows them with the task that had the work done.
            result |= warnings(executed)
            if "roles" not in executed:
                return result | failure(executed)
            done = self.answered(executed, parts)
            if role not in done:
                raise AnsibleActionFail(f"The node answered node_settings, and said nothing of role {role}.")
            kept = done.pop(role)
        quiet = [
            name
            for name in self.following(role, variables)
            if self.holds(done.get(name), parts[name]) and is_quiet(done[name]["result"])
        ]
        # A later play would have to ask the node again.
        done |= {name: {**done[name], "proof": self.proof(parts[name], self.play)} for name in quiet}
        facts: dict[str, Any] = {DONE: done} if done or before else {}
        # In each stage anew: a role is quiet only where its own stage has said so.
        if quiet or QUIET in variables.get("ansible_facts", {}):
            facts |= marked(quiet, [str(name) for name in variables.get(TOGETHER, ())])
        own: dict[str, Any] = kept["result"]
        return result | own | ({"ansible_facts": facts} if facts else {})

    def holds(self, kept: Any, part: str) -> bool:
        """Return whether what was kept for a role is of its part of the plan, this run, this or any play."""
        proofs = (self.proof(part, self.play), self.proof(part))
        return isinstance(kept, dict) and kept.get("proof") in proofs

    def answered(self, executed: dict[str, Any], parts: dict[str, str]) -> dict[str, Any]:
        """Return what the node has answered of each role, with the proof of what that is of."""
        try:
            return {
                name: {"proof": self.proof(parts[name], play), "result": outcome}
                for key, play in (("roles", self.play), ("ahead", ""))
                for name, outcome in role_answers(executed, key, parts).items()
            }
        except AnswerError as error:
            raise AnsibleActionFail(
                f"The node answered node_settings in another form than expected: {error}. Nothing more is "
                "done on it in this run: see who works on the node, and run again."
            ) from None

    @property
    def play(self) -> str:
        """Identifies the play that the task belongs to."""
        return str(self._task.get_play()._uuid)

    def proof(self, part: str, play: str = "") -> str:
        """Return what shows that a result is of this part of a plan, this run, and this play or any.

        What check mode has found is nothing that was done: preflight asks single roles so.
        """
        return hashlib.sha256(f"{RUN} {self._task.check_mode} {play} {part}".encode()).hexdigest()

    def parts(self, variables: dict[str, Any]) -> dict[str, str]:
        """Return what the plan of the node has for each role, in the order of the stages."""
        plan = variables.get("preflight_plan")
        if not plan:
            raise AnsibleActionFail("There is no plan of this node: run playbooks/preflight.yml first.")
        return {role: str(part) for role, part in plan["roles"].items()}

    def following(self, role: str, variables: dict[str, Any]) -> list[str]:
        """Return the roles of the stage whose tasks come after this one's in this run."""
        together = [str(name) for name in variables.get(TOGETHER, ())]
        if role not in together:
            return []
        stage = set(self._task.tags) - {role}
        return [name for name in together[together.index(role) + 1 :] if selected({name, *stage}, variables)]

    def later(self, parts: dict[str, str], variables: dict[str, Any]) -> list[str]:
        """Return the roles that later plays of this run take back."""
        names = [str(name) for name in variables.get(LATER, ())]
        return [name for name in names if selected({name, json.loads(parts[name])["stage"]}, variables)]

    def ahead(self, roles: list[str], parts: dict[str, str], variables: dict[str, Any]) -> list[str]:
        """Return the roles of later stages, where this run carries out all of them."""
        if not variables.get(AHEAD) or set(variables["ansible_run_tags"]) != {"all"}:
            return []
        order = list(parts)
        return order[order.index(roles[-1]) + 1 :]

    def carry_out(self, role: str, parts: dict[str, str], variables: dict[str, Any]) -> dict[str, Any]:
        """Return what the module returns for this role and those after it.

        What fails here is told as this first role's failure.
        """
        roles = [role, *self.following(role, variables)]
        ahead = self.ahead(roles, parts, variables)
        arguments = {
            "roles": f"[{','.join(parts[name] for name in roles)}]",
            "ahead": f"[{','.join(parts[name] for name in ahead)}]" if ahead else "",
            "secrets": self.secrets([parts[name] for name in (*roles, *ahead)]),
            "after_boot_s": int(self._task.args.get("after_boot_s", 0)),
            "later": self.later(parts, variables),
        }
        # As preflight took it, where this run is one of several.
        if lease := variables.get("ansible_facts", {}).get("temper_lease"):
            arguments["lease"] = lease
        executed: dict[str, Any] = self._execute_module("node_settings", arguments, task_vars=variables)
        return executed

    def secrets(self, parts: list[str]) -> dict[str, str]:
        """Return the contents of files that are not in the plan, by their paths on the node."""
        items = [item for part in parts for item in json.loads(part)["settings"] if item["kind"] == "file"]
        return {
            item["key"]: self.secret(item["wanted"]["source"])
            for item in items
            if item["wanted"] and item["wanted"].get("secret") and item["wanted"].get("source")
        }

    def secret(self, source: str) -> str:
        """Return the content of a file of the controller, which ansible-vault may have encrypted."""
        path = Path(source).expanduser().resolve()
        try:
            return str(self._loader.get_text_file_contents(str(path)))
        except AnsibleError as error:
            raise AnsibleActionFail(
                f"A file that goes to the node cannot be read on this machine: {error}. It has to be there, "
                "readable, and where ansible-vault has encrypted it, this run needs the vault's password."
            ) from error


def selected(tags: set[str], variables: dict[str, Any]) -> bool:
    """Return whether this run carries out what has one of these tags."""
    found = {"all", "tagged", *tags}
    return not found.isdisjoint(variables["ansible_run_tags"]) and found.isdisjoint(
        variables["ansible_skip_tags"]
    )
