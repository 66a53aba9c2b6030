"""Write the plans of all nodes into one file on the controller; say where nodes differ that should not."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

# Ansible loads this file by its path, so that the repository's packages are not importable by themselves.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from temper.base.options import told
from temper.plan.fleet import FleetPlan, grouped
from temper.plan.identity import Node, twins
from temper.plan.node_plan import refused
from validation.processes.files import own, write_atomically

#: What preflight gives all nodes of a batch before it reads the first.
STARTED = "__preflight_ways"


def write_whole(path: Path, text: str) -> None:
    """Replace a file in one step, for this account alone. One that is there keeps its mode."""
    if path.exists() and not path.is_file():  # a device or a pipe takes text, but nothing may take its place
        path.write_text(text, encoding="utf-8")
        return
    own(path.parent)
    write_atomically(path, text, stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o600)


class ActionModule(ActionBase):  # type: ignore[misc]  # Ansible ships no types
    """fleet_plan: path, empty for no file; collect, a folder for the controller of several runs.

    On the controller alone, and in check mode too: it is a report.
    """

    TRANSFERS_FILES = False
    _requires_connection = False
    _VALID_ARGS = frozenset(("path", "collect"))

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Write the file. The result's `msg` is for the operator; `twins` says which nodes are one."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        hostvars = variables["hostvars"]
        # Of the nodes that preflight has come to: under `serial` others are yet to come.
        names = [name for name in variables["ansible_play_hosts_all"] if STARTED in hostvars[name]]
        plans = {name: hostvars[name].get("preflight_plan") for name in names}
        same = twins({name: Node.from_dict(plan or {}) for name, plan in plans.items()}).refused
        plans |= {name: refused(plans[name], twin) for name, twin in same.items()}
        fleet = FleetPlan.from_dict(plans)
        batch = {name: plans.get(name) or {} for name in variables["ansible_play_batch"]}
        texts = {name: plan.get("text", "") for name, plan in batch.items()}
        said = [
            grouped(texts, {name: plan.get("roles", {}) for name, plan in batch.items()}),
            fleet.text(),
        ]
        if collect := self._task.args.get("collect"):
            write_whole(Path(collect) / "plan.json", json.dumps(fleet.part()))
        elif self._task.args["path"]:
            path = Path(self._task.args["path"]).resolve()
            self.write(path, fleet)
            said.append(f"Plans: {path}")
        # Shown without -v, as debug's is: that is what the task is for.
        result["_ansible_verbose_always"] = True
        return result | {
            "changed": False,
            "twins": {name: twin.text for name, twin in same.items()},
            "msg": "\n".join(filter(None, said)),
        }

    def write(self, path: Path, fleet: FleetPlan) -> None:
        """Write the plans as JSON."""
        try:
            write_whole(path, json.dumps(fleet.as_dict(), indent=1) + "\n")
        except OSError as error:
            raise AnsibleActionFail(
                f"preflight_plan_file: expected a file that can be written here: {told(error)}; make room, "
                "or see who may write there"
            ) from None
