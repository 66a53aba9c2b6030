"""Debian: NVIDIA's names are the same for every driver branch."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable
from dataclasses import replace
from typing import ClassVar

from temper.plan.distributions.base import Configuration, Distribution
from temper.plan.facts import AptSource, Kernel, NodeFacts
from temper.plan.model import Pin, Repository
from temper.plan.refusals import Refusal, refusal
from temper.plan.tables import Stack
from temper.plan.variables import NvidiaStack

# nvidia-kernel-dkms is in non-free, its firmware in non-free-firmware, persistenced and NCCL in contrib. What
# a security update depends on can be in main.
COMPONENTS = ("main", "contrib", "non-free", "non-free-firmware")
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


def missing(suite: str, uri: str, own: AptSource | None, every: Iterable[AptSource]) -> Repository | None:
    """Return what a suite lacks, from the operator's mirror or from the node's own.

    None where neither is there.
    """
    if uri:
        uri = f"{uri.rstrip('/')}/"
        same = [source for source in every if source.uri == uri]
        present = {name for source in same if source.suite == suite for name in source.components}
        # apt refuses two keyrings for one repository.
        signed_by = same[0].signed_by if same else KEYRING
    elif own:
        uri, present, signed_by = own.uri, set(own.components), own.signed_by
    else:
        return None
    name = f"debian{''.join(suite.partition('-')[1:])}"
    components = tuple(component for component in COMPONENTS if component not in present)
    return Repository(name, "apt", uri, suite, components, signed_by)


def merged(repositories: Iterable[Repository]) -> tuple[Repository, ...]:
    """Suites of the same mirror with the same components in one entry each; none where nothing is missing."""
    result: dict[tuple[object, ...], Repository] = {}
    for found in repositories:
        key = (found.uri, found.signed_by, found.components)
        if known := result.get(key):
            result[key] = replace(known, suite=f"{known.suite} {found.suite}")
        elif found.components:
            result[key] = found
    return tuple(result.values())


SOURCES = "/etc/apt/sources.list.d"
# What NVIDIA's own packages and install scripts leave.
OBSOLETE_SOURCES = (
    "cuda-debian12-x86_64.list",
    "cuda-debian12-sbsa.list",
    "cuda-debian13-x86_64.list",
    "cuda-debian13-sbsa.list",
    "libnvidia-container.list",
    "nvidia-container-runtime.list",
    "nvidia-container-toolkit.list",
    "nvidia-docker.list",
)
# In the version of every package of backports.
BACKPORT = "~bpo"
# Ours, of either source of packages.
OWN_SOURCES = ("nvidia-cuda", "nvidia-container-toolkit", "debian", "debian-updates", "debian-security")


class Debian(Distribution):
    """Debian, and what all distributions with its package manager have in common."""

    package_manager = "apt"
    package_format = "deb"
    package_architectures: ClassVar = {"x86_64": "amd64", "aarch64": "arm64"}
    nccl_packages = ("libnccl2", "libnccl-dev")
    owner_query = "dpkg --search libnvidia-ml.so.1"
    configuration = (
        Configuration(
            "/etc/apt/preferences.d/temper-nvidia",
            "preferences",
            "What the stack depends on stays at the stack's versions",
        ),
        Configuration(
            "/etc/apt/apt.conf.d/52temper-nvidia",
            "unattended-upgrades",
            "A driver that changes under a loaded module breaks every new CUDA process",
        ),
        Configuration(
            "/etc/needrestart/conf.d/temper-nvidia.conf",
            "needrestart",
            "Restarting these services takes GPUs from running jobs",
        ),
    )

    # 6.1.0-37-cloud-amd64, 6.12.117+deb13-amd64, 6.12.117+deb13-arm64-16k; of backports 6.12.30+bpo-arm64,
    # and since 6.12.43 (Debian 12) 6.12.95+deb12-amd64
    KERNEL = re.compile(r"\d[\d.]*(-\d+|\+(deb|bpo)[\d.]*)-(?P<flavour>([a-z0-9]+-)*(amd64|arm64)(-16k)?)")

    # 6.1.0-37-rt-amd64; of Ubuntu's 6.8.1-1015-realtime
    REALTIME = re.compile(r".*-(rt\d*|realtime)(-.*)?")

    def driver_packages(self, stack: Stack, modules: str) -> dict[str, str]:
        """Return the driver's packages: a pin keeps what these depend on at the driver's version."""
        built = "nvidia-kernel-open-dkms" if modules == "open" else "nvidia-kernel-dkms"
        names = ("nvidia-driver-cuda", built, "nvidia-persistenced", "nvidia-modprobe")
        return dict.fromkeys(names, self.driver_version(stack))

    def fabric_name(self, package: str, branch: int) -> str:
        """Return a name that ends in the branch."""
        return f"{package}-{branch}"

    def pins(self, stack: Stack) -> tuple[Pin, ...]:
        """Siblings get the same version.

        A pattern that also matches another package (*nvidia* and the container toolkit) does not affect it,
        because that one has no such version. Some libraries go without the vendor's name, and for Debian
        NVIDIA's packages are content with newer ones.
        """
        driver = "*nvidia* libcuda1 libcudadebugger1 libnvcuvid1 libnvoptix1 libnvsdm"
        return (
            Pin(driver, self.driver_version(stack)),
            Pin("cudnn9-* libcudnn9-*", stack.cudnn_package),
            Pin("libnccl*", stack.nccl_package),
        )

    def headers(self, kernel: str) -> dict[str, str]:
        """Return a package whose name ends in the kernel's release."""
        return {f"linux-headers-{kernel}": ""}

    def following_headers(self, kernel: Kernel) -> dict[str, str]:
        """Return the package of the kernel's flavour, of backports if the one that brings kernels is.

        Apt itself would take the release's, which follow older kernels: where only the running kernel is of
        backports, and nothing brings kernels, nothing follows. A release of backports may look like any other
        (6.12.57+deb12-amd64), the version of its package does not.
        """
        match = self.KERNEL.fullmatch(kernel.release)
        if not match:
            return {}
        headers = f"linux-headers-{match['flavour']}"
        if image := kernel.image_packages.get(f"linux-image-{match['flavour']}"):
            return {headers: image if BACKPORT in image else ""}
        own = kernel.image_packages.get(f"linux-image-{kernel.release}", "")
        return {} if BACKPORT in own or "+bpo" in kernel.release else {headers: ""}

    def environment_packages(self, python: str, *, default: bool) -> tuple[str, ...]:  # noqa: ARG002 - RHEL looks at it
        """Return the part of the standard library that is a package of its own.

        python3-venv is of the release's Python, and a site may have made /usr/bin/python3 another one.
        """
        return (f"python{python}-venv",)

    def header_problems(self, kernel: Kernel) -> list[Refusal]:
        """Apt says what it offers without asking the network."""
        if kernel.headers_present or kernel.headers_installable:
            return []
        absent = refusal("kernel-headers-absent", kernel=kernel.release)
        return super().header_problems(kernel) or [absent]

    def realtime_problems(self, node: NodeFacts) -> list[Refusal]:
        """NVIDIA's sources refuse it, which only its rpms override.

        Source: NVIDIA/open-gpu-kernel-modules issue 1240, 2026-07-14, and yum-packaging-dkms-nvidia.
        """
        release = node.kernel.release
        built = node.nvidia.modules.get(release)
        if not self.REALTIME.fullmatch(release) or (built and built.version):
            return []
        return [refusal("kernel-realtime", kernel=release)]

    def signed(self, repository: Repository) -> Repository:
        """Return a flat repository: its signed list covers the packages."""
        return replace(repository, suite="/")

    def own_repositories(
        self, node: NodeFacts, wanted: NvidiaStack
    ) -> tuple[tuple[Repository, ...], list[Refusal], list[str]]:
        """From the operator's mirror, or from the one that the node uses.

        A component that the node's own sources have is not asked for twice: apt warns of that at every run.
        """
        codename = node.os.codename
        own = {source.suite: source for source in reversed(node.apt_sources)}
        mirrors = {
            codename: wanted.distro_mirror_url,
            f"{codename}-updates": wanted.distro_mirror_url,
            f"{codename}-security": wanted.distro_security_mirror_url,
        }
        found = {
            suite: repository
            for suite, uri in mirrors.items()
            if (repository := missing(suite, uri, own.get(suite), node.apt_sources))
        }
        problems, warnings = [], []
        if codename not in found:
            problems.append(refusal("repository-debian-suite", suite=codename))
        elif f"{codename}-security" not in found:
            warnings.append(
                f"apt on this node has no source of {codename}-security: the driver gets no security updates "
                "of Debian; add a source, or set nvidia_stack_distro_security_mirror_url"
            )
        return merged(found.values()), problems, warnings

    @classmethod
    def refused_sources(cls, planned: Container[str]) -> dict[str, str]:
        """Return those of NVIDIA's own packages, and those of ours that the plan does not have."""
        obsolete = {f"{SOURCES}/{name}": "apt refuses one address with two keys" for name in OBSOLETE_SOURCES}
        return obsolete | {
            f"{SOURCES}/temper-{name}.sources": "The plan no longer needs it"
            for name in OWN_SOURCES
            if name not in planned
        }

    def removal(self, packages: list[str]) -> str:
        """Held packages too, and what only they needed."""
        return (
            f"`apt-get purge --allow-change-held-packages {' '.join(packages)}` and "
            "`apt-get autoremove --purge`"
        )
