"""Between nodes: who meets whom, and that the one who is bad is found, whoever it is; on made-up rounds."""

import dataclasses
import itertools
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from temper.judge.fabric import judge_fabric
from temper.judge.fabric_search import circle_rounds, next_rounds
from tests.unit.each import each
from tests.unit.validation.fabric_rounds import (
    NAMES,
    attempts,
    bad_rank,
    findings,
    fleet,
    good_rank,
    measured,
    part,
    slow_rank,
    states,
)
from validation.fabric.groups import MOST_RANKS, Attempt, Fleet, Pairs, Part
from validation.model.contract import FABRIC_VERSION, State

SIZES = range(3, 13)
HOW = {"hangs": bad_rank, "is slow": lambda _: slow_rank()}


def names_of(count: int) -> list[str]:
    return [f"n{number:02}" for number in range(count)]


@given(st.integers(2, 17))
def test_in_the_rounds_of_a_circle_each_node_meets_each_other_once(count: int) -> None:
    rounds = circle_rounds(names_of(count))
    for groups in rounds:
        present = [name for group in groups for name in group]
        assert len(set(present)) == len(present) == count - count % 2
    met = [frozenset(pair) for groups in rounds for pair in groups]
    assert sorted(map(sorted, met)) == [list(pair) for pair in itertools.combinations(names_of(count), 2)]


def of_ranks(count: int) -> Fleet:
    """Two nodes that have so many ranks together."""
    two = fleet(names=("a", "b"))
    sizes = (count - 1, 1)
    nodes = [dataclasses.replace(member, ranks=ranks) for member, ranks in zip(two.nodes, sizes, strict=True)]
    return dataclasses.replace(two, nodes=tuple(nodes))


@each(
    (fleet(), [[NAMES]]),  # first, all together
    (fleet(names=("a",)), []),
    (of_ranks(MOST_RANKS), [[("a", "b")]]),
    (of_ranks(MOST_RANKS + 1), []),
    # Two nodes were a pair already.
    (fleet(attempts(("a", "b"), a=bad_rank("a"), b=bad_rank("b")), names=("a", "b"), pairs=Pairs.ALWAYS), []),
)
def test_who_measures_next(found: Fleet, rounds: list[Any]) -> None:
    assert next_rounds(found) == rounds


def test_the_operator_is_told_to_measure_fewer_nodes_where_too_many_ranks_would_meet() -> None:
    verdicts = judge_fabric(of_ranks(MOST_RANKS + 1)).values()
    assert {verdict.state for verdict in verdicts} == {State.NOT_RUN}
    assert all("--limit" in verdict.reason for verdict in verdicts)


#: Eight ranks on each of six nodes reach 2.8 GB/s.
@each(
    (None, {}, True),  # nobody knows what is fast
    (2.9, {}, False),
    (20.0, {}, True),
    (20.0, {"floor_gb_s": 2.0}, False),
    (2.9, {"floor_gb_s": 2.85}, True),
    (2.9, {"pairs": Pairs.ALWAYS}, True),
    (None, {"pairs": Pairs.NEVER}, False),
    (20.0, {"floor_gb_s": 2.85, "pairs": Pairs.NEVER}, False),
)
def test_pairs_are_measured_unless_all_together_are_known_to_be_fast(
    link_gb_s: float | None, changes: dict[str, Any], searched: bool
) -> None:
    whole = {
        name: dataclasses.replace(
            attempt, part=dataclasses.replace(attempt.part or Part(FABRIC_VERSION, name), link_gb_s=link_gb_s)
        )
        for name, attempt in attempts(NAMES).items()
    }
    assert bool(next_rounds(fleet(whole, **changes))) is searched


def test_one_node_whose_links_are_not_known_is_enough_to_not_know() -> None:
    whole = attempts(NAMES)
    for name in NAMES[1:]:
        known = dataclasses.replace(part(name, slow_rank()), link_gb_s=0.01)
        whole[name] = Attempt(NAMES, known)
    assert next_rounds(fleet(whole))


@each(Pairs.AUTO, Pairs.ALWAYS)
def test_when_all_fail_pairs_are_measured(pairs: Pairs) -> None:
    hung = attempts(NAMES, **{name: bad_rank(name) for name in NAMES})
    assert next_rounds(fleet(hung, pairs=pairs)) == [[("a", "f"), ("b", "e"), ("c", "d")]]
    assert len(next_rounds(fleet(hung, pairs=pairs, pair_rounds=4))) == 4
    assert len(next_rounds(fleet(hung, pairs=pairs, pair_rounds=99))) == 5
    assert next_rounds(fleet(hung, pairs=Pairs.NEVER)) == []


def test_a_search_that_finds_nothing_measures_one_round_of_pairs() -> None:
    assert len(measured(names_of(8)).rounds) == 2


def test_who_is_left_over_meets_a_good_node_as_well() -> None:
    found = measured(names_of(7))
    assert len(found.rounds) == 3
    assert {name for attempts_ in found.rounds[1:] for name in attempts_} == set(names_of(7))


def test_more_suspects_than_good_nodes_all_meet_one() -> None:
    names = names_of(12)
    bad = names[1:6]  # each of them spoils a pair: one pair is left
    found = measured(names, bad)
    assert {name for name, state in states(found).items() if state == "fail"} == set(bad)


@each(*HOW.values())
@each(*SIZES)
def test_a_single_bad_node_is_named_and_nobody_else(count: int, how: object) -> None:
    names = names_of(count)
    for bad in names:
        found = measured(names, [bad], how=how)  # type: ignore[arg-type]
        assert states(found) == {name: "fail" if name == bad else "pass" for name in names}
        assert findings(found)[bad].code == "fabric-node"


@each(*HOW.values())
@each(*SIZES)
def test_a_single_bad_link_is_named_by_both_its_ends_and_condemns_neither(count: int, how: object) -> None:
    names = names_of(count)
    for ends in itertools.combinations(names, 2):
        found = measured(names, bad_links=[ends], how=how, pair_rounds=count)  # type: ignore[arg-type]
        said = findings(found)
        assert said.keys() == set(ends)
        for finding in said.values():
            assert finding.code == "fabric-link"
            assert all(name in finding.text for name in ends)


@each(*HOW.values())
@each(*range(4, 13))
def test_two_bad_nodes_are_named_and_nobody_else(count: int, how: object) -> None:
    names = names_of(count)
    for bad in itertools.combinations(names, 2):
        # Of five nodes two slow ones can spoil all pairs of a round, so that nothing is there to compare.
        rounds = count if count == 5 else 1
        found = measured(names, bad, how=how, pair_rounds=rounds)  # type: ignore[arg-type]
        assert {name for name, state in states(found).items() if state != "pass"} == set(bad)
        assert {finding.code for finding in findings(found).values()} == {"fabric-node"}


@given(
    st.integers(3, 12),
    st.sets(st.integers(0, 11), max_size=5),
    st.sets(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=4),
    st.sampled_from(list(HOW)),
    st.integers(1, 12),
)
def test_the_search_ends_whatever_is_bad(
    count: int, nodes: set[int], links: set[tuple[int, int]], how: str, pair_rounds: int
) -> None:
    names = names_of(12)
    ends = [(names[a], names[b]) for a, b in links if a != b]
    bad = [names[number] for number in nodes]
    found = measured(names[:count], bad, ends, HOW[how], pair_rounds=pair_rounds)
    # Nobody is condemned alone who has nothing wrong and no bad link.
    touched = {*bad, *(name for pair in ends for name in pair)}
    alone = {name for name, finding in findings(found).items() if finding.code == "fabric-node"}
    assert alone <= touched


@given(st.permutations(names_of(9)), st.sets(st.sampled_from(names_of(9)), max_size=2))
def test_the_order_of_the_nodes_changes_no_verdict(order: list[str], bad: set[str]) -> None:
    assert states(measured(order, bad)) == states(measured(names_of(9), bad))


@given(st.integers(5, 12), st.integers(1, 9), st.sets(st.integers(0, 4), max_size=2))
def test_more_healthy_nodes_change_no_verdict(count: int, more: int, bad: set[int]) -> None:
    names, spoilt = names_of(count), [f"n{number:02}" for number in bad]
    before, after = states(measured(names, spoilt)), states(measured(names_of(count + more), spoilt))
    assert {name: after[name] for name in names} == before


def test_a_pair_that_has_the_network_for_itself_makes_no_other_slow() -> None:
    names = tuple(names_of(7))
    found = fleet(attempts(names), names=names)
    (round_of_pairs,) = next_rounds(found)
    found = dataclasses.replace(found, rounds=(*found.rounds, attempts(*round_of_pairs)))
    ((alone,),) = next_rounds(found)
    faster = attempts(alone, **{name: good_rank(0.001) for name in alone})
    found = dataclasses.replace(found, rounds=(*found.rounds, faster))
    assert set(states(found).values()) == {"pass"}


@each(*range(5, 10))
def test_a_slow_node_is_found_beside_others_that_hang(count: int) -> None:
    """Who hangs can leave the slow one in every pair that works, with none to compare them with."""
    names = names_of(count)
    for slow, *hang in itertools.permutations(names, 2 if count < 7 else 3):
        found = fleet(names=tuple(names))
        while rounds := next_rounds(found):
            assert len(found.rounds) < 3 * count, (slow, hang)
            for groups in rounds:
                ranks = {
                    name: bad_rank(name) if set(hang) & set(group) else slow_rank()
                    for group in groups
                    if {slow, *hang} & set(group)
                    for name in group
                }
                found = dataclasses.replace(found, rounds=(*found.rounds, attempts(*groups, **ranks)))
        blamed = {name for name, one in findings(found).items() if one.code == "fabric-node"}
        assert blamed == {slow, *hang}, (slow, hang)


def test_a_node_that_drops_out_is_left_out_of_what_follows() -> None:
    hung = attempts(NAMES, **{name: bad_rank(name) for name in NAMES})
    hung["c"] = Attempt(NAMES, None, "the connection broke")
    pairs = next_rounds(fleet(hung))[0]
    assert "c" not in {name for pair in pairs for name in pair}
    again = attempts(*pairs, **{name: bad_rank(name) for name in pairs[0]})
    again[pairs[0][0]] = Attempt(pairs[0], None, "the connection broke")
    later = [name for groups in next_rounds(fleet(hung, again)) for pair in groups for name in pair]
    assert pairs[0][1] in later
    assert not {"c", pairs[0][0]} & set(later)
