"""Make docs/reference/refusals.md of data/refusals.yml.

    python3 -m tools.refusal_docs    write the page and say whether it changed

tests/unit/test_refusals.py fails when it is not what this would write.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from temper.plan.refusals import sentences
from tools.documents import ROOT, write

PAGE = ROOT / "docs/reference/refusals.md"

INTRODUCTION = """\
# Reasons to refuse a node

*For operators of a refused node: look a code up, with its reason and remedy.*

<!-- Made by `make docs` from data/refusals.yml: change that. -->

Preflight refuses a node with all reasons at once, before anything is changed on it. `reports/plan.json`
has each reason as a code with its facts (`refusals`), and as the sentence that is made of them
(`problems`). Codes are stable.

"""

BETWEEN = "\nWhat is to be done is the end of a sentence, or one of these where that depends on the node:\n\n"


def table(rows: Mapping[str, str], heading: str) -> str:
    """Return a table of codes and sentences."""
    lines = [f"| Code | {heading} |", "| --- | --- |"]
    lines += [f"| `{code}` | {text.replace('|', chr(92) + '|')} |" for code, text in rows.items()]
    return "\n".join(lines) + "\n"


def documents() -> dict[Path, str]:
    """Return the content of the page."""
    refusals = table(sentences("refusals"), "Reason")
    return {PAGE: f"{INTRODUCTION}{refusals}{BETWEEN}{table(sentences('remedies'), 'Remedy')}"}


if __name__ == "__main__":
    sys.exit(write(documents()))
