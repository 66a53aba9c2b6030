"""What happened in a run, stage by stage, and the lines that say it."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from textwrap import indent
from typing import TYPE_CHECKING

from temper.base.nodes import alike, counted, duration, printable, ranges

if TYPE_CHECKING:
    from collections.abc import Iterable

#: What a node came to, the better first; in a stage and in the run the worst counts.
STATES = ("ok", "changed", "refused", "failed", "unreachable")
BAD = STATES[2:]
#: Groups of nodes that changed in the same way, for one task; a fleet in which no two are alike has more.
MOST_GROUPS = 8
#: Characters of what one task has to say of one node.
MOST_CHARACTERS = 64 << 10


@dataclass(frozen=True)
class Note:
    """Something that a task had to say of a node; with no node, of all nodes at once.

    `kind` is a state, or `said` (a text for the operator), `warning`, `ignored`, or `rescued`.
    """

    kind: str
    node: str
    task: str
    text: str


@dataclass(frozen=True)
class Block:
    """Lines that belong together, and what kind of note they are."""

    kind: str
    text: str


@dataclass
class Stage:
    """One play, or one batch of it."""

    name: str
    started_s: float
    check: bool = False
    states: dict[str, str] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    changes: list[Note] = field(default_factory=list)

    @property
    def title(self) -> str:
        """The heading."""
        return f"== {self.name}{' (check mode: nothing is changed)' if self.check else ''}"

    def counts(self, now_s: float) -> str:
        """How many nodes came to what, and the time it took."""
        numbers = Counter(self.states.values())
        said = [f"{numbers[state]} {wording(state, self.check)}" for state in STATES if numbers[state]]
        total = f"{len(self.states)} node{'s' * (len(self.states) != 1)}"
        return f"{total}: {', '.join(said)}; {duration(now_s - self.started_s)}"


@dataclass
class Run:
    """All stages so far. `own`: each node's name and address, which texts of several nodes leave out."""

    check: bool = False
    own: dict[str, tuple[str, ...]] = field(default_factory=dict)
    worst: dict[str, tuple[str, str]] = field(default_factory=dict)
    #: The stages' places: nodes come to them in any order.
    places: dict[str, int] = field(default_factory=dict)
    #: Nodes with an error that did not end their run.
    spared: set[str] = field(default_factory=set)
    #: Failures of what is done once for all nodes.
    shared: list[str] = field(default_factory=list)
    said: set[tuple[str, str, str]] = field(default_factory=set)

    def settle(self, stage: Stage, node: str, state: str) -> None:
        """A node has come to this in a stage, unless it has come to worse before."""
        self.places.setdefault(stage.name, len(self.places))
        if STATES.index(state) >= STATES.index(stage.states.get(node, "ok")):
            stage.states[node] = state
        if node not in self.worst or STATES.index(state) > STATES.index(self.worst[node][0]):
            self.worst[node] = state, stage.name

    def note(self, stage: Stage, note: Note) -> Note:
        """Keep what there is to say, and what it makes of the node; return what is kept."""
        text = note.text
        # A node's own words. What is said of all nodes is as long as there are nodes.
        if note.node and len(text) > MOST_CHARACTERS:
            text = f"{text[:MOST_CHARACTERS]}... and {len(text) - MOST_CHARACTERS} characters more"
        text = printable(text).strip("\n")
        kept = Note(note.kind, note.node, note.task, text)
        if note.kind == "warning":
            if (known := (note.kind, note.node, text)) in self.said:
                return kept
            self.said.add(known)
        (stage.changes if note.kind == "changed" else stage.notes).append(kept)
        if note.kind in ("ignored", "rescued"):
            self.spared.add(note.node)
        if note.kind in STATES:
            if note.node:
                self.settle(stage, note.node, note.kind)
            elif note.kind in BAD:
                self.shared.append(f"{stage.name}: {note.task}: {text.partition(chr(10))[0]}")
        return kept

    def blocks(self, notes: Iterable[Note], *, check: bool = False) -> list[Block]:
        """What notes say, once for all nodes of which it is the same, in the order of the first."""
        by_task: dict[tuple[str, str], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        for note in notes:
            # A warning is one wherever it was first given.
            task = note.text if note.kind == "warning" else note.task
            by_task[note.kind, task][note.node].append(note.text)
        found: dict[tuple[str, tuple[str, ...]], list[str]] = defaultdict(list)
        for (kind, task), texts in by_task.items():
            groups = alike({node: "\n".join(said) for node, said in texts.items()}, self.own)
            for nodes, text in few(groups) if kind == "changed" else groups:
                body = text if kind in ("said", "warning") else f"{task}\n{indent(text, '  ')}".rstrip()
                found[kind, nodes].append(body)
        return [Block(kind, rendered(kind, nodes, said, check)) for (kind, nodes), said in found.items()]

    def outcome(self) -> list[tuple[str, str]]:
        """A line for each outcome, and of what kind it is: how many nodes, and which of them need a human."""
        by_state: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        for node, (state, stage) in self.worst.items():
            by_state[state][stage].append(node)
        lines = []
        for state in STATES:
            stages = by_state[state]
            names = "; ".join(
                f"{ranges(stages[stage])} ({stage})" for stage in sorted(stages, key=self.places.__getitem__)
            )
            said = f"{wording(state, self.check)}: {sum(map(len, stages.values()))}"
            lines += [(state, f"{said}: {names}" if state in BAD else said)] if stages else []
        if spared := self.spared - {""}:
            lines.append(("ignored", f"went on after an error: {len(spared)}: {ranges(spared)}"))
        lines += [("failed", f"failed for all nodes: {failure}") for failure in self.shared]
        return lines or [("", "No node did anything.")]


def wording(state: str, check: bool) -> str:
    """A state in words; check mode changes nothing."""
    return "would change" if state == "changed" and check else state


def few(groups: list[tuple[tuple[str, ...], str]]) -> list[tuple[tuple[str, ...], str]]:
    """The largest groups, and one of the nodes of all others, without what each of them changed."""
    if len(groups) <= MOST_GROUPS:
        return groups
    ordered = sorted(groups, key=lambda group: -len(group[0]))
    others = tuple(node for nodes, _ in ordered[MOST_GROUPS:] for node in nodes)
    return [*ordered[:MOST_GROUPS], (others, "each in another way: -v with --limit NODE shows how")]


def rendered(kind: str, nodes: tuple[str, ...], said: list[str], check: bool) -> str:
    """One block: whom it is about, and what there is to say."""
    body = "\n".join(said)
    everybody = nodes == ("",)
    whom = "all nodes" if everybody else counted(nodes)
    if kind != "said":
        return f"{wording(kind, check)}: {whom}\n{indent(body, '  ')}".rstrip()
    if everybody or (len(nodes) == 1 and nodes[0] in body):
        return body
    return f"{whom}:\n{indent(body, '  ')}"
