"""What happened in a run, stage by stage, and the lines that say it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from textwrap import indent

from temper.base.nodes import alike, counted, duration, generic, number_of, printable, ranges
from temper.base.outcome import BAD, STATES, FinalVerdict, numbers, tally, wording, worst
from temper.base.selection import limit_to
from validation.model.grouping import by_key

#: Groups of nodes that changed in the same way, for one task; a fleet in which no two are alike has more.
MOST_GROUPS = 8
#: Nodes that a proposed --limit names.
MOST_LIMIT = 8
#: Lines of changes of one task on the same nodes, where only their number matters.
MOST_CHANGES = 12
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
    #: All nodes that it is for.
    members: tuple[str, ...] = ()
    states: dict[str, str] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    changes: list[Note] = field(default_factory=list)

    @property
    def title(self) -> str:
        """The heading."""
        return f"== {self.name}{' (check mode: nothing is changed)' if self.check else ''}"

    def counts(self, now_s: float) -> str:
        """Return how many nodes have each state, and the duration."""
        total = number_of(len(self.states), "node")
        return f"{total}: {numbers(self.states, self.check)}; {duration(now_s - self.started_s)}"


@dataclass
class Run:
    """All stages so far. `own`: each node's name and address, which texts of several nodes leave out.

    `whole`: lists of changes are shown as a whole, however long.
    """

    check: bool = False
    whole: bool = True
    own: dict[str, tuple[str, ...]] = field(default_factory=dict)
    worst: dict[str, tuple[str, str]] = field(default_factory=dict)
    #: The stages' places: nodes come to them in any order.
    places: dict[str, int] = field(default_factory=dict)
    #: Nodes with an error that did not end their run.
    spared: set[str] = field(default_factory=set)
    #: What judges have ended the run with: one, unless it has several playbooks that judge.
    verdicts: list[FinalVerdict] = field(default_factory=list)
    said: set[tuple[str, str, str]] = field(default_factory=set)

    def settle(self, stage: Stage, node: str, state: str) -> None:
        """Set a node's state in a stage, unless it already has a worse one."""
        self.places.setdefault(stage.name, len(self.places))
        stage.states[node] = worst([state, stage.states.get(node, "ok")])
        if node not in self.worst or STATES.index(state) > STATES.index(self.worst[node][0]):
            self.worst[node] = state, stage.name

    def conclude(self, stage: Stage, verdict: FinalVerdict) -> None:
        """Take the verdict on the nodes of a stage: on each, or, where it names none, on all of them."""
        self.verdicts.append(verdict)
        unnamed = {} if verdict.good else dict.fromkeys(stage.members or stage.states, "failed")
        for node, state in (verdict.states or unnamed).items():
            self.settle(stage, node, state)

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
            # What is done once for all nodes ends the run of them all.
            for node in [note.node] if note.node else stage.members or [*stage.states]:
                self.settle(stage, node, note.kind)
        return kept

    def blocks(self, notes: Iterable[Note], *, check: bool = False) -> list[Block]:
        """Return what notes say, once for all nodes of which it is the same, in the order of the first."""
        by_task: dict[tuple[str, str], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        for note in notes:
            # A warning is one wherever it was first given.
            task = note.text if note.kind == "warning" else note.task
            by_task[note.kind, task][note.node].append(note.text)
        found: dict[tuple[str, tuple[str, ...]], list[str]] = defaultdict(list)
        for (kind, task), texts in by_task.items():
            if kind == "changed":
                groups = few(self.line_by_line(texts))
            elif kind in BAD:  # reasons that several nodes share stand once, beside those of each
                groups = self.line_by_line(texts, whole=True)
            else:
                groups = alike({node: "\n".join(said) for node, said in texts.items()}, self.own)
            for nodes, text in groups:
                body = text if kind in ("said", "warning") else f"{task}\n{indent(text, '  ')}".rstrip()
                found[kind, nodes].append(body)
        return [Block(kind, rendered(kind, nodes, said, check)) for (kind, nodes), said in found.items()]

    def line_by_line(
        self, texts: dict[str, list[str]], *, whole: bool = False
    ) -> list[tuple[tuple[str, ...], str]]:
        """Return what one task says of nodes: each text once, beside the others of the same nodes.

        All of them where they are asked for as a `whole`.
        """
        nodes_of: dict[str, dict[str, str]] = defaultdict(dict)
        for node, said in texts.items():
            for text in said:
                nodes_of[generic(text, self.own.get(node, (node,)))][node] = text
        found: dict[tuple[str, ...], list[str]] = defaultdict(list)
        for text, nodes in nodes_of.items():
            found[tuple(sorted(nodes))].append(text if len(nodes) > 1 else next(iter(nodes.values())))
        return [(nodes, "\n".join(said if whole else self.shortened(said))) for nodes, said in found.items()]

    def shortened(self, said: list[str]) -> list[str]:
        """Return some of many changes, and how many more there are."""
        more = len(said) - MOST_CHANGES
        if self.whole or more < 2:
            return said
        return [
            *said[:MOST_CHANGES],
            f"and {more} more (TEMPER_OUTPUT=verbose lists them, --diff shows them)",
        ]

    def outcome(self) -> list[tuple[str, str]]:
        """Return a line for each outcome and its kind: how many nodes, and which of them need a human."""
        lines = []
        for state, nodes in tally({node: state for node, (state, _) in self.worst.items()}).items():
            stages = by_key((self.worst[node][1], node) for node in nodes)
            names = "; ".join(
                f"{ranges(stages[stage])} ({stage})" for stage in sorted(stages, key=self.places.__getitem__)
            )
            said = f"{wording(state, self.check)}: {len(nodes)}"
            lines.append((state, f"{said}: {names}" if state in BAD else said))
        if spared := self.spared - {""}:
            lines.append(("ignored", f"went on after an error: {len(spared)}: {ranges(spared)}"))
        return lines or [("", "No node did anything.")]

    def last_lines(self) -> list[tuple[str, str]]:
        """Return the outcome, the verdict of the judge, where its report is, and what to do next."""
        lines = self.outcome()
        for verdict in self.verdicts:
            lines.append(("ok" if verdict.good else "failed", printable(verdict.sentence)))
            lines += [("", f"Report: {verdict.report}")] if verdict.report else []
        lines += [("", f"Next: {step}") for step in [self.next_step()] if step]
        return lines

    def next_step(self) -> str:
        """Return what an operator does next, if that follows from the states of the nodes."""
        found = tally({node: state for node, (state, _) in self.worst.items()})
        if stopped := [node for state in ("refused", "unreachable") for node in found.get(state, ())]:
            return (
                "correct what is said above of the nodes that are refused or do not answer, and run the same "
                f"command again; --limit {limit_to(sorted(stopped)[:MOST_LIMIT])} takes "
                f"{'some of them' if len(stopped) > MOST_LIMIT else 'them'} alone."
            )
        if any(verdict.report and not verdict.good for verdict in self.verdicts):
            return "the report says for each node what to do."
        if "failed" in found:
            return "the lines above say why and what to do; the same command completes the run."
        if self.check and "changed" in found:
            return "the same command without --check makes these changes."
        return ""


def before_verdict(text: str, verdict: FinalVerdict) -> str:
    """Return what a judge has to say, without the lines that the outcome repeats."""
    lines = text.rstrip().splitlines()
    while lines and lines[-1].strip() in ("", verdict.sentence, f"Report: {verdict.report}"):
        lines.pop()
    return "\n".join(lines)


def few(groups: list[tuple[tuple[str, ...], str]]) -> list[tuple[tuple[str, ...], str]]:
    """Return the largest groups, and one of the nodes of all others, without what each of them changed."""
    if len(groups) <= MOST_GROUPS:
        return groups
    ordered = sorted(groups, key=lambda group: -len(group[0]))
    others = tuple(node for nodes, _ in ordered[MOST_GROUPS:] for node in nodes)
    return [*ordered[:MOST_GROUPS], (others, "each in another way: -v with --limit NODE shows how")]


def rendered(kind: str, nodes: tuple[str, ...], said: list[str], check: bool) -> str:
    """Return one block: whom it is about, and what there is to say."""
    body = "\n".join(said)
    everybody = nodes == ("",)
    whom = "all nodes" if everybody else counted(nodes)
    if kind != "said":
        return f"{wording(kind, check)}: {whom}\n{indent(body, '  ')}".rstrip()
    if everybody or (len(nodes) == 1 and nodes[0] in body):
        return body
    return f"{whom}:\n{indent(body, '  ')}"
