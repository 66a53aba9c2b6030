"""Between nodes: who measures with whom next, to find the node or the link that is to blame.

First all nodes together. Unless that is known to be fast, disjoint pairs (circle method); then every node
that did well with nobody again with nodes that did. Two good nodes have to have failed with it before it is
to blame: of one pair it is not known which end is bad, or whether it is the way between them. A pair of two
good nodes that was bad measures again before that way is blamed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from validation.fabric.groups import Fleet, Group, Pairs, common_size_bytes, groups_of
from validation.model.grouping import by_key

#: A pair that even in its fastest run reaches less than this part of the fastest pair is slow: a disturbance
#: slows some runs, a slow link all of them.
SLOW_SHARE = 0.5
#: What is fast, as a part of what the node's links carry. Healthy networks reach 0.95: "24 GB/s per 200G NIC"
#: (github.com/NVIDIA/nccl-tests/issues/119), 381.8 of 400 GB/s on 4x8 B200 (github.com/stas00/ml-engineering,
#: network/README.md). The lowest gates in use are at 0.6 (cluster-health-scanner: 60 of 100 GB/s on A3, 250
#: of 400 on A3 Ultra and A4). Seen 2026-11.
FAST_SHARE = 0.6
#: A node is to blame once it has failed with so many good nodes.
CONFIRMATIONS = 2
#: So many rounds of pairs without a good one, and there is no good node to find the bad ones with.
MOST_BLIND_ROUNDS = 3


@dataclass(frozen=True)
class Evidence:
    """What the pairs say of nodes. `best` is the fastest pair."""

    good: tuple[str, ...] = ()
    #: Nodes to blame, and the pairs with good nodes in which they failed.
    bad: dict[str, tuple[Group, ...]] = field(default_factory=dict)
    #: Pairs of two good nodes that were bad each time, of several times; and those that were it once.
    links: tuple[Group, ...] = ()
    doubtful: tuple[Group, ...] = ()
    best_gb_s: float = 0.0
    #: The good pair that is slowest.
    slowest_gb_s: float = 0.0
    #: The pairs that did well.
    fast: tuple[Group, ...] = ()
    #: The largest size that all pairs measured: all rates here, and the pairs to blame, are of it.
    size_bytes: int = 0


def circle_rounds(nodes: Sequence[str]) -> list[list[tuple[str, ...]]]:
    """Return all rounds of disjoint pairs in which each node meets each other one once (circle method).

    With an odd number of nodes another one is left over in each round.
    """
    names: list[str | None] = [*nodes, *([None] if len(nodes) % 2 else [])]
    rounds: list[list[tuple[str, ...]]] = []
    for _ in range(len(names) - 1):
        half = len(names) // 2
        pairs = zip(names[:half], reversed(names[half:]), strict=True)
        rounds.append([(a, b) for a, b in pairs if a is not None and b is not None])
        names = [names[0], names[-1], *names[1:-1]]
    return [groups for groups in rounds if groups]


def expected_gb_s(fleet: Fleet, whole: Group) -> float | None:
    """Return what is fast for this fleet, by its operator or else its links; None where nobody knows."""
    if fleet.floor_gb_s > 0:
        return fleet.floor_gb_s
    return None if whole.link_gb_s is None else FAST_SHARE * whole.link_gb_s


def missed_gb_s(fleet: Fleet, whole: Group) -> float | None:
    """Return the rate that all nodes together miss; None where they reach it, or nobody knows it."""
    expected = expected_gb_s(fleet, whole)
    return expected if expected is not None and not (whole.works and whole.busbw_gb_s >= expected) else None


def next_rounds(fleet: Fleet) -> list[list[tuple[str, ...]]]:
    """Return rounds of groups to measure now, one after the other; none when nothing is left to find out."""
    names = [member.name for member in fleet.nodes]
    if fleet.why_unmeasured:
        return []
    rounds = [groups_of(attempts) for attempts in fleet.rounds]
    if not rounds:
        return [[tuple(names)]]
    whole, played = rounds[0][0], rounds[1:]
    if not _wanted(fleet, whole):
        return []
    missing = {name for groups in rounds for group in groups for name in group.absent}
    circle = circle_rounds([name for name in names if name not in whole.absent])
    if not played:
        # Of so few nodes all pairs: one or two of them could all have the bad node, and nothing to compare.
        return circle if len(circle) <= MOST_BLIND_ROUNDS else circle[: max(1, fleet.pair_rounds)]
    seen, missed = evidence(fleet), missed_gb_s(fleet, whole)
    if not seen.good or (missed is not None and seen.best_gb_s < missed):
        more = [
            [pair for pair in groups if not missing & set(pair)]
            for groups in circle[len(played) : MOST_BLIND_ROUNDS][:1]
        ]
        if any(more):
            return more
    present = [name for name in names if name not in missing]
    return rounds_with_good_ones(present, seen, played) or _without_the_one_of_all(present, seen, played)


def _wanted(fleet: Fleet, whole: Group) -> bool:
    if fleet.pairs is Pairs.NEVER or (len(whole.nodes) == 2 and not whole.absent):
        return False  # two nodes were a pair already
    if fleet.pairs is Pairs.ALWAYS or not whole.works:
        return True
    return expected_gb_s(fleet, whole) is None or missed_gb_s(fleet, whole) is not None


def _without_the_one_of_all(
    present: Sequence[str], seen: Evidence, played: list[list[Group]]
) -> list[list[tuple[str, ...]]]:
    """Return one round of those that did well, where one node was in every pair that did.

    All of these pairs may be slow because of it, with none to compare them with.
    """
    in_all = set(seen.good).intersection(*(group.nodes for group in seen.fast))
    met = met_by(played)
    free = [name for name in present if name in seen.good and name not in in_all]
    pairs: list[tuple[str, ...]] = []
    while in_all and len(free) > 1:
        name = free.pop(0)
        if other := next((one for one in free if one not in met.get(name, ())), None):
            free.remove(other)
            pairs.append((name, other))
    return [pairs] if pairs else []


def rounds_with_good_ones(
    present: Sequence[str], seen: Evidence, played: list[list[Group]]
) -> list[list[tuple[str, ...]]]:
    """Return each node that did well with nobody with a good one that it has not met, as rounds of pairs."""
    met = met_by(played)
    good = [name for name in seen.good if name in present]
    again = [group.nodes for group in seen.doubtful if set(group.nodes) <= set(present)]
    waiting = [name for name in present if name not in seen.good and name not in seen.bad]
    rounds: list[list[tuple[str, ...]]] = []
    while waiting:
        free, later = list(good), []
        pairs: list[tuple[str, ...]] = []
        for name in waiting:
            partner = next((one for one in free if one not in met.get(name, ())), None)
            if partner is None:
                later.append(name)
            else:
                free.remove(partner)
                pairs.append((partner, name))
        if not pairs:
            break
        rounds.append(pairs)
        waiting = later
    for pair in again:
        free_round = next(
            (pairs for pairs in rounds if not {one for two in pairs for one in two} & set(pair)), None
        )
        if free_round is None:
            rounds.append(free_round := [])
        free_round.append(pair)
    return rounds


def met_by(played: list[list[Group]]) -> dict[str, set[str]]:
    """Whom each has met."""
    met: dict[str, set[str]] = {}
    for group in (group for groups in played for group in groups):
        for name in group.nodes:
            met.setdefault(name, set()).update(group.nodes)
    return met


def evidence(fleet: Fleet) -> Evidence:
    """Return what the rounds of pairs say."""
    rounds = [groups_of(attempts) for attempts in fleet.rounds]
    tried = [group for groups in rounds[1:] for group in groups]
    pairs = [group for group in tried if not group.absent]
    if not pairs:
        return Evidence()
    size_bytes = common_size_bytes(pairs)
    best = _best([[group.up_to(size_bytes) for group in groups] for groups in rounds[1:]])
    floor_gb_s = _floor_for_pairs(fleet, rounds[0][0], _best(rounds[1:]))
    fast: list[Group] = []
    slow: list[Group] = []
    for group in pairs:
        alike = group.up_to(size_bytes)
        does_well = (
            group.works and alike.fastest_gb_s >= SLOW_SHARE * best and group.fastest_gb_s >= floor_gb_s
        )
        (fast if does_well else slow).append(group if does_well else alike)
    good = tuple(dict.fromkeys(name for group in fast for name in group.nodes))
    links = links_between_good(fast, slow, good)
    return Evidence(
        good,
        to_blame(slow, good, met_by(rounds[1:]), {name for group in tried for name in group.absent}),
        tuple(groups[-1] for groups in links if len(groups) > 1),
        tuple(groups[0] for groups in links if len(groups) == 1),
        best,
        min((group.up_to(size_bytes).busbw_gb_s for group in fast), default=0.0),
        tuple(fast),
        size_bytes,
    )


def _floor_for_pairs(fleet: Fleet, whole: Group, best_gb_s: float) -> float:
    """Return what each pair must reach: a floor that all together miss and some pairs reach.

    What none reaches separates nobody. A share of the links' rate is no such line: healthy nodes lie on both
    sides of it.
    """
    missed = missed_gb_s(fleet, whole)
    return missed if fleet.floor_gb_s > 0 and missed is not None and best_gb_s >= missed else 0.0


def links_between_good(
    fast: Sequence[Group], slow: Sequence[Group], good: Collection[str]
) -> list[list[Group]]:
    """Of each pair of good nodes that was never fast, how it was each time."""
    did_well = {frozenset(group.nodes) for group in fast}
    by_pair = by_key((frozenset(group.nodes), group) for group in slow)
    return [groups for pair, groups in by_pair.items() if pair <= set(good) and pair not in did_well]


def _best(played: list[list[Group]]) -> float:
    """Return the fastest pair, of the rounds with most pairs that work.

    One that has the network between the nodes for itself may be faster than all that share it. With those
    that fail, or whose nodes are gone, it shares nothing.
    """
    working = [[group.busbw_gb_s for group in groups if group.works] for groups in played]
    most = max(map(len, working))
    return max((one for found in working if len(found) == most for one in found), default=0.0)


def to_blame(
    slow: Sequence[Group], good: Collection[str], met: Mapping[str, set[str]], missing: Collection[str]
) -> dict[str, tuple[Group, ...]]:
    """Return who was slow with enough good ones, or with all that there are, and in which groups."""
    with_good = by_key(
        (name, group)
        for group in slow
        for name in group.nodes
        if name not in good and any(one in good for one in group.nodes)
    )
    return {
        name: tuple(groups)
        for name, groups in with_good.items()
        if len(groups) >= CONFIRMATIONS or not set(good) - met[name] - set(missing)
    }
