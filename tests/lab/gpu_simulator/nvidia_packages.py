"""The simulated packages: NVIDIA's names, versions and relations around the files in `packages/`.

Names, versions and relations follow NVIDIA's documentation and installation scripts, as of 2026-11; no
listing of NVIDIA's repositories was at hand. Maintainer scripts do what the real packages' do where another
program could notice, and no more.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from tests.lab.gpu_simulator import libraries
from tests.lab.gpu_simulator.deb import File, Package

if TYPE_CHECKING:
    from collections.abc import Iterator

FILES = Path(__file__).resolve().parent / "packages"

# Driver version -> newest CUDA version that it runs, as nvidia-smi prints it.
DRIVERS = {"580.126.09": "13.0", "580.178.04": "13.0", "595.91.07": "13.2"}
# CUDA release -> (package version, version nvcc prints). What nvcc prints is assumed.
CUDA_TOOLKITS = {
    "12.9": ("12.9.1-1", "12.9.86"),
    "13.0": ("13.0.2-1", "13.0.88"),
    "13.2": ("13.2.2-1", "13.2.78"),
}
# CUDA major -> versions of cuDNN for it.
CUDNN = {"12": ("9.10.2.21-1",), "13": ("9.19.0.56-1", "9.24.0.43-1")}
NCCL = ("2.27.5-1+cuda12.9", "2.28.9-1+cuda13.0", "2.30.4-1+cuda13.2")
DCGM = "1:4.6.0-1"
CONTAINER_TOOLKITS = ("1.18.0-1", "1.20.0-1")
KEYRING = "1.1-1"


@dataclass(frozen=True)
class Architecture:
    """One machine architecture under its three names."""

    debian: str
    nvidia: str  # in the CUDA repositories' paths
    triplet: str

    @property
    def libraries(self) -> str:
        """The directory of shared libraries."""
        return f"/usr/lib/{self.triplet}"


def text(name: str, **values: str) -> str:
    """Read a file of `packages/` and put values in the place of @NAME@."""
    content = (FILES / name).read_text()
    for key, value in values.items():
        content = content.replace(f"@{key}@", value)
    return content


def _file(name: str, **values: str) -> File:
    return File(text(name, **values).encode())


def _program(name: str, **values: str) -> File:
    return File(text(name, **values).encode(), 0o755)


def _stand_in(what: str, **facts: str) -> File:
    """Stand for a binary: JSON that says what it is, and what the simulated programs ask of it."""
    return File((json.dumps({"simulated": f"stands for {what}", **facts}) + "\n").encode())


class Shipped(TypedDict):
    """Files and links of a package."""

    files: dict[str, File]
    links: dict[str, str]


def _library(arch: Architecture, soname: str, version: str, code: int = 0, **facts: str) -> Shipped:
    """Return a shared library as NVIDIA ships it: its name has the version, and its soname leads there.

    `code` is the number that it answers when it is asked for its version.
    """
    name = soname.partition(".so.")[0]
    file = f"{name}.so.{version}"
    content = libraries.shared_library(name, soname, version, code, **facts)
    return Shipped(
        files={f"{arch.libraries}/{file}": File(content)}, links={f"{arch.libraries}/{soname}": file}
    )


def _upstream(version: str) -> str:
    """Return a package version without epoch and Debian revision."""
    return version.rpartition(":")[2].partition("-")[0]


def _with_service(package: str, *, enabled: bool) -> dict[str, str]:
    """Return maintainer scripts for a package with a unit of the same name."""
    values = {"PACKAGE": package, "UNIT": f"{package}.service", "ENABLED": str(enabled).lower()}
    return {script: text(f"service.{script}", **values) for script in ("postinst", "prerm", "postrm")}


def _kernel_module(flavour: str, version: str, arch: Architecture) -> Package:
    """Return the package of the open or the proprietary module."""
    names = {"open": "nvidia-kernel-open-dkms", "proprietary": "nvidia-kernel-dkms"}
    (other,) = (name for key, name in names.items() if key != flavour)
    upstream = _upstream(version)
    source = f"/usr/src/nvidia-{upstream}"
    return Package(
        name=names[flavour],
        version=version,
        architecture=arch.debian,
        section="kernel",
        description=f"NVIDIA {flavour} kernel module for DKMS",
        depends=f"nvidia-modprobe (= {version})",
        conflicts=other,
        replaces=other,
        files={
            f"{source}/nvidia.ko": _stand_in("a kernel module", version=upstream, flavour=flavour),
            f"{source}/dkms.conf": File(f'PACKAGE_NAME="nvidia"\nPACKAGE_VERSION="{upstream}"\n'.encode()),
            "/usr/lib/modprobe.d/nvidia.conf": _file("modprobe.conf"),
        },
        scripts={
            script: text(f"kernel-module.{script}", VERSION=upstream) for script in ("postinst", "prerm")
        },
    )


def driver_packages(upstream: str, arch: Architecture) -> Iterator[Package]:
    """Yield the packages of one driver version, tied together by `=` as NVIDIA's are."""
    version = f"{upstream}-1"
    units = "/usr/lib/systemd/system"

    yield Package(
        name="libnvidia-ml1",
        version=version,
        architecture=arch.debian,
        section="libs",
        description="NVIDIA Management Library (NVML)",
        **_library(arch, "libnvidia-ml.so.1", upstream, cuda=DRIVERS[upstream]),
    )
    yield Package(
        name="libcuda1",
        version=version,
        architecture=arch.debian,
        section="libs",
        description="NVIDIA CUDA driver library",
        recommends=f"nvidia-kernel-open-dkms (= {version}) | nvidia-kernel-dkms (= {version})",
        **_library(arch, "libcuda.so.1", upstream, libraries.code(DRIVERS[upstream], 1000, 10)),
    )
    yield Package(
        name="nvidia-modprobe",
        version=version,
        architecture=arch.debian,
        description="utility that loads the NVIDIA kernel module and makes its device files",
        files={"/usr/bin/nvidia-modprobe": _program("nvidia-modprobe.sh")},
    )
    yield Package(
        name="nvidia-persistenced",
        version=version,
        architecture=arch.debian,
        description="daemon that keeps the driver's state while no client uses a GPU",
        depends=f"libnvidia-ml1 (= {version})",
        files={
            "/usr/bin/nvidia-persistenced": _program("nvidia_persistenced.py", VERSION=upstream),
            f"{units}/nvidia-persistenced.service": _file("nvidia-persistenced.service"),
            "/usr/lib/sysusers.d/nvidia-persistenced.conf": File(b'u nvpd - "NVIDIA Persistence Daemon"\n'),
        },
        scripts=_with_service("nvidia-persistenced", enabled=True),
    )
    same = ("libcuda1", "libnvidia-ml1", "nvidia-modprobe", "nvidia-persistenced")
    yield Package(
        name="nvidia-driver-cuda",
        version=version,
        architecture=arch.debian,
        description="NVIDIA driver, compute part, with nvidia-smi",
        depends=", ".join(f"{name} (= {version})" for name in same),
        files={"/usr/bin/nvidia-smi": _program("nvidia_smi.py")},
    )
    yield _kernel_module("open", version, arch)
    yield _kernel_module("proprietary", version, arch)
    yield Package(
        name="nvidia-open",
        version=version,
        architecture=arch.debian,
        description="NVIDIA driver with open kernel modules (metapackage)",
        depends=f"nvidia-driver-cuda (= {version}), nvidia-kernel-open-dkms (= {version})",
    )
    # The fabric manager is not tied to the driver's version and its unit is not enabled by the package: both
    # are the administrator's to get right.
    yield Package(
        name="nvidia-fabricmanager",
        version=version,
        architecture=arch.debian,
        description="fabric manager for NVSwitch based systems",
        files={
            "/usr/bin/nv-fabricmanager": _program("nv_fabricmanager.py", VERSION=upstream),
            "/usr/bin/nvidia-fabricmanager-start.sh": _program("nvidia-fabricmanager-start.sh"),
            f"{units}/nvidia-fabricmanager.service": _file("nvidia-fabricmanager.service"),
            "/usr/share/nvidia/nvswitch/fabricmanager.cfg": File(b"DAEMONIZE=1\n"),
        },
        scripts=_with_service("nvidia-fabricmanager", enabled=False),
    )
    yield Package(
        name="libnvidia-nscq",
        version=version,
        architecture=arch.debian,
        section="libs",
        description="NVSwitch configuration and query library",
        files={f"{arch.libraries}/libnvidia-nscq.so.2": _stand_in("NSCQ", version=upstream)},
    )


def pinning_packages() -> Iterator[Package]:
    """Yield the packages that hold apt to a driver branch or version through apt's preferences."""
    branches = sorted({upstream.partition(".")[0] for upstream in DRIVERS})
    for name in (*branches, *DRIVERS):
        glob = f"{name}.*" if name in branches else f"{name}-*"
        preferences = f"Package: nvidia-* libnvidia-* libcuda1\nPin: version {glob}\nPin-Priority: 1000\n"
        yield Package(
            name=f"nvidia-driver-pinning-{name}",
            version=f"{name}-1",
            architecture="all",
            description=f"holds the NVIDIA driver to {name}",
            provides="nvidia-driver-pinning",
            conflicts="nvidia-driver-pinning",
            replaces="nvidia-driver-pinning",
            files={f"/etc/apt/preferences.d/nvidia-driver-pinning-{name}.pref": File(preferences.encode())},
        )


def cuda_packages(arch: Architecture) -> Iterator[Package]:
    """Yield CUDA toolkits, cuDNN, NCCL and DCGM."""
    for release, (version, nvcc) in CUDA_TOOLKITS.items():
        major, minor = release.split(".")
        values = {"RELEASE": release, "MAJOR": major, "PRIORITY": major + minor, "NVCC": nvcc}
        contents = {
            "cuda": {"name": "CUDA SDK", "version": _upstream(version)},
            "cuda_nvcc": {"name": "CUDA NVCC", "version": nvcc},
        }
        yield Package(
            name=f"cuda-toolkit-{major}-{minor}",
            version=version,
            architecture=arch.debian,
            section="devel",
            description=f"CUDA toolkit {release}",
            files={
                f"/usr/local/cuda-{release}/bin/nvcc": _program("nvcc.sh", **values),
                f"/usr/local/cuda-{release}/version.json": File(json.dumps(contents, indent=3).encode()),
            },
            scripts={script: text(f"cuda-toolkit.{script}", **values) for script in ("postinst", "prerm")},
        )
    for major, versions in CUDNN.items():
        for version in versions:
            release = ".".join(version.split(".")[:3])
            yield Package(
                name=f"libcudnn9-cuda-{major}",
                version=version,
                architecture=arch.debian,
                section="libs",
                description=f"cuDNN runtime libraries for CUDA {major}",
                # Both have the same library; how NVIDIA's packages settle that is assumed.
                conflicts=" ".join(f"libcudnn9-cuda-{other}" for other in CUDNN if other != major),
                **_library(arch, "libcudnn.so.9", release, libraries.code(release, 10000, 100, 1)),
            )
            yield Package(
                name=f"cudnn9-cuda-{major}",
                version=version,
                architecture=arch.debian,
                description=f"cuDNN 9 for CUDA {major} (metapackage)",
                depends=f"libcudnn9-cuda-{major} (= {version})",
            )
    for version in NCCL:
        header = f'#define NCCL_VERSION "{_upstream(version)}"\n'
        yield Package(
            name="libnccl2",
            version=version,
            architecture=arch.debian,
            section="libs",
            description="NVIDIA collective communication library",
            **_library(
                arch,
                "libnccl.so.2",
                _upstream(version),
                libraries.code(_upstream(version), 10000, 100, 1),
            ),
        )
        yield Package(
            name="libnccl-dev",
            version=version,
            architecture=arch.debian,
            section="libdevel",
            description="NVIDIA collective communication library, development files",
            depends=f"libnccl2 (= {version})",
            files={"/usr/include/nccl.h": File(header.encode())},
        )
    yield Package(
        name="datacenter-gpu-manager-4-core",
        version=DCGM,
        architecture=arch.debian,
        description="NVIDIA data center GPU manager",
        files={"/usr/bin/dcgmi": _program("dcgmi.sh", VERSION=_upstream(DCGM))},
    )


def keyring_package(public_key: bytes) -> Package:
    """Return cuda-keyring; the real one also brings a list of NVIDIA's own repository, of no use here."""
    return Package(
        name="cuda-keyring",
        version=KEYRING,
        architecture="all",
        description="key of the CUDA repository",
        files={"/usr/share/keyrings/cuda-archive-keyring.gpg": File(public_key)},
    )


def container_packages(arch: Architecture) -> Iterator[Package]:
    """Yield the container toolkit: four packages of one version."""
    for version in CONTAINER_TOOLKITS:
        upstream = _upstream(version)
        library = _stand_in("libnvidia-container", version=upstream)
        yield Package(
            name="libnvidia-container1",
            version=version,
            architecture=arch.debian,
            section="libs",
            description="NVIDIA container runtime library",
            files={f"{arch.libraries}/libnvidia-container.so.1": library},
        )
        yield Package(
            name="libnvidia-container-tools",
            version=version,
            architecture=arch.debian,
            description="NVIDIA container runtime library, command line tools",
            depends=f"libnvidia-container1 (= {version})",
            files={"/usr/bin/nvidia-container-cli": _program("nvidia-container-cli.sh", VERSION=upstream)},
        )
        yield Package(
            name="nvidia-container-toolkit-base",
            version=version,
            architecture=arch.debian,
            description="NVIDIA container toolkit, base",
            files={"/usr/bin/nvidia-ctk": _program("nvidia-ctk.sh", VERSION=upstream)},
        )
        yield Package(
            name="nvidia-container-toolkit",
            version=version,
            architecture=arch.debian,
            description="NVIDIA container toolkit",
            depends=f"nvidia-container-toolkit-base (= {version}), libnvidia-container-tools (= {version})",
        )
