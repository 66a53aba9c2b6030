"""Make of data/findings/*.yml what nodes and people read: the payload's catalogue, and docs/findings.md.

    python3 -m tools.finding_docs    write both and say what changed

tests/unit/validation/test_catalogue.py fails when they are not what this would write.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import yaml

from tools.documents import ROOT, write
from validation.findings.catalogue import CARRIED, Catalogue, machine_actions, severities
from validation.model.contract import decode

if TYPE_CHECKING:
    from pathlib import Path

DATA = ROOT / "data" / "findings"
PAGE = ROOT / "docs" / "findings.md"
CATALOGUE = ROOT / "validation" / "findings" / CARRIED
#: Where an entry names no other source.
PROJECT = "docs/validation.md"
#: What a case may say otherwise than its entry.
OF_A_CASE = ("severity", "sentence", "remedy", "machine_action")

INTRODUCTION = """\
# Findings of the validation

<!-- Made by `make docs` from data/findings: change that. -->

Everything that the [validation](validation.md) can find, by code. Codes are stable.
`temper explain CODE` adds meaning, usual causes and source.

Each file in `data/findings/` holds the entries of one area:

| Field | Says |
| --- | --- |
| `title`, `meaning`, `causes`, `source` | what it is, why it matters, what usually causes it, who says so |
| `severity` | `degraded` or `fail`; a list of both where the measurement decides |
| `sentence` | what the result says, with its facts in braces |
| `remedy` | what to do, step by step |
| `machine_action` | what a program can do: `rerun`, `reset-gpu`, `reboot`, `replace`, `configure` or `none` |
| `cases` | where a finding shows in several ways, what each says otherwise |

"""


def compiled(entry: dict[str, Any]) -> dict[str, Any]:
    """An entry as the payload reads it: every case has all of its fields."""
    shared = {field: entry[field] for field in OF_A_CASE if field in entry}
    cases = {name: shared | case for name, case in entry.get("cases", {"": {}}).items()}
    for case in cases.values():
        if isinstance(case.get("severity"), str):
            case["severity"] = [case["severity"]]
    rest = {field: value for field, value in entry.items() if field not in OF_A_CASE}
    return {"source": PROJECT} | rest | {"cases": cases}


def findings() -> dict[str, Any]:
    """All entries by code, area by area. Raises ValueError for a code that is there twice."""
    found: dict[str, Any] = {}
    for path in sorted(DATA.glob("*.yml")):
        entries = yaml.safe_load(path.read_text(encoding="utf-8"))
        if twice := sorted(found.keys() & entries.keys()):
            raise ValueError(f"{path.name}: {twice[0]} is in another file, too")
        found |= {code: compiled(entry) for code, entry in entries.items()}
    return found


def page(catalogue: Catalogue) -> str:
    """The whole page."""
    lines = ["| Code | Finding | Severity | What to do | For programs |", "| --- | --- | --- | --- | --- |"]
    lines += [
        f"| `{code}` | {entry.title} | {severities(entry)} | {'; '.join(entry.remedy)} | "
        f"{machine_actions(entry)} |"
        for code, entry in catalogue.findings.items()
    ]
    return INTRODUCTION + "\n".join(lines) + "\n"


def _lines(entries: dict[str, Any]) -> str:
    """The payload's catalogue as JSON, a line for each code: a change of one shows as such."""
    lines = [
        f"{json.dumps(code)}: {json.dumps(entry, ensure_ascii=False)}" for code, entry in entries.items()
    ]
    return '{"findings": {\n' + ",\n".join(lines) + "\n}}\n"


def documents() -> dict[Path, str]:
    """The content of each file that is made from the data."""
    content = {"findings": findings()}
    catalogue = decode(Catalogue, content)
    return {CATALOGUE: _lines(content["findings"]), PAGE: page(catalogue)}


if __name__ == "__main__":
    sys.exit(write(documents()))
