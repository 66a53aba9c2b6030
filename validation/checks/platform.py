"""Platform: how GPUs and network adapters hang on this machine, and what of it slows them down."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from validation.checks.check import GPU, Check, Scope
from validation.checks.cost import IdleNode, Step
from validation.checks.measured import result
from validation.model.contract import Finding, State
from validation.processes.pool import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator

    from validation.checks.node import Node
    from validation.model.contract import TestResult
    from validation.probes.topology import RdmaPort, Topology


class Platform(Check):
    """Nothing runs. How GPUs and network adapters are connected.

    NUMA node of each GPU, IOMMU mode, PCIe access control (ACS) on the bridges above the GPUs, PCIe links of
    their switches and of network adapters, InfiniBand and RoCE ports.
    """

    id = "platform"
    title = "NUMA, IOMMU, PCIe bridges and RDMA ports"
    place = 20
    scope = Scope.NODE
    needs = (GPU,)
    passes = "nothing is found"

    def cost(self, _idle: IdleNode) -> Iterator[Step]:
        """How long it takes."""
        yield Step("read sysfs", 0.1)

    def perform(self, node: Node) -> TestResult:
        """Look at this node."""
        topology = node.topology
        if isinstance(topology, Outcome):
            return result(self, [topology])
        return result(self, findings=examine(node, topology), details=dataclasses.asdict(topology))


def examine(node: Node, topology: Topology) -> Iterator[Finding]:
    """Everything that slows data down on its way."""
    yield from _numa(topology)
    peers = len(node.pci_gpus) > 1 or bool(topology.rdma_ports)
    if peers and not topology.virtual:
        yield from _redirection(topology)
    if not topology.virtual:  # there, ports are made up
        yield from _links(topology)
    yield from _ports(topology.rdma_ports)


def _numa(topology: Topology) -> Iterator[Finding]:
    nowhere = [gpu for gpu, place in (topology.gpu_numa_node or {}).items() if place is None]
    if topology.numa_nodes > 1 and nowhere:
        yield Finding(
            "numa-unknown",
            State.DEGRADED,
            f"the firmware does not say on which of {topology.numa_nodes} NUMA nodes the GPU at "
            f"{', '.join(nowhere)} is: programs cannot be kept near it",
            "update the firmware, or switch NUMA on in its settings",
        )


def _redirection(topology: Topology) -> Iterator[Finding]:
    if topology.redirecting_bridges:
        yield Finding(
            "acs-redirects",
            State.DEGRADED,
            "PCIe access control (ACS) sends traffic between devices through the CPU at "
            f"{', '.join(topology.redirecting_bridges)}: copies between GPUs, and GPUDirect RDMA, are slow "
            "or hang",
            "switch ACS off in the firmware, or by setpci at boot, on machines that host no virtual machines",
        )
    elif topology.unread_bridges:
        yield Finding(
            "acs-unknown",
            State.DEGRADED,
            f"the PCIe access control (ACS) of {', '.join(topology.unread_bridges)} cannot be read, so "
            "nobody knows whether copies between GPUs go through the CPU",
            "run this as root",
        )
    # Grace and its like translate at full speed, by design.
    if topology.iommu == "translating" and topology.architecture == "x86_64":
        yield Finding(
            "iommu-translates",
            State.DEGRADED,
            "the IOMMU translates every transfer between devices: GPU-to-GPU copies over PCIe and GPUDirect "
            "RDMA are slow or do not work",
            "boot with iommu=pt, or switch the IOMMU off in the firmware",
        )


def _links(topology: Topology) -> Iterator[Finding]:
    for link in topology.slow_links:
        yield Finding(
            "pcie-uplink-slow",
            State.DEGRADED,
            f"the PCIe link above {link.above} ({link.address}) runs at {link.speed_gt:g} GT/s "
            f"x{link.width}, both its ends can do {link.speed_gt_max:g} GT/s x{link.width_max}",
            "reseat the card or its riser; look for AER errors in the kernel log",
        )


def _ports(ports: tuple[RdmaPort, ...]) -> Iterator[Finding]:
    """A port that is not like the others of its kind: one that nobody uses is no fault, an odd one is."""
    for port in ports:
        alike = [other for other in ports if other.kind == port.kind]
        active = [other for other in alike if other.state == "ACTIVE"]
        if port.physical == "LinkUp" and port.state != "ACTIVE":
            yield Finding(
                "rdma-port-not-active",
                State.DEGRADED,
                f"port {port.name} ({port.kind}) has a link but is {port.state}",
                "check that the fabric's subnet manager runs and knows this port",
            )
        elif port.state != "ACTIVE" and len(active) > len(alike) / 2:
            yield Finding(
                "rdma-port-down",
                State.DEGRADED,
                f"port {port.name} ({port.kind}) is {port.state} ({port.physical or 'no link'}), "
                f"{len(active)} others of its kind are up",
                "check cable, transceiver and switch port",
            )
        elif port.state == "ACTIVE" and port.rate_gb < max(other.rate_gb for other in active):
            fastest = max(other.rate_gb for other in active)
            yield Finding(
                "rdma-port-slow",
                State.DEGRADED,
                f"port {port.name} ({port.kind}) runs at {port.rate_gb:g} Gb/s, others at {fastest:g} Gb/s",
                "reseat or replace cable and transceiver; look at the switch port's settings",
            )
