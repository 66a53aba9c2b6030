"""The source `nvidia`: one stack of data/stacks.yml from NVIDIA's repositories or a mirror of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planning import debian, rhel, ubuntu
from planning.choice import chosen_stack, remedy
from planning.components import dcgm_packages, driver_version, fabric_packages, libraries, services
from planning.headers import build_packages
from planning.model import Offer, Request
from planning.repositories import nvidia_repositories, repository_key_problems
from planning.rules import from_nvidia, kernel_modules, stack_problems, stack_warnings
from planning.versions import branch, dotted, parts

if TYPE_CHECKING:
    from planning.model import Facts

# NVIDIA's packages register both flavours under one name.
DKMS_NAME = "nvidia"
SCHEMES = {"debian": debian, "ubuntu": ubuntu, "rhel": rhel}


def offer(request: Request) -> Offer:
    """The packages of the stack that the operator named, or of the recommended one."""
    stacks, system = request.tables["nvidia_stacks"], request.system
    name = chosen_stack(request)
    stack = stacks.get(name)
    if not stack:
        problem = (
            f"nvidia_stack_name: no stack is named {name}; data/stacks.yml has: {', '.join(sorted(stacks))}"
        )
        return Offer(stack=name, problems=[problem])
    flavour, module_problems = kernel_modules(request, stack["driver"])
    broken = stack_problems(name, stack, request)
    scheme = SCHEMES[system.row["scheme"]]
    row = request.tables["nvidia_driver_branches"].get(str(branch(stack["driver"])), {})
    return Offer(
        stack=name,
        driver={
            "version": stack["driver"],
            "package_version": driver_version(request, stack),
            "branch": branch(stack["driver"]),
            "modules": flavour,
            "end_of_life": row.get("end_of_life"),
            "dkms": DKMS_NAME,
        },
        cuda=stack["cuda"],
        torch=stack["torch"],
        packages=scheme.driver_packages(request, stack, flavour)
        | libraries(request, stack)
        | fabric_packages(request, stack)
        | dcgm_packages(request, stack),
        present=build_packages(request) + (["infiniband-diags"] if request.fabric == "nvlink5" else []),
        pins=scheme.pins(request, stack),
        repositories=nvidia_repositories(request),
        module_streams=rhel.module_streams(request, stack, flavour) if scheme is rhel else [],
        services=services(request),
        runtime=runtime(stack, fabric=request.fabric != "none"),
        problems=[f"{sentence}; {remedy(request)}" for sentence in broken]
        + module_problems
        + repository_key_problems(request),
        warnings=stack_warnings(name, stack, request) + unseen_warnings(name, stack, request),
        hint=mirror_hint(name, stack, request),
    )


def runtime(stack: Facts, *, fabric: bool) -> dict[str, str | None]:
    """The versions that the libraries and daemons themselves must report once they are loaded."""
    return {
        "cudnn": dotted(parts(stack["cudnn_package"], 3)),
        "nccl": dotted(parts(stack["nccl_package"], 3)),
        "fabric_manager": stack["driver"] if fabric else None,
        "cuda_driver": stack["cuda"],
    }


def mirror_hint(name: str, stack: Facts, request: Request) -> str:
    """What a plain mirror of NVIDIA's repository cannot have."""
    first = request.system.row["first_branch"]
    if from_nvidia(request) or not first or branch(stack["driver"]) >= first:
        return ""
    return (
        f"NVIDIA's own repository for {request.system.distribution} begins with driver branch {first}: a "
        f"plain mirror of it has no stack {name}; add its packages, or choose another nvidia_stack_name"
    )


def unseen_warnings(name: str, stack: Facts, request: Request) -> list[str]:
    """Where the versions are made by rule and nobody has been seen installing them."""
    if request.system.distribution in stack["seen"] or not from_nvidia(request):
        return []
    return [
        f"no published source has shown driver {driver_version(request, stack)} of stack {name} in NVIDIA's "
        f"repository for {request.system.distribution}; the version follows NVIDIA's naming scheme"
    ]
