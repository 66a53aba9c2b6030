"""Names of NVIDIA's packages for Debian."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planning.model import Facts


def packages(stack: Facts, flavour: str, fabric: str) -> dict[str, str]:
    """Names and exact versions. A pin keeps what they depend on at the driver's version."""
    driver = stack["driver_package"]
    cuda_major, cuda_minor = stack["cuda"].split(".")
    modules = "nvidia-kernel-open-dkms" if flavour == "open" else "nvidia-kernel-dkms"
    found = {
        "nvidia-driver-cuda": driver,
        modules: driver,
        "nvidia-persistenced": driver,
        "nvidia-modprobe": driver,
        f"cuda-toolkit-{cuda_major}-{cuda_minor}": stack["cuda_package"],
        f"cudnn9-cuda-{cuda_major}": stack["cudnn_package"],
        "libnccl2": stack["nccl_package"],
        "libnccl-dev": stack["nccl_package"],
        "nvidia-container-toolkit": stack["container_toolkit_package"],
        "nvidia-container-toolkit-base": stack["container_toolkit_package"],
        "libnvidia-container-tools": stack["container_toolkit_package"],
        "libnvidia-container1": stack["container_toolkit_package"],
    }
    if fabric != "none":
        found |= {"nvidia-fabricmanager": driver, "libnvidia-nscq": driver}
    return found


def pins(stack: Facts) -> list[dict[str, str]]:
    """Which versions apt may choose for what the listed packages pull in: their siblings at the same version.

    A pattern that also matches another package (nvidia-* and the container toolkit) does not affect it,
    because that one has no such version.
    """
    return [
        {"packages": "nvidia-* libnvidia-* libcuda1 libnvsdm", "version": stack["driver_package"]},
        {"packages": "cudnn9-* libcudnn9-*", "version": stack["cudnn_package"]},
        {"packages": "libnccl*", "version": stack["nccl_package"]},
    ]
