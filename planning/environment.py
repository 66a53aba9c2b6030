"""NCCL's settings and thread counts of a node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from planning.node_plan import Environment
from planning.plain import plain
from planning.variables import ComputeEnvironment

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from planning.model import Facts


def compute_environment(node: Facts, gpu_count: int, wish: ComputeEnvironment, address: str) -> Environment:
    """Thread counts for one process a GPU, and NCCL's settings.

    NCCL's sockets use the interface that carries the node's inventory address.
    """
    threads = wish.omp_num_threads or max(1, node["cpu"]["physical"] // max(1, gpu_count))
    interface = wish.nccl_socket_ifname or nccl_interface(node["interfaces"], address)
    nccl = {"NCCL_SOCKET_IFNAME": interface} if interface else {}
    return Environment(threads, {**nccl, **wish.nccl})


def nccl_interface(interfaces: Iterable[Mapping[str, Any]], address: str) -> str | None:
    """The interface with this address, else the one with the default route.

    Written `=NAME`, which is an exact match in NCCL's syntax: a bare name is a prefix.
    """
    ups = [interface for interface in interfaces if interface["up"]]
    carrying = [i for i in ups if address in i["addresses"]] or [i for i in ups if i["default_route"]]
    return f"={carrying[0]['name']}" if carrying else None


def environment(node: Facts, gpu_count: int, values: Facts, address: str) -> dict[str, Any]:
    """The environment as plain JSON, from variables by their names."""
    prefix = "compute_environment_"
    wish = ComputeEnvironment(
        **{name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}
    )
    found: dict[str, Any] = plain(compute_environment(node, gpu_count, wish, address))
    return found
