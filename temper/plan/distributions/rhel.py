"""Enterprise Linux: rpm packages, and module streams in releases 8 and 9."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import ClassVar

from temper.plan.distributions.base import Distribution
from temper.plan.facts import Kernel
from temper.plan.model import ModuleStream, Pin, Repository
from temper.plan.tables import Stack

LAST_RELEASE_WITH_STREAMS = 9
FIRST_RELEASE_WITH_MATCHED_HEADERS = 9
# NVIDIA's CUDA repository signs rpm packages; the container toolkit's signs its metadata only.
SIGNED = {"nvidia-cuda": "packages", "nvidia-container-toolkit": "metadata"}
# NVIDIA's CUDA repository has firmware tools that clash with those of DOCA-OFED (azhpc-images, 2026-07-29).
EXCLUDED = {"nvidia-cuda": ("mft", "mft-*", "kernel-mft*")}


class EnterpriseLinux(Distribution):
    """Red Hat Enterprise Linux and its rebuilds."""

    package_manager = "dnf"
    package_format = "rpm"
    package_architectures: ClassVar = {"x86_64": "x86_64", "aarch64": "aarch64"}
    nccl_packages = ("libnccl", "libnccl-devel")
    owner_query = "rpm --query --file /usr/lib64/libnvidia-ml.so.1"
    # The library by name: dnf leaves an older one where the first does not require its own version.
    cudnn_packages = ("cudnn9-cuda-{}", "libcudnn9-cuda-{}")

    # 5.14.0-503.11.1.el9_5.x86_64, 5.14.0-503.11.1.el9_5.aarch64+64k, 4.18.0-553.rt7.342.el8_10.x86_64
    KERNEL = re.compile(
        r"(?!.*elrepo)(?P<version>[\d.]+-[\d.]+?(\.(?P<realtime>rt)\d.*)?\.el\d.*)\.(x86_64(_v2)?|aarch64)"
        r"(\+(?P<flavour>[\w-]+))?"
    )

    def driver_version(self, stack: Stack) -> str:
        """Return the version without its epoch: dnf then takes whatever epoch there is."""
        return f"{super().driver_version(stack)}.el{self.release.version}"

    def driver_packages(self, stack: Stack, modules: str) -> dict[str, str]:
        """Return the driver's packages, whose `=` dependencies keep the rest at the driver's version."""
        built = "kmod-nvidia-open-dkms" if modules == "open" else "kmod-nvidia-latest-dkms"
        names = ("nvidia-driver-cuda", built, "nvidia-persistenced", "nvidia-modprobe")
        return dict.fromkeys(names, self.driver_version(stack))

    def fabric_name(self, package: str, branch: int) -> str:  # noqa: ARG002 - the same for every branch
        """Return a name; that of the fabric manager had a hyphen more."""
        return package.replace("fabricmanager", "fabric-manager")

    def pins(self, stack: Stack) -> tuple[Pin, ...]:
        """During the transaction only: versionlock holds what is installed."""
        return (
            Pin("nvidia-* libnvidia-* kmod-nvidia-*", self.driver_version(stack)),
            Pin("cudnn9-* libcudnn9-*", stack.cudnn_package),
            Pin("libnccl*", stack.nccl_package),
        )

    def module_streams(self, stack: Stack, modules: str) -> tuple[ModuleStream, ...]:
        """Release 10 has none, and versionlock instead."""
        if int(self.release.version) > LAST_RELEASE_WITH_STREAMS:
            return ()
        return (ModuleStream("nvidia-driver", f"{stack.branch}-{'open' if modules == 'open' else 'dkms'}"),)

    def headers(self, kernel: str) -> dict[str, str]:
        """Return one name for all kernels of a flavour, each of which has its version."""
        match = self.KERNEL.fullmatch(kernel)
        return {self.header_name(match): match["version"]} if match else {}

    def following_headers(self, kernel: Kernel) -> dict[str, str]:
        """Return the package that requires a kernel of this flavour and its headers at one version."""
        match = self.KERNEL.fullmatch(kernel.release)
        if not match:
            return {}
        matched = int(self.release.version) >= FIRST_RELEASE_WITH_MATCHED_HEADERS
        return {f"{self.header_name(match)}{'-matched' if matched else ''}": "", "kernel-headers": ""}

    @staticmethod
    def header_name(kernel: re.Match[str]) -> str:
        """Return the package of a kernel's flavour: kernel-64k-devel."""
        flavour = kernel["flavour"] or kernel["realtime"]
        return f"kernel-{flavour}-devel" if flavour else "kernel-devel"

    def compilers(self, modules: str) -> tuple[str, ...]:
        """Parts of the open modules are in C++ (NVIDIA/yum-packaging-dkms-nvidia issue 5, 2025-03)."""
        return ("gcc-c++",) if modules == "open" else ()

    def environment_packages(self, python: str, *, default: bool) -> tuple[str, ...]:
        """Return nothing: the interpreter has all."""
        return () if default else (f"python{python}",)

    def signed(self, repository: Repository) -> Repository:
        """Return what NVIDIA signs there, and what stays out."""
        name = repository.name
        return replace(repository, signed=SIGNED[name], exclude=EXCLUDED.get(name, ()))

    def removal(self, packages: list[str]) -> str:
        """With what only they needed."""
        return f"`dnf remove {' '.join(packages)}`"
