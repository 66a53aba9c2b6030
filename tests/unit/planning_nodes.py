"""Nodes as node_facts reports them, and their plans from the real tables."""

from __future__ import annotations

from typing import Any

from planning.facts import NodeFacts
from planning.machine import GIB
from planning.model import Target
from planning.plan import node_plan
from planning.role_variables import role_variables
from planning.tables import Tables, load_tables
from planning.variables import Variables
from tests.unit.tables import ROOT, specs, tables

TABLES = tables()
DEFAULTS = role_variables({}, specs())["values"]

AUDIO, GPU, DISPLAY, NVSWITCH = "0403", "0302", "0300", "0680"
H100, L4, V100, P100, B200, SWITCH = "2330", "27b8", "1db5", "15f8", "2901", "22a3"


def pci(*devices: tuple[str, str]) -> list[dict[str, str]]:
    return [
        {"address": f"0000:{index:02x}:00.0", "vendor_id": "10de", "device_id": device, "class_id": kind}
        for index, (device, kind) in enumerate(devices)
    ]


def gpus(*device_ids: str) -> list[dict[str, str]]:
    return pci(*((device_id, GPU) for device_id in device_ids))


def nvidia(**changes: Any) -> dict[str, Any]:
    """The state of a node without a driver."""
    return {
        "loaded_version": None,
        "userspace_version": None,
        "modules": {},
        "nouveau_loaded": False,
        "counters_restricted": None,
        "compute_processes": [],
        "smi_error": None,
    } | changes


def node(**changes: Any) -> dict[str, Any]:
    """A bare Debian 12 server with one L4, as node_facts reports it."""
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
            "cmdline": "",
            "image_packages": {},
        },
        "kernels": [],
        "secure_boot": "disabled",
        "mok_enrolled": [],
        "signing_key": False,
        "services": [],
        "boot_id": "",
        "memory_bytes": 64 * GIB,
        "cpu": {"logical": 64, "physical": 32, "numa_nodes": 2},
        "disks": [{"path": "/", "total_bytes": 100 * GIB, "free_bytes": 80 * GIB}],
        "pci": gpus(L4),
        "nvlink_switch_managed": False,
        "interfaces": [
            {"name": "eth0", "addresses": ["192.0.2.7"], "up": True, "default_route": True, "mtu": 1500},
        ],
        "packages": {},
        "broken_packages": [],
        "apt_sources": [],
        "dkms": [],
        "nvidia": nvidia(),
        "pythons": ["3.11"],
        "payload_python": None,
    } | changes


def plan(
    facts: dict[str, Any] | None = None,
    address: str = "",
    data: dict[str, Any] = TABLES,
    today: str = "",
    mok_sha256: str = "",
    **values: Any,
) -> dict[str, Any]:
    """Plan a node with the roles' defaults and the variables given."""
    return node_plan(
        NodeFacts.from_dict(facts or node()),
        load_tables(ROOT / "data") if data is TABLES else Tables.from_dict(data),
        Variables.from_values(DEFAULTS | values),
        Target(address=address, today=today, mok_sha256=mok_sha256),
    ).as_dict()


def problem(facts: dict[str, Any] | None = None, **values: Any) -> str:
    """The only problem of a node."""
    (found,) = plan(facts, **values)["problems"]
    return str(found)


def assert_says(text: str, *facts: str) -> None:
    """A message has these facts: the node's part, the values, the remedy. Its words are its own."""
    assert [fact for fact in facts if fact not in text] == [], text


def settled(**changes: Any) -> dict[str, Any]:
    """The node after the stack was installed."""
    return node(packages=plan()["packages"], **changes)


# What releases have as python3.
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


def system(name: str, version: str, **changes: Any) -> dict[str, Any]:
    """A node with another operating system, and its Python."""
    os = {"id": name, "version_id": version, "codename": "", "pretty_name": f"{name} {version}"}
    python = PYTHONS.get(f"{name}-{version}", "3.12")
    return node(**{"os": os, "pythons": [python]} | changes)
