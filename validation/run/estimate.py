"""How long a plan takes on an idle node: the sum of what its checks say they cost.

docs/operate/validation.md shows the sum of the quick plan; a test keeps it there, and under a minute.
"""

from __future__ import annotations

from validation.checks.check import IdleNode, total
from validation.checks.registry import CHECKS
from validation.model.plans import Plan


def rows(plan: Plan, gpus: int = 8) -> dict[str, tuple[float, str]]:
    """Return seconds of each test of a plan, and how they come about."""
    idle = IdleNode(plan, gpus)
    found = {check.id: list(check.cost(idle)) for check in CHECKS.values() if plan.name in check.plans}
    return {
        test: (total(steps), ", ".join(str(step) for step in steps if step.times))
        for test, steps in found.items()
    }


def table(plan: Plan, gpus: int = 8) -> str:
    """Return the sum as docs/operate/validation.md shows it."""
    lines = [f"| Test | Seconds on {gpus} GPUs | Made of |", "|---|---|---|"]
    found = rows(plan, gpus)
    lines += [f"| `{test}` | {seconds:.1f} | {words} |" for test, (seconds, words) in found.items()]
    lines.append(f"| all | {sum(seconds for seconds, _ in found.values()):.1f} | |")
    return "\n".join(lines) + "\n"
