"""What plans need to know of a family of distributions: names and versions of packages, repositories."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from temper.plan.facts import Kernel, NodeFacts
from temper.plan.model import ModuleStream, Pin, Repository
from temper.plan.refusals import Refusal, refusal
from temper.plan.tables import DistroDriver, Release, Stack
from temper.plan.variables import NvidiaStack

if TYPE_CHECKING:
    import re


# The kernel's word -> NVIDIA's word in the addresses of repositories.
REPOSITORY_ARCHITECTURES = {"x86_64": "x86_64", "aarch64": "sbsa"}


@dataclass(frozen=True)
class Configuration:
    """A file of the package manager or of a tool around it: a template of the role nvidia_stack, and why."""

    path: str
    template: str
    why: str


@dataclass(frozen=True)
class Distribution(ABC):
    """A release of a distribution on one architecture. Each family of distributions is a class."""

    release: Release
    architecture: str  # the kernel's word

    # The releases of the distribution's own kernels.
    KERNEL: ClassVar[re.Pattern[str]]
    package_manager: ClassVar[str]
    package_format: ClassVar[str]  # as NVIDIA's addresses have it
    package_architectures: ClassVar[dict[str, str]]
    nccl_packages: ClassVar[tuple[str, str]]
    # {} is CUDA's major version.
    cudnn_packages: ClassVar[tuple[str, ...]] = ("cudnn9-cuda-{}",)
    # The certificate of the key that DKMS makes for itself.
    dkms_certificate: ClassVar[str] = "/var/lib/dkms/mok.pub"
    # The command that names the package with a library of the driver.
    owner_query: ClassVar[str]
    # What keeps other versions and automatic upgrades away from the stack.
    configuration: ClassVar[tuple[Configuration, ...]] = ()

    @property
    def name(self) -> str:
        """The release's key in the tables: debian-12."""
        return self.release.name

    @property
    def package_architecture(self) -> str:
        """The package manager's word: amd64."""
        return self.package_architectures[self.architecture]

    @property
    def repository_architecture(self) -> str:
        """NVIDIA's word in addresses: sbsa."""
        return REPOSITORY_ARCHITECTURES[self.architecture]

    def driver_version(self, stack: Stack) -> str:
        """Return the version of the driver's packages."""
        return stack.driver_package[self.release.family]

    @abstractmethod
    def driver_packages(self, stack: Stack, modules: str) -> dict[str, str]:
        """Return the driver without desktop parts, with modules of this flavour: names and versions."""

    @abstractmethod
    def fabric_name(self, package: str, branch: int) -> str:
        """Return a fabric package's name where that still depends on the driver's branch."""

    def named_by_branch(self, branch: int) -> bool:
        """Return whether the names of the driver's packages end in its branch."""
        return False

    @abstractmethod
    def pins(self, stack: Stack) -> tuple[Pin, ...]:
        """Return which versions the package manager may choose for what the listed packages pull in."""

    def module_streams(self, stack: Stack, modules: str) -> tuple[ModuleStream, ...]:
        """Return the module streams that keep the driver's branch."""
        return ()

    @abstractmethod
    def headers(self, kernel: str) -> dict[str, str]:
        """Return the package with the headers of a kernel, and its version; none where no name is known."""

    @abstractmethod
    def following_headers(self, kernel: Kernel) -> dict[str, str]:
        """Return the packages that bring headers with each new kernel like this; none for a foreign one.

        A version is named where another one would be for other kernels.
        """

    def compilers(self, modules: str) -> tuple[str, ...]:
        """Return what building modules of this flavour takes, and no package asks for."""
        return ()

    @abstractmethod
    def environment_packages(self, python: str, *, default: bool) -> tuple[str, ...]:
        """Return what makes virtual environments with a Python; `default` is that of /usr/bin/python3."""

    def header_problems(self, kernel: Kernel) -> list[Refusal]:
        """Return why the running kernel's headers cannot be installed.

        The simulation says what is not offered.
        """
        if kernel.headers_present or self.KERNEL.fullmatch(kernel.release):
            return []
        return [refusal("kernel-headers-foreign", kernel=kernel.release)]

    def realtime_problems(self, node: NodeFacts) -> list[Refusal]:
        """Return why no module can be built for the running kernel, where that is a real-time one."""
        return []

    @abstractmethod
    def signed(self, repository: Repository) -> Repository:
        """Return one of NVIDIA's repositories, with what its layout and its signatures need here."""

    def prebuilt_modules(
        self,
        node: NodeFacts,
        row: DistroDriver,
        modules: str,
        *,
        follow: bool,
    ) -> tuple[dict[str, str], dict[str, str], list[Refusal]]:
        """Return packages of the distribution's own modules; those of kernels to hold with them; problems."""
        return {}, {}, []

    def own_repositories(
        self,
        node: NodeFacts,
        wanted: NvidiaStack,
    ) -> tuple[tuple[Repository, ...], list[Refusal], list[str]]:
        """Return the distribution's own repositories that its driver needs here; problems; warnings."""
        return (), [], []

    @classmethod
    def refused_sources(cls, planned: Container[str]) -> dict[str, str]:  # noqa: ARG003 - others do
        """Return sources of packages that contradict the planned ones, by their paths, and why."""
        return {}

    @abstractmethod
    def removal(self, packages: list[str]) -> str:
        """Return the commands that remove packages for good, in the words of a remedy."""
