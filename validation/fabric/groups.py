"""Between nodes: what passes between controller and nodes, and what came of a group.

All nodes measure together and then, where that is wanted, pairs: search.py says which, verdict.py what it
means, measure.py measures. Pure functions.
"""

from __future__ import annotations

import dataclasses
import math
import re
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Any

from validation.checks.check import LEAST_PATIENCE_S
from validation.checks.collectives import combine, stage_order
from validation.model.bounds import Bounds, Name
from validation.model.contract import FABRIC_VERSION, ContractError, Finding, Measurement, StringEnum, decode
from validation.processes.pool import Ending

#: Bytes, as they stand behind the collective in the name of a step.
SIZE = re.compile("[1-9][0-9]{0,17}")
#: Nodes that died within this time of each other may each have been the first: clocks differ.
SAME_TIME_S = 0.5
#: Who dies so shortly before a node gives its ranks up, or later, may have died because they were gone. Ranks
#: that hang because another one died are given up only after twice as long.
AFTERMATH_S = LEAST_PATIENCE_S / 2
#: Of one rendezvous. Chosen, not measured: one store serves them all, and thousands connect to it badly.
MOST_RANKS = 512


class Pairs(StringEnum):
    """When pairs of nodes are measured: unless the whole is known to be fast, always, or never."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


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
    nodes_in_round: int  # of all groups: they are started one after the other


@dataclass(frozen=True)
class Rank:
    """What came of one rank.

    `ended_at` in seconds since 1970; `seconds` of each run by collective and size; `steps` and `halted` as in
    processes/pool.py.
    """

    ending: str
    stage: str
    problem: str
    ended_at: float
    seconds: Annotated[dict[str, tuple[Annotated[float, Bounds(1e8, 1e-9)], ...]], Bounds(1024)] = field(
        default_factory=dict
    )
    findings: Annotated[tuple[Finding, ...], Bounds(1024)] = ()
    steps: int = 0
    halted: str = ""


@dataclass(frozen=True)
class Part:
    """What one node brings home from a group; `not_run` says why it could not take part.

    `left_out`: collectives and sizes that there was no time or memory for. `link_gb_s`: what the node's links
    to others carry, None where that is not known.
    """

    schema_version: int
    node: Name
    ranks: Annotated[tuple[Rank, ...], Bounds(256)] = ()
    collectives: Annotated[tuple[Name, ...], Bounds(16)] = ()
    sizes_bytes: Annotated[tuple[Annotated[int, Bounds(1 << 50, 1)], ...], Bounds(256)] = ()
    not_run: str = ""
    left_out: Annotated[tuple[Name, ...], Bounds(4096)] = ()
    link_gb_s: Annotated[float, Bounds(1e9, 0)] | None = None


@dataclass(frozen=True)
class Attempt:
    """A node in a round: its group, and its part or why there is none."""

    group: tuple[str, ...]
    part: Part | None = None
    problem: str = ""


@dataclass(frozen=True)
class Fleet:
    """The nodes that can measure with each other, and the rounds so far: attempts by node.

    `floor_gb_s`: what all together must reach, 0 where nobody said.
    """

    schema_version: int
    library: str
    plan: str
    port: int
    pairs: Pairs
    nodes: tuple[Member, ...]
    rounds: tuple[dict[str, Attempt], ...] = ()
    pair_rounds: int = 1
    floor_gb_s: float = 0.0

    @property
    def why_unmeasured(self) -> str:
        """Why its nodes cannot measure with each other; empty where they can."""
        if len(self.nodes) < 2:
            return "one node has no other to measure with"
        if (ranks := sum(member.ranks for member in self.nodes)) > MOST_RANKS:
            return (
                f"{len(self.nodes):,} nodes have {ranks:,} ranks, and at most {MOST_RANKS} can meet: "
                "measure a group of these nodes at a time, with --limit"
            )
        return ""


@dataclass(frozen=True)
class Group:
    """What came of one group."""

    nodes: tuple[str, ...]
    measurements: tuple[Measurement, ...] = ()
    absent: dict[str, str] = field(default_factory=dict)  # nodes that could not take part, with the reason
    wrong: dict[str, tuple[Finding, ...]] = field(default_factory=dict)
    suspects: dict[str, str] = field(default_factory=dict)  # who failed first or got least far, and how
    left_out: tuple[str, ...] = ()
    link_gb_s: float | None = None  # of the node whose links carry least
    fastest: dict[int, float] = field(default_factory=dict)  # GB/s of the fastest all-reduce of each size

    @property
    def works(self) -> bool:
        """Whether all ranks came back with right numbers."""
        return bool(self.measurements) and not self.wrong

    @property
    def busbw_gb_s(self) -> float:
        """Bus bandwidth of the largest all-reduce; 0 where there is none."""
        return self.measurements[-1].value if self.measurements else 0.0

    @property
    def fastest_gb_s(self) -> float:
        """Like busbw_gb_s, in the fastest run: others may have disturbed the rest."""
        return self.fastest[max(self.fastest)] if self.fastest else 0.0

    def up_to(self, size_bytes: int) -> Group:
        """Return the same without larger all-reduces: rates of different sizes do not compare."""
        if not any(size <= size_bytes for size in self.fastest):
            return self
        return dataclasses.replace(
            self,
            measurements=tuple(
                one
                for one in self.measurements
                if one.name != "busbw_gb_s" or int(one.conditions["size_bytes"]) <= size_bytes
            ),
            fastest={size: rate for size, rate in self.fastest.items() if size <= size_bytes},
        )


def read_rounds(value: Any) -> Fleet:
    """Return a fleet from what the json module gives. Raises ContractError.

    A part that cannot be read, or contradicts itself, is the problem of the node that brought it.
    """
    rounds = value.get("rounds", []) if isinstance(value, dict) else None
    if not isinstance(rounds, list) or not all(isinstance(attempts, dict) for attempts in rounds):
        return decode(Fleet, value, "fabric")
    fleet = decode(Fleet, {**value, "rounds": []}, "fabric")
    return dataclasses.replace(
        fleet,
        rounds=tuple(
            {name: _attempt(name, attempt) for name, attempt in attempts.items()} for attempts in rounds
        ),
    )


def _attempt(name: str, value: Any) -> Attempt:
    part = value.get("part") if isinstance(value, dict) else None
    attempt = decode(Attempt, {**value, "part": None} if part is not None else value, f"fabric.rounds.{name}")
    if part is None:
        return attempt
    try:
        return dataclasses.replace(attempt, part=_part(name, part))
    except ContractError as error:
        return dataclasses.replace(attempt, problem=f"its part cannot be read: {error}")


def _part(name: str, value: Any) -> Part:
    part = decode(Part, value)
    if (part.schema_version, part.node) != (FABRIC_VERSION, name):
        raise ContractError(f"it is one of node {part.node} in schema version {part.schema_version}")
    for step, runs in ((step, runs) for rank in part.ranks for step, runs in rank.seconds.items()):
        kind, _, size = step.partition(" ")
        if kind not in part.collectives or not SIZE.fullmatch(size) or not runs:
            raise ContractError(f"ranks: expected runs of its own collectives and a size, found {step!r}")
    return part


def make_orders(fleet: Fleet, groups: Iterable[tuple[str, ...]], run: str) -> dict[str, Order]:
    """Return what each node is asked to do.

    `run` is a name that no other round has, nor one of another day.
    """
    members, groups = {member.name: member for member in fleet.nodes}, list(groups)
    return {
        name: Order(
            FABRIC_VERSION,
            name,
            tuple(members[one] for one in group),
            fleet.port,
            fleet.library,
            fleet.plan,
            f"{run}-{number}",
            sum(map(len, groups)),
        )
        for number, group in enumerate(groups)
        for name in group
    }


def groups_of(attempts: dict[str, Attempt]) -> list[Group]:
    """Return the groups of a round, evaluated."""
    return [
        _group(nodes, attempts) for nodes in dict.fromkeys(attempt.group for attempt in attempts.values())
    ]


def _group(nodes: tuple[str, ...], attempts: dict[str, Attempt]) -> Group:
    parts: dict[str, Part] = {}
    absent: dict[str, str] = {}
    for name in nodes:
        attempt = attempts.get(name)
        if attempt is None or attempt.part is None:
            absent[name] = (attempt.problem if attempt else "") or "it brought no result"
        elif attempt.part.not_run:
            absent[name] = attempt.part.not_run
        elif not attempt.part.ranks:
            absent[name] = "it brought nothing of any rank"
        else:
            parts[name] = attempt.part
    links = [part.link_gb_s for part in parts.values() if part.link_gb_s is not None]
    group = Group(
        nodes,
        absent=absent,
        left_out=next((part.left_out for part in parts.values()), ()),
        link_gb_s=min(links) if links and len(links) == len(parts) else None,
    )
    ranks = [(name, rank) for name, part in parts.items() for rank in part.ranks]
    wrong = {
        name: found
        for name, part in parts.items()
        if (found := tuple(finding for rank in part.ranks for finding in rank.findings))
    }
    group = dataclasses.replace(group, wrong=wrong)
    if absent or not ranks:
        return group
    if not all(rank.seconds for _, rank in ranks):
        return dataclasses.replace(group, suspects=_suspects(parts))
    if len({tuple((step, len(runs)) for step, runs in rank.seconds.items()) for _, rank in ranks}) > 1:
        unlike = dict.fromkeys(parts, "its ranks did not measure the same")
        return dataclasses.replace(group, suspects=unlike)
    measurements, _ = combine(
        [{step: list(runs) for step, runs in rank.seconds.items()} for _, rank in ranks]
    )
    reductions = [one for one in measurements if one.name == "busbw_gb_s"]
    others = [one for one in measurements if one.name != "busbw_gb_s"]
    fastest: dict[int, float] = {}
    for one in reductions:
        size_bytes = int(one.conditions["size_bytes"])
        runs = zip(*(rank.seconds[f"all_reduce {size_bytes}"] for _, rank in ranks), strict=True)
        slowest = [max(run) for run in runs]
        fastest[size_bytes] = one.value * statistics.median(slowest) / min(slowest)
    return dataclasses.replace(group, measurements=(*others, *reductions), fastest=fastest)


def common_size_bytes(groups: Iterable[Group]) -> int:
    """Return the largest all-reduce that all groups that work have measured; 0 where there is none."""
    measured = [group.fastest.keys() for group in groups if group.works]
    return max(set(measured[0]).intersection(*measured[1:]), default=0) if measured else 0


def _suspects(parts: dict[str, Part]) -> dict[str, str]:
    """Return who broke the collective: who died first, or, when all hang, does not run or got least far."""
    unfinished = [(name, rank) for name, part in parts.items() for rank in part.ranks if not rank.seconds]
    given_up_at = min(
        (rank.ended_at for _, rank in unfinished if rank.ending in (Ending.HUNG, Ending.SLOW)),
        default=math.inf,
    )
    dead = [
        (name, rank)
        for name, rank in unfinished
        if rank.ending in (Ending.DIED, Ending.UNREADABLE, Ending.UNKILLABLE)
        and rank.ended_at < given_up_at - AFTERMATH_S
    ]
    if dead:
        first = min(rank.ended_at for _, rank in dead)
        dead.sort(key=lambda found: found[1].ended_at, reverse=True)
        return {name: rank.problem for name, rank in dead if rank.ended_at <= first + SAME_TIME_S}
    some = next(iter(parts.values()))
    order = stage_order({"collectives": some.collectives, "sizes_bytes": some.sizes_bytes})
    # The others wait for one that does not run, which may have got as far as they.
    culprits = [(name, rank) for name, rank in unfinished if rank.halted] or unfinished
    least = min(((order(rank.stage), rank.steps) for _, rank in culprits), default=None)
    return {
        name: rank.problem
        for name, rank in culprits
        if rank.halted or (order(rank.stage), rank.steps) == least
    }
