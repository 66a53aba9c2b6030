"""The simulated packages: NVIDIA's names, versions and relations around the files in `packages/`.

Names, versions and relations follow NVIDIA's documentation and installation scripts, as of 2026-11; no
listing of NVIDIA's repositories was at hand. Maintainer scripts do what the real packages' do where another
program could notice, and no more.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial

from tests.lab.gpu_simulator import contents, libraries
from tests.lab.gpu_simulator.contents import Architecture
from tests.lab.gpu_simulator.deb import File, Package

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
# Version -> version of the CDI specification that it writes; that of 1.18 is assumed.
CONTAINER_TOOLKITS = {"1.18.0-1": "0.5.0", "1.20.0-1": "0.7.0"}
CDI_UNITS = ("nvidia-cdi-refresh.path", "nvidia-cdi-refresh.service")
KEYRING = "1.1-1"

# What the kernel modules of either flavour need at their own version.
KERNEL_SIDE = ("nvidia-modprobe", "nvidia-kernel-support", "firmware-nvidia-gsp")


def _kernel_module(flavour: str, version: str, arch: Architecture) -> Package:
    """Return the package of the open or the proprietary module."""
    names = {"open": "nvidia-kernel-open-dkms", "proprietary": "nvidia-kernel-dkms"}
    (other,) = (name for key, name in names.items() if key != flavour)
    upstream = contents.upstream(version)
    source = f"/usr/src/nvidia-{upstream}"
    return Package(
        name=names[flavour],
        version=version,
        architecture=arch.debian,
        section="kernel",
        description=f"NVIDIA {flavour} kernel module for DKMS",
        # 570.148.08 was the first to ask for this dkms; Debian 12 has an older one.
        depends=", ".join(("dkms (>= 3.1.8)", *(f"{name} (= {version})" for name in KERNEL_SIDE))),
        conflicts=other,
        replaces=other,
        files={
            f"{source}/nvidia.o": File(libraries.kernel_module(upstream, flavour)),
            f"{source}/build.sh": contents.program("module-build.sh"),
            f"{source}/dkms.conf": contents.file("dkms.conf", VERSION=upstream),
        },
        scripts={
            script: contents.text(f"kernel-module.{script}", VERSION=upstream)
            for script in ("postinst", "prerm")
        },
    )


def driver_packages(upstream: str, arch: Architecture) -> Iterator[Package]:
    """Yield the packages of one driver version, tied together by `=` as NVIDIA's are."""
    version = f"{upstream}-1"
    units = "/usr/lib/systemd/system"
    made = partial(Package, version=version, architecture=arch.debian)

    yield made(
        "libnvidia-ml1",
        section="libs",
        description="NVIDIA Management Library (NVML)",
        **contents.library(arch, "libnvidia-ml.so.1", upstream, cuda=DRIVERS[upstream]),
    )
    yield made(
        "libcuda1",
        section="libs",
        description="NVIDIA CUDA driver library",
        recommends=f"nvidia-kernel-open-dkms (= {version}) | nvidia-kernel-dkms (= {version})",
        **contents.library(arch, "libcuda.so.1", upstream, libraries.code(DRIVERS[upstream], 1000, 10)),
    )
    yield made(
        "nvidia-modprobe",
        description="utility that loads the NVIDIA kernel module and makes its device files",
        files={"/usr/bin/nvidia-modprobe": contents.program("nvidia-modprobe.sh")},
    )
    yield made(
        "nvidia-persistenced",
        description="daemon that keeps the driver's state while no client uses a GPU",
        depends=f"libnvidia-ml1 (= {version})",
        files={
            "/usr/bin/nvidia-persistenced": contents.program("nvidia_persistenced.py", VERSION=upstream),
            f"{units}/nvidia-persistenced.service": contents.file("nvidia-persistenced.service"),
            "/usr/lib/sysusers.d/nvidia-persistenced.conf": File(b'u nvpd - "NVIDIA Persistence Daemon"\n'),
        },
        scripts=contents.with_service("nvidia-persistenced", enabled=True),
    )
    same = ("libcuda1", "libnvidia-ml1", "nvidia-modprobe", "nvidia-persistenced")
    yield made(
        "nvidia-driver-cuda",
        description="NVIDIA driver, compute part, with nvidia-smi",
        depends=", ".join(f"{name} (= {version})" for name in same),
        files={
            "/usr/bin/nvidia-smi": contents.program("nvidia_smi.py"),
            "/usr/lib/gpu-simulator/nvidia_smi_mig.py": contents.file("nvidia_smi_mig.py"),
        },
    )
    yield made(
        "nvidia-kernel-support",
        section="kernel",
        description="NVIDIA kernel module support files",
        files={"/usr/lib/modprobe.d/nvidia.conf": contents.file("modprobe.conf")},
    )
    yield made(
        "firmware-nvidia-gsp",
        section="kernel",
        description="firmware of the GPU system processor",
        files={
            f"/usr/lib/firmware/nvidia/{upstream}/gsp_{chip}.bin": contents.stand_in("GSP firmware")
            for chip in ("tu10x", "ga10x")
        },
    )
    yield _kernel_module("open", version, arch)
    yield _kernel_module("proprietary", version, arch)
    yield made(
        "nvidia-open",
        description="NVIDIA driver with open kernel modules (metapackage)",
        depends=f"nvidia-driver-cuda (= {version}), nvidia-kernel-open-dkms (= {version})",
    )


def pinning_packages() -> Iterator[Package]:
    """Yield the packages that hold apt to a driver branch or version through apt's preferences."""
    branches = sorted({upstream.partition(".")[0] for upstream in DRIVERS})
    for name in (*branches, *DRIVERS):
        glob = f"{name}.*" if name in branches else f"{name}-*"
        names = "nvidia-* libnvidia-* libcuda1 libnvsdm firmware-nvidia-gsp"
        preferences = f"Package: {names}\nPin: version {glob}\nPin-Priority: 1000\n"
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
    """Yield CUDA toolkits, cuDNN and NCCL."""
    for release, (version, nvcc) in CUDA_TOOLKITS.items():
        major, minor = release.split(".")
        values = {"RELEASE": release, "MAJOR": major, "PRIORITY": major + minor, "NVCC": nvcc}
        listing = {
            "cuda": {"name": "CUDA SDK", "version": contents.upstream(version)},
            "cuda_nvcc": {"name": "CUDA NVCC", "version": nvcc},
        }
        yield Package(
            name=f"cuda-toolkit-{major}-{minor}",
            version=version,
            architecture=arch.debian,
            section="devel",
            description=f"CUDA toolkit {release}",
            files={
                f"/usr/local/cuda-{release}/bin/nvcc": contents.program("nvcc.sh", **values),
                f"/usr/local/cuda-{release}/version.json": File(json.dumps(listing, indent=3).encode()),
            },
            scripts={
                script: contents.text(f"cuda-toolkit.{script}", **values) for script in ("postinst", "prerm")
            },
        )
    for major, versions in CUDNN.items():
        for version in versions:
            release = ".".join(version.split(".")[:3])
            made = partial(Package, version=version, architecture=arch.debian)
            yield made(
                f"libcudnn9-cuda-{major}",
                section="libs",
                description=f"cuDNN runtime libraries for CUDA {major}",
                # Both have the same library; how NVIDIA's packages settle that is assumed.
                conflicts=" ".join(f"libcudnn9-cuda-{other}" for other in CUDNN if other != major),
                **contents.library(arch, "libcudnn.so.9", release, libraries.code(release, 10000, 100, 1)),
            )
            yield made(
                f"cudnn9-cuda-{major}",
                description=f"cuDNN 9 for CUDA {major} (metapackage)",
                depends=f"libcudnn9-cuda-{major} (= {version})",
            )
    for version in NCCL:
        header = f'#define NCCL_VERSION "{contents.upstream(version)}"\n'
        made = partial(Package, version=version, architecture=arch.debian)
        yield made(
            "libnccl2",
            section="libs",
            description="NVIDIA collective communication library",
            **contents.library(
                arch,
                "libnccl.so.2",
                contents.upstream(version),
                libraries.code(contents.upstream(version), 10000, 100, 1),
            ),
        )
        yield made(
            "libnccl-dev",
            section="libdevel",
            description="NVIDIA collective communication library, development files",
            depends=f"libnccl2 (= {version})",
            files={"/usr/include/nccl.h": File(header.encode())},
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
    for version, cdi in CONTAINER_TOOLKITS.items():
        upstream = contents.upstream(version)
        made = partial(Package, version=version, architecture=arch.debian)
        library = contents.stand_in("libnvidia-container", version=upstream)
        yield made(
            "libnvidia-container1",
            section="libs",
            description="NVIDIA container runtime library",
            files={f"{arch.libraries}/libnvidia-container.so.1": library},
        )
        yield made(
            "libnvidia-container-tools",
            description="NVIDIA container runtime library, command line tools",
            depends=f"libnvidia-container1 (= {version})",
            files={
                "/usr/bin/nvidia-container-cli": contents.program("nvidia-container-cli.sh", VERSION=upstream)
            },
        )
        yield made(
            "nvidia-container-toolkit-base",
            description="NVIDIA container toolkit, base",
            files={
                "/usr/bin/nvidia-ctk": contents.program("nvidia-ctk.sh", VERSION=upstream, CDI_VERSION=cdi),
                "/usr/libexec/gpu-simulator/nvidia-ctk": contents.program("nvidia_ctk_configure.py"),
                "/usr/bin/nvidia-cdi-hook": contents.program("nvidia-cdi-hook.sh"),
                "/usr/bin/nvidia-container-runtime": contents.program("nvidia-container-runtime.sh"),
                **{f"/usr/lib/systemd/system/{unit}": contents.file(unit) for unit in CDI_UNITS},
            },
            scripts={
                "postinst": contents.text("container-toolkit.postinst"),
                "prerm": contents.text("container-toolkit.prerm"),
            },
        )
        yield made(
            "nvidia-container-toolkit",
            description="NVIDIA container toolkit",
            depends=f"nvidia-container-toolkit-base (= {version}), libnvidia-container-tools (= {version})",
        )
