"""The simulated packages around the driver: NVLink fabric, data center GPU manager, and DKMS itself.

As in `nvidia_packages`, names and relations follow NVIDIA's documentation and installation scripts.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from tests.lab.gpu_simulator import contents
from tests.lab.gpu_simulator.contents import Architecture
from tests.lab.gpu_simulator.deb import File, Package

DCGM = "1:4.6.0-1"
DCGM_EXPORTER = "4.8.2-1"  # seen in NVIDIA's Ubuntu repository, 2026-11
# NVLink's subnet manager has versions of its own. This number is assumed.
NVLSM = "2025.10.11-1"
# Newer than Debian 13's, as NVIDIA's has to be newer than Debian 12's; the number is assumed.
DKMS = "3.3.0-1"

UNITS = "/usr/lib/systemd/system"


def fabric_packages(upstream: str, arch: Architecture) -> Iterator[Package]:
    """Yield what NVSwitch systems need at the driver's version.

    None is tied to that version and no unit is enabled by its package: both are the administrator's to get
    right.
    """
    version = f"{upstream}-1"
    made = partial(Package, version=version, architecture=arch.debian)
    yield made(
        "nvidia-fabricmanager",
        description="fabric manager for NVSwitch based systems",
        files={
            "/usr/bin/nv-fabricmanager": contents.program("nv_fabricmanager.py", VERSION=upstream),
            "/usr/bin/nvidia-fabricmanager-start.sh": contents.program("nvidia-fabricmanager-start.sh"),
            f"{UNITS}/nvidia-fabricmanager.service": contents.file("nvidia-fabricmanager.service"),
            "/usr/share/nvidia/nvswitch/fabricmanager.cfg": File(b"DAEMONIZE=1\nFABRIC_MODE=0\n"),
        },
        scripts=contents.with_service("nvidia-fabricmanager", enabled=False),
    )
    for name, soname in (("libnvidia-nscq", "libnvidia-nscq.so.2"), ("libnvsdm", "libnvsdm.so.1")):
        file = f"{soname.partition('.so.')[0]}.so.{upstream}"
        yield made(
            name,
            section="libs",
            description="NVSwitch configuration and query library"
            if "nscq" in name
            else "NVSwitch telemetry",
            files={f"{arch.libraries}/{file}": contents.stand_in(soname, version=upstream)},
            links={f"{arch.libraries}/{soname}": file},
        )
    yield made(
        "nvidia-imex",
        description="memory export and import between the nodes of an NVLink domain",
        files={
            "/usr/bin/nvidia-imex": contents.program("nvidia-imex.sh", VERSION=upstream),
            f"{UNITS}/nvidia-imex.service": contents.file("nvidia-imex.service"),
        },
        scripts=contents.with_service("nvidia-imex", enabled=False),
    )


def nvlsm_package(arch: Architecture) -> Package:
    """Return NVLink's subnet manager, which the fabric manager's start script starts where it is needed."""
    return Package(
        name="nvlsm",
        version=NVLSM,
        architecture=arch.debian,
        description="NVLink subnet manager",
        files={
            "/opt/nvidia/nvlsm/sbin/nvlsm": contents.program("nvlsm.sh", VERSION=contents.upstream(NVLSM)),
            "/usr/share/nvidia/nvlsm/nvlsm.conf": File(b"# Simulated by Temper's lab.\n"),
        },
    )


def dcgm_packages(arch: Architecture) -> Iterator[Package]:
    """Yield DCGM 4, which is split by the CUDA release of the driver, and its exporter."""
    same = f"datacenter-gpu-manager-4-core (= {DCGM})"
    made = partial(Package, version=DCGM, architecture=arch.debian)
    yield made(
        "datacenter-gpu-manager-4-core",
        description="NVIDIA data center GPU manager",
        conflicts="datacenter-gpu-manager",
        files={
            "/usr/bin/dcgmi": contents.program("dcgmi.sh", VERSION=contents.upstream(DCGM)),
            "/usr/bin/nv-hostengine": contents.program("nv-hostengine.sh", VERSION=contents.upstream(DCGM)),
            f"{UNITS}/nvidia-dcgm.service": contents.file("nvidia-dcgm.service"),
        },
        scripts=contents.with_service(
            "datacenter-gpu-manager-4-core", unit="nvidia-dcgm.service", enabled=False
        ),
    )
    for part in ("cuda11", "cuda12", "cuda13", "proprietary"):
        yield made(
            f"datacenter-gpu-manager-4-{part}",
            description=f"NVIDIA data center GPU manager, {part}",
            depends=same,
            files={
                f"/usr/share/datacenter-gpu-manager-4/{part}": contents.stand_in(f"DCGM's {part} libraries")
            },
        )
    yield Package(
        name="datacenter-gpu-manager-exporter",
        version=DCGM_EXPORTER,
        architecture=arch.debian,
        description="exporter of DCGM's metrics for Prometheus",
        depends="datacenter-gpu-manager-4-core (>= 1:4.0)",
        files={
            "/usr/bin/dcgm-exporter": contents.program("dcgm_exporter.py"),
            "/etc/dcgm-exporter/default-counters.csv": File(b"DCGM_FI_DEV_GPU_TEMP, gauge, temperature\n"),
            f"{UNITS}/nvidia-dcgm-exporter.service": contents.file("nvidia-dcgm-exporter.service"),
        },
        scripts=contents.with_service(
            "datacenter-gpu-manager-exporter", unit="nvidia-dcgm-exporter.service", enabled=False
        ),
    )


def dkms_package() -> Package:
    """Return NVIDIA's own dkms; the real one depends on a compiler, and on kmod, which every node has."""
    hook = contents.program("dkms-kernel-hook.sh")
    return Package(
        name="dkms",
        version=DKMS,
        architecture="all",
        section="kernel",
        description="dynamic kernel module system",
        files={
            "/usr/sbin/dkms": contents.program("dkms.py", VERSION=contents.upstream(DKMS)),
            "/usr/lib/dkms/common.postinst": contents.program("dkms-common.postinst"),
            "/etc/dkms/framework.conf": File(b"# Simulated by Temper's lab. See framework.conf.d.\n"),
            "/etc/kernel/postinst.d/dkms": hook,
            "/etc/kernel/header_postinst.d/dkms": hook,
        },
    )
