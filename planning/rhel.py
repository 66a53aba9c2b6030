"""NVIDIA's names for Enterprise Linux, and the module streams of releases 8 and 9."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planning.components import driver_version
from planning.versions import branch

if TYPE_CHECKING:
    from planning.model import Facts, Request

LAST_RELEASE_WITH_STREAMS = 9


def driver_packages(request: Request, stack: Facts, flavour: str) -> dict[str, str]:
    """The driver without desktop parts; rpm's own `=` dependencies keep the rest at its version."""
    modules = "kmod-nvidia-open-dkms" if flavour == "open" else "kmod-nvidia-latest-dkms"
    names = ("nvidia-driver-cuda", modules, "nvidia-persistenced", "nvidia-modprobe")
    return dict.fromkeys(names, driver_version(request, stack))


def pins(request: Request, stack: Facts) -> list[dict[str, str]]:
    """Which versions dnf may choose during the transaction for what the listed packages pull in."""
    return [
        {"packages": "nvidia-* libnvidia-* kmod-nvidia-*", "version": driver_version(request, stack)},
        {"packages": "cudnn9-* libcudnn9-*", "version": stack["cudnn_package"]},
        {"packages": "libnccl*", "version": stack["nccl_package"]},
    ]


def module_streams(request: Request, stack: Facts, flavour: str) -> list[dict[str, str]]:
    """The stream that keeps a branch on releases 8 and 9. Release 10 has none, and versionlock instead."""
    if int(request.system.major) > LAST_RELEASE_WITH_STREAMS:
        return []
    kind = "open" if flavour == "open" else "dkms"
    return [{"name": "nvidia-driver", "stream": f"{branch(stack['driver'])}-{kind}"}]
