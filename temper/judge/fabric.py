"""Between nodes: the verdict on each node's part in the network, from what all together and the pairs did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from temper.judge.fabric_search import SLOW_SHARE, Evidence, evidence, expected_gb_s
from validation.fabric.groups import Fleet, Group, common_size_bytes, groups_of
from validation.findings.catalogue import finding
from validation.model.contract import Finding, State, worst
from validation.model.printable import first_of
from validation.model.quantities import number
from validation.verdict.verdicts import TestVerdict

FABRIC = "fabric"


@dataclass(frozen=True)
class _Case:
    """All that a node is judged by."""

    fleet: Fleet
    whole: Group
    pairs: tuple[Group, ...]
    seen: Evidence
    slow: Finding | None  # about all nodes together

    @property
    def solved(self) -> bool:
        """Whether a node or a link is known to be to blame."""
        return bool(self.seen.bad or self.seen.links)


def judge_fabric(fleet: Fleet) -> dict[str, TestVerdict]:
    """Return the verdict on each node's part in the network between nodes."""
    rounds = [groups_of(attempts) for attempts in fleet.rounds]
    if not rounds:
        reason = fleet.why_unmeasured or "no round took place"
        return {member.name: _verdict(State.NOT_RUN, reason=reason) for member in fleet.nodes}
    whole, seen = rounds[0][0], evidence(fleet)
    pairs = tuple(group for groups in rounds[1:] for group in groups)
    case = _Case(fleet, whole, pairs, seen, _slow(fleet, whole, seen))
    return {member.name: _judge_node(member.name, case) for member in fleet.nodes}


def _judge_node(name: str, case: _Case) -> TestVerdict:
    whole, seen = case.whole, case.seen
    mine = [group for group in (whole, *case.pairs) if name in group.nodes]
    if not mine:
        return _verdict(State.NOT_RUN, reason="it took part in no group")
    # A good node may have had them from a node or over a link that is known.
    its_own = [group for group in mine if name not in seen.good or not _has_culprit(group, name, seen)]
    if wrong := tuple(dict.fromkeys(one for group in its_own for one in group.wrong.get(name, ()))):
        return _verdict(State.FAIL, wrong)
    if name in seen.bad:
        return _verdict(State.FAIL, (_bad_node(name, case),))
    if links := [group for group in seen.links if name in group.nodes]:
        found = tuple(_bad_link(name, group, case) for group in links)
        return _verdict(worst(one.state for one in found), found, headline=_headline(whole))
    if name in mine[-1].absent:
        return _verdict(State.NOT_RUN, reason=mine[-1].absent[name])
    alone = [group for group in mine if group in case.pairs and not group.absent and name not in seen.good]
    if alone and (whole.works or whole.absent):
        # Nobody who did well was left to meet it. All together may have worked, and hidden who is slow; where
        # one could not take part, that does not excuse this pair.
        return _unresolved_pair(name, alone[-1].up_to(seen.size_bytes), seen)
    return _by_the_whole(name, mine[-1], case)


def _has_culprit(group: Group, name: str, seen: Evidence) -> bool:
    """Return whether another node that is to blame, or a link, was in this group.

    A node that is only slow is not to blame.
    """
    nodes = {one for one, groups in seen.bad.items() if not all(pair.works for pair in groups)}
    links = (set(link.nodes) for link in seen.links if not link.works)
    return bool((set(group.nodes) - {name}) & nodes) or any(link <= set(group.nodes) for link in links)


def _by_the_whole(name: str, last: Group, case: _Case) -> TestVerdict:
    whole, good = case.whole, name in case.seen.good
    left_out = (
        (f"left out, for want of time or memory: {', '.join(whole.left_out)}",) if whole.left_out else ()
    )
    if whole.works:
        if case.slow and not case.solved:
            return _verdict(case.slow.state, (case.slow,), headline=_headline(whole), notes=left_out)
        notes = (*left_out, _compared(case))
        return _verdict(State.PASS, headline=_headline(whole), notes=notes)
    if whole.absent and good:
        return _by_pairs(name, last, case)
    if whole.absent:
        missing = "; ".join(f"{node}: {reason}" for node, reason in whole.absent.items())
        return _verdict(State.NOT_RUN, reason=f"not all nodes could take part ({missing})")
    if name in whole.suspects and len(whole.suspects) < len(whole.nodes) and not good:
        return _verdict(
            State.FAIL, (finding("fabric-node", "suspect", node=name, problem=whole.suspects[name]),)
        )
    others_wrong = whole.measurements and whole.wrong.keys() - {name}
    if good and (case.solved or others_wrong or set(whole.nodes) - set(case.seen.good)):
        # Another node is to blame, and says so.
        return _by_pairs(name, last, case)
    unresolved = finding("fabric-unresolved", "group", nodes=first_of(whole.nodes), problem=_how(whole))
    return _verdict(State.FAIL, (unresolved,))


def _by_pairs(name: str, last: Group, case: _Case) -> TestVerdict:
    """Return the verdict on a good node where all together did not work.

    Its pairs are all that it has shown.
    """
    reached = max(group.fastest_gb_s for group in case.pairs if name in group.nodes and group.works)
    missed = _missed(reached, case.fleet, case.whole, case.seen)
    if not missed:
        return _verdict(State.PASS, headline=_headline(last), notes=(_compared(case),))
    state, expected = missed
    slow = finding(
        "fabric-slow",
        "pair",
        state=state,
        node=name,
        rate=number(reached),
        expected=expected,
        pairs=_pairs_alike(case.seen),
    )
    return _verdict(state, (slow,), headline=_headline(last))


def _slow(fleet: Fleet, whole: Group, seen: Evidence) -> Finding | None:
    """Return what to say of a whole that works and is slow."""
    if not whole.works:
        return None
    if missed := _missed(whole.busbw_gb_s, fleet, whole, seen):
        state, expected = missed
    elif _far_slower(whole, seen.fast):
        state, expected = State.DEGRADED, ""
    else:
        return None
    return finding(
        "fabric-slow",
        "all",
        state=state,
        nodes=len(whole.nodes),
        rate=number(whole.busbw_gb_s),
        expected=expected,
        pairs=_pairs_alike(seen),
    )


def _far_slower(whole: Group, pairs: Sequence[Group]) -> bool:
    """Return whether all together are far slower than the slowest pair, at a size that all measured."""
    if not (size_bytes := common_size_bytes((whole, *pairs))):
        return False
    slowest_gb_s = min((pair.up_to(size_bytes).busbw_gb_s for pair in pairs), default=0.0)
    return whole.up_to(size_bytes).fastest_gb_s < SLOW_SHARE * slowest_gb_s


def _missed(reached_gb_s: float, fleet: Fleet, whole: Group, seen: Evidence) -> tuple[State, str] | None:
    """Return what is slow about a rate below what this fleet is expected to reach, else None.

    Only an operator's floor fails nodes. gloo goes through the CPUs, which can be what holds it back, so that
    only pairs can show that the network is slow.
    """
    expected = expected_gb_s(fleet, whole)
    if expected is None or reached_gb_s >= expected:
        return None
    if fleet.floor_gb_s > 0:
        return State.FAIL, f", the floor is {number(fleet.floor_gb_s)} GB/s"
    if fleet.library != "nccl" and seen.best_gb_s < expected:
        return None
    return State.DEGRADED, f", the links of the slowest node carry {number(whole.link_gb_s or 0)} GB/s"


def _pairs_alike(seen: Evidence) -> str:
    if not seen.best_gb_s:
        return "no pairs of nodes were measured to find out why"
    return (
        f"pairs of nodes reach {number(seen.slowest_gb_s)} to {number(seen.best_gb_s)} GB/s, none is far "
        "slower than the others: the network between the nodes is suspect, not a node"
    )


def _bad_node(name: str, case: _Case) -> Finding:
    groups = case.seen.bad[name]
    facts: dict[str, Any] = {
        "node": name,
        "partners": first_of([one for group in groups for one in group.nodes if one != name]),
        "others": "another node" if len(groups) == 1 else "others",
    }
    if failed := [group for group in groups if not group.works]:
        return finding("fabric-node", "fails", problem=_how(failed[-1], name), **facts)
    reached, best = max(group.busbw_gb_s for group in groups), case.seen.best_gb_s
    return finding("fabric-node", "slow", state=State.FAIL, rate=number(reached), best=number(best), **facts)


def _bad_link(name: str, group: Group, case: _Case) -> Finding:
    (other,) = (one for one in group.nodes if one != name)
    if not group.works:
        return finding("fabric-link", "fails", node=name, other=other, problem=_how(group))
    # Slow only, and all together fast enough for who asked: nothing fails.
    missed = case.slow is not None and case.slow.state is State.FAIL
    return finding(
        "fabric-link",
        "slow",
        state=State.DEGRADED if case.whole.works and not missed else State.FAIL,
        node=name,
        other=other,
        rate=number(group.busbw_gb_s),
        best=number(case.seen.best_gb_s),
    )


def _unresolved_pair(name: str, group: Group, seen: Evidence) -> TestVerdict:
    facts: dict[str, Any] = {"node": name, "partners": first_of([one for one in group.nodes if one != name])}
    if group.works:
        rate, best = number(group.busbw_gb_s), number(seen.best_gb_s)
        slow = finding("fabric-unresolved", "pair-slow", rate=rate, best=best, **facts)
        return _verdict(slow.state, (slow,))
    failed = finding("fabric-unresolved", "pair-fails", problem=_how(group), **facts)
    return _verdict(failed.state, (failed,))


def _compared(case: _Case) -> str:
    """Return what the pass of a node says, and what it does not."""
    fleet, whole = case.fleet, case.whole
    if whole.works and fleet.floor_gb_s and not case.slow:
        return f"at or above the floor of {number(fleet.floor_gb_s)} GB/s"
    if whole.works and whole.link_gb_s:
        share = whole.busbw_gb_s / whole.link_gb_s
        return f"{share:.0%} of the {number(whole.link_gb_s)} GB/s that the links of the slowest node carry"
    if case.seen.best_gb_s:
        rates = f"{number(case.seen.slowest_gb_s)} to {number(case.seen.best_gb_s)} GB/s"
        if fleet.floor_gb_s > 0:
            known = f"against a floor of {number(fleet.floor_gb_s)} GB/s"
        elif whole.link_gb_s is not None:
            known = f"the links of the slowest node carry {number(whole.link_gb_s)} GB/s"
        else:
            known = "no floor, and no known rate of the links"
        return f"compared with pairs of nodes only ({rates}): {known}"
    return "not compared: no floor was given, and the rate of the nodes' links is not known"


def _how(group: Group, name: str = "") -> str:
    """Return how a group failed, by the node of this name if that says it."""
    said = {**group.absent, **{one: found[0].text for one, found in group.wrong.items()}, **group.suspects}
    return said.get(name) or next(iter(said.values()), "the group failed")


def _headline(group: Group) -> str:
    """Return what a group reached."""
    return f"{number(group.busbw_gb_s)} GB/s" if group.measurements else ""


def _verdict(
    state: State,
    findings: tuple[Finding, ...] = (),
    *,
    reason: str = "",
    headline: str = "",
    notes: tuple[str, ...] = (),
) -> TestVerdict:
    """Return the verdict on a node's part in the network."""
    # It runs only where it was asked for; then it must have run.
    return TestVerdict(FABRIC, state, True, headline, reason, findings, notes)
