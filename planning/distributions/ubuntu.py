"""Ubuntu: NVIDIA's names end in the branch up to 580, and do not from 590 on."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from planning.distributions.debian import Debian

if TYPE_CHECKING:
    from planning.tables import Stack

FIRST_PLAIN_BRANCH = 590
HWE_FLAVOURS = ("generic", "lowlatency", "nvidia")


class Ubuntu(Debian):
    """Ubuntu, whose kernels come in series."""

    # 6.8.0-45-generic, 6.8.0-1015-aws, 6.11.0-1010-nvidia-64k
    KERNEL = re.compile(r"(?P<series>\d+\.\d+)\.\d+-\d+-(?P<flavour>[a-z][a-z0-9-]*)")

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

    def following_headers(self, kernel: str) -> tuple[str, ...]:
        """The package of the kernel's flavour and series."""
        match = self.KERNEL.fullmatch(kernel)
        if not match:
            return ()
        enablement = match["flavour"] in HWE_FLAVOURS and match["series"] != self.release.kernel_series
        suffix = f"-hwe-{self.release.version}" if enablement else ""
        return (f"linux-headers-{match['flavour']}{suffix}",)
