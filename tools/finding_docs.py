"""Make of data/findings/*.yml and data/xids.yml what nodes and people read: the payload's tables, two pages.

    python3 -m tools.finding_docs    write all and say what changed

tests/unit/validation/test_catalogue.py fails when they are not what this would write.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from temper.plan.tables import read_yaml
from tools.documents import ROOT, write
from validation.findings.catalogue import CARRIED, Catalogue, machine_actions, severities
from validation.findings.catalogue import XIDS as CARRIED_XIDS
from validation.model.contract import decode

DATA = ROOT / "data" / "findings"
PAGE = ROOT / "docs/reference/findings.md"
CATALOGUE = ROOT / "validation" / "findings" / CARRIED
XIDS = ROOT / "data" / "xids.yml"
XID_TABLE = CATALOGUE.with_name(CARRIED_XIDS)
XID_PAGE = ROOT / "docs/reference/xids.md"
#: The bucket of codes that the catalogue has nothing to say of.
SUPPORT = "CONTACT_SUPPORT"
#: Where an entry names no other source.
PROJECT = "docs/operate/validation.md"
#: What a case may say otherwise than its entry.
OF_A_CASE = ("severity", "sentence", "remedy", "machine_action", "when")

INTRODUCTION = """\
# Findings of the validation

*For operators who act on a finding: look a code up, with severity and remedy.*

<!-- Made by `make docs` from data/findings: change that. -->

Everything that the [validation](../operate/validation.md) can find, by code. Codes are stable.
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
| `when` | the condition of a case; it follows "if" where the remedies of all cases are listed, as in alerts |

"""


XID_INTRODUCTION = """\
# Xid errors

*For operators who read a kernel log: look an Xid up, with NVIDIA's action and Temper's.*

<!-- Made by `make docs` from data/xids.yml and data/findings/xids.yml: change those. -->

The driver writes an Xid to the kernel log when a GPU, or its use, goes wrong. NVIDIA's
[catalogue](https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html) (of 2025-10-29) says what
each means and what it asks for at once. `health` finds those that say something about the node, with NVIDIA's
action; the last column says why where it does otherwise. All others are counted in the details of its result.
A code that is not here, and a line that cannot be read, is found as [`xid-unknown` or
`kernel-error-unreadable`](findings.md): no line of an error is dropped.

Of Xid 144 to 150 (NVLink of the fifth generation) the unit and its error status are decoded: what asks for a
reset is found under its number, what asks for a look as `xid-nvlink-nonfatal`, and what asks for nothing is
counted. Xid 154 is found as `recovery-action`.

"""


def compiled(entry: dict[str, Any]) -> dict[str, Any]:
    """Return an entry as the payload reads it: every case has all of its fields."""
    shared = {field: entry[field] for field in OF_A_CASE if field in entry}
    cases = {name: shared | case for name, case in entry.get("cases", {"": {}}).items()}
    for case in cases.values():
        if isinstance(case.get("severity"), str):
            case["severity"] = [case["severity"]]
    rest = {field: value for field, value in entry.items() if field not in OF_A_CASE}
    return {"source": PROJECT} | rest | {"cases": cases}


def findings() -> dict[str, Any]:
    """Return all entries by code, area by area. Raises ValueError for a code that is there twice."""
    found: dict[str, Any] = {}
    for path in sorted(DATA.glob("*.yml")):
        entries = read_yaml(path)
        if twice := sorted(found.keys() & entries.keys()):
            raise ValueError(f"{path.name}: {twice[0]} is in another file, too")
        found |= {code: compiled(entry) for code, entry in entries.items()}
    return found


def page(catalogue: Catalogue) -> str:
    """Return the whole page."""
    lines = ["| Code | Finding | Severity | What to do | For programs |", "| --- | --- | --- | --- | --- |"]
    lines += [
        f"| `{code}` | {entry.title} | {severities(entry)} | {'; '.join(entry.remedy)} | "
        f"{machine_actions(entry)} |"
        for code, entry in catalogue.findings.items()
    ]
    return INTRODUCTION + "\n".join(lines) + "\n"


def xid_table(table: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """Return what the payload needs: Xids that are explained and no finding, and the units of NVLink 5."""
    codes = table["codes"].items()
    silent = [code for code, of in codes if f"xid-{code}" not in found and of["asks"] != SUPPORT]
    return {"silent": silent, "nvlink5": table["nvlink5"]}


def xid_page(table: dict[str, Any], catalogue: Catalogue) -> str:
    """Return the page of all Xids."""
    lines = [
        "| Xid | NVIDIA: what it means | What it asks for | Here | Why |",
        "| --- | --- | --- | --- | --- |",
    ]
    for code, of in table["codes"].items():
        entry = catalogue.findings.get(f"xid-{code}")
        unknown = "`xid-unknown`" if of["asks"] == SUPPORT else "counted"
        here = f"{severities(entry)}: {machine_actions(entry)}" if entry else unknown
        lines.append(f"| {code} | {of['means']} | {of['asks'] or '-'} | {here} | {of.get('here', '')} |")
    unused = ", ".join(map(str, table["unused"]))
    end = f"\nUnused, which the catalogue refers to its support, and so found as `xid-unknown`: {unused}.\n"
    return XID_INTRODUCTION + "\n".join(lines) + "\n" + end


def _lines(entries: dict[str, Any]) -> str:
    """Return the payload's catalogue as JSON, a line for each code: a change of one shows as such."""
    lines = [
        f"{json.dumps(code)}: {json.dumps(entry, ensure_ascii=False)}" for code, entry in entries.items()
    ]
    return '{"findings": {\n' + ",\n".join(lines) + "\n}}\n"


def documents() -> dict[Path, str]:
    """Return the content of each file that is made from the data."""
    content = {"findings": findings()}
    catalogue = decode(Catalogue, content)
    table = read_yaml(XIDS)
    return {
        CATALOGUE: _lines(content["findings"]),
        PAGE: page(catalogue),
        XID_TABLE: json.dumps(xid_table(table, content["findings"])) + "\n",
        XID_PAGE: xid_page(table, catalogue),
    }


if __name__ == "__main__":
    sys.exit(write(documents()))
