"""Facts of servers that do not exist, for plans that are printed or tested."""

from __future__ import annotations

from typing import Any

from temper.plan.machine import GIB

# The version of python3 in each release.
PYTHONS = {
    "debian-12": "3.11",
    "debian-13": "3.13",
    "ubuntu-22.04": "3.10",
    "ubuntu-24.04": "3.12",
    "ubuntu-26.04": "3.14",
    "rhel-8": "3.6",
    "rhel-9": "3.9",
    "rocky-9.4": "3.9",
    "rhel-10": "3.12",
}


def pci(*devices: tuple[str, str]) -> list[dict[str, str]]:
    """NVIDIA's devices, given by id and class, at one address after the other."""
    return [
        {"address": f"0000:{index:02x}:00.0", "device_id": device, "class_id": kind}
        for index, (device, kind) in enumerate(devices)
    ]


def bare_node(**changes: Any) -> dict[str, Any]:
    """Return what node_facts reports of a Debian 12 server that has only its system, and no GPU."""
    return {
        "os": {
            "id": "debian",
            "version_id": "12",
            "codename": "bookworm",
            "pretty_name": "Debian GNU/Linux 12 (bookworm)",
        },
        "architecture": "x86_64",
        "kernel": {
            "release": "6.1.0-37-amd64",
            "headers_present": True,
            "headers_installable": True,
            "image_packages": {},
        },
        "kernels": [],
        "secure_boot": "disabled",
        "mok_enrolled": [],
        "services": [],
        "boot_id": "",
        "memory_bytes": 64 * GIB,
        "cpu": {"logical": 64, "physical": 32, "numa_nodes": 2},
        "disks": [{"path": "/", "total_bytes": 100 * GIB, "free_bytes": 80 * GIB}],
        "pci": [],
        "nvlink_switch_managed": False,
        "network_firmware": [],
        "interfaces": [],
        "packages": {},
        "broken_packages": [],
        "apt_sources": [],
        "dkms": [],
        "nvidia": {
            "loaded_version": None,
            "userspace_version": None,
            "vgpu_software": False,
            "modules": {},
            "nouveau_loaded": False,
            "counters_restricted": None,
            "compute_processes": [],
            "smi_error": None,
        },
        "tunables": {
            "cpu_governors": ["performance", "schedutil"],
            "hugepages": ["always", "madvise", "never"],
            "hugepages_defrag": ["always", "defer", "defer+madvise", "madvise", "never"],
            "irqbalance": False,
            "nvme": True,
            "nvme_schedulers": ["none", "mq-deadline"],
            "nr_open": 1048576,
            "ofed": "",
            "rdma": False,
            "shm": True,
            "tuners": [],
        },
        "pythons": ["3.11"],
        "payload_python": None,
    } | changes
