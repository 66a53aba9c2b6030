"""The commands of a fleet: report judges it, fabric and groups measure between nodes."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from validation.checks.node import Node
from validation.checks.registry import HEADLINES, TESTS
from validation.cli.commands import STDIN, UsageError, read, results_in
from validation.fabric import tree_search
from validation.fabric.groups import Fleet, Order, make_orders
from validation.fabric.measure import run_part
from validation.fabric.outlook import outlook
from validation.fabric.verdict import judge_fabric
from validation.metrics import fleet_metrics
from validation.model.contract import ContractError, decode, dumps, encode, loads, node_result, parse
from validation.model.expectations import Expectation, FleetExpectations, fleet_from, read_fleet
from validation.model.plans import PLANS
from validation.processes import files
from validation.processes.garbage import uncollected
from validation.report import fleet_report
from validation.verdict import cohort, history
from validation.verdict.baseline import Comparison
from validation.verdict.history import Past
from validation.verdict.judge import EXIT_ENVIRONMENT, EXIT_PASS, judge_fleet, judge_node
from validation.verdict.verdicts import FleetVerdict

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable

    from validation.model.contract import NodeResult
    from validation.verdict.history import PastRun


@dataclass(frozen=True)
class _Fleet:
    """What a report is made from."""

    expectations: FleetExpectations
    results: dict[str, NodeResult]
    between_nodes: Fleet | None


@uncollected()
def judge(options: argparse.Namespace) -> int:
    """Judge the results of a fleet and write the report."""
    if options.fleet == bool(options.results and options.expectations):
        raise UsageError("report needs either --results DIR and --expectations FILE, or --fleet")
    given = _from_stdin() if options.fleet else _from_files(options)
    if unknown_nodes := sorted(given.results.keys() - given.expectations.nodes.keys()):
        raise UsageError(
            f"there is a result of {unknown_nodes[0]}, but nothing is expected of a node of this name"
        )
    own_past = _OwnPast(options.history)
    compared = own_past.compare(given.expectations.nodes, given.results)
    between_nodes = judge_fabric(given.between_nodes) if given.between_nodes else {}
    among_equals: dict[str, dict[str, Comparison]] = {}
    for (node, test), comparison in cohort.compare(given.results).items():
        among_equals.setdefault(node, {})[test] = comparison
    fleet = judge_fleet(
        judge_node(
            name,
            given.results.get(name),
            expectation,
            HEADLINES,
            more_tests=(between_nodes[name],) if name in between_nodes else (),
            comparisons=_comparisons(name, among_equals.get(name, {}), compared),
            fail_on_degraded=options.fail_on_degraded,
        )
        for name, expectation in given.expectations.nodes.items()
    )
    page = _page(given, fleet, options, own_past)
    fleet_report.write(options.output, fleet, given.results, given.expectations, given.between_nodes, page)
    own_past.add(fleet, given.results)
    if options.metrics:
        files.write_all(
            (
                options.metrics / f"temper-validation-{verdict.node}.prom",
                fleet_metrics.text(
                    verdict, _last_measured(given.results.get(verdict.node), compared.get(verdict.node))
                ),
            )
            for verdict in fleet.nodes
        )
    if options.latest:
        fleet_report.point_latest_to(options.output)
    report = options.output / ("report.html" if page else "report.txt")
    text = fleet_report.text(fleet, f"Report: {report}")
    print(own_past.taken_over, end="")
    # What ends the run is said last.
    print(*((own_past.problem, text) if fleet.exit_status else (text, own_past.problem)), sep="", end="")
    return fleet.exit_status or (EXIT_ENVIRONMENT if own_past.problem else EXIT_PASS)


class _OwnPast:
    """The nodes' own past. A history that cannot be used costs no verdict; it is said, and so is the status.

    `taken_over` and `problem` are lines for the operator, empty where there is nothing to say.
    """

    def __init__(self, path: Path | None) -> None:
        # Late: a node measures without SQLite.
        from validation.processes.store import HistoryError
        from validation.verdict.history_store import History

        if path and path.is_dir():
            raise UsageError(
                f"--history {path} is a folder; expected one file, such as {path}.sqlite, which takes over "
                "what is in that folder"
            )
        self._history = History(path) if path else None
        self._unusable = HistoryError
        self.taken_over = ""
        self.problem = ""

    def compare(self, nodes: Iterable[str], results: dict[str, NodeResult]) -> dict[str, _Compared]:
        """What the past of each node says of its result; nothing where no history was named."""
        from validation.verdict.history_files import take_over

        nodes = list(nodes)
        if self._history is None:
            return {}
        try:
            path = self._history.path
            self.taken_over = take_over(self._history, path.with_suffix("")).text(path)
            return {
                node: _compared(results.get(node), past) for node, past in self._history.past(nodes, results)
            }
        except self._unusable as error:
            self.problem = f"{error}\n"
            unknown = Past(notes=(f"not compared with its own past: {error}",))
            return {node: _compared(results.get(node), unknown) for node in nodes}

    def runs(self, result: NodeResult) -> tuple[PastRun, ...]:
        """The earlier runs that a result is compared with; none where the history cannot be used."""
        if self._history is None or self.problem:
            return ()
        return next(self._history.past([result.node], {result.node: result}))[1].runs

    def add(self, fleet: FleetVerdict, results: dict[str, NodeResult]) -> None:
        """Add this run of each node."""
        if self._history is None or self.problem:
            return
        runs = [
            history.run_of(results[verdict.node], verdict)
            for verdict in fleet.nodes
            if verdict.node in results
        ]
        try:
            self._history.append([run for run in runs if run])
        except self._unusable as error:
            self.problem = f"{error}\n"


def accept(options: argparse.Namespace) -> int:
    """Let nodes be measured by their next runs, and no longer by the earlier ones."""
    from validation.processes.store import HistoryError
    from validation.verdict.history_store import History

    if not options.history.is_file():
        raise UsageError(f"{options.history}: no such file; expected a history, which --history names")
    for node in options.nodes:
        try:
            count = History(options.history).accept(node)
        except HistoryError as error:
            raise UsageError(str(error)) from error
        if not count:
            raise UsageError(f"{options.history} has no run of {node} that counts")
        print(f"{node}: {count} earlier runs stay in the history and no longer count.")
    return EXIT_PASS


@dataclass(frozen=True)
class _Compared:
    """What a node's past says of its tests, and when the node was measured before (ISO 8601), if ever."""

    tests: dict[str, Comparison]
    before: str | None


def _compared(result: NodeResult | None, past: Past) -> _Compared:
    return _Compared(
        history.compare(result, past) if result else {}, past.runs[-1].started_at if past.runs else None
    )


def _page(
    given: _Fleet, fleet: FleetVerdict, options: argparse.Namespace, own_past: _OwnPast
) -> Callable[[Path], object] | None:
    """What writes the report that people look at; None where this copy of the program has no templates.

    Those are in Temper's checkout, and not in the one-file build. Raises OSError.
    """
    try:
        from pages.inputs import Report, Validation
        from pages.past import of_runs
        from pages.write import write
    except ModuleNotFoundError as error:
        if error.name not in {"pages", "jinja2"}:
            raise
        return None
    before, name = _report_before(options.output)
    validation = Validation(
        fleet,
        given.results,
        {node: expectation.references for node, expectation in given.expectations.nodes.items()},
        lambda result: of_runs(own_past.runs(result), result),
        before,
        name,
    )
    return lambda directory: write(directory, Report(validation))


def _report_before(output: Path) -> tuple[FleetVerdict | None, str]:
    """The verdict of the last report beside this one, and its name; none where there is none to read."""
    latest = output.parent / "latest"
    try:
        return loads(FleetVerdict, (latest / "summary.json").read_bytes()), latest.resolve().name
    except (OSError, ContractError):
        return None, ""


def _last_measured(result: NodeResult | None, compared: _Compared | None) -> str | None:
    """When a node was measured last, as ISO 8601 has it; None where nobody knows of any time."""
    return result.started_at if result else compared.before if compared else None


def _comparisons(
    name: str, among_equals: dict[str, Comparison], own: dict[str, _Compared]
) -> dict[str, Comparison]:
    """What the fleet and the node's own past say of each test of a node."""
    said = dict(among_equals)
    for test, comparison in own[name].tests.items() if name in own else ():
        said[test] = said.get(test, Comparison()) + comparison
    return said


def _from_files(options: argparse.Namespace) -> _Fleet:
    return _Fleet(
        read_fleet(options.expectations, TESTS),
        results_in(options.results),
        loads(Fleet, options.fabric.read_bytes()) if options.fabric else None,
    )


def _from_stdin() -> _Fleet:
    """Expectations, results and what was measured between nodes, in one piece.

    A node whose result is none was not measured: one bad result costs the others no verdict.
    """
    given = _together(parse(read(STDIN)))
    if given is None:
        raise UsageError('standard input is not {"expectations": {...}, "results": {node: ...}}')
    expectations = fleet_from(given["expectations"], TESTS)
    results, unreadable = {}, {}
    for name, value in given["results"].items():
        try:
            results[name] = _result_of(name, value)
        except ContractError as error:
            if name not in expectations.nodes:
                raise
            expected = expectations.nodes[name]
            unreadable[name] = dataclasses.replace(expected, not_run=f"its result cannot be read: {error}")
    return _Fleet(
        dataclasses.replace(expectations, nodes=expectations.nodes | unreadable),
        results,
        decode(Fleet, given["fabric"], "fabric") if given.get("fabric") else None,
    )


def _together(given: Any) -> dict[str, Any] | None:
    """What was given, or what the slices of a run have handed over as one; None where it is neither.

    Of slices, a later one holds. What was measured between nodes no slice has.
    """
    if isinstance(given, dict) and isinstance(given.get("slices"), list):
        parts: list[Any] = [
            part.get("document") if isinstance(part, dict) else None for part in given["slices"]
        ]
        if not parts or not all(map(_is_whole, parts)):
            return None
        nodes: dict[str, Any] = {}
        results: dict[str, Any] = {}
        for part in parts:
            found = part["expectations"].get("nodes")
            if not isinstance(found, dict):
                return None
            nodes |= found
            results |= part["results"]
        return {"expectations": {**parts[0]["expectations"], "nodes": nodes}, "results": results}
    return given if _is_whole(given) else None


def _is_whole(given: Any) -> bool:
    return isinstance(given, dict) and all(
        isinstance(given.get(part), dict) for part in ("expectations", "results")
    )


def _result_of(name: str, value: Any) -> NodeResult:
    result = node_result(value, TESTS)
    if result.node != name:
        raise ContractError(f"it is one of node {result.node}")
    return result


def take_part(options: argparse.Namespace) -> int:
    """Take part in a collective between nodes."""
    order = loads(Order, read(Path(options.order)))
    if order.plan not in PLANS or order.node not in {member.name for member in order.group}:
        raise UsageError(f"the order names plan {order.plan} and node {order.node}; one of them is unknown")
    with contextlib.closing(Node(PLANS[order.plan], Expectation())) as node:
        print(dumps(run_part(order, node)), end="")
    return EXIT_PASS


def group(_options: argparse.Namespace) -> int:
    """Say which nodes measure with which in the next rounds: one order for each group, of no node yet.

    `say` has sentences for the operator: what is planned, and what comes next.
    """
    fleet = loads(Fleet, read(STDIN))
    step = tree_search.next_step(fleet)
    rounds = [make_orders(fleet, groups, secrets.token_hex(8), step.name) for groups in step.rounds]
    by_group = [{order.run: encode(order) | {"node": ""} for order in found.values()} for found in rounds]
    said = {"say": outlook(fleet, step), "rounds": [list(groups.values()) for groups in by_group]}
    print(json.dumps(said))
    return EXIT_PASS
