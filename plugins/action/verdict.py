"""End a run with the verdict on its nodes. On the controller alone."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase

# Ansible loads this file by its path, so that the repository's packages are not importable by themselves.
ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.append(str(ROOT))

from temper.judge.outcomes import states_in
from temper.plan.convert import plain


class ActionModule(ActionBase):  # type: ignore[misc]  # Ansible ships no types
    """verdict: sentence, good, text, states, report: a file, or the folder of a validation, with its states.

    It fails where the verdict is not good. `text` is all that the judge has to say. The callback shows
    sentence and report last, and counts states.
    """

    TRANSFERS_FILES = False
    _requires_connection = False
    _VALID_ARGS = frozenset(("sentence", "good", "text", "states", "report"))

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the `verdict`, from which temper.base.outcome.FinalVerdict is made."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        given = self._task.args
        good, sentence = boolean(given["good"]), str(given["sentence"])
        report = str(given.get("report", ""))
        states = plain(given.get("states", {}))
        if "states" not in given and report:
            states = states_in(ROOT / report)
            report = f"{report}/report.html" if states else ""
        said = {"sentence": sentence, "good": good, "states": states, "report": report}
        text = str(given.get("text", ""))
        # Shown without -v, as debug's is: that is what the task is for.
        result["_ansible_verbose_always"] = True
        msg = text if sentence in text else f"{text}\n\n{sentence}".strip()
        return result | {"changed": False, "failed": not good, "msg": msg, "verdict": said}
