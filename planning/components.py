"""What a stack has beside the driver, under each distribution's names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planning.versions import branch, version

if TYPE_CHECKING:
    from planning.model import Facts, Request

PLAIN_PINS = "nvidia-* libnvidia-* libcuda1 libnvsdm firmware-nvidia-gsp"
# The CUDA major version that a driver speaks, by its first branch.
DCGM_CUDA_13_BRANCH = 580


def driver_version(request: Request, stack: Facts) -> str:
    """The version of the driver's packages on this system."""
    scheme = request.system.row["scheme"]
    found = str(stack["driver_package"][scheme])
    return f"{found}.el{request.system.major}" if scheme == "rhel" else found


def libraries(request: Request, stack: Facts) -> dict[str, str]:
    """CUDA toolkit, cuDNN, NCCL and container toolkit."""
    major, minor = stack["cuda"].split(".")
    rpm = request.system.row["scheme"] == "rhel"
    nccl = ("libnccl", "libnccl-devel") if rpm else ("libnccl2", "libnccl-dev")
    toolkit = (
        "nvidia-container-toolkit",
        "nvidia-container-toolkit-base",
        "libnvidia-container-tools",
        "libnvidia-container1",
    )
    return (
        {
            f"cuda-toolkit-{major}-{minor}": stack["cuda_package"],
            f"cudnn9-cuda-{major}": stack["cudnn_package"],
        }
        | dict.fromkeys(nccl, stack["nccl_package"])
        | dict.fromkeys(toolkit, stack["container_toolkit_package"])
    )


def fabric_packages(request: Request, stack: Facts) -> dict[str, str]:
    """What NVSwitches, NVLink 5 switches and memory that nodes share need, at the driver's version."""
    scheme, number = request.system.row["scheme"], branch(stack["driver"])
    plain = number >= request.tables["nvidia_fabric"]["plain_names"]["first_branch"]
    names: list[str] = []
    if request.fabric != "none":
        names += ["nvidia-fabricmanager", "libnvidia-nscq"]
    if request.fabric == "nvlink5" and request.system.architecture == "x86_64":
        # NVIDIA builds the switch library for no other architecture.
        names.append("libnvsdm")
    if request.values["nvidia_stack_imex"]:
        names.append("nvidia-imex")
    if not plain and scheme == "rhel":
        names = [name.replace("fabricmanager", "fabric-manager") for name in names]
    elif not plain:
        names = [f"{name}-{number}" for name in names]
    found = dict.fromkeys(names, driver_version(request, stack))
    # The subnet manager has versions of its own (dates), which no driver names.
    return found | ({"nvlsm": ""} if request.fabric == "nvlink5" else {})


def dcgm_packages(request: Request, stack: Facts) -> dict[str, str]:
    """DCGM and its exporter, where the operator wants them."""
    exporter = bool(request.values.get("nvidia_stack_dcgm_exporter"))
    if not exporter and not request.values.get("nvidia_stack_dcgm"):
        return {}
    major = 13 if branch(stack["driver"]) >= DCGM_CUDA_13_BRANCH else 12
    # DCGM's tests for CUDA 13 have no kernels for Volta and before.
    old = any(
        version(request.tables["models"][gpu["model"]]["compute_capability"]) < (7, 5) for gpu in request.gpus
    )
    names = ["datacenter-gpu-manager-4-core", f"datacenter-gpu-manager-4-cuda{major}"]
    if old and major > 12:
        names.append("datacenter-gpu-manager-4-cuda12")
    found = dict.fromkeys(names, stack["dcgm_package"])
    return found | ({"datacenter-gpu-manager-exporter": stack["dcgm_exporter_package"]} if exporter else {})


def services(request: Request) -> list[str]:
    """The units that have to run on this node."""
    dcgm = request.values.get("nvidia_stack_dcgm_exporter") or request.values.get("nvidia_stack_dcgm")
    wanted = {
        "nvidia-persistenced": True,
        "nvidia-fabricmanager": request.fabric != "none",
        "nvidia-imex": request.values["nvidia_stack_imex"],
        "nvidia-dcgm": dcgm,
        "nvidia-dcgm-exporter": request.values.get("nvidia_stack_dcgm_exporter"),
    }
    return [unit for unit, needed in wanted.items() if needed]
