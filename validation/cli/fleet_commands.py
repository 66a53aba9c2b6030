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
from validation.fabric import search
from validation.fabric.groups import Fleet, Order, make_orders
from validation.fabric.measure import run_part
from validation.fabric.verdict import judge_fabric
from validation.metrics import fleet_metrics
from validation.model.contract import ContractError, decode, dumps, encode, loads, node_result, parse
from validation.model.expectations import Expectation, FleetExpectations, fleet_from, read_fleet
from validation.model.plans import PLANS
from validation.processes import files
from validation.report import fleet_report
from validation.verdict import cohort, history
from validation.verdict.baseline import Comparison
from validation.verdict.judge import EXIT_PASS, judge_fleet, judge_node
from validation.verdict.verdicts import FleetVerdict

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from validation.model.contract import NodeResult


@dataclass(frozen=True)
class _Fleet:
    """What a report is made from."""

    expectations: FleetExpectations
    results: dict[str, NodeResult]
    between_nodes: Fleet | None


def judge(options: argparse.Namespace) -> int:
    """Judge the results of a fleet and write the report."""
    if options.fleet == bool(options.results and options.expectations):
        raise UsageError("report needs either --results DIR and --expectations FILE, or --fleet")
    given = _from_stdin() if options.fleet else _from_files(options)
    if unknown_nodes := sorted(given.results.keys() - given.expectations.nodes.keys()):
        raise UsageError(
            f"there is a result of {unknown_nodes[0]}, but nothing is expected of a node of this name"
        )
    between_nodes = judge_fabric(given.between_nodes) if given.between_nodes else {}
    among_equals = cohort.compare(given.results)
    fleet = judge_fleet(
        judge_node(
            name,
            given.results.get(name),
            expectation,
            HEADLINES,
            more_tests=(between_nodes[name],) if name in between_nodes else (),
            comparisons=_comparisons(name, given.results.get(name), among_equals, options.history),
            fail_on_degraded=options.fail_on_degraded,
        )
        for name, expectation in given.expectations.nodes.items()
    )
    page = _page(given, fleet, options)
    fleet_report.write(options.output, fleet, given.results, given.expectations, given.between_nodes, page)
    if options.history:
        for verdict in fleet.nodes:
            if result := given.results.get(verdict.node):
                history.append(options.history, result, verdict)
    if options.metrics:
        for verdict in fleet.nodes:
            path = options.metrics / f"temper-validation-{verdict.node}.prom"
            started_at = _last_measured(given.results.get(verdict.node), verdict.node, options.history)
            files.write_atomically(path, fleet_metrics.text(verdict, started_at))
    if options.latest:
        fleet_report.point_latest_to(options.output)
    report = options.output / ("report.html" if page else "report.txt")
    print(fleet_report.text(fleet, f"Report: {report}"), end="")
    return fleet.exit_status


def _page(given: _Fleet, fleet: FleetVerdict, options: argparse.Namespace) -> Callable[[Path], object] | None:
    """What writes the report that people look at; None where this copy of the program has no templates.

    Those are in Temper's checkout, and not in the one-file build. Raises OSError.
    """
    try:
        from pages.inputs import Report, Validation, no_past
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
        (lambda result: of_runs(history.read(options.history, result.node).runs, result))
        if options.history
        else no_past,
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


def _last_measured(result: NodeResult | None, name: str, past: Path | None) -> str | None:
    """When a node was measured last, as ISO 8601 has it; None where nobody knows of any time."""
    if result:
        return result.started_at
    runs = history.read(past, name).runs if past else ()
    return runs[-1].started_at if runs else None


def _comparisons(
    name: str,
    result: NodeResult | None,
    among_equals: dict[tuple[str, str], Comparison],
    past: Path | None,
) -> dict[str, Comparison]:
    """What the fleet and the node's own past say of each test. Raises ContractError, OSError."""
    said = {test: comparison for (node, test), comparison in among_equals.items() if node == name}
    if result and past:
        for test, comparison in history.compare(result, history.read(past, name)).items():
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
    given = parse(read(STDIN))
    if not isinstance(given, dict) or not all(
        isinstance(given.get(part), dict) for part in ("expectations", "results")
    ):
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
    """Say which nodes measure with which in the next rounds: one order for each group, of no node yet."""
    fleet = loads(Fleet, read(STDIN))
    rounds = [make_orders(fleet, groups, secrets.token_hex(8)) for groups in search.next_rounds(fleet)]
    by_group = [{order.run: encode(order) | {"node": ""} for order in found.values()} for found in rounds]
    print(json.dumps([list(groups.values()) for groups in by_group]))
    return EXIT_PASS
