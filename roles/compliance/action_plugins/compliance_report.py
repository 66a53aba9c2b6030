"""Judge what all nodes answered, write the report, and end with the verdict. On the controller alone."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

# Ansible loads this file by its path, so that the repository's packages are not importable by themselves.
ROOT = Path(__file__).resolve().parents[3]
if str(ROOT) not in sys.path:
    sys.path.append(str(ROOT))

from compliance import report, waivers  # noqa: E402 - needs the path above
from compliance.evidence import EvidenceError  # noqa: E402 - likewise
from compliance.fleet import Settings, check, checked_node  # noqa: E402 - likewise
from compliance.model import Verdict  # noqa: E402 - likewise
from planning.convert import plain  # noqa: E402 - likewise
from validation.processes.store import HistoryError  # noqa: E402 - likewise

if TYPE_CHECKING:
    from collections.abc import Mapping

    from compliance.waivers import Waiver


class ActionModule(ActionBase):  # type: ignore[misc]  # Ansible ships no types
    """compliance_report: answers is the name of a variable; the others are those of the role."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _VALID_ARGS = frozenset(
        ("directory", "validations", "validation_max_age_days", "key", "metrics", "answers")
    )

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """The report's text is `msg`; `verdict` its last sentence, empty where every node is compliant."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        hostvars, arguments = variables["hostvars"], self._task.args
        names = [str(name) for name in variables["ansible_play_hosts_all"]]
        given = {name: self.waivers(hostvars[name], variables) for name in names}
        nodes = [
            checked_node(
                name,
                hostvars[name].get("group_names", []),
                plain(hostvars[name].get(arguments["answers"], {})),
                given[name],
            )
            for name in names
        ]
        sources = tuple(Path(source) for source in variables.get("ansible_inventory_sources", ()))
        settings = Settings(
            directory=self.path(arguments["directory"]),
            validations=self.path(arguments["validations"]),
            data=ROOT / "data",
            inventory=tuple(path for path in sources if path.exists()),
            validation_max_age=timedelta(days=arguments["validation_max_age_days"]),
            options="".join(f" -i {self.short(str(source))}" for source in sources),
            key=str(arguments["key"] or ""),
            metrics=self.path(arguments["metrics"]) if arguments["metrics"] else None,
        )
        try:
            statement, folder = check(nodes, settings, datetime.now(UTC))
        except (OSError, HistoryError, EvidenceError) as error:
            # Without its causes: Ansible would say the same sentence once for each.
            raise AnsibleActionFail(f"The report of compliance could not be written: {error}.") from None
        # Shown without -v, as debug's is: that is what the task is for.
        result["_ansible_verbose_always"] = True
        said = f"{report.text(statement)}Report: {folder}/report.html"
        return result | {
            "changed": False,
            "msg": said,
            "verdict": "" if statement.verdict is Verdict.COMPLIANT else statement.sentence,
        }

    def waivers(self, own: Mapping[str, Any], variables: Mapping[str, Any]) -> list[Waiver]:
        """A node's waivers; a wrong one ends the run with all sentences, before anything is written."""
        known = {*map(str, variables["groups"]), *map(str, variables["groups"]["all"])}
        found, problems = waivers.read(own.get("compliance_waivers") or [], known)
        if problems:
            raise AnsibleActionFail(". ".join([*problems, "Nothing was written"]) + ".")
        return found

    @staticmethod
    def path(text: str) -> Path:
        """A path of this machine; a relative one is below the checkout."""
        return ROOT / Path(text).expanduser()

    @staticmethod
    def short(source: str) -> str:
        """An inventory as one types it in the checkout."""
        path = Path(source)
        return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else source
