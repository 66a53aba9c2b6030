"""Ubuntu: NVIDIA's names end in the branch up to 580, and do not from 590 on."""

from __future__ import annotations

import re

from temper.plan.distributions.debian import Debian
from temper.plan.facts import Kernel, NodeFacts
from temper.plan.model import Repository
from temper.plan.refusals import Refusal, refusal
from temper.plan.tables import DistroDriver, Stack
from temper.plan.variables import NvidiaStack

FIRST_PLAIN_BRANCH = 590
# Later kernels of 22.04 than 5.15 are built with another compiler than its gcc, and with options of that one.
# Their headers need none; the release's dkms does, and NVIDIA's, newer one replaces it
# (bugs.launchpad.net/bugs/1991664, 2022-10).
LATER_COMPILER = "gcc-12"


class Ubuntu(Debian):
    """Ubuntu, whose kernels come in series and flavours."""

    dkms_certificate = "/var/lib/shim-signed/mok/MOK.der"

    # linux-image-generic-hwe-22.04, linux-image-aws-lts-22.04, linux-image-nvidia-64k; no kernel's own
    META_IMAGE = re.compile(r"linux-image-(?!\d|unsigned-|extra-)(?P<kind>.+?)(?<!-dbgsym)")

    # 6.8.0-134-generic, 5.15.0-1080-aws, 6.14.0-1015-nvidia-64k
    KERNEL = re.compile(r"\d[\d.]*-\d+-(?P<flavour>[a-z][\w-]*)")

    # Canonical's, for DKMS.
    BUILT_HERE = re.compile(r"nvidia-dkms-\d+(-server)?(-open)?")

    def driver_packages(self, stack: Stack, modules: str) -> dict[str, str]:
        """Libraries with nvidia-smi, and modules.

        nvidia-utils-580 is a transitional package after 580.65.06, the last that had nvidia-smi (NVIDIA's
        k8s-test-infra, deployments/nvml-mock/Dockerfile, 2026).
        """
        version, number = self.driver_version(stack), stack.branch
        opened = "-open" if modules == "open" else ""
        common = dict.fromkeys(("nvidia-persistenced", "nvidia-modprobe"), version)
        if self.named_by_branch(number):
            names = (f"libnvidia-compute-{number}", f"nvidia-dkms-{number}{opened}")
            return dict.fromkeys(names, version) | common
        # The metapackages accept anything newer; this package is NVIDIA's own pin against that.
        pinning = {f"nvidia-driver-pinning-{stack.driver}": ""}
        return dict.fromkeys(("libnvidia-compute", f"nvidia-dkms{opened}"), version) | common | pinning

    def named_by_branch(self, branch: int) -> bool:
        """Up to 580."""
        return branch < FIRST_PLAIN_BRANCH

    def following_headers(self, kernel: Kernel) -> dict[str, str]:
        """Return the counterparts of the packages that bring kernels.

        No release says which of them brought it.
        """
        found = map(self.META_IMAGE.fullmatch, kernel.image_packages)
        return {f"linux-headers-{match['kind']}": "" for match in found if match}

    def compilers(self, modules: str) -> tuple[str, ...]:  # noqa: ARG002 - for both
        """Return that of the kernels to come, too, as the release's own dkms has it."""
        return (LATER_COMPILER,) if self.name == "ubuntu-22.04" else ()

    def prebuilt_modules(
        self, node: NodeFacts, row: DistroDriver, modules: str, *, follow: bool
    ) -> tuple[dict[str, str], dict[str, str], list[Refusal]]:
        """Canonical's signed modules for every installed kernel, and for those to come.

        The packages that bring kernels are held with them: a kernel that comes alone has no module.
        """
        stem, images = row.modules[modules].package, set(node.kernel.image_packages)
        found: dict[str, str] = {}
        problems = []
        for release in dict.fromkeys((node.kernel.release, *(kernel.release for kernel in node.kernels))):
            match = self.KERNEL.fullmatch(release)
            if not match or not images & {f"linux-image-{release}", f"linux-image-unsigned-{release}"}:
                problems.append(refusal("distro-kernel-foreign", kernel=release))
            elif match["flavour"].partition("-")[0] not in row.flavours:
                problems.append(refusal("distro-kernel-flavour", kernel=release, flavours=row.flavours))
            else:
                found[f"{stem}-{release}"] = ""
        metas = {name: match["kind"] for name in sorted(images) if (match := self.META_IMAGE.fullmatch(name))}
        if follow:
            # Kernels of virtual machines are those of generic with fewer modules.
            found |= {f"{stem}-{re.sub('^virtual', 'generic', kind)}": "" for kind in metas.values()}
        if built := sorted(filter(self.BUILT_HERE.fullmatch, node.packages)):
            problems.append(
                refusal("distro-modules-built-beside", packages=built, removal=self.removal(built))
            )
        return found, dict.fromkeys(metas, ""), problems

    def own_repositories(
        self,
        node: NodeFacts,  # noqa: ARG002 - its own sources serve
        wanted: NvidiaStack,
    ) -> tuple[tuple[Repository, ...], list[Refusal], list[str]]:
        """Return the node's own: an installed Ubuntu has them all."""
        if wanted.distro_mirror_url or wanted.distro_security_mirror_url:
            return (), [refusal("distro-mirror-of-debian")], []
        return (), [], []
