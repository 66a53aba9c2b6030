"""Made-up rounds between nodes, which the tests of the search and of its verdict share."""

import dataclasses
from collections.abc import Callable, Collection, Sequence
from typing import Any

from temper.judge.fabric import judge_fabric
from temper.judge.fabric_search import next_rounds
from validation.fabric.groups import Attempt, Fleet, Member, Pairs, Part, Rank
from validation.model.contract import FABRIC_VERSION, Finding

#: So often rounds are asked for, at most: roles/gpu_validation/tasks/fabric_rounds.yml says which.
STAGES = 7
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
    return Part(FABRIC_VERSION, name, (rank,), ("all_reduce",), (SIZE,))


def slow_rank() -> Rank:
    return good_rank(0.1)


def attempts(*groups: tuple[str, ...], **ranks: Rank) -> dict[str, Attempt]:
    """A round in which everybody did well, but those that are named."""
    return {
        name: Attempt(group, part(name, ranks.get(name, good_rank()))) for group in groups for name in group
    }


def fleet(*rounds: dict[str, Attempt], names: tuple[str, ...] = NAMES, **changes: Any) -> Fleet:
    members = tuple(Member(name, f"192.0.2.{number}", 8) for number, name in enumerate(names))
    base = Fleet(FABRIC_VERSION, "nccl", "quick", 29511, Pairs.AUTO, members, rounds)
    return dataclasses.replace(base, **changes)


def states(found: Fleet) -> dict[str, str]:
    return {name: str(verdict.state) for name, verdict in judge_fabric(found).items()}


def findings(found: Fleet) -> dict[str, Finding]:
    return {name: test.findings[0] for name, test in judge_fabric(found).items() if test.findings}


def measured(
    names: Sequence[str],
    bad_nodes: Collection[str] = (),
    bad_links: Collection[Collection[str]] = (),
    how: Callable[[str], Rank] = bad_rank,
    **changes: Any,
) -> Fleet:
    """A fleet whose bad nodes and links spoil every group that they are in, searched to the end."""
    found = fleet(names=tuple(names), **changes)
    for _ in range(STAGES):
        rounds = next_rounds(found)
        for groups in rounds:
            spoilt = {
                name: how(name)
                for group in groups
                if set(bad_nodes) & set(group) or any(set(link) <= set(group) for link in bad_links)
                for name in group
            }
            found = dataclasses.replace(found, rounds=(*found.rounds, attempts(*groups, **spoilt)))
    assert next_rounds(found) == [], "the search does not end"
    return found
