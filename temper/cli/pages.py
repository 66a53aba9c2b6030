"""Make the report that people look at from the folders of reports, of one part or of both.

temper pages --validation reports/latest --compliance reports/compliance/latest --output fleet
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TypeVar

from temper.base.nodes import ranges
from temper.base.options import named
from temper.base.store import HISTORY, HistoryError
from temper.cli.main import NOT_CARRIED_OUT, refused
from temper.compliance import document
from temper.judge.history_store import History
from temper.judge.results import naming, results_in
from temper.judge.unshown import Unshown
from temper.report import origin
from temper.report.inputs import Report, Validation, of_runs
from temper.report.write import write
from validation.model.contract import ContractError, UsageError, loads
from validation.model.expectations import FleetExpectations
from validation.model.printable import one_line
from validation.verdict.verdicts import FleetVerdict

T = TypeVar("T")


def read(options: argparse.Namespace) -> Report:
    """Return what the folders hold. Raises OSError, ContractError, HistoryError."""
    statement = document.of_report(options.compliance) if options.compliance else None
    validation = _validation(options) if options.validation else None
    origins = [origin.read(folder) for folder in (options.validation, options.compliance) if folder]
    return Report(validation, statement, options.label, origin.merged(origins))


def _validation(options: argparse.Namespace) -> Validation:
    folder: Path = options.validation
    results, unreadable = results_in(folder / "results")
    for why in unreadable.values():
        print(one_line(f"left out: {why}"), file=sys.stderr)
    expectations = _document(FleetExpectations, folder / "expectations.json")
    before = options.before
    history = History(options.history or folder.resolve().parent / HISTORY)
    return Validation(
        _document(FleetVerdict, folder / "summary.json"),
        results,
        {name: expectation.references for name, expectation in expectations.nodes.items()},
        lambda result: of_runs(history.basis(result), result),
        _document(FleetVerdict, before / "summary.json") if before else None,
        before.resolve().name if before else "",
    )


def _document(kind: type[T], path: Path) -> T:
    with naming(path):
        return loads(kind, path.read_bytes())


def parser() -> argparse.ArgumentParser:
    """Make the parser."""
    made = argparse.ArgumentParser(prog="temper pages", description=(__doc__ or "").splitlines()[0])
    made.add_argument("--validation", type=named, metavar="DIR", help="folder of a report of validation")
    made.add_argument("--compliance", type=named, metavar="DIR", help="folder of a report of compliance")
    made.add_argument("--before", type=named, metavar="DIR", help="the validation to compare with")
    made.add_argument("--history", type=named, metavar="FILE", help="the nodes' earlier numbers")
    made.add_argument("--label", default="", help="words that stand on top of every page")
    made.add_argument(
        "--node", action="append", default=[], metavar="NAME", help="a node that gets a page in any case"
    )
    made.add_argument("--output", type=named, metavar="DIR", required=True, help="folder to write to")
    return made


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    given = parser().parse_args(arguments)
    if not given.validation and not given.compliance:
        parser().error("expected --validation DIR, --compliance DIR, or both")
    unshown = Unshown()
    try:
        report = read(given)
        nodes = [one.node for one in report.compliance.nodes] if report.compliance else []
        nodes += [one.node for one in report.validation.verdict.nodes] if report.validation else []
        if unknown := {*given.node} - {*nodes}:
            raise UsageError(f"--node: expected nodes of these reports, found {ranges(unknown)}")
        files = write(given.output, report, "index.html", given.node, unshown=unshown)
    except (ContractError, HistoryError, UsageError) as error:
        return refused("pages", error)
    print(unshown.text(), end="", file=sys.stderr)
    print(files[-1])
    return NOT_CARRIED_OUT if unshown.said else 0
