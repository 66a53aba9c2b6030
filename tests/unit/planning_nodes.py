"""Nodes as node_facts reports them, and their plans from the real tables."""

from typing import Any

from temper.plan.facts import NodeFacts
from temper.plan.model import Target
from temper.plan.plan import node_plan
from temper.plan.role_variables import role_variables, typed_variables
from temper.plan.tables import Tables, load_tables
from tests.unit.tables import ROOT, specs, tables
from tools.bare_node import PYTHONS, bare_node, pci

TABLES = tables()
DEFAULTS = role_variables({}, specs())["values"]

AUDIO, GPU, DISPLAY, NVSWITCH = "0403", "0302", "0300", "0680"
H100, L4, V100, P100, B200, SWITCH = "2330", "27b8", "1db5", "15f8", "2901", "22a3"


def gpus(*device_ids: str) -> list[dict[str, str]]:
    return pci(*((device_id, GPU) for device_id in device_ids))


def nvidia(**changes: Any) -> dict[str, Any]:
    """The state of a node without a driver."""
    return {**bare_node()["nvidia"], **changes}


def node(**changes: Any) -> dict[str, Any]:
    """A bare Debian 12 server with one L4, as node_facts reports it."""
    interface = {
        "name": "eth0",
        "addresses": ["192.0.2.7"],
        "up": True,
        "default_route": True,
        "mtu": 1500,
    }
    return bare_node(**{"pci": gpus(L4), "interfaces": [interface], **changes})


def plan(
    facts: dict[str, Any] | None = None,
    address: str = "",
    data: dict[str, Any] = TABLES,
    today: str = "",
    mok_sha256: str = "",
    **values: Any,
) -> dict[str, Any]:
    """Plan a node with the roles' defaults and the variables given."""
    return node_plan(
        NodeFacts.from_dict(facts or node()),
        load_tables(ROOT / "data") if data is TABLES else Tables.from_dict(data),
        typed_variables(DEFAULTS | values),
        Target(address=address, today=today, mok_sha256=mok_sha256),
    ).as_dict()


def problem(facts: dict[str, Any] | None = None, **values: Any) -> str:
    """The only problem of a node."""
    (found,) = plan(facts, **values)["problems"]
    return str(found)


def assert_says(text: str, *facts: str) -> None:
    """A message has these facts: the node's part, the values, the remedy. Its words are its own."""
    assert [fact for fact in facts if fact not in text] == [], text


def settled(**changes: Any) -> dict[str, Any]:
    """The node after the stack was installed."""
    return node(packages=plan()["packages"], **changes)


def system(name: str, version: str, **changes: Any) -> dict[str, Any]:
    """A node with another operating system, and its Python."""
    os = {"id": name, "version_id": version, "codename": "", "pretty_name": f"{name} {version}"}
    python = PYTHONS.get(f"{name}-{version}", "3.12")
    return node(**{"os": os, "pythons": [python]} | changes)
