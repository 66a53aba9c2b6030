"""NCCL's settings and thread counts of a node."""

from typing import Any

from temper.plan.node_plan import NodePlan
from temper.plan.role_variables import role_variables
from tests.unit.each import each
from tests.unit.planning_nodes import (
    H100,
    L4,
    assert_says,
    gpus,
    node,
    plan,
    problem,
    system,
)
from tests.unit.tables import specs


def interface(
    name: str, *addresses: str, up: bool = True, default_route: bool = False, **more: Any
) -> dict[str, Any]:
    found = {"name": name, "addresses": list(addresses), "up": up, "default_route": default_route}
    return found | {"mtu": 1500} | more


MGMT = interface("mgmt", "192.0.2.1", default_route=True)


@each(
    ([MGMT, interface("fab", "198.51.100.7")], "198.51.100.7", "=fab"),
    ([interface("a"), MGMT], "198.51.100.7", "=mgmt"),
    ([MGMT], "gpu01.example.org", "=mgmt"),
    (
        [interface("down", "198.51.100.7", up=False), interface("up", default_route=True)],
        "198.51.100.7",
        "=up",
    ),
    ([MGMT, interface("b", "2001:db8::7")], "2001:0DB8:0::7", "=b"),
    ([interface("a", "192.0.2.1")], "198.51.100.7", None),
    ([], "198.51.100.7", None),
)
def test_nccl_uses_the_interface_of_the_inventory_address_or_of_the_default_route(
    interfaces: list[dict[str, Any]], address: str, expected: str | None
) -> None:
    nccl = plan(node(interfaces=interfaces), address=address)["environment"]["nccl"]
    assert nccl == ({"NCCL_SOCKET_IFNAME": expected} if expected else {})


@each("=ib0", "ib", "=ib1,ib0", "^ib1", "=lo", "^=docker0")
def test_the_interface_may_be_chosen(chosen: str) -> None:
    facts = node(interfaces=[interface("eth0", "192.0.2.7"), interface("ib0", "198.51.100.7", up=False)])
    found = plan(facts, address="192.0.2.7", compute_environment_nccl_socket_ifname=chosen)
    assert found["environment"]["nccl"] == {"NCCL_SOCKET_IFNAME": chosen}
    assert found["problems"] == []


@each("ib0", "=eth", "=ib0,=eth0", "True")
@each("nccl_socket_ifname", "nccl")
def test_an_interface_that_is_not_there_is_refused(variable: str, chosen: str) -> None:
    value: Any = {"NCCL_SOCKET_IFNAME": chosen} if variable == "nccl" else chosen
    assert_says(
        problem(**{f"compute_environment_{variable}": value}),
        f"compute_environment_{variable} ",
        chosen,
        "this node has eth0",
    )


def test_a_number_of_nccl_is_text_as_in_its_file() -> None:
    found = plan(compute_environment_nccl={"NCCL_IB_TC": 106})
    assert found["environment"]["nccl"]["NCCL_IB_TC"] == "106"
    assert NodePlan.from_dict(found).environment.nccl["NCCL_IB_TC"] == "106"


def test_further_nccl_variables_win() -> None:
    extra = {"NCCL_SOCKET_IFNAME": "eth", "NCCL_DEBUG": "WARN"}
    assert plan(compute_environment_nccl=extra)["environment"]["nccl"] == extra


@each(([L4], 32, 32), ([H100] * 8, 96, 12), ([H100] * 8, 6, 1), (["ffff"] * 4, 32, 8), ([], 32, 32))
def test_threads_are_cores_for_each_gpu(device_ids: list[str], physical: int, threads: int) -> None:
    facts = node(pci=gpus(*device_ids), cpu={"logical": 2 * physical, "physical": physical, "numa_nodes": 1})
    assert plan(facts)["environment"]["omp_num_threads"] == threads


def test_threads_may_be_chosen() -> None:
    assert plan(compute_environment_omp_num_threads=3)["environment"]["omp_num_threads"] == 3


def test_variables_for_debugging_are_told_and_kept() -> None:
    found = plan(compute_environment_nccl={"NCCL_PROTO": "Simple", "NCCL_ALGO": "Ring", "NCCL_IB_TC": 106})
    warnings = [text for text in found["warnings"] if "compute_environment_nccl" in text]
    assert len(warnings) == 1
    assert "NCCL_ALGO, NCCL_PROTO:" in warnings[0]
    assert "NCCL_IB_TC" not in warnings[0]
    assert found["environment"]["nccl"]["NCCL_ALGO"] == "Ring"
    assert found["problems"] == []
    quiet = plan(compute_environment_nccl={"NCCL_IB_TC": 106, "NCCL_DEBUG": "WARN"})
    assert [text for text in quiet["warnings"] if "compute_environment" in text] == []


def test_services_are_refused_where_systemd_passes_over_their_thread_count() -> None:
    old = plan(system("rhel", "8.10"), compute_environment_services=["triton"])
    assert [text for text in old["problems"] if "systemd 248, and rhel-8 has 239" in text]
    new = plan(system("rhel", "9.6"), compute_environment_services=["triton"])
    assert not [text for text in new["problems"] if "compute_environment_services" in text]


@each("../etc/passwd", "a b", "gpu.slice", "")
def test_a_service_without_a_services_name_is_refused(name: str) -> None:
    found = plan(compute_environment_services=["triton", name, "hub@1.service"])
    assert [
        text for text in found["problems"] if "compute_environment_services" in text and repr(name) in text
    ]
    assert len(found["problems"]) == 1


@each(
    ("nccl", {"NCCL_IB_DISABLE": True}, "write 1"),
    ("nccl", {"NCCL_IB_TC": None}, "NCCL_IB_TC"),
    ("nccl", {"NCCL_IB_TC": "1\nNCCL_DEBUG=INFO"}, "one line"),
    ("nccl", {"NCCL IB": 1}, "NCCL IB"),
    ("nccl_socket_ifname", "eth0 eth1", "commas"),
    ("omp_num_threads", -3, "1 or more"),
)
def test_what_no_job_could_read_is_refused(name: str, value: object, words: str) -> None:
    (problem,) = role_variables({f"compute_environment_{name}": value}, specs())["problems"]
    assert f"compute_environment_{name}" in problem
    assert words in problem


# ---------------------------------------------------------------- the fleet's networks


MANAGEMENT, FABRIC, SIXTH = "192.0.2.0/24", "10.1.0.0/16", "fd00:1::/64"


def link(name: str, *addresses: str, gbit_s: float | None = None, **more: Any) -> dict[str, Any]:
    return interface(name, *addresses, speed_mbit_s=gbit_s and int(gbit_s * 1000), **more)


ETH0 = link("eth0", "192.0.2.7", gbit_s=25, default_route=True)


def joined(*interfaces: dict[str, Any], networks: list[str], **values: Any) -> dict[str, Any]:
    """The plan of a node with these interfaces, whose fleet is joined by these networks."""
    facts = node(interfaces=list(interfaces))
    return plan(facts, address="192.0.2.7", compute_environment_fleet_networks=networks, **values)


SLOW, FAST, STORAGE = (
    link(name, address, gbit_s=speed)
    for name, address, speed in (("a", "10.1.0.7", 100), ("b", "10.1.1.7", 400), ("s", "10.9.0.7", 800))
)
ALIKE = link("zz", "10.1.0.7", gbit_s=25)
RAILS = [link(name, f"10.1.0.{place}", gbit_s=400) for place, name in enumerate(("r2", "r1"))]


@each(
    # The fastest one in the networks, and not outside of them.
    ([ETH0, SLOW, FAST, STORAGE], [MANAGEMENT, FABRIC], "=b"),
    ([ETH0, link("ib0", "fd00:1::7", "fe80::1", gbit_s=400)], [MANAGEMENT, "fd00:1:0:0::/64"], "=ib0"),
    # An unknown speed is the slowest.
    ([link("a", "10.1.0.7"), ETH0], [FABRIC, MANAGEMENT], "=eth0"),
    # Of equally fast ones, the first network's; in one network the inventory address's, then the first name.
    ([ETH0, ALIKE], [FABRIC, MANAGEMENT], "=zz"),
    ([ETH0, ALIKE], [MANAGEMENT, FABRIC], "=eth0"),
    ([link("a", "192.0.2.8", gbit_s=25), ETH0], [MANAGEMENT], "=eth0"),
    ([ETH0, *RAILS], [FABRIC], "=r1"),
    # One of several may be down.
    ([ETH0, RAILS[0], RAILS[1] | {"up": False}], [FABRIC], "=r2"),
    # Reports without speeds.
    ([interface("eth0", "192.0.2.7"), interface("b", "10.1.0.7")], [FABRIC, MANAGEMENT], "=b"),
)
def test_nccl_uses_the_fastest_interface_in_the_fleets_networks(
    interfaces: list[dict[str, Any]], networks: list[str], expected: str
) -> None:
    found = joined(*interfaces, networks=networks)
    assert (found["problems"], found["environment"]["nccl"]["NCCL_SOCKET_IFNAME"]) == ([], expected)


def test_an_interface_in_two_networks_keeps_its_place_by_the_first() -> None:
    both = link("b", "10.1.0.7", "fd00:1::7", gbit_s=400)
    second = link("a", "fd00:1::8", gbit_s=400)
    found = joined(ETH0, both, second, networks=[FABRIC, SIXTH])["environment"]
    assert found["nccl"]["NCCL_SOCKET_IFNAME"] == "=b"
    assert found["networks"] == {"wanted": [FABRIC, SIXTH], "reached": [FABRIC, SIXTH], "used": FABRIC}
    assert "before a " in found["why"]


@each({"nccl_socket_ifname": "=eth0"}, {"nccl": {"NCCL_SOCKET_IFNAME": "=eth0"}})
def test_an_interface_that_the_inventory_names_wins_over_the_fleets_networks(named: dict[str, Any]) -> None:
    values = {f"compute_environment_{name}": value for name, value in named.items()}
    fast = link("b", "10.1.0.7", gbit_s=400)
    found = joined(ETH0, fast, networks=[MANAGEMENT, FABRIC], **values)
    assert found["environment"]["nccl"]["NCCL_SOCKET_IFNAME"] == "=eth0"
    assert found["environment"]["networks"]["used"] == MANAGEMENT
    assert next(iter(values)) in found["environment"]["why"]
    assert joined(ETH0, networks=["10.7.0.0/16"], **values)["problems"] == []


def test_a_node_in_none_of_the_fleets_networks_is_refused_with_what_it_has() -> None:
    pods = [link(f"cali{number}", "fe80::1") for number in range(99)]
    storage = link("store", "10.9.0.7", "2001:db8::7", gbit_s=100)
    (found,) = joined(ETH0, *pods, storage, networks=[FABRIC, SIXTH])["problems"]
    assert_says(
        found,
        "compute_environment_fleet_networks",
        f"{FABRIC} or {SIXTH}",
        "found eth0 (192.0.2.7), store (10.9.0.7, 2001:db8::7);",
    )


@each(({"up": False}, "is down"), ({"carrier": False}, "has no carrier"))
@each([FABRIC], [MANAGEMENT, FABRIC])
def test_an_interface_that_is_down_is_refused_even_where_another_network_works(
    networks: list[str], state: dict[str, bool], said: str
) -> None:
    (found,) = joined(ETH0, link("b", "10.1.0.7", gbit_s=400, **state), networks=networks)["problems"]
    assert_says(found, "compute_environment_fleet_networks", "b ", "10.1.0.7", FABRIC, said)


def test_what_takes_the_role_back_asks_no_network() -> None:
    found = joined(ETH0, networks=[FABRIC], compute_environment_state="absent")
    assert (found["problems"], found["environment"]["why"]) == ([], "")


@each(
    (["10.1.0.5/16"], ["10.1.0.5/16", "its network is 10.1.0.0/16"]),
    (["fabric"], ["expected a network such as", "'fabric'"]),
    ([""], ["expected a network such as", "''"]),
    ([FABRIC, "10.1.0.5"], ["10.1.0.5", "prefix length"]),
    ([FABRIC, "10.1.2.0/24"], [FABRIC, "10.1.2.0/24", "overlap"]),
    (["fe80::/64"], ["fe80::/64"]),
    (["0.0.0.0/0"], ["0.0.0.0/0"]),
)
def test_what_joins_no_nodes_is_refused(networks: list[str], words: list[str]) -> None:
    (found,) = role_variables({"compute_environment_fleet_networks": networks}, specs())["problems"]
    assert_says(found, "compute_environment_fleet_networks", *words)


def firewalled(**values: Any) -> list[str]:
    fast = link("b", "10.1.0.7", gbit_s=400)
    found = joined(ETH0, fast, networks=[MANAGEMENT, FABRIC], **values)
    return [text for text in found["warnings"] if "firewall_peer_addresses" in text]


def test_a_firewall_that_closes_the_chosen_interface_is_said() -> None:
    (found,) = firewalled()
    assert_says(found, "interface b", FABRIC)
    assert firewalled(firewall_peer_addresses=["192.0.2.0/24"])
    assert any(
        f"interface eth0: name {MANAGEMENT} in firewall_peer_addresses" in text
        for text in joined(ETH0, networks=[MANAGEMENT], firewall_peer_addresses=[FABRIC])["warnings"]
    )


@each(
    {"firewall_state": "absent"},
    {"firewall_peer_addresses": ["192.0.2.0/24", "10.0.0.0/8"]},
    {"firewall_trusted_interfaces": ["b"]},
    {"firewall_rules": [{"name": "jobs", "ports": ["1024-65535"], "sources": [FABRIC]}]},
    {"compute_environment_nccl_socket_ifname": "=eth0"},
)
def test_a_firewall_that_lets_the_nodes_in_by_the_chosen_interface_is_not(values: dict[str, Any]) -> None:
    assert firewalled(**values) == []
