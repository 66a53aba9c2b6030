"""NCCL's settings and thread counts of a node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planning.model import Environment

if TYPE_CHECKING:
    from collections.abc import Iterable

    from planning.facts import Interface, NodeFacts
    from planning.variables import ComputeEnvironment


def environment(node: NodeFacts, gpu_count: int, wanted: ComputeEnvironment, address: str) -> Environment:
    """Thread counts for one process a GPU, and NCCL's settings.

    NCCL's sockets use the interface that carries the node's inventory address.
    """
    threads = wanted.omp_num_threads or max(1, node.cpu.physical // max(1, gpu_count))
    interface = wanted.nccl_socket_ifname or nccl_interface(node.interfaces, address)
    nccl = {"NCCL_SOCKET_IFNAME": interface} if interface else {}
    return Environment(threads, nccl | {name: str(value) for name, value in wanted.nccl.items()})


def nccl_interface(interfaces: Iterable[Interface], address: str) -> str | None:
    """The interface with this address, else the one with the default route.

    Written `=NAME`, which is an exact match in NCCL's syntax: a bare name is a prefix.
    """
    up = [interface for interface in interfaces if interface.up]
    found = [item for item in up if address in item.addresses] or [item for item in up if item.default_route]
    return f"={found[0].name}" if found else None
