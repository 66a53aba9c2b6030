"""Which nodes are worked on where: pure decisions over what is known of a run.

A slice is what one Ansible process works on. Nodes whose slice was lost come again, as a later attempt: the
nodes themselves refuse an earlier one that may still be under way (module_utils/temper/lease.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

#: How often a node's slice may be lost before the node is left for the next run.
ATTEMPTS = 3
#: How many slices in a row a place may lose before it gets no more.
LOSSES = 2


@dataclass(frozen=True)
class Slice:
    """Nodes of one Ansible process. `number` is unique in a run; `attempt` counts from 1.

    It begins when all slices of a lower `stage` have ended, well or not.
    """

    number: int
    attempt: int
    nodes: tuple[str, ...]
    stage: int = 0


@dataclass(frozen=True)
class NodeOutcome:
    """The outcome of a node: a state of `temper.output.run.STATES`, and why where it is a bad one."""

    state: str
    reason: str = ""
    attempt: int = 1
    place: str = ""


@dataclass
class Place:
    """Where slices run: this machine, or a helper. `jobs` at the same time."""

    name: str
    jobs: int
    losses: int = 0
    out: str = ""


def cut(nodes: Sequence[str], size: int) -> list[tuple[str, ...]]:
    """Nodes in their order, in as few groups of at most `size` as possible, that differ by one node at most.

    Raises ValueError for a size below 1.
    """
    if size < 1:
        raise ValueError(f"A slice needs at least one node, found {size}.")
    count = -(-len(nodes) // size)
    bounds = [len(nodes) * part // count for part in range(count + 1)] if count else [0]
    return [tuple(nodes[start:end]) for start, end in pairwise(bounds)]


@dataclass
class Board:
    """A run: nodes that wait, slices that are under way, and the nodes' outcomes.

    A node is always in exactly one of these: waiting, under way, done (`outcomes`), or given up (`lost`).
    """

    places: list[Place]
    waiting: deque[Slice] = field(default_factory=deque)
    running: dict[Slice, str] = field(default_factory=dict)
    outcomes: dict[str, NodeOutcome] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    _numbers: int = 0

    @classmethod
    def of(
        cls,
        nodes: Sequence[str],
        size: int,
        places: Iterable[Place],
        attempts: Mapping[str, int] | None = None,
        stages: Mapping[str, int] | None = None,
    ) -> Board:
        """Return a run of these nodes.

        `attempts` are those that nodes have had before, of a run that goes on.

        `stages` are those of nodes that come later than the others.
        """
        board = cls(list(places))
        had, turns = attempts or {}, stages or {}
        for stage, number in sorted({(turns.get(node, 0), had.get(node, 0)) for node in nodes}):
            same = [node for node in nodes if (turns.get(node, 0), had.get(node, 0)) == (stage, number)]
            for group in cut(same, size):
                board._put(number + 1, group, stage)
        return board

    def _put(self, attempt: int, nodes: tuple[str, ...], stage: int) -> None:
        self._numbers += 1
        self.waiting.append(Slice(self._numbers, attempt, nodes, stage))

    def start(self) -> list[tuple[Slice, str]]:
        """Return the slices that begin now, and where; the place with the most room first."""
        begun: list[tuple[Slice, str]] = []
        while (part := self._due()) and (place := self._freest()):
            self.waiting.remove(part)
            self.running[part] = place.name
            begun.append((part, place.name))
        return begun

    def _due(self) -> Slice | None:
        stage = min((one.stage for one in (*self.waiting, *self.running)), default=0)
        return next((one for one in self.waiting if one.stage == stage), None)

    def _freest(self) -> Place | None:
        used = list(self.running.values())
        free = [place for place in self.places if not place.out and used.count(place.name) < place.jobs]
        return max(free, key=lambda place: place.jobs - used.count(place.name), default=None)

    def end(self, part: Slice, outcomes: Mapping[str, NodeOutcome]) -> None:
        """Note that a slice has ended. A node without a result is run again, alone."""
        place = self._place(self.running.pop(part))
        place.losses = 0
        self.outcomes.update({node: outcomes[node] for node in part.nodes if node in outcomes})
        self._again(
            part, tuple(node for node in part.nodes if node not in outcomes), "nothing was heard of it"
        )

    def lose(self, part: Slice, reason: str) -> None:
        """Note that a slice broke off: all its nodes come again.

        A place that loses them in a row gets no more.
        """
        place = self._place(self.running.pop(part))
        place.losses += 1
        if place.losses >= LOSSES:
            place.out = reason
        self._again(part, part.nodes, reason)

    def exclude(self, name: str, reason: str) -> None:
        """Leave out a place that cannot be used at all."""
        self._place(name).out = reason

    def _again(self, part: Slice, nodes: tuple[str, ...], reason: str) -> None:
        if not nodes:
            return
        if part.attempt % ATTEMPTS == 0:
            self.lost.update(dict.fromkeys(nodes, f"{reason} (attempt {part.attempt}, the last)"))
        else:
            self._put(part.attempt + 1, nodes, part.stage)

    def _place(self, name: str) -> Place:
        return next(place for place in self.places if place.name == name)

    @property
    def ended(self) -> bool:
        """Whether nothing is under way and nothing can begin. What waits then has no place to run."""
        return not self.running and (not self.waiting or all(place.out for place in self.places))

    @property
    def left(self) -> dict[str, str]:
        """Nodes that the run did not come to an end with, and why."""
        why = "; ".join(f"{place.name}: {place.out}" for place in self.places if place.out)
        waiting = {
            node: f"there is no place to run it: {why}" for part in self.waiting for node in part.nodes
        }
        return self.lost | waiting
