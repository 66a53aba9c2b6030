"""What a stack of NVIDIA's has beside the driver, under the distribution's names."""

from __future__ import annotations

from collections.abc import Collection

from temper.plan.refusals import Refusal, advice, refusal
from temper.plan.request import Request
from temper.plan.tables import Stack
from temper.plan.versions import version

CONTAINER_TOOLKIT = (
    "nvidia-container-toolkit",
    "nvidia-container-toolkit-base",
    "libnvidia-container-tools",
    "libnvidia-container1",
)
# The CUDA major version that a driver speaks, by its first branch.
DCGM_CUDA_13_BRANCH = 580


def libraries(request: Request, stack: Stack) -> dict[str, str]:
    """CUDA toolkit, cuDNN, NCCL and container toolkit."""
    return (
        {f"cuda-toolkit-{stack.cuda.replace('.', '-')}": stack.cuda_package}
        | {name.format(stack.cuda_major): stack.cudnn_package for name in request.distribution.cudnn_packages}
        | dict.fromkeys(request.distribution.nccl_packages, stack.nccl_package)
        | dict.fromkeys(CONTAINER_TOOLKIT, stack.container_toolkit_package)
    )


def fabric_packages(request: Request, stack: Stack) -> dict[str, str]:
    """Return what NVSwitches, NVLink 5 switches and memory that nodes share need, at the driver's version."""
    distribution, names = request.distribution, []
    if request.fabric != "none":
        names += ["nvidia-fabricmanager", "libnvidia-nscq"]
    if request.fabric == "nvlink5" and distribution.architecture == "x86_64":
        # NVIDIA builds the switch library for no other architecture.
        names.append("libnvsdm")
    if request.variables.nvidia_stack.imex:
        names.append("nvidia-imex")
    if stack.branch < request.tables.fabric_first_plain_branch:
        names = [distribution.fabric_name(name, stack.branch) for name in names]
    found = dict.fromkeys(names, distribution.driver_version(stack))
    # The subnet manager has versions of its own (dates), which no driver names.
    return found | ({"nvlsm": ""} if request.fabric == "nvlink5" else {})


def dcgm_packages(request: Request, stack: Stack) -> dict[str, str]:
    """DCGM and its exporter, where the operator wants them."""
    wanted, models = request.variables.nvidia_stack, request.tables.models
    if not wanted.dcgm_exporter and not wanted.dcgm:
        return {}
    major = 13 if stack.branch >= DCGM_CUDA_13_BRANCH else 12
    names = ["datacenter-gpu-manager-4-core", f"datacenter-gpu-manager-4-cuda{major}"]
    # DCGM's tests for CUDA 13 have no kernels for Volta and before.
    if major > 12 and any(version(models[gpu.model].compute_capability) < (7, 5) for gpu in request.gpus):
        names.append("datacenter-gpu-manager-4-cuda12")
    exporter = {"datacenter-gpu-manager-exporter": stack.dcgm_exporter_package}
    return dict.fromkeys(names, stack.dcgm_package) | (exporter if wanted.dcgm_exporter else {})


def graphics_packages(request: Request, stack: Stack) -> dict[str, str]:
    """Return the driver's libraries for graphics, where the operator wants them and their names are known."""
    if not request.variables.nvidia_stack.graphics:
        return {}
    distribution = request.distribution
    # The suffix of names that end in the branch, as the driver's own do there.
    suffix = f"-{stack.branch}" if distribution.named_by_branch(stack.branch) else ""
    names = request.tables.graphics_packages.get(distribution.release.family, ())
    return dict.fromkeys((name.format(suffix=suffix) for name in names), distribution.driver_version(stack))


def graphics_problems(names: Collection[str], request: Request) -> list[Refusal]:
    """Return why a node cannot have graphics libraries.

    Packages whose names are a guess are not installed.
    """
    if names or not request.variables.nvidia_stack.graphics:
        return []
    family, source = request.distribution.release.family, request.variables.nvidia_stack.source
    own = request.tables.distro_driver_packages.get(family)
    known = {"nvidia": family in request.tables.graphics_packages, "distro": bool(own and own.graphics)}
    other = next((name for name in known if known[name]), "")
    remedy = advice("graphics-elsewhere", source=other) if other else advice("graphics-off")
    return [refusal("graphics-unknown", remedy, system=request.distribution.name, source=source)]


def services(request: Request) -> tuple[str, ...]:
    """Return the units that have to run on this node."""
    stack = request.variables.nvidia_stack
    wanted = {
        "nvidia-persistenced": True,
        "nvidia-fabricmanager": request.fabric != "none",
        "nvidia-imex": stack.imex,
        "nvidia-dcgm": stack.dcgm or stack.dcgm_exporter,
        "nvidia-dcgm-exporter": stack.dcgm_exporter,
    }
    return tuple(unit for unit, needed in wanted.items() if needed)


def build_packages(request: Request, modules: str) -> dict[str, str]:
    """Return what DKMS needs: headers of the present and the coming kernels, compilers, and openssl.

    A foreign kernel has no such package. The operator may do without those that follow the kernel: some
    distributions' packages bring the newest kernel along.
    """
    kernel, distribution = request.node.kernel, request.distribution
    follow = request.variables.nvidia_stack.follow_kernels
    # Where one name has the headers of all kernels, those of the running one come first.
    return (
        (distribution.following_headers(kernel) if follow else {})
        | ({} if kernel.headers_present else distribution.headers(kernel.release))
        | dict.fromkeys(distribution.compilers(modules), "")
        # DKMS signs what it builds.
        | ({"openssl": ""} if request.node.secure_boot == "enabled" else {})
    )
