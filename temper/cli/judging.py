"""The commands that judge results: report, compare, explain, accept, propose, groups.

Exit status: 0 passed (degraded counts as passed unless --fail-on-degraded), 1 a GPU or a node failed
(compare: something became worse), 2 the environment kept something required from running, or the command
line is wrong, 130 interrupted. Status 1 is never anything else: a full disk or a closed pipe is 2.
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from temper.base import ROOT, store
from temper.base.nodes import number_of
from temper.base.options import named
from temper.base.store import HistoryError
from temper.cli import json_document
from temper.cli.main import refused
from temper.judge import compare, proposal
from temper.judge.fabric_search import next_rounds
from temper.judge.history_store import History
from temper.judge.proposal import ProposalError
from temper.judge.results import one_or_more
from validation.autotune import evidence as documents
from validation.cli.commands import explain
from validation.fabric.groups import make_orders, read_rounds
from validation.findings import catalogue
from validation.model.contract import MOST_RESULT_BYTES, ContractError, UsageError, encode, parse
from validation.model.printable import one_line
from validation.processes.files import read_at_most
from validation.processes.interrupts import end_on_signals
from validation.verdict.judge import EXIT_ENVIRONMENT, EXIT_FAIL, EXIT_PASS

HISTORY = ROOT / "reports" / store.HISTORY


def main(command_line: Sequence[str]) -> int:
    """Run the command line, whose first word is the command's name, and return the exit status."""
    options = parser().parse_args(command_line)
    end_on_signals()
    try:
        status: int = options.function(options)
    except (UsageError, ContractError) as error:
        return refused(command_line[0], error)
    return status


def parser() -> argparse.ArgumentParser:
    """Make the parser; each command carries its function as `function`."""
    whole = argparse.ArgumentParser(prog="temper")
    commands_of = whole.add_subparsers(required=True, metavar="COMMAND")

    def command(
        name: str, function: Callable[[argparse.Namespace], int], purpose: str
    ) -> argparse.ArgumentParser:
        found = commands_of.add_parser(name, help=purpose, description=f"{purpose[0].upper()}{purpose[1:]}.")
        found.set_defaults(function=function)
        return found

    judging = command("report", _report, "judge the results of a fleet and write the report")
    judging.add_argument(
        "--results", type=named, help="folder of results, one JSON file a node", metavar="DIR"
    )
    judging.add_argument("--expectations", type=named, help="what is expected of each node, as JSON")
    judging.add_argument("--fabric", type=named, help="what was measured between nodes, as JSON")
    judging.add_argument(
        "--fleet",
        help='instead read {"expectations": ..., "results": {node: ...}} from standard input, or '
        '{"document": the same, "slices": [file, ...]}; each file has a "document", too',
        action="store_true",
    )
    judging.add_argument(
        "--output", type=named, help="folder to write the report to", metavar="DIR", required=True
    )
    judging.add_argument(
        "--history", type=named, help="the nodes' earlier numbers: compare with them, and add these"
    )
    judging.add_argument(
        "--metrics",
        type=named,
        help="folder of node_exporter's textfile collector: write verdicts there",
        metavar="DIR",
    )
    judging.add_argument(
        "--inventory",
        help="what the report calls the fleet, and its commands name; may be given several times",
        action="append",
        default=[],
        metavar="PATH",
    )
    judging.add_argument("--latest", help="make the link `latest` beside it point to it", action="store_true")
    judging.add_argument(
        "--fail-on-degraded", help="exit status 1 also for a degraded node", action="store_true"
    )
    json_document.add_option(judging)

    comparing = command("compare", _compare, "say what became better or worse between two results")
    for side in ("before", "after"):
        comparing.add_argument(
            side, type=named, help="a result, or the folder of a report or of results", metavar=side.upper()
        )
    comparing.add_argument("--all", help="list what stayed the same, too", action="store_true")
    json_document.add_option(comparing)

    explaining = command("explain", _explain, "say what a finding means, or whether a number is right")
    explaining.add_argument(
        "code",
        help="the code of a finding, or with --gpu a number, such as bf16_tflops=640 (none: all are listed)",
        metavar="FINDING",
        nargs="?",
    )
    explaining.add_argument("--gpu", help="the GPU that the number is of, such as 'H100 SXM'")
    json_document.add_option(explaining)

    accepting = command("accept", _accept, "let a node be measured by its next runs, not by its earlier ones")
    accepting.add_argument("nodes", help="its name in the history", metavar="NODE", nargs="+")
    accepting.add_argument(
        "--history", type=named, help=f"the history (default: {HISTORY})", default=HISTORY, metavar="FILE"
    )

    proposing = command("propose", _propose, "write evidence of autotune as variables")
    proposing.add_argument(
        "--evidence", type=named, help="evidence of autotune, as JSON; - reads standard input", required=True
    )
    proposing.add_argument(
        "--output", type=named, help="a file of an inventory, which is there only as an earlier proposal"
    )
    proposing.add_argument("--json", action="store_true", help="say as JSON whether the file was written")

    command("groups", _groups, "say which nodes measure with which in the next rounds")
    return whole


def _report(options: argparse.Namespace) -> int:
    """Judge a fleet, and write its report."""
    # Late: the other commands make no page.
    from temper.report.make import judge

    return judge(options)


def _compare(options: argparse.Namespace) -> int:
    """Say what became better or worse between two results."""
    (before, bad), (after, worse) = (one_or_more(path) for path in (options.before, options.after))
    changes = compare.compare(before, after)
    document = {
        "changes": [
            {"node": change.node, "trend": change.trend.name.lower(), "text": change.text}
            for change in changes
            if options.all or change.trend is not compare.Trend.SAME
        ],
        "not_compared": [one_line(why) for why in (*bad.values(), *worse.values())],
    }
    json_document.show(options, document, compare.text(changes, everything=options.all))
    for why in (*bad.values(), *worse.values()):
        print(f"temper compare: not compared: {one_line(why)}", file=sys.stderr)
    if any(change.trend is compare.Trend.WORSE for change in changes):
        return EXIT_FAIL
    trends = {change.trend for change in changes}
    compared = bool(trends - {compare.Trend.UNKNOWN, compare.Trend.GONE})
    # What is gone may be as good as before or worse: nobody knows.
    whole = compared and compare.Trend.GONE not in trends and not (bad or worse)
    return EXIT_PASS if whole else EXIT_ENVIRONMENT


def _explain(options: argparse.Namespace) -> int:
    """Say what a finding means, to a person or as the catalogue has it."""
    if options.gpu is not None:
        if options.json:
            raise UsageError("--gpu: expected a number such as bf16_tflops=640, or none, and no --json")
        # Only here: its table is YAML, whose reader costs the other commands their first tenth of a second.
        from temper.judge import numbers

        print(numbers.explained(options.code, options.gpu), end="")
        return EXIT_PASS
    if options.code and "=" in options.code:
        raise UsageError(f"{options.code}: a number needs the GPU that it is of: --gpu 'H100 SXM'")
    known = catalogue.catalogue()
    if not options.json or (options.code and options.code not in known):
        return explain(options)
    codes = [options.code] if options.code else list(known)
    print(json_document.dumps({"findings": {code: encode(known[code]) for code in codes}}))
    return EXIT_PASS


def _read(path: Path) -> bytes:
    return sys.stdin.buffer.read() if path == Path("-") else read_at_most(path, MOST_RESULT_BYTES)


def _propose(options: argparse.Namespace) -> int:
    """Write what a node's evidence speaks for as variables of an inventory."""
    try:
        found = documents.read(_read(options.evidence))
    except ContractError as error:
        raise UsageError(f"{options.evidence}: expected evidence of autotune: {error}") from error
    if options.output is None:
        print(proposal.text(found), end="")
        return EXIT_PASS
    try:
        written = proposal.write(options.output, found)
    except ProposalError as error:
        raise UsageError(str(error)) from error
    said = "written; read it before you commit it" if written else "not written: nothing is worth a change"
    text = f"{options.output}: {said}"
    print(json.dumps({"written": written, "text": text}) if options.json else text)
    return EXIT_PASS


def _accept(options: argparse.Namespace) -> int:
    """Let nodes be measured by their next runs, and no longer by the earlier ones."""
    if not options.history.is_file():
        raise UsageError(f"{options.history}: no such file; expected a history, which --history names")
    for node in options.nodes:
        try:
            count = History(options.history).accept(node)
        except HistoryError as error:
            raise UsageError(str(error)) from error
        if not count:
            raise UsageError(f"{options.history} has no run of {node} that counts")
        print(f"{node}: the history keeps {number_of(count, 'earlier run')}, without counting any more.")
    return EXIT_PASS


def _groups(_options: argparse.Namespace) -> int:
    """Say which nodes measure with which in the next rounds: one order for each group, of no node yet."""
    fleet = read_rounds(parse(sys.stdin.buffer.read()))
    rounds = [make_orders(fleet, groups, secrets.token_hex(8)) for groups in next_rounds(fleet)]
    by_group = [{order.run: encode(order) | {"node": ""} for order in found.values()} for found in rounds]
    print(json.dumps([list(groups.values()) for groups in by_group]))
    return EXIT_PASS
