"""A made-up network of leaves and pods that shares its links: what each group of a round reaches on it.

Each group is a ring. Of every link a group uses, it gets its share among all groups of the round; a ring is
as fast as its slowest hop. Leaves have as much uplink as their nodes can send, pods have `pod_share` of it.
On top lies what chance does: a scatter of some per cent, and now and then a measurement that something else
disturbed.
"""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.unit.validation.fabric_rounds import SIZE
from validation.fabric.groups import Attempt, Fleet, Member, Pairs, Part, Rank
from validation.fabric.tree_search import next_step
from validation.model.contract import FABRIC_VERSION

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

RUNS = 5
NODE_GB_S = 400.0


@dataclass
class Network:
    """Pods of leaves of nodes; what is slow keeps the given part of its rate."""

    pods: int
    leaves: int  # of each pod
    nodes: int  # of each leaf, but those in `sizes`
    slow: dict[Hashable, float] = field(
        default_factory=dict
    )  # node, "leaf X", "up X", frozenset of two nodes
    hang: frozenset[str] = frozenset()
    scatter: float = 0.025
    disturbed: float = 0.002  # of all measurements
    pod_share: float = 1.0
    seed: int = 0
    ranks: int = 8
    sizes: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Chance that repeats itself."""
        self.chance = random.Random(self.seed)
        self.members = {member.name: member for member in self._members()}

    def _members(self) -> Iterator[Member]:
        for pod in range(self.pods):
            for leaf in range(self.leaves):
                leaf_name = f"leaf{pod}-{leaf:02}"
                for node in range(self.sizes.get(leaf_name, self.nodes)):
                    name = f"n{pod}-{leaf:02}-{node:02}"
                    pod_name = f"pod{pod}" if self.pods > 1 else ""
                    yield Member(name, name, self.ranks, leaf_name, pod_name)

    def fleet(self, pairs: Pairs = Pairs.AUTO, **changes: int) -> Fleet:
        """Its nodes, of which nothing has been measured."""
        base = Fleet(FABRIC_VERSION, "nccl", "quick", 29511, pairs, tuple(self.members.values()))
        return dataclasses.replace(base, **changes)  # type: ignore[arg-type]

    def search(self, fleet: Fleet) -> Fleet:
        """The fleet, measured to the end."""
        while (step := next_step(fleet)).rounds:
            for groups in step.rounds:
                fleet = dataclasses.replace(fleet, rounds=(*fleet.rounds, self.measure(groups, step.name)))
        return fleet

    def measure(self, groups: Sequence[tuple[str, ...]], step: str) -> dict[str, Attempt]:
        """One round: all groups at once, and no node in two of them."""
        assert max(Counter(name for group in groups for name in group).values()) == 1
        flows = Counter(link for group in groups for link in self._links(group))
        found: dict[str, Attempt] = {}
        for group in groups:
            share = min(self._capacity(link) / flows[link] for link in self._links(group))
            rank = self._rank(group, min(share, NODE_GB_S))
            for name in group:
                part = Part(FABRIC_VERSION, name, (rank,), ("all_reduce",), (SIZE,))
                found[name] = Attempt(group, part, "", step)
        return found

    def _links(self, group: tuple[str, ...]) -> Iterator[Hashable]:
        """The links of a ring, each in the direction in which it is used, as often as it is."""
        for here, there in zip(group, (*group[1:], group[0]), strict=True):
            one, other = self.members[here], self.members[there]
            yield frozenset((here, there)), here
            yield here
            yield f"leaf {one.leaf}", here
            if one.leaf != other.leaf:
                yield f"up {one.leaf}"
            if one.pod != other.pod:
                yield f"up {one.pod}"

    def _capacity(self, link: Hashable) -> float:
        if isinstance(link, tuple):  # of this node alone: a pair's way, or its port in the leaf switch
            return NODE_GB_S * self.slow.get(link[0], 1.0)
        count, share = 1, 1.0
        if isinstance(link, str) and link.startswith("up "):
            above = link.removeprefix("up ")
            count = sum(above in {member.leaf, member.pod} for member in self.members.values())
            share = self.pod_share if link.startswith("up pod") else 1.0
        return NODE_GB_S * count * share * self.slow.get(link, 1.0)

    def _rank(self, group: tuple[str, ...], rate_gb_s: float) -> Rank:
        if set(group) & self.hang:
            return Rank("hung", "warming up", "rank 0 gave no result", 100.0)
        if self.chance.random() < self.disturbed:
            rate_gb_s *= self.chance.uniform(0.3, 0.9)  # all runs of it: another job had the network
        # One rank of each node stands for all of it.
        seconds = 2 * (len(group) - 1) / len(group) * SIZE / (rate_gb_s * 1e9)
        runs = tuple(seconds * (1 + abs(self._noise())) for _ in range(RUNS))
        return Rank("done", "leaving", "", 100.0, {f"all_reduce {SIZE}": runs})

    def _noise(self) -> float:
        """Scatter with a heavy tail: one run in twenty lies four times as far out."""
        wide = 4.0 if self.chance.random() < 0.05 else 1.0
        return self.chance.gauss(0.0, self.scatter * wide)
