"""The source `distro`: the driver that the distribution packages itself, from the mirror that the node uses.

Its packages have other names than NVIDIA's, and its versions move with the distribution's security suite.
Debian's modules are built by DKMS, Canonical's come built and signed with every kernel of Ubuntu's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from temper.plan.components import CONTAINER_TOOLKIT, build_packages, graphics_problems
from temper.plan.model import Driver, Offer, Runtime
from temper.plan.refusals import Refusal, refusal
from temper.plan.repositories import container_repository
from temper.plan.request import Request
from temper.plan.rules import fitting_stacks, kernel_modules, module_need
from temper.plan.tables import DistroDriver, DistroPackages, Tables
from temper.plan.versions import branch, upstream, version

# The packages whose version is the driver's, in all distributions.
DRIVER_PACKAGE = re.compile(r"nvidia-kernel-dkms|nvidia-headless-no-dkms-\d+-server(-open)?")
KERNEL_SERIES = re.compile(r"\d+\.\d+")
PACKAGE_VERSION = re.compile(r"\d+(\.\d+)+-\S+")
PREBUILT_HINT = (
    "Ubuntu has its driver in the component restricted of -updates and -security, the fabric manager in "
    "multiverse (`add-apt-repository restricted multiverse`), and modules only for kernels that it still "
    "offers: upgrade an older kernel, reboot and remove it first"
)


@dataclass(frozen=True)
class DriverChoice:
    """The distribution's driver for a node: the flavour of its modules, its packages, why it does not do.

    `prebuilt` are modules that come as packages, `kernels` what has to be held with them; "" is what the
    sources offer.
    """

    modules: str
    listed: DistroPackages
    prebuilt: dict[str, str]
    kernels: dict[str, str]
    problems: tuple[Refusal, ...]


def offer(request: Request) -> Offer:
    """Return the distribution's driver with what else it has, and the container toolkit from NVIDIA."""
    tables, wanted, name = request.tables, request.variables.nvidia_stack, request.distribution.name
    row = tables.distro_drivers.get(name)
    if not row:
        problem = refusal("distro-unknown", system=name, known=sorted(tables.distro_drivers))
        return Offer(stack="none", refusals=(problem,))
    mirrors, problems, warnings = request.distribution.own_repositories(request.node, wanted)
    secure = any("security" in (mirror.suite or "") for mirror in mirrors)
    choice = driver_choice(row, request)
    package_version = driver_package(row, choice.listed.driver, request, security=secure)
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
            modules=choice.modules,
            end_of_life=end_of_life,
            dkms=row.modules[choice.modules].dkms,
        ),
        cuda=row.cuda.version if row.cuda and wanted.distro_cuda_toolkit else None,
        torch=row.modules[choice.modules].torch or row.torch,
        packages=packages(row, choice.listed, request) | choice.prebuilt,
        present=choice.kernels if choice.prebuilt else build_packages(request, choice.modules),
        repositories=mirrors + toolkit,
        services=services(request),
        # What this driver runs is not what the distribution's toolkit is: nothing is promised of CUDA.
        runtime=Runtime(
            nccl=row.nccl.version if row.nccl else None,
            fabric_manager=upstream(package_version) if request.fabric == "nvswitch" else None,
        ),
        refusals=(
            *problems,
            *choice.problems,
            *option_problems(row, request),
            *graphics_problems(choice.listed.graphics, request),
        ),
        warnings=(*warnings, *kernel_warnings(row, request)),
        hint=PREBUILT_HINT if choice.prebuilt else "",
    )


def named_packages(row: DistroDriver, request: Request, modules: str) -> DistroPackages:
    """Return the driver's packages under their names on this distribution, with modules of this flavour."""
    listed = request.tables.distro_driver_packages[request.distribution.release.family]

    def name(text: str) -> str:
        return text.format(branch=row.branch, open="-open" if modules == "open" else "")

    return replace(
        listed,
        driver=name(listed.driver),
        versioned=tuple(map(name, listed.versioned)),
        fabric=listed.fabric and name(listed.fabric),
    )


def packages(row: DistroDriver, listed: DistroPackages, request: Request) -> dict[str, str]:
    """Return names and versions; "" is what the sources offer when it is installed."""
    tables, wanted = request.tables, request.variables.nvidia_stack
    fabric = (listed.fabric,) if listed.fabric and request.fabric != "none" else ()
    graphics = listed.graphics if wanted.graphics else ()
    found = dict.fromkeys((listed.driver, *listed.versioned, *fabric, *graphics), wanted.distro_driver)
    found |= dict.fromkeys(listed.others, "")
    if row.cuda and wanted.distro_cuda_toolkit:
        found[row.cuda.package] = ""
    if row.nccl:
        found |= {row.nccl.package: "", row.nccl.development: ""}
    if wanted.distro_container_toolkit:
        toolkit = tables.stacks[tables.default_stacks[0]].container_toolkit_package
        found |= dict.fromkeys(CONTAINER_TOOLKIT, toolkit)
    return found


def services(request: Request) -> tuple[str, ...]:
    """Return the units that have to run on this node."""
    return ("nvidia-persistenced", *(("nvidia-fabricmanager",) if request.fabric != "none" else ()))


def driver_package(row: DistroDriver, package: str, request: Request, *, security: bool) -> str:
    """Return the driver's version: the operator's, else the installed one, else what the table expects."""
    wanted = request.variables.nvidia_stack.distro_driver
    if PACKAGE_VERSION.fullmatch(wanted):
        return wanted
    installed = request.node.packages.get(package, "")
    if installed.startswith(f"{row.branch}."):
        return installed
    return row.driver.get("security" if security else "release") or row.driver["release"]


def driver_choice(row: DistroDriver, request: Request) -> DriverChoice:
    """Return which of the distribution's drivers this node gets."""
    modules, problems = chosen_modules(row, request)
    listed = named_packages(row, request, modules)
    prebuilt, kernels, missing = request.distribution.prebuilt_modules(
        request.node, row, modules, follow=request.variables.nvidia_stack.follow_kernels
    )
    return DriverChoice(
        modules=modules,
        listed=listed,
        prebuilt=prebuilt,
        kernels=kernels,
        problems=(
            *problems,
            *missing,
            *newer_problems(row, request),
            *branch_problems(row, request),
            *kernel_problems(row, request),
            *fabric_problems(listed, request),
        ),
    )


def or_nvidia(request: Request) -> bool:
    """Return whether NVIDIA's packages are another way out: they have a driver for this node."""
    wanted = replace(request.variables.nvidia_stack, name="")
    unnamed = replace(request, variables=replace(request.variables, nvidia_stack=wanted))
    return bool(fitting_stacks(unnamed))


def has_signed_modules(request: Request) -> bool:
    """Return whether the distribution has modules of its own signature for this node."""
    row = request.tables.distro_drivers.get(request.distribution.name)
    return bool(row and row.flavours and not driver_choice(row, request).problems)


def chosen_modules(row: DistroDriver, request: Request) -> tuple[str, list[Refusal]]:
    """Return the flavour of the kernel modules, and why it does not do for this node."""
    if row.has("open"):
        return kernel_modules(request, upstream(row.driver["release"]))
    return "proprietary", [*closed_problems(row, request)]


def closed_problems(row: DistroDriver, request: Request) -> Iterator[Refusal]:
    """Yield why the proprietary modules, the only ones, do not do for this node."""
    opened = row.modules["open"]
    if request.variables.nvidia_stack.kernel_modules == "open" and not opened.builds:
        yield refusal(
            "distro-open-does-not-build",
            package=opened.package,
            reason=opened.reason,
            or_nvidia=or_nvidia(request),
        )
    for gpu in request.gpus:
        if module_need(gpu, request.tables) == "required":
            yield refusal("distro-gpu-needs-open", gpu=gpu.name, reason=opened.reason)


def newer_problems(row: DistroDriver, request: Request) -> Iterator[Refusal]:
    """GPUs that came after the tables."""
    if request.unknown_gpus:
        pci_ids = [f"10de:{one}" for one in dict.fromkeys(request.unknown_gpus)]
        yield refusal("distro-gpu-unknown", branch=row.branch, pci_ids=pci_ids)


def branch_problems(row: DistroDriver, request: Request) -> Iterator[Refusal]:
    """GPUs that the distribution's driver branch is too old or too new for."""
    for gpu in request.gpus:
        rule = request.tables.architectures[gpu.architecture]
        if rule.first_branch and row.branch < rule.first_branch:
            code, limit = "distro-gpu-needs-newer-branch", rule.first_branch
        elif rule.last_branch and row.branch > rule.last_branch:
            code, limit = "distro-gpu-needs-older-branch", rule.last_branch
        else:
            continue
        yield refusal(code, gpu=gpu.name, architecture=gpu.architecture, limit=limit, found=row.branch)
    found = {device.device_id for device in request.node.own_pci}.intersection(row.unlisted)
    for device_id in sorted(found):
        name = request.tables.models[request.tables.models_by_id[device_id]].name
        yield refusal("distro-gpu-not-listed", gpu=name, pci_id=f"10de:{device_id}", branch=row.branch)


def newer_kernels(row: DistroDriver, request: Request) -> Iterator[str]:
    """Return running and installed kernels that the distribution's modules are not known to build for."""
    node = request.node
    for release in dict.fromkeys((node.kernel.release, *(kernel.release for kernel in node.kernels))):
        series = KERNEL_SERIES.match(release)
        if series and row.last_kernel and version(series[0]) > version(row.last_kernel):
            yield release


def kernel_problems(row: DistroDriver, request: Request) -> Iterator[Refusal]:
    """Yield the distribution's own kernels that are too new, from backports for instance."""
    for release in newer_kernels(row, request):
        if request.distribution.KERNEL.fullmatch(release):
            yield refusal(
                "distro-kernel-too-new",
                branch=row.branch,
                limit=row.last_kernel or "",
                kernel=release,
                or_nvidia=or_nvidia(request),
            )


def kernel_warnings(row: DistroDriver, request: Request) -> Iterator[str]:
    """Kernels of others: who built one may know better, and a build that fails is undone."""
    for release in newer_kernels(row, request):
        if not request.distribution.KERNEL.fullmatch(release):
            yield (
                f"the distribution's driver {row.branch} is known to build for kernels up to "
                f"{row.last_kernel}; {release} is newer and not the distribution's: the build may fail"
            )


def option_problems(row: DistroDriver, request: Request) -> Iterator[Refusal]:
    """Yield what the operator asks for and the distribution does not have."""
    wanted = request.variables.nvidia_stack
    if wanted.name:
        yield refusal("distro-stack-name", stack=row.stack)
    if wanted.distro_driver and not PACKAGE_VERSION.fullmatch(wanted.distro_driver):
        yield refusal("distro-driver-version", example=row.driver["release"], found=wanted.distro_driver)
    elif wanted.distro_driver and row.flavours:
        yield refusal("distro-driver-of-canonical")
    asked = {"dcgm": wanted.dcgm, "dcgm_exporter": wanted.dcgm_exporter, "imex": wanted.imex}
    if absent := [f"nvidia_stack_{name}" for name, given in asked.items() if given]:
        yield refusal("distro-packages-absent", variables=absent, or_nvidia=or_nvidia(request))


def fabric_problems(listed: DistroPackages, request: Request) -> Iterator[Refusal]:
    """Yield the refusal of a node whose GPUs switches join, where there is no fabric manager."""
    if request.fabric == "nvlink5" and listed.fabric:
        yield refusal("distro-subnet-manager")
    elif request.fabric != "none" and not listed.fabric:
        yield refusal("distro-fabric-manager")


def resolved_driver(driver: Driver, resolved: dict[str, str]) -> Driver:
    """Return the plan's driver with the version that the sources really offer, where they were asked.

    The distribution's security suite may have moved on since the table was written.
    """
    package_version = next((found for name, found in resolved.items() if DRIVER_PACKAGE.fullmatch(name)), "")
    if not package_version:
        return driver
    number = upstream(package_version)
    return replace(driver, version=number, package_version=package_version, branch=branch(number))


def kernel_problem(source: str, system: str, release: str, tables: Tables) -> str:
    """Return why a kernel is none for a node with this plan; empty where nothing is known against it.

    `source` and `system` are the plan's: `nvidia` or `distro`, and `debian-12`. NVIDIA's drivers have no such
    limit in the tables; whether one compiles is seen before the node boots.
    """
    row = tables.distro_drivers.get(system) if source == "distro" else None
    series = KERNEL_SERIES.match(release)
    if not row or not row.last_kernel or not series or version(series[0]) <= version(row.last_kernel):
        return ""
    return (
        f"the distribution's driver {row.branch} is known to build for kernels up to {row.last_kernel}, and "
        f"kernel {release} is newer; name an older one, or set nvidia_stack_source: nvidia"
    )
