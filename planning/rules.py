"""Which driver, CUDA and kernel modules work on which GPU: the rules of data/nvidia_compatibility.yml."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from planning.versions import branch, version

if TYPE_CHECKING:
    from planning.model import Facts


def stack_problems(stack_name: str, stack: Facts, gpus: list[dict[str, Any]], tables: Facts) -> list[str]:
    """Why this stack cannot drive these GPUs; each sentence names the rule and the remedy."""
    problems = []
    wanted = branch(stack["driver"])
    for gpu in gpus:
        rule = tables["nvidia_architectures"][gpu["architecture"]]
        last, first, last_cuda = rule["last_branch"], rule["first_branch"], rule["last_cuda"]
        if last and wanted > last:
            problems.append(
                f"{gpu['name']} ({gpu['architecture']}) needs driver branch {last} or older; "
                f"stack {stack_name} has {wanted}; {suggest(gpus, tables)}"
            )
        elif first and wanted < first:
            problems.append(
                f"{gpu['name']} ({gpu['architecture']}) needs driver branch {first} or newer; "
                f"stack {stack_name} has {wanted}; {suggest(gpus, tables)}"
            )
        elif last_cuda and version(stack["cuda"]) > version(last_cuda):
            problems.append(
                f"{gpu['name']} ({gpu['architecture']}) works with CUDA {last_cuda} or older; "
                f"stack {stack_name} has {stack['cuda']}; {suggest(gpus, tables)}"
            )
    return problems


def suggest(gpus: list[dict[str, Any]], tables: Facts) -> str:
    """The remedy: a stack in the table that fits all GPUs of the node."""
    fitting = [
        name
        for name, stack in tables["nvidia_stacks"].items()
        if all(fits(stack, tables["nvidia_architectures"][gpu["architecture"]]) for gpu in gpus)
    ]
    return (
        f"set nvidia_stack_name: {fitting[-1]}"
        if fitting
        else "no stack in data/stacks.yml fits all GPUs of this node"
    )


def fits(stack: Facts, rule: Facts) -> bool:
    """Whether an architecture's rule allows this stack's driver and CUDA."""
    wanted = branch(stack["driver"])
    return (
        (not rule["last_branch"] or wanted <= rule["last_branch"])
        and (not rule["first_branch"] or wanted >= rule["first_branch"])
        and (not rule["last_cuda"] or version(stack["cuda"]) <= version(rule["last_cuda"]))
    )


def kernel_modules(
    wish: str, driver: str, gpus: list[dict[str, Any]], tables: Facts
) -> tuple[str, list[str]]:
    """The flavour of the kernel modules, `open` or `proprietary`, and why the wish cannot be met."""
    needs = {tables["nvidia_architectures"][gpu["architecture"]]["open_modules"]: gpu["name"] for gpu in gpus}
    if "required" in needs and "impossible" in needs:
        return "open", [
            f"{needs['required']} works only with open kernel modules, {needs['impossible']} only with "
            "proprietary ones: one node cannot drive both; move one of them to another node"
        ]
    flavour = wish
    if wish == "auto":
        flavour = "proprietary" if "impossible" in needs else "open"
    problems = []
    if flavour == "open" and "impossible" in needs:
        problems.append(
            f"{needs['impossible']} does not work with open kernel modules; "
            "set nvidia_stack_kernel_modules: auto"
        )
    if flavour == "proprietary" and "required" in needs:
        problems.append(
            f"{needs['required']} works only with open kernel modules; set nvidia_stack_kernel_modules: auto"
        )
    rules = tables["nvidia_kernel_modules"]
    if flavour == "open" and version(driver) < version(rules["open_minimum_driver"]["driver"]):
        problems.append(
            f"open kernel modules of driver {driver} do not compile on current kernels; "
            f"use a stack with driver {rules['open_minimum_driver']['driver']} or newer"
        )
    if flavour == "proprietary" and branch(driver) > rules["proprietary_last_branch"]["branch"]:
        problems.append(
            f"driver branch {branch(driver)} has no proprietary kernel modules; "
            "set nvidia_stack_kernel_modules: auto"
        )
    return flavour, problems
