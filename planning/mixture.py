"""Two sources of drivers on one node: never mixed, because packages of other names own the same files."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planning.model import Facts

# DKMS's name of the module, and packages that only one side has.
MARKS = {
    "nvidia": (
        re.compile(r"nvidia(-open)?"),
        {"nvidia-driver-cuda", "nvidia-kernel-open-dkms", "cuda-drivers"},
    ),
    "distro": (re.compile(r"nvidia-(current|tesla|legacy).*"), {"nvidia-open-kernel-dkms"}),
}
SAID = {"nvidia": "NVIDIA's own packages", "distro": "the distribution's packages"}
# What belongs to the driver: not the container toolkit, nor CUDA, nor firmware for nouveau.
DRIVER = re.compile(
    r"^(nvidia-(?!container|cuda|cudnn|profiler|visual)|libnvidia-(?!container)|libcuda1$|cuda-drivers"
    r"|firmware-nvidia-gsp)"
)


def mixture_problems(node: Facts, source: str) -> list[str]:
    """Why a driver of this source cannot be installed: the other source's is there. With the exact steps."""
    other = "distro" if source == "nvidia" else "nvidia"
    module, packages = MARKS[other]
    found = packages & set(node["packages"]) or any(
        module.fullmatch(str(record["module"])) for record in node["dkms"]
    )
    if not found:
        return []
    names = " ".join(sorted(name for name in node["packages"] if DRIVER.match(name)))
    return [
        f"a driver from {SAID[other]} is installed, nvidia_stack_source: {source} asks for one from "
        f"{SAID[source]}, and the two cannot be mixed; keep it with nvidia_stack_source: {other}, or drain "
        f"the node, run `apt-get purge --allow-change-held-packages {names}` and "
        "`apt-get autoremove --purge` there, reboot it and run again"
    ]
