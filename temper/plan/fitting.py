"""The stacks that break no rule on a node, in the order in which they are taken."""

from __future__ import annotations

from typing import TYPE_CHECKING

from temper.plan.rules import absences, kernel_modules, stack_problems
from temper.plan.tables import Stack
from temper.plan.versions import version

if TYPE_CHECKING:
    from temper.plan.request import Request

# Types of driver branches by how long they get security fixes: long-term support, production, new features.
BRANCH_TYPES = ("LTSB", "PB", "NFB")


def fitting_stacks(request: Request) -> list[Stack]:
    """Return the stacks that break no rule on this node: long-term branches, then recommended ones, first.

    What NVIDIA's own repository is not known to hold comes last: a mirror was probably filled from there.
    """
    tables = request.tables
    found = [tables.stacks[name] for name in dict.fromkeys((*tables.default_stacks, *tables.stacks))]
    # A stack whose branch is in no table fits nowhere.
    found.sort(key=lambda stack: BRANCH_TYPES.index(tables.branch_types.get(str(stack.branch), "NFB")))
    found.sort(key=lambda stack: any(absences(stack, request)))
    if request.unknown_gpus:
        # Newer than the tables, probably: the newest driver has the best chance to know it.
        found.sort(key=lambda stack: version(stack.driver), reverse=True)
    return [
        stack
        for stack in found
        if not stack_problems(stack, request) and not kernel_modules(request, stack.driver)[1]
    ]
