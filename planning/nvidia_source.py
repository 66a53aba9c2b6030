"""The source `nvidia`: one stack of data/stacks.yml from NVIDIA's repositories or a mirror of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planning import debian
from planning.headers import kernel_headers
from planning.model import Offer, Request
from planning.repositories import nvidia_repositories
from planning.rules import kernel_modules, stack_problems
from planning.versions import branch

if TYPE_CHECKING:
    from planning.model import Facts

# NVIDIA's packages register both flavours under one name.
DKMS_NAME = "nvidia"


def offer(request: Request) -> Offer:
    """The packages of the stack that the operator named, or of the recommended one."""
    tables, values = request.tables, request.values
    stacks = tables["nvidia_stacks"]
    name = values["nvidia_stack_name"] or tables["nvidia_default_stack"]
    stack = stacks.get(name)
    if not stack:
        problem = (
            f"nvidia_stack_name: no stack is named {name}; data/stacks.yml has: {', '.join(sorted(stacks))}"
        )
        return Offer(stack=name, problems=[problem])
    flavour, module_problems = kernel_modules(
        values["nvidia_stack_kernel_modules"], stack["driver"], request.gpus, tables
    )
    fabric = request.fabric != "none"
    return Offer(
        stack=name,
        driver={
            "version": stack["driver"],
            "package_version": stack["driver_package"],
            "branch": branch(stack["driver"]),
            "modules": flavour,
            "end_of_life": tables["nvidia_driver_branches"][str(branch(stack["driver"]))]["end_of_life"],
            "dkms": DKMS_NAME,
        },
        cuda=stack["cuda"],
        torch=stack["torch"],
        packages=debian.packages(stack, flavour, request.fabric),
        present=kernel_headers(request),
        pins=debian.pins(stack),
        repositories=nvidia_repositories(request),
        services=["nvidia-persistenced"] + (["nvidia-fabricmanager"] if fabric else []),
        runtime=runtime(stack, fabric=fabric),
        problems=stack_problems(name, stack, request.gpus, tables) + module_problems,
    )


def runtime(stack: Facts, *, fabric: bool) -> dict[str, str | None]:
    """The versions that the libraries and daemons themselves must report once they are loaded."""
    return {
        "cudnn": upstream(stack["cudnn_package"], parts=3),
        "nccl": upstream(stack["nccl_package"], parts=3),
        "fabric_manager": stack["driver"] if fabric else None,
        "cuda_driver": stack["cuda"],
    }


def upstream(package_version: str, parts: int) -> str:
    """The first numbers of a package's version: 9.19.0 of 9.19.0.56-1."""
    return ".".join(package_version.partition("-")[0].split(".")[:parts])
