"""Enterprise Linux: rpm packages, and module streams in releases 8 and 9."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from planning.distributions.base import Distribution
from planning.model import ModuleStream, Pin

if TYPE_CHECKING:
    from planning.model import Repository
    from planning.tables import Stack

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
    header_stem = "kernel-devel"

    def driver_version(self, stack: Stack) -> str:
        """The epoch is left out: dnf then takes whatever epoch there is."""
        return f"{super().driver_version(stack)}.el{self.release.version}"

    def driver_packages(self, stack: Stack, modules: str) -> dict[str, str]:
        """The `=` dependencies of these packages keep the rest at the driver's version."""
        built = "kmod-nvidia-open-dkms" if modules == "open" else "kmod-nvidia-latest-dkms"
        names = ("nvidia-driver-cuda", built, "nvidia-persistenced", "nvidia-modprobe")
        return dict.fromkeys(names, self.driver_version(stack))

    def fabric_name(self, package: str, branch: int) -> str:  # noqa: ARG002 - the same for every branch
        """The fabric manager's name had a hyphen more."""
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

    def following_headers(self, kernel: str) -> tuple[str, ...]:  # noqa: ARG002 - the same for every kernel
        """The release's own kernel has one flavour."""
        matched = int(self.release.version) >= FIRST_RELEASE_WITH_MATCHED_HEADERS
        return ("kernel-devel-matched" if matched else "kernel-devel", "kernel-headers")

    def signed(self, repository: Repository) -> Repository:
        """What NVIDIA signs there, and what stays out."""
        name = repository.name
        return replace(repository, signed=SIGNED[name], exclude=EXCLUDED.get(name, ()))

    def removal(self, packages: list[str]) -> str:
        """With what only they needed."""
        return f"`dnf remove {' '.join(packages)}`"
