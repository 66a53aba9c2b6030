"""Judge what all nodes answered, write the report, and end with the verdict. On the controller alone."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

# Ansible loads this file by its path, so that the repository's packages are not importable by themselves.
ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.append(str(ROOT))

from temper.base.nodes import with_rack
from temper.base.options import told
from temper.base.store import HistoryError
from temper.compliance.answers import packed
from temper.compliance.evidence import EvidenceError
from temper.compliance.model import Verdict
from temper.plan.convert import plain
from temper.report import statement as statement_text
from temper.report.compliance import CHOSEN, WaiverError, check, checked_nodes, elsewhere, named, settings_of


class ActionModule(ActionBase):  # type: ignore[misc]  # Ansible ships no types
    """compliance_report: answers is the name of a variable; the others are those of the role.

    With `collect`, a folder, nothing is judged: what nodes answered goes there, for the controller of
    several runs.
    """

    TRANSFERS_FILES = False
    _requires_connection = False
    _VALID_ARGS = frozenset((*CHOSEN, "answers", "collect"))

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return what the action `verdict` takes."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        hostvars, arguments = variables["hostvars"], self._task.args
        asked = [
            {
                "name": str(name),
                "groups": with_rack(hostvars[name].get("group_names", []), hostvars[name]),
                "answer": plain(hostvars[name].get(arguments["answers"], {})),
                "waivers": plain(hostvars[name].get("compliance_waivers") or []),
            }
            for name in variables["ansible_play_hosts_all"]
        ]
        given = {name: arguments[name] for name in CHOSEN}
        if collect := arguments.get("collect"):
            document = packed(asked)
            text = json.dumps(document, default=str)
            (Path(collect) / "compliance.json").write_text(text, encoding="utf-8")
            return result | {"changed": False}
        known = {*map(str, variables["groups"]), *map(str, variables["groups"]["all"])}
        try:
            nodes = checked_nodes(asked, known)
        except WaiverError as error:
            raise AnsibleActionFail(str(error)) from None
        settings = settings_of(given, list(map(str, variables.get("ansible_inventory_sources", ()))), ROOT)
        try:
            others = elsewhere(plain(variables["groups"]), {node.name for node in nodes})
            statement, folder = check(nodes, settings, datetime.now(UTC), others)
        except (OSError, HistoryError, EvidenceError) as error:
            # Without its causes: Ansible would say the same sentence once for each.
            reason = f"The report of compliance could not be written: {told(error)}."
            raise AnsibleActionFail(reason) from None
        return result | {
            "changed": False,
            "warnings": list(named(asked).warnings),
            "text": f"{statement_text.text(statement, short=True)}Report: {folder}/report.html",
            "sentence": statement.sentence,
            "good": statement.verdict is Verdict.COMPLIANT,
            "states": {node.node: node.verdict.outcome for node in statement.nodes},
            "report": f"{folder}/report.html",
        }
