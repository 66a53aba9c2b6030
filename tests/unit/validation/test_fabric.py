"""Between nodes: who meets whom, and which node is to blame, on made-up rounds; and real ranks over TCP."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.validation.samples import node
from validation import fabric, fabric_run
from validation.contract import SCHEMA_VERSION, Finding, State, dumps, loads
from validation.fabric import Attempt, Fleet, Member, Order, Part, Rank, Round, circle_rounds
from validation.measure import MOST_ATTEMPTS
from validation.plans import PLANS

if TYPE_CHECKING:
    from validation.child import Outcome, Request
    from validation.plans import Plan

NAMES = ("a", "b", "c", "d", "e", "f")
SIZE = 16 << 20
PROBLEM = "{name} rank 0 gave no result within 120 s; it hung in stage: {stage}"


def good_rank(seconds: float = 0.01) -> Rank:
    return Rank("done", "leaving", "", 100.0, {f"all_reduce {SIZE}": (seconds,) * 5})


def bad_rank(
    name: str, ending: str = "hung", stage: str = "meeting the other ranks", at: float = 100.0
) -> Rank:
    return Rank(ending, stage, PROBLEM.format(name=name, stage=stage), at)


def part(name: str, rank: Rank) -> Part:
    return Part(SCHEMA_VERSION, name, (rank,), ("all_reduce",), (SIZE,))


def attempts(*groups: tuple[str, ...], **ranks: Rank) -> dict[str, Attempt]:
    """A round in which everybody did well, but those that are named."""
    return {
        name: Attempt(group, part(name, ranks.get(name, good_rank()))) for group in groups for name in group
    }


def fleet(*rounds: dict[str, Attempt], names: tuple[str, ...] = NAMES, **changes: Any) -> Fleet:
    members = tuple(Member(name, f"192.0.2.{number}", 8) for number, name in enumerate(names))
    base = Fleet(SCHEMA_VERSION, "nccl", "quick", 29511, False, members, rounds)
    return dataclasses.replace(base, **changes)


def states(found: Fleet) -> dict[str, str]:
    return {name: str(verdict.state) for name, verdict in fabric.judge(found).items()}


def findings(found: Fleet) -> dict[str, Finding]:
    return {name: test.findings[0] for name, test in fabric.judge(found).items() if test.findings}


@given(st.integers(2, 17))
def test_in_the_rounds_of_a_circle_each_node_meets_each_other_once(count: int) -> None:
    names = [f"gpu{number:02}" for number in range(count)]
    rounds = circle_rounds(names)
    for groups in rounds:
        present = [name for group in groups for name in group]
        assert sorted(present) == names, "each node is in one group of each round"
    met = {
        frozenset(pair) for groups in rounds for group in groups for pair in itertools.combinations(group, 2)
    }
    assert met == {frozenset(pair) for pair in itertools.combinations(names, 2)}


def test_first_all_measure_together() -> None:
    assert fabric.next_groups(fleet(), Round.ALL) == [NAMES]


def test_one_node_measures_with_nobody() -> None:
    assert fabric.next_groups(fleet(names=("a",)), Round.ALL) == []
    (verdict,) = fabric.judge(fleet(names=("a",))).values()
    assert (verdict.state, verdict.required) == (State.NOT_RUN, True)
    assert verdict.reason == "one node has no other to measure with"


def test_when_all_did_well_no_pairs_are_needed_unless_asked_for() -> None:
    did_well = fleet(attempts(NAMES))
    assert fabric.next_groups(did_well, Round.PAIRS) == []
    pairs = fabric.next_groups(dataclasses.replace(did_well, always_pairs=True), Round.PAIRS)
    assert sorted(name for pair in pairs for name in pair) == list(NAMES)


HUNG = attempts(
    NAMES, **{name: bad_rank(name, stage="warming up with all-reduce of 16 MiB") for name in NAMES}
)
PAIRS = [("a", "f"), ("b", "e"), ("c", "d")]
#: c and d failed with each other; a and b, which did well, try them.
C_AND_D = attempts(*PAIRS, c=bad_rank("c"), d=bad_rank("d"))


def test_when_all_fail_pairs_are_tried_and_then_suspects_with_good_partners() -> None:
    assert fabric.next_groups(fleet(HUNG), Round.PAIRS) == PAIRS
    assert fabric.next_groups(fleet(HUNG, C_AND_D), Round.SUSPECTS) == [("a", "c"), ("f", "d")]


def test_the_node_that_fails_with_a_good_partner_is_to_blame_and_only_it() -> None:
    suspects = attempts(("a", "c"), ("f", "d"), f=bad_rank("f"), d=bad_rank("d"))
    found = fleet(HUNG, C_AND_D, suspects)
    assert states(found) == {name: "fail" if name == "d" else "pass" for name in NAMES}
    finding = findings(found)["d"]
    assert finding.code == "fabric-node"
    assert finding.text.startswith(
        "d fails with f, which did well with another node: d rank 0 gave no result"
    )


def test_slow_pairs_that_nobody_was_left_to_meet_do_not_pass_because_all_together_worked() -> None:
    slow = attempts(*PAIRS, **{name: good_rank(0.1) for name in "bcde"})
    asked = fleet(attempts(NAMES), slow, always_pairs=True)
    assert fabric.next_groups(asked, Round.SUSPECTS) == [("a", "b"), ("f", "e")]
    again = attempts(("a", "b"), ("f", "e"), b=good_rank(0.1))
    found = fleet(attempts(NAMES), slow, again, always_pairs=True)
    assert states(found) == {
        "a": "pass",
        "b": "fail",
        "c": "degraded",
        "d": "degraded",
        "e": "pass",
        "f": "pass",
    }
    assert findings(found)["c"].code == "fabric-unresolved"


def test_ranks_that_did_not_measure_the_same_are_no_number_and_cost_no_report() -> None:
    other = dataclasses.replace(good_rank(), seconds={f"all_reduce {SIZE}": (0.01,) * 4})
    found = fleet(attempts(("a", "b"), b=other), names=("a", "b"))
    assert set(states(found).values()) == {"fail"}
    assert "its ranks did not measure the same" in findings(found)["a"].text
    none = fleet(attempts(("a", "b"), b=dataclasses.replace(other, seconds={})), names=("a", "b"))
    assert set(states(none).values()) == {"fail"}


def test_a_slow_node_is_found_by_pairs() -> None:
    slow = attempts(*PAIRS, c=good_rank(0.1), d=good_rank(0.1))
    asked = fleet(attempts(NAMES), slow, always_pairs=True)
    assert fabric.next_groups(asked, Round.SUSPECTS) == [("a", "c"), ("f", "d")]
    again = attempts(("a", "c"), ("f", "d"), c=good_rank(0.1), a=good_rank(0.1))
    found = fleet(attempts(NAMES), slow, again, always_pairs=True)
    assert states(found) == {name: "fail" if name == "c" else "pass" for name in NAMES}
    assert "c reaches" in findings(found)["c"].text
    assert "its network is slow" in findings(found)["c"].text


def test_pairs_that_are_all_alike_have_no_suspect() -> None:
    asked = fleet(attempts(NAMES), attempts(*PAIRS, a=good_rank(0.013)), always_pairs=True)
    assert fabric.next_groups(asked, Round.SUSPECTS) == []


def test_when_every_pair_fails_nobody_is_blamed_alone() -> None:
    nothing = attempts(*PAIRS, **{name: bad_rank(name) for name in NAMES})
    found = fleet(HUNG, nothing)
    assert fabric.next_groups(found, Round.SUSPECTS) == []
    assert {finding.code for finding in findings(found).values()} == {"fabric-unresolved"}
    assert set(states(found).values()) == {"fail"}


def test_when_every_pair_works_but_not_all_together_that_is_no_pass() -> None:
    found = fleet(HUNG, attempts(*PAIRS))
    assert {finding.code for finding in findings(found).values()} == {"fabric-unresolved"}


def test_of_two_nodes_the_one_that_got_less_far_is_named() -> None:
    ranks = {"a": bad_rank("a", stage="warming up with all-reduce of 16 MiB"), "b": bad_rank("b")}
    found = fleet(attempts(("a", "b"), **ranks), names=("a", "b"))
    assert fabric.next_groups(found, Round.PAIRS) == []
    assert findings(found)["b"].code == "fabric-node"
    assert "meeting the other ranks" in findings(found)["b"].text
    assert findings(found)["a"].code == "fabric-unresolved"


def test_of_nodes_that_died_the_first_is_named() -> None:
    ranks = {"a": bad_rank("a", "died", at=109.0), "b": bad_rank("b", "died", at=100.0)}
    found = fleet(attempts(("a", "b"), **ranks), names=("a", "b"))
    assert findings(found)["b"].code == "fabric-node"


def test_a_node_that_cannot_take_part_is_not_run_and_so_are_those_that_waited_for_it() -> None:
    ranks = {name: bad_rank(name) for name in ("a", "b")}
    first = attempts(("a", "b", "c"), **ranks)
    first["c"] = Attempt(("a", "b", "c"), Part(SCHEMA_VERSION, "c", not_run="torch is built without CUDA"))
    verdicts = fabric.judge(fleet(first, names=("a", "b", "c")))
    assert {str(verdict.state) for verdict in verdicts.values()} == {"not-run"}
    assert verdicts["c"].reason == "torch is built without CUDA"
    assert verdicts["a"].reason == "not all nodes could take part (c: torch is built without CUDA)"


def test_those_that_can_are_paired_without_it() -> None:
    first = attempts(NAMES, **{name: bad_rank(name) for name in NAMES})
    first["c"] = Attempt(NAMES, None, "the connection broke")
    pairs = fabric.next_groups(fleet(first), Round.PAIRS)
    assert sorted(name for pair in pairs for name in pair) == ["a", "b", "d", "e", "f"]
    found = fleet(first, attempts(*pairs))
    assert states(found) == {name: "not-run" if name == "c" else "pass" for name in NAMES}


def test_wrong_numbers_are_the_fault_of_the_node_that_has_them() -> None:
    wrong = Finding("wrong-result", State.FAIL, "b rank 1: 1 of the numbers are wrong", "take it out")
    first = attempts(("a", "b"), b=dataclasses.replace(good_rank(), findings=(wrong,)))
    found = fleet(first, names=("a", "b"))
    assert findings(found)["b"] == wrong
    assert states(found)["b"] == "fail"


def test_what_is_measured_stands_beside_the_node() -> None:
    verdict = fabric.judge(fleet(attempts(NAMES)))["a"]
    assert (verdict.state, verdict.headline) == (State.PASS, "2.80 GB/s")


def test_an_order_names_the_group_and_where_to_meet() -> None:
    order = fabric.orders(fleet(), [("a", "d"), ("b", "c")], "5c1a")["c"]
    assert order == Order(
        SCHEMA_VERSION,
        "c",
        (Member("b", "192.0.2.1", 8), Member("c", "192.0.2.2", 8)),
        29511,
        "nccl",
        "quick",
        "5c1a-1",
    )


def test_no_group_meets_another_by_mistake() -> None:
    given = fabric.orders(fleet(), [("a", "d"), ("b", "c")], "5c1a")
    assert given["a"].run == given["d"].run != given["b"].run == given["c"].run


@pytest.mark.parametrize(
    ("address", "place"),
    [("192.0.2.7", "tcp://192.0.2.7:29511/5c1a-0"), ("2001:db8::7", "tcp://[2001:db8::7]:29511/5c1a-0")],
)
def test_ranks_are_told_where_to_meet_and_by_which_name(
    address: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Request] = []

    def start(requests: list[Request], _budget_s: float, **_: Any) -> list[Outcome]:
        asked.extend(requests)
        return []

    monkeypatch.setattr(fabric_run, "run_children", start)
    members = (Member("a", address, 2), Member("b", "192.0.2.8", 2))
    order = fabric.orders(fleet(nodes=members), [("a", "b")], "5c1a")["b"]
    fabric_run.run(order, node())
    assert [(one.parameters["rank"], one.parameters["store"]) for one in asked] == [(2, place), (3, place)]


def test_rounds_are_written_and_read_back_the_same() -> None:
    whole = fleet(HUNG, C_AND_D)
    assert loads(Fleet, dumps(whole)) == whole


def test_a_node_without_torch_says_that_it_cannot_take_part() -> None:
    order = fabric.orders(fleet(library="gloo"), [("a", "b")], "5c1a")["a"]
    assert "torch is not installed" in fabric_run.run(order, node(torch=None)).not_run


@pytest.mark.parametrize(("address", "name"), [("127.0.0.1", "lo"), ("::1", "lo"), ("not an address", None)])
def test_the_interface_towards_a_peer_is_found(address: str, name: str | None) -> None:
    assert fabric_run.interface_towards(address) == name


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_the_runs_between_nodes_fit_the_budget_on_a_slow_network(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Request] = []

    def start(requests: list[Request], _budget_s: float, **_: Any) -> list[Outcome]:
        asked.extend(requests)
        return []

    monkeypatch.setattr(fabric_run, "run_children", start)
    order = fabric.orders(fleet(), [("a", "b")], "5c1a")["a"]
    fabric_run.run(order, node(plan=plan))
    parameters = asked[0].parameters
    steps = len(parameters["collectives"]) * len(parameters["sizes_bytes"])
    assert 0 < parameters["at_most_s"] * MOST_ATTEMPTS * steps <= plan.fabric_budget_s / 2 + 0.001
    assert parameters["at_most_s"] <= plan.all_reduce_s
