"""Between many nodes: what is measured next, level by level, and who is to blame for what is slow.

From the leaves up: first all groups of a level at once. One that fails, or is slow among its siblings, sets
off a search among its units (nodes in a leaf, leaves in a pod, pods in the fleet): pairs of units measure,
each with all its nodes, first along the ring that was slow, so that two rounds meet every link of it.
Healthy siblings measure beside them, for comparison. What is to blame is left out of the groups of the
levels above, and the group is measured again without it.

In a leaf of two or three nodes one that is bad may leave no good one to find it with. Then the nodes of that
leaf meet some of other leaves, one at a time over each uplink, which so carries no more than one node sends.
Pure functions.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from validation.fabric.groups import Pairs, common_size_bytes, groups_of
from validation.fabric.levels import (
    TOGETHER,
    Level,
    Scope,
    by_tree,
    level_groups,
    most_rounds,
    scopes_of,
    together,
)
from validation.fabric.search import (
    CONFIRMATIONS,
    SLOW_SHARE,
    Evidence,
    circle_rounds,
    expected_gb_s,
    links_between_good,
    met_by,
    next_rounds,
    rounds_with_good_ones,
    to_blame,
)
from validation.model.contract import StringEnum
from validation.verdict.baseline import OUTLIER_Z, Baseline
from validation.verdict.chance import among
from validation.verdict.cohort import LEAST_MEMBERS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from validation.fabric.groups import Fleet, Group

#: By which part of the median of its siblings a group or pair must be low to be slow. Chosen: equal ways
#: through a network scatter by some per cent, a link that fell back to half its width, or shares its way,
#: loses more.
SLOW_PART = 0.2
#: So many healthy siblings measure beside those that are searched, or as many as these are.
LEAST_CONTROLS = 3
#: Where in the order of all pairs the usual one stands: three quarters of them may be slower.
TYPICAL_PLACE = 0.75
#: Of so few pairs, which are all those of four units, the best is the usual one: it may be the only good one.
FEW_PAIRS = 6
#: So often a group measures again at most.
MOST_AGAIN = 2
#: A leaf of at most so many nodes may have no two good ones, and asks nodes of other leaves.
SMALL_LEAF = 3
#: Of so few nodes all pairs measure: two that are bad leave no pair to compare with otherwise.
ALL_PAIRS = 4


@dataclass(frozen=True)
class Step:
    """Rounds to be measured now, one after the other, and what they are for."""

    name: str = ""
    rounds: tuple[tuple[tuple[str, ...], ...], ...] = ()


class Trouble(StringEnum):
    """Why a group is searched."""

    FAILS = "fails"
    ABSENT = "absent"  # not all of its nodes could take part
    SLOW = "slow"
    UNKNOWN = "unknown"  # nothing says what would be fast, or only one level below is faster


@dataclass(frozen=True)
class Hunt:
    """Units of which one, or the way between two, may be to blame, and what their pairs say.

    `whole`: they are all units of a leaf or pod, which may be to blame itself. `wanted`: there is trouble;
    others are for comparison. `blamed`: the slowest pair, where the leaf or pod as a whole is to blame.
    `leaf_of`: of units that are nodes of several leaves, which so meet across the leaves.
    """

    scope: Scope
    whole: bool
    wanted: bool
    seen: Evidence = field(default_factory=Evidence)
    played: tuple[tuple[Group, ...], ...] = ()
    blamed: Group | None = None
    usual_gb_s: float = 0.0
    leaf_of: Mapping[str, str] = field(default_factory=dict)

    @property
    def units_are_nodes(self) -> bool:
        """Whether a pair of units is a pair of nodes."""
        return all(nodes == (unit,) for unit, nodes in self.scope.units.items())

    @property
    def culprits(self) -> tuple[str, ...]:
        """The nodes of all that is to blame here."""
        units = self.scope.units if self.blamed else self.seen.bad
        return tuple(node for unit in units for node in self.scope.units[unit])


@dataclass(frozen=True)
class LevelSeen:
    """A level: what is to be measured, what was, and what the searches say. `slow_below`: GB/s."""

    level: Level
    planned: tuple[tuple[str, ...], ...]
    groups: tuple[Group, ...] = ()
    trouble: Mapping[tuple[str, ...], Trouble] = field(default_factory=dict)
    hunts: tuple[Hunt, ...] = ()
    again: tuple[Group, ...] = ()  # of the same nodes the fastest
    rounds_again: int = 0
    slow_below: Mapping[bool, float] = field(default_factory=dict)

    @property
    def usual_gb_s(self) -> float:
        """The median of its groups that work, as they measured last; 0 where none does."""
        rates = [group.fastest_gb_s for group in self.last() if group.works]
        return statistics.median(rates) if rates else 0.0

    @cached_property
    def culprits(self) -> frozenset[str]:
        """The nodes of all that is to blame here."""
        return frozenset(name for hunt in self.hunts for name in hunt.culprits)

    @cached_property
    def ids(self) -> frozenset[int]:
        """Its groups by identity: one compares groups by all that they measured."""
        return frozenset(map(id, (*self.groups, *self.again)))

    @cached_property
    def usual_by_kind(self) -> dict[bool, float]:
        """The median of its groups, to compare groups of two nodes with (all), and larger ones (larger)."""
        rates = [(len(one.nodes) > 2, one.fastest_gb_s) for one in self.groups if one.works]
        many = [rate for more, rate in rates if more]
        return {
            True: statistics.median(rate for _, rate in rates) if rates else 0.0,
            False: statistics.median(many) if many else 0.0,
        }

    def is_slow(self, group: Group) -> bool:
        """Whether a group is slow among its siblings, of the first round or as they measured last."""
        two = len(group.nodes) == 2
        return group.works and group.fastest_gb_s < max(self.slow_below[two], self._slow_below_last[two])

    @cached_property
    def _slow_below_last(self) -> dict[bool, float]:
        return _lines(self.last())

    def last(self) -> list[Group]:
        """Its groups as they measured last, without those that measured again without somebody."""
        again = {name for group in self.again for name in group.nodes}
        return [*(group for group in self.groups if not again & set(group.nodes)), *self.again]


@dataclass(frozen=True)
class Survey:
    """All that the rounds so far say, from the leaves up; levels end with the first that was not measured."""

    levels: tuple[LevelSeen, ...]
    together: Group | None
    absent: Mapping[str, str]  # who could not take part in some round, with the last reason
    without: frozenset[str]  # to blame, or gone: left out of what is measured now


def next_step(fleet: Fleet) -> Step:
    """What is measured next; no rounds when nothing is left to find out, or no more may be measured."""
    if fleet.no_tree:
        return Step()
    if not by_tree(fleet):
        return Step("", tuple(map(tuple, next_rounds(fleet))))
    seen, scopes = survey(fleet), scopes_of(fleet)
    left = most_rounds(fleet) - len(fleet.rounds)
    for above, level in zip(itertools.count(1), seen.levels):
        if level.planned and not level.groups:
            return Step(level.level, (level.planned,))
        # In any case measured: the last word on this level, those above, once more what is slow there, and
        # all.
        reserve = 2 + 2 * sum(bool(found) for found in list(scopes.values())[above:])
        if (rounds := search_rounds(fleet, level, seen.absent)) and left > reserve:
            return Step(level.level.pairs, tuple(map(tuple, rounds[: left - reserve])))
        if not level.again and (again := _again(level, seen.absent)):
            return Step(level.level, (again,))
        if left > reserve and (
            again := tuple(group.nodes for group in level.last() if _once_more(level, group))
        ):
            return Step(level.level, (again,))
    whole = together(fleet, seen.without)
    measured = {group.nodes for level in seen.levels for group in (*level.groups, *level.again)}
    # Who is gone since then is no reason to know nothing of all others.
    due = seen.together is None or (seen.together.absent and len(fleet.rounds) < most_rounds(fleet))
    if due and len(whole) > 1 and whole not in measured:
        return Step(TOGETHER, ((whole,),))
    return Step()


def survey(fleet: Fleet) -> Survey:
    """What the rounds so far say."""
    by_step: dict[str, list[list[Group]]] = defaultdict(list)
    absent: dict[str, str] = {}
    for attempts in fleet.rounds:
        groups = groups_of(attempts)
        by_step[next((attempt.step for attempt in attempts.values()), "")].append(groups)
        for group in groups:
            absent |= group.absent
    ranks = {member.name: member.ranks for member in fleet.nodes}
    without: set[str] = set(absent)
    levels: list[LevelSeen] = []
    for level, scopes in scopes_of(fleet).items():
        first, *more = by_step[level] or [[]]
        planned = tuple(group for scope in scopes for group in level_groups(level, scope, ranks, without))
        seen = LevelSeen(level, planned)
        if first:
            pairs = by_step[level.pairs]
            seen = _look(fleet, seen, scopes, first, pairs, below_of(levels))
            fastest: dict[tuple[str, ...], Group] = {}
            for group in sorted((one for groups in more for one in groups), key=lambda one: one.fastest_gb_s):
                fastest[group.nodes] = group
            again = tuple(fastest.values())
            seen = dataclasses.replace(seen, again=again, rounds_again=len(more))
            without |= seen.culprits
        levels.append(seen)
        if planned and not first:
            break
    last = [group for groups in by_step[TOGETHER] for group in groups]
    return Survey(tuple(levels), last[-1] if last else None, absent, frozenset(without))


def below_of(levels: Sequence[LevelSeen]) -> LevelSeen | None:
    """The level below one that comes after these: the last that was measured."""
    return next((level for level in reversed(levels) if level.groups), None)


def slow_below(rates: Sequence[float]) -> float:
    """The rate below which one of these is slow, in GB/s: far from the median, and beyond chance.

    Of so many numbers some lie far out by chance, which is allowed for. However wide they scatter, less than
    half of the median is slow; of fewer than four only less than half of the best is.
    """
    if len(rates) < LEAST_MEMBERS:
        return SLOW_SHARE * max(rates, default=0.0)
    baseline = Baseline.of(rates)
    chance = baseline.median - OUTLIER_Z * among(len(rates)) * baseline.sigma
    return max(SLOW_SHARE * baseline.median, min((1 - SLOW_PART) * baseline.median, chance))


def search_rounds(fleet: Fleet, level: LevelSeen, absent: Collection[str]) -> list[list[tuple[str, ...]]]:
    """The next rounds of pairs of a level, those of all its searches side by side; none at the end."""
    if not any(hunt.wanted for hunt in level.hunts):
        return []
    side_by_side = []
    for hunt in level.hunts:
        units = [unit for unit, nodes in hunt.scope.units.items() if not set(nodes) <= set(absent)]
        if hunt.leaf_of:
            rounds = _rounds_across(fleet, hunt, units)
        elif not hunt.played:
            rounds = _first_rounds(units, fleet.pair_rounds)
        elif hunt.blamed or (not hunt.wanted and not hunt.seen.good):
            rounds = []
        else:
            played = [list(groups) for groups in hunt.played]
            rounds = rounds_with_good_ones(units, hunt.seen, played)
        side_by_side.append([[*_node_pairs(hunt.scope, pairs, absent)] for pairs in rounds])
    merged = itertools.zip_longest(*side_by_side, fillvalue=[])
    return [[pair for pairs in together_ for pair in pairs] for together_ in merged if any(together_)]


def _first_rounds(units: Sequence[str], at_least: int) -> list[list[tuple[str, ...]]]:
    """Along the ring that the units formed, each with both its neighbours; then by the circle for more."""
    if len(units) <= ALL_PAIRS:  # of two that are bad, the two others may not be neighbours
        return circle_rounds(units)
    ring: list[tuple[str, ...]] = [
        (unit, units[(place + 1) % len(units)]) for place, unit in enumerate(units)
    ]
    last = ring[-1:] if len(units) % 2 else []
    rounds = [
        ring[: len(units) - len(last) : 2],
        ring[1 : len(units) - len(last) : 2],
        *([last] if last else []),
    ]
    met = {frozenset(pair) for pair in ring}
    for pairs in circle_rounds(units):
        if len(rounds) >= at_least:
            break
        if fresh := [pair for pair in pairs if frozenset(pair) not in met]:
            rounds.append(fresh)
    return [list(pairs) for pairs in rounds]


def _node_pairs(
    scope: Scope, pairs: Iterable[tuple[str, ...]], absent: Collection[str]
) -> Iterable[tuple[str, ...]]:
    """Of each pair of units the pairs of their nodes, all of which measure at once."""
    for one, other in pairs:
        present = [[node for node in scope.units[unit] if node not in absent] for unit in (one, other)]
        yield from zip(*present, strict=False)


def _look(
    fleet: Fleet,
    seen: LevelSeen,
    scopes: Sequence[Scope],
    groups: Sequence[Group],
    pairs: Sequence[Sequence[Group]],
    below: LevelSeen | None,
) -> LevelSeen:
    """A level that was measured: what is slow, and what the searches say."""
    size_bytes = common_size_bytes(groups)
    alike = [group.up_to(size_bytes) for group in groups]
    lines = _lines(alike)
    trouble = {
        group.nodes: found for group in alike if (found := _trouble(fleet, group, alike, lines, below))
    }
    seen = dataclasses.replace(seen, groups=tuple(alike), trouble=trouble, slow_below=lines)
    hunts = _hunts(fleet, seen, scopes)
    judged: list[Hunt] = []
    for of_nodes in (True, False):
        same = [_with_pairs(hunt, pairs) for hunt in hunts if hunt.units_are_nodes is of_nodes]
        judged += _judge(same)
    seen = dataclasses.replace(seen, hunts=tuple(judged))
    gone = {name for groups in pairs for group in groups for name in group.absent}
    gone |= {name for group in alike for name in group.absent}
    if seen.level is Level.LEAF and not search_rounds(fleet, seen, gone):
        seen = dataclasses.replace(seen, hunts=tuple(_with_others(fleet, seen, pairs, gone)))
    return seen


def _lines(groups: Sequence[Group]) -> dict[bool, float]:
    """Below what a group is slow among these, for groups of two nodes and of more."""
    rates: dict[bool, list[float]] = {False: [], True: []}
    for group in groups:
        if group.works:
            rates[len(group.nodes) == 2].append(group.fastest_gb_s)
    # Two nodes may take other ways through their GPUs than many. Where few of a kind are, all others must do.
    few = slow_below([rate for some in rates.values() for rate in some])
    few = min(few, SLOW_SHARE * max(map(max, filter(None, rates.values())), default=0.0))
    return {two: slow_below(some) if len(some) >= LEAST_MEMBERS else few for two, some in rates.items()}


def _trouble(
    fleet: Fleet,
    group: Group,
    siblings: Sequence[Group],
    lines: Mapping[bool, float],
    below: LevelSeen | None,
) -> Trouble | None:
    if group.absent:
        return Trouble.ABSENT
    if not group.works:
        return Trouble.FAILS
    two = len(group.nodes) == 2
    far = is_below(group, below, SLOW_SHARE)
    if group.fastest_gb_s < lines[two] or far or missed_gb_s(fleet, group) is not None:
        return Trouble.SLOW
    # Its siblings may all go through the same slow uplink; or the network is oversubscribed, as it was meant
    # to be.
    if is_below(group, below, 1 - SLOW_PART):
        return Trouble.UNKNOWN
    known = (
        sum(one.works for one in siblings) >= LEAST_MEMBERS or floor_or_links_gb_s(fleet, group) is not None
    )
    return None if known else Trouble.UNKNOWN


def is_below(group: Group, below: LevelSeen | None, share: float) -> bool:
    """Whether a group reaches less than this part of those one level below.

    Two nodes may reach more than many, which so are not compared with two.
    """
    usual = below.usual_by_kind[len(group.nodes) == 2] if below else 0.0
    return group.fastest_gb_s < share * usual


def floor_or_links_gb_s(fleet: Fleet, group: Group) -> float | None:
    """What a group must reach: the operator's floor, else by its links. What gloo reaches its CPUs decide."""
    return expected_gb_s(fleet, group) if fleet.floor_gb_s > 0 or fleet.library == "nccl" else None


def missed_gb_s(fleet: Fleet, group: Group) -> float | None:
    """What a group that works must reach and does not; None where it does, or nobody knows."""
    expected = floor_or_links_gb_s(fleet, group)
    return expected if expected is not None and group.busbw_gb_s < expected else None


def _hunts(fleet: Fleet, seen: LevelSeen, scopes: Sequence[Scope]) -> list[Hunt]:
    """The searches that a level's groups ask for, and healthy siblings beside them."""
    if fleet.pairs is Pairs.NEVER:
        return []
    found: list[Hunt] = []
    for scope in scopes:
        nodes = set(scope.nodes)
        groups = [group for group in seen.groups if nodes & set(group.nodes)]
        bad = [group for group in groups if group.nodes in seen.trouble or fleet.pairs is Pairs.ALWAYS]
        measured = {name for group in groups for name in group.nodes}
        units = {
            unit: kept
            for unit, below in scope.units.items()
            if (kept := tuple(n for n in below if n in measured))
        }
        # Where most groups are slow, something that all of them have is to blame; else something of the
        # group, as where one of two is slow. Of few groups all are searched, whether or not they are slow.
        slow = [one for one in bad if seen.trouble.get(one.nodes, Trouble.UNKNOWN) is not Trouble.UNKNOWN]
        count = len((slow if len(groups) < LEAST_MEMBERS else []) or bad)
        most = 2 * count >= len(groups) and (count > 1 or len(groups) < 2)
        if seen.level is not Level.LEAF and len(units) > 1 and most:
            found.append(Hunt(dataclasses.replace(scope, units=units), True, bool(bad)))
            continue
        whole = seen.level is Level.LEAF
        if seen.level is not Level.LEAF and not bad:
            found.append(Hunt(dataclasses.replace(scope, units=units), True, False))
        found += [
            Hunt(Scope(scope.name, {name: (name,) for name in group.nodes}, scope.real), whole, group in bad)
            for group in groups
        ]
    busy = {node for hunt in found if hunt.wanted for node in hunt.scope.nodes}
    chosen: list[Hunt] = []
    for of_nodes in (True, False):
        same = [hunt for hunt in found if hunt.units_are_nodes is of_nodes]
        chosen += _with_controls(same, busy)
        # A node measures with one other at a time: it is not there for comparison twice.
        busy |= {node for hunt in chosen for node in hunt.scope.nodes}
    return chosen


def _with_controls(hunts: Sequence[Hunt], busy: set[str]) -> list[Hunt]:
    """Those that are wanted, and of the healthy ones as many as it takes to compare with."""
    wanted = [hunt for hunt in hunts if hunt.wanted]
    healthy = [hunt for hunt in hunts if not hunt.wanted and busy.isdisjoint(hunt.scope.nodes)]
    return [*wanted, *healthy[: max(LEAST_CONTROLS, len(wanted))]] if wanted else []


def _with_pairs(hunt: Hunt, rounds: Sequence[Sequence[Group]]) -> Hunt:
    """A search with its rounds: each pair of units as one group, named after the units."""
    unit_of = {node: unit for unit, nodes in hunt.scope.units.items() for node in nodes}
    played: list[tuple[Group, ...]] = []
    for groups in rounds:
        by_pair: dict[tuple[str, ...], list[Group]] = defaultdict(list)
        for group in groups:
            units = tuple(unit_of[node] for node in group.nodes if node in unit_of)
            if len(set(units)) == 2:
                by_pair[units].append(group)
        if by_pair:
            played.append(tuple(_as_one(units, found) for units, found in by_pair.items()))
    return dataclasses.replace(hunt, played=tuple(played))


def _as_one(units: tuple[str, ...], groups: Sequence[Group]) -> Group:
    """The pairs of nodes of two units as one: the one in the middle, or one that failed where most did."""
    present = [group for group in groups if not group.absent] or groups
    by_rate = sorted(present, key=lambda group: group.fastest_gb_s if group.works else 0.0)
    return dataclasses.replace(by_rate[len(by_rate) // 2], nodes=units)


def _judge(hunts: Sequence[Hunt]) -> list[Hunt]:
    """What the pairs of searches of one kind say; they are compared with each other."""
    everything = [group for hunt in hunts for groups in hunt.played for group in groups if not group.absent]
    size_bytes = common_size_bytes(everything)
    rates = sorted(group.up_to(size_bytes).fastest_gb_s for group in everything if group.works)
    # Of few units one that is bad spoils half of the pairs, and the median with them.
    place = 1.0 if len(rates) <= FEW_PAIRS else TYPICAL_PLACE
    usual = rates[int(place * (len(rates) - 1) + 0.5)] if rates else 0.0
    line = max(slow_below(rates), SLOW_SHARE * usual)
    if not all(hunt.units_are_nodes for hunt in hunts) and _steady(hunts):
        line = max(line, (1 - SLOW_PART) * usual)
    seen = [dataclasses.replace(_evidence(hunt, line, size_bytes), best_gb_s=usual) for hunt in hunts]
    healthy = [2 * len(one.good) >= len(hunt.scope.units) for hunt, one in zip(hunts, seen, strict=True)]
    judged = []
    for hunt, pairs, does_well in zip(hunts, seen, healthy, strict=True):
        # Of who could not take part nothing is known, and so of what all of them share.
        slow = [
            group
            for groups in hunt.played
            for group in groups
            if not group.absent and not set(group.nodes) & set(pairs.good)
        ]
        whole = hunt.whole and hunt.scope.real and len(hunt.scope.units) > 2 and bool(slow)
        if _goes_on(hunt, pairs):
            whole = False
        blamed = slow[0].up_to(size_bytes) if whole and not does_well and any(healthy) else None
        found = Evidence(best_gb_s=usual, size_bytes=size_bytes) if blamed else pairs
        judged.append(dataclasses.replace(hunt, seen=found, blamed=blamed, usual_gb_s=usual))
    return judged


def _with_others(
    fleet: Fleet, seen: LevelSeen, pairs: Sequence[Sequence[Group]], gone: Collection[str]
) -> list[Hunt]:
    """The searches of leaves; one across the leaves in place of those in small leaves that found nobody."""
    leaf_of = {member.name: member.leaf for member in fleet.nodes if member.name not in gone}
    # Pairs of one leaf may all have a slow node; what they compare with are pairs across the leaves.
    works = {
        leaf_of.get(one.nodes[0])
        for hunt in seen.hunts
        for groups in hunt.played
        for one in groups
        if one.works
    }
    few = len(fleet.nodes) <= ALL_PAIRS or len(works) < 2
    alone = [hunt for hunt in seen.hunts if _is_small(hunt) and (few or _is_open(hunt))]
    if not any(hunt.wanted for hunt in alone):
        return list(seen.hunts)
    inside = {name for group in seen.groups for name in group.nodes}
    nodes = [node for hunt in alone for node in hunt.scope.nodes if node in leaf_of]
    sure = _sure(seen, alone, leaf_of)
    # Of nodes that are alone in their leaves nothing is known yet.
    guests = [*_guests(nodes, sure, leaf_of), *(name for name in leaf_of if name not in inside)]
    units = {name: leaf_of[name] for name in (*nodes, *guests)}
    if not nodes or len(set(units.values())) < 2:
        return list(seen.hunts)
    tried = tuple(
        tuple(group for group in groups if set(group.nodes) <= units.keys() and not group.absent)
        for groups in pairs
    )
    scope = Scope("", {name: (name,) for name in units})
    hunt = Hunt(scope, whole=False, wanted=True, played=tuple(filter(None, tried)), leaf_of=units)
    everything = [group for groups in hunt.played for group in groups]
    size_bytes = common_size_bytes(everything)
    rates = [group.up_to(size_bytes).fastest_gb_s for group in everything if group.works]
    # What is usual in the leaves; where nobody knows that, the best of these pairs.
    known = [one.usual_gb_s for one in seen.hunts if one not in alone and one.seen.good]
    usual = max(known, default=0.0) or max(rates, default=0.0)
    evidence = _evidence_across(hunt, SLOW_SHARE * usual, size_bytes, sure)
    hunt = dataclasses.replace(hunt, seen=dataclasses.replace(evidence, best_gb_s=usual), usual_gb_s=usual)
    whole = [
        dataclasses.replace(one, blamed=slow, seen=Evidence(best_gb_s=usual), usual_gb_s=usual)
        for one in alone
        if (slow := _bad_everywhere(one, hunt))
    ]
    return [*(one for one in seen.hunts if one not in alone), hunt, *whole]


def _is_small(hunt: Hunt) -> bool:
    return hunt.scope.real and len(hunt.scope.units) <= SMALL_LEAF


def _is_open(hunt: Hunt) -> bool:
    """Whether a search leaves a node of which it is not known whether it is to blame."""
    units = hunt.scope.units
    unknown = units.keys() - hunt.seen.good - hunt.seen.bad.keys() - _missing(hunt)
    return hunt.wanted and bool(hunt.blamed or unknown)


def _sure(seen: LevelSeen, alone: Sequence[Hunt], leaf_of: Mapping[str, str]) -> list[str]:
    """Nodes that are known to do well in their leaves, in the order of the leaves' groups."""
    hunted = {name: hunt for hunt in seen.hunts for name in hunt.scope.nodes}
    found: list[str] = []
    for group in seen.groups:
        for name in group.nodes:
            hunt = hunted.get(name)
            does_well = name in hunt.seen.good if hunt else group.nodes not in seen.trouble
            if name in leaf_of and does_well and hunt not in alone:
                found.append(name)
    return found


def _guests(nodes: Sequence[str], sure: Sequence[str], leaf_of: Mapping[str, str]) -> list[str]:
    """As many sure nodes as there are others, and two at least: of each leaf one, then of each another."""
    by_leaf: dict[str, list[str]] = defaultdict(list)
    for name in sure:
        by_leaf[leaf_of[name]].append(name)
    in_turn = [name for turn in itertools.zip_longest(*by_leaf.values()) for name in turn if name]
    return in_turn[: max(CONFIRMATIONS, len(nodes))]


def _rounds_across(fleet: Fleet, hunt: Hunt, units: Sequence[str]) -> list[list[tuple[str, ...]]]:
    """The next round in which nodes meet those of other leaves; none at the end.

    Who has done well with nobody meets those that did, one of each leaf at a time; while nobody has, all
    meet all. Of so few nodes all pairs measure in any case.
    """
    leaf_of, good = hunt.leaf_of, hunt.seen.good
    met = met_by([list(groups) for groups in hunt.played])
    if len(fleet.nodes) <= ALL_PAIRS:
        circle = [
            [pair for pair in pairs if pair[1] not in met.get(pair[0], ())] for pairs in circle_rounds(units)
        ]
        if rounds := [pairs for pairs in circle if pairs]:
            return rounds[:1]
    carries = _carries(hunt, hunt.seen.fast)
    wanted = [group.nodes for group in hunt.seen.doubtful if set(group.nodes) <= set(units)]
    for name in units:
        if name in good or name in hunt.seen.bad:
            continue
        others = [one for one in units if leaf_of[one] != leaf_of[name] and one not in met.get(name, ())]
        others = [one for one in others if one in good] if good else others
        wanted += [(name, one) for one in others]

    def turns(pair: tuple[str, ...]) -> tuple[int, bool, int]:
        """First who has met fewest, with one whose way up is known, that has met fewest."""
        one, other = pair
        return len(met.get(one, ())), leaf_of[other] not in carries, len(met.get(other, ()))

    turn: list[tuple[str, ...]] = []
    busy: set[str] = set()
    for pair in sorted(wanted, key=turns):
        leaves = {leaf_of[name] for name in pair}
        if not leaves & busy:
            turn.append(pair)
            busy |= leaves
    return [turn] if turn else []


def _evidence_across(hunt: Hunt, line: float, size_bytes: int, sure: Collection[str]) -> Evidence:
    """What pairs across the leaves say, and those in the leaves that are open.

    A slow pair across two leaves counts only where another one has shown that both ways up carry what one
    node sends.
    """
    fast: list[Group] = []
    slow: list[Group] = []
    for group in (one.up_to(size_bytes) for groups in hunt.played for one in groups):
        (fast if group.works and group.fastest_gb_s >= line else slow).append(group)
    carries = _carries(hunt, fast)
    slow = [group for group in slow if len(between := _leaves(hunt, group)) < 2 or between <= carries]
    known = [name for name in hunt.scope.nodes if name in sure]
    good = tuple(dict.fromkeys((*known, *(name for group in fast for name in group.nodes))))
    links = links_between_good(fast, slow, good)
    bad = to_blame(slow, good, met_by([slow]), ())
    return Evidence(
        good,
        {name: groups for name, groups in bad.items() if len(_partners(name, groups)) >= CONFIRMATIONS},
        tuple(groups[-1] for groups in links if len(groups) > 1),
        tuple(groups[0] for groups in links if len(groups) == 1),
        slowest_gb_s=min((group.busbw_gb_s for group in fast), default=0.0),
        fast=tuple(fast),
        size_bytes=size_bytes,
    )


def _partners(name: str, groups: Iterable[Group]) -> set[str]:
    return {one for group in groups for one in group.nodes} - {name}


def _leaves(hunt: Hunt, group: Group) -> set[str]:
    return {hunt.leaf_of[name] for name in group.nodes}


def _carries(hunt: Hunt, fast: Iterable[Group]) -> set[str]:
    """Leaves whose way up is known to carry what one node sends."""
    return {leaf for group in fast if len(leaves := _leaves(hunt, group)) > 1 for leaf in leaves}


def _bad_everywhere(leaf: Hunt, across: Hunt) -> Group | None:
    """A pair of a leaf all of whose nodes were bad with each other and with good ones of other leaves."""
    nodes = set(leaf.scope.nodes) & across.scope.units.keys()
    if nodes & {*across.seen.good, *across.seen.bad} or len(nodes) < 2:
        return None
    met = met_by([list(groups) for groups in across.played])
    if not all(met.get(name, set()) & set(across.seen.good) for name in nodes):
        return None
    inside = [
        group for groups in leaf.played for group in groups if not group.absent and set(group.nodes) <= nodes
    ]
    return inside[0] if inside else None


def _loads(hunt: Hunt, unit: str, group: Group) -> bool:
    """Whether a pair of units sends as much over the way of this one as its pairs with two others could.

    What a leaf of one node reaches says nothing of the uplinks of one of many. With two others, because one
    of them may be the slow one.
    """
    count = {name: len(nodes) for name, nodes in hunt.scope.units.items()}
    most = sorted(min(count[unit], size) for name, size in count.items() if name != unit)[-2:][0]
    return min(count[name] for name in group.nodes) >= (1 - SLOW_PART) * most


def _goes_on(hunt: Hunt, seen: Evidence) -> bool:
    """Whether a unit has not yet met good ones that are there: it may do well with them."""
    met, missing = met_by([list(groups) for groups in hunt.played]), _missing(hunt)
    waiting = hunt.scope.units.keys() - seen.good - seen.bad.keys() - missing
    return any(set(seen.good) - missing - met.get(unit, set()) for unit in waiting)


def _missing(hunt: Hunt) -> set[str]:
    """Units of which no node could take part."""
    return {
        unit
        for groups in hunt.played
        for group in groups
        for unit in group.nodes
        if set(hunt.scope.units[unit]) <= set(group.absent)
    }


def _steady(hunts: Sequence[Hunt]) -> bool:
    """Whether each rate is one of the middle of several, which chance hardly moves."""
    return all(len(nodes) >= LEAST_MEMBERS for hunt in hunts for nodes in hunt.scope.units.values())


def _evidence(hunt: Hunt, line: float, size_bytes: int) -> Evidence:
    tried = [group for groups in hunt.played for group in groups]
    fast: list[Group] = []
    slow: list[Group] = []
    for group in (one.up_to(size_bytes) for one in tried if not one.absent):
        (fast if group.works and group.fastest_gb_s >= line else slow).append(group)
    good = tuple(dict.fromkeys(unit for group in fast for unit in group.nodes if _loads(hunt, unit, group)))
    links = links_between_good(fast, slow, good)
    met = met_by([list(groups) for groups in hunt.played])
    return Evidence(
        good,
        to_blame(slow, good, met, _missing(hunt)),
        tuple(groups[-1] for groups in links if len(groups) > 1),
        tuple(groups[0] for groups in links if len(groups) == 1),
        slowest_gb_s=min((group.busbw_gb_s for group in fast), default=0.0),
        fast=tuple(fast),
        size_bytes=size_bytes,
    )


def _once_more(level: LevelSeen, group: Group) -> bool:
    """Whether a group was slow again: something else may have had the network twice."""
    return level.is_slow(group) and 0 < level.rounds_again < MOST_AGAIN and group in level.again


def _again(level: LevelSeen, absent: Collection[str]) -> tuple[tuple[str, ...], ...]:
    """Groups that were in trouble, once more, without who is to blame: the last word on the others."""
    if not level.hunts:
        return ()
    culprits = level.culprits | set(absent)
    left = [
        tuple(name for name in nodes if name not in culprits)
        for nodes, trouble in level.trouble.items()
        if trouble is not Trouble.UNKNOWN or culprits & set(nodes)
    ]
    return tuple(nodes for nodes in left if len(nodes) > 1)
