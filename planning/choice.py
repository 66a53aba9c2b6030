"""Which stack a node gets: the one that was asked for, or the first recommended one that fits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planning.rules import has_new_unknown, kernel_modules, stack_problems
from planning.versions import version

if TYPE_CHECKING:
    from planning.model import Request


def fitting_stacks(request: Request) -> list[str]:
    """The stacks that break no rule on this node, the recommended ones first and in their order."""
    stacks, order = request.tables["nvidia_stacks"], request.tables["nvidia_default_stacks"]
    names = [name for name in order if name in stacks] + [name for name in stacks if name not in order]
    if has_new_unknown(request):
        # Newer than the tables, probably: the newest driver has the best chance to know it.
        names.sort(key=lambda name: version(stacks[name]["driver"]), reverse=True)
    return [
        name
        for name in names
        if not stack_problems(name, stacks[name], request)
        and not kernel_modules(request, stacks[name]["driver"])[1]
    ]


def chosen_stack(request: Request) -> str:
    """The name of the stack to plan with; it may break rules, which the plan then says."""
    stacks, order = request.tables["nvidia_stacks"], request.tables["nvidia_default_stacks"]
    fitting = [name for name in fitting_stacks(request) if name in order]
    # Where none fits, the one that breaks the fewest rules: its sentences say what really is in the way.
    nearest = min(order, key=lambda name: len(stack_problems(name, stacks[name], request)))
    return str(request.values["nvidia_stack_name"] or (fitting or [nearest])[0])


def remedy(request: Request) -> str:
    """What to do where a stack does not fit: another one that fits all GPUs of the node, if there is one."""
    fitting = fitting_stacks(request)
    if fitting:
        return f"set nvidia_stack_name: {fitting[0]}"
    none = "no stack in data/stacks.yml fits all GPUs of this node on this system"
    if request.system.distribution in request.tables["distro_drivers"]:
        return f"{none}; nvidia_stack_source: distro has another driver"
    return none
