"""By the tree: who is to blame on a made-up network is named, and nobody else, within the bound of rounds.

`python -m tests.unit.validation.test_fabric_tree_search FLEETS SCATTER [PLANT ...]` prints the table of
docs/validation.md, for 1,024 nodes.
"""

from __future__ import annotations

import dataclasses
import random
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.validation.fabric_network import NODE_GB_S, Network
from validation.fabric.groups import Attempt, Fleet, Pairs, Part
from validation.fabric.levels import MOST_RANKS, TOGETHER, Level, most_rounds
from validation.fabric.outlook import outlook
from validation.fabric.search import next_rounds
from validation.fabric.tree_search import next_step, slow_below
from validation.fabric.verdict import judge_fabric
from validation.model.contract import FABRIC_VERSION, State, dumps, loads

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    from validation.model.contract import Finding

#: What is planted, with how much of its rate it keeps; and what must be said of whom: a code by node.
Plant = tuple["Mapping[Any, float]", dict[str, str], dict[str, Any]]
LEAST_KEPT, MOST_KEPT = 0.3, 0.7


def in_leaf(network: Network, leaf: str) -> list[str]:
    return [member.name for member in network.members.values() if member.leaf == leaf]


def in_pod(network: Network, pod: str) -> list[str]:
    return [member.name for member in network.members.values() if member.pod == pod]


def nothing(_network: Network, _chance: random.Random) -> Plant:
    return {}, {}, {}


def one_node(network: Network, chance: random.Random) -> Plant:
    node = chance.choice(list(network.members))
    return {node: chance.uniform(LEAST_KEPT, MOST_KEPT)}, {node: "fabric-node"}, {}


def four_nodes(network: Network, chance: random.Random) -> Plant:
    nodes = chance.sample(list(network.members), 4)
    kept = {node: chance.uniform(LEAST_KEPT, MOST_KEPT) for node in nodes}
    return kept, dict.fromkeys(nodes, "fabric-node"), {}


def leaf_switch(network: Network, chance: random.Random) -> Plant:
    leaf = chance.choice(list(network.members.values())).leaf
    slow = {f"leaf {leaf}": chance.uniform(LEAST_KEPT, MOST_KEPT)}
    return slow, dict.fromkeys(in_leaf(network, leaf), "fabric-switch"), {}


def leaf_uplink(network: Network, chance: random.Random) -> Plant:
    leaf = chance.choice(list(network.members.values())).leaf
    slow = {f"up {leaf}": chance.uniform(LEAST_KEPT, MOST_KEPT)}
    return slow, dict.fromkeys(in_leaf(network, leaf), "fabric-uplink"), {}


def pod_uplink(network: Network, chance: random.Random) -> Plant:
    pod = chance.choice(list(network.members.values())).pod
    slow = {f"up {pod}": chance.uniform(LEAST_KEPT, MOST_KEPT)}
    return slow, dict.fromkeys(in_pod(network, pod), "fabric-uplink"), {}


def neighbours(network: Network, chance: random.Random) -> Plant:
    nodes = in_leaf(network, chance.choice(list(network.members.values())).leaf)
    place = chance.randrange(len(nodes))
    pair = (nodes[place], nodes[(place + 1) % len(nodes)])
    return {frozenset(pair): chance.uniform(LEAST_KEPT, MOST_KEPT)}, dict.fromkeys(pair, "fabric-link"), {}


def any_pair_of_a_leaf(network: Network, chance: random.Random) -> Plant:
    nodes = in_leaf(network, chance.choice(list(network.members.values())).leaf)
    pair = tuple(chance.sample(nodes, 2))
    # All pairs inside the leaves: as many rounds as a leaf has nodes.
    wanted = {"pairs": Pairs.ALWAYS, "pair_rounds": len(nodes)}
    return (
        {frozenset(pair): chance.uniform(LEAST_KEPT, MOST_KEPT)},
        dict.fromkeys(pair, "fabric-link"),
        wanted,
    )


def one_of_each(network: Network, chance: random.Random) -> Plant:
    """A node, the uplink of a leaf of another pod, and the uplink of a third pod."""
    first, second, third = chance.sample(sorted({member.pod for member in network.members.values()}), 3)
    node = chance.choice(in_pod(network, first))
    leaf = network.members[chance.choice(in_pod(network, second))].leaf
    slow = {name: chance.uniform(LEAST_KEPT, MOST_KEPT) for name in (node, f"up {leaf}", f"up {third}")}
    expected = dict.fromkeys([*in_leaf(network, leaf), *in_pod(network, third)], "fabric-uplink")
    return slow, expected | {node: "fabric-node"}, {}


PLANTS: dict[str, Callable[[Network, random.Random], Plant]] = {
    "nothing": nothing,
    "one slow node": one_node,
    "four slow nodes": four_nodes,
    "a leaf's switch": leaf_switch,
    "a leaf's uplink": leaf_uplink,
    "a pod's uplink": pod_uplink,
    "neighbours in a leaf": neighbours,
    "any pair of a leaf, all pairs measured": any_pair_of_a_leaf,
    "a node, a leaf's and a pod's uplink": one_of_each,
}


@dataclasses.dataclass(frozen=True)
class Found:
    """What came of a search: nodes that are named as planted, those that are accused, and rounds."""

    planted: int
    named: int
    accused: tuple[str, ...]
    rounds: int
    most_rounds: int


def play(network: Network, plant: str, seed: int) -> Found:
    slow, expected, wanted = PLANTS[plant](network, random.Random(seed))
    network.slow = dict(slow)
    fleet = network.search(network.fleet(**wanted))
    said = {name: test.findings for name, test in judge_fabric(fleet).items()}
    named = [name for name, code in expected.items() if [one.code for one in said[name]] == [code]]
    accused = tuple(name for name, findings in said.items() if findings and name not in expected)
    return Found(len(expected), len(named), accused, len(fleet.rounds), most_rounds(fleet))


def small(**changes: Any) -> Network:
    """120 nodes."""
    return Network(**{"pods": 4, "leaves": 5, "nodes": 6, "disturbed": 0.0, **changes})


@pytest.mark.parametrize("plant", PLANTS)
def test_what_is_planted_is_named_and_nobody_else_within_the_bound(plant: str) -> None:
    for seed in range(2):
        found = play(small(seed=seed), plant, seed)
        assert (found.named, found.accused) == (found.planted, ())
        assert found.rounds <= found.most_rounds


def test_a_thousand_nodes_are_searched_within_the_bound() -> None:
    found = play(Network(pods=4, leaves=16, nodes=16, seed=1), "a node, a leaf's and a pod's uplink", 1)
    assert found.named == found.planted == 1 + 16 + 256
    assert (found.accused, found.most_rounds) == ((), 24)
    assert found.rounds <= 24


def test_a_healthy_fleet_takes_one_round_a_level_and_no_group_has_too_many_ranks() -> None:
    network = Network(pods=4, leaves=8, nodes=40, disturbed=0.0)
    fleet = network.fleet()
    steps: list[str] = []
    while (step := next_step(fleet)).rounds:
        (groups,) = step.rounds
        assert max(len(group) for group in groups) * network.ranks <= MOST_RANKS
        names = [name for group in groups for name in group]
        assert len(names) == len(set(names))
        steps.append(str(step.name))
        fleet = dataclasses.replace(fleet, rounds=(*fleet.rounds, network.measure(groups, step.name)))
    assert steps == ["leaf", "pod", "fleet", "together"]
    assert {test.state for test in judge_fabric(fleet).values()} == {State.PASS}


def test_a_way_and_an_uplink_are_found_at_once_beside_the_same_healthy_pods() -> None:
    """Pairs of nodes and pairs of leaves are measured in the same rounds, each beside healthy ones."""
    pair = ("n1-00-02", "n1-01-02")
    network = small(slow={frozenset(pair): 0.4, "up leaf2-03": 0.4})
    said = findings(network.search(network.fleet()))
    assert {name: one.code for name, one in said.items()} == {
        **dict.fromkeys(pair, "fabric-link"),
        **dict.fromkeys(in_leaf(network, "leaf2-03"), "fabric-uplink"),
    }


def test_a_small_leaf_does_not_clear_the_uplink_of_a_large_one() -> None:
    """One node cannot load an uplink of four: only what does says that it carries them."""
    network = Network(1, 5, 4, {"up leaf0-02": 0.4}, disturbed=0.0, sizes={"leaf0-01": 1})
    said = findings(network.search(network.fleet()))
    assert {name: one.code for name, one in said.items()} == dict.fromkeys(
        in_leaf(network, "leaf0-02"), "fabric-uplink"
    )


def test_of_two_large_leaves_and_a_small_one_no_pod_is_blamed() -> None:
    """Which of the two is slow nobody can say: the small one loads neither of them."""
    network = Network(4, 3, 4, {"up leaf3-02": 0.4}, disturbed=0.0, sizes={"leaf3-01": 1})
    said = findings(network.search(network.fleet()))
    assert {one.code for one in said.values()} == {"fabric-link"}


def test_of_four_leaves_the_slow_one_is_found_though_half_of_the_pairs_have_it() -> None:
    network = Network(1, 4, 3, {"up leaf0-00": 0.4}, disturbed=0.0)
    said = findings(network.search(network.fleet()))
    assert {name: one.code for name, one in said.items()} == dict.fromkeys(
        in_leaf(network, "leaf0-00"), "fabric-uplink"
    )


@pytest.mark.parametrize("bad", [(0, 2), (0, 2, 4)])
def test_slow_nodes_that_are_no_neighbours_are_no_slow_switch(bad: tuple[int, ...]) -> None:
    """Their neighbours meet nobody but them in the first rounds, and are healthy all the same."""
    nodes = 4 if len(bad) == 2 else 8
    slow: dict[Hashable, float] = {f"n0-01-0{number}": 0.4 for number in bad}
    network = Network(1, 4, nodes, slow, disturbed=0.0)
    said = findings(network.search(network.fleet()))
    assert {name: one.code for name, one in said.items()} == dict.fromkeys(slow, "fabric-node")


def test_the_neighbour_of_a_node_that_is_to_blame_one_level_up_is_not_accused() -> None:
    """Of a leaf of two nobody can say which one is slow; between the leaves it is known."""
    network = Network(1, 5, 4, {"n0-01-01": 0.3}, disturbed=0.0, sizes={"leaf0-01": 2})
    said = findings(network.search(network.fleet()))
    assert {name: one.code for name, one in said.items()} == {"n0-01-01": "fabric-node"}


def test_one_of_two_slow_groups_is_no_uplink() -> None:
    """Both groups have each leaf: what is slow in one of them only is one of its nodes."""
    network = Network(2, 3, 2, {"n1-00-01": 0.6}, disturbed=0.0)
    said = findings(network.search(network.fleet()))
    assert {name: one.code for name, one in said.items()} == {"n1-00-01": "fabric-node"}


def test_a_node_that_goes_in_the_last_round_costs_nobody_else_the_verdict() -> None:
    network = Network(1, 5, 6, disturbed=0.0)
    fleet = network.fleet()
    while (step := next_step(fleet)).rounds:
        for groups in step.rounds:
            attempts = network.measure(groups, step.name)
            if step.name == TOGETHER and "n0-03-05" in attempts:
                group = attempts["n0-03-05"].group
                attempts["n0-03-05"] = Attempt(group, None, "the connection broke", step.name)
            fleet = dataclasses.replace(fleet, rounds=(*fleet.rounds, attempts))
    verdicts = judge_fabric(fleet)
    assert {name: test.reason for name, test in verdicts.items() if test.state is not State.PASS} == {
        "n0-03-05": "the connection broke"
    }


@pytest.mark.parametrize("fault", ["slow", "hang"])
def test_a_node_of_a_leaf_of_two_is_named_and_not_the_uplink_of_the_leaf(fault: str) -> None:
    """Inside the leaf nobody can say which one it is; of the groups between few leaves one is bad."""
    name, sizes = "n0-01-00", {"leaf0-00": 3, "leaf0-01": 2, "leaf0-02": 5, "leaf0-03": 3}
    network = Network(1, 4, 5, disturbed=0.0, sizes=sizes)
    if fault == "slow":
        network.slow = {name: 0.3}
    else:
        network.hang = frozenset([name])
    said = findings(network.search(network.fleet()))
    assert {node: one.code for node, one in said.items()} == {name: "fabric-node"}


def test_a_measurement_that_was_disturbed_is_taken_again_and_accuses_nobody() -> None:
    network = small()
    fleet = network.fleet()
    first = network.measure(next_step(fleet).rounds[0], Level.LEAF)
    group = next(iter(first.values())).group
    network.slow = dict.fromkeys(group, 0.3)
    disturbed = first | network.measure([group], Level.LEAF)
    network.slow = {}
    fleet = network.search(dataclasses.replace(fleet, rounds=(disturbed,)))
    assert [step_of(attempts) for attempts in fleet.rounds[:4]] == [
        "leaf",
        "leaf-pairs",
        "leaf-pairs",
        "leaf",
    ]
    assert {test.state for test in judge_fabric(fleet).values()} == {State.PASS}


def step_of(attempts: dict[str, Attempt]) -> str:
    return str(next(iter(attempts.values())).step)


def test_a_node_that_hangs_is_named_and_left_out_of_the_levels_above() -> None:
    network = small(hang=frozenset(["n1-03-05"]))
    fleet = network.search(network.fleet())
    verdicts = judge_fabric(fleet)
    assert [name for name, test in verdicts.items() if test.state is not State.PASS] == ["n1-03-05"]
    assert verdicts["n1-03-05"].findings[0].code == "fabric-node"
    above = [attempts for attempts in fleet.rounds if step_of(attempts) in {"pod", "fleet", "together"}]
    assert above
    assert all("n1-03-05" not in attempts for attempts in above)


def test_a_node_that_cannot_take_part_is_not_run_and_the_others_are_measured_without_it() -> None:
    network = small()
    fleet = network.fleet()
    first = network.measure(next_step(fleet).rounds[0], Level.LEAF)
    gone = Attempt(first["n1-03-05"].group, None, "the connection broke", Level.LEAF)
    fleet = network.search(dataclasses.replace(fleet, rounds=(first | {"n1-03-05": gone},)))
    verdicts = judge_fabric(fleet)
    assert {name: test.reason for name, test in verdicts.items() if test.state is not State.PASS} == {
        "n1-03-05": "the connection broke"
    }
    assert sum("n1-03-05" in attempts for attempts in fleet.rounds) == 1


def test_a_leaf_whose_nodes_go_one_after_the_other_is_not_condemned() -> None:
    """Of four nodes three are gone, one of them since the pairs: nobody has measured what they share."""
    network = Network(1, 4, 4, scatter=0.01, disturbed=0.0)
    since = {"n0-00-01": 0, "n0-00-02": 0, "n0-00-00": 1}
    fleet = network.fleet()
    while (step := next_step(fleet)).rounds:
        for groups in step.rounds:
            attempts = network.measure(groups, step.name)
            for name, first in since.items():
                if name in attempts and len(fleet.rounds) >= first:
                    attempts[name] = Attempt(attempts[name].group, None, "unreachable", step.name)
            fleet = dataclasses.replace(fleet, rounds=(*fleet.rounds, attempts))
    verdicts = judge_fabric(fleet)
    assert {name for name, test in verdicts.items() if test.state is State.NOT_RUN} == {*since, "n0-00-03"}
    assert {test.state for test in verdicts.values()} == {State.NOT_RUN, State.PASS}


def test_a_spine_that_is_slow_for_all_is_the_fault_of_no_leaf() -> None:
    network = small(pod_share=0.25)
    said = findings(network.search(network.fleet()))
    assert {finding.code for finding in said.values()} == {"fabric-slow"}
    assert len({finding.text for finding in said.values()}) == 1
    assert "between the pods" in said["n0-00-00"].text


def test_two_leaves_that_are_slow_with_each_other_only_share_the_blame() -> None:
    """Of two nobody can say which end it is."""
    network = Network(1, 2, 4, {"up leaf0-00": 0.2}, disturbed=0.0)
    said = findings(network.search(network.fleet()))
    assert {finding.code for finding in said.values()} == {"fabric-slow"}
    assert "between the leaves" in said["n0-01-00"].text


def findings(fleet: Fleet) -> dict[str, Finding]:
    return {name: test.findings[0] for name, test in judge_fabric(fleet).items() if test.findings}


def test_below_a_floor_the_fleet_fails() -> None:
    network = small()
    fleet = network.search(dataclasses.replace(network.fleet(), floor_gb_s=NODE_GB_S * 2))
    assert {(one.code, one.state) for one in findings(fleet).values()} == {("fabric-slow", State.FAIL)}


def test_without_pairs_a_slow_group_is_said_and_nobody_is_searched() -> None:
    network = small(slow={"n1-03-05": 0.4})
    fleet = network.search(network.fleet(Pairs.NEVER))
    assert {step_of(attempts) for attempts in fleet.rounds} == {"leaf", "pod", "fleet", "together"}
    assert {finding.code for finding in findings(fleet).values()} == {"fabric-slow"}


def test_a_limit_of_rounds_ends_the_search_not_the_levels_and_is_said() -> None:
    slow: dict[Hashable, float] = {f"n1-03-0{number}": 0.4 for number in range(3)}
    network = small(slow=slow)
    fleet = network.search(network.fleet(most_rounds=9))
    assert len(fleet.rounds) <= 9
    assert {"leaf", "pod", "fleet", "together"} <= {step_of(attempts) for attempts in fleet.rounds}
    assert any("gpu_validation_fabric_most_rounds" in note for note in judge_fabric(fleet)["n0-00-00"].notes)


def test_wrong_numbers_are_the_fault_of_the_node_that_has_them() -> None:
    from validation.model.contract import Finding

    network = small()
    wrong = Finding("wrong-result", State.FAIL, "n1-03-05 rank 1: 1 of the numbers are wrong")
    fleet = network.fleet()
    first = network.measure(next_step(fleet).rounds[0], Level.LEAF)
    part = first["n1-03-05"].part
    assert part
    bad = dataclasses.replace(part, ranks=(dataclasses.replace(part.ranks[0], findings=(wrong,)),))
    first["n1-03-05"] = dataclasses.replace(first["n1-03-05"], part=bad)
    fleet = network.search(dataclasses.replace(fleet, rounds=(first,)))
    assert findings(fleet) == {"n1-03-05": wrong}


def test_many_nodes_without_a_topology_measure_in_groups_and_no_leaf_is_blamed() -> None:
    network = Network(1, 1, 200, {"n0-00-77": 0.4}, disturbed=0.0)
    flat = tuple(dataclasses.replace(member, leaf="", pod="") for member in network.members.values())
    fleet = dataclasses.replace(network.fleet(), nodes=flat)
    assert "no topology names leaves" in outlook(fleet, next_step(fleet))[0]
    fleet = network.search(fleet)
    assert {name: one.code for name, one in findings(fleet).items()} == {"n0-00-77": "fabric-node"}


def test_a_small_fleet_without_a_topology_measures_as_it_did() -> None:
    network = Network(1, 1, 12)
    flat = tuple(dataclasses.replace(member, leaf="") for member in network.members.values())
    fleet = dataclasses.replace(network.fleet(), nodes=flat)
    step = next_step(fleet)
    assert (step.name, [list(groups) for groups in step.rounds]) == ("", next_rounds(fleet))
    assert len(step.rounds[0][0]) == 12
    assert outlook(fleet, step) == []


def test_a_topology_that_cannot_be_used_is_why_nothing_was_measured() -> None:
    fleet = dataclasses.replace(small().fleet(), no_tree="topology.yml: it names no leaf with a node")
    assert next_step(fleet).rounds == ()
    assert "it names no leaf" in outlook(fleet, next_step(fleet))[0]
    assert {(test.state, test.reason) for test in judge_fabric(fleet).values()} == {
        (State.NOT_RUN, fleet.no_tree)
    }


def test_what_is_planned_is_said_before_it_begins() -> None:
    fleet = Network(4, 8, 32).fleet()
    said = " ".join(outlook(fleet, next_step(fleet)))
    assert "1,024 nodes with 8,192 ranks in 32 leaves and 4 pods" in said
    assert "Not measured: one collective of all ranks" in said
    assert "4 rounds" in said
    assert "at most 24 rounds in all" in said


def test_rounds_by_the_tree_are_written_and_read_back_the_same() -> None:
    network = small()
    fleet = network.search(network.fleet())
    assert loads(Fleet, dumps(fleet)) == fleet


def test_a_part_that_brought_nothing_costs_no_report() -> None:
    network = Network(1, 4, 4, disturbed=0.0)
    fleet = network.fleet()
    first = network.measure(next_step(fleet).rounds[0], Level.LEAF)
    for name, attempt in first.items():
        first[name] = dataclasses.replace(attempt, part=Part(FABRIC_VERSION, name))
    fleet = network.search(dataclasses.replace(fleet, rounds=(first,)))
    assert {test.state for test in judge_fabric(fleet).values()} == {State.NOT_RUN}


@pytest.mark.parametrize(
    ("rates", "line"),
    [
        ([100.0, 100.0, 100.0, 100.0, 100.0], 80.0),  # alike: a fifth less is slow
        ([100.0, 100.0, 30.0], 50.0),  # of few only less than half of the best
        ([160.0, 130.0, 100.0, 70.0, 40.0], 50.0),  # however wide they scatter
    ],
)
def test_what_is_slow_depends_on_how_far_the_siblings_scatter(rates: list[float], line: float) -> None:
    assert slow_below(rates) == pytest.approx(line)


def main(runs: int, scatter: float, plants: Sequence[str]) -> None:
    """Print how often what is planted is named, and others are accused, on 1,024 nodes."""
    for plant in plants or PLANTS:
        found = [play(Network(4, 16, 16, scatter=scatter, seed=seed), plant, seed) for seed in range(runs)]
        planted, accused = sum(one.planted for one in found), sum(len(one.accused) for one in found)
        rounds = sorted(one.rounds for one in found)
        print(
            f"| {plant} | {scatter:.0%} | {sum(one.named for one in found):,} of {planted:,} | "
            f"{accused} of {1024 * runs - planted:,} | {rounds[len(rounds) // 2]}, at most {rounds[-1]} |",
            flush=True,
        )


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:])
