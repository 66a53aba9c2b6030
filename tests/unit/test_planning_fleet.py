"""The plans of a fleet in one document: refused nodes, nodes that differ from their like, no secrets."""

import json
from typing import Any

import pytest

from temper.plan.facts import NodeFacts
from temper.plan.fleet import FleetPlan, grouped
from temper.plan.identity import Node, Twins, machine_of, twins
from temper.plan.preflight import preflight_plan
from tests.unit import planning_nodes
from tests.unit.each import each
from tests.unit.planning_nodes import H100, L4, V100, gpus, node, system
from tests.unit.planning_roles.plans import whole_plan

EIGHT = gpus(*[H100] * 8)


def plan(facts: dict[str, Any] | None = None, **values: Any) -> dict[str, Any]:
    """The fact `preflight_plan` of a node, without what its roles set."""
    return planning_nodes.plan(facts, **values) | {"roles": {}}


def fleet(**plans: Any) -> FleetPlan:
    return FleetPlan.from_dict(plans)


def differing(found: FleetPlan) -> dict[str, dict[str, list[str]]]:
    """What differs in the only cohort: the aspect, and the nodes of each value."""
    (cohort,) = found.as_dict()["cohorts"]
    return {
        entry["what"]: {value["value"]: value["nodes"] for value in entry["values"]}
        for entry in cohort["differences"]
    }


def test_equal_nodes_differ_in_nothing_and_another_system_is_named_once() -> None:
    found = fleet(a=plan(), b=plan())
    assert (differing(found), found.text()) == ({}, "2 of 2 nodes planned")
    assert fleet(a=plan()).text() == "1 of 1 node planned"
    assert differing(fleet(a=plan(), b=plan(system("ubuntu", "22.04")))) == {
        "system": {"debian-12": ["a"], "ubuntu-22.04": ["b"]}
    }


def test_nodes_with_other_gpus_are_not_compared() -> None:
    found = fleet(a=plan(node(pci=EIGHT)), b=plan(node(pci=gpus(V100))), c=plan(node(pci=gpus(L4, L4))))
    assert [cohort["name"] for cohort in found.as_dict()["cohorts"]] == [
        "1x Tesla V100 SXM2 32 GB, x86_64",
        "2x L4, x86_64",
        "8x H100 SXM 80 GB, x86_64",
    ]
    assert found.text() == "3 of 3 nodes planned"


def test_another_stack_is_named_once_with_what_is_none_of_its_consequences() -> None:
    other = plan(nvidia_stack_name="r595-cuda13.2", compute_environment_omp_num_threads=3)
    assert differing(fleet(a=plan(), b=plan(), c=other)) == {
        "stack": {"r580-cuda13.0": ["a", "b"], "r595-cuda13.2": ["c"]},
        "environment: OMP_NUM_THREADS": {"32": ["a", "b"], "3": ["c"]},
    }


def test_one_package_of_one_node_is_named() -> None:
    odd = plan()
    odd["packages"] = odd["packages"] | {"libnccl2": "2.27.5-1"}
    del odd["packages"]["nvidia-modprobe"]
    assert differing(fleet(a=plan(), b=odd)) == {
        "packages: libnccl2": {"2.27.5-1": ["b"], "2.28.9-1+cuda13.0": ["a"]},
        "packages: nvidia-modprobe": {"580.178.04-1": ["a"], "absent": ["b"]},
    }


def test_modules_fabric_and_what_is_in_place_are_compared() -> None:
    other = plan(
        node(packages=plan(nvidia_stack_kernel_modules="proprietary")["packages"]),
        nvidia_stack_kernel_modules="proprietary",
    )
    assert differing(fleet(a=plan(), b=other)).keys() == {"modules", "in place"}
    assert "fabric" in differing(fleet(a=plan(), b=plan(nvidia_stack_fabric="nvswitch")))


def test_refused_and_unreachable_nodes_are_in_the_document_by_name() -> None:
    lost = preflight_plan(
        {"unreachable": True, "msg": "timed out"},
        {},
        {"address": "192.0.2.9", "user": "ops", "today": ""},
    )
    found = fleet(a=plan(), lost=lost, refused=plan(nvidia_stack_name="r999"), silent=None)
    document = found.as_dict()
    assert found.text().startswith("1 of 4 nodes planned, 3 not: lost, refused, silent\n")
    assert "cannot be reached" in document["nodes"]["lost"]["problems"][0]
    assert "no stack is named r999" in document["nodes"]["refused"]["problems"][0]
    assert document["nodes"]["silent"]["problems"]


def test_a_fleet_of_refused_nodes_has_a_document() -> None:
    document = fleet(a=plan(nvidia_stack_name="r999"), b=None).as_dict()
    assert document["nodes"].keys() == {"a", "b"}


def test_passwords_in_addresses_are_struck_out() -> None:
    found = plan(nvidia_stack_cuda_repository_url="https://ops:s3cret@mirror.example/cuda")
    found["problems"] = ["https://ops:s3cret@mirror.example/key cannot be fetched"]
    text = json.dumps(fleet(a=found).as_dict())
    assert "s3cret" not in text
    assert "https://***@mirror.example/cuda/debian12/x86_64/" in text


def test_parts_of_a_fleet_that_several_runs_have_planned_are_the_fleet() -> None:
    one, other = whole_plan().as_fact(), plan(compute_environment_omp_num_threads=3)
    facts = {"a": one, "b": other, "c": one, "d": {"problems": ["no GPU"]}}
    whole = FleetPlan.from_dict(json.loads(json.dumps(facts)))
    halves = [
        FleetPlan.from_dict({name: facts[name] for name in names}) for names in (["c", "d"], ["a", "b"])
    ]
    merged = FleetPlan.merged([json.loads(json.dumps(half.part())) for half in halves])
    assert merged.as_dict() == whole.as_dict()
    assert merged.text() == whole.text()


def test_what_equal_nodes_share_stands_once_in_the_document() -> None:
    fact = whole_plan().as_fact()
    one, two = (FleetPlan.from_dict(dict.fromkeys(names, fact)).as_dict() for names in (["a"], ["a", "b"]))
    assert (one["settings"], one["waived"]) == (two["settings"], two["waived"])
    first, second = two["nodes"].values()
    assert first == second
    assert two["waived"][first["waived"]][0].keys() == {"id", "title", "references", "reason", "by"}
    # A fleet of a thousand nodes is still a file that one opens.
    assert len(json.dumps(first)) < 10_000


def test_a_thousand_nodes_are_said_in_a_few_lines() -> None:
    plans = {f"gpu{number:04}": plan() for number in range(2)}
    plans |= {f"gpu{number:04}": plans["gpu0000"] for number in range(2, 1000)}
    plans |= {
        f"odd{number}": plan(compute_environment_nccl={f"NCCL_{key}": str(number) for key in "ABCDEFGH"})
        for number in range(9)
    }
    lines = FleetPlan.from_dict(plans).text().splitlines()
    assert lines[1] == "1x L4, x86_64: 1009 nodes with the same GPUs differ in"
    assert lines[2] == (
        "  environment: NCCL_A: absent on 1000, 0 on odd0; 1 on odd1; 2 on odd2; 3 on odd3 and 5 more values"
    )
    assert len(lines) == 9
    assert max(len(line) for line in lines) < 200


def test_what_is_said_of_many_nodes_alike_is_said_once() -> None:
    texts = {"a": "one\nplan", "b": "another", "c": "one\nplan", "lost": ""}
    assert grouped(texts, {}).splitlines() == ["a, c:", "  one", "  plan", "b:", "  another"]
    assert grouped({f"gpu{number}": "same" for number in range(1000)}, {}).endswith("and 996 more:\n  same")


MANAGEMENT, FABRIC = "192.0.2.0/24", "10.1.0.0/16"


def joined(*interfaces: tuple[str, str, int], networks: tuple[str, ...], **values: Any) -> dict[str, Any]:
    """The plan of a node with interfaces (name, address, Mb/s), whose fleet is joined by these networks."""
    links = [
        {
            "name": name,
            "addresses": [address],
            "speed_mbit_s": speed,
            "up": True,
            "mtu": 1500,
            "default_route": False,
        }
        for name, address, speed in interfaces
    ]
    return plan(node(interfaces=links), compute_environment_fleet_networks=list(networks), **values)


ETH0, FAST, SLOW = ("eth0", "192.0.2.7", 25000), ("fab", "10.1.0.7", 400_000), ("fab", "10.1.0.7", 1000)


def said(found: FleetPlan) -> list[str]:
    return [line for line in found.text().splitlines() if line.startswith("warning: ")]


BOTH = (FABRIC, MANAGEMENT)
QUICK, SLUGGISH = joined(ETH0, FAST, networks=BOTH), joined(ETH0, SLOW, networks=BOTH)
ONLY_ETH0, ONLY_FAST = joined(ETH0, networks=BOTH), joined(FAST, networks=BOTH)
NAMED = joined(ETH0, FAST, networks=BOTH, compute_environment_nccl_socket_ifname="=eth0")
REFUSED = joined(ETH0, networks=BOTH, nvidia_stack_name="r999")
OWN = [joined(ETH0, networks=(MANAGEMENT,)), joined(FAST, networks=(FABRIC,))]


@each(
    (
        [QUICK, SLUGGISH, ONLY_ETH0],
        [f"{FABRIC} on a;", f"{MANAGEMENT} on b, c;", f"({MANAGEMENT} works on all of them)"],
    ),
    ([ONLY_FAST, ONLY_ETH0], ["none of them works on all"]),
    ([QUICK, NAMED], [f"{MANAGEMENT} on b;"]),
    (OWN, []),  # fleets with networks of their own
    ([QUICK, REFUSED], []),
)
def test_nodes_that_use_different_networks_are_named_with_the_one_that_joins_them(
    plans: list[dict[str, Any]], words: list[str]
) -> None:
    found = said(fleet(**dict(zip("abc", plans, strict=False))))
    assert len(found) == bool(words)
    assert [word for word in words if word not in found[0]] == []


def test_nodes_that_meet_are_not_warned_of_whatever_their_interfaces_are_called() -> None:
    found = fleet(a=QUICK, b=joined(ETH0, ("ib0", "10.1.0.9", 200_000), networks=BOTH))
    assert said(found) == []
    assert differing(found) == {}


def test_networks_that_do_not_meet_are_said_of_a_fleet_of_several_runs() -> None:
    parts = [FleetPlan.from_dict({name: fact}).part() for name, fact in (("a", QUICK), ("b", ONLY_ETH0))]
    assert len(said(FleetPlan.merged(json.loads(json.dumps(parts))))) == 1


def machine(boot_id: str, *addresses: str, machine_id: str = "", mac: str = "", driver: str = "") -> Any:
    bare = {"name": "a", "mtu": 1500, "up": True, "default_route": False}
    links = [bare | {"addresses": [address], "mac": mac, "driver": driver} for address in addresses]
    return machine_of(NodeFacts.from_dict(node(boot_id=boot_id, machine_id=machine_id, interfaces=links)))


CARD = {"machine_id": "m", "mac": "02:00:00:00:00:01", "driver": "ice"}


def test_one_machine_under_two_names_is_told_to_both() -> None:
    same = machine("b1", "192.0.2.7", "192.0.2.8")
    assert same == machine("b1", "192.0.2.8", "192.0.2.7")
    found = twins({"gpu02": Node(same), "gpu02-ib": Node(same), "gpu01": Node(machine("b2", "192.0.2.6"))})
    assert {name: one.facts["others"] for name, one in found.refused.items()} == {
        "gpu02": "gpu02-ib",
        "gpu02-ib": "gpu02",
    }


def test_a_machine_is_the_same_after_a_reboot_and_with_another_address() -> None:
    before, after = machine("b1", "192.0.2.7", **CARD), machine("b2", "192.0.2.7", "2001:db8::9", **CARD)
    assert twins({"gpu02": Node(before), "gpu02-ib": Node(after)}).refused.keys() == {"gpu02", "gpu02-ib"}


@each(
    # Containers of one kernel; machines that were cloned; nodes that do not say.
    [machine("b1", "192.0.2.7"), machine("b1", "192.0.2.8")],
    [machine("b1", "192.0.2.7"), machine("b2", "192.0.2.7")],
    [machine("b1", "192.0.2.7", **CARD), machine("b2", "192.0.2.8", **CARD | {"mac": "02::2"})],
    [machine("b1", "192.0.2.7", **CARD), machine("b2", "192.0.2.8", **CARD | {"machine_id": "n"})],
    [
        machine("b1", "192.0.2.7", **CARD | {"driver": ""}),
        machine("b2", "192.0.2.8", **CARD | {"driver": ""}),
    ],
    [machine("", "192.0.2.7"), machine("", "192.0.2.7")],
    [machine("b1"), machine("b1")],
)
def test_several_machines_are_not_taken_for_one(others: list[tuple[str, ...]]) -> None:
    assert twins({f"gpu{number:02}": Node(one) for number, one in enumerate(others)}) == Twins({}, ())


A, B, A_RSA = "ssh-ed25519 SHA256:a", "ssh-ed25519 SHA256:b", "ssh-rsa SHA256:a"
HONEST = {"gpu01": Node(("1",), (A,)), "gpu02": Node(("2",), (B,))}


@each(
    # One machine: by its key, also where one name has more of them, and where nobody knows them.
    ({"gpu01": Node(("1", "m"), (A,)), "gpu01-ib": Node(("1", "m"), (A, A_RSA))}, {"gpu01", "gpu01-ib"}, ()),
    ({"gpu01": Node(("1",)), "gpu01-ib": Node(("1",))}, {"gpu01", "gpu01-ib"}, ()),
    ({"gpu01": Node(("1",), (A,)), "gpu01-ib": Node(("1",))}, {"gpu01", "gpu01-ib"}, ()),
    ({"gpu01": Node(("1",), (A_RSA,)), "gpu01-ib": Node(("1",), (B,))}, {"gpu01", "gpu01-ib"}, ()),
    # gpu07 says that it is another one, each of all others, or nothing.
    (HONEST | {"gpu07": Node(("2",), (A_RSA, "ssh-ed25519 SHA256:c"))}, set(), ("gpu02, gpu07",)),
    (
        HONEST | {"gpu07": Node(("1", "2"), ("ssh-ed25519 SHA256:c",))},
        set(),
        ("gpu01, gpu07", "gpu02, gpu07"),
    ),
    (HONEST | {"gpu07": Node((), ("ssh-ed25519 SHA256:c",))}, set(), ()),
    # The one that it says to be has two names, and is refused under both for that.
    (
        HONEST | {"gpu02-ib": HONEST["gpu02"], "gpu07": Node(("2",), (A,))},
        {"gpu02", "gpu02-ib"},
        ("gpu02, gpu02-ib, gpu07",),
    ),
)
def test_a_node_keeps_no_other_from_being_worked_on_by_what_it_says(
    nodes: dict[str, Node], refused: set[str], warned: tuple[str, ...]
) -> None:
    found = twins(nodes)
    assert found.refused.keys() == refused
    assert all("gpu07" not in str(one.facts["others"]) for one in found.refused.values())
    assert [one.partition(" say ")[0] for one in found.warnings] == [*warned]


class Watched(str):
    """A host key that counts how often it is looked up or compared."""

    looks = 0

    def __hash__(self) -> int:
        Watched.looks += 1
        return super().__hash__()

    def __eq__(self, other: object) -> bool:
        Watched.looks += 1
        return super().__eq__(other)


def test_nodes_that_all_claim_one_machine_cost_each_the_same_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred or a thousand: otherwise a few that lie would hold a run of a large fleet up."""
    each_costs = []
    for count in (100, 1000):
        monkeypatch.setattr(Watched, "looks", 0)
        keys = [Watched(f"ssh-ed25519 SHA256:{number}") for number in range(count)]
        found = twins({f"gpu{number}": Node(("1", "m"), (key,)) for number, key in enumerate(keys)})
        assert not found.refused
        assert len(found.warnings) == 1
        each_costs.append(Watched.looks / count)
    assert each_costs[1] <= 2 * each_costs[0]


def test_what_no_key_proves_is_refused_with_a_way_to_prove_it() -> None:
    keys = {"same": ((A,), (A, A_RSA)), "of other types": ((A_RSA,), (B,)), "of one alone": ((A,), ())}
    found = {
        case: twins({"gpu01": Node(("1",), one), "gpu02": Node(("1",), other)}).refused
        for case, (one, other) in keys.items()
    }
    said = {
        case: {"HostKeyAlgorithms" in one.text and "--limit" in one.text for one in refused.values()}
        for case, refused in found.items()
    }
    assert said == {"same": {False}, "of other types": {True}, "of one alone": {True}}


def test_an_answer_of_another_form_says_nothing_of_its_machine() -> None:
    for value in (5, True, 0.5, "abc", {"a": 1}, None, [5, ["a"]]):
        assert Node.from_dict({"machine": value, "host_keys": value}) == Node()
    assert Node.from_dict({"machine": ["a", 5], "host_keys": [A]}) == Node(("a",), (A,))
