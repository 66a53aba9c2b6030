"""Which interface NCCL gets on machines of many kinds, and where the plan is in doubt."""

from typing import Any

from ansible.module_utils.temper.access.network_interfaces import GUESTS

from temper.plan.facts import Interface
from temper.plan.fit_links import GUEST_NAMES, fit_link
from tests.unit.each import each
from tests.unit.planning_nodes import node, plan

VARIABLES = ("compute_environment_fleet_networks", "compute_environment_nccl_socket_ifname")
PEERS = "firewall_peer_addresses"


def link(name: str, network: str = "", gbit_s: float | None = None, **more: Any) -> dict[str, Any]:
    """An interface with the seventh address of a network of 24 bits."""
    addresses, networks = ([f"{network}.7"], [f"{network}.0/24"]) if network else ([], [])
    return {
        "name": name,
        "mtu": 1500,
        "up": True,
        "addresses": addresses,
        "networks": networks,
        "default_route": False,
        "speed_mbit_s": gbit_s and int(gbit_s * 1000),
    } | more


OUT: dict[str, Any] = {"default_route": True}
NIC: dict[str, Any] = {"driver": "ice"}
ROCE: dict[str, Any] = {"driver": "mlx5_core", "rdma": True}
# Each machine is reached by its interface with the address 10.0.0.7.
MGMT = link("eno1", "10.0.0", 1, **OUT, **NIC)
LAN = link("eno1", "10.1.0", 100, **OUT, **NIC)
FAST = link("ens1f0", "10.50.0", 200, **NIC)
IB = link("ib0", "10.60.0", 400, kind="infiniband", **ROCE)

#: Machines, the interface that NCCL gets, and the network or the fault that the warning names.
MACHINES: dict[str, tuple[list[dict[str, Any]], str, str]] = {
    "one": ([link("eth0", "10.0.0", 1, **OUT, **NIC)], "eth0", ""),
    "two that are equal": (
        [link("a", "10.0.0", 25, **OUT, **NIC), link("b", "10.1.0", 25, **NIC)],
        "a",
        "",
    ),
    "one that is twice as fast": (
        [link("a", "10.0.0", 25, **OUT, **NIC), link("b", "10.1.0", 50, **NIC)],
        "a",
        "",
    ),
    "slow management": ([MGMT, FAST], "eno1", "10.50.0.0/24"),
    "the fast one is down": ([MGMT, FAST | {"up": False}], "eno1", ""),
    "the fast one has no cable": ([MGMT, FAST | {"carrier": False}], "eno1", ""),
    "the fast one has no address": ([MGMT, link("ens1f0", gbit_s=200, **NIC)], "eno1", ""),
    "speeds are unknown": ([MGMT | {"speed_mbit_s": None}, FAST | {"speed_mbit_s": None}], "eno1", ""),
    "the other's speed is unknown": ([MGMT, FAST | {"speed_mbit_s": None}], "eno1", ""),
    "Wi-Fi beside a cable": ([link("wlP9s9", "10.0.0", **OUT, driver="mt7925e"), FAST], "ens1f0", "radio"),
    "Wi-Fi alone": ([link("wlan0", "10.0.0", **OUT, driver="iwlwifi")], "wlan0", "radio"),
    "L2TP": ([link("l2tpeth0", "10.0.0"), LAN], "eno1", "tunnel"),
    "a mesh": ([link("bat0", "10.0.0", kind="batadv"), LAN], "eno1", "tunnel"),
    "InfiniBand beside Ethernet": ([MGMT, IB], "eno1", ""),
    "RoCE beside Ethernet": ([MGMT, link("ens2", "10.50.0", 200, **ROCE)], "eno1", ""),
    "RoCE by a VLAN": (
        [MGMT, link("ens2", gbit_s=200, **ROCE), link("ens2.5", "10.50.0", 200, kind="vlan", below="ens2")],
        "eno1",
        "",
    ),
    "a bond": (
        [
            link("bond0", "10.0.0", 50, kind="bond", **OUT),
            link("a", gbit_s=25, master="bond0", **NIC),
            link("b", gbit_s=25, master="bond0", **NIC),
        ],
        "bond0",
        "",
    ),
    "a fast bond beside": (
        [MGMT, link("bond0", "10.50.0", 50, kind="bond"), link("a", gbit_s=25, master="bond0", **NIC)],
        "eno1",
        "10.50.0.0/24",
    ),
    "a VLAN of the same card": (
        [link("a", gbit_s=100, **NIC), link("a.5", "10.0.0", 100, kind="vlan", below="a", **OUT)],
        "a.5",
        "",
    ),
    "a bridge over a card": (
        [link("vmbr0", "10.0.0", 25, kind="bridge"), link("a", gbit_s=25, master="vmbr0", **NIC)],
        "vmbr0",
        "",
    ),
    "containers beside": (
        [
            link("eth0", "10.0.0", 1, **OUT, **NIC),
            link("docker0", "172.17.0", 10, kind="bridge"),
            link("lab", "172.18.0", 10, kind="bridge"),
            link("veth1", "172.19.0", 10, kind="veth", master="lab"),
        ],
        "eth0",
        "",
    ),
    "a container": ([link("host0", "10.0.0", 10, kind="veth", **OUT)], "host0", ""),
    "Tailscale": ([link("tailscale0", "10.0.0", kind="tun", mtu=1280), LAN], "eno1", "10.1.0.0/24"),
    "Tailscale, by name": ([link("tailscale0", "10.0.0"), LAN], "eno1", "tunnel"),
    "WireGuard with the default route": (
        [link("vpn", "10.0.0", kind="wireguard", **OUT), LAN | {"default_route": False}],
        "eno1",
        "tunnel",
    ),
    "VXLAN": ([link("overlay", "10.0.0", 100, kind="vxlan"), LAN], "eno1", "tunnel"),
    "a VLAN in a tunnel": (
        [link("t0", kind="tun"), link("t0.5", "10.0.0", kind="vlan", below="t0"), LAN],
        "eno1",
        "tunnel",
    ),
    "a tunnel, a slow and a fast one": (
        [link("wg0", "10.0.0", kind="wireguard"), link("eno1", "10.1.0", 1, **OUT, **NIC), FAST],
        "eno1",
        "10.50.0.0/24",
    ),
    "a tunnel and what is down": (
        [link("wg0", "10.0.0", kind="wireguard"), LAN | {"carrier": False}],
        "wg0",
        "tunnel",
    ),
    "a tunnel beside what leads nowhere": (
        [link("wg0", "10.0.0", kind="wireguard"), link("kube-x", "10.96.0", kind="dummy"), LAN],
        "eno1",
        "tunnel",
    ),
    "a tunnel and only what leads nowhere": (
        [link("wg0", "10.0.0", kind="wireguard"), link("svc", "10.96.0", kind="dummy")],
        "wg0",
        "tunnel",
    ),
    "no cable in it": ([MGMT | {"carrier": False}, link("b", "10.1.0", 1, **NIC)], "b", "carrier"),
    "an address on a dummy": ([link("d0", "10.0.0", kind="dummy"), LAN], "d0", ""),
    "a BMC over USB": ([link("enx02", "10.0.0", driver="cdc_ether"), LAN], "eno1", "BMC"),
    "a BMC, by name": ([link("idrac", "10.0.0"), LAN], "eno1", "BMC"),
    "a card that is named by its MAC": ([link("enx02", "10.0.0", 100, **OUT, **NIC), LAN], "enx02", ""),
    "a BMC by a link-local address": (
        [link("bmc0", "169.254.3", driver="cdc_ether"), LAN],
        "eno1",
        "",
    ),
    "Docker's bridge": ([link("docker0", "10.0.0", kind="bridge"), LAN], "eno1", "containers"),
    "a bridge without a card": ([link("lab", "10.0.0", kind="bridge"), LAN], "eno1", "containers"),
    "Cilium's": ([link("cilium_host", "10.0.0", 10, kind="veth"), LAN], "eno1", "containers"),
    "routed on the host": (
        [
            link("a", gbit_s=100, addresses=["fe80::1"], **OUT, **NIC),
            link("b", gbit_s=100, addresses=["fe80::2"], **OUT, **NIC),
        ],
        "a",
        "link-local",
    ),
    "nothing": ([], "", ""),
}


def interface_warnings(found: dict[str, Any]) -> list[str]:
    return [text for text in found["warnings"] if any(name in text for name in VARIABLES)]


@each(*MACHINES.values())
def test_what_nccl_gets_and_what_is_in_doubt(
    interfaces: list[dict[str, Any]], expected: str, said: str
) -> None:
    found = plan(node(interfaces=interfaces), address="10.0.0.7")
    assert found["environment"]["nccl"].get("NCCL_SOCKET_IFNAME", "=") == f"={expected}"
    assert found["problems"] == []
    warnings = interface_warnings(found)
    assert len(warnings) == bool(said)
    assert all(said in text for text in warnings)


def test_a_circle_among_very_many_interfaces_comes_to_an_end() -> None:
    """A node that somebody has taken over reports what it likes; squares of their number would take hours."""
    circle = [link("a", "10.0.0", kind="vlan", below="b"), link("b", kind="vlan", below="a")]
    many = [link(f"v{number}", kind="vlan", below=f"v{number - 1}", master="br") for number in range(20_000)]
    interfaces = [Interface(**one) for one in (*circle, *many)]
    assert fit_link(interfaces, interfaces[0], rdma=True).interface == interfaces[0]


@each(
    ("fleet_networks", ["10.0.0.0/24"]),
    ("nccl_socket_ifname", "=wg0"),
    ("nccl", {"NCCL_SOCKET_IFNAME": "=wg0"}),
)
def test_what_the_inventory_names_is_obeyed_without_a_doubt(variable: str, value: Any) -> None:
    facts = node(interfaces=[link("wg0", "10.0.0", kind="wireguard"), LAN])
    found = plan(facts, address="10.0.0.7", **{f"compute_environment_{variable}": value})
    assert found["environment"]["nccl"]["NCCL_SOCKET_IFNAME"] == "=wg0"
    assert interface_warnings(found) == []


@each({"NCCL_IB_DISABLE": 1}, {"NCCL_NET": "Socket"})
def test_a_fast_adapter_is_in_doubt_where_data_goes_by_sockets(nccl: dict[str, Any]) -> None:
    (said,) = interface_warnings(
        plan(node(interfaces=[MGMT, IB]), address="10.0.0.7", compute_environment_nccl=nccl)
    )
    assert "10.60.0.0/24" in said


def test_a_role_that_is_taken_back_is_in_no_doubt() -> None:
    found = plan(node(interfaces=[MGMT, FAST]), address="10.0.0.7", compute_environment_state="absent")
    assert interface_warnings(found) == []


@each(
    ({}, True),
    ({PEERS: ["10.1.0.0/16"]}, False),
    ({PEERS: ["10.0.0.0/24"]}, True),
    ({"firewall_trusted_interfaces": ["en*"]}, False),
    ({"firewall_rules": [{"name": "jobs", "ports": ["1-65535"], "sources": ["10.2.0.9"]}]}, True),
    ({"firewall_state": "absent"}, False),
    ({"compute_environment_nccl_socket_ifname": "=wg0"}, False),
    ({"compute_environment_nccl_socket_ifname": "=eno1"}, True),
    ({"compute_environment_nccl_socket_ifname": "=eno1,wg0"}, False),
)
def test_a_firewall_for_the_tunnels_addresses_closes_the_interface_that_nccl_gets(
    values: dict[str, Any], closed: bool
) -> None:
    facts = node(interfaces=[link("wg0", "10.0.0", kind="wireguard"), LAN])
    warnings = plan(facts, address="10.0.0.7", **values)["warnings"]
    said = [text for text in warnings if PEERS in text]
    assert len(said) == closed
    assert all("eno1" in text and "10.1.0.0/24" in text for text in said)


def test_the_firewalls_guests_are_guests_here() -> None:
    assert set(GUESTS) <= set(GUEST_NAMES)
