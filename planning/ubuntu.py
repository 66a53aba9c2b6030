"""NVIDIA's names for Ubuntu: they end in the branch up to 580, and do not from 590 on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planning.components import driver_version
from planning.debian import pins
from planning.versions import branch

if TYPE_CHECKING:
    from planning.model import Facts, Request

__all__ = ["driver_packages", "pins"]
FIRST_PLAIN_BRANCH = 590


def driver_packages(request: Request, stack: Facts, flavour: str) -> dict[str, str]:
    """The driver without desktop parts: libraries, modules, nvidia-smi."""
    version, number = driver_version(request, stack), branch(stack["driver"])
    opened = "-open" if flavour == "open" else ""
    common = dict.fromkeys(("nvidia-persistenced", "nvidia-modprobe"), version)
    if number < FIRST_PLAIN_BRANCH:
        names = (f"libnvidia-compute-{number}", f"nvidia-dkms-{number}{opened}", f"nvidia-utils-{number}")
        return dict.fromkeys(names, version) | common
    # The metapackages accept anything newer; this package is NVIDIA's own pin against that.
    pinning = {f"nvidia-driver-pinning-{stack['driver']}": ""}
    return dict.fromkeys(("libnvidia-compute", f"nvidia-dkms{opened}"), version) | common | pinning
