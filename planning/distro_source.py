"""The source `distro`: the driver that the distribution packages itself, from the mirror that the node uses.

Its kernel modules have other names than NVIDIA's, its versions move with the distribution's security suite,
and it has no fabric manager: it is for servers without NVSwitch, up to Hopper.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from planning.components import CONTAINER_TOOLKIT, build_packages
from planning.model import Driver, Offer, Request, Runtime
from planning.repositories import container_repository
from planning.rules import module_need
from planning.versions import branch, upstream

if TYPE_CHECKING:
    from collections.abc import Iterator

    from planning.tables import DistroDriver

# The kernel modules, in every release.
MODULE_PACKAGE = "nvidia-kernel-dkms"
PACKAGE_VERSION = re.compile(r"\d+(\.\d+)+-\S+")
NVIDIA_REMEDY = "set nvidia_stack_source: nvidia"


def offer(request: Request) -> Offer:
    """The distribution's driver with what else it has, and the container toolkit from NVIDIA."""
    tables, wanted, name = request.tables, request.variables.nvidia_stack, request.distribution.name
    row = tables.distro_drivers.get(name)
    if not row:
        problem = (
            f"nvidia_stack_source: distro is not known for {name}; "
            f"expected one of: {', '.join(sorted(tables.distro_drivers))}; {NVIDIA_REMEDY}"
        )
        return Offer(stack="none", problems=(problem,))
    mirrors, problems, warnings = request.distribution.own_repositories(request.node, wanted)
    secure = any("security" in (mirror.suite or "") for mirror in mirrors)
    package_version = driver_package(row, request, security=secure)
    number = branch(upstream(package_version))
    end_of_life = tables.ends_of_life.get(str(number))
    if end_of_life and request.today[:7] > end_of_life:
        warnings.append(
            f"NVIDIA's support of driver branch {number} ended in {end_of_life}: only the distribution fixes "
            "it; nvidia_stack_source: nvidia has branches that NVIDIA supports"
        )
    toolkit = (container_repository(request),) if wanted.distro_container_toolkit else ()
    return Offer(
        stack=row.stack,
        driver=Driver(
            version=upstream(package_version),
            package_version=package_version,
            branch=number,
            modules="proprietary",
            end_of_life=end_of_life,
            dkms=row.modules["proprietary"].dkms,
        ),
        cuda=row.cuda.version if wanted.distro_cuda_toolkit else None,
        torch=row.torch,
        packages=packages(row, request),
        present=build_packages(request),
        repositories=mirrors + toolkit,
        services=("nvidia-persistenced",),
        # What this driver runs is not what the distribution's toolkit is: nothing is promised of CUDA.
        runtime=Runtime(nccl=row.nccl.version if row.nccl else None),
        problems=(
            *problems,
            *module_problems(row, request),
            *branch_problems(row, request),
            *fabric_problems(request),
            *option_problems(row, request),
        ),
        warnings=tuple(warnings),
    )


def packages(row: DistroDriver, request: Request) -> dict[str, str]:
    """Names and versions; "" is what the sources offer when it is installed."""
    tables, wanted = request.tables, request.variables.nvidia_stack
    listed = tables.distro_driver_packages
    found = dict.fromkeys((MODULE_PACKAGE, *listed.versioned), wanted.distro_driver)
    found |= dict.fromkeys(listed.others, "")
    if wanted.distro_cuda_toolkit:
        found[row.cuda.package] = ""
    if row.nccl:
        found |= {row.nccl.package: "", row.nccl.development: ""}
    if wanted.distro_container_toolkit:
        toolkit = tables.stacks[tables.default_stacks[0]].container_toolkit_package
        found |= dict.fromkeys(CONTAINER_TOOLKIT, toolkit)
    return found


def driver_package(row: DistroDriver, request: Request, *, security: bool) -> str:
    """The driver's package version: the operator's, else the installed one, else what the table expects."""
    wanted = request.variables.nvidia_stack.distro_driver
    if PACKAGE_VERSION.fullmatch(wanted):
        return wanted
    installed = request.node.packages.get(MODULE_PACKAGE, "")
    if installed.startswith(f"{row.branch}."):
        return installed
    return row.driver.get("security" if security else "release") or row.driver["release"]


def module_problems(row: DistroDriver, request: Request) -> Iterator[str]:
    """Why the distribution's kernel modules do not do for this node."""
    opened = row.modules["open"]
    if request.variables.nvidia_stack.kernel_modules == "open" and not opened.builds:
        yield (
            f"{opened.package} does not build: {opened.reason}; set "
            f"nvidia_stack_kernel_modules: auto for the proprietary modules, or {NVIDIA_REMEDY}"
        )
    for gpu in request.gpus:
        if module_need(gpu, request.tables) == "required":
            yield (
                f"{gpu.name} works only with open kernel modules, and the distribution's do not build "
                f"({opened.reason}); {NVIDIA_REMEDY}"
            )
    if request.unknown_gpus:
        yield (
            f"the distribution's driver {row.branch} is older than a GPU that no table knows "
            f"(10de:{', 10de:'.join(dict.fromkeys(request.unknown_gpus))}); {NVIDIA_REMEDY}"
        )


def branch_problems(row: DistroDriver, request: Request) -> Iterator[str]:
    """GPUs that the distribution's driver branch is too old or too new for."""
    for gpu in request.gpus:
        rule = request.tables.architectures[gpu.architecture]
        if rule.first_branch and row.branch < rule.first_branch:
            limit = f"{rule.first_branch} or newer"
        elif rule.last_branch and row.branch > rule.last_branch:
            limit = f"{rule.last_branch} or older"
        else:
            continue
        yield (
            f"{gpu.name} ({gpu.architecture}) needs driver branch {limit}; the distribution has "
            f"{row.branch}; {NVIDIA_REMEDY}"
        )


def option_problems(row: DistroDriver, request: Request) -> Iterator[str]:
    """What the operator asks for and the distribution does not have."""
    wanted = request.variables.nvidia_stack
    if wanted.name:
        yield (
            "nvidia_stack_name has no effect with nvidia_stack_source: distro, which offers only "
            f"{row.stack}; leave it empty"
        )
    if wanted.distro_driver and not PACKAGE_VERSION.fullmatch(wanted.distro_driver):
        yield (
            "nvidia_stack_distro_driver: expected the version of a package, such as "
            f"{row.driver['release']}, found {wanted.distro_driver}"
        )
    asked = {"dcgm": wanted.dcgm, "dcgm_exporter": wanted.dcgm_exporter, "imex": wanted.imex}
    if absent := [f"nvidia_stack_{name}" for name, given in asked.items() if given]:
        yield f"the distribution has no packages for {', '.join(absent)}; {NVIDIA_REMEDY}"


def fabric_problems(request: Request) -> Iterator[str]:
    """A node whose GPUs are joined by switches runs no CUDA program without a fabric manager."""
    if request.fabric != "none":
        yield (
            "NVLink switches join the GPUs of this node and need a fabric manager of the driver's version, "
            f"which the distribution does not package; {NVIDIA_REMEDY}"
        )


def resolved_driver(driver: Driver, resolved: dict[str, str]) -> Driver:
    """The plan's driver with the version that the sources really offer, where they were asked.

    The distribution's security suite may have moved on since the table was written.
    """
    package_version = resolved.get(MODULE_PACKAGE)
    if not package_version:
        return driver
    version = upstream(package_version)
    return replace(driver, version=version, package_version=package_version, branch=branch(version))
