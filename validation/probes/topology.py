"""How GPUs and network adapters hang on this machine: NUMA, IOMMU, PCIe bridges, RDMA ports, from sysfs."""

from __future__ import annotations

import platform
import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from validation.probes import numa
from validation.probes.machine import text_at
from validation.probes.report_values import NUMBER

if TYPE_CHECKING:
    from validation.probes.nvidia_smi import Gpu

#: PCI Express extended capabilities start here; each names the next. ACS is number 13, and its control
#: register six bytes on (PCI Express base specification 5.0, 7.7.8).
FIRST_EXTENDED = 0x100
#: GT/s of a lane in each PCIe generation, from the first on.
SPEEDS_GT = (2.5, 5.0, 8.0, 16.0, 32.0, 64.0)
#: Bytes of a conventional PCI device, which has no extended ones.
WHOLE_CONVENTIONAL = 0x100
ACS_CAPABILITY = 0x000D
ACS_CONTROL = 6
#: Request redirect and completion redirect: with either, traffic between devices takes the way through the
#: root complex. Source validation alone does not redirect.
ACS_REDIRECT = 0x04 | 0x08
PCI_ADDRESS = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


@dataclass(frozen=True)
class RdmaPort:
    """One port of an InfiniBand or RoCE adapter. `rate_gb` in Gb/s, 0 where it is not said."""

    name: str  # mlx5_0/1
    kind: str  # adapter type and link layer: ports of one kind compare
    state: str  # ACTIVE, DOWN, INIT, ARMED
    physical: str  # LinkUp, Disabled, Polling
    rate_gb: float


@dataclass(frozen=True)
class SlowLink:
    """A PCIe link that runs below what both of its ends can do. Speeds in GT/s."""

    above: str  # of which device: "mlx5_0", "the PCIe switch of the GPU at 0000:1b:00.0"
    address: str  # of its lower end
    speed_gt: float
    speed_gt_max: float
    width: int
    width_max: int


@dataclass(frozen=True)
class PciePort:
    """What the PCIe port above a GPU can carry. `generation` is 0 where it does not say."""

    width: int
    generation: int = 0


@dataclass(frozen=True)
class Topology:
    """What the kernel says of this machine's buses."""

    architecture: str = "x86_64"
    numa_nodes: int = 1
    gpu_numa_node: dict[str, int | None] | None = None  # by PCI address; None: the firmware does not say
    gpu_far_numa_node: dict[str, int | None] | None = None  # by PCI address; None: there is no other
    iommu: str = "off"  # off, passthrough, translating
    virtual: bool = False
    redirecting_bridges: tuple[str, ...] = ()  # above a GPU, with ACS redirection on
    unread_bridges: tuple[str, ...] = ()  # above a GPU, of which nobody knows that
    rdma_ports: tuple[RdmaPort, ...] = ()
    slow_links: tuple[SlowLink, ...] = ()  # of network adapters and of PCIe switches, not a GPU's own


def read(gpus: tuple[str, ...], root: Path = Path("/")) -> Topology:
    """Return the topology around the GPUs with these PCI addresses; what cannot be read is left out."""
    devices = root / "sys/bus/pci/devices"
    bridges = {bridge.name: _redirects(bridge) for gpu in gpus for bridge in _bridges(devices / gpu)}
    return Topology(
        architecture=platform.machine(),
        numa_nodes=len(list((root / "sys/devices/system/node").glob("node[0-9]*"))) or 1,
        gpu_numa_node={gpu: numa.node_of(gpu, root) for gpu in gpus},
        gpu_far_numa_node={gpu: numa.farthest(gpu, root) for gpu in gpus},
        iommu=_iommu(root),
        virtual=bool(re.search(r"^flags\s*:.*\bhypervisor\b", text_at(root / "proc/cpuinfo"), re.MULTILINE)),
        redirecting_bridges=tuple(sorted(name for name, redirects in bridges.items() if redirects)),
        unread_bridges=tuple(sorted(name for name, redirects in bridges.items() if redirects is None)),
        rdma_ports=tuple(_rdma_ports(root)),
        slow_links=tuple(_slow_links(gpus, root)),
    )


def pcie_ports(gpus: Iterable[str], root: Path = Path("/")) -> dict[str, PciePort]:
    """Return the port above each GPU, by the GPU's PCI address; without those that nobody shows."""
    found = {}
    for gpu in gpus:
        for bridge in _bridges(root / "sys/bus/pci/devices" / gpu)[:1]:
            width, speed_gt = (_leading_number(bridge / f"max_link_{what}") for what in ("width", "speed"))
            if width:
                found[gpu] = PciePort(int(width), sum(speed <= speed_gt for speed in SPEEDS_GT))
    return found


def _iommu(root: Path) -> str:
    groups = list((root / "sys/kernel/iommu_groups").glob("*/type"))
    if not groups:
        return "off"
    kinds = {text_at(group) for group in groups}
    return "translating" if any(kind.startswith("DMA") for kind in kinds) else "passthrough"


def _bridges(device: Path) -> list[Path]:
    """Return the PCI bridges above a device, from its place in /sys/devices."""
    try:
        place = device.resolve(strict=True)
    except OSError:
        return []
    return [parent for parent in place.parents if PCI_ADDRESS.fullmatch(parent.name)]


def _redirects(bridge: Path) -> bool | None:
    """Return whether a bridge's access control (ACS) sends its devices' traffic through the root complex.

    None where the configuration space does not show: the kernel gives others than root its first 64 bytes.
    """
    try:
        space = (bridge / "config").read_bytes()
    except OSError:
        return None
    if len(space) < WHOLE_CONVENTIONAL:
        return None
    offset, seen = FIRST_EXTENDED, set()
    while FIRST_EXTENDED <= offset <= len(space) - 8 and offset not in seen:
        seen.add(offset)
        (header,) = struct.unpack_from("<I", space, offset)
        if header & 0xFFFF == ACS_CAPABILITY:
            (control,) = struct.unpack_from("<H", space, offset + ACS_CONTROL)
            return bool(control & ACS_REDIRECT)
        offset = header >> 20
    return False


def _slow_links(gpus: tuple[str, ...], root: Path) -> list[SlowLink]:
    """Links above network adapters, and those above the switches of GPUs: an idle GPU lowers its own."""
    found: dict[str, SlowLink] = {}
    for gpu in gpus:
        ways = _way_up(root / "sys/bus/pci/devices" / gpu)
        for lower, upper in ways[1:]:
            if slow := _slow_link(f"the PCIe switch of the GPU at {gpu}", lower, upper):
                found.setdefault(slow.address, slow)
    for adapter in sorted((root / "sys/class/infiniband").glob("*")):
        for lower, upper in _way_up(adapter / "device"):
            if slow := _slow_link(adapter.name, lower, upper):
                found.setdefault(slow.address, slow)
    return list(found.values())


def _way_up(device: Path) -> list[tuple[Path, Path]]:
    """Return both ends of each link from a device up to the root.

    The way between two ports within a switch is no link.
    """
    bridges = _bridges(device)
    ends = [device.resolve(), *bridges] if bridges else []
    return list(zip(ends[::2], ends[1::2], strict=False))


def _slow_link(above: str, lower: Path, upper: Path) -> SlowLink | None:
    """Return a link that is slow, None if it is not or nobody says.

    Its state is in the lower end's registers.
    """
    speed = _leading_number(lower / "current_link_speed")
    width = _leading_number(lower / "current_link_width")
    speed_max = min(_leading_number(end / "max_link_speed") for end in (lower, upper))
    width_max = min(_leading_number(end / "max_link_width") for end in (lower, upper))
    if not (0 < speed < speed_max or 0 < width < width_max):
        return None
    return SlowLink(above, lower.name, speed, speed_max, int(width), int(width_max))


def _leading_number(path: Path) -> float:
    """`16.0 GT/s PCIe`: 16; 0 for `Unknown`, and where there is none."""
    match = NUMBER.match(text_at(path))
    return float(match.group()) if match else 0.0


def _rdma_ports(root: Path) -> list[RdmaPort]:
    ports = []
    for port in sorted((root / "sys/class/infiniband").glob("*/ports/*")):
        adapter = port.parents[1]
        rate = NUMBER.match(text_at(port / "rate"))
        ports.append(
            RdmaPort(
                f"{adapter.name}/{port.name}",
                f"{text_at(adapter / 'hca_type') or 'unknown'} {text_at(port / 'link_layer')}".strip(),
                text_at(port / "state").partition(": ")[2],
                text_at(port / "phys_state").partition(": ")[2],
                float(rate.group()) if rate else 0.0,
            )
        )
    return ports


def port_of(gpu: Gpu, ports: Mapping[str, PciePort]) -> PciePort | None:
    """Return the port above a GPU; None where it cannot be seen: that of a virtual machine is made up."""
    return None if gpu.guest else ports.get(gpu.pci_address)


def generation_possible(gpu: Gpu, port: PciePort | None) -> int | None:
    """Return the generation that card and port both have.

    Where GPU and CPU are one chip, nvidia-smi names a link that there is not (Syllo/nvtop pull request 499).
    """
    if gpu.shares_memory:
        return None
    if gpu.pcie_generation_max is None or port is None or not port.generation:
        return gpu.pcie_generation_max
    return min(gpu.pcie_generation_max, max(port.generation, gpu.pcie_generation or 0))


def width_possible(gpu: Gpu, port: PciePort | None) -> int | None:
    """Return the lanes that card and port both have; where no port is seen, those that are there."""
    if gpu.pcie_width_max is None or gpu.shares_memory:
        return None
    width = gpu.pcie_width or gpu.pcie_width_max
    return min(gpu.pcie_width_max, max(port.width, width) if port else width)
