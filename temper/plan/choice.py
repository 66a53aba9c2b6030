"""Which stack a node gets: the one that was asked for, or the first recommended one that fits."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from temper.plan.distro_source import driver_choice
from temper.plan.fitting import fitting_stacks
from temper.plan.refusals import Remedy, advice
from temper.plan.rules import gpu_problems, stack_problems, tied_to_modules

if TYPE_CHECKING:
    from temper.plan.request import Request


def chosen_stack(request: Request) -> str:
    """Return the name of the stack to plan with; it may break rules, which the plan then says."""
    if named := request.variables.nvidia_stack.name:
        return named
    stacks, order = request.tables.stacks, request.tables.default_stacks
    fitting = [stack.name for stack in fitting_stacks(request) if stack.name in order]

    # Where none fits, the one that breaks the fewest rules: its sentences say what really is in the way.
    # Of two such, the one that the GPUs can use.
    def rules_broken(name: str) -> tuple[int, int]:
        unusable = [one for gpu in request.gpus for one in gpu_problems(stacks[name], gpu, request.tables)]
        return len(stack_problems(stacks[name], request)), len(unusable)

    nearest = min(order, key=rules_broken)
    return (fitting or [nearest])[0]


def remedy(request: Request) -> Remedy:
    """Return what to do where a stack does not fit: another one that fits all GPUs of the node, if any.

    Modules that the GPUs cannot have are a sentence of their own.
    """
    wanted = replace(request.variables.nvidia_stack, kernel_modules="auto", name="")
    request = replace(request, variables=replace(request.variables, nvidia_stack=wanted))
    if fitting := fitting_stacks(request):
        return advice("use-stack", stack=fitting[0].name)
    if all(tied_to_modules(request)):
        return advice("move-gpu")
    row = request.tables.distro_drivers.get(request.distribution.name)
    if row and not driver_choice(row, request).problems:
        return advice("use-distro")
    return advice("other-system")
