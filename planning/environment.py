"""NCCL's settings and thread counts of a node."""

from __future__ import annotations

import contextlib
import ipaddress
import re
from typing import TYPE_CHECKING

from planning.model import Environment

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from planning.facts import Interface, NodeFacts
    from planning.variables import ComputeEnvironment

IFNAME = "NCCL_SOCKET_IFNAME"
# A name of systemd: letters, digits and these signs (systemd.unit(5)).
SERVICE = re.compile(r"[A-Za-z0-9:_.@-]+")
# Systems whose systemd passes over ManagerEnvironment= (systemd's NEWS: new in 248).
OLD_SYSTEMD = {"rhel-8": 239}
# What of NCCL's settings is true of one host alone: names of its interfaces, its files, its plugins.
HOST_SUFFIXES = ("_IFNAME", "_FILE", "_PLUGIN")
HOST_NAMES = frozenset({"NCCL_NET"})


def environment(node: NodeFacts, gpu_count: int, wanted: ComputeEnvironment, address: str) -> Environment:
    """Thread counts for one process a GPU, and NCCL's settings.

    NCCL's sockets use the interface that carries the node's inventory address.
    """
    threads = wanted.omp_num_threads or max(1, node.cpu.physical // max(1, gpu_count))
    interface = wanted.nccl_socket_ifname or nccl_interface(node.interfaces, address)
    nccl = {IFNAME: interface} if interface else {}
    return Environment(threads, nccl | {name: str(value) for name, value in wanted.nccl.items()})


def nccl_interface(interfaces: Iterable[Interface], address: str) -> str | None:
    """The interface with this address, else the one with the default route.

    Written `=NAME`, which is an exact match in NCCL's syntax: a bare name is a prefix.
    """
    with contextlib.suppress(ValueError):  # a name, which is on no interface
        address = str(ipaddress.ip_address(address))  # as the node spells it
    up = [interface for interface in interfaces if interface.up]
    found = [item for item in up if address in item.addresses] or [item for item in up if item.default_route]
    return f"={found[0].name}" if found else None


def interface_problems(wanted: ComputeEnvironment, interfaces: Collection[Interface]) -> list[str]:
    """Where NCCL would find none of the interfaces that it is given, and start no job."""
    given = str(wanted.nccl.get(IFNAME, wanted.nccl_socket_ifname))
    names = ["lo", *(item.name for item in interfaces)]
    if not given or given.startswith("^") or not interfaces or wanted.state == "absent":
        return []
    alike = str.__eq__ if given.startswith("=") else str.startswith
    if any(alike(name, one) for one in given.removeprefix("=").split(",") for name in names):
        return []
    variable = "nccl" if IFNAME in wanted.nccl else "nccl_socket_ifname"
    here = ", ".join(item.name for item in interfaces if item.addresses) or "none with an address"
    return [
        f"compute_environment_{variable} asks for the interface {given}, and this node has {here}: "
        "NCCL would start no job; name one of them, or leave it out"
    ]


def portable(nccl: Mapping[str, str]) -> dict[str, str]:
    """NCCL's settings that also hold in a container.

    One with a network of its own has other interfaces, and NCCL ends where none has the name that it was
    given (src/bootstrap.cc, "no socket interface found"); files and plugins of the host are not in its image.
    """
    return {
        name: value
        for name, value in nccl.items()
        if not (name.endswith(HOST_SUFFIXES) or name in HOST_NAMES or value.startswith("/"))
    }


def environment_problems(wanted: ComputeEnvironment, system: str) -> list[str]:
    """Why services that the operator names would not get the thread count on this system."""
    if wanted.services and system in OLD_SYSTEMD:
        return [
            f"compute_environment_services needs ManagerEnvironment= of systemd 248, and {system} has "
            f"{OLD_SYSTEMD[system]}; leave it out for this node, and set OMP_NUM_THREADS in the units"
        ]
    return [
        f"compute_environment_services names {name!r}: expected the name of a service of systemd, such as "
        "jupyterhub or triton.service"
        for name in wanted.services
        if not SERVICE.fullmatch(name) or ("." in name and not name.endswith(".service"))
    ]


def environment_warnings(wanted: ComputeEnvironment, debug_variables: Collection[str]) -> list[str]:
    """What NVIDIA says to leave alone, and the inventory sets all the same."""
    named = sorted(wanted.nccl.keys() & set(debug_variables))
    if not named:
        return []
    return [
        f"compute_environment_nccl sets {', '.join(named)}: NVIDIA has that for debugging only, because it "
        "keeps NCCL from choosing and may break with another release. Take it out once it is not needed"
    ]
