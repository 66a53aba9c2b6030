"""The command report: judge a fleet, and write its report."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from temper.base.nodes import utc
from temper.judge import cohort, fleet_metrics
from temper.judge.fabric import judge_fabric
from temper.judge.fleet_results import FleetResults, is_document
from temper.judge.own_past import Compared, OwnPast
from temper.judge.results import naming, results_in
from temper.judge.unshown import Unshown
from temper.report import origin
from temper.report.inputs import Report, Validation, of_runs
from temper.report.racks import in_common
from temper.report.write import write
from validation.checks.registry import HEADLINES, TESTS
from validation.fabric.groups import Fleet, read_rounds
from validation.model.contract import (
    MOST_DOCUMENT_BYTES,
    ContractError,
    State,
    UsageError,
    json_text,
    loads,
    parse,
)
from validation.model.expectations import fleet_from
from validation.processes.files import file_stem, read_at_most, write_all
from validation.report import fleet_report
from validation.verdict.baseline import Comparison
from validation.verdict.judge import EXIT_ENVIRONMENT, EXIT_PASS, judge_fleet, judge_node
from validation.verdict.verdicts import FleetVerdict, NodeVerdict, TestVerdict

if TYPE_CHECKING:
    import argparse


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """For work that makes millions of objects and keeps them: nobody looks for cycles among them meanwhile.

    Each such search goes through all objects that there are, which took a fifth of the time of a fleet's
    report. What is in no cycle is freed as ever.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


@uncollected()
def judge(options: argparse.Namespace) -> int:
    """Judge the results of a fleet and write the report. Raises UsageError, ContractError, OSError.

    The verdict for programs is written after everything else of the report, and history and metrics are
    written after that: a report that is not whole leaves nothing in them.
    """
    if options.fleet == bool(options.results and options.expectations):
        raise UsageError("report needs either --results DIR and --expectations FILE, or --fleet")
    if options.history and options.history.is_dir():
        raise UsageError(
            f"--history {options.history} is a folder; expected one file, such as {options.history}.sqlite, "
            "which takes over what is in that folder"
        )
    measured, fabric = _from_stdin() if options.fleet else _from_files(options)
    results, unshown = measured.results, Unshown()
    past = OwnPast(options.history, unshown)
    compared = past.compare(measured.expectations, results)
    between_nodes = judge_fabric(fabric) if fabric else {}
    fleet = judge_fleet(_verdicts(measured, compared, between_nodes, options.fail_on_degraded, unshown))
    fleet_report.write_results(options.output, results)
    before, before_name = _report_before(options.output)
    shown = Validation(
        fleet,
        results,
        {name: expected.references for name, expected in measured.expectations.items()},
        lambda result: of_runs(past.runs(result), result),
        before,
        before_name,
    )
    comes_from = origin.origin(
        options.inventory,
        utc(datetime.now(UTC)),
        {name: measured.groups.get(name, ()) for name in measured.expectations},
    )
    origin.write(options.output, comes_from)
    write(options.output, Report(shown, origin=comes_from), unshown=unshown)
    fleet_report.write(options.output, fleet, measured.expectations, fabric)
    fleet_report.conclude(options.output, fleet)
    past.add(fleet.nodes, results)
    if options.metrics:
        last_measured = {name: one.before for name, one in compared.items()}
        last_measured |= {name: result.started_at for name, result in results.items()}
        _write_metrics(options.metrics, fleet.nodes, last_measured, unshown)
    if options.latest:
        fleet_report.point_latest_to(options.output)
    common = in_common(
        {node.node: comes_from.racks(node.node) for node in fleet.nodes},
        [node.node for node in fleet.nodes if node.state is not State.PASS],
    )
    where = f"Report: {options.output / 'report.html'}"
    text = fleet_report.text(fleet, "\n\n".join(filter(None, (common, where))))
    problem = (f"{past.unusable}\n" if past.unusable else "") + unshown.text()
    if options.json:
        print("".join(json_text(fleet)))
        print(past.taken_over, problem, sep="", end="", file=sys.stderr)
        return fleet.exit_status or (EXIT_ENVIRONMENT if problem else EXIT_PASS)
    print(past.taken_over, end="")
    # What ends the run is said last.
    print(*((problem, text) if fleet.exit_status else (text, problem)), sep="", end="")
    return fleet.exit_status or (EXIT_ENVIRONMENT if problem else EXIT_PASS)


def _from_files(options: argparse.Namespace) -> tuple[FleetResults, Fleet | None]:
    measured = FleetResults()
    with naming(options.expectations) as path:
        expected = fleet_from(parse(read_at_most(path, MOST_DOCUMENT_BYTES)), TESTS)
    measured.add(expected.nodes, *results_in(options.results))
    if not options.fabric:
        return measured, None
    with naming(options.fabric) as path:
        return measured, read_rounds(parse(read_at_most(path, MOST_DOCUMENT_BYTES)))


def _from_stdin() -> tuple[FleetResults, Fleet | None]:
    """Read a document with expectations, results and what was measured between nodes, or slices' files.

    What is known without the slices stands beside them, in a document of its own. What was measured between
    nodes no slice has.
    """
    given = parse(sys.stdin.buffer.read())
    slices = given.get("slices") if isinstance(given, dict) else None
    document = given.get("document") if isinstance(slices, list) else given
    if not is_document(document) or not all(isinstance(path, str) for path in slices or ()):
        raise UsageError(
            'standard input is not {"expectations": {...}, "results": {node: ...}}, and not '
            '{"document": {...}, "slices": [file, ...]} either'
        )
    fabric = read_rounds(given["fabric"]) if slices is None and given.get("fabric") else None
    measured = FleetResults()
    measured.add_document(document)
    for path in slices or ():
        measured.add_slice(Path(path))
    return measured, fabric


def _verdicts(
    measured: FleetResults,
    compared: Mapping[str, Compared],
    between_nodes: Mapping[str, TestVerdict],
    fail_on_degraded: bool,
    unshown: Unshown,
) -> list[NodeVerdict]:
    """Judge each node beside the fleet and its own past. A node that cannot be judged was not measured."""
    among_equals = cohort.compare(measured.results)

    def verdict(name: str) -> NodeVerdict:
        said = dict(among_equals.get(name, {}))
        for test, comparison in compared[name].tests.items() if name in compared else ():
            said[test] = said.get(test, Comparison()) + comparison
        return judge_node(
            name,
            measured.results.get(name),
            measured.expectations[name],
            HEADLINES,
            more_tests=(between_nodes[name],) if name in between_nodes else (),
            comparisons=said,
            fail_on_degraded=fail_on_degraded,
        )

    def unjudged(name: str, why: str) -> NodeVerdict:
        return judge_node(
            name, None, measured.lose(name, f"its result could not be judged: {why}"), HEADLINES
        )

    return [
        unshown.attempt(name, "its verdict", partial(verdict, name), partial(unjudged, name))
        for name in list(measured.expectations)
    ]


def _write_metrics(
    folder: Path,
    verdicts: Iterable[NodeVerdict],
    last_measured: Mapping[str, str | None],
    unshown: Unshown,
) -> None:
    """Write a file of metrics for each node. Raises OSError."""

    def text(verdict: NodeVerdict) -> str:
        return unshown.attempt(
            verdict.node,
            "its metrics",
            lambda: fleet_metrics.text(verdict, last_measured.get(verdict.node)),
            # An old file would say that all is as it was.
            lambda _: fleet_metrics.text(replace(verdict, tests=()), None),
        )

    write_all(
        (folder / f"temper-validation-{file_stem(verdict.node)}.prom", text(verdict)) for verdict in verdicts
    )


def _report_before(output: Path) -> tuple[FleetVerdict | None, str]:
    """Return the verdict of the last report beside this one, and its name; none if it cannot be read."""
    latest = output.parent / "latest"
    try:
        return loads(FleetVerdict, (latest / "summary.json").read_bytes()), latest.resolve().name
    except (OSError, ContractError):
        return None, ""
