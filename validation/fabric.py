"""Between nodes: who measures with whom, and which node or link is to blame when it fails or is slow.

First all nodes together. When that fails, or on request, disjoint pairs; then every node of a bad pair again
with one that did well. A node is as good as its best partner lets it be: it is to blame only when it fails
with a good one. Pure functions; validation/fabric_run.py measures.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from validation.checks.collectives import combine, stage_order
from validation.comparison import number
from validation.contract import SCHEMA_VERSION, Finding, Measurement, State, Word
from validation.judge import TestVerdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

FABRIC = "fabric"
#: A pair that reaches less than this part of the fastest one is slow: its nodes meet others.
SLOW_SHARE = 0.5
#: Nodes that died within this time of each other may each have been the first: clocks differ.
SAME_TIME_S = 0.5


#: The codes of findings of this module, and what to do.
ACTIONS = {
    "fabric-node": "check this node's network adapters, cables, switch ports and firewall",
    "fabric-unresolved": "check firewall, interface names (NCCL_SOCKET_IFNAME) and the fabric",
}


class Round(Word):
    """Who measures with whom."""

    ALL = "all"
    PAIRS = "pairs"
    SUSPECTS = "suspects"


@dataclass(frozen=True)
class Member:
    """A node of a group: where the others find it, and how many ranks it has."""

    name: str
    address: str
    ranks: int


@dataclass(frozen=True)
class Order:
    """What a node is asked to do: its own name, its group (the first keeps the meeting place), and how."""

    schema_version: int
    node: str
    group: tuple[Member, ...]
    port: int
    library: str  # nccl or gloo
    plan: str
    run: str  # of this group in this round only: who comes late from another one meets nobody


@dataclass(frozen=True)
class Rank:
    """What came of one rank.

    `ended_at` in seconds since 1970; `seconds` of each run by collective and size.
    """

    ending: str
    stage: str
    problem: str
    ended_at: float
    seconds: dict[str, tuple[float, ...]] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class Part:
    """What one node brings home from a group; `not_run` says why it could not take part."""

    schema_version: int
    node: str
    ranks: tuple[Rank, ...] = ()
    collectives: tuple[str, ...] = ()
    sizes_bytes: tuple[int, ...] = ()
    not_run: str = ""


@dataclass(frozen=True)
class Attempt:
    """A node in a round: its group, and its part or why there is none."""

    group: tuple[str, ...]
    part: Part | None = None
    problem: str = ""


@dataclass(frozen=True)
class Fleet:
    """The nodes that can measure with each other, and the rounds so far: attempts by node."""

    schema_version: int
    library: str
    plan: str
    port: int
    always_pairs: bool
    nodes: tuple[Member, ...]
    rounds: tuple[dict[str, Attempt], ...] = ()


@dataclass(frozen=True)
class Group:
    """What came of one group."""

    nodes: tuple[str, ...]
    measurements: tuple[Measurement, ...] = ()
    absent: dict[str, str] = field(default_factory=dict)  # nodes that could not take part, with the reason
    wrong: dict[str, tuple[Finding, ...]] = field(default_factory=dict)
    suspects: dict[str, str] = field(default_factory=dict)  # who failed first or got least far, and how

    @property
    def works(self) -> bool:
        """Whether all ranks came back with right numbers."""
        return bool(self.measurements) and not self.wrong

    @property
    def busbw_gb_s(self) -> float:
        """Bus bandwidth of the largest all-reduce; 0 where there is none."""
        return self.measurements[-1].value if self.measurements else 0.0


def circle_rounds(nodes: Sequence[str]) -> list[list[tuple[str, ...]]]:
    """All rounds of disjoint pairs in which each node meets each other one once (circle method).

    With an odd number the node that is left over joins the first pair.
    """
    names: list[str | None] = [*nodes, *([None] if len(nodes) % 2 else [])]
    rounds = []
    for _ in range(len(names) - 1):
        half = len(names) // 2
        pairs = list(zip(names[:half], reversed(names[half:]), strict=True))
        whole: list[tuple[str, ...]] = [(a, b) for a, b in pairs if a is not None and b is not None]
        left_over = [name for pair in pairs if None in pair for name in pair if name is not None]
        if left_over and whole:
            whole[0] = (*whole[0], *left_over)
        rounds.append(whole)
        names = [names[0], names[-1], *names[1:-1]]
    return rounds


def next_groups(fleet: Fleet, wanted: Round) -> list[tuple[str, ...]]:
    """Who measures with whom in a round; nobody where it is not needed."""
    names = [member.name for member in fleet.nodes]
    if len(names) < 2:
        return []
    if wanted is Round.ALL:
        return [tuple(names)]
    rounds = [groups_of(attempts) for attempts in fleet.rounds]
    if wanted is Round.PAIRS:
        failed = any(not group.works for group in rounds[0]) if rounds else False
        # With two nodes all nodes were a pair already.
        present = [name for name in names if not rounds or name not in rounds[0][0].absent]
        return circle_rounds(present)[0] if len(present) > 2 and (failed or fleet.always_pairs) else []
    if len(rounds) < 2:
        return []
    bad = bad_groups(rounds[1])
    good = [name for group in rounds[1] if group not in bad for name in group.nodes]
    suspects = [name for group in bad for name in group.nodes if name not in group.absent]
    return [(partner, suspect) for partner, suspect in zip(good, suspects, strict=False)]


def orders(fleet: Fleet, groups: Iterable[tuple[str, ...]], run: str) -> dict[str, Order]:
    """What each node is asked to do. `run` is a name that no other round has, nor one of another day."""
    members = {member.name: member for member in fleet.nodes}
    return {
        name: Order(
            SCHEMA_VERSION,
            name,
            tuple(members[one] for one in group),
            fleet.port,
            fleet.library,
            fleet.plan,
            f"{run}-{number}",
        )
        for number, group in enumerate(groups)
        for name in group
    }


def groups_of(attempts: dict[str, Attempt]) -> list[Group]:
    """The groups of a round, evaluated."""
    return [
        _group(nodes, attempts) for nodes in dict.fromkeys(attempt.group for attempt in attempts.values())
    ]


def bad_groups(groups: list[Group]) -> list[Group]:
    """Those that do not work, and those that are far slower than the fastest."""
    best = max((group.busbw_gb_s for group in groups), default=0.0)
    return [group for group in groups if not group.works or group.busbw_gb_s < SLOW_SHARE * best]


def _group(nodes: tuple[str, ...], attempts: dict[str, Attempt]) -> Group:
    parts: dict[str, Part] = {}
    absent: dict[str, str] = {}
    for name in nodes:
        attempt = attempts.get(name)
        if attempt is None or attempt.part is None:
            absent[name] = (attempt.problem if attempt else "") or "it brought no result"
        elif attempt.part.not_run:
            absent[name] = attempt.part.not_run
        else:
            parts[name] = attempt.part
    ranks = [(name, rank) for name, part in parts.items() for rank in part.ranks]
    wrong = {
        name: found
        for name, part in parts.items()
        if (found := tuple(finding for rank in part.ranks for finding in rank.findings))
    }
    if absent or not ranks or not all(rank.seconds for _, rank in ranks):
        return Group(nodes, (), absent, wrong, {} if absent or not ranks else _suspects(parts))
    if len({tuple((step, len(runs)) for step, runs in rank.seconds.items()) for _, rank in ranks}) > 1:
        return Group(nodes, (), absent, wrong, dict.fromkeys(parts, "its ranks did not measure the same"))
    measurements, _ = combine(
        [{step: list(runs) for step, runs in rank.seconds.items()} for _, rank in ranks]
    )
    reductions = [one for one in measurements if one.name == "busbw_gb_s"]
    others = [one for one in measurements if one.name != "busbw_gb_s"]
    return Group(nodes, (*others, *reductions), absent, wrong)


def _suspects(parts: dict[str, Part]) -> dict[str, str]:
    """Who broke the collective: nodes that died first, or, when all hang, that got least far."""
    dead = [
        (rank.ended_at, name, rank.problem)
        for name, part in parts.items()
        for rank in part.ranks
        if rank.ending in {"died", "nonsense", "unkillable"}
    ]
    if dead:
        first = min(dead)[0]
        return {
            name: problem
            for ended_at, name, problem in sorted(dead, reverse=True)
            if ended_at <= first + SAME_TIME_S
        }
    some = next(iter(parts.values()))
    order = stage_order({"collectives": some.collectives, "sizes_bytes": some.sizes_bytes})
    hung = [
        (order(rank.stage), name, rank.problem)
        for name, part in parts.items()
        for rank in part.ranks
        if not rank.seconds
    ]
    behind = min(hung)[0] if hung else 0
    return {name: problem for how_far, name, problem in sorted(hung, reverse=True) if how_far == behind}


def judge(fleet: Fleet) -> dict[str, TestVerdict]:
    """The verdict on each node's part in the network between nodes."""
    rounds = [groups_of(attempts) for attempts in fleet.rounds]
    if not rounds:
        reason = "one node has no other to measure with" if len(fleet.nodes) < 2 else "no round took place"
        return {member.name: _verdict(State.NOT_RUN, reason=reason) for member in fleet.nodes}
    later = [group for groups in rounds[1:] for group in groups]
    best = max((group.busbw_gb_s for group in later), default=0.0)
    good = {
        name
        for group in later
        if group.works and group.busbw_gb_s >= SLOW_SHARE * best
        for name in group.nodes
    }
    return {member.name: _judge_node(member.name, rounds, good, best) for member in fleet.nodes}


def _judge_node(name: str, rounds: list[list[Group]], good: set[str], best: float) -> TestVerdict:
    mine = [group for groups in rounds for group in groups if name in group.nodes]
    everybody = rounds[0][0] if rounds[0] else None
    if wrong := [finding for group in mine for finding in group.wrong.get(name, ())]:
        return _verdict(State.FAIL, tuple(wrong))
    if not mine:
        return _verdict(State.NOT_RUN, reason="it took part in no group")
    if all(name in group.absent for group in mine):
        return _verdict(State.NOT_RUN, reason=mine[0].absent[name])
    last = mine[-1]
    partners = [one for one in last.nodes if one != name]
    if name not in good and last is not everybody and set(partners) & good:
        return _verdict(State.FAIL, (_to_blame(name, last, partners, best),))
    if everybody is not None and everybody.works and last is not everybody and name not in good:
        # Nobody who did well was left to meet it: all together may have worked, and hidden who is slow.
        return _verdict(*_unresolved(name, last, partners, best))
    if everybody is None or everybody.works:
        return _verdict(State.PASS, headline=_headline(everybody or last))
    if everybody.absent and name in good:
        return _verdict(State.PASS, headline=_headline(last))
    if everybody.absent:
        missing = "; ".join(f"{node}: {reason}" for node, reason in everybody.absent.items())
        return _verdict(State.NOT_RUN, reason=f"not all nodes could take part ({missing})")
    if name in everybody.suspects and len(everybody.suspects) < len(everybody.nodes) and name not in good:
        return _verdict(State.FAIL, (_finding("fabric-node", f"{name}: {everybody.suspects[name]}"),))
    if name in good and (set(everybody.nodes) - good):
        # Another node is to blame, and says so.
        return _verdict(State.PASS, headline=_headline(last))
    problem = next(iter(everybody.suspects.values()), "some of its numbers are wrong")
    text = f"the collective between {', '.join(everybody.nodes)} failed, and no group tells who is to blame: "
    return _verdict(State.FAIL, (_finding("fabric-unresolved", text + problem),))


def _to_blame(name: str, group: Group, partners: list[str], best: float) -> Finding:
    with_whom = f"with {', '.join(partners)}, which did well with another node"
    if group.works:
        text = (
            f"{name} reaches {number(group.busbw_gb_s)} GB/s {with_whom}, the best pair {number(best)} GB/s: "
            "its network is slow"
        )
    else:
        how = group.suspects.get(name) or next(iter(group.suspects.values()), "the group failed")
        text = f"{name} fails {with_whom}: {how}"
    return _finding("fabric-node", text)


def _unresolved(
    name: str, group: Group, partners: list[str], best: float
) -> tuple[State, tuple[Finding, ...]]:
    state = State.DEGRADED if group.works else State.FAIL
    how = (
        f"reach {number(group.busbw_gb_s)} GB/s, the best pair {number(best)} GB/s"
        if group.works
        else f"fail: {next(iter(group.suspects.values()), 'the group failed')}"
    )
    text = f"{name} and {', '.join(partners)} {how}; no good node was left to tell who is to blame"
    return state, (_finding("fabric-unresolved", text, state),)


def _finding(code: str, text: str, state: State = State.FAIL) -> Finding:
    return Finding(code, state, text, ACTIONS[code])


def _headline(group: Group) -> str:
    return f"{number(group.busbw_gb_s)} GB/s" if group.measurements else ""


def _verdict(
    state: State, findings: tuple[Finding, ...] = (), *, reason: str = "", headline: str = ""
) -> TestVerdict:
    # It runs only where it was asked for; then it must have run.
    notes = ("not compared: there is no reference for a network",) if state is State.PASS else ()
    return TestVerdict(FABRIC, state, True, headline, reason, findings, notes)
