"""What module node_facts reports of a node, typed. It reports every key, whatever the node."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from temper.plan.convert import build, from_node
from validation.model.gpu_models import OWN_DRIVERS

#: The kernel's own bounds are below these.
MOST_CPUS = 1 << 16
MOST_DEVICES = 1024
# The year 9999.
LATEST_S = 253402300800
PCI_ADDRESS = re.compile(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]")
PCI_ID = re.compile(r"[0-9a-f]{4}")
# A GPU with an output for a monitor is a VGA controller, one without is a 3D controller.
VGA_CLASS = "0300"
GPU_CLASSES = (VGA_CLASS, "0302")
BRIDGE_CLASS = "0680"
DRIVER = re.compile(r"[\w.-]{0,64}", re.ASCII)
PYTHON = re.compile(r"[0-9]{1,3}(\.[0-9]{1,3}){1,2}")
#: What the kernel takes (dev_valid_name), of ASCII.
INTERFACE = re.compile(r"[!-.0-9;-~]{1,15}")


@dataclass(frozen=True)
class OperatingSystem:
    """From /etc/os-release; empty texts where it does not say."""

    id: str
    version_id: str
    codename: str
    pretty_name: str

    @property
    def name(self) -> str:
        """Return its name in data/os_systems, such as debian-13."""
        return "-".join(filter(None, (self.id, self.version_id))) or "unknown"


@dataclass(frozen=True)
class Kernel:
    """The running kernel; `image_packages` are all installed packages linux-image-* and their versions."""

    release: str
    headers_present: bool
    headers_installable: bool
    image_packages: dict[str, str]


@dataclass(frozen=True)
class InstalledKernel:
    """A kernel that the node could boot."""

    release: str
    headers_present: bool


@dataclass(frozen=True)
class Socket:
    """A processor's physical cores, and the NUMA nodes that its CPUs belong to."""

    cores: int
    numa_nodes: tuple[int, ...]


@dataclass(frozen=True)
class Cpu:
    """Logical CPUs, physical cores and NUMA nodes that are online; sockets in the order of their CPUs."""

    logical: int
    physical: int
    numa_nodes: int
    sockets: tuple[Socket, ...] = ()


@dataclass(frozen=True)
class Disk:
    """A file system, by the first path that it carries."""

    path: str
    total_bytes: int
    free_bytes: int
    read_only: bool = False


@dataclass(frozen=True)
class PciDevice:
    """A PCI device of NVIDIA; ids are hexadecimal digits in lower case.

    `minor` is the number of its device file, and `name` that of the product, known once the driver is loaded;
    `numa_node` is None where the firmware does not say. `driver` is the kernel's driver that has the device,
    empty where none has it.
    """

    address: str
    device_id: str
    class_id: str
    numa_node: int | None = None
    minor: int | None = None
    name: str = ""
    driver: str = ""

    @property
    def given_away(self) -> bool:
        """Whether somebody gave it, a GPU or an NVSwitch, to another driver, as for a virtual machine."""
        return self.class_id in (*GPU_CLASSES, BRIDGE_CLASS) and self.driver not in OWN_DRIVERS


@dataclass(frozen=True)
class Interface:
    """A network interface; `default_route` marks the one that leads out.

    It may be up and have no `carrier`. `speed_mbit_s` is None where its driver does not say. `kind` is the
    kernel's word for one that is no device's own (wireguard, vlan, bond), `driver` that of its device, and
    `rdma` tells whether the device is an RDMA adapter. `below` is what a VLAN is on, `master` the bond or
    bridge whose port this is. `networks` are those of `addresses` that are not link-local.
    """

    name: str
    mtu: int
    up: bool
    addresses: tuple[str, ...]
    default_route: bool
    carrier: bool = True
    speed_mbit_s: int | None = None
    kind: str = ""
    driver: str = ""
    mac: str = ""
    rdma: bool = False
    below: str = ""
    master: str = ""
    networks: tuple[str, ...] = ()


@dataclass(frozen=True)
class AptSource:
    """One of the node's own repositories of Debian."""

    uri: str
    suite: str
    components: tuple[str, ...]
    signed_by: str


@dataclass(frozen=True)
class DkmsRecord:
    """A module that DKMS knows; without a kernel where it is built for none."""

    module: str
    version: str
    kernel: str | None
    architecture: str | None
    state: str


@dataclass(frozen=True)
class NvidiaModule:
    """The nvidia module of a kernel; the signer only where Secure Boot makes it matter."""

    version: str | None
    signer: str | None


@dataclass(frozen=True)
class Nvidia:
    """What is loaded and in use, and beside it what is installed."""

    loaded_version: str | None
    userspace_version: str | None
    vgpu_software: bool
    modules: dict[str, NvidiaModule | None]
    nouveau_loaded: bool
    counters_restricted: bool | None
    compute_processes: tuple[str, ...]


@dataclass(frozen=True)
class PayloadPython:
    """The Python that is there to run the payload: its version and its torch's, empty where not to be seen.

    `environment` tells a virtual environment, which may get another torch, from any other Python.
    """

    version: str
    torch: str
    environment: bool


@dataclass(frozen=True)
class Tunables:
    """What of the kernel's values in /sys can be chosen here; empty where there is nothing to write to.

    `cpu_governors` are those that every CPU offers. `nvme_schedulers` are those that every NVMe drive
    offers, `nvme` says whether there is a drive. `nr_open` is the most files that the kernel lets a process
    have open, 0 where it does not say. `irqbalance` says whether that is installed,
    `rdma` whether there is an adapter, `ofed` which package of a vendor's RDMA stack is installed (empty:
    none). `shm` says whether /dev/shm is a file system of its own.
    `tuners` are services that run and set such values too.
    """

    cpu_governors: tuple[str, ...]
    hugepages: tuple[str, ...]
    hugepages_defrag: tuple[str, ...]
    irqbalance: bool
    nvme: bool
    nvme_schedulers: tuple[str, ...]
    nr_open: int
    ofed: str
    rdma: bool
    shm: bool
    tuners: tuple[str, ...]


@dataclass(frozen=True)
class OtherEngine:
    """A container engine that no role sets up, as `other_engines` of module_utils finds it."""

    name: Literal[
        "rke2",
        "k3s",
        "k0s",
        "microk8s",
        "cri-dockerd",
        "docker",
        "containerd",
        "crio",
        "podman",
        "rootless",
        "other",
    ]
    where: str
    runs: bool
    ready: bool


@dataclass(frozen=True)
class NodeFacts:
    """The fact `temper`."""

    os: OperatingSystem
    architecture: str
    kernel: Kernel
    kernels: tuple[InstalledKernel, ...]
    secure_boot: str
    mok_enrolled: tuple[str, ...]
    services: tuple[str, ...]
    boot_id: str
    cpu: Cpu
    memory_bytes: int
    disks: tuple[Disk, ...]
    pci: tuple[PciDevice, ...]
    nvlink_switch_managed: bool
    interfaces: tuple[Interface, ...]
    packages: dict[str, str]
    broken_packages: tuple[str, ...]
    apt_sources: tuple[AptSource, ...]
    dkms: tuple[DkmsRecord, ...]
    nvidia: Nvidia
    tunables: Tunables
    pythons: tuple[str, ...]  # versions in /usr/bin ("3.11"), that of python3 first
    payload_python: PayloadPython | None
    machine_id: str = ""
    # Why this is not the tree of an image; asked only of what the inventory says is one
    image_refusal: str = ""
    other_engines: tuple[OtherEngine, ...] = ()
    # Whether it forwards packets, and has done so since it was started
    forwards: bool = False
    # Firmware of NVIDIA's network adapters with virtual functions
    network_firmware: tuple[str, ...] = ()
    # Role -> digest of the part of a plan that the node was brought to since it started
    in_place: dict[str, str] = field(default_factory=dict)
    # Whether answers leave by another interface than the one that has the address
    answers_elsewhere: bool = False
    # Whether a file system of its own lies on a USB disk
    usb_disk: bool = False
    # Whether cloud-init is still at work in the first boot
    being_set_up: bool = False
    # What its clock says, in seconds since 1970; 0 where nobody has asked
    clock_s: float = 0.0

    @property
    def own_pci(self) -> tuple[PciDevice, ...]:
        """NVIDIA's devices without those that are given away: all that is planned for."""
        return tuple(device for device in self.pci if not device.given_away)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> NodeFacts:
        """From module node_facts. Raises ValueError where it is not what the module reports."""
        facts = build(cls, from_node(data, "node_facts"), "node_facts")
        facts.refuse_impossible()
        return facts

    def refuse_impossible(self) -> None:
        """Raise ValueError where a value is none that a machine has: others reckon with it."""
        sizes = {
            "memory_bytes": self.memory_bytes,
            "cpu.logical": self.cpu.logical,
            "cpu.physical": self.cpu.physical,
            "cpu.numa_nodes": self.cpu.numa_nodes,
            "tunables.nr_open": self.tunables.nr_open,
            **{f"disks.{disk.path}": min(disk.total_bytes, disk.free_bytes) for disk in self.disks},
            **{f"cpu.sockets[{place}]": one.cores for place, one in enumerate(self.cpu.sockets)},
        }
        for name, size in sizes.items():
            if size < 0:
                raise ValueError(f"node_facts.{name}: expected 0 or more, found {size}")
        if not 0 <= self.clock_s < LATEST_S:
            raise ValueError(f"node_facts.clock_s: expected seconds since 1970, found {self.clock_s}")
        cpus = max(self.cpu.logical, self.cpu.physical, self.cpu.numa_nodes)
        if cpus > MOST_CPUS:
            raise ValueError(f"node_facts.cpu: expected at most {MOST_CPUS} CPUs, found {cpus}")
        if len(self.pci) > MOST_DEVICES:
            raise ValueError(
                f"node_facts.pci: expected at most {MOST_DEVICES} devices, found {len(self.pci)}"
            )
        for device in self.pci:
            if not (PCI_ADDRESS.fullmatch(device.address) and PCI_ID.fullmatch(device.device_id)):
                found = f"{device.address!r:.60} and {device.device_id!r:.60}"
                raise ValueError(f"node_facts.pci: expected address and id of a device, found {found}")
            if not DRIVER.fullmatch(device.driver):
                raise ValueError(f"node_facts.pci: expected the name of a driver, found {device.driver!r}")
        for python in self.pythons:
            if not PYTHON.fullmatch(python):
                raise ValueError(f"node_facts.pythons: expected versions such as 3.11, found {python!r}")
        for interface in self.interfaces:
            if not INTERFACE.fullmatch(interface.name):
                raise ValueError(f"node_facts.interfaces: expected a name, found {interface.name!r}")
            for word in (interface.kind, interface.driver):
                if not DRIVER.fullmatch(word):
                    raise ValueError(f"node_facts.interfaces: expected a kind or a driver, found {word!r}")
            for address in interface.addresses:
                ipaddress.ip_address(address)
            for network in interface.networks:
                ipaddress.ip_network(network)
