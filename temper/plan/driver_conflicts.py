"""Drivers of two sources on one node: never mixed, because others own the same files."""

from __future__ import annotations

import re

from temper.plan.distributions import Distribution
from temper.plan.facts import NodeFacts
from temper.plan.refusals import Refusal, refusal
from temper.plan.tables import Tables

# What a source's driver is recognised by: DKMS's name of the module, and packages that only this source has.
# Ubuntu's own are nvidia-driver-580-server-open and the like, with modules that Canonical has built.
SIGNS = {
    "nvidia": (
        re.compile(r"nvidia(-open)?"),
        re.compile(
            r"nvidia-driver-cuda|nvidia-kernel-open-dkms|(cuda-drivers|nvidia-open)(-\d+)?"
            r"|libnvidia-compute|nvidia-dkms(-open)?|nvidia-driver-pinning-.+"
        ),
    ),
    "distro": (
        re.compile(r"nvidia-(current|tesla|legacy|srv).*"),
        re.compile(r"nvidia-open-kernel-dkms|(lib)?nvidia-.+-\d+-server(-open)?|linux-modules-nvidia-.+"),
    ),
}
# The branch in a name of Canonical's.
BRANCH = re.compile(r"(?:lib|linux-modules-)?nvidia-(?:.+?-)??(\d{3})(?:-.+)?")
# Canonical's driver with a desktop, which Temper does not plan.
DESKTOP = re.compile(r"(nvidia-driver|libnvidia-compute|linux-modules-nvidia)-\d{3}(?!-server)(-.+)?")
NAMES = {"nvidia": "NVIDIA's own packages", "distro": "the distribution's packages"}
# The driver of NVIDIA's vGPU software for guests, of which no repository is public.
VGPU = re.compile(r"nvidia-linux-grid-\d+")
# Packages with NVML: a driver is none of theirs where only its fabric manager or the like is packaged.
LIBRARY = re.compile(r"libnvidia-(.+-)?ml1?|libnvidia-compute(-.+)?|nvidia-driver-(cuda-libs|NVML)")
# What belongs to the driver: not the container toolkit, nor CUDA, nor firmware for nouveau.
DRIVER = re.compile(
    r"^(nvidia-(?!container|cuda|cudnn|profiler|visual)|libnvidia-(?!container)|libcuda1$|cuda-drivers"
    r"|firmware-nvidia-gsp|linux-(modules|objects|signatures)-nvidia-|lib(egl|gl1|gles|glx)-nvidia)"
)


def driver_conflicts(
    node: NodeFacts, source: str, distribution: Distribution, tables: Tables
) -> list[Refusal]:
    """Return why a driver that is there keeps out one of this source, with the exact steps."""
    if node.nvidia.vgpu_software or any(map(VGPU.fullmatch, node.packages)):
        return [refusal("driver-of-vgpu-software")]
    known = (*node.packages, *node.broken_packages)
    if node.nvidia.userspace_version and not any(map(LIBRARY.fullmatch, known)):
        installed_version = node.nvidia.userspace_version
        return [
            refusal("driver-without-package", version=installed_version, owner_query=distribution.owner_query)
        ]
    other = "distro" if source == "nvidia" else "nvidia"
    module, packages = SIGNS[other]
    # Canonical's packages for DKMS give their module NVIDIA's name there.
    own = any(map(SIGNS[source][1].fullmatch, node.packages))
    records = () if own else node.dkms
    if not any(map(packages.fullmatch, node.packages)) and not any(
        module.fullmatch(record.module) for record in records
    ):
        return []
    # Temper installs the distribution's own driver only where it knows it, and moves none to its branch.
    own_driver = tables.distro_drivers.get(distribution.name)
    branches = {int(found[1]) for found in map(BRANCH.fullmatch, node.packages) if found}
    planned = own_driver is not None and branches <= {own_driver.branch}
    possible = other == "nvidia" or (planned and not any(map(DESKTOP.fullmatch, node.packages)))
    installed = sorted(name for name in node.packages if DRIVER.match(name))
    registered = sorted({f"{one.module}/{one.version}" for one in records if module.fullmatch(one.module)})
    # A module without its package is what a removal has left to DKMS.
    removal = (
        distribution.removal(installed)
        if installed
        else " and ".join(f"`dkms remove {name} --all`" for name in registered)
    )
    facts = {"whose": NAMES[other], "source": source, "wanted": NAMES[source], "removal": removal}
    if possible:
        return [refusal("driver-of-other-source-may-stay", other=other, **facts)]
    return [refusal("driver-of-other-source", **facts)]
