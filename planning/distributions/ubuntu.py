"""Ubuntu: NVIDIA's names end in the branch up to 580, and do not from 590 on."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from planning.distributions.debian import Debian

if TYPE_CHECKING:
    from planning.facts import Kernel
    from planning.tables import Stack

FIRST_PLAIN_BRANCH = 590


class Ubuntu(Debian):
    """Ubuntu, whose kernels come in series and flavours."""

    dkms_certificate = "/var/lib/shim-signed/mok/MOK.der"

    # linux-image-generic-hwe-22.04, linux-image-aws-lts-22.04, linux-image-nvidia-64k; no kernel's own
    META_IMAGE = re.compile(r"linux-image-(?!\d|unsigned-|extra-)(?P<kind>.+?)(?<!-dbgsym)")

    def driver_packages(self, stack: Stack, modules: str) -> dict[str, str]:
        """Libraries, modules and nvidia-smi."""
        version, number = self.driver_version(stack), stack.branch
        opened = "-open" if modules == "open" else ""
        common = dict.fromkeys(("nvidia-persistenced", "nvidia-modprobe"), version)
        if number < FIRST_PLAIN_BRANCH:
            names = (f"libnvidia-compute-{number}", f"nvidia-dkms-{number}{opened}", f"nvidia-utils-{number}")
            return dict.fromkeys(names, version) | common
        # The metapackages accept anything newer; this package is NVIDIA's own pin against that.
        pinning = {f"nvidia-driver-pinning-{stack.driver}": ""}
        return dict.fromkeys(("libnvidia-compute", f"nvidia-dkms{opened}"), version) | common | pinning

    def following_headers(self, kernel: Kernel) -> tuple[str, ...]:
        """The counterparts of the packages that bring kernels: no release says which of them brought it."""
        found = map(self.META_IMAGE.fullmatch, kernel.image_packages)
        return tuple(f"linux-headers-{match['kind']}" for match in found if match)
