"""Write what the validation's checks say of themselves to where people and inventories read it.

    python3 -m tools.check_docs    write the files and name those that changed

The tables of docs/operate/validation.md, and the tests that gpu_validation_required_tests may name.
tests/unit/validation/test_check_docs.py fails when they are not what this would write.
"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path

from tools.documents import ROOT, write
from validation.checks.check import Check, IdleNode, total
from validation.checks.registry import CHECKS, PROVE_A_GPU, TESTS
from validation.model.plans import PLANS, WHOLE, Plan


def rows(plan: Plan, gpus: int = 8) -> dict[str, tuple[float, str]]:
    """Return seconds of each test of a plan, and how they come about."""
    idle = IdleNode(plan, gpus)
    found = {check.id: list(check.cost(idle)) for check in CHECKS.values() if plan.name in check.plans}
    return {
        test: (total(steps), ", ".join(str(step) for step in steps if step.times))
        for test, steps in found.items()
    }


def table(plan: Plan, gpus: int = 8) -> str:
    """Return the sum as docs/operate/validation.md shows it; a test keeps that of `quick` under a minute."""
    lines = [f"| Test | Seconds on {gpus} GPUs | Made of |", "|---|---|---|"]
    found = rows(plan, gpus)
    lines += [f"| `{test}` | {seconds:.1f} | {words} |" for test, (seconds, words) in found.items()]
    lines.append(f"| all | {sum(seconds for seconds, _ in found.values()):.1f} | |")
    return "\n".join(lines) + "\n"


PAGE = ROOT / "docs/operate/validation.md"
SPECS = ROOT / "roles" / "gpu_validation" / "meta" / "argument_specs.yml"


def row(check: Check) -> str:
    """Return a check's row in the table of tests."""
    measured = " ".join((inspect.getdoc(check) or "").split())
    others = [f"`{name}`" for name in WHOLE if name not in check.plans]
    *first, last = others or [""]
    left_out = f" Not in {' and '.join(filter(None, [', '.join(first), last]))}." if others else ""
    needs = ", ".join(need.words for need in check.needs)
    return f"| `{check.id}` | {check.scope} | {measured}{left_out} | {needs or 'nothing'} | {check.passes} |"


def between(text: str, name: str, content: str, source: str = "validation/checks") -> str:
    """Return the page with `content`, made from `source`, between the marks of this name."""
    begin, end = f"<!-- {name}: made by `make docs` from {source} -->\n", f"<!-- end of {name} -->\n"
    before, found, rest = text.partition(begin)
    _, found_end, after = rest.partition(end)
    if not (found and found_end):
        raise ValueError(f"a page of docs: expected the marks {begin.strip()} and {end.strip()}")
    return f"{before}{begin}\n{content}\n{end}{after}"


def page(text: str) -> str:
    """docs/operate/validation.md with its tables as they must be."""
    head = ["| Test | Of | What is measured | Needs | Right, if |", "|---|---|---|---|---|"]
    tests = "\n".join([*head, *map(row, CHECKS.values())]) + "\n"
    return between(between(text, "tests", tests), "estimate", table(PLANS["quick"]))


def specs(text: str) -> str:
    """Return the role's argument specs with the tests that may be required."""
    choices = "".join(f"          - {test}\n" for test in TESTS)
    return re.sub(
        r"(gpu_validation_required_tests:\n.*?choices:\n)(?: +- \w+\n)*( +default: )[^\n]*",
        lambda found: f"{found[1]}{choices}{found[2]}[{', '.join(PROVE_A_GPU)}]",
        text,
        count=1,
        flags=re.DOTALL,
    )


def documents() -> dict[Path, str]:
    """Return the content of each file that has a part made from the checks."""
    files = {PAGE: page, SPECS: specs}
    return {path: made(path.read_text(encoding="utf-8")) for path, made in files.items()}


if __name__ == "__main__":
    sys.exit(write(documents()))
