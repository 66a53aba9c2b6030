"""Read a node, make its plan, and have the node compare itself with it. Changes nothing."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean

# Ansible loads this file by its path, so that the repository's packages are not importable by themselves.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from temper.base import DATA
from temper.compliance.answers import answer
from temper.compliance.outside.claims import ClaimsError
from temper.compliance.outside.node import Outside
from temper.plan.model import Target
from temper.plan.module_answers import node_facts
from temper.plan.node_action import NodeAction
from temper.plan.node_plan import refused
from temper.plan.os_controls import OPERATOR, demanded, load_controls
from temper.plan.preflight import preflight_plan
from temper.plan.security import installed
from temper.plan.ssh_client import host_keys
from temper.plan.tables import load_tables
from temper.plan.unreadable import SILENT, unreadable


class ActionModule(NodeAction):
    """compliance_check: known; outside, whether to look at the node from here; addresses to look at as well.

    Two executions; one that fails is part of the result, not a failed task. The look goes on beside them.
    """

    _VALID_ARGS = frozenset(("known", "outside", "addresses"))

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return an `answer` (JSON: plan, observations, loaded driver), or a `problem`."""
        result = super().run(tmp, task_vars) | {"changed": False}
        variables = task_vars or {}
        own = self.own(variables)
        outside = None
        if boolean(self._task.args["outside"]):
            outside = Outside(self._connection, self._task.args["addresses"])
        read = self.ask("node_facts", {}, variables)
        known = self.known(variables) | {"host_keys": host_keys(self._connection)}
        facts = node_facts(read).get("temper")
        if facts is None:
            return result | {"problem": self.reason(read, known), "warnings": self.warnings}
        plan = refused(preflight_plan(read, own, known), *self.unseen(variables))
        arguments: dict[str, Any] = {"roles": f"[{','.join(plan['roles'].values())}]"}
        arguments["demanded"] = demanded_of(plan)
        if listed := administrators(plan):
            # The account that Ansible comes through is known to the operator.
            arguments["administrators"] = [*listed, *filter(None, [known["user"]])]
        if outside:
            outside.expect(plan)
        compared = self.ask("node_compliance", arguments, variables)
        if not isinstance(compared.get("observations"), dict):
            return result | {"problem": self.reason(compared, known), "warnings": self.warnings}
        try:
            seen = (
                outside.observations(compared.get("self_report"), compared["observations"]) if outside else ()
            )
        except ClaimsError as error:
            return result | {"problem": f"it could not be read: {error}", "warnings": self.warnings}
        # As one text: Ansible walks through every value of a result several times.
        driver, components = facts["nvidia"]["loaded_version"], load_tables(DATA).security
        versions = installed(facts["packages"], driver, components, facts["network_firmware"])
        said = answer(plan, compared["observations"], driver, seen, versions)
        which = {key: plan[key] for key in ("machine", "host_keys")}
        return result | {"answer": said, **which, "warnings": self.warnings}

    def reason(self, answer: dict[str, Any], known: dict[str, Any]) -> str:
        """Return why there is no answer, in a sentence."""
        words = str(answer.get("msg") or "it gave no reason").strip()
        remedy = unreadable(words, Target.from_dict(known), "", reached=self.reached).remedy
        if remedy and remedy.code == SILENT:
            return f"unreachable: {remedy.text}"
        return f"unreachable: {words}" if answer.get("unreachable") else f"it could not be read: {words}"


def demanded_of(plan: Mapping[str, Any]) -> str:
    """Return what the benchmark asks for in the controls that the profile relaxes, as JSON."""
    relaxed = [str(one["id"]) for one in plan["waived"] if one["by"] != OPERATOR]
    return json.dumps(demanded(load_controls(DATA / "os_controls"), relaxed, plan["system"]))


def administrators(plan: Mapping[str, Any]) -> list[str]:
    """Return the accounts that the plan lets become root."""
    settings = json.loads(plan["roles"]["admin_accounts"])["settings"]
    return [one["key"] for one in settings if one["wanted"]["state"] == "present" and one["wanted"]["sudo"]]
