"""Ask a node which machine it is, and hand that over to the controller of several runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

# Ansible loads this file by its path, so that the repository's packages are not importable by themselves.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from temper.plan.identity import Identity, machine_of
from temper.plan.jump_hosts import read
from temper.plan.module_answers import node_facts
from temper.plan.node_action import NodeAction
from temper.plan.ssh_client import host_keys

FILE = "identity.json"
KEYS = ("machine", "level", "host_keys")


class ActionModule(NodeAction):
    """fleet_identity: asks the node, without arguments.

    With `answers`, the name of a variable that has what that returned, and `collect`, a folder, it hands all
    of them over. A node that does not answer, or answers anything else, has no machine.
    """

    _VALID_ARGS = frozenset(("answers", "collect"))

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """`machine` and `host_keys` say which one it is, `level` is its turn among jump hosts."""
        result = super().run(tmp, task_vars)
        variables = task_vars or {}
        if collect := self._task.args.get("collect"):
            hostvars, answers = variables["hostvars"], self._task.args["answers"]
            found = {name: hostvars[name].get(answers) or {} for name in variables["ansible_play_hosts_all"]}
            nodes = {name: {key: one[key] for key in KEYS} for name, one in found.items() if "machine" in one}
            (Path(collect) / FILE).write_text(json.dumps({"nodes": nodes}), encoding="utf-8")
            return result | {"changed": False}
        answer = node_facts(self.ask("node_facts", {"identity": True}, variables))
        jump = read(variables.get("__preflight_ways")).get(str(variables["inventory_hostname"]))
        try:
            machine = machine_of(Identity.from_dict(answer.get("temper", {})))
        except ValueError:
            machine = ()
        found = {"machine": list(machine), "host_keys": list(host_keys(self._connection))}
        return result | {"changed": False, **found, "level": jump.level if jump else 0}
