"""Between nodes: which node or link is to blame, and when nobody is, on made-up rounds."""

import dataclasses
from collections.abc import Callable
from typing import Any

from temper.judge.fabric import judge_fabric
from temper.judge.fabric_search import circle_rounds, next_rounds
from tests.unit.each import each
from tests.unit.validation.fabric_rounds import (
    NAMES,
    SIZE,
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
from validation.fabric.groups import Attempt, Fleet, Pairs, Part, Rank, groups_of
from validation.model.contract import FABRIC_VERSION, Finding, State

HUNG = attempts(
    NAMES, **{name: bad_rank(name, stage="warming up with all-reduce of 16 MiB") for name in NAMES}
)
PAIRS = [("a", "f"), ("b", "e"), ("c", "d")]
#: c and d failed with each other; a and b, which did well, try them.
C_AND_D = attempts(*PAIRS, c=bad_rank("c"), d=bad_rank("d"))


MEASURING = f"measuring all-reduce of {SIZE >> 20} MiB"


@each(
    {"steps": 22},
    {"steps": 23, "halted": "stopped by a signal"},
    {"stage": "preparing all-reduce of 16 MiB", "steps": 24},
)
def test_of_nodes_that_hang_the_one_that_does_not_run_or_stands_behind_is_suspect(
    changes: dict[str, Any],
) -> None:
    ranks = {name: hung_rank(name, 23) for name in NAMES}
    ranks["c"] = dataclasses.replace(ranks["c"], **changes)
    (whole,) = groups_of(attempts(NAMES, **ranks))
    assert list(whole.suspects) == ["c"]


def test_of_nodes_that_hang_in_the_same_run_all_are_suspects() -> None:
    (whole,) = groups_of(attempts(NAMES, **{name: hung_rank(name, 23) for name in NAMES}))
    assert sorted(whole.suspects) == sorted(NAMES)


@each((100.2, "c"), (99.8, "c"), (40.0, "d"))
def test_who_dies_when_a_node_gives_its_ranks_up_is_not_to_blame(died_at: float, suspect: str) -> None:
    """The ranks of d see those of others go at 100; or it died long before, and the others hung."""
    ranks = {name: hung_rank(name, 23) for name in NAMES}
    ranks["c"] = hung_rank("c", 22)
    ranks["d"] = dataclasses.replace(ranks["d"], ending="died", ended_at=died_at)
    (whole,) = groups_of(attempts(NAMES, **ranks))
    assert list(whole.suspects) == [suspect]


def hung_rank(name: str, steps: int) -> Rank:
    return dataclasses.replace(bad_rank(name, stage=MEASURING), steps=steps)


def wrong_rank(name: str) -> Rank:
    text = f"{name} rank 0: 1 of the numbers are wrong"
    wrong = Finding("wrong-result", State.FAIL, text, "take it out")
    return dataclasses.replace(good_rank(), findings=(wrong,))


def test_the_node_that_fails_with_good_partners_is_to_blame_and_only_it() -> None:
    assert next_rounds(fleet(HUNG, C_AND_D)) == [[("a", "c"), ("f", "d")]]
    suspects = attempts(("a", "c"), ("f", "d"), f=bad_rank("f"), d=bad_rank("d"))
    found = fleet(HUNG, C_AND_D, suspects)
    assert states(found) == {name: "fail" if name == "d" else "pass" for name in NAMES}
    finding = findings(found)["d"]
    assert finding.code == "fabric-node"
    assert finding.text.startswith("d fails with c, f, which did well with others: d rank 0 gave no result")


def test_one_good_node_is_not_enough_to_condemn_another() -> None:
    both = attempts(("a", "c"), ("f", "d"), **{name: bad_rank(name) for name in "acfd"})
    found = fleet(HUNG, C_AND_D, both)
    assert next_rounds(found) == [[("f", "c"), ("a", "d")]]
    again = attempts(("f", "c"), ("a", "d"), d=bad_rank("d"), a=bad_rank("a"))
    found = fleet(HUNG, C_AND_D, both, again)
    # a and c are both good now, and were bad with each other.
    assert next_rounds(found) == [[("a", "c")]]
    said = findings(dataclasses.replace(found, rounds=(*found.rounds, attempts(("a", "c"), a=bad_rank("a")))))
    assert {name: finding.code for name, finding in said.items()} == {
        "a": "fabric-link",  # c did well with f
        "c": "fabric-link",
        "d": "fabric-node",
    }


def test_two_good_nodes_that_were_slow_with_each_other_only_once_are_not_blamed() -> None:
    rounds = [attempts(*pairs) for pairs in circle_rounds(NAMES)]
    disturbed = attempts(*PAIRS, c=slow_rank(), d=slow_rank())
    found = fleet(attempts(NAMES), disturbed, *rounds[1:], pair_rounds=5)
    assert next_rounds(found) == [[("c", "d")]]
    again = dataclasses.replace(found, rounds=(*found.rounds, attempts(("c", "d"))))
    assert next_rounds(again) == []
    assert set(states(again).values()) == {"pass"}
    slow_again = attempts(("c", "d"), c=slow_rank())
    found = dataclasses.replace(found, rounds=(*found.rounds, slow_again))
    assert {finding.code for finding in findings(found).values()} == {"fabric-link"}


def test_a_slow_pair_that_nobody_was_left_to_meet_does_not_pass_because_all_together_worked() -> None:
    found = fleet(attempts(NAMES), attempts(*PAIRS, c=slow_rank(), d=slow_rank()))
    assert states(found) == dict.fromkeys("abef", "pass") | dict.fromkeys("cd", "degraded")
    assert findings(found)["c"].code == "fabric-unresolved"


def test_ranks_that_did_not_measure_the_same_are_no_number_and_cost_no_report() -> None:
    other = dataclasses.replace(good_rank(), seconds={f"all_reduce {SIZE}": (0.01,) * 4})
    found = fleet(attempts(("a", "b"), b=other), names=("a", "b"))
    assert set(states(found).values()) == {"fail"}
    assert "its ranks did not measure the same" in findings(found)["a"].text
    none = fleet(attempts(("a", "b"), b=dataclasses.replace(other, seconds={})), names=("a", "b"))
    assert set(states(none).values()) == {"fail"}


def test_a_slow_node_is_found_by_pairs() -> None:
    found = measured(NAMES, ["c"], how=lambda _: slow_rank())
    assert states(found) == {name: "fail" if name == "c" else "pass" for name in NAMES}
    text = findings(found)["c"].text
    assert text == (
        "c reaches 0.17 GB/s with d, a, which did well with others, the best pair 1.68 GB/s: "
        "its network is slow"
    )


SMALL = 4 << 20


def sized_rank(small_s: float, large_s: float | None = None) -> Rank:
    """One that measured the small size, and the large one if there was time."""
    seconds: dict[str, tuple[float, ...]] = {f"all_reduce {SMALL}": (small_s,) * 5}
    if large_s is not None:
        seconds[f"all_reduce {SIZE}"] = (large_s,) * 5
    return dataclasses.replace(good_rank(), seconds=seconds)


def test_a_slow_pair_is_found_at_the_size_that_all_measured() -> None:
    def round_of(*pairs: tuple[str, ...]) -> dict[str, Attempt]:
        names = {
            name: sized_rank(0.1) if "c" in pair else sized_rank(0.01, 0.01)
            for pair in pairs
            for name in pair
        }
        return attempts(*pairs, **names)

    found = fleet(attempts(NAMES), round_of(*PAIRS), round_of(("a", "c"), ("f", "d")), round_of(("f", "c")))
    assert next_rounds(found) == []
    assert states(found) == {name: "fail" if name == "c" else "pass" for name in NAMES}
    assert "c reaches 0.04 GB/s with d, a, f, " in findings(found)["c"].text
    assert "the best pair 0.42 GB/s" in findings(found)["c"].text


#: Half of its runs are as fast as everybody's.
DISTURBED = dataclasses.replace(good_rank(), seconds={f"all_reduce {SIZE}": (0.01, 0.01, 0.1, 0.1, 0.1)})
LONG = {name: sized_rank(0.01, 0.01) for name in NAMES}
BELOW = attempts(*PAIRS, c=good_rank(0.013), d=good_rank(0.013))


@each(
    fleet(attempts(NAMES), attempts(*PAIRS, a=good_rank(0.013)), pairs=Pairs.ALWAYS),  # all pairs are alike
    fleet(attempts(NAMES), attempts(*PAIRS, c=DISTURBED)),
    fleet(attempts(NAMES), BELOW, floor_gb_s=1.5, pairs=Pairs.ALWAYS),  # all together reach the floor
    # Larger sizes reach four times the rate. c and d, or all together, had no time for them.
    fleet(attempts(NAMES), attempts(*PAIRS, **LONG | {name: sized_rank(0.01) for name in "cd"})),
    fleet(attempts(NAMES, **{name: sized_rank(0.01) for name in NAMES}), attempts(*PAIRS, **LONG)),
)
def test_what_is_as_fast_as_the_others_is_not_slow(found: Fleet) -> None:
    assert next_rounds(found) == []
    assert set(states(found).values()) == {"pass"}


@each(
    (measured(NAMES, ["c"], how=lambda _: good_rank(0.018), floor_gb_s=1.6), "fabric-node"),
    (measured(NAMES, ["c"], how=lambda _: slow_rank(), floor_gb_s=2.0), "fabric-node"),
    (measured(NAMES, ["c"], how=wrong_rank), "wrong-result"),
)
def test_what_one_node_does_to_its_group_is_that_nodes_fault(found: Fleet, code: str) -> None:
    assert states(found) == {name: "fail" if name == "c" else "pass" for name in NAMES}
    assert findings(found)["c"].code == code


def linked(link_gb_s: float, *rounds: dict[str, Attempt], **changes: Any) -> Fleet:
    """A fleet of nodes with such links; all together are slow, all pairs alike."""
    slow = attempts(NAMES, **{name: slow_rank() for name in NAMES})
    whole = {
        name: dataclasses.replace(one, part=dataclasses.replace(one.part, link_gb_s=link_gb_s))
        for name, one in slow.items()
        if one.part
    }
    return fleet(whole, *rounds, **changes)


@each(
    (linked(1.0, attempts(*PAIRS)), State.DEGRADED, "the links of the slowest node carry 1.00 GB/s; pairs"),
    (linked(1.0, attempts(*PAIRS), floor_gb_s=2.0), State.FAIL, "the floor is 2.00 GB/s; pairs of nodes"),
    (linked(1.0, floor_gb_s=2.0, pairs=Pairs.NEVER), State.FAIL, "no pairs of nodes were measured"),
    (linked(0.3, floor_gb_s=2.0, pairs=Pairs.NEVER), State.FAIL, "0.28 GB/s, the floor is 2.00"),
    (linked(0.3, attempts(*PAIRS)), State.DEGRADED, "0.28 GB/s; pairs of nodes reach 1.68 to 1.68"),
    (linked(1.0, library="gloo", pairs=Pairs.NEVER), State.PASS, ""),
    (linked(1.0, attempts(*PAIRS), library="gloo"), State.DEGRADED, "carry 1.00 GB/s"),
)
def test_a_whole_that_is_slow_with_good_pairs_is_the_fault_of_no_node(
    found: Fleet, state: State, words: str
) -> None:
    assert set(states(found).values()) == {str(state)}
    for finding in findings(found).values():
        assert (finding.code, finding.state) == ("fabric-slow", state)
        assert finding.text.startswith("all 6 nodes together reach 0.28 GB/s")
        assert words in finding.text


def test_the_rate_of_the_links_makes_no_node_slow_that_is_about_as_fast_as_the_others() -> None:
    """60 % of the links are 1.60 GB/s: c reaches 1.57, the others 1.68."""
    found = linked(2.667, attempts(*PAIRS, c=good_rank(0.0107)))
    assert next_rounds(found) == []
    assert set(states(found).values()) == {"degraded"}
    assert {finding.code for finding in findings(found).values()} == {"fabric-slow"}


@each((lambda _: slow_rank(), 0, "degraded"), (lambda _: slow_rank(), 2, "fail"), (bad_rank, 0, "fail"))
def test_a_slow_link_fails_only_what_was_asked_for(how: object, floor_gb_s: float, state: str) -> None:
    links = [("b", "e")]
    found = measured(NAMES, bad_links=links, how=how, floor_gb_s=floor_gb_s)  # type: ignore[arg-type]
    assert states(found) == dict.fromkeys("acdf", "pass") | dict.fromkeys("be", state)
    assert findings(found)["b"].code == "fabric-link"


@each({name: bad_rank(name) for name in NAMES}, {})
def test_where_every_pair_fails_or_only_all_together_do_nobody_is_blamed_alone(bad: dict[str, Rank]) -> None:
    found = fleet(HUNG, attempts(*PAIRS, **bad))
    assert {finding.code for finding in findings(found).values()} == {"fabric-unresolved"}
    assert set(states(found).values()) == {"fail"}


@each(
    (bad_rank("a", stage="warming up with all-reduce of 16 MiB"), bad_rank("b"), "meeting the other ranks"),
    (bad_rank("a", "died", at=109.0), bad_rank("b", "died", at=100.0), "b rank 0 gave no result"),
)
def test_of_two_nodes_the_one_that_got_less_far_or_died_first_is_named(a: Rank, b: Rank, said: str) -> None:
    found = findings(fleet(attempts(("a", "b"), a=a, b=b), names=("a", "b")))
    assert {name: one.code for name, one in found.items()} == {"a": "fabric-unresolved", "b": "fabric-node"}
    assert said in found["b"].text


def test_a_node_that_cannot_take_part_is_not_run_and_so_are_those_that_waited_for_it() -> None:
    ranks = {name: bad_rank(name) for name in ("a", "b")}
    first = attempts(("a", "b", "c"), **ranks)
    first["c"] = Attempt(("a", "b", "c"), Part(FABRIC_VERSION, "c", not_run="torch is built without CUDA"))
    verdicts = judge_fabric(fleet(first, names=("a", "b", "c")))
    assert {str(verdict.state) for verdict in verdicts.values()} == {"not-run"}
    assert verdicts["c"].reason == "torch is built without CUDA"
    assert verdicts["a"].reason == "not all nodes could take part (c: torch is built without CUDA)"


def test_a_node_without_ranks_measured_nothing() -> None:
    whole = attempts(NAMES)
    whole["c"] = Attempt(NAMES, Part(FABRIC_VERSION, "c"))
    found = fleet(whole, pairs=Pairs.NEVER)
    assert set(states(found).values()) == {"not-run"}
    assert judge_fabric(found)["c"].reason == "it brought nothing of any rank"


def without_c(link_gb_s: float | None = None, **changes: Any) -> Fleet:
    """A fleet of which c could not take part; all pairs of the others reach 1.68 GB/s."""
    waited = {name: dataclasses.replace(part(name, bad_rank(name)), link_gb_s=link_gb_s) for name in NAMES}
    first = {name: Attempt(NAMES, waited[name]) for name in NAMES}
    first["c"] = Attempt(NAMES, None, "the connection broke")
    found = fleet(first, **changes)
    while rounds := next_rounds(found):
        found = dataclasses.replace(found, rounds=(*found.rounds, *(attempts(*pairs) for pairs in rounds)))
    return found


@each(
    (without_c(), State.PASS, "no floor, and no known rate of the links"),
    (without_c(floor_gb_s=1.5), State.PASS, "against a floor of 1.50 GB/s"),
    (without_c(link_gb_s=2.0), State.PASS, "the links of the slowest node carry 2.00 GB/s"),
    (without_c(floor_gb_s=100.0), State.FAIL, "the floor is 100 GB/s; pairs of nodes reach 1.68"),
    (without_c(link_gb_s=10.0), State.DEGRADED, "the links of the slowest node carry 10.0 GB/s; pairs"),
    (without_c(link_gb_s=10.0, library="gloo"), State.PASS, "the slowest node carry 10.0 GB/s"),
)
def test_those_that_can_are_paired_without_it_and_held_against_what_is_expected(
    found: Fleet, state: State, words: str
) -> None:
    assert states(found) == {name: "not-run" if name == "c" else str(state) for name in NAMES}
    for name, verdict in judge_fabric(found).items():
        (said,) = (*(one.text for one in verdict.findings), *verdict.notes, *([words] if name == "c" else []))
        assert words in said


def test_a_floor_that_no_pair_reaches_counts_beside_a_bad_node_too() -> None:
    found = measured(NAMES, ["c"], floor_gb_s=100.0)
    assert set(states(found).values()) == {"fail"}
    assert {name: one.code for name, one in findings(found).items() if one.code != "fabric-slow"} == {
        "c": "fabric-node"
    }


@each(bad_rank, lambda name: bad_rank(name, "died"))
def test_a_pair_that_fails_is_not_excused_by_a_node_that_could_not_take_part(
    how: Callable[[str], Rank],
) -> None:
    names = ("a", "b", "c")
    first = attempts(names, **{name: bad_rank(name) for name in names})
    first["c"] = Attempt(names, None, "the connection broke")
    found = fleet(first, attempts(("a", "b"), a=how("a"), b=how("b")), names=names)
    assert next_rounds(found) == []
    assert states(found) == {"a": "fail", "b": "fail", "c": "not-run"}
    assert {finding.code for finding in findings(found).values()} == {"fabric-unresolved"}


def test_a_note_does_not_say_that_there_was_no_floor_where_there_was() -> None:
    found = measured(NAMES, ["c"], how=lambda _: slow_rank(), floor_gb_s=2.0)
    assert judge_fabric(found)["a"].notes == (
        "compared with pairs of nodes only (1.68 to 1.68 GB/s): against a floor of 2.00 GB/s",
    )


def test_wrong_numbers_are_the_fault_of_the_node_that_has_them() -> None:
    wrong = Finding("wrong-result", State.FAIL, "b rank 1: 1 of the numbers are wrong", "take it out")
    first = attempts(("a", "b"), b=dataclasses.replace(good_rank(), findings=(wrong,)))
    found = fleet(first, names=("a", "b"))
    assert findings(found)["b"] == wrong
    assert states(found)["b"] == "fail"


def test_what_is_measured_stands_beside_the_node() -> None:
    verdict = judge_fabric(fleet(attempts(NAMES)))["a"]
    assert (verdict.state, verdict.headline) == (State.PASS, "2.80 GB/s")


def test_wrong_numbers_over_a_bad_link_are_the_fault_of_no_node() -> None:
    found = measured(NAMES, bad_links=[("b", "e")], how=wrong_rank)
    assert states(found) == {name: "fail" if name in "be" else "pass" for name in NAMES}
    assert {finding.code for finding in findings(found).values()} == {"fabric-link"}
    assert "fail with each other (b rank 0: 1 of the numbers" in findings(found)["b"].text


def test_wrong_numbers_of_one_node_alone_fail_no_other_though_they_do_not_come_again() -> None:
    found = fleet(attempts(NAMES, b=wrong_rank("b")), attempts(*PAIRS))
    assert next_rounds(found) == []
    assert states(found) == {name: "fail" if name == "b" else "pass" for name in NAMES}
    assert findings(found)["b"].code == "wrong-result"


def test_a_node_that_is_only_slow_is_no_excuse_for_wrong_numbers() -> None:
    pairs = attempts(*PAIRS, c=slow_rank(), d=slow_rank())
    again = attempts(("a", "c"), ("f", "d"), c=slow_rank())
    slow = fleet(
        attempts(NAMES, a=wrong_rank("a"), c=slow_rank()), pairs, again, attempts(("f", "c"), c=slow_rank())
    )
    assert next_rounds(slow) == []
    assert states(slow) == {name: "fail" if name in "ac" else "pass" for name in NAMES}
    assert findings(slow)["a"].code == "wrong-result"


def test_wrong_numbers_without_the_node_that_is_to_blame_are_not_excused_by_it() -> None:
    """Those of e came in a pair with b: c, which hangs, was in another one."""
    pairs = attempts(*PAIRS, e=wrong_rank("e"), c=bad_rank("c"), d=bad_rank("d"))
    again = attempts(("a", "b"), ("f", "e"))
    found = fleet(HUNG, pairs, again, attempts(("a", "c"), ("f", "d"), c=bad_rank("c"), a=bad_rank("a")))
    found = dataclasses.replace(
        found, rounds=(*found.rounds, attempts(("f", "c"), ("b", "e"), f=bad_rank("f"), c=bad_rank("c")))
    )
    assert states(found) == {name: "fail" if name in "ce" else "pass" for name in NAMES}
    assert {name: one.code for name, one in findings(found).items()} == {
        "c": "fabric-node",
        "e": "wrong-result",
    }


def test_a_node_that_is_lost_among_the_pairs_is_not_run() -> None:
    lost = attempts(*PAIRS)
    lost["c"] = Attempt(("c", "d"), None, "the connection broke")
    found = fleet(attempts(NAMES), lost)
    assert states(found) == {name: "not-run" if name == "c" else "pass" for name in NAMES}


@each(
    (fleet(attempts(NAMES), pairs=Pairs.NEVER), "not compared: no floor was given, and the rate"),
    (fleet(attempts(NAMES), floor_gb_s=2.0), "at or above the floor of 2.00 GB/s"),
    (fleet(attempts(NAMES), attempts(*PAIRS)), "compared with pairs of nodes only (1.68 to 1.68 GB/s)"),
)
def test_a_pass_says_what_it_was_compared_with(found: Fleet, note: str) -> None:
    for verdict in judge_fabric(found).values():
        (said,) = verdict.notes
        assert said.startswith(note)


def test_what_there_was_no_time_for_is_said() -> None:
    whole = {
        name: dataclasses.replace(one, part=dataclasses.replace(one.part, left_out=("all-reduce of 1 MiB",)))
        for name, one in attempts(NAMES).items()
        if one.part
    }
    verdict = judge_fabric(fleet(whole))["a"]
    assert verdict.notes[0] == "left out, for want of time or memory: all-reduce of 1 MiB"
