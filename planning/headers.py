"""What a driver module is built with: the headers of the running kernel, and of the kernels to come."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planning.model import Request

# 6.1.0-37-cloud-amd64, 6.12.117+deb13-amd64, 6.12.95+bpo-arm64
DEBIAN_KERNEL = re.compile(r"\d[\d.]*(-\d+|\+(deb|bpo)[\d.]*)-(?P<flavour>([a-z0-9]+-)*(amd64|arm64))")
# 6.8.0-45-generic, 6.8.0-1015-aws, 6.11.0-1010-nvidia-64k
UBUNTU_KERNEL = re.compile(r"(?P<series>\d+\.\d+)\.\d+-\d+-(?P<flavour>[a-z][a-z0-9-]*)")
# The kernel series a release came with; a newer one is its hardware enablement kernel, with other headers.
# Source: Ubuntu kernel life cycle, https://ubuntu.com/kernel/lifecycle, 2026-11.
UBUNTU_FIRST_SERIES = {"ubuntu-22.04": "5.15", "ubuntu-24.04": "6.8"}
UBUNTU_HWE_FLAVOURS = ("generic", "lowlatency", "nvidia")
FIRST_RELEASE_WITH_MATCHED_HEADERS = 9


def build_packages(request: Request) -> list[str]:
    """Packages that must be there at any version for DKMS to build and to sign."""
    # DKMS signs what it builds, and needs openssl for it.
    signing = ["openssl"] if request.node["secure_boot"] == "enabled" else []
    return kernel_headers(request) + signing


def kernel_headers(request: Request) -> list[str]:
    """Headers: the running kernel's where they are missing, and what brings them with each new kernel.

    A kernel that is not the distribution's own has no such package. The operator may do without: some
    distributions' packages bring the newest kernel along.
    """
    release = request.node["kernel"]["release"]
    missing = not request.node["kernel"]["headers_present"]
    stem = "kernel-devel" if request.system.row["scheme"] == "rhel" else "linux-headers"
    return ([f"{stem}-{release}"] if missing else []) + (
        following(request) if request.values["nvidia_stack_follow_kernels"] else []
    )


def following(request: Request) -> list[str]:
    """The packages that bring headers with each new kernel of this flavour."""
    scheme, release = request.system.row["scheme"], request.node["kernel"]["release"]
    if scheme == "rhel":
        matched = int(request.system.major) >= FIRST_RELEASE_WITH_MATCHED_HEADERS
        return ["kernel-devel-matched" if matched else "kernel-devel", "kernel-headers"]
    meta = debian_meta(release) if scheme == "debian" else ubuntu_meta(release, request.system.distribution)
    return [meta] if meta else []


def debian_meta(release: str) -> str | None:
    """The package that follows a Debian kernel of this flavour."""
    match = DEBIAN_KERNEL.fullmatch(release)
    return f"linux-headers-{match['flavour']}" if match else None


def ubuntu_meta(release: str, distribution: str) -> str | None:
    """The package that follows an Ubuntu kernel of this flavour and series."""
    match = UBUNTU_KERNEL.fullmatch(release)
    if not match:
        return None
    flavour = match["flavour"]
    enablement = flavour in UBUNTU_HWE_FLAVOURS and match["series"] != UBUNTU_FIRST_SERIES[distribution]
    suffix = f"-hwe-{distribution.partition('-')[2]}" if enablement else ""
    return f"linux-headers-{flavour}{suffix}"
