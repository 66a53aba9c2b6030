"""Between many nodes: what a measurement by the tree will take, before it begins, and what each step does."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from validation.fabric.groups import Pairs
from validation.fabric.levels import (
    MOST_RANKS,
    TOGETHER,
    Level,
    by_tree,
    level_groups,
    most_rounds,
    ranks_of,
    scopes_of,
    together,
)
from validation.fabric.measure import MEETING_S, MEETING_S_PER_NODE
from validation.fabric.words import some
from validation.model.plans import PLANS

if TYPE_CHECKING:
    from validation.fabric.groups import Fleet
    from validation.fabric.tree_search import Step

WHERE = {
    Level.LEAF: "inside the leaves",
    Level.POD: "between the leaves of each pod",
    Level.FLEET: "over the whole network",
}


def outlook(fleet: Fleet, step: Step) -> list[str]:
    """Sentences for the operator: before the first round all that is planned, then what comes next."""
    if fleet.no_tree:
        return [f"Nothing is measured between the nodes: {fleet.no_tree}."]
    if not step.rounds or not by_tree(fleet):
        return []
    return [*(_whole(fleet) if not fleet.rounds else []), _next(fleet, step)]


def _whole(fleet: Fleet) -> list[str]:
    scopes, ranks = scopes_of(fleet), {member.name: member.ranks for member in fleet.nodes}
    groups = {
        level: [group for scope in found for group in level_groups(level, scope, ranks)]
        for level, found in scopes.items()
    }
    alone = [nodes[0] for scope in scopes[Level.LEAF] if len(nodes := scope.nodes) == 1]
    pods = len({member.pod for member in fleet.nodes} - {""})
    real = any(member.leaf for member in fleet.nodes)
    leaves = f"{len(scopes[Level.LEAF])} {'leaves' if real else 'groups, because no topology names leaves'}"
    rounds = sum(map(bool, groups.values())) + bool(together(fleet))
    lines = [
        f"{len(fleet.nodes):,} nodes with {ranks_of(fleet.nodes):,} ranks in {leaves}"
        + (f" and {pods} pods." if pods else ".")
    ]
    lines += [
        f"One round {WHERE[level]}: {len(found)} groups of at most {max(map(len, found))} nodes at once."
        for level, found in groups.items()
        if found
    ]
    if whole := together(fleet):
        who = "all" if len(whole) == len(fleet.nodes) else "one node of each leaf or pod"
        lines.append(f"One round of one group over all of it: {who}, {len(whole)} nodes.")
    if alone:
        lines.append(f"Not measured inside a leaf, where they are alone: {some(alone)}.")
    if ranks_of(fleet.nodes) > MOST_RANKS:
        lines.append(
            f"Not measured: one collective of all ranks, because a group has {MOST_RANKS} at most; and pairs "
            "of nodes that no round brings together."
        )
    most_s = _most_seconds(fleet)
    lines.append(f"Where nothing is slow: {rounds} rounds, at most {_minutes(rounds * most_s)}.")
    if fleet.pairs is not Pairs.NEVER:
        most = max(rounds, most_rounds(fleet))
        lines.append(
            f"Where a group fails or is slow, pairs are measured: at most {most} rounds in all, "
            f"{_minutes(most * most_s)}."
        )
    return lines


def _next(fleet: Fleet, step: Step) -> str:
    first, count = len(fleet.rounds) + 1, len(step.rounds)
    numbers = f"Round {first}" if count == 1 else f"Rounds {first} to {first + count - 1}"
    groups = max(map(len, step.rounds))
    again = any(attempt.step == step.name for attempts in fleet.rounds for attempt in attempts.values())
    if step.name == TOGETHER:
        return f"{numbers}: one group over the whole network."
    level = next(level for level in Level if step.name in {level, level.pairs})
    what = (
        f"up to {groups} pairs of nodes at once" if step.name == level.pairs else f"{groups} groups at once"
    )
    more = " again, without who is to blame" if again and step.name == level else ""
    return f"{numbers}: {what} {WHERE[level]}{more}."


def _most_seconds(fleet: Fleet) -> float:
    """What one round may take: the nodes are started one after the other, and a group has a budget."""
    plan = PLANS.get(fleet.plan)
    return MEETING_S + MEETING_S_PER_NODE * len(fleet.nodes) + (plan.fabric_budget_s if plan else 0.0)


def _minutes(seconds: float) -> str:
    return f"{math.ceil(seconds / 60)} minutes"
