"""By the tree, in leaves of one to four nodes: verdicts on random faults, compared with what was planted.

`python -m tests.unit.validation.test_fabric_small_trees FIRST LAST` counts verdicts on many trees.
"""

from __future__ import annotations

import random
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from tests.unit.validation.fabric_network import Network
from validation.fabric.levels import most_rounds
from validation.fabric.verdict import judge_fabric
from validation.model.contract import State

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from validation.fabric.groups import Fleet
    from validation.verdict.verdicts import TestVerdict

TREES = 60


@dataclass(frozen=True)
class Planted:
    """A tree with two to four leaves and what is bad in it: nodes that hang or are slow, slow uplinks."""

    network: Network
    bad: frozenset[str]
    uplinks: frozenset[str]

    @classmethod
    def at_random(cls, seed: int) -> Planted:
        chance = random.Random(seed)
        sizes = [chance.randint(1, 4) for _ in range(chance.randint(2, 4))]
        leaves = [f"leaf0-{number:02}" for number in range(len(sizes))]
        nodes = [f"n0-{leaf:02}-{node:02}" for leaf, size in enumerate(sizes) for node in range(size)]
        bad = chance.sample(nodes, min(len(nodes), chance.choice([0, 1, 1, 2, 2])))
        hang = frozenset(name for name in bad if chance.random() < 0.5)
        uplinks = frozenset({chance.choice(leaves)} if chance.random() < 0.3 else set())
        slow: dict[Hashable, float] = {name: chance.uniform(0.1, 0.35) for name in bad if name not in hang}
        slow |= {f"up {leaf}": chance.uniform(0.1, 0.35) for leaf in uplinks}
        network = Network(
            1,
            len(sizes),
            max(sizes),
            slow,
            hang,
            scatter=0.01,
            disturbed=0.0,
            seed=seed,
            sizes=dict(zip(leaves, sizes, strict=True)),
        )
        return cls(network, frozenset(bad), uplinks)

    @property
    def good(self) -> frozenset[str]:
        return frozenset(self.network.members) - self.bad

    def mates(self, name: str) -> frozenset[str]:
        """The nodes of a node's leaf, with itself."""
        leaf = self.leaf(name)
        return frozenset(one.name for one in self.network.members.values() if one.leaf == leaf)

    def leaf(self, name: str) -> str:
        return self.network.members[name].leaf

    def can_be_told(self, name: str) -> bool:
        """Whether measurements can tell that this node is bad, and neither another one nor a way between.

        Two good ones must have been bad with it. Across leaves that counts where the ways up are good.
        """
        inside, outside = self.good & self.mates(name), self.good - self.mates(name)
        return len(inside) > 1 or bool(inside and outside and not self.uplinks)


def measured(planted: Planted) -> tuple[Fleet, dict[str, TestVerdict]]:
    fleet = planted.network.search(planted.network.fleet())
    return fleet, judge_fabric(fleet)


def mistakes(planted: Planted, verdicts: dict[str, TestVerdict]) -> Iterator[str]:
    """What is said of whom it is not true of, and what is not said though it can be told."""
    codes = {name: {finding.code for finding in test.findings} for name, test in verdicts.items()}
    for name, said in codes.items():
        mates = planted.mates(name)
        if "fabric-node" in said and name not in planted.bad:
            yield f"{name} is accused"
        if "fabric-switch" in said and not mates & planted.bad:
            yield f"all of the leaf of {name} is accused"
        if "fabric-uplink" in said and planted.leaf(name) not in planted.uplinks and not mates <= planted.bad:
            yield f"the uplink of {name} is accused"
        if "fabric-link" in said and not planted.uplinks:
            yield f"a way from {name} is accused"
    for name in planted.bad:
        if planted.can_be_told(name) and "fabric-node" not in codes[name]:
            yield f"{name} is not named"
    told = all(planted.can_be_told(name) for name in planted.bad)
    if told and not planted.uplinks:
        yield from (
            f"{name} is {verdicts[name].state}"
            for name in planted.good
            if verdicts[name].state is not State.PASS
        )


@pytest.mark.parametrize("seed", range(TREES))
def test_in_small_leaves_who_can_be_told_is_named_and_nobody_else(seed: int) -> None:
    planted = Planted.at_random(seed)
    fleet, verdicts = measured(planted)
    assert list(mistakes(planted, verdicts)) == [], planted
    assert len(fleet.rounds) <= most_rounds(fleet)


def main(first: int, last: int) -> None:
    """Print mistakes, and how often who can be told, and who cannot, is said to be what."""
    said: dict[bool, Counter[str]] = defaultdict(Counter)
    wrong, rounds = 0, Counter[int]()
    for seed in range(first, last):
        planted = Planted.at_random(seed)
        fleet, verdicts = measured(planted)
        for mistake in mistakes(planted, verdicts):
            wrong += 1
            print(
                seed, mistake, dict(planted.network.sizes), planted.network.slow, sorted(planted.network.hang)
            )
        rounds[len(fleet.rounds)] += 1
        for name in planted.bad:
            codes = sorted({finding.code for finding in verdicts[name].findings})
            said[planted.can_be_told(name)][" ".join(codes) or str(verdicts[name].state)] += 1
    print(f"{last - first} trees, {wrong} mistakes; at most {max(rounds)} rounds")
    for told, counts in said.items():
        print("can be told:" if told else "cannot be told:", dict(counts.most_common()))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
