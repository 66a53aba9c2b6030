"""Which driver, CUDA, cuDNN and kernel modules work on which GPU: the rules of data/nvidia_compatibility.yml.

Each refusal names the rule and what was found; nvidia_source.py adds the remedy, a stack that fits.
"""

from __future__ import annotations

from collections.abc import Iterator

from temper.plan.model import Gpu
from temper.plan.refusals import Refusal, refusal
from temper.plan.request import Request
from temper.plan.tables import Stack, Tables
from temper.plan.versions import branch, parts, version

MONTHS_OF_NOTICE = 2


def gpu_problems(stack: Stack, gpu: Gpu, tables: Tables) -> Iterator[Refusal]:
    """Yield why this stack cannot drive this GPU."""
    rule, cuda = tables.architectures[gpu.architecture], version(stack.cuda)

    def broken(code: str, limit: int | str, found: int | str) -> Refusal:
        return refusal(
            code, gpu=gpu.name, architecture=gpu.architecture, limit=limit, stack=stack.name, found=found
        )

    if rule.last_branch and stack.branch > rule.last_branch:
        yield broken("gpu-needs-older-branch", rule.last_branch, stack.branch)
    elif rule.first_branch and stack.branch < rule.first_branch:
        yield broken("gpu-needs-newer-branch", rule.first_branch, stack.branch)
    elif rule.last_cuda and cuda > version(rule.last_cuda):
        yield broken("gpu-needs-older-cuda", rule.last_cuda, stack.cuda)
    elif rule.first_cuda and cuda < version(rule.first_cuda):
        yield broken("gpu-needs-newer-cuda", rule.first_cuda, stack.cuda)
    elif rule.last_cudnn and parts(stack.cudnn_package, 3) > version(rule.last_cudnn):
        yield broken("gpu-needs-older-cudnn", rule.last_cudnn, stack.cudnn_package)


def own_problems(stack: Stack, tables: Tables) -> Iterator[Refusal]:
    """Yield what in a stack does not fit together, whatever it is to run on."""
    minimum = tables.cuda_minimum_drivers.get(stack.cuda_major)
    if not minimum or str(stack.branch) not in tables.ends_of_life:
        unknown = f"CUDA {stack.cuda}" if not minimum else f"driver branch {stack.branch}"
        yield refusal("stack-not-in-tables", stack=stack.name, what=unknown)
        return
    if version(stack.driver) < version(minimum):
        yield refusal(
            "stack-driver-too-old", cuda=stack.cuda, limit=minimum, stack=stack.name, found=stack.driver
        )
    cudnn, found = tables.cudnn_cuda.get(stack.cuda_major), parts(stack.cudnn_package, 3)
    if cudnn and not version(cudnn.first) <= found <= (version(cudnn.last) if cudnn.last else found):
        yield refusal(
            "stack-cudnn",
            cudnn=stack.cudnn_package,
            cuda=stack.cuda_major,
            first=cudnn.first,
            last=cudnn.last or "the newest",
            stack=stack.name,
        )


def repository_problems(stack: Stack, request: Request) -> Iterator[Refusal]:
    """Yield what NVIDIA's own repository of this release does not hold.

    A mirror may hold more: apt is asked.
    """
    if from_nvidia(request):
        yield from absences(stack, request)


def absences(stack: Stack, request: Request) -> Iterator[Refusal]:
    """Yield what of a stack NVIDIA's own repository of this release is not known to hold."""
    release, architecture = request.distribution.release, request.distribution.architecture
    stacks = {"system": release.name, "stack": stack.name}
    if architecture not in release.architectures:
        yield refusal("repository-architecture", system=release.name, architecture=architecture)
    elif release.first_branch and stack.branch < release.first_branch:
        yield refusal("repository-branch", first=release.first_branch, found=stack.branch, **stacks)
    elif release.first_cuda and version(stack.cuda) < version(release.first_cuda):
        yield refusal("repository-cuda", first=release.first_cuda, found=stack.cuda, **stacks)


def from_nvidia(request: Request) -> bool:
    """Return whether the packages come from NVIDIA's own address."""
    url = request.variables.nvidia_stack.cuda_repository_url
    return url.rstrip("/") == request.tables.repository_url


def fabric_problems(stack: Stack, request: Request) -> Iterator[Refusal]:
    """NVLink 5 switches need a driver that knows them."""
    minimum = request.tables.nvlink5_minimum_driver
    if request.fabric == "nvlink5" and version(stack.driver) < version(minimum):
        yield refusal("fabric-needs-newer-driver", limit=minimum, stack=stack.name, found=stack.driver)


def stack_problems(stack: Stack, request: Request) -> list[Refusal]:
    """Return every rule that this stack breaks on this node, without what kernel modules need."""
    return [
        *own_problems(stack, request.tables),
        *(one for gpu in request.gpus for one in gpu_problems(stack, gpu, request.tables)),
        *repository_problems(stack, request),
        *fabric_problems(stack, request),
    ]


def module_need(gpu: Gpu, tables: Tables) -> str:
    """Return how a GPU needs open kernel modules: `required`, `recommended`, `supported` or `impossible`."""
    if tables.models[gpu.model].form_factor == tables.open_required_form_factor:
        return "required"
    return tables.architectures[gpu.architecture].open_modules


def drives(number: int, modules: str, gpu: Gpu, tables: Tables) -> bool:
    """Return whether a driver branch with modules of this flavour drives a GPU."""
    if not gpu.model:
        return False
    rule, need = tables.architectures[gpu.architecture], module_need(gpu, tables)
    fits = (rule.first_branch or 0) <= number <= (rule.last_branch or number)
    return fits and need != ("impossible" if modules == "open" else "required")


def tied_to_modules(request: Request) -> tuple[str, str]:
    """Return a GPU that works only with open modules, and one only with proprietary; "" for none."""
    needs = {module_need(gpu, request.tables): gpu.name for gpu in request.gpus}
    return needs.get("required", ""), needs.get("impossible", "")


def kernel_modules(request: Request, driver: str) -> tuple[str, list[Refusal]]:
    """Return the kernel modules' flavour, `open` or `proprietary`, and why the wanted one cannot be had."""
    tables, flavour = request.tables, request.variables.nvidia_stack.kernel_modules
    only_open, only_proprietary = tied_to_modules(request)
    if only_open and only_proprietary:
        return "open", [refusal("modules-contradict", open_only=only_open, proprietary_only=only_proprietary)]
    if flavour == "auto":
        flavour = "proprietary" if only_proprietary else "open"
    problems = []
    if flavour == "open":
        if only_proprietary:
            problems.append(refusal("modules-not-open", gpu=only_proprietary))
        if version(driver) < version(tables.open_minimum_driver):
            problems.append(refusal("modules-open-driver", driver=driver, limit=tables.open_minimum_driver))
    else:
        if only_open:
            problems.append(refusal("modules-only-open", gpu=only_open))
        if branch(driver) > tables.proprietary_last_branch:
            problems.append(refusal("modules-no-proprietary", branch=branch(driver)))
    return flavour, problems


def stack_warnings(stack: Stack, request: Request) -> list[str]:
    """Return what works and should be known."""
    tables, driver = request.tables, version(stack.driver)
    found = list(end_of_life_warnings(stack, request))
    newest, minimum = tables.cuda_drivers.get(stack.cuda), tables.cuda_minimum_drivers.get(stack.cuda_major)
    if newest and minimum and version(minimum) <= driver < version(newest):
        found.append(
            f"CUDA {stack.cuda} came with driver {newest}; on {stack.driver} its programs run, but "
            "PTX that is compiled at run time and newer calls do not"
        )
    return found


def end_of_life_warnings(stack: Stack, request: Request) -> Iterator[str]:
    """Yield a branch that gets no security fixes any more, or soon will not."""
    end = request.tables.ends_of_life.get(str(stack.branch))
    if not end or not request.today:
        return
    left = months(end) - months(request.today)
    if left < 0:
        yield f"driver branch {stack.branch} has had no security fixes since {end}; plan a newer stack"
    elif left <= MONTHS_OF_NOTICE:
        yield f"driver branch {stack.branch} ends in {end}, with its security fixes; plan a newer stack"


def months(date: str) -> int:
    """Return a date ("2026-11" or "2026-11-21") as a number of months that can be subtracted."""
    year, month = date.split("-")[:2]
    return int(year) * 12 + int(month)


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
