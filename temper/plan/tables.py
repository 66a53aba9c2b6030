"""The tables of data/*.yml, typed, as far as plans are made from them. The files explain their columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import yaml

from temper.plan.convert import build
from temper.plan.versions import branch

# libyaml where it is there: it takes a tenth of the time.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class Stack:
    """Versions that are installed together; `driver_package` is by the distribution's family.

    `nccl_doubtful` are releases whose repository may lack this NCCL.
    """

    name: str
    driver: str
    driver_package: dict[str, str]
    seen: tuple[str, ...]
    cuda: str
    cuda_package: str
    cudnn_package: str
    nccl_package: str
    container_toolkit_package: str
    dcgm_package: str
    dcgm_exporter_package: str
    torch: str
    nccl_doubtful: tuple[str, ...] = ()

    @property
    def branch(self) -> int:
        """The driver's branch."""
        return branch(self.driver)

    @property
    def cuda_major(self) -> str:
        """The CUDA's major version."""
        return self.cuda.partition(".")[0]


@dataclass(frozen=True)
class CudnnRange:
    """The cuDNN versions for a CUDA major version; `last` is None where no end is known."""

    first: str
    last: str | None


@dataclass(frozen=True)
class TorchRelease:
    """A minor release of torch on PyPI; `pypi` has the build's CUDA ("cu130") by machine, none on others."""

    last: str
    first_python: str
    last_python: str
    pypi: dict[str, str]


@dataclass(frozen=True)
class TorchBuild:
    """The builds of torch for one CUDA and machine up to release `last`: what they have kernels for."""

    last: str
    capabilities: tuple[str, ...]


@dataclass(frozen=True)
class LockedClocks:
    """Which clocks can be locked."""

    graphics: bool
    memory: bool


@dataclass(frozen=True)
class Architecture:
    """What works on a GPU architecture; None is no limit."""

    open_modules: str
    first_branch: int | None
    last_branch: int | None
    first_cuda: str | None
    last_cuda: str | None
    last_cudnn: str | None
    locked_clocks: LockedClocks


@dataclass(frozen=True)
class GpuModel:
    """A GPU model; `display` marks the smallest, which beside other GPUs are there for a monitor."""

    name: str
    pci_ids: tuple[str, ...]
    architecture: str
    compute_capability: str
    nvswitch_system_possible: bool = False
    form_factor: str | None = None
    display: bool = False
    product_names: tuple[str, ...] = ()  # as nvidia-smi prints them


@dataclass(frozen=True)
class RepositoryKey:
    """The file with a repository's key, and who may sign with it."""

    key_file: str
    key_fingerprints: tuple[str, ...]


@dataclass(frozen=True)
class Release(RepositoryKey):
    """A distribution release; its family names the class in temper/plan/distributions."""

    name: str
    family: str
    booted_in_lab: bool
    repository: str
    first_branch: int | None
    first_cuda: str | None
    architectures: tuple[str, ...]

    @property
    def version(self) -> str:
        """The release without the distribution: 24.04 of ubuntu-24.04."""
        return self.name.rpartition("-")[2]


@dataclass(frozen=True)
class DistroModules:
    """A flavour of the distribution's kernel modules, and whether it builds.

    `dkms` is its name there; without one, the modules are in packages for each kernel, called `package` and
    the kernel. `torch` is a build for the GPUs of this flavour.
    """

    builds: bool
    dkms: str = ""
    package: str = ""
    torch: str = ""
    reason: str = ""


@dataclass(frozen=True)
class DistroLibrary:
    """A library that the distribution packages."""

    version: str
    package: str
    development: str = ""


@dataclass(frozen=True)
class DistroDriver:
    """What a distribution packages of the NVIDIA stack; `driver` has the package's version by suite.

    `last_kernel` is the newest series that its modules build for; the driver does not list GPUs `unlisted`.
    `flavours` are those of kernels that it packages built modules for.
    """

    stack: str
    branch: int
    driver: dict[str, str]
    modules: dict[str, DistroModules]
    cuda: DistroLibrary | None
    nccl: DistroLibrary | None
    torch: str
    last_kernel: str | None = None
    unlisted: tuple[str, ...] = ()
    flavours: tuple[str, ...] = ()

    def has(self, modules: str) -> bool:
        """Return whether there are modules of this flavour that work."""
        return self.modules[modules].builds


@dataclass(frozen=True)
class DistroPackages:
    """The driver's packages beside the kernel modules: at its version, and at versions of their own.

    `driver` is the one whose version is the driver's; `fabric` is the fabric manager, if there is one;
    `graphics` are libraries at the driver's version, none where their names are not known.
    """

    driver: str
    versioned: tuple[str, ...]
    others: tuple[str, ...]
    fabric: str | None
    graphics: tuple[str, ...]


@dataclass(frozen=True)
class Fix:
    """The first version of a branch without the vulnerabilities `cves`; of a firmware, on these `devices`."""

    version: str
    cves: tuple[str, ...]
    devices: tuple[int, ...] = ()


@dataclass(frozen=True)
class Bulletin:
    """A security bulletin of NVIDIA; `cvss` has the base scores by vulnerability."""

    date: str
    url: str
    cvss: dict[str, float]
    fixed: tuple[Fix, ...]
    waiver: str = ""


@dataclass(frozen=True)
class SecurityComponent:
    """What bulletins are about: `packages` are patterns of names, none for the driver and for firmware.

    A version of `firmware` has the number of its device before the version that bulletins speak of.
    """

    title: str
    packages: tuple[str, ...]
    bulletins: dict[str, Bulletin]
    firmware: bool = False


@dataclass(frozen=True)
class Tables:
    """All tables; a field is named after its table, without `nvidia_`."""

    stacks: dict[str, Stack]
    default_stacks: tuple[str, ...]
    ends_of_life: dict[str, str | None]
    branch_types: dict[str, str]
    cuda_drivers: dict[str, str]
    cuda_minimum_drivers: dict[str, str]
    cudnn_cuda: dict[str, CudnnRange]
    torch_releases: dict[str, TorchRelease]
    torch_builds: dict[str, dict[str, dict[str, TorchBuild]]]  # by machine, CUDA and first release
    distribution_pythons: dict[str, tuple[str, ...]]
    architectures: dict[str, Architecture]
    models: dict[str, GpuModel]
    integrated_gpus: dict[str, str]  # names by PCI id
    open_minimum_driver: str
    proprietary_last_branch: int
    open_required_form_factor: str
    fabric_first_plain_branch: int
    nvlink5_minimum_driver: str
    repository_url: str
    container_toolkit_repository: RepositoryKey
    distributions: dict[str, Release]
    rebuilds: dict[str, str]
    distro_drivers: dict[str, DistroDriver]
    distro_driver_packages: dict[str, DistroPackages]
    nccl_debug_variables: tuple[str, ...]
    graphics_packages: dict[str, tuple[str, ...]]  # NVIDIA's, by family
    security: dict[str, SecurityComponent]

    @cached_property
    def models_by_id(self) -> dict[str, str]:
        """The keys of `models` by PCI id."""
        return {device_id: key for key, model in self.models.items() for device_id in model.pci_ids}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Tables:
        """From the files' content in one mapping. Raises ValueError where a row lacks a column."""
        modules, fabric = data["nvidia_kernel_modules"], data["nvidia_fabric"]
        derived = {
            "stacks": {name: {**row, "name": name} for name, row in data["nvidia_stacks"].items()},
            "ends_of_life": _column(data["nvidia_driver_branches"], "end_of_life"),
            "branch_types": _column(data["nvidia_driver_branches"], "type"),
            "cuda_drivers": _column(data["nvidia_cuda_drivers"], "driver"),
            "cuda_minimum_drivers": _column(data["nvidia_cuda_minimum_drivers"], "driver"),
            "architectures": {
                name: {**rule, "locked_clocks": data["architectures"][name]["locked_clocks"]}
                for name, rule in data["nvidia_architectures"].items()
            },
            "models": chip_models(data["gpu_chips"]) | data["models"],
            "integrated_gpus": {
                device_id: name for name, ids in data["gpu_integrated"].items() for device_id in ids.split()
            },
            "open_minimum_driver": modules["open_minimum_driver"]["driver"],
            "proprietary_last_branch": modules["proprietary_last_branch"]["branch"],
            "open_required_form_factor": modules["open_required_form_factor"]["form_factor"],
            "fabric_first_plain_branch": fabric["plain_names"]["first_branch"],
            "nvlink5_minimum_driver": fabric["nvlink5"]["minimum_driver"],
            "repository_url": data["nvidia_repository"]["url"],
            "distributions": {
                name: {**row, "name": name} for name, row in data["nvidia_distributions"].items()
            },
            "distribution_pythons": {
                name: row["versions"] for name, row in data["nvidia_distribution_pythons"].items()
            },
            "rebuilds": _column(data["nvidia_distribution_rebuilds"], "family"),
            "graphics_packages": _column(data["nvidia_graphics_packages"], "packages"),
            "distro_drivers": {
                name: {
                    **row,
                    "driver": _column(row["driver"], "package"),
                    "last_kernel": row.get("last_kernel", {}).get("version"),
                    "unlisted": row.get("unlisted", {}).get("ids", "").split(),
                    "torch": row["torch"]["version"],
                }
                for name, row in data["distro_drivers"].items()
            },
        }
        named = {name.removeprefix("nvidia_"): table for name, table in data.items()}
        return build(cls, {**named, **derived}, "data")


def _column(table: Mapping[str, Mapping[str, str]], name: str) -> dict[str, str]:
    return {key: row[name] for key, row in table.items()}


def chip_models(chips: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, object]]:
    """Return the models of gpu_ids.yml: a chip and the first of a name's PCI ids are their keys."""
    return {
        f"{chip}_{ids.split()[0]}": {
            "name": name,
            "pci_ids": ids.split(),
            "architecture": row["architecture"],
            "compute_capability": row["compute_capability"],
            "display": kind == "display",
        }
        for chip, row in chips.items()
        for kind in ("gpus", "display")
        for name, ids in row.get(kind, {}).items()
    }


@cache
def read_yaml(path: Path) -> Any:
    """Return the content of a file of this repository, read once in each process."""
    return yaml.load(path.read_text(encoding="utf-8"), Loader=LOADER)  # noqa: S506 - a safe loader


@cache
def load_tables(folder: Path) -> Tables:
    """Return the tables of a folder."""
    merged: dict[str, Any] = {}
    for path in sorted(folder.glob("*.yml")):
        merged |= read_yaml(path)
    return Tables.from_dict(merged)


@cache
def load_models(folder: Path) -> dict[str, Any]:
    """Return the content of gpu_models.yml (validation knows its fields) and the models of gpu_ids.yml."""
    content: dict[str, Any] = read_yaml(folder / "gpu_models.yml")
    others = chip_models(read_yaml(folder / "gpu_ids.yml")["gpu_chips"])
    return {**content, "models": others | content["models"]}
