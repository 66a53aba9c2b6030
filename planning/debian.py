"""NVIDIA's names for Debian: the same for every driver branch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planning.components import PLAIN_PINS, driver_version

if TYPE_CHECKING:
    from planning.model import Facts, Request


def driver_packages(request: Request, stack: Facts, flavour: str) -> dict[str, str]:
    """The driver without desktop parts. A pin keeps what these depend on at the driver's version."""
    version = driver_version(request, stack)
    modules = "nvidia-kernel-open-dkms" if flavour == "open" else "nvidia-kernel-dkms"
    return dict.fromkeys(("nvidia-driver-cuda", modules, "nvidia-persistenced", "nvidia-modprobe"), version)


def pins(request: Request, stack: Facts) -> list[dict[str, str]]:
    """Which versions apt may choose for what the listed packages pull in: their siblings at the same version.

    A pattern that also matches another package (nvidia-* and the container toolkit) does not affect it,
    because that one has no such version.
    """
    return [
        {"packages": PLAIN_PINS, "version": driver_version(request, stack)},
        {"packages": "cudnn9-* libcudnn9-*", "version": stack["cudnn_package"]},
        {"packages": "libnccl*", "version": stack["nccl_package"]},
    ]
