"""Which driver, CUDA, cuDNN and kernel modules work on which GPU: the rules of data/nvidia_compatibility.yml.

Each sentence names the rule and what was found; temper/plan/choice.py adds the remedy, a stack that fits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from temper.plan.versions import branch, parts, version

if TYPE_CHECKING:
    from collections.abc import Iterator

    from temper.plan.model import Gpu
    from temper.plan.request import Request
    from temper.plan.tables import Stack, Tables

MONTHS_OF_NOTICE = 2


def gpu_problems(stack: Stack, gpu: Gpu, tables: Tables) -> Iterator[str]:
    """Why this stack cannot drive this GPU."""
    rule, cuda = tables.architectures[gpu.architecture], version(stack.cuda)
    who, has = f"{gpu.name} ({gpu.architecture})", f"stack {stack.name} has"
    if rule.last_branch and stack.branch > rule.last_branch:
        yield f"{who} needs driver branch {rule.last_branch} or older; {has} {stack.branch}"
    elif rule.first_branch and stack.branch < rule.first_branch:
        yield f"{who} needs driver branch {rule.first_branch} or newer; {has} {stack.branch}"
    elif rule.last_cuda and cuda > version(rule.last_cuda):
        yield f"{who} works with CUDA {rule.last_cuda} or older; {has} {stack.cuda}"
    elif rule.first_cuda and cuda < version(rule.first_cuda):
        yield f"{who} needs CUDA {rule.first_cuda} or newer; {has} {stack.cuda}"
    elif rule.last_cudnn and parts(stack.cudnn_package, 3) > version(rule.last_cudnn):
        yield f"{who} works with cuDNN {rule.last_cudnn} or older; {has} {stack.cudnn_package}"


def own_problems(stack: Stack, tables: Tables) -> Iterator[str]:
    """What in a stack does not fit together, whatever it is to run on."""
    minimum = tables.cuda_minimum_drivers.get(stack.cuda_major)
    if not minimum or str(stack.branch) not in tables.ends_of_life:
        unknown = f"CUDA {stack.cuda}" if not minimum else f"driver branch {stack.branch}"
        yield f"stack {stack.name}: {unknown} is in no table of data/nvidia_compatibility.yml"
        return
    if version(stack.driver) < version(minimum):
        yield (
            f"CUDA {stack.cuda} starts on driver {minimum} or newer; stack {stack.name} has {stack.driver}"
        )
    cudnn, found = tables.cudnn_cuda.get(stack.cuda_major), parts(stack.cudnn_package, 3)
    if cudnn and not version(cudnn.first) <= found <= (version(cudnn.last) if cudnn.last else found):
        yield (
            f"there is no cuDNN {stack.cudnn_package} for CUDA {stack.cuda_major} "
            f"({cudnn.first} to {cudnn.last or 'the newest'}); see stack {stack.name}"
        )


def repository_problems(stack: Stack, request: Request) -> Iterator[str]:
    """What NVIDIA's own repository of this release does not hold. A mirror may hold more: apt is asked."""
    if from_nvidia(request):
        yield from absences(stack, request)


def absences(stack: Stack, request: Request) -> Iterator[str]:
    """What of a stack NVIDIA's own repository of this release is not known to hold."""
    release, architecture = request.distribution.release, request.distribution.architecture
    whose = f"NVIDIA's repository for {release.name}"
    if architecture not in release.architectures:
        yield f"nothing shows that {whose} has packages for {architecture}"
    elif release.first_branch and stack.branch < release.first_branch:
        first = release.first_branch
        yield f"{whose} begins with driver branch {first}; stack {stack.name} has {stack.branch}"
    elif release.first_cuda and version(stack.cuda) < version(release.first_cuda):
        yield f"{whose} begins with CUDA {release.first_cuda}; stack {stack.name} has {stack.cuda}"


def from_nvidia(request: Request) -> bool:
    """Whether the packages come from NVIDIA's own address."""
    url = request.variables.nvidia_stack.cuda_repository_url
    return url.rstrip("/") == request.tables.repository_url


def fabric_problems(stack: Stack, request: Request) -> Iterator[str]:
    """NVLink 5 switches need a driver that knows them."""
    minimum = request.tables.nvlink5_minimum_driver
    if request.fabric == "nvlink5" and version(stack.driver) < version(minimum):
        yield f"NVLink 5 switches need driver {minimum} or newer; stack {stack.name} has {stack.driver}"


def stack_problems(stack: Stack, request: Request) -> list[str]:
    """Every rule that this stack breaks on this node, without what kernel modules need."""
    return [
        *own_problems(stack, request.tables),
        *(text for gpu in request.gpus for text in gpu_problems(stack, gpu, request.tables)),
        *repository_problems(stack, request),
        *fabric_problems(stack, request),
    ]


def module_need(gpu: Gpu, tables: Tables) -> str:
    """What kernel modules a GPU needs: `required`, `recommended`, `supported` or `impossible` open ones."""
    if tables.models[gpu.model].form_factor == tables.open_required_form_factor:
        return "required"
    return tables.architectures[gpu.architecture].open_modules


def drives(number: int, modules: str, gpu: Gpu, tables: Tables) -> bool:
    """Whether a driver branch with modules of this flavour drives a GPU."""
    if not gpu.model:
        return False
    rule, need = tables.architectures[gpu.architecture], module_need(gpu, tables)
    fits = (rule.first_branch or 0) <= number <= (rule.last_branch or number)
    return fits and need != ("impossible" if modules == "open" else "required")


def tied_to_modules(request: Request) -> tuple[str, str]:
    """A GPU of the node that works only with open modules, and one only with proprietary; "" is none."""
    needs = {module_need(gpu, request.tables): gpu.name for gpu in request.gpus}
    return needs.get("required", ""), needs.get("impossible", "")


def kernel_modules(request: Request, driver: str) -> tuple[str, list[str]]:
    """The flavour of the kernel modules, `open` or `proprietary`, and why the wanted one cannot be had."""
    tables, flavour = request.tables, request.variables.nvidia_stack.kernel_modules
    only_open, only_proprietary = tied_to_modules(request)
    if only_open and only_proprietary:
        return "open", [
            f"{only_open} works only with open kernel modules, {only_proprietary} only with "
            "proprietary ones: one node cannot drive both; move one of them to another node"
        ]
    if flavour == "auto":
        flavour = "proprietary" if only_proprietary else "open"
    problems = []
    if flavour == "open":
        if only_proprietary:
            problems.append(
                f"{only_proprietary} does not work with open kernel modules; "
                "set nvidia_stack_kernel_modules: auto"
            )
        if version(driver) < version(tables.open_minimum_driver):
            problems.append(
                f"open kernel modules of driver {driver} do not compile on current kernels; "
                f"use a stack with driver {tables.open_minimum_driver} or newer"
            )
    else:
        if only_open:
            problems.append(
                f"{only_open} works only with open kernel modules; set nvidia_stack_kernel_modules: auto"
            )
        if branch(driver) > tables.proprietary_last_branch:
            problems.append(
                f"driver branch {branch(driver)} has no proprietary kernel modules; "
                "set nvidia_stack_kernel_modules: auto"
            )
    return flavour, problems


def stack_warnings(stack: Stack, request: Request) -> list[str]:
    """What works and should be known."""
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
    """A branch that gets no security fixes any more, or soon will not."""
    end = request.tables.ends_of_life.get(str(stack.branch))
    if not end or not request.today:
        return
    left = months(end) - months(request.today)
    if left < 0:
        yield f"driver branch {stack.branch} has had no security fixes since {end}; plan a newer stack"
    elif left <= MONTHS_OF_NOTICE:
        yield f"driver branch {stack.branch} ends in {end}, with its security fixes; plan a newer stack"


def months(date: str) -> int:
    """A date ("2026-11" or "2026-11-21") as a number of months that can be subtracted."""
    year, month = date.split("-")[:2]
    return int(year) * 12 + int(month)
