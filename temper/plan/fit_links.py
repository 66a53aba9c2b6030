"""Which of a node's interfaces are fit for the traffic between nodes, by kind, driver and speed.

The address that Ansible uses may be on a tunnel, on the link to a BMC, or on a slow network for management.
What a node reports shows that; where an interface leads, it does not show. So doubts are warnings, and only
an interface that never joins a fleet's nodes for jobs is replaced.
"""

from __future__ import annotations

import fnmatch
import ipaddress
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from temper.plan.facts import Interface
from temper.plan.fleet_networks import BY_NAME, VARIABLE, with_speed

#: How many times faster another interface has to be before the plan doubts the choice.
FASTER = 4
#: How the kernel names what carries packets inside of others (rtnl_link_ops); `none` has no link layer.
TUNNEL = re.compile(
    "amt|bareudp|batadv|geneve|gtp|(ip6)?(erspan|gre|gretap)|ipip|ip6tnl|none|ovpn|ppp|sit|tun|vti6?|vxlan|wireguard|xfrm"
)
#: Drivers of networks over USB. As such a network a server sees its BMC.
USB_NETWORK = re.compile("cdc_(eem|ether|mbim|ncm|subset)|ipheth|qmi_wwan|rndis_host")
#: These have what the interface below them has.
STACKED = ("vlan", "macvlan", "ipvlan", "macsec")
#: A VLAN on a bridge on a bond has three.
MOST_LAYERS = 8
#: They lead nowhere by themselves, and their speed is a constant of their driver.
VIRTUAL = ("dummy", "ifb", "netkit", "veth")
#: How systemd names what has no cable: Wi-Fi and mobile networks, as on workstations (DGX Spark).
RADIO_NAMES = ("wl*", "ww*")
#: What names say where the node reports neither a kind nor a driver.
TUNNEL_NAMES = ("tailscale*", "wg*", "tun*", "tap*", "zt*", "nebula*", "ppp*", "ipsec*", "l2tp*")
BMC_NAMES = ("enx*", "usb*", "bmc*", "idrac*")
#: Bridges of containers and virtual machines (with GUESTS of access/network_interfaces.py on the node), and
#: their ends on the host.
GUEST_NAMES = (
    *("cni*", "docker*", f"br-{'[0-9a-f]' * 12}", "cali*", "flannel*", "virbr*", "podman*", "lxdbr*"),
    *("incusbr*", "cilium*", "lxc*", "veth*", "kube-*", "nodelocaldns*", "weave*", "ovn-k8s*"),
)


@dataclass(frozen=True)
class Fit:
    """The interface for traffic between nodes; `why` it is not the present one, and what is in doubt."""

    interface: Interface | None
    why: str = ""
    warning: str = ""


def fit_link(interfaces: Collection[Interface], present: Interface | None, *, rdma: bool) -> Fit:
    """Judge the interface that would be taken, and return it or a better one.

    `rdma` tells whether jobs send their data by RDMA where an adapter can: sockets then carry their start.
    """
    if present is None:
        return Fit(None)
    below = carriers(interfaces)
    fit = [one for one in interfaces if leads_out(one) and not unfit(one, below)]
    fit.sort(key=lambda one: (not one.default_route, -(speed(one, below) or 0), one.name))
    fault = unfit(present, below) or ("" if present.carrier else "has no carrier")
    fault = fault or ("" if networks_of(present) else "has link-local addresses only")
    if fault and not fit:
        return Fit(
            present,
            warning=f"NCCL gets the interface {present.name}, which {fault}, because no other one is up and "
            f'has an address; if it is meant, set {BY_NAME}: "={present.name}"',
        )
    chosen = fit[0] if fault else present
    own = speed(chosen, below) or 0
    fast = max(fit, key=lambda one: speed(one, below) or 0, default=chosen)
    slow = 0 < own * FASTER <= (speed(fast, below) or 0) and not (rdma and lowest(fast, below).rdma)
    if not fault and not slow:
        return Fit(present)
    better, meant = fast if slow else chosen, present if fault else chosen
    why = f"{with_speed(chosen)}, because {present.name} {fault}" if fault else ""
    return Fit(
        chosen,
        why,
        f"NCCL gets the interface {why or with_speed(chosen)}"
        + (f"; {with_speed(fast)} is faster" if slow else "")
        + f". If {better.name} joins the nodes, set {VARIABLE}: [{a_network(better)}]; if "
        f'{meant.name} is meant, set {BY_NAME}: "={meant.name}"',
    )


def networks_of(interface: Interface) -> list[str]:
    """Return the networks of an interface's addresses but link-local ones, those of IPv4 first."""
    texts = interface.networks or interface.addresses
    found = [ipaddress.ip_network(text) for text in texts]
    return [str(one) for one in sorted(found, key=lambda one: one.version) if not one.is_link_local]


def leads_out(interface: Interface) -> bool:
    """Return whether packets for others can leave by an interface."""
    virtual = interface.kind in VIRTUAL and not interface.default_route
    return interface.up and interface.carrier and bool(networks_of(interface)) and not virtual


def a_network(interface: Interface) -> str:
    """Return a network of an interface for a variable, or words for one where it has addresses alone."""
    found = [one for one in networks_of(interface) if not one.endswith(("/32", "/128"))]
    return next(iter(found), "its network")


def is_uplink(port: Interface) -> bool:
    """Return whether a port of a bridge or a bond leads out of the node, not to a guest."""
    return bool(port.driver) or port.kind in ("bond", "team", "vlan")


def carriers(interfaces: Collection[Interface]) -> dict[str, Interface]:
    """Return what carries an interface, by its name: what a VLAN is on, a port of a bond or of a bridge.

    Of ports it is one that leads out, if there is one.
    """
    known = {one.name: one for one in interfaces}
    found: dict[str, Interface] = {}
    for one in interfaces:
        if one.kind in STACKED and one.below in known:
            found[one.name] = known[one.below]
        before = found.get(one.master)
        if one.master and (before is None or is_uplink(one) > is_uplink(before)):
            found[one.master] = one
    return found


def lowest(interface: Interface, below: Mapping[str, Interface]) -> Interface:
    """Return the interface at the end of what carries this one."""
    for _ in range(MOST_LAYERS):
        interface = below.get(interface.name, interface)
    return interface


def unfit(interface: Interface, below: Mapping[str, Interface]) -> str:
    """Return why an interface does not join a fleet's nodes for jobs; empty where none is known."""
    if interface.kind in STACKED:
        interface = lowest(interface, below)
    name, said = interface.name, bool(interface.kind or interface.driver)
    if TUNNEL.fullmatch(interface.kind) or (not said and matches(name, TUNNEL_NAMES)):
        return "is a tunnel"
    if USB_NETWORK.fullmatch(interface.driver) or (not said and matches(name, BMC_NAMES)):
        return "leads to the BMC or another USB device"
    if not interface.kind and matches(name, RADIO_NAMES):
        return "is a radio link"
    if not interface.driver and matches(name, GUEST_NAMES):
        return "leads to containers or virtual machines"
    if interface.kind == "bridge" and not interface.default_route:
        port = below.get(name)
        if port is None or not is_uplink(port):
            return "is a bridge of containers or virtual machines"
    return ""


def matches(name: str, patterns: Collection[str]) -> bool:
    """Return whether a name is one of these, in which * stands for anything."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def speed(interface: Interface, below: Mapping[str, Interface]) -> int | None:
    """Return an interface's speed in Mb/s; None where its driver does not say, or says a constant."""
    return None if lowest(interface, below).kind in VIRTUAL else interface.speed_mbit_s
