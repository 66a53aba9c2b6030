"""NCCL's settings and thread counts of a node."""

from __future__ import annotations

from typing import Any

import pytest

from planning.node_plan import NodePlan
from planning.role_variables import role_variables
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


def interface(name: str, *addresses: str, up: bool = True, default_route: bool = False) -> dict[str, Any]:
    return {"name": name, "addresses": list(addresses), "up": up, "default_route": default_route, "mtu": 1500}


@pytest.mark.parametrize(
    ("interfaces", "expected"),
    [
        ([interface("mgmt", "192.0.2.1", default_route=True), interface("fab", "198.51.100.7")], "=fab"),
        ([interface("a"), interface("mgmt", "192.0.2.1", default_route=True)], "=mgmt"),
        ([interface("down", "198.51.100.7", up=False), interface("up", default_route=True)], "=up"),
        ([interface("a", "192.0.2.1")], None),
        ([], None),
    ],
)
def test_nccl_uses_the_interface_of_the_inventory_address(
    interfaces: list[dict[str, Any]], expected: str | None
) -> None:
    nccl = plan(node(interfaces=interfaces), address="198.51.100.7")["environment"]["nccl"]
    assert nccl.get("NCCL_SOCKET_IFNAME") == expected


def test_a_host_name_in_the_inventory_leads_to_the_default_route() -> None:
    assert plan(address="gpu01.example.org")["environment"]["nccl"] == {"NCCL_SOCKET_IFNAME": "=eth0"}


def test_an_address_of_ipv6_may_be_written_otherwise_than_the_node_does() -> None:
    facts = node(interfaces=[interface("a", "192.0.2.1", default_route=True), interface("b", "2001:db8::7")])
    nccl = plan(facts, address="2001:0DB8:0::7")["environment"]["nccl"]
    assert nccl == {"NCCL_SOCKET_IFNAME": "=b"}


@pytest.mark.parametrize("chosen", ["=ib0", "ib", "=ib1,ib0", "^ib1", "=lo", "^=docker0"])
def test_the_interface_may_be_chosen(chosen: str) -> None:
    facts = node(interfaces=[interface("eth0", "192.0.2.7"), interface("ib0", "198.51.100.7", up=False)])
    found = plan(facts, address="192.0.2.7", compute_environment_nccl_socket_ifname=chosen)
    assert found["environment"]["nccl"] == {"NCCL_SOCKET_IFNAME": chosen}
    assert found["problems"] == []


@pytest.mark.parametrize("chosen", ["ib0", "=eth", "=ib0,=eth0", "True"])
@pytest.mark.parametrize("variable", ["nccl_socket_ifname", "nccl"])
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


@pytest.mark.parametrize(
    ("device_ids", "physical", "threads"),
    [([L4], 32, 32), ([H100] * 8, 96, 12), ([H100] * 8, 6, 1), (["ffff"] * 4, 32, 8), ([], 32, 32)],
)
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


@pytest.mark.parametrize("name", ["../etc/passwd", "a b", "gpu.slice", ""])
def test_a_service_without_a_services_name_is_refused(name: str) -> None:
    found = plan(compute_environment_services=["triton", name, "hub@1.service"])
    assert [
        text for text in found["problems"] if "compute_environment_services" in text and repr(name) in text
    ]
    assert len(found["problems"]) == 1


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("nccl", {"NCCL_IB_DISABLE": True}, "write 1"),
        ("nccl", {"NCCL_IB_TC": None}, "NCCL_IB_TC"),
        ("nccl", {"NCCL_IB_TC": "1\nNCCL_DEBUG=INFO"}, "one line"),
        ("nccl", {"NCCL IB": 1}, "NCCL IB"),
        ("nccl_socket_ifname", "eth0 eth1", "commas"),
        ("omp_num_threads", -3, "1 or more"),
    ],
)
def test_what_no_job_could_read_is_refused(name: str, value: object, words: str) -> None:
    (problem,) = role_variables({f"compute_environment_{name}": value}, specs())["problems"]
    assert f"compute_environment_{name}" in problem
    assert words in problem
