#!/usr/bin/python
"""Read a node once, before anything is planned or changed."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: node_facts
short_description: Hardware, system and NVIDIA state of a node in one round trip
description:
  - Reads what Temper's plan needs and returns it as the fact C(temper). It changes nothing and needs no
    driver, because it finds GPUs by their PCI ids.
  - Everything is read from sysfs, procfs, dpkg or rpm, the files of kernels and DKMS and, where it is
    installed, C(nvidia-smi).
options:
  driver_timeout_s:
    description: After a boot, wait up to this many seconds for the driver to be loaded and to answer, then
      read the node whether it does or not. 0 does not wait.
    type: int
    default: 0
  payload_python:
    description: The Python that runs the payload, if there is one. Its version and torch are read from files.
    type: path
    default: /opt/temper/venv/bin/python3
  lease:
    description: Take the node's lease first, as M(node_lease) does. The fact C(temper_lease) then has
      C(owner) and C(fencing). Where somebody else holds it, the node is not read.
    type: dict
    suboptions:
      owner:
        description: Who asks, as an operator would know it.
        type: str
        required: true
      attempt:
        description: How often the owner has come to this node anew.
        type: int
        default: 0
      ttl_s:
        description: For how many seconds the lease lasts.
        type: float
        default: 3600
  image:
    description: The node is said to be the tree of an image. Its kernel is then O(image_kernel) and not the
      running one, which is the builder's; the driver is not asked; C(image_refusal) says why it is no such
      tree.
    type: bool
    default: false
  identity:
    description: Read only which machine it is, C(boot_id), C(machine_id) and C(interfaces).
    type: bool
    default: false
  image_kernel:
    description: Release of the kernel that the image boots; empty for the newest that is installed.
    type: str
    default: ""
author: Temper developers
"""

EXAMPLES = r"""
- name: Read the node
  node_facts:
"""

RETURN = r"""
ansible_facts:
  description: The fact C(temper), with the keys os, architecture, kernel, kernels, secure_boot, mok_enrolled,
    services, boot_id, machine_id, cpu, memory_bytes, disks, pci, nvlink_switch_managed,
    interfaces, network_firmware, packages, broken_packages, apt_sources, dkms, nvidia, tunables, pythons,
    payload_python, forwards, answers_elsewhere, usb_disk, being_set_up, clock_s, image_refusal,
    other_engines and in_place.
  returned: always
  type: dict
"""

import contextlib
import ipaddress
import json
import os
import platform
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.temper import image, lease, process, units
from ansible.module_utils.temper.access.network_interfaces import interface_to, is_guests
from ansible.module_utils.temper.access.ssh_login import ssh_login
from ansible.module_utils.temper.driver.holders import target_name
from ansible.module_utils.temper.driver.kernel_modules import dkms_records, installed_kernels
from ansible.module_utils.temper.driver.loaded_state import nvidia_state, read, wait_for_driver
from ansible.module_utils.temper.driver.secure_boot import enrolled_keys, secure_boot
from ansible.module_utils.temper.engines.others import other_engines
from ansible.module_utils.temper.mounts import mounts, plain
from ansible.module_utils.temper.packaging import apt_sources, node, packages
from ansible.module_utils.temper.settings import in_place, sysfs
from ansible.module_utils.temper.settings.base import SettingError

#: An address that nobody has (TEST-NET-3, RFC 5737): answers to it go where those to strangers do.
AFAR = "203.0.113.1"
#: Kinds of interfaces that strangers' packets come by.
WIRED = ("", "bond", "bridge", "team", "vlan")
#: No kernel counts more (CONFIG_NR_CPUS).
MOST_CPUS = 65536
#: Of a number of 64 bits.
MOST_DIGITS = 20
NVIDIA_VENDOR_ID = "10de"
FIRMWARE = r"^(\d{1,9}(?:\.\d{1,9}){1,3})$"
# The part that says in its VPD that it manages NVLink switches: HGX B200 and later, where the switches are no
# PCI devices of their own. NVIDIA's gpu-driver-container and nvidia-fabricmanager-start.sh test the same.
SWITCH_MANAGER = b"SW_MNG"
# Where people and desktops mount sticks.
STICKS = r"/(media|run/media|mnt)(/|$)"
# systemd's own and the administrator's, without those that it makes of what somebody has mounted.
UNITS = tuple(f"{folder}/systemd/system" for folder in ("etc", "run", "usr/local/lib", "usr/lib", "lib"))
# What Python puts into a new environment.
BROUGHT = ("pip", "setuptools", "pkg_resources", "_distutils_hack", "distutils-precedence", "__pycache__")
# The last part of cloud-init: its job is there from the beginning of a boot until all is done.
CLOUD_INIT = "cloud-final.service"
# Packages of kernels, and those that bring each new kernel, on Debian and Ubuntu.
IMAGES = "linux-image-"
APT_LISTS = "var/lib/apt/lists"
# The role gpu_validation's own default.
PAYLOAD_PYTHON = "/opt/temper/venv/bin/python3"
# All that a plan may name.
SERVICES = (
    "nvidia-persistenced",
    "nvidia-fabricmanager",
    "nvidia-imex",
    "nvidia-dcgm",
    "nvidia-dcgm-exporter",
)
# Services that set the values of the kernel which os_tuning may set.
TUNERS = ("tuned", "power-profiles-daemon", "cpufrequtils", "cpupower")
# Packages of a vendor's RDMA stack (MLNX_OFED, DOCA-OFED), which comes in the place of the kernel's own.
OFED = re.compile(r"(kmod-)?(mlnx-ofed|mlnx-ofa_kernel|doca-ofed|doca-all|ofed-scripts)\b")
MELLANOX_VENDOR_ID = "15b3"
NETWORK_CLASS = "02"
# Values whose code may be a module, which the kernel loads as they are written (cpufreq.c, elevator.c), and
# its file in the kernel's folder of modules.
GOVERNORS = {
    name: f"drivers/cpufreq/cpufreq_{name}"
    for name in ("performance", "powersave", "ondemand", "conservative", "schedutil")
}
SCHEDULERS = {"mq-deadline": "block/mq-deadline", "kyber": "block/kyber-iosched", "bfq": "block/bfq"}
# The kernel's word for a speed that is not known (SPEED_UNKNOWN, -1), where a driver makes it positive.
UNKNOWN_SPEED = 0xFFFFFFFF


def os_release(root: Path) -> dict[str, str]:
    values = dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', read(root / "etc/os-release"), re.MULTILINE))
    return {
        "id": values.get("ID", ""),
        "version_id": values.get("VERSION_ID", ""),
        "codename": values.get("VERSION_CODENAME", ""),
        "pretty_name": values.get("PRETTY_NAME", ""),
    }


def kernel(root: Path, release: str) -> dict[str, Any]:
    return {
        "release": release,
        "headers_present": (root / f"lib/modules/{release}/build").exists(),
    }


def cpu(root: Path) -> dict[str, Any]:
    """Logical CPUs, physical cores (distinct package and core ids) and NUMA nodes that are online.

    `sockets` are in the order of their first CPUs, as hwloc counts them, with their cores and NUMA nodes.
    """
    base = root / "sys/devices/system"
    nodes = sorted(int(path.name[len("node") :]) for path in (base / "node").glob("node[0-9]*"))
    lists = {node: read(base / f"node/node{node}/cpulist") for node in nodes}
    node_of = {
        number: node for node, text in lists.items() for number in process.parsed("cpulist", text, numbers)
    }
    cores: dict[str, set[str]] = {}
    near: dict[str, set[int]] = {}
    logical = sorted(
        int(topology.parent.name[len("cpu") :]) for topology in (base / "cpu").glob("cpu[0-9]*/topology")
    )
    for number in logical:
        topology = base / f"cpu/cpu{number}/topology"
        package = read(topology / "physical_package_id")
        cores.setdefault(package, set()).add(read(topology / "core_id"))
        near.setdefault(package, set()).update({node_of[number]} if number in node_of else ())
    count = len(logical) or os.cpu_count() or 1
    return {
        "logical": count,
        "physical": sum(map(len, cores.values())) or count,
        "numa_nodes": len(nodes) or 1,
        "sockets": [
            {"cores": len(found), "numa_nodes": sorted(near[package])} for package, found in cores.items()
        ],
    }


def numbers(text: str) -> list[int]:
    """Return the numbers of a list of the kernel's: 0-3,8 -> 0, 1, 2, 3, 8. Raises ValueError."""
    found: list[int] = []
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", text):
        if int(last or first) > MOST_CPUS:
            raise ValueError(f"expected numbers up to {MOST_CPUS}, found {last or first}")
        found += range(int(first), int(last or first) + 1)
    return found


def number_in(path: Path, pattern: str) -> int | None:
    """Return the number of up to 64 bits that a pattern finds in a file of the kernel, or None."""
    found = re.search(pattern, read(path), re.MULTILINE)
    return int(found[1]) if found and len(found[1]) <= MOST_DIGITS else None


def memory_bytes(root: Path) -> int:
    return (number_in(root / "proc/meminfo", r"^MemTotal:\s+(\d+) kB") or 0) * 1024


def disks(root: Path) -> list[dict[str, Any]]:
    """Free space where the stack and the payload go; paths on the same file system are listed once."""
    seen: set[int] = set()
    result = []
    for path in ("/", "/usr", "/usr/local", "/opt", "/var", "/boot"):
        target = root / path.lstrip("/")
        if not target.is_dir() or target.stat().st_dev in seen:
            continue
        seen.add(target.stat().st_dev)
        usage = shutil.disk_usage(target)
        read_only = bool(os.statvfs(target).f_flag & os.ST_RDONLY)
        result.append(
            {"path": path, "total_bytes": usage.total, "free_bytes": usage.free, "read_only": read_only}
        )
    return result


def being_set_up(root: Path) -> bool:
    """Return whether cloud-init is still at work in the first boot of this machine.

    In later ones it has little to do, and a roll-out comes back to a node as soon as it answers.
    """
    cloud = root / "var/lib/cloud/instance"
    # What it starts itself is part of its work.
    if (cloud / "boot-finished").exists() or CLOUD_INIT in read(root / "proc/self/cgroup"):
        return False
    if not (root / "run/cloud-init").is_dir():
        return False
    jobs = run_text(["systemctl", "show", "--property=Job", CLOUD_INIT])
    return bool(re.search(r"^Job=[1-9]", jobs, re.MULTILINE))


def usb_disk(root: Path) -> bool:
    """Return whether a file system of this node lies on a USB disk, also below RAID, LVM or encryption.

    A stick that somebody has mounted is not the node's: where people and desktops mount them, only what the
    node mounts at its boot counts. Without its driver a disk would be missing then.
    """
    blocks = root / "sys/class/block"

    def on_usb(name: str) -> bool:
        device = (blocks / name).resolve()
        parts = [path.name for path in (device / "slaves").glob("*")]
        return bool(re.search(r"/usb\d+/", str(device))) or any(map(on_usb, parts))

    table = root / "proc/self/mountinfo"
    found = [one for one in (mounts(table) if table.exists() else []) if one.source.startswith("/dev/")]
    places = mounted_at_boot(root)
    sources = {one.source for one in found if one.point in places or not re.match(STICKS, one.point)}
    return any(on_usb(Path(source).resolve().name) for source in sources)


def mounted_at_boot(root: Path) -> set[str]:
    """Return the places that fstab and systemd's own units name."""
    lines = (line.split() for line in read(root / "etc/fstab").split("\n"))
    places = [plain(words[1]) for words in lines if len(words) > 1 and not words[0].startswith("#")]
    for folder in UNITS:
        for path in (root / folder).glob("*.mount"):
            places += re.findall(r"^\s*Where\s*=\s*(.*\S)", read(path), re.MULTILINE)
    return set(map(os.path.normpath, places))


def pci_devices(root: Path) -> list[dict[str, Any]]:
    """NVIDIA's PCI devices: GPUs (class 03xx), NVSwitches (0680), audio functions and the like."""
    devices = []
    for device in sorted((root / "sys/bus/pci/devices").glob("*")):
        if read(device / "vendor").removeprefix("0x") != NVIDIA_VENDOR_ID:
            continue
        information = root / f"proc/driver/nvidia/gpus/{device.name}/information"
        name = re.search(r"^Model:\s*(\S.*)$", read(information), re.MULTILINE)
        devices.append(
            {
                "address": device.name,
                "device_id": read(device / "device").removeprefix("0x"),
                "class_id": read(device / "class").removeprefix("0x")[:4],
                # The kernel's word for none is -1.
                "numa_node": number_in(device / "numa_node", r"^(\d+)$"),
                # The number of /dev/nvidia* and the product's name are the loaded driver's to say.
                "minor": number_in(information, r"^Device Minor:\s*(\d+)"),
                "name": name[1].strip() if name else "",
                "driver": target_name(device / "driver"),
            }
        )
    return devices


def nvlink_switch_managed(root: Path) -> bool:
    """Return whether one of the node's InfiniBand devices is there to manage NVLink switches."""
    for vpd in sorted((root / "sys/class/infiniband").glob("*/device/vpd")):
        with contextlib.suppress(OSError):
            if SWITCH_MANAGER in vpd.read_bytes():
                return True
    return False


def network_firmware(root: Path) -> list[str]:
    """Return the versions of firmware of NVIDIA's network adapters that have virtual functions."""
    found = set()
    for adapter in (root / "sys/class/infiniband").glob("*"):
        is_nvidias = read(adapter / "device/vendor").removeprefix("0x") == MELLANOX_VENDOR_ID
        if is_nvidias and number_in(adapter / "device/sriov_numvfs", r"^(\d+)$"):
            found.update(re.findall(FIRMWARE, read(adapter / "fw_ver"), re.MULTILINE))
    return sorted(found)


def run_text(command: list[str]) -> str:
    """Return standard output of a command that only reads; empty where the command is missing or fails.

    Raises OutputError where it prints more than anybody expects.
    """
    try:
        completed = process.complete(command)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return completed.stdout if completed.returncode == 0 else ""


def link_speed(root: Path, name: str) -> int | None:
    """Return an interface's speed in Mb/s; None where its driver does not say.

    Of InfiniBand it is the port's, of a VLAN that of the interface below it, of a bond the sum of its active
    members, of a bridge that of its fastest port (get_link_ksettings of each in the kernel).
    """
    speed = number_in(root / f"sys/class/net/{name}/speed", r"^(\d+)$") or 0  # -1: SPEED_UNKNOWN
    return speed if 0 < speed < UNKNOWN_SPEED else None


def interfaces(root: Path = Path("/")) -> list[dict[str, Any]]:
    """Network interfaces but loopback, with their addresses; `default_route` marks the one that leads out.

    That is the one of the best default route by IPv4, or by IPv6 where there is none by IPv4.
    """
    default: set[str] = set()
    for family in ("-4", "-6"):
        if not default:
            routes = run_text(["ip", "-json", family, "route", "show", "default"])
            default = process.parsed("ip -json route show default", routes or "[]", best_routes)

    def read_links(text: str) -> list[dict[str, Any]]:
        return [
            {
                "name": link["ifname"],
                "mtu": link["mtu"],
                "up": "UP" in link["flags"],
                "carrier": "NO-CARRIER" not in link["flags"],
                "speed_mbit_s": link_speed(root, link["ifname"]),
                "addresses": [address["local"] for address in link["addr_info"]],
                "default_route": link["ifname"] in default,
                **link_kind(root, link),
            }
            for link in json.loads(text)
            if "LOOPBACK" not in link["flags"]
        ]

    links = run_text(["ip", "-json", "-details", "address", "show"])
    return process.parsed("ip -json -details address show", links or "[]", read_links)


def link_kind(root: Path, link: dict[str, Any]) -> dict[str, Any]:
    """Return what carries an interface, from an entry of ip and from its device."""
    device = root / "sys/class/net" / link["ifname"] / "device"
    layer = link.get("link_type", "ether")
    return {
        "kind": link.get("linkinfo", {}).get("info_kind", "" if layer == "ether" else layer),
        "driver": target_name(device / "driver"),
        "mac": link.get("address") or "",
        "rdma": os.access(device / "infiniband", os.F_OK),
        # Null where the interface below is in another namespace.
        "below": link.get("link") or "",
        "master": link.get("master", ""),
        "networks": sorted(
            {
                str(ipaddress.ip_network(f"{address['local']}/{address['prefixlen']}", strict=False))
                for address in link["addr_info"]
                if address.get("scope") == "global"
            }
        ),
    }


def forwards(root: Path) -> bool:
    """Return whether the kernel forwards packets, and has done so since it was started."""
    counted = number_in(root / "proc/net/snmp", r"^Ip: \d+ \d+ \d+ \d+ \d+ (\d+) ")
    counted6 = number_in(root / "proc/net/snmp6", r"^Ip6OutForwDatagrams\s+(\d+)$")
    switches = (("ipv4/ip_forward", counted), ("ipv6/conf/all/forwarding", counted6))
    return any(number_in(root / "proc/sys/net" / name, r"^(\d+)$") and count for name, count in switches)


def answers_elsewhere(found: list[dict[str, Any]]) -> bool:
    """Return whether answers leave by another interface than the one that has the address.

    The strict filter of senders, net.ipv4.conf.all.rp_filter 1, drops what comes by such a way. IPv6 has no
    such filter. The login of Ansible shows it. Where that does not come by IPv4, or there is none, as on a
    node that pulls, the routes say whether that can happen: a stranger may come by any address.
    """
    own = [address for one in found for address in one["addresses"]]
    login = ssh_login()
    if login and ":" not in login.client:
        if login.client in own:  # it came from this node
            return False
        return login.server in own and elsewhere(found, login.client, login.server)
    wired = [one for one in found if one.get("kind", "") in WIRED and not is_guests(one["name"])]
    addresses = [address for one in wired for address in one["addresses"] if ":" not in address]
    return any(elsewhere(found, AFAR, address) for address in addresses)


def elsewhere(found: list[dict[str, Any]], client: str, server: str) -> bool:
    """Return whether answers from an address of the node to a client leave by an interface without it."""
    own = [address for one in found for address in one["addresses"]]
    to_client = interface_to(client, own, server)
    return bool(to_client) and not any(
        # An address of a service stands on no wire.
        (one["name"] == to_client or one.get("kind") == "dummy") and server in one["addresses"]
        for one in found
    )


def best_routes(text: str) -> set[str]:
    """Return the interfaces of the routes with the lowest metric."""
    routes = json.loads(text)
    best = min((route.get("metric", 0) for route in routes), default=0)
    return {route.get("dev") for route in routes if route.get("metric", 0) == best}


def package_state() -> tuple[dict[str, str], list[str], dict[str, str], str]:
    """Versions of the NVIDIA family; packages left half-way; versions of kernels' packages; an OFED."""
    try:
        known = node.query()
    except (process.CommandError, packages.PackageError):
        return {}, [], {}, ""
    family = {
        name: package.version
        for name, package in known.items()
        if package.installed and packages.FAMILY.match(name)
    }
    broken = sorted(name for name, package in known.items() if package.broken)
    images = {
        name: package.version
        for name, package in sorted(known.items())
        if package.installed and name.startswith(IMAGES)
    }
    ofed = [
        f"{name} {found.version}"
        for name, found in sorted(known.items())
        if found.installed and OFED.match(name)
    ]
    return family, broken, images, (ofed or [""])[0]


def debian_sources() -> list[dict[str, Any]]:
    """Debian's own repositories among the node's; none where there is no apt."""
    with apt_sources.caches_kept() as options:
        listing = run_text(["apt-get", *options, "indextargets", "Created-By: Packages"])
    return apt_sources.parse(listing, "Debian")


def running_services(names: tuple[str, ...] = SERVICES) -> list[str]:
    """Return those of these services that run now and start at boot; none where there is no systemd."""
    try:
        states = units.unit_states([f"{name}.service" for name in names])
    except process.CommandError:
        return []
    return [
        name
        for name, state in zip(names, states.values())  # noqa: B905 - strict= is not in Python 3.9
        if state["ActiveState"] == "active" and state["UnitFileState"] in units.STARTS_AT_BOOT
    ]


def offered(path: Path, among: str = "") -> list[str]:
    """Return the values that may be written to a file of the kernel; none where nobody can write there.

    `among` names the file beside it that lists them, where it does not do so itself. In a container, /sys is
    the host's and mounted read-only.
    """
    if not os.access(path, os.W_OK):
        return []
    return sysfs.choices(read(path.with_name(among) if among else path))


def in_all(offers: list[list[str]]) -> list[str]:
    """Return what everyone offers, in the order of the first."""
    return [value for value in (offers or [[]])[0] if all(value in one for one in offers)]


def is_tmpfs(root: Path, path: str) -> bool:
    """Return whether a tmpfs is mounted there."""
    table = root / "proc/self/mountinfo"
    return table.exists() and any((one.point, one.kind) == (path, "tmpfs") for one in mounts(table))


def has_rdma(root: Path) -> bool:
    """Return whether there is an RDMA adapter.

    One that the kernel drives as such, or one of NVIDIA's on the bus.
    """
    if any((root / "sys/class/infiniband").glob("*")):
        return True
    return any(
        read(device / "vendor").removeprefix("0x") == MELLANOX_VENDOR_ID
        and read(device / "class").removeprefix("0x").startswith(NETWORK_CLASS)
        for device in (root / "sys/bus/pci/devices").glob("*")
    )


def loadable(root: Path, release: str, names: dict[str, str]) -> list[str]:
    """Return those of these values whose module is installed.

    The kernel loads it when the value is written.
    """
    modules = root / "lib/modules" / release / "kernel"
    return [name for name, module in names.items() if release and any(modules.glob(f"{module}.ko*"))]


def with_loadable(offers: list[str], modules: list[str]) -> list[str]:
    """Return what is offered now, and what is once its module is loaded; nothing where there is no choice."""
    return [*offers, *(name for name in modules if name not in offers)] if offers else []


def tunables(root: Path, running: list[str], ofed: str = "", release: str = "") -> dict[str, Any]:
    """Return what of the kernel's values in /sys can be chosen here.

    `running` are the services that run, `release` is that of the running kernel.
    """
    policies = sorted((root / "sys/devices/system/cpu/cpufreq").glob("policy*"))
    governors = [offered(policy / "scaling_governor", "scaling_available_governors") for policy in policies]
    queues = sorted((root / "sys/block").glob("nvme*n*/queue"))
    schedulers = [offered(queue / "scheduler") for queue in queues]
    hugepages = root / "sys/kernel/mm/transparent_hugepage"
    # CPUs that are switched off while the system runs have a policy that offers nothing.
    common = in_all([values for values in governors if values])
    return {
        # A driver that has no more than these two takes no module (intel_pstate, amd-pstate-epp).
        "cpu_governors": common
        if set(common) == {"performance", "powersave"}
        else with_loadable(common, loadable(root, release, GOVERNORS)),
        "hugepages": offered(hugepages / "enabled"),
        "hugepages_defrag": offered(hugepages / "defrag"),
        "irqbalance": os.path.lexists(root / "usr/sbin/irqbalance"),
        "nvme": any(os.access(queue / "read_ahead_kb", os.W_OK) for queue in queues),
        "nvme_schedulers": with_loadable(
            in_all([values for values in schedulers if len(values) > 1]), loadable(root, release, SCHEDULERS)
        ),
        "nr_open": number_in(root / "proc/sys/fs/nr_open", r"^(\d+)$") or 0,
        "ofed": ofed,
        "rdma": has_rdma(root),
        "shm": is_tmpfs(root, "/dev/shm"),  # noqa: S108 - nothing is written there
        "tuners": [name for name in running if name in TUNERS],
    }


def installable_headers(root: Path, facts_kernel: dict[str, Any]) -> bool:
    """Return whether the package manager offers the headers of the running kernel, or they are installed.

    An image of a cloud comes without apt's lists: nobody can tell before the simulation has fetched them.
    """
    if facts_kernel["headers_present"] or not any((root / APT_LISTS).glob("*_Packages*")):
        return True
    package = f"linux-headers-{facts_kernel['release']}"
    with apt_sources.caches_kept() as options:
        policy = run_text(["apt-cache", *options, "policy", package])
    return bool(re.search(r"Candidate: (?!\(none\))\S", policy))


def python_version(text: str) -> str:
    """Return the version that a path ends in: 3.11 of /usr/bin/python3.11; empty where it has none."""
    found = re.search(r"python(3\.\d+)$", text)
    return found[1] if found else ""


def pythons(root: Path) -> list[str]:
    """Versions of Python in /usr/bin by the programs' names, that of python3 first.

    python3 may lead elsewhere (/usr/local), to one that has no name in /usr/bin.
    """
    programs = root / "usr/bin"
    others = filter(None, (python_version(str(path)) for path in programs.glob("python3.*")))
    ordered = sorted(others, key=lambda version: int(version.partition(".")[2]))
    own = python_version(os.path.realpath(programs / "python3"))
    return sorted(dict.fromkeys(ordered), key=lambda version: version != own)


def payload_python(root: Path, path: str) -> dict[str, Any] | None:
    """Return a Python's version and torch, from the files around it; None where there is no Python.

    One of an environment that was made half-way counts as none: it has no pip, and nothing of anybody else.
    """
    program = root / path.lstrip("/")
    if not os.path.lexists(program):
        return None
    base = program.parent.parent
    settings = read(base / "pyvenv.cfg")
    version = re.search(r"^version(?:_info)? *= *(3\.\d+)", settings, re.MULTILINE)
    # Debian's own Python installs below local/.
    folders = [base / name for name in ("lib", "lib64", "local/lib")]
    libraries = [library for folder in folders for library in folder.glob("python3*")]
    torch = [
        found.name for library in libraries for found in library.glob("*-packages/torch-[0-9]*.dist-info")
    ]
    installed = [found.name for library in libraries for found in library.glob("*-packages/*")]
    if settings and not (base / "bin/pip").exists() and all(one.startswith(BROUGHT) for one in installed):
        return None
    named = [
        python_version(os.path.realpath(program)),
        *(python_version(str(library)) for library in libraries),
    ]
    return {
        "version": version[1] if version else next(filter(None, named), ""),
        "torch": torch[0][len("torch-") : -len(".dist-info")] if torch else "",
        "environment": bool(settings),
    }


def identity(root: Path = Path("/")) -> dict[str, Any]:
    """Return what tells one machine from others."""
    return {
        "boot_id": read(root / "proc/sys/kernel/random/boot_id"),
        "machine_id": read(root / "etc/machine-id"),
        "interfaces": interfaces(root),
    }


def gather(
    root: Path = Path("/"), payload: str = PAYLOAD_PYTHON, image_kernel: str | None = None
) -> dict[str, Any]:
    """Return all facts. `image_kernel` is None for a node; for an image its kernel, empty for the newest."""
    is_image = image_kernel is not None
    release = image.kernel_of(root, image_kernel) if is_image else platform.release()
    family, broken, images, ofed = package_state()
    running = kernel(root, release)
    kernels = installed_kernels(root, running["release"])
    validated = secure_boot(root)
    running_now = running_services((*SERVICES, *TUNERS))
    known = identity(root)
    return {
        "os": os_release(root),
        "architecture": platform.machine(),
        "kernel": running
        | {"headers_installable": installable_headers(root, running), "image_packages": images},
        "kernels": kernels,
        "secure_boot": validated,
        "mok_enrolled": enrolled_keys(root),
        "services": [name for name in running_now if name in SERVICES],
        "cpu": cpu(root),
        "memory_bytes": memory_bytes(root),
        "disks": disks(root),
        "pci": pci_devices(root),
        "nvlink_switch_managed": nvlink_switch_managed(root),
        **known,
        "network_firmware": network_firmware(root),
        "packages": family,
        "broken_packages": broken,
        "apt_sources": debian_sources(),
        "dkms": dkms_records(root),
        "nvidia": nvidia_state(
            root,
            [kernel["release"] for kernel in kernels],
            signers=validated == "enabled",
            ask=not is_image,
        ),
        "tunables": tunables(root, running_now, ofed, running["release"]),
        "pythons": pythons(root),
        "payload_python": payload_python(root, payload),
        "forwards": not is_image and forwards(root),
        "usb_disk": not is_image and usb_disk(root),
        "answers_elsewhere": not is_image and answers_elsewhere(known["interfaces"]),
        "being_set_up": not is_image and being_set_up(root),
        "clock_s": time.time(),
        "image_refusal": image.refusal(root, release) if is_image else "",
        "other_engines": [engine._asdict() for engine in other_engines(root)],
        "in_place": {} if is_image else in_place.noted(),
    }


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "driver_timeout_s": {"type": "int", "default": 0},
            "payload_python": {"type": "path", "default": PAYLOAD_PYTHON},
            "lease": {
                "type": "dict",
                "options": {
                    "owner": {"type": "str", "required": True},
                    "attempt": {"type": "int", "default": 0},
                    "ttl_s": {"type": "float", "default": 3600},
                },
            },
            "image": {"type": "bool", "default": False},
            "identity": {"type": "bool", "default": False},
            "image_kernel": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    if os.geteuid() != 0:
        # Much could be read all the same, and what could not would be called damaged.
        module.fail_json(msg=f"Ansible works there as user {os.geteuid()}, not as root")
    facts: dict[str, Any] = {}
    if module.params["lease"]:
        try:
            held = lease.acquire(**module.params["lease"], path=lease.PATH, check=module.check_mode)
        except lease.LeaseError as error:
            module.fail_json(msg=str(error))
        facts["temper_lease"] = {"owner": held.owner, "fencing": held.fencing}
    if module.params["driver_timeout_s"]:
        wait_for_driver(module.params["driver_timeout_s"])
    image_kernel = module.params["image_kernel"] if module.params["image"] else None
    try:
        if module.params["identity"]:
            facts["temper"] = identity()
        else:
            facts["temper"] = gather(payload=module.params["payload_python"], image_kernel=image_kernel)
    except (process.CommandError, SettingError, OSError) as error:
        module.fail_json(msg=f"This node cannot be read, and nothing was changed: {error}")
    module.exit_json(changed=False, ansible_facts=facts)


if __name__ == "__main__":
    main()
