"""Which nodes are worked on where: none twice at once, none forgotten, whatever breaks in whatever order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from temper.fleet.slices import ATTEMPTS, LOSSES, Board, NodeOutcome, Place, cut

NODES = [f"gpu{number:02}" for number in range(1, 8)]
FINE = NodeOutcome("ok")


def test_slices_are_as_few_as_possible_and_of_like_size() -> None:
    assert [len(part) for part in cut(NODES, 3)] == [2, 2, 3]
    assert [node for part in cut(NODES, 3) for node in part] == NODES
    assert cut([], 3) == []
    with pytest.raises(ValueError, match="at least one node, found 0"):
        cut(NODES, 0)


def test_a_place_gets_as_many_slices_as_it_may_and_the_freest_comes_first() -> None:
    board = Board.of(NODES, 1, [Place("a", 1), Place("b", 2)])
    assert [place for _, place in board.start()] == ["b", "a", "b"]
    assert board.start() == []


def test_a_lost_slice_comes_again_as_a_later_attempt() -> None:
    board = Board.of(NODES, 7, [Place("a", 1)])
    ((first, _),) = board.start()
    board.lose(first, "a: connection reset")
    ((second, _),) = board.start()
    assert (second.nodes, second.attempt) == (first.nodes, 2)


def test_a_node_of_which_nothing_was_heard_comes_again_alone() -> None:
    board = Board.of(NODES, 7, [Place("a", 1)])
    ((part, _),) = board.start()
    board.end(part, dict.fromkeys(NODES[1:], FINE))
    ((again, _),) = board.start()
    assert (again.nodes, again.attempt) == ((NODES[0],), 2)


def test_a_place_that_loses_slices_in_a_row_gets_no_more_and_the_run_says_so() -> None:
    board = Board.of(NODES, 7, [Place("a", 1)])
    for _ in range(LOSSES):
        ((part, _),) = board.start()
        board.lose(part, "a: no route to host")
    assert board.start() == []
    assert board.ended
    assert board.left == dict.fromkeys(NODES, "there is no place to run it: a: a: no route to host")


def test_one_whole_slice_clears_a_places_name() -> None:
    board = Board.of(NODES[:2], 1, [Place("a", 1)])
    ((first, _),) = board.start()
    board.lose(first, "broken pipe")
    ((second, _),) = board.start()
    board.end(second, dict.fromkeys(second.nodes, FINE))
    ((third, _),) = board.start()
    board.lose(third, "broken pipe")
    assert board.start()


def test_a_run_that_goes_on_comes_with_later_attempts_than_any_before() -> None:
    board = Board.of(NODES, 7, [Place("a", 9)], {"gpu02": 2, "gpu05": 2, "gpu07": 1})
    begun = {node: part.attempt for part, _ in board.start() for node in part.nodes}
    assert begun == {**dict.fromkeys(NODES, 1), "gpu02": 3, "gpu05": 3, "gpu07": 2}


@given(
    st.integers(1, 7),
    st.lists(st.integers(1, 3), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 20), st.sampled_from(["end", "part", "lose"])), max_size=80),
)
def test_a_node_is_at_one_place_at_a_time_and_never_forgotten(
    size: int, jobs: list[int], events: list[tuple[int, str]]
) -> None:
    board = Board.of(NODES, size, [Place(f"p{number}", count) for number, count in enumerate(jobs)])
    attempts = dict.fromkeys(NODES, 0)
    for choice, kind in [*events, *[(0, "end")] * 60]:
        for part, _ in board.start():
            for node in part.nodes:
                # Later than whatever may still be under way somewhere.
                assert part.attempt > attempts[node]
                assert part.attempt <= ATTEMPTS
                attempts[node] = part.attempt
        under_way = [node for part in board.running for node in part.nodes]
        waiting = [node for part in board.waiting for node in part.nodes]
        everywhere = [*under_way, *waiting, *board.outcomes, *board.lost]
        assert sorted(everywhere) == NODES
        for place in board.places:
            assert list(board.running.values()).count(place.name) <= place.jobs
        if not board.running:
            break
        part = sorted(board.running, key=lambda one: one.number)[choice % len(board.running)]
        if kind == "lose":
            board.lose(part, "lost")
        else:
            heard = part.nodes if kind == "end" else part.nodes[1:]
            board.end(part, dict.fromkeys(heard, FINE))
    assert board.ended
    assert sorted([*board.outcomes, *board.left]) == NODES


def test_a_later_stage_begins_when_the_earlier_one_has_ended_well_or_not() -> None:
    stages = {NODES[0]: 2, NODES[1]: 1}
    board = Board.of(NODES, 3, [Place("a", 9)], stages=stages)
    early = [part for part, _ in board.start()]
    assert {node for part in early for node in part.nodes} == {*NODES[2:]}
    board.lose(early[0], "broken pipe")
    board.end(early[1], dict.fromkeys(early[1].nodes, FINE))
    ((again, _),) = board.start()
    assert (again.nodes, again.stage) == (early[0].nodes, 0)
    for expected in (NODES[1], NODES[0]):
        board.end(again, dict.fromkeys(again.nodes, FINE))
        ((again, _),) = board.start()
        assert again.nodes == (expected,)
    assert board.left == {}
