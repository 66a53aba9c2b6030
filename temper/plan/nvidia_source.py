"""The source `nvidia`: one stack of data/stacks.yml from NVIDIA's repositories or a mirror of them."""

from __future__ import annotations

import difflib
from dataclasses import replace

from temper.plan.components import (
    build_packages,
    dcgm_packages,
    fabric_packages,
    graphics_packages,
    graphics_problems,
    libraries,
    services,
)
from temper.plan.distro_source import driver_choice
from temper.plan.model import Driver, Offer, Runtime
from temper.plan.refusals import Remedy, advice, refusal
from temper.plan.repositories import nvidia_repositories, repository_key_problems
from temper.plan.request import Request
from temper.plan.rules import (
    absences,
    fitting_stacks,
    from_nvidia,
    gpu_problems,
    kernel_modules,
    stack_problems,
    stack_warnings,
    tied_to_modules,
)
from temper.plan.tables import Stack
from temper.plan.versions import dotted, parts

# NVIDIA's packages register both flavours under one name.
DKMS_NAME = "nvidia"


def offer(request: Request) -> Offer:
    """Return the packages of the stack that the operator named, or of the recommended one."""
    tables, distribution, name = request.tables, request.distribution, chosen_stack(request)
    stack = tables.stacks.get(name)
    if not stack:
        known = sorted(tables.stacks)
        close = difflib.get_close_matches(name, known, n=1)
        meant = advice("did-you-mean", name=close[0]) if close else None
        unknown = refusal("stack-name", meant, stack=name, where="", known=known)
        return Offer(stack=name, refusals=(unknown,))
    modules, module_problems = kernel_modules(request, stack.driver)
    graphics = graphics_packages(request, stack)
    return Offer(
        stack=name,
        driver=Driver(
            version=stack.driver,
            package_version=distribution.driver_version(stack),
            branch=stack.branch,
            modules=modules,
            end_of_life=tables.ends_of_life.get(str(stack.branch)),
            dkms=DKMS_NAME,
        ),
        cuda=stack.cuda,
        torch=stack.torch,
        packages=distribution.driver_packages(stack, modules)
        | libraries(request, stack)
        | fabric_packages(request, stack)
        | dcgm_packages(request, stack)
        | graphics,
        present=build_packages(request, modules)
        | ({"infiniband-diags": ""} if request.fabric == "nvlink5" else {}),
        pins=distribution.pins(stack),
        repositories=nvidia_repositories(request),
        module_streams=distribution.module_streams(stack, modules),
        services=services(request),
        runtime=Runtime(
            cudnn=dotted(parts(stack.cudnn_package, 3)),
            nccl=dotted(parts(stack.nccl_package, 3)),
            fabric_manager=stack.driver if request.fabric != "none" else None,
            cuda_driver=stack.cuda,
        ),
        refusals=(
            *(replace(problem, remedy=remedy(request)) for problem in stack_problems(stack, request)),
            *module_problems,
            *repository_key_problems(request),
            *graphics_problems(graphics, request),
        ),
        warnings=(*unseen_warnings(stack, request), *stack_warnings(stack, request)),
        hint=mirror_hint(stack, request),
    )


def mirror_hint(stack: Stack, request: Request) -> str:
    """Return what a plain mirror of NVIDIA's repository cannot have."""
    absence = next(absences(stack, request), None)
    if from_nvidia(request) or not absence:
        return ""
    return (
        f"{absence.text}: a plain mirror of it does not have that stack; add its packages, or choose another "
        "nvidia_stack_name"
    )


def unseen_warnings(stack: Stack, request: Request) -> list[str]:
    """Return where the versions are made by rule and nobody has been seen installing them."""
    distribution, found = request.distribution, []
    if not from_nvidia(request):
        return []
    there = stack.nccl_package in request.node.packages.values()
    if distribution.name in stack.nccl_doubtful and not there:
        own = distribution.name in request.tables.distro_drivers
        remedies = f"{'set nvidia_stack_source: distro, or ' if own else ''}use a mirror that has it"
        found.append(
            f"NVIDIA's repository for {distribution.name} may lack NCCL {stack.nccl_package}; if the "
            f"simulation does not find it, {remedies}"
        )
    if distribution.name not in stack.seen:
        found.append(
            f"no published source has shown driver {distribution.driver_version(stack)} of stack "
            f"{stack.name} in NVIDIA's repository for {distribution.name}; the version follows NVIDIA's "
            "naming"
        )
    return found


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
