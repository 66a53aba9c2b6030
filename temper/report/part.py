"""A part of a fleet's nodes, from what was handed over to their files.

A part knows nothing of the others but what it is told: a large fleet is judged in several parts, each by a
process of its own, and a small one is a single part. The report is the same.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from temper.judge import cohort, fleet_metrics, history
from temper.judge.history import Past
from temper.judge.unshown import Unshown
from validation.checks.registry import HEADLINES, TESTS
from validation.findings.catalogue import advised
from validation.model.contract import ContractError, NodeResult, node_result, parse, refuse_future
from validation.model.expectations import Expectation, fleet_from
from validation.model.printable import one_line
from validation.model.usage import UsageError
from validation.processes import files
from validation.report import fleet_report
from validation.verdict.baseline import Comparison
from validation.verdict.judge import judge_fleet, judge_node

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Mapping, Sequence

    from temper.judge.history import PastRun
    from temper.report.changes import Change
    from temper.report.metrics import Hardware, Key, Middle, Pool
    from temper.report.node import NodePage
    from temper.report.write import NodePages
    from validation.verdict.verdicts import NodeVerdict, TestVerdict

#: Characters of the reason why a node was not measured.
MOST_REASON = 2000


@dataclass(frozen=True)
class Heard:
    """What the others are to know of a part's numbers. `last_measured` is when its last result began."""

    numbers: cohort.Numbers
    pools: dict[Key, Pool]
    last_measured: str


@dataclass(frozen=True)
class Known:
    """What a part is told: of all numbers of the fleet, and of what was measured between nodes.

    `unusable` says why nobody can use the history, empty where everybody can.
    """

    cohorts: cohort.Cohorts
    between_nodes: Mapping[str, TestVerdict]
    unusable: str


@dataclass(frozen=True)
class Judged:
    """The verdicts on a part's nodes, what its report is made from, and why it cannot use the history."""

    verdicts: list[NodeVerdict]
    inputs: fleet_report.Inputs
    unusable: str


@dataclass(frozen=True)
class Shown:
    """What the pages of a part's nodes show of the fleet."""

    numbers: Mapping[Key, Middle]
    changed: Sequence[Change]


@dataclass(frozen=True)
class Wanted:
    """The pages to write: into which folder, of which nodes, and the address of the index."""

    folder: Path
    names: Sequence[str]
    index: str


@dataclass(frozen=True)
class Ended:
    """Why the history could not be used, and what could not be made of nodes' results."""

    unusable: str
    unshown: list[str]


class FleetPart:
    """Some nodes of a fleet. Its steps follow each other as they stand here."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._unshown = Unshown()
        self._own_past = _OwnPast(options.history, self._unshown)
        self._expectations: dict[str, Expectation] = {}
        self._results: dict[str, NodeResult] = {}
        self._compared: dict[str, _Compared] = {}
        self._verdicts: list[NodeVerdict] = []
        self._now = datetime.now(UTC)

    def hold(
        self,
        expectations: Mapping[str, Expectation],
        results: Mapping[str, NodeResult],
        unreadable: Mapping[str, str],
    ) -> None:
        """Take nodes. What was known of them no longer holds. Raises UsageError.

        A node whose result is `unreadable`, which says why, or of the future, was not measured: one bad
        result costs the others no verdict.
        """
        if unknown := sorted((results.keys() | unreadable.keys()) - expectations.keys()):
            why = f": {unreadable[unknown[0]]}" if unknown[0] in unreadable else ""
            raise UsageError(
                f"there is a result of {unknown[0]}, but nothing is expected of a node of this name{why}"
            )
        self.forget(expectations)
        self._expectations |= expectations
        refused = dict(unreadable)
        for name, result in results.items():
            try:
                refuse_future(result, self._now)
            except ContractError as error:
                refused[name] = str(error)
            else:
                self._results[name] = result
        for name, why in refused.items():
            self._lose(name, f"its result cannot be read: {why}")

    def _lose(self, name: str, reason: str) -> Expectation:
        """Take a node for one that was not measured."""
        self._results.pop(name, None)
        expected = dataclasses.replace(self._expectations[name], not_run=one_line(reason)[:MOST_REASON])
        self._expectations[name] = expected
        return expected

    def forget(self, names: Iterable[str]) -> None:
        """Let nodes go."""
        for name in names:
            self._expectations.pop(name, None)
            self._results.pop(name, None)

    def read(self, sources: Iterable[Path | dict[str, Any]]) -> list[str]:
        """Take the nodes of documents, and of files that slices have handed over; the names of all it has.

        Raises UsageError, ContractError, OSError.
        """
        known: dict[bytes, Expectation] = {}
        for source in sources:
            if isinstance(source, Path):
                try:
                    self._take(_document_in(source), known)
                except (ContractError, UsageError) as error:
                    raise UsageError(
                        f"{source}: expected what a slice has handed over: {error}. Begin a new run."
                    ) from error
            else:
                self._take(source, known)
        return list(self._expectations)

    def _take(self, document: dict[str, Any], known: dict[bytes, Expectation]) -> None:
        """Take the nodes of a document."""
        expectations = fleet_from(document["expectations"], TESTS, known).nodes
        results, unreadable = {}, {}
        for name, value in document["results"].items():
            try:
                results[name] = _result_of(name, value)
            except ContractError as error:
                unreadable[name] = str(error)
        self.hold(expectations, results, unreadable)

    def hear(self, elsewhere: Iterable[str]) -> Heard:
        """What the others are to know. Nodes that are `elsewhere` are no longer of this part."""
        self.forget(elsewhere)
        return Heard(
            self._members.numbers(),
            self._hardware.pools(self._results),
            max((result.started_at for result in self._results.values()), default=""),
        )

    @cached_property
    def _members(self) -> cohort.Members:
        return cohort.Members(self._results)

    @cached_property
    def _hardware(self) -> Hardware:
        from temper.report.metrics import Hardware

        return Hardware({name: expected.references for name, expected in self._expectations.items()})

    def judge(self, known: Known) -> Judged:
        """Judge the nodes, and write their results. Raises OSError."""
        self._own_past.unusable = known.unusable
        self._compared = self._own_past.compare(self._expectations, self._results)
        among_equals = self._members.compare(known.cohorts)
        between = known.between_nodes

        def verdict(name: str) -> NodeVerdict:
            return judge_node(
                name,
                self._results.get(name),
                self._expectations[name],
                HEADLINES,
                more_tests=(between[name],) if name in between else (),
                comparisons=_comparisons(name, among_equals.get(name, {}), self._compared),
                fail_on_degraded=self._options.fail_on_degraded,
            )

        def unjudged(name: str, why: str) -> NodeVerdict:
            expected = self._lose(name, f"its result could not be judged: {why}")
            return judge_node(name, None, expected, HEADLINES)

        self._verdicts = [
            self._unshown.attempt(name, "its verdict", partial(verdict, name), partial(unjudged, name))
            for name in list(self._expectations)
        ]
        fleet_report.write_results(self._options.output, self._results)
        inputs = fleet_report.inputs_of(self._expectations, self._verdicts)
        return Judged(self._verdicts, inputs, self._own_past.unusable)

    def show(self, shown: Shown) -> None:
        """Get ready to make pages of the nodes."""
        from temper.report.inputs import Report, Validation
        from temper.report.metrics import FleetNumbers
        from temper.report.past import of_runs
        from temper.report.write import NodePages

        validation = Validation(
            judge_fleet(self._verdicts),
            self._results,
            past=lambda result: of_runs(self._own_past.runs(result), result),
        )
        numbers = FleetNumbers(self._hardware, shown.numbers)
        self._pages: NodePages = NodePages(Report(validation), numbers, shown.changed, self._unshown)

    def pages_of(self, names: Sequence[str]) -> dict[str, NodePage]:
        """What the pages of nodes show, by name; of those that are of this part."""
        return self._pages.pages_of(names)

    def write_pages(self, wanted: Wanted) -> list[Path]:
        """Write the pages of nodes that are of this part; returns the files. Raises OSError."""
        return self._pages.write(wanted.folder, wanted.names, wanted.index)

    def finish(self, unusable: str) -> Ended:
        """Add the runs to the history and write the nodes' metrics. Raises OSError."""
        self._own_past.unusable = unusable
        self._own_past.add(self._verdicts, self._results)
        if self._options.metrics:
            files.write_all(
                (
                    self._options.metrics / f"temper-validation-{files.file_stem(verdict.node)}.prom",
                    self._metrics_of(verdict),
                )
                for verdict in self._verdicts
            )
        return Ended(self._own_past.unusable, self._unshown.said)

    def _metrics_of(self, verdict: NodeVerdict) -> str:
        return self._unshown.attempt(
            verdict.node,
            "its metrics",
            lambda: fleet_metrics.text(verdict, self._last_measured(verdict.node)),
            # An old file would say that all is as it was.
            lambda _: fleet_metrics.text(dataclasses.replace(verdict, tests=()), None),
        )

    def _last_measured(self, node: str) -> str | None:
        """When a node was measured last, as ISO 8601 has it; None where nobody knows of any time."""
        if node in self._results:
            return self._results[node].started_at
        return self._compared[node].before if node in self._compared else None


class _OwnPast:
    """The nodes' own past. A history that cannot be used costs no verdict; then `unusable` says why."""

    def __init__(self, path: Path | None, unshown: Unshown) -> None:
        self._unshown = unshown
        # Late: a node measures without SQLite.
        from temper.base.store import HistoryError
        from temper.judge.history_store import History

        self._history = History(path) if path else None
        self._error = HistoryError
        self.unusable = ""

    def compare(self, nodes: Iterable[str], results: Mapping[str, NodeResult]) -> dict[str, _Compared]:
        """What the past of each node says of its result; nothing where no history was named."""
        if self._history is None:
            return {}
        if not self.unusable:
            try:
                return {
                    node: self._unshown.attempt(
                        node,
                        "the comparison with its own past",
                        partial(_compared, results.get(node), past),
                        lambda _why: _Compared({}, None),
                    )
                    for node, past in self._history.past(nodes, results)
                }
            except self._error as error:
                self.unusable = str(error)
        unknown = Past(notes=(f"not compared with its own past: {self.unusable}",))
        return {node: _compared(results.get(node), unknown) for node in nodes}

    def runs(self, result: NodeResult) -> tuple[PastRun, ...]:
        """The earlier runs that a result is compared with; none where the history cannot be used."""
        if self._history is None or self.unusable:
            return ()
        return next(self._history.past([result.node], {result.node: result}))[1].runs

    def add(self, verdicts: Iterable[NodeVerdict], results: Mapping[str, NodeResult]) -> None:
        """Add this run of each node."""
        if self._history is None or self.unusable:
            return
        runs = [
            self._unshown.attempt(
                verdict.node,
                "its entry in the history",
                partial(history.run_of, results[verdict.node], verdict),
                lambda _why: None,
            )
            for verdict in verdicts
            if verdict.node in results
        ]
        try:
            self._history.append([run for run in runs if run])
        except self._error as error:
            self.unusable = str(error)


@dataclass(frozen=True)
class _Compared:
    """What a node's past says of its tests, and when the node was measured before (ISO 8601), if ever."""

    tests: dict[str, Comparison]
    before: str | None


def _compared(result: NodeResult | None, past: Past) -> _Compared:
    return _Compared(
        history.compare(result, past) if result else {}, past.runs[-1].started_at if past.runs else None
    )


def _comparisons(
    name: str, among_equals: dict[str, Comparison], own: dict[str, _Compared]
) -> dict[str, Comparison]:
    """What the fleet and the node's own past say of each test of a node."""
    said = dict(among_equals)
    for test, comparison in own[name].tests.items() if name in own else ():
        said[test] = said.get(test, Comparison()) + comparison
    return said


def is_document(given: Any) -> TypeGuard[dict[str, Any]]:
    """Whether this is `{"expectations": {...}, "results": {node: ...}}`, as far as it is looked at here."""
    return isinstance(given, dict) and all(
        isinstance(given.get(part), dict) for part in ("expectations", "results")
    )


def _document_in(path: Path) -> dict[str, Any]:
    """What a slice has handed over. Raises ContractError, OSError."""
    given = parse(path.read_bytes())
    document = given.get("document") if isinstance(given, dict) else None
    if not is_document(document):
        raise ContractError("it has no document with expectations and results")
    return document


def _result_of(name: str, value: Any) -> NodeResult:
    result = node_result(value, TESTS)
    if result.node != name:
        raise ContractError(f"it is one of node {one_line(result.node)}")
    tests = tuple(
        replace(test, findings=tuple(map(advised, test.findings))) if test.findings else test
        for test in result.tests
    )
    return replace(result, tests=tests)
