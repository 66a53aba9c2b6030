"""Which addresses the fleet has: those of the inventory, and those that its names stand for."""

import socket
from typing import Any

import pytest

from temper.plan.fleet_addresses import fleet, resolve
from tests.unit.each import each

KNOWN = {"gpu01.example.com": ["192.0.2.1", "2001:db8::1"], "gpu02": ["192.0.2.2"], "here": ["127.0.1.1"]}


@pytest.fixture(autouse=True)
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name service with known entries; asking the real one would be the machine's answer."""

    def getaddrinfo(name: str, *_: Any, **__: Any) -> list[Any]:
        if name not in KNOWN:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(0, 0, 0, "", (address, 0)) for address in KNOWN[name]]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


@each(
    ([("gpu01", "192.0.2.1"), ("gpu02", "192.0.2.2")], ["192.0.2.1", "192.0.2.2"]),
    ([("gpu01.example.com", ""), ("gpu02", "")], ["192.0.2.1", "192.0.2.2", "2001:db8::1"]),
    ([("a", "gpu02"), ("b", "2001:db8::b")], ["192.0.2.2", "2001:db8::b"]),
    ([("198.51.100.1", "192.0.2.1"), ("gpu02", "")], ["192.0.2.1", "192.0.2.2", "198.51.100.1"]),
    ([], []),
)
def test_addresses_are_taken_and_names_are_looked_up(
    nodes: list[tuple[str, str]], addresses: list[str]
) -> None:
    assert fleet(nodes) == {"addresses": addresses, "unknown": []}


@each(("nobody", ""), ("here", ""), ("x" * 70, ""), ("a", "127.0.0.1"))
def test_name_that_no_other_node_can_be_reached_by_is_unknown(name: str, host: str) -> None:
    assert fleet([(name, host), ("gpu02", "")])["unknown"] == [name]


@each(
    ("203.0.113.1", " (203.0.113.1, as 2 nodes have)"),
    ("127.0.0.1", ""),
    ("gpu01.example.com", " (192.0.2.1, 2001:db8::1, as 2 nodes have)"),
)
def test_nodes_behind_one_address_are_unknown_and_the_address_is_said(shared: str, said: str) -> None:
    """It is a gateway's, or the near end of tunnels: no node sends from it."""
    nodes = [("a", shared), ("b", shared), ("gpu02", "")]
    assert fleet(nodes)["unknown"] == [f"a{said}", f"b{said}"]


@each(("", []), ("127.0.0.1", ["127.0.0.1"]))
def test_single_node_has_no_fleet_to_lose(host: str, addresses: list[str]) -> None:
    assert fleet([("nobody", host)]) == {"addresses": addresses, "unknown": []}


@each((1, {"192.0.2.2"}), (2, set()))
def test_name_service_that_is_out_of_order_is_asked_once_more(
    failures: int, addresses: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, left = socket.getaddrinfo, [socket.gaierror(socket.EAI_AGAIN, "try again")] * failures

    def getaddrinfo(*arguments: Any, **options: Any) -> Any:
        if left:
            raise left.pop()
        return answer(*arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    assert resolve("gpu02") == addresses
