"""NCCL's settings and thread counts of a node."""

from __future__ import annotations

import contextlib
import ipaddress
import re
from collections.abc import Collection, Iterable, Mapping

from temper.plan.facts import Interface, NodeFacts
from temper.plan.fit_links import a_network, fit_link, matches, networks_of
from temper.plan.fleet_networks import in_order, links, reason
from temper.plan.fleet_networks import problems as network_problems
from temper.plan.model import Environment, FleetNetworks
from temper.plan.refusals import Refusal, refusal
from temper.plan.variables import ComputeEnvironment, Firewall

IFNAME = "NCCL_SOCKET_IFNAME"
# A name of systemd: letters, digits and these signs (systemd.unit(5)).
SERVICE = re.compile(r"[A-Za-z0-9:_.@-]+")
# Systems whose systemd passes over ManagerEnvironment= (systemd's NEWS: new in 248).
OLD_SYSTEMD = {"rhel-8": 239}
# What of NCCL's settings is true of one host alone: names of its interfaces, its files, its plugins.
HOST_SUFFIXES = ("_IFNAME", "_FILE", "_PLUGIN")
HOST_NAMES = frozenset({"NCCL_NET"})


def environment(
    node: NodeFacts, gpu_count: int, wanted: ComputeEnvironment, by_address: Interface | None
) -> tuple[Environment, list[str]]:
    """Thread counts for one process a GPU, and NCCL's settings; and what is in doubt of its interface.

    NCCL's sockets use the interface that the inventory names, else the fastest one in the fleet's networks,
    else the one that carries the node's inventory address, where it is fit for that. A name is written
    `=NAME`, which is an exact match in NCCL's syntax: a bare name is a prefix.
    """
    threads = wanted.omp_num_threads or max(1, node.cpu.physical // max(1, gpu_count))
    networks, why, warnings = None, "", []
    interface = wanted.nccl_socket_ifname
    if wanted.fleet_networks and wanted.state == "present":
        found = links(node.interfaces, wanted.fleet_networks)
        preferred = by_address.name if by_address else ""
        ordered = in_order(found, wanted.fleet_networks, preferred)
        used = ""
        if variable := naming(wanted):
            why = f"as {variable} says, whatever compute_environment_fleet_networks would give"
            names = {item.name for item in selected(given(wanted), node.interfaces)}
            used = next((link.network for link in ordered if {link.interface.name} == names), "")
        elif ordered:
            interface, why = f"={ordered[0].interface.name}", reason(ordered, preferred)
            used = ordered[0].network
        reached = {link.network for link in found if link.works}
        spelled = tuple(str(ipaddress.ip_network(text)) for text in wanted.fleet_networks)
        networks = FleetNetworks(spelled, tuple(sorted(reached)), used)
    elif not naming(wanted):
        fit = fit_link(node.interfaces, by_address, rdma=by_rdma(wanted.nccl))
        interface, why = f"={fit.interface.name}" if fit.interface else "", fit.why
        warnings = [fit.warning] if fit.warning and wanted.state == "present" else []
    nccl = {IFNAME: interface} if interface else {}
    nccl |= {name: str(value) for name, value in wanted.nccl.items()}
    return Environment(threads, nccl, why, networks), warnings


def by_rdma(nccl: Mapping[str, object]) -> bool:
    """Return whether NCCL sends its data by RDMA where it finds an adapter.

    It does, unless it is told not to.
    """
    return str(nccl.get("NCCL_IB_DISABLE", 0)) == "0" and nccl.get("NCCL_NET", "IB") != "Socket"


def interface_of(interfaces: Iterable[Interface], address: str) -> Interface | None:
    """Return the interface with this address, else the one with the default route."""
    with contextlib.suppress(ValueError):  # a name, which is on no interface
        address = str(ipaddress.ip_address(address))  # as the node spells it
    up = [interface for interface in interfaces if interface.up]
    found = [item for item in up if address in item.addresses] or [item for item in up if item.default_route]
    return found[0] if found else None


def naming(wanted: ComputeEnvironment) -> str:
    """Return the variable of the inventory that names NCCL's interface; empty where none does."""
    if IFNAME in wanted.nccl:
        return "compute_environment_nccl"
    return "compute_environment_nccl_socket_ifname" if wanted.nccl_socket_ifname else ""


def given(wanted: ComputeEnvironment) -> str:
    """Return what the inventory names as NCCL's interface; empty where it names none."""
    return str(wanted.nccl.get(IFNAME, wanted.nccl_socket_ifname))


def selected(text: str, interfaces: Iterable[Interface]) -> list[Interface]:
    """Return the interfaces that NCCL would take for this value, which leaves none out (^)."""
    alike = str.__eq__ if text.startswith("=") else str.startswith
    names = text.removeprefix("=").split(",")
    return [item for item in interfaces if any(alike(item.name, name) for name in names)]


def interface_problems(wanted: ComputeEnvironment, interfaces: Collection[Interface]) -> list[Refusal]:
    """Return where NCCL would find none of the interfaces that it is given, and start no job."""
    if not interfaces or wanted.state == "absent":
        return []
    variable, text = naming(wanted), given(wanted)
    if not variable and wanted.fleet_networks:
        return network_problems(interfaces, wanted.fleet_networks)
    loopback = Interface("lo", 0, up=True, addresses=(), default_route=False)
    if not text or text.startswith("^") or selected(text, [loopback, *interfaces]):
        return []
    here = ", ".join(item.name for item in interfaces if item.addresses) or "none with an address"
    return [refusal("nccl-interface", variable=variable, interface=text, found=here)]


def firewall_warnings(
    plan: Environment, interfaces: Collection[Interface], by_address: Interface | None, firewall: Firewall
) -> list[str]:
    """Return where the firewall would keep the nodes' own traffic from the interface that was chosen for it.

    Without `firewall_peer_addresses` it lets in the nodes' inventory addresses, which are on `by_address`.
    """
    text, used = plan.nccl.get(IFNAME, ""), plan.networks.used if plan.networks else ""
    chosen = [] if text.startswith("^") else selected(text, interfaces)
    if firewall.state == "absent" or not text or len(chosen) != 1:
        return []
    (interface,) = chosen
    networks = [ipaddress.ip_network(one) for one in ([used] if used else networks_of(interface))]
    let_in = [*(firewall.peer_addresses or ()), *(text for rule in firewall.rules for text in rule.sources)]
    sources = [ipaddress.ip_network(text, strict=False) for text in let_in]
    if (
        (firewall.peer_addresses is None and (by_address is None or interface == by_address))
        or matches(interface.name, firewall.trusted_interfaces)
        or not networks
        or any(one.version == other.version and one.overlaps(other) for one in sources for other in networks)
    ):
        return []
    return [
        f"role firewall would let no node in by NCCL's interface {interface.name}: name "
        f"{used or a_network(interface)} in firewall_peer_addresses, beside the nodes' other addresses "
        "or networks"
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


def environment_problems(wanted: ComputeEnvironment, system: str) -> list[Refusal]:
    """Return why services that the operator names would not get the thread count on this system."""
    if wanted.services and system in OLD_SYSTEMD:
        return [refusal("services-need-systemd", system=system, found=OLD_SYSTEMD[system])]
    return [
        refusal("service-name", service=name)
        for name in wanted.services
        if not SERVICE.fullmatch(name) or ("." in name and not name.endswith(".service"))
    ]


def environment_warnings(wanted: ComputeEnvironment, debug_variables: Collection[str]) -> list[str]:
    """Return what NVIDIA says to leave alone, and the inventory sets all the same."""
    named = sorted(wanted.nccl.keys() & set(debug_variables))
    if not named:
        return []
    return [
        f"compute_environment_nccl sets {', '.join(named)}: NVIDIA has that for debugging only, because it "
        "keeps NCCL from choosing and may break with another release. Take it out once it is not needed"
    ]
