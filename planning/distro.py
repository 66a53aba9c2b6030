"""The source `distro`: the driver that the distribution packages itself, from the mirror that the node uses.

Its kernel modules have other names than NVIDIA's, its versions move with the distribution's security suite,
and it has no fabric manager: it is for servers without NVSwitch, up to Hopper.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from planning.headers import build_packages
from planning.mirrors import distribution_repositories
from planning.model import Offer, Request
from planning.repositories import nvidia_repositories
from planning.rules import module_need
from planning.versions import branch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from planning.model import Facts

# The kernel modules, in every release.
MODULE_PACKAGE = "nvidia-kernel-dkms"
PACKAGE_VERSION = re.compile(r"\d+(\.\d+)+-\S+")
NOT_PACKAGED = ("nvidia_stack_dcgm", "nvidia_stack_dcgm_exporter", "nvidia_stack_imex")
NVIDIA_REMEDY = "set nvidia_stack_source: nvidia"


def offer(request: Request) -> Offer:
    """Debian's proprietary driver with what else Debian has, and the container toolkit from NVIDIA."""
    tables, values = request.tables, request.values
    row = tables["distro_drivers"].get(request.system.distribution)
    if not row:
        known = ", ".join(sorted(tables["distro_drivers"]))
        return Offer(
            stack="none",
            problems=[
                f"nvidia_stack_source: distro is not known for {request.system.distribution}; "
                f"expected one of: {known}; {NVIDIA_REMEDY}"
            ],
        )
    mirrors, problems, warnings = distribution_repositories(request)
    problems += module_problems(row, request) + branch_problems(row, request) + fabric_problems(request)
    problems += wish_problems(row, request)
    package_version = driver_package(row, request, security=any("security" in m["suite"] for m in mirrors))
    driver_version = upstream(package_version)
    end_of_life = tables["nvidia_driver_branches"].get(str(branch(driver_version)), {}).get("end_of_life")
    if end_of_life and request.today[:7] > end_of_life:
        warnings.append(
            f"NVIDIA's support of driver branch {branch(driver_version)} ended in {end_of_life}: fixes are "
            "up to the distribution; nvidia_stack_source: nvidia has branches that NVIDIA supports"
        )
    modules = row["modules"]["proprietary"]
    return Offer(
        stack=row["stack"],
        driver={
            "version": driver_version,
            "package_version": package_version,
            "branch": branch(driver_version),
            "modules": "proprietary",
            "end_of_life": end_of_life,
            "dkms": modules["dkms"],
        },
        cuda=row["cuda"]["version"] if values["nvidia_stack_distro_cuda_toolkit"] else None,
        torch=row["torch"]["version"],
        packages=packages(row, request),
        present=build_packages(request),
        repositories=mirrors + container_repositories(request),
        services=["nvidia-persistenced"],
        runtime={
            "cudnn": None,
            "nccl": row["nccl"]["version"] if row["nccl"] else None,
            "fabric_manager": None,
            # What this driver runs is not what Debian's toolkit is: nothing is promised.
            "cuda_driver": None,
        },
        problems=problems,
        warnings=warnings,
    )


def packages(row: Facts, request: Request) -> dict[str, str]:
    """Names and versions; "" is what the sources offer when it is installed."""
    tables, values = request.tables, request.values
    listed = tables["distro_driver_packages"]
    wanted = values["nvidia_stack_distro_driver"]
    found = {MODULE_PACKAGE: wanted}
    found |= dict.fromkeys(listed["versioned"], wanted) | dict.fromkeys(listed["others"], "")
    if values["nvidia_stack_distro_cuda_toolkit"]:
        found[row["cuda"]["package"]] = ""
    if row["nccl"]:
        found |= {row["nccl"]["package"]: "", row["nccl"]["development"]: ""}
    if values["nvidia_stack_distro_container_toolkit"]:
        default = tables["nvidia_stacks"][tables["nvidia_default_stacks"][0]]
        toolkit = default["container_toolkit_package"]
        names = ("nvidia-container-toolkit", "nvidia-container-toolkit-base", "libnvidia-container-tools")
        found |= dict.fromkeys((*names, "libnvidia-container1"), toolkit)
    return found


def container_repositories(request: Request) -> list[dict[str, Any]]:
    """NVIDIA's repository of the container toolkit, which Debian lacks; it has no driver."""
    if not request.values["nvidia_stack_distro_container_toolkit"]:
        return []
    every = nvidia_repositories(request)
    return [repository for repository in every if repository["name"] == "nvidia-container-toolkit"]


def driver_package(row: Facts, request: Request, *, security: bool) -> str:
    """The driver's package version: the operator's, else the installed one, else what the table expects."""
    installed = request.node["packages"].get(MODULE_PACKAGE, "")
    ours = installed if installed.startswith(f"{row['branch']}.") else ""
    table = row["driver"].get("security" if security else "release") or row["driver"]["release"]
    wish = request.values["nvidia_stack_distro_driver"]
    return str((PACKAGE_VERSION.fullmatch(wish) and wish) or ours or table["package"])


def module_problems(row: Facts, request: Request) -> list[str]:
    """Why the distribution's kernel modules do not do for this node."""
    problems = []
    open_modules = row["modules"]["open"]
    if request.values["nvidia_stack_kernel_modules"] == "open" and not open_modules["builds"]:
        problems.append(
            f"{open_modules['package']} does not build: {open_modules['reason']}; set "
            f"nvidia_stack_kernel_modules: auto for the proprietary modules, or {NVIDIA_REMEDY}"
        )
    problems += [
        f"{gpu['name']} works only with open kernel modules, and the distribution's do not build "
        f"({open_modules['reason']}); {NVIDIA_REMEDY}"
        for gpu in request.gpus
        if module_need(gpu, request.tables) == "required"
    ]
    if request.unknown_gpus:
        problems.append(
            f"the distribution's driver {row['branch']} is older than a GPU that no table knows "
            f"(10de:{', 10de:'.join(dict.fromkeys(request.unknown_gpus))}); {NVIDIA_REMEDY}"
        )
    return problems


def branch_problems(row: Facts, request: Request) -> list[str]:
    """GPUs that the distribution's driver branch is too old or too new for."""
    problems = []
    for gpu in request.gpus:
        rule = request.tables["nvidia_architectures"][gpu["architecture"]]
        first, last = rule["first_branch"], rule["last_branch"]
        if (first and row["branch"] < first) or (last and row["branch"] > last):
            limit = f"{first} or newer" if first and row["branch"] < first else f"{last} or older"
            problems.append(
                f"{gpu['name']} ({gpu['architecture']}) needs driver branch {limit}; the distribution has "
                f"{row['branch']}; {NVIDIA_REMEDY}"
            )
    return problems


def wish_problems(row: Facts, request: Request) -> list[str]:
    """What the operator asks for and the distribution has not."""
    values, problems = request.values, []
    if values["nvidia_stack_name"]:
        problems.append(
            "nvidia_stack_name chooses a stack of NVIDIA's repositories and means nothing to "
            f"nvidia_stack_source: distro, which offers {row['stack']}; leave it empty"
        )
    driver = values["nvidia_stack_distro_driver"]
    if driver and not PACKAGE_VERSION.fullmatch(driver):
        problems.append(
            "nvidia_stack_distro_driver: expected the version of a package, such as "
            f"{row['driver']['release']['package']}, found {driver}"
        )
    absent = [name for name in NOT_PACKAGED if values[name]]
    if absent:
        problems.append(f"the distribution has no packages for {', '.join(absent)}; {NVIDIA_REMEDY}")
    return problems


def fabric_problems(request: Request) -> list[str]:
    """A node whose GPUs are joined by switches runs no CUDA program without a fabric manager."""
    if request.fabric == "none":
        return []
    return [
        "the GPUs of this node are joined by NVLink switches, which need a fabric manager of the driver's "
        f"version, and the distribution has none; {NVIDIA_REMEDY}"
    ]


def resolved_driver(driver: Facts, resolved: Mapping[str, str]) -> Facts:
    """The plan's driver with the version that the sources really offer, where they were asked.

    Debian's security suite may have moved on since the table was written.
    """
    package_version = resolved.get(MODULE_PACKAGE)
    if not package_version:
        return driver
    version = upstream(package_version)
    return {
        **driver,
        "version": version,
        "package_version": package_version,
        "branch": branch(version),
    }


def upstream(package_version: str) -> str:
    """The driver's version in a package's: 535.309.01 of 535.309.01-0+deb12u1."""
    return package_version.rpartition(":")[2].partition("-")[0]
