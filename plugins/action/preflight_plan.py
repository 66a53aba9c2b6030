"""Read a node, make its plan, and have the node simulate it: see temper/plan/preflight.py."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean

# Ansible loads this file by its path, so that the repository's packages are not importable by themselves.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from temper.plan.jump_hosts import forbidden, kept_open, read
from temper.plan.module_answers import node_facts
from temper.plan.node_action import NodeAction
from temper.plan.node_plan import refused
from temper.plan.preflight import preflight_plan, preview_arguments, reaches
from temper.plan.programs import to_be_asked
from temper.plan.reboot import FORBIDDEN
from temper.plan.refusals import refusal
from temper.plan.roles import firewall, nvidia_stack, os_hardening, ssh_hardening
from temper.plan.ssh_client import host_keys, look_on_the_way

#: What forbids a run and not its simulation, so that all reasons stand in one list.
OF_THE_RUN = {FORBIDDEN, os_hardening.UNHARDENED, os_hardening.UNMEASURED}
#: Roles with texts that a program of the node reads.
ASKED = {firewall.ROLE, ssh_hardening.ROLE, os_hardening.ROLE}


class ActionModule(NodeAction):
    """preflight_plan: known, simulate, installs, hardens, takes_back, payload_python, lease, image ...

    It takes three executions at most: the third asks the node's programs about what is to be hardened anew.

    Nothing is changed on the node, but for the lease where there is one to take. A jump host joins the group
    of its level, by which the plays of playbooks/harden.yml go.
    """

    _VALID_ARGS = frozenset(
        (
            *("known", "simulate", "installs", "hardens", "takes_back", "leaves_driver"),
            *("payload_python", "lease", "image", "image_kernel"),
        )
    )

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the `plan`, for the fact of this name, and as `reached` whether the node answered."""
        result = super().run(tmp, task_vars)
        variables = task_vars or {}
        name = str(variables["inventory_hostname"])
        own = self.own(variables)
        simulates = boolean(self._task.args["simulate"])
        tags = (variables["ansible_run_tags"], variables["ansible_skip_tags"])
        known = self.known(variables)
        for word, role in (("installs", nvidia_stack.ROLE), ("hardens", os_hardening.ROLE)):
            known[word] = boolean(self._task.args[word]) and reaches(role, *tags)
        for word in ("takes_back", "leaves_driver"):
            known[word] = boolean(self._task.args.get(word, False))
        python = self._task.args["payload_python"]
        asked: dict[str, Any] = {"payload_python": python} if python else {}
        if self._task.args["lease"] and not self._task.check_mode:
            asked["lease"] = self._task.args["lease"]
        # A wrong value is said with all others.
        if boolean(self._task.args.get("image", False), strict=False):
            asked |= {"image": True, "image_kernel": self._task.args["image_kernel"]}
        node = self.ask("node_facts", asked, variables)
        known["now_s"] = time.time()
        # Of a node that has answered: one that ssh has not known before is known by now.
        known["host_keys"] = host_keys(self._connection) if self.reached else ()
        plan = refused(preflight_plan(node, own, known), *self.unseen(variables))
        if not self.reached:
            jumps = read(variables.get("__preflight_ways"))
            through, looked = look_on_the_way(name, jumps, variables, self._templar)
            if looked.forbidden:
                plan = refused(plan, refusal("jump-host-forbids", reason=forbidden([name], through)))
            elif looked.reached:
                plan = refused(plan, refusal("jump-host-connection", reason=kept_open(name, through)))
        others = [one for one in plan["refusals"] if one["code"] not in OF_THE_RUN]
        preview = programs = None
        if simulates and not others and not plan["settled"]:
            preview = self.ask("package_preview", preview_arguments(plan), variables)
        hardens = boolean(self._task.args["hardens"]) and not (known["takes_back"] or asked.get("image"))
        parts: list[str] = []
        if hardens and not others:
            in_place = node["ansible_facts"]["temper"].get("in_place", {}).values()
            wanted = (plan["roles"][name] for name in plan["roles"] if name in ASKED and reaches(name, *tags))
            parts = to_be_asked(wanted, in_place)
        if parts:
            programs = self.ask("node_programs", {"roles": f"[{','.join(parts)}]"}, variables)
        if preview is not None or programs is not None:
            plan = refused(preflight_plan(node, own, known, preview, programs), *self.unseen(variables))
        if jump := read(known).get(name):
            result["add_group"] = f"temper_jump_hosts_{jump.level}"
            result["parent_groups"] = ["temper_jump_hosts"]
        return result | {
            "changed": False,
            "plan": plan,
            "reached": self.reached,
            "ansible_facts": node_facts(node),
            "warnings": self.warnings,
        }
