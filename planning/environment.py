"""NCCL's settings and thread counts of a node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from planning.model import Facts


def environment(node: Facts, gpu_count: int, values: Facts, address: str) -> dict[str, Any]:
    """Thread counts for one process a GPU, and NCCL's settings.

    NCCL's sockets use the interface that carries the node's inventory address.
    """
    threads = values["compute_environment_omp_num_threads"] or max(
        1, node["cpu"]["physical"] // max(1, gpu_count)
    )
    interface = values["compute_environment_nccl_socket_ifname"] or nccl_interface(
        node["interfaces"], address
    )
    nccl = {"NCCL_SOCKET_IFNAME": interface} if interface else {}
    return {"omp_num_threads": int(threads), "nccl": nccl | values["compute_environment_nccl"]}


def nccl_interface(interfaces: Iterable[Mapping[str, Any]], address: str) -> str | None:
    """The interface with this address, else the one with the default route.

    Written `=NAME`, which is an exact match in NCCL's syntax: a bare name is a prefix.
    """
    ups = [interface for interface in interfaces if interface["up"]]
    carrying = [i for i in ups if address in i["addresses"]] or [i for i in ups if i["default_route"]]
    return f"={carrying[0]['name']}" if carrying else None
