"""The lab's network on the host: a bridge, one veth pair and network namespace a node, NAT to the outside."""

import ipaddress
import json
import re
import threading
from pathlib import Path
from typing import Any

from tests.lab.process import LabError, run
from tests.lab.settings import Lab, Node

_NAMESPACES = Path("/run/netns")
# The first `ip netns add` mounts the directory over itself; a second one at the same time would do it again.
_NAMESPACES_LOCK = threading.Lock()


def check_free(lab: Lab) -> None:
    """Check that nothing else on this machine uses the lab's network.

    Raises:
        LabError: an interface or a route has it.
    """
    wanted = ipaddress.ip_network(lab.network)
    for route in _ip("route", "show", "table", "all"):
        if route.get("dev") == lab.bridge or route.get("type") in ("broadcast", "local"):
            continue
        destination = route.get("dst", "default")
        if destination != "default" and ipaddress.ip_network(destination, strict=False).overlaps(wanted):
            raise LabError(
                f"The lab's network {lab.network} is in use on this machine: route {destination} through "
                f"{route.get('dev', 'no interface')}. Another name gives another network: LAB_NAME=other"
            )


def create_bridge(lab: Lab) -> None:
    """Create the bridge with its addresses and the NAT table, or put right what is missing of them."""
    if not Path("/sys/class/net", lab.bridge).exists():
        run(["ip", "link", "add", lab.bridge, "type", "bridge", "forward_delay", "0"])
    run(
        ["ip", "-batch", "-"],
        text=f"address replace {lab.address}/24 dev {lab.bridge}\n"
        f"address replace {lab.prefix6}1/64 dev {lab.bridge} nodad\n"
        f"link set {lab.bridge} up\n",
    )
    run(["nft", "-f", "-"], text=_nat(lab))


def _nat(lab: Lab) -> str:
    """The lab's nftables table; loading it replaces an older one in one transaction."""
    table = f"table inet {lab.nft_table}"
    return f"""
{table}
delete {table}
{table} {{
    chain postrouting {{
        type nat hook postrouting priority srcnat
        # By address: where bridged frames pass here, too, they may leave by a bridge that a test has added.
        ip saddr {lab.network} ip daddr != {lab.network} masquerade
    }}
    chain forward {{
        type filter hook forward priority mangle
        # The way out may have a smaller MTU than the nodes' 1500, and filter path MTU discovery.
        iifname "{lab.bridge}" tcp flags syn tcp option maxseg size set rt mtu
    }}
}}
"""


def create_node(node: Node) -> None:
    """Create a node's network namespace with its eth0, from nothing."""
    remove_node(node)
    name, lab = node.unique_name, node.lab
    with _NAMESPACES_LOCK:
        run(["ip", "netns", "add", name])
    run(
        ["ip", "-batch", "-"],
        text=f"link add {name} type veth peer name eth0 address {node.mac_address} netns {name}\n"
        f"link set {name} master {lab.bridge} up\n",
    )
    # Lets everybody ping, as Debian 13's systemd sets it; in a node sysctl only reaches the node's own tree.
    ping = "/proc/sys/net/ipv4/ping_group_range"
    run(["ip", "netns", "exec", name, "sh", "-c", f"echo 0 2147483647 >{ping}"])
    run(
        ["ip", "-netns", name, "-batch", "-"],
        text="link set lo up\n"
        f"address add {node.address}/24 dev eth0\n"
        f"address add {node.address6}/64 dev eth0 nodad\n"
        "link set eth0 up\n"
        f"route add default via {lab.address}\n",
    )


def create_cable(ends: dict[Node, str], network: str) -> None:
    """Join two nodes by a pair of interfaces, each with its node's name for it; it ends with either.

    The network ("10.255.77.") is the first three numbers of its addresses, of which the nodes get 1 and 2.
    """
    (first, near), (second, far) = ((node.unique_name, name) for node, name in ends.items())
    run(["ip", "link", "add", near, "netns", first, "type", "veth", "peer", "name", far, "netns", second])
    for number, (name, interface) in enumerate(((first, near), (second, far)), 1):
        run(["ip", "-netns", name, "address", "add", f"{network}{number}/24", "dev", interface])
        run(["ip", "-netns", name, "link", "set", interface, "up"])


def remove_node(node: Node) -> None:
    """Remove what there is of a node's network."""
    _remove_link(node.unique_name)
    _remove_namespace(node.unique_name)


def remove_lab(lab: Lab) -> None:
    """Remove everything of a lab's network, whatever state an earlier run has left it in."""
    ours = re.compile(rf"{lab.name}-gpu\d+")
    for link in _ip("link", "show"):
        if ours.fullmatch(link["ifname"]):
            _remove_link(link["ifname"])
    for namespace in namespaces(lab):
        _remove_namespace(namespace)
    _remove_link(lab.bridge)
    run(["nft", "-f", "-"], text=f"table inet {lab.nft_table}\ndelete table inet {lab.nft_table}\n")
    # `ip netns` keeps its directory mounted; the last one out unmounts it.
    if _NAMESPACES.is_mount() and not any(_NAMESPACES.iterdir()):
        run(["umount", str(_NAMESPACES)])


def namespaces(lab: Lab) -> list[str]:
    """Names of the lab's network namespaces."""
    if not _NAMESPACES.is_dir():
        return []
    return sorted(
        path.name for path in _NAMESPACES.iterdir() if re.fullmatch(rf"{lab.name}-gpu\d+", path.name)
    )


def _remove_link(name: str) -> None:
    if Path("/sys/class/net", name).exists():
        run(["ip", "link", "delete", name])


def _remove_namespace(name: str) -> None:
    if (_NAMESPACES / name).exists():
        run(["ip", "netns", "delete", name])


def _ip(*arguments: str) -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = json.loads(run(["ip", "-json", *arguments]) or "[]")
    return result


def name_servers() -> str:
    """The host's resolv.conf, as it is good for a node.

    Raises:
        LabError: the host only names servers on its own loopback, which no node can reach.
    """
    # systemd-resolved keeps the servers behind its loopback stub in the second file.
    for path in (Path("/etc/resolv.conf"), Path("/run/systemd/resolve/resolv.conf")):
        if not path.exists():
            continue
        text = path.read_text()
        servers = re.findall(r"^\s*nameserver\s+(\S+)", text, re.MULTILINE)
        if any(not ipaddress.ip_address(server.split("%")[0]).is_loopback for server in servers):
            return text
    raise LabError(
        "The nodes need a name server that they can reach, and /etc/resolv.conf names only loopback ones; "
        "add a line `nameserver ADDRESS` with an address on the network."
    )
