"""What a node reports, whatever it is: a plan of its own or a refusal in a sentence, and printable words."""

import json
import math
from typing import Any

import pytest

from temper.base.nodes import printable
from temper.plan.convert import MOST_CHARACTERS, MOST_ITEMS
from temper.plan.facts import NodeFacts
from temper.plan.preflight import preflight_plan, preview_arguments
from tests.unit.compliance.fleets import KNOWN, VARIABLES
from tests.unit.each import each
from tests.unit.planning_nodes import node

ESCAPES = "\x1b]0;owned\x07\x9b31m\u202e\ud800"
STRANGE: list[Any] = [
    None, True, -1, 1.5, 10**400, math.inf, math.nan, "", ESCAPES, "x" * (MOST_CHARACTERS + 1), [], {}, [[]],
    ["x"] * (MOST_ITEMS + 1), {"": {}}, "../x", "{{ x }}", "0-184467440", "192.0.2.0/24", "::1%eth0",
]  # fmt: skip


def planned(facts: Any, **more: Any) -> dict[str, Any]:
    return preflight_plan({"ansible_facts": {"temper": facts}}, VARIABLES, KNOWN, **more)


def with_value(value: Any, path: tuple[Any, ...], strange: Any) -> Any:
    if not path:
        return strange
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = with_value(value[path[0]], path[1:], strange)
    return copy


FACTS = node(
    nvidia=node()["nvidia"] | {"compute_processes": ["python"]},
    pci=[{**one, "driver": ""} for one in node()["pci"]],
)
HONEST = planned(FACTS)


@each(None, 5, [], "x", {}, {"os": 5})
def test_facts_that_are_none_are_a_refusal(facts: Any) -> None:
    assert planned(facts)["problems"]


def test_a_users_words_in_facts_do_not_have_the_node_refused() -> None:
    """A process names itself."""
    found = planned(with_value(FACTS, ("nvidia", "compute_processes"), [ESCAPES] * 1000))
    assert not [problem for problem in found["problems"] if "expected" in problem]


@each(
    (("memory_bytes",), -1),
    (("memory_bytes",), 2**70),
    (("cpu", "logical"), 10**9),
    (("cpu", "numa_nodes"), -3),
    (("interfaces", 0, "name"), "eth0/../x"),
    (("interfaces", 0, "addresses"), ["192.0.2.0/8"]),
    (("interfaces", 0), FACTS["interfaces"][0] | {"kind": "tun\nno problem"}),
    (("interfaces", 0), FACTS["interfaces"][0] | {"networks": ["192.0.2.7/8"]}),
    (("pci", 0, "address"), "../../etc"),
    (("pci", 0, "device_id"), "2330x"),
    (("pci", 0, "driver"), "vfio-pci\nno problem"),
)
def test_a_value_that_no_machine_has_is_refused(place: tuple[Any, ...], value: Any) -> None:
    with pytest.raises(ValueError, match=r"node_facts|does not appear to be|has host bits"):
        NodeFacts.from_dict(with_value(FACTS, place, value))


def test_a_node_that_can_be_planned_has_its_transaction_simulated() -> None:
    assert preview_arguments(HONEST)


def test_what_one_node_says_of_its_addresses_changes_no_other_plan() -> None:
    """The fleet's addresses are those of the inventory; a node's own word is in no other firewall."""
    lying = with_value(FACTS, ("interfaces", 0, "addresses"), ["192.0.2.200", "::"])
    assert "192.0.2.200" not in json.dumps(planned(lying)["roles"]["firewall"])


@each(*STRANGE)
@each("transaction", "resolved", "problems", "refused", "msg")
def test_a_preview_of_any_form_is_a_plan_or_a_refusal(key: str, strange: Any) -> None:
    fact = planned(FACTS, preview={"transaction": {}, "resolved": {}, "problems": [], key: strange})
    assert all(printable(text) == text for text in (fact["text"], *fact["problems"]))


@each("a" * 251, "a/b", ".x")
def test_a_name_that_no_file_can_have_is_refused(name: str) -> None:
    variables = VARIABLES | {"inventory_hostname": name}
    fact = preflight_plan({"ansible_facts": {"temper": FACTS}}, variables, KNOWN)
    assert any("cannot be a node's name" in problem for problem in fact["problems"])


@each(math.inf, -math.inf, math.nan, 10**4400, "9" * 5000)
@each(
    "gpu_validation_hours",
    "os_tuning_nofile",
    "os_tuning_sysctls",
    "gpu_settings_clocks",
    "firewall_ssh_ports",
)
def test_a_variable_that_is_no_finite_number_is_a_problem_in_a_sentence(name: str, value: Any) -> None:
    for given in (value, {"x": value}, [value]):
        variables = VARIABLES | {name: given}
        fact = preflight_plan({"ansible_facts": {"temper": FACTS}}, variables, KNOWN)
        assert any(problem.startswith(name) and len(problem) < 500 for problem in fact["problems"])
