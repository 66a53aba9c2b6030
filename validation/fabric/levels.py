"""Between many nodes: the levels of the network's tree, and the groups in which each of them is measured.

One rendezvous takes thousands of ranks badly, so that no group has more than 512. Inside a leaf all its nodes
measure together. Above that a group has one node of each leaf (of each pod), and all these groups measure at
once: every hop of theirs crosses the level, which so carries as much as all nodes can send. Pure functions.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from validation.model.contract import StringEnum

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from validation.fabric.groups import Fleet, Member

#: Of one rendezvous. Chosen, not measured: one store serves them all, and thousands connect to it badly.
MOST_RANKS = 512
#: The last step: one group over the whole tree.
TOGETHER = "together"


class Level(StringEnum):
    """Where groups measure: inside a leaf, between the leaves of a pod, between pods (or all leaves)."""

    LEAF = "leaf"
    POD = "pod"
    FLEET = "fleet"

    @property
    def pairs(self) -> str:
        """The step in which pairs of this level's units are measured."""
        return f"{self}-pairs"


@dataclass(frozen=True)
class Scope:
    """Siblings and what is above them: `units` by name with their nodes, and the leaf or pod that they share.

    In a leaf the units are its nodes, in a pod its leaves, in the fleet its pods, or its leaves without pods.
    `real`: the leaf is one of the network, and not just as many nodes as one group takes. `of_pods`: the
    units are pods.
    """

    name: str
    units: dict[str, tuple[str, ...]]
    real: bool = True
    of_pods: bool = False

    @property
    def nodes(self) -> tuple[str, ...]:
        """All nodes below."""
        return tuple(node for nodes in self.units.values() for node in nodes)


def by_tree(fleet: Fleet) -> bool:
    """Whether the fleet is measured by its tree: where there is one, or too many ranks for one group."""
    return any(member.leaf for member in fleet.nodes) or ranks_of(fleet.nodes) > MOST_RANKS


def ranks_of(members: Collection[Member]) -> int:
    """The ranks of all these nodes."""
    return sum(member.ranks for member in members)


def scopes_of(fleet: Fleet) -> dict[Level, tuple[Scope, ...]]:
    """What is measured at each level. Where nobody knows the network, a leaf is what one group can take."""
    ranks = {member.name: member.ranks for member in fleet.nodes}
    real = any(member.leaf for member in fleet.nodes)
    leaves: dict[str, list[str]] = {}
    pods: dict[str, dict[str, tuple[str, ...]]] = {}
    if real:
        for member in fleet.nodes:
            leaves.setdefault(member.leaf, []).append(member.name)
    else:
        for nodes in split(tuple(ranks), ranks):
            leaves[f"{nodes[0]} to {nodes[-1]}"] = list(nodes)
    for member in fleet.nodes:
        if member.pod:
            pods.setdefault(member.pod, {})[member.leaf] = tuple(leaves[member.leaf])
    whole = {pod: tuple(node for nodes in units.values() for node in nodes) for pod, units in pods.items()}
    top = whole if len(whole) > 1 else {leaf: tuple(nodes) for leaf, nodes in leaves.items()}
    return {
        Level.LEAF: tuple(
            Scope(leaf, {node: (node,) for node in nodes}, real) for leaf, nodes in leaves.items()
        ),
        Level.POD: tuple(
            Scope(pod, units) for pod, units in pods.items() if len(whole) > 1 and len(units) > 1
        ),
        Level.FLEET: (Scope("", top, real, len(whole) > 1),) if len(top) > 1 else (),
    }


def level_groups(
    level: Level, scope: Scope, ranks: Mapping[str, int], without: Collection[str] = ()
) -> list[tuple[str, ...]]:
    """The groups in which a scope measures as a whole, all at once, without these nodes."""
    units = [tuple(node for node in nodes if node not in without) for nodes in scope.units.values()]
    if level is Level.LEAF:
        wholes = [tuple(node for nodes in units for node in nodes)]
    else:
        longest = max(map(len, units), default=0)
        wholes = [tuple(nodes[place] for nodes in units if place < len(nodes)) for place in range(longest)]
    return [group for nodes in wholes if len(nodes) > 1 for group in split(nodes, ranks) if len(group) > 1]


def split(nodes: Sequence[str], ranks: Mapping[str, int]) -> list[tuple[str, ...]]:
    """These nodes in as few groups of at most MOST_RANKS ranks as it takes, of about the same size."""
    count = max(1, math.ceil(sum(ranks[node] for node in nodes) / MOST_RANKS))
    while True:
        cuts = [round(place * len(nodes) / count) for place in range(count + 1)]
        groups = [tuple(nodes[start:end]) for start, end in itertools.pairwise(cuts)]
        if count >= len(nodes) or all(sum(ranks[node] for node in group) <= MOST_RANKS for group in groups):
            return [group for group in groups if group]
        count += 1


def together(fleet: Fleet, without: Collection[str] = ()) -> tuple[str, ...]:
    """The one group over the whole tree: all nodes, or a leader of each leaf, or of each pod; else nothing.

    Nothing, too, where the groups between the leaves are that already.
    """
    present = [member for member in fleet.nodes if member.name not in without]
    if ranks_of(present) <= MOST_RANKS:
        return tuple(member.name for member in present)
    for key in ("leaf", "pod"):
        leaders: dict[str, Member] = {}
        for member in present:
            if place := getattr(member, key):
                leaders.setdefault(place, member)
        pods = {member.pod for member in leaders.values()}
        if len(leaders) > 1 and len(pods) > 1 and ranks_of(leaders.values()) <= MOST_RANKS:
            return tuple(member.name for member in leaders.values())
    return ()


def most_rounds(fleet: Fleet) -> int:
    """How many rounds a measurement by the tree may take: the operator's number, else 2 log2(nodes) + 4.

    And 12 at least: in small leaves nodes meet those of others one after the other.
    """
    return fleet.most_rounds or max(12, 2 * math.ceil(math.log2(max(2, len(fleet.nodes)))) + 4)
