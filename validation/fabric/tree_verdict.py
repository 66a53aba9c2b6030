"""Between many nodes: the verdict on each node, from what the levels of the tree did."""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from validation.fabric.levels import MOST_RANKS, Level, ranks_of, scopes_of
from validation.fabric.search import SLOW_SHARE
from validation.fabric.tree_search import SMALL_LEAF, below_of, is_below, missed_gb_s, search_rounds, survey
from validation.fabric.words import how, some, verdict
from validation.findings.catalogue import finding
from validation.model.contract import Finding, State, worst
from validation.model.quantities import number

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from validation.fabric.groups import Fleet, Group
    from validation.fabric.tree_search import Hunt, LevelSeen, Survey
    from validation.verdict.verdicts import TestVerdict

#: Groups up to so much faster than a slow one are as slow as it is: one finding says it of all of them.
SAME_RATE = 1.25


@dataclass(frozen=True)
class _Case:
    """All that a node is judged by."""

    fleet: Fleet
    seen: Survey
    notes: tuple[str, ...] = ()
    failing: frozenset[str] = frozenset()  # nodes that are to blame for groups that failed
    bad_nodes: frozenset[str] = frozenset()  # nodes that are to blame themselves, at whichever level
    by_node: Mapping[str, Sequence[Group]] = field(default_factory=dict)  # all groups, and pairs of nodes


def judge_tree(fleet: Fleet) -> dict[str, TestVerdict]:
    """The verdict on each node, in a fleet that was measured by its tree."""
    seen = survey(fleet)
    hunts = [hunt for level in seen.levels for hunt in level.hunts]
    by_node: dict[str, list[Group]] = defaultdict(list)
    pairs = [group for hunt in hunts if hunt.units_are_nodes for groups in hunt.played for group in groups]
    for group in (*_all_groups(seen), *pairs):
        for name in group.nodes:
            by_node[name].append(group)
    failing = frozenset(node for hunt in hunts if not _only_slow(hunt) for node in hunt.culprits)
    bad = frozenset(node for hunt in hunts if hunt.units_are_nodes for node in hunt.seen.bad)
    case = _Case(fleet, seen, tuple(_coverage(fleet, seen)), failing, bad, by_node)
    return {member.name: _judge_node(member.name, case) for member in fleet.nodes}


def _judge_node(name: str, case: _Case) -> TestVerdict:
    mine = list(_groups_with(name, case))
    if not case.by_node.get(name):
        return verdict(
            State.NOT_RUN, reason="it took part in no group: its leaf has no other node to measure with"
        )
    found = list(_wrong(name, case)) or list(_blamed(name, case))
    if not found and name in case.seen.absent:
        return verdict(State.NOT_RUN, reason=case.seen.absent[name])
    headline = _headline(mine)
    if not found:
        for level, group in mine:
            if group.absent:
                missing = "; ".join(f"{node}: {reason}" for node, reason in group.absent.items())
                return verdict(State.NOT_RUN, reason=f"not all nodes could take part ({missing})")
            found += _of_group(name, level, group, case)
    state = worst(one.state for one in found) if found else State.PASS
    return verdict(state, tuple(found), headline=headline, notes=case.notes)


def _groups_with(name: str, case: _Case) -> Iterator[tuple[LevelSeen | None, Group]]:
    """The last group of this node at each level, and the one over the whole network."""
    mine = case.by_node.get(name, ())
    for level in case.seen.levels:
        # Of who was left out when its group measured again, the first one stands.
        groups = [group for group in mine if id(group) in level.ids]
        if groups:
            yield level, groups[-1]
    if case.seen.together and name in case.seen.together.nodes:
        yield None, case.seen.together


def _all_groups(seen: Survey) -> list[Group]:
    groups = [group for level in seen.levels for group in (*level.groups, *level.again)]
    return [*groups, *([seen.together] if seen.together else [])]


def _wrong(name: str, case: _Case) -> Iterator[Finding]:
    """Wrong numbers that a node has, unless another one is known to fail and was in the group.

    Of all groups: that numbers are right the second time makes them no better.
    """
    said = [
        one
        for group in case.by_node[name]
        if name in group.wrong and not case.failing & set(group.nodes) - {name}
        for one in group.wrong[name]
    ]
    yield from dict.fromkeys(said)


def _only_slow(hunt: Hunt) -> bool:
    groups = [group for found in hunt.seen.bad.values() for group in found] + (
        [hunt.blamed] if hunt.blamed else []
    )
    return all(group.works for group in groups)


def _blamed(name: str, case: _Case) -> Iterator[Finding]:
    """What the searches say of this node, of the way to another one, or of a leaf or pod above it."""
    for level in case.seen.levels:
        for hunt in level.hunts:
            unit = next((unit for unit, nodes in hunt.scope.units.items() if name in nodes), None)
            if unit is None:
                continue
            if hunt.blamed:
                yield _inside(level.level, hunt, hunt.blamed, case)
            elif unit in hunt.seen.bad:
                above = not hunt.units_are_nodes or _way_up_unknown(level, name, case)
                yield _bad_unit(unit, hunt, case) if above else _bad_node(unit, hunt, case)
            else:
                yield from (
                    _bad_link(unit, pair, hunt, case) for pair in hunt.seen.links if unit in pair.nodes
                )


def _way_up_unknown(level: LevelSeen, name: str, case: _Case) -> bool:
    """Whether nothing tells a node from its uplink: no other node of its leaf does well with other leaves."""
    leaf_of = {member.name: member.leaf for member in case.fleet.nodes}
    if level.level is Level.LEAF or not leaf_of[name]:
        return False
    well = {node for group in level.groups if group.nodes not in level.trouble for node in group.nodes}
    well |= {node for hunt in level.hunts if hunt.units_are_nodes for node in hunt.seen.good}
    return not any(leaf_of[node] == leaf_of[name] for node in well - {name})


def _state(reached_gb_s: float, usual_gb_s: float, case: _Case) -> State:
    """Whether a slow rate fails: below half of what is usual, or below the operator's floor."""
    return (
        State.FAIL if reached_gb_s < max(SLOW_SHARE * usual_gb_s, case.fleet.floor_gb_s) else State.DEGRADED
    )


def _bad_node(name: str, hunt: Hunt, case: _Case) -> Finding:
    groups = hunt.seen.bad[name]
    facts: dict[str, Any] = {
        "node": name,
        "partners": some([one for group in groups for one in group.nodes if one != name]),
        "others": "another node" if len(groups) == 1 else "others",
    }
    if failed := [group for group in groups if not group.works]:
        return finding("fabric-node", "fails", problem=how(failed[-1], name), **facts)
    reached = max(group.fastest_gb_s for group in groups)
    return finding(
        "fabric-node",
        "slow",
        state=_state(reached, hunt.usual_gb_s, case),
        rate=number(reached),
        best=number(hunt.usual_gb_s),
        **facts,
    )


def _bad_link(name: str, group: Group, hunt: Hunt, case: _Case) -> Finding:
    (other,) = (one for one in group.nodes if one != name)
    if not group.works:
        return finding("fabric-link", "fails", node=name, other=other, problem=how(group))
    return finding(
        "fabric-link",
        "slow",
        # Nothing fails but what was asked for: all others are fast, and routing may take another way.
        state=State.FAIL if group.fastest_gb_s < case.fleet.floor_gb_s else State.DEGRADED,
        node=name,
        other=other,
        rate=number(group.fastest_gb_s),
        best=number(hunt.usual_gb_s),
    )


def _bad_unit(unit: str, hunt: Hunt, case: _Case) -> Finding:
    """A leaf or a pod that is bad with others: its uplink, or the only node that speaks for a leaf."""
    groups = hunt.seen.bad[unit]
    (node, *more) = hunt.scope.units[unit]
    leaf = next(member.leaf for member in case.fleet.nodes if member.name == node)
    pod = not hunt.units_are_nodes and _unit_noun(hunt) == "pod"
    one = not pod and not more
    facts: dict[str, Any] = {
        "what": f"pod {unit}" if pod else f"leaf {leaf if hunt.units_are_nodes else unit}",
        "partners": some([one for group in groups for one in group.nodes if one != unit]),
        "suspects": f"its uplinks, or {node}, are suspect; no other node of it tells which"
        if one
        else "it does well inside, so that its uplinks are suspect",
    }
    if failed := [group for group in groups if not group.works]:
        return finding("fabric-uplink", "fails", problem=how(failed[-1]), **facts)
    reached = max(group.fastest_gb_s for group in groups)
    return finding(
        "fabric-uplink",
        "slow",
        state=_state(reached, hunt.usual_gb_s, case),
        rate=number(reached),
        usual=number(hunt.usual_gb_s),
        **facts,
    )


def _unit_noun(hunt: Hunt) -> str:
    """Leaves are in pods; in the fleet are pods, or leaves where there are no pods."""
    return "leaf" if hunt.scope.name or not hunt.scope.of_pods else "pod"


def _inside(level: Level, hunt: Hunt, group: Group, case: _Case) -> Finding:
    """A leaf all of whose nodes, or a pod all of whose leaves, are bad with each other."""
    few = level is Level.LEAF and len(hunt.scope.units) <= SMALL_LEAF
    facts: dict[str, Any] = {
        "where": f"leaf {hunt.scope.name}" if level is Level.LEAF else f"pod {hunt.scope.name}",
        "units": "nodes" if level is Level.LEAF else "leaves",
        # Of many units hardly all are bad.
        "suspects": "one or more of them, or what they share, is suspect; nothing tells which"
        if few
        else "the switches that they share are suspect, not one node",
    }
    if not group.works:
        return finding("fabric-switch", "fails", problem=how(group), **facts)
    return finding(
        "fabric-switch",
        "slow",
        state=_state(group.fastest_gb_s, hunt.usual_gb_s, case),
        rate=number(group.fastest_gb_s),
        usual=number(hunt.usual_gb_s),
        **facts,
    )


def _of_group(name: str, level: LevelSeen | None, group: Group, case: _Case) -> Iterator[Finding]:
    """What is left to say of a group for which nobody is to blame."""
    if set(group.nodes) & (case.bad_nodes | (level.culprits if level else set())):
        return  # said of them; without them too few were left to measure again
    if not group.works:
        if name in group.suspects and len(group.suspects) < len(group.nodes):
            yield finding("fabric-node", "suspect", node=name, problem=group.suspects[name])
        elif not group.wrong:
            yield finding("fabric-unresolved", "group", nodes=some(group.nodes), problem=how(group))
        return
    if level and any(_meets(link, hunt, group) for hunt in level.hunts for link in hunt.seen.links):
        return  # said at its two ends
    missed, expected = missed_gb_s(case.fleet, group), ""
    if missed is not None and case.fleet.floor_gb_s > 0:
        expected = f", the floor is {number(case.fleet.floor_gb_s)} GB/s"
    elif missed is not None:
        expected = f", the links of the slowest node carry {number(group.link_gb_s or 0)} GB/s"
    elif level and level.is_slow(group):
        expected = f", groups like it {number(level.usual_gb_s)} GB/s"
    elif (below := _below(level, case.seen)) and is_below(group, below, SLOW_SHARE):
        expected = f", one level below {number(below.usual_gb_s)} GB/s"
    else:
        return
    alike = level.last() if level else [group]
    slow = [one for one in alike if one.works and one.fastest_gb_s <= SAME_RATE * group.fastest_gb_s]
    # What most groups have is said once, of all of them.
    some_or_all = slow if 2 * len(slow) >= len(alike) else [group]
    searched = level is not None and any(set(group.nodes) & set(hunt.scope.nodes) for hunt in level.hunts)
    two = searched and level is not None and _of_two(level, group, case)
    yield finding(
        "fabric-slow",
        "level",
        state=State.FAIL if missed is not None and case.fleet.floor_gb_s > 0 else State.DEGRADED,
        where=_where(level.level if level else None, case),
        nodes=sum(len(one.nodes) for one in some_or_all),
        groups=len(some_or_all),
        rate=number(statistics.median(one.busbw_gb_s for one in some_or_all)),
        expected=expected,
        pairs=f"of two {two} nothing tells which is slow"
        if two
        else "no pair of them stands out"
        if searched
        else "no pairs of them were measured to find out why",
    )


def _of_two(level: LevelSeen, group: Group, case: _Case) -> str:
    """`leaves` or `pods` where a group between them has just two; empty otherwise."""
    of = {member.name: member for member in case.fleet.nodes}
    if level.level is Level.LEAF:
        return ""
    for noun, names in (
        ("pods", {of[name].pod for name in group.nodes}),
        ("leaves", {of[name].leaf for name in group.nodes}),
    ):
        if len(names) == 2:
            return noun
    return ""


def _meets(link: Group, hunt: Hunt, group: Group) -> bool:
    """Whether a group has nodes at both ends of a link."""
    return all(set(hunt.scope.units[unit]) & set(group.nodes) for unit in link.nodes)


def _below(level: LevelSeen | None, seen: Survey) -> LevelSeen | None:
    return below_of(seen.levels[: seen.levels.index(level)] if level else seen.levels)


def _where(level: Level | None, case: _Case) -> str:
    if level is None:
        return "over the whole network"
    pods = any(scope.of_pods for scope in scopes_of(case.fleet)[Level.FLEET])
    return {
        Level.LEAF: "inside one leaf",
        Level.POD: "between the leaves of one pod",
        Level.FLEET: "between the pods" if pods else "between the leaves",
    }[level]


def _headline(mine: Sequence[tuple[LevelSeen | None, Group]]) -> str:
    """The rates of a node's groups from its leaf up: `392 / 380 GB/s`."""
    last = [group for _, group in mine if group.measurements]
    return " / ".join(number(group.busbw_gb_s) for group in last) + (" GB/s" if last else "")


def _coverage(fleet: Fleet, seen: Survey) -> Iterator[str]:
    """What was measured at each level, and what was not."""
    for level in seen.levels:
        rates = [group.busbw_gb_s for group in (*level.groups, *level.again) if group.works]
        if rates:
            where = _where(level.level, _Case(fleet, seen)).replace("one ", "each ")
            yield (
                f"{where}: {len(level.groups)} groups, {number(min(rates))} to {number(max(rates))} GB/s, "
                f"median {number(statistics.median(rates))}"
            )
    if seen.together and seen.together.works:
        count, rate = len(seen.together.nodes), number(seen.together.busbw_gb_s)
        yield f"one group of {count} nodes over the whole network: {rate} GB/s"
    if ranks_of(fleet.nodes) > MOST_RANKS:
        yield (
            f"not measured: one collective of all {ranks_of(fleet.nodes):,} ranks; a group has "
            f"{MOST_RANKS} at most"
        )
    if any(search_rounds(fleet, level, seen.absent) for level in seen.levels):
        yield (
            f"the search ended after {len(fleet.rounds)} rounds, with nodes left to measure: set "
            "gpu_validation_fabric_most_rounds higher to go on"
        )
