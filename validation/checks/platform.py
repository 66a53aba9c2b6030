"""Platform: how GPUs and network adapters hang on this machine, and what of it slows them down."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from validation.checks.check import GPU, Check, CostStep, IdleNode, Scope
from validation.checks.measured import result
from validation.checks.node import Node
from validation.findings.catalogue import finding
from validation.model.contract import Finding, TestResult
from validation.probes.topology import RdmaPort, Topology
from validation.processes.pool import ProcessOutcome


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

    def cost(self, _idle: IdleNode) -> Iterator[CostStep]:
        """Yield how long it takes."""
        yield CostStep("read sysfs", 0.1)

    def perform(self, node: Node) -> TestResult:
        """Look at this node."""
        topology = node.topology
        if isinstance(topology, ProcessOutcome):
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
        yield finding("numa-unknown", nodes=topology.numa_nodes, addresses=", ".join(nowhere))


def _redirection(topology: Topology) -> Iterator[Finding]:
    if topology.redirecting_bridges:
        yield finding("acs-redirects", bridges=", ".join(topology.redirecting_bridges))
    elif topology.unread_bridges:
        yield finding("acs-unknown", bridges=", ".join(topology.unread_bridges))
    # Grace and its like translate at full speed, by design.
    if topology.iommu == "translating" and topology.architecture == "x86_64":
        yield finding("iommu-translates")


def _links(topology: Topology) -> Iterator[Finding]:
    for link in topology.slow_links:
        yield finding(
            "pcie-uplink-slow",
            above=link.above,
            address=link.address,
            speed_gt=link.speed_gt,
            width=link.width,
            speed_gt_max=link.speed_gt_max,
            width_max=link.width_max,
        )


def _ports(ports: tuple[RdmaPort, ...]) -> Iterator[Finding]:
    """Yield a port that is not like the others of its kind.

    One that nobody uses is no fault, an odd one is.
    """
    for port in ports:
        alike = [other for other in ports if other.kind == port.kind]
        active = [other for other in alike if other.state == "ACTIVE"]
        if port.physical == "LinkUp" and port.state != "ACTIVE":
            yield finding("rdma-port-not-active", port=port.name, kind=port.kind, port_state=port.state)
        elif port.state != "ACTIVE" and len(active) > len(alike) / 2:
            yield finding(
                "rdma-port-down",
                port=port.name,
                kind=port.kind,
                port_state=port.state,
                physical=port.physical or "no link",
                others=len(active),
            )
        elif port.state == "ACTIVE" and port.rate_gb < max(other.rate_gb for other in active):
            fastest = max(other.rate_gb for other in active)
            yield finding(
                "rdma-port-slow", port=port.name, kind=port.kind, rate_gb=port.rate_gb, fastest_gb=fastest
            )
