"""What the page of a fleet shows: the verdict, what changed, who needs somebody, all nodes, distributions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING

from temper.base.nodes import ranges
from temper.compliance.alike import Once
from temper.compliance.model import HARDENING, ControlResult, NodeStatement, WaivedBy
from temper.report import changes, svg, to_do
from temper.report.changes import Change
from temper.report.inputs import Report
from temper.report.metrics import Distribution, Key
from temper.report.origin import Origin
from temper.report.racks import in_common
from temper.report.to_do import Step
from temper.report.words import KINDS, conditions, kind, moment, quantity, slug
from validation.checks.registry import CHECKS
from validation.model.contract import State
from validation.model.printable import first_of
from validation.model.quantities import label, unit
from validation.verdict.verdicts import NodeVerdict

if TYPE_CHECKING:
    from markupsafe import Markup


#: Controls have areas: what stands before the slash of their name. In former statements, those of the
#: hardening have none.
#: Of long lists, how much the page of the fleet shows; the pages of the nodes have all.
MOST_CHANGES, MOST_ATTENTION, MOST_FAILING, MOST_METRICS, MOST_GPUS, MOST_NOTES = 20, 100, 60, 240, 500, 60
#: The sentence of a cell that did not pass, at most.
LONGEST_TITLE = 160
#: The cells of so many nodes have their state in words, too, and why a test was not run; those of more have
#: a sign, which the legend explains, and the lists below the table say the rest.
MOST_WITH_REASONS = 200
#: How the kinds of nodes are called where they are counted, and what is said of one and of several nodes.
NAMES = {"fail": "failing", "unknown": "unknown", "degraded": "degraded", "good": "good"}
SAID = {
    "fail": ("fails", "fail"),
    "unknown": ("is unknown", "are unknown"),
    "degraded": ("is degraded", "are degraded"),
}
#: Of a kind of nodes, so many names or ranges of names.
MOST_NAMES = 12


@dataclass(frozen=True)
class Cell:
    """A test, or an area of controls, on a node. `words` say what is not good."""

    state: str
    words: str = ""

    @property
    def short(self) -> str:
        """Its class in the style sheet: a letter, because a fleet has hundreds of thousands of cells.

        Most of them passed, and have none at all.
        """
        return kind(self.state)[0]


@dataclass(frozen=True)
class NodeRow:
    """A node in the table of all."""

    name: str
    slug: str
    kind: str
    state: str
    compliance: str
    gpus: str
    racks: str
    groups: str
    cells: tuple[Cell | None, ...]


@dataclass(frozen=True)
class Failing:
    """What fails on some nodes: a control or a finding, with its remedy."""

    name: str
    title: str
    state: str
    nodes: int
    remedy: str
    examples: tuple[str, ...]


@dataclass(frozen=True)
class Spread:
    """A metric over the fleet, in words and as a chart."""

    test: str
    metric: str
    taken: str
    of: str
    count: int
    least: str
    median: str
    most: str
    lowest: str
    lowest_slug: str
    floor: str
    published: str
    chart: Markup


@dataclass(frozen=True)
class Attention:
    """A node that is not good: why, and what to do."""

    kind: str
    name: str
    reasons: tuple[str, ...]
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class FleetPage:
    """All that the page of a fleet shows.

    `counts` are a kind of nodes, its name, how many there are and, where they are not good, which. `choices`
    are the columns of the table of nodes that one chooses from: title, place, values.
    """

    headline: str
    facts: tuple[tuple[str, str], ...]
    verdicts: tuple[tuple[str, str, str, str], ...]
    in_common: str
    kind: str
    nodes: int
    few: bool
    counts: tuple[tuple[str, str, int, str], ...]
    choices: tuple[tuple[str, int, tuple[str, ...]], ...]
    compared: tuple[str, ...]
    changed: tuple[Change, ...]
    more_changes: int
    attention: tuple[Attention, ...]
    more_attention: int
    findings: tuple[Failing, ...]
    controls: tuple[Failing, ...]
    waivers: tuple[str, ...]
    columns: tuple[tuple[str, str], ...]
    areas: tuple[str, ...]
    rows: tuple[NodeRow, ...]
    spreads: tuple[Spread, ...]
    more_spreads: int
    gpus: tuple[tuple[str, str, str, str, str, str], ...]
    not_run: tuple[tuple[str, str, str], ...]
    notes: tuple[tuple[str, str, str], ...]
    has_validation: bool
    has_compliance: bool
    has_racks: bool
    has_groups: bool


def changed_on(report: Report) -> list[Change]:
    """Return all that is another than last time."""
    found: list[Change] = []
    if report.validation and report.validation.before:
        found += changes.of_validation(report.validation.before, report.validation.verdict)
    if report.compliance:
        found += changes.of_compliance(report.compliance)
    return sorted(found, key=lambda change: (change.rank, change.node))


def page_of(
    report: Report, numbers: Mapping[Key, Distribution], changed: list[Change], last_measured: str
) -> FleetPage:
    """Return the page of a fleet.

    `last_measured` is when its last result began, empty where there is none.
    """
    verdict = report.validation.verdict if report.validation else None
    statement = report.compliance
    judged = {node.node: node for node in verdict.nodes} if verdict else {}
    stated = {node.node: node for node in statement.nodes} if statement else {}
    plans = {name: one.plan for name, one in report.validation.results.items()} if report.validation else {}
    tests = tuple(dict.fromkeys(test.id for node in judged.values() for test in node.tests))
    cells_of = Once(_area_cells)
    areas = tuple(dict.fromkeys(area for node in stated.values() for area in cells_of(node.controls)))
    names = sorted({*judged, *stated})
    few = len(names) <= MOST_WITH_REASONS
    rows = tuple(
        _row(name, judged.get(name), stated.get(name), tests, areas, cells_of, report.origin, reasons=few)
        for name in names
    )
    of_kind: dict[str, list[str]] = {name: [] for name in KINDS}
    for row in rows:
        of_kind[row.kind].append(row.name)
    order = list(KINDS)
    bad = sorted(
        (row for row in rows if row.kind != "good"), key=lambda row: (order.index(row.kind), row.name)
    )
    spreads = list(_spreads(numbers))
    return FleetPage(
        headline=headline({name: len(members) for name, members in of_kind.items()}),
        facts=tuple(_facts(report, last_measured)),
        verdicts=tuple(_verdicts(report, last_measured)),
        in_common=in_common({name: report.origin.racks(name) for name in names}, [row.name for row in bad]),
        kind=kind(
            *(str(one.state) for one in [verdict] if one), *(str(one.verdict) for one in [statement] if one)
        ),
        nodes=len(rows),
        few=few,
        counts=tuple(
            (name, NAMES[name], len(members), "" if name == "good" else _ranges(members))
            for name, members in of_kind.items()
        ),
        choices=tuple(_choices(rows)),
        compared=tuple(_compared(report)),
        changed=tuple(changed[:MOST_CHANGES]),
        more_changes=max(0, len(changed) - MOST_CHANGES),
        attention=tuple(
            _attention(
                row,
                judged.get(row.name),
                stated.get(row.name),
                report.origin.options,
                plans.get(row.name, to_do.QUICK),
            )
            for row in bad[:MOST_ATTENTION]
        ),
        more_attention=max(0, len(bad) - MOST_ATTENTION),
        findings=tuple(_findings(judged.values()))[:MOST_FAILING],
        controls=tuple(_controls(stated.values()))[:MOST_FAILING],
        waivers=tuple(finding.text for finding in statement.waivers) if statement else (),
        columns=tuple((test, CHECKS[test].title if test in CHECKS else test) for test in tests),
        areas=areas,
        rows=rows,
        spreads=tuple(spreads[:MOST_METRICS]),
        more_spreads=max(0, len(spreads) - MOST_METRICS),
        gpus=tuple(islice(_gpus(judged.values()), MOST_GPUS)),
        not_run=tuple(islice(_alike(_not_run(judged.values())), MOST_NOTES)),
        notes=tuple(islice(_alike(_notes(judged.values())), MOST_NOTES)),
        has_validation=verdict is not None,
        has_compliance=statement is not None,
        has_racks=any(row.racks for row in rows),
        has_groups=any(row.groups for row in rows),
    )


def headline(counts: Mapping[str, int]) -> str:
    """Say what is wrong first: `3 of 24 nodes fail, 2 are unknown`."""
    nodes = sum(counts.values())
    bad = [(kind, counts[kind]) for kind in SAID if counts[kind]]
    if not nodes:
        return "There is no node in this report"
    if not bad:
        return "The node is good" if nodes == 1 else f"All {nodes} nodes are good"
    if nodes == 1:
        return f"The node {SAID[bad[0][0]][0]}"
    whole = [f" of {nodes} nodes", "", ""]
    return ", ".join(
        f"{count}{of} {SAID[kind][count > 1]}" for (kind, count), of in zip(bad, whole, strict=False)
    )


def _ranges(names: Iterable[str]) -> str:
    return first_of(ranges(names).split(", "), MOST_NAMES)


def _choices(rows: Collection[NodeRow]) -> Iterator[tuple[str, int, tuple[str, ...]]]:
    """Yield the columns that one chooses rows by, as far as the nodes differ there."""
    columns = {
        "GPUs": {row.gpus for row in rows},
        "Rack": {row.racks for row in rows},
        "Group": {row.groups for row in rows},
    }
    place = 0
    for title, cells in columns.items():
        place += title == "GPUs" or any(cells)
        if len(cells) > 1:
            yield title, place, tuple(sorted({part for cell in cells for part in cell.split(", ") if part}))


def _facts(report: Report, last: str) -> Iterator[tuple[str, str]]:
    """Yield where the report comes from, as far as that is known."""
    found = report.origin
    stated = report.compliance.made_at if report.compliance else ""
    known = {
        "Fleet": found.fleet,
        "Time": moment(found.made_at or stated or last),
        "Controller": found.controller,
        "Inventory": ", ".join(found.inventories),
    }
    yield from ((name, value) for name, value in known.items() if value)


def _verdicts(report: Report, last: str) -> Iterator[tuple[str, str, str, str]]:
    """Of each part: what it is, its state, its sentence, and where and when it comes from."""
    if report.validation:
        verdict = report.validation.verdict
        yield (
            "Validation",
            verdict.state,
            _said(verdict.sentence, verdict.state),
            f"measured {moment(last)}" if last else "",
        )
    if report.compliance:
        made = report.compliance
        yield (
            "Compliance",
            made.verdict,
            _said(made.sentence, made.verdict),
            f"checked {moment(made.made_at)} by {made.tool or 'Temper'}",
        )


def _said(sentence: str, state: str) -> str:
    """Return a verdict's sentence without the state, which stands before it."""
    return sentence.removeprefix(f"Verdict: {state}. ")


def _compared(report: Report) -> Iterator[str]:
    """Yield what this report was compared with, in sentences."""
    if report.validation:
        name = report.validation.before_name
        yield (
            f"Validation, since {name}."
            if report.validation.before
            else "Validation: no report before this one."
        )
    if report.compliance:
        yield "Compliance, since the check before."


@cache
def _area(control: str) -> str:
    area, slash, _ = control.partition("/")
    return area if slash else HARDENING


def _row(
    name: str,
    verdict: NodeVerdict | None,
    statement: NodeStatement | None,
    tests: tuple[str, ...],
    areas: tuple[str, ...],
    cells_of: Callable[[tuple[ControlResult, ...]], dict[str, Cell | None]],
    origin: Origin,
    *,
    reasons: bool,
) -> NodeRow:
    states = [str(one) for one in (verdict and verdict.state, statement and statement.verdict) if one]
    found = {test.id: test for test in verdict.tests} if verdict else {}
    cells: list[Cell | None] = []
    for test in (found.get(one) for one in tests):
        words = (test.reason or "; ".join(one.text for one in test.findings)) if test else ""
        silent = {State.PASS} if reasons else {State.PASS, State.NOT_RUN}
        cells.append(Cell(test.state, "" if test.state in silent else _cut(words)) if test else None)
    found_in = cells_of(statement.controls) if statement else {}
    cells += [found_in.get(area) for area in areas]
    gpus = (verdict.gpus if verdict else "") or (statement.gpus if statement else "")
    return NodeRow(
        name,
        slug(name),
        kind(*states),
        verdict.state if verdict else "",
        statement.verdict if statement else "",
        gpus,
        ", ".join(origin.racks(name)),
        ", ".join(origin.other_groups(name)),
        tuple(cells),
    )


def _area_cells(controls: tuple[ControlResult, ...]) -> dict[str, Cell | None]:
    """Return the cell of each area, without the controls that a profile relaxes.

    They are no finding of a node.
    """
    found: dict[str, list[ControlResult]] = {}
    for one in controls:
        here = found.setdefault(_area(one.id), [])
        if one.waived_by is not WaivedBy.PROFILE:
            here.append(one)
    return {area: _area_cell(here) for area, here in found.items()}


def _area_cell(here: Sequence[ControlResult]) -> Cell | None:
    for state in ("fail", "not-checked", "waived"):
        if names := [one.id for one in here if one.state == state]:
            return Cell(state, _cut(f"{len(names)}: {', '.join(names)}"))
    if not here:
        return None
    return Cell("pass" if any(one.state == "pass" for one in here) else "not-applicable")


def _cut(words: str) -> str:
    return words if len(words) <= LONGEST_TITLE else f"{words[: LONGEST_TITLE - 1]}…"


def _attention(
    row: NodeRow, verdict: NodeVerdict | None, statement: NodeStatement | None, options: str, plan: str
) -> Attention:
    """Return a node that is not good, why, and what to do."""
    steps = to_do.steps(row.name, verdict, statement, options, plan)
    return Attention(row.kind, row.name, tuple(to_do.reasons(verdict, statement)), tuple(steps))


def _findings(nodes: Iterable[NodeVerdict]) -> list[Failing]:
    """Return findings by code, those of most nodes first."""
    found: dict[str, dict[str, None]] = {}
    first: dict[str, tuple[str, str, str]] = {}
    for node in nodes:
        for test in node.tests:
            for one in test.findings:
                found.setdefault(one.code, {})[node.node] = None
                if one.code not in first or one.state.severity > State(first[one.code][1]).severity:
                    first[one.code] = one.text, one.state, one.action
    return sorted(
        (
            Failing(code, first[code][0], first[code][1], len(names), first[code][2], tuple(names)[:5])
            for code, names in found.items()
        ),
        key=lambda one: (-one.nodes, one.name),
    )


def _controls(nodes: Iterable[NodeStatement]) -> list[Failing]:
    """Return controls that fail, those of most nodes first."""
    found: dict[tuple[str, str], list[str]] = {}
    remedies: dict[str, str] = {}
    whys: dict[str, dict[str, None]] = {}
    for node in nodes:
        for one in node.shown:
            if one.state == "fail":
                found.setdefault((one.id, one.title), []).append(node.node)
                remedies.setdefault(one.id, one.remedy)
                whys.setdefault(one.id, {})[one.why] = None

    def said(name: str, title: str) -> str:
        """Return what was found and wanted, of the first node where they differ, and the goal."""
        first = next(iter(whys[name]))
        others = f" (and {len(whys[name]) - 1} other values)" if len(whys[name]) > 1 else ""
        return f"{_cut(first)}{others}. Goal: {title}" if first else title

    return sorted(
        (
            Failing(name, said(name, title), "fail", len(names), remedies[name], tuple(names[:5]))
            for (name, title), names in found.items()
        ),
        key=lambda one: (-one.nodes, one.name),
    )


def _spreads(numbers: Mapping[Key, Distribution]) -> Iterator[Spread]:
    """Yield each metric over the fleet, in the order in which tests run."""
    order = {test: place for place, test in enumerate(CHECKS)}
    found = [one for one in numbers.values() if unit(one.metric.name)]
    # A model with several links is named with them.
    links = Counter(name for name, _ in {kind for kind, _ in numbers})
    for one in sorted(found, key=lambda one: (order.get(one.metric.test, len(order)), one.kind)):
        name = one.metric.name
        of = (
            f"{one.kind.name}, {one.kind.link}"
            if one.kind.link and links[one.kind.name] > 1
            else one.kind.name
        )
        title = f"{label(name)} of {one.metric.test} on {of}"
        marks = svg.Marks(one.standards.floor, one.standards.published, one.median)
        yield Spread(
            test=one.metric.test,
            metric=label(name),
            taken=conditions(one.conditions, ("dtype",)),
            of=of,
            count=len(one.values),
            least=quantity(one.values[0], name),
            median=quantity(one.median, name),
            most=quantity(one.values[-1], name),
            lowest=str(one.lowest),
            lowest_slug=slug(one.lowest.node),
            floor=quantity(one.standards.floor, name),
            published=quantity(one.standards.published, name),
            chart=svg.histogram(one.values, marks, title, unit(name)),
        )


def _gpus(nodes: Iterable[NodeVerdict]) -> Iterator[tuple[str, str, str, str, str, str]]:
    """Yield each GPU that did not pass, with what a ticket about it needs."""
    for node in nodes:
        for gpu in node.gpu_verdicts:
            if gpu.state in {State.DEGRADED, State.FAIL}:
                found = ", ".join(gpu.findings) or "no reason given"
                yield (
                    gpu.state,
                    node.node,
                    f"GPU {gpu.index}",
                    found,
                    gpu.model or gpu.name,
                    f"{gpu.pci_address}, {gpu.uuid}",
                )


def _not_run(nodes: Iterable[NodeVerdict]) -> Iterator[tuple[str, str, str]]:
    for node in nodes:
        for test in node.tests:
            if test.state is State.NOT_RUN and not test.required:
                yield node.node, test.id, test.reason


def _notes(nodes: Iterable[NodeVerdict]) -> Iterator[tuple[str, str, str]]:
    for node in nodes:
        for test in node.tests:
            for note in test.notes:
                yield node.node, test.id, note


def _alike(found: Iterable[tuple[str, str, str]]) -> Iterator[tuple[str, str, str]]:
    """Yield what is said of several tests and nodes, once: the words, tests, and nodes."""
    where: dict[tuple[str, str], list[str]] = {}
    for node, test, words in found:
        where.setdefault((words, test), []).append(node)
    together: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for (words, test), nodes in where.items():
        together.setdefault((words, tuple(nodes)), []).append(test)
    for (words, names), tests in together.items():
        yield words, ", ".join(tests), first_of(names)
