"""Command line: measure a node, judge a fleet, compare results, explain findings, build the one-file payload.

Exit status: 0 passed (degraded counts as passed unless --fail-on-degraded), 1 a GPU or a node failed
(compare: something became worse), 2 the environment kept something required from running, or the command
line is wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import secrets
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from validation import (
    archive,
    cohort,
    compare,
    explanations,
    fabric,
    fabric_run,
    history,
    machine,
    models,
    report,
)
from validation.checks import Node
from validation.checks.registry import CHECKS
from validation.checks.storage import StorageRead
from validation.comparison import Comparison
from validation.contract import ContractError, decode, dumps, encode, loads, node_result, parse
from validation.expectations import (
    ANY_MODEL,
    Expectation,
    ExpectedGpus,
    FleetExpectations,
    References,
    file_name,
    fleet_from,
    parse_expectation,
    read_fleet,
)
from validation.judge import EXIT_ENVIRONMENT, EXIT_FAIL, EXIT_PASS, judge_fleet, judge_node
from validation.plans import PLANS
from validation.progress import Progress
from validation.runner import run_plan
from validation.wishes import Wishes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

    from validation.contract import NodeResult

TESTS = tuple(CHECKS)
HEADLINES = {check.id: check.headline for check in CHECKS.values()}
INTERRUPTED = 130
MOST_HOURS = 1000
STDIN = Path("-")
#: What a run by hand must have done on a machine with NVIDIA GPUs. With --expect, that says what is required.
PROVE_A_GPU = ("health", "gpu_matmul", "gpu_transfer")


class UsageError(Exception):
    """Input that this program cannot work with; the message says what was expected and what was found."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    options = _parser().parse_args(arguments)
    # These must end the measuring processes too, as Ctrl-C does; under nohup a closed terminal stops nothing.
    signal.signal(signal.SIGTERM, _stop)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _stop)
    try:
        status: int = options.function(options)
    except (UsageError, ContractError, OSError) as error:
        print(f"validation: {error}", file=sys.stderr)
        return EXIT_ENVIRONMENT
    except KeyboardInterrupt:
        print(
            "validation: interrupted; every process of the run was ended and no result written",
            file=sys.stderr,
        )
        return INTERRUPTED
    except Exception:  # noqa: BLE001 - Python would end with 1, which says that a GPU failed
        traceback.print_exc()
        print("validation: this is a fault of this program; nothing was judged", file=sys.stderr)
        return EXIT_ENVIRONMENT
    return status


def _stop(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="validation",
        description="Measure this node, or judge the results of a fleet.",
        epilog="Exit status: 0 passed, 1 a GPU or a node failed, 2 something required could not run.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="run a plan's tests on this node")
    run.set_defaults(function=_run)
    run.add_argument("--plan", choices=PLANS, default="quick", help="how deep (default: quick)")
    run.add_argument(
        "--test",
        action="append",
        choices=TESTS,
        dest="tests",
        metavar="TEST",
        help="run only this test; may be repeated",
    )
    run.add_argument(
        "--expect", type=Path, metavar="FILE", help="what this node must be, as JSON; - reads standard input"
    )
    run.add_argument(
        "--gpus", type=_count, metavar="N", help="this machine must have so many GPUs, of whatever model"
    )
    run.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="write the result here as JSON; - writes it to standard output",
    )
    run.add_argument(
        "--hours", type=_hours, metavar="N", help="repeat the tests for so long, and stop at the first fault"
    )
    run.add_argument(
        "--state", type=Path, metavar="FILE", help="keep rounds here, to go on after an interruption"
    )
    run.add_argument(
        "--storage",
        type=Path,
        action="append",
        default=[],
        metavar="PATH",
        help="measure reads of this file, or of a file of our own in this folder; may be repeated",
    )
    run.add_argument(
        "--storage-floor", type=_rate, metavar="GB/S", help="fail where a --storage reads more slowly"
    )
    run.add_argument(
        "--traces",
        type=Path,
        metavar="DIR",
        help="profile training steps, and write their Chrome traces here",
    )
    run.add_argument(
        "--node",
        type=_node_name,
        default=socket.gethostname(),
        help="the node's name in the result (default: its host name)",
    )
    _add_fail_on_degraded(run)

    listing = commands.add_parser("list", help="say which tests and plans there are")
    listing.set_defaults(function=_list)

    comparing = commands.add_parser("compare", help="say what became better or worse between two results")
    comparing.set_defaults(function=_compare)
    for side in ("before", "after"):
        comparing.add_argument(
            side, type=Path, metavar=side.upper(), help="a result, or the folder of a report or of results"
        )
    comparing.add_argument("--all", action="store_true", help="list what stayed the same, too")

    explaining = commands.add_parser("explain", help="say what a finding means and what to do about it")
    explaining.set_defaults(function=_explain)
    explaining.add_argument(
        "code", nargs="?", metavar="FINDING", help="its code; without one, all are listed"
    )

    judging = commands.add_parser("report", help="judge the results of a fleet and write the report")
    judging.set_defaults(function=_report)
    judging.add_argument(
        "--results", type=Path, metavar="DIR", help="folder of results, one JSON file a node"
    )
    judging.add_argument(
        "--expectations", type=Path, metavar="FILE", help="what is expected of each node, as JSON"
    )
    judging.add_argument(
        "--fabric", type=Path, metavar="FILE", help="what was measured between nodes, as JSON"
    )
    judging.add_argument(
        "--fleet",
        action="store_true",
        help='instead read {"expectations": ..., "results": {node: ...}} from standard input',
    )
    judging.add_argument(
        "--output", type=Path, metavar="DIR", required=True, help="folder to write the report to"
    )
    judging.add_argument(
        "--history",
        type=Path,
        metavar="DIR",
        help="folder of the nodes' earlier numbers: compare with them, and add these",
    )
    judging.add_argument("--latest", action="store_true", help="make the link `latest` beside it point to it")
    _add_fail_on_degraded(judging)

    taking_part = commands.add_parser("fabric", help="take part in a collective between nodes")
    taking_part.set_defaults(function=_fabric)
    taking_part.add_argument(
        "--order", required=True, metavar="FILE", help="what to do, as JSON; - reads standard input"
    )

    grouping = commands.add_parser("groups", help="say which nodes measure with which in a round")
    grouping.set_defaults(function=_groups)
    grouping.add_argument("--round", choices=list(fabric.Round), required=True)

    building = commands.add_parser("build", help="write the payload as one file that Python runs")
    building.set_defaults(function=_build)
    building.add_argument("--output", type=Path, metavar="FILE", required=True)
    return parser


def _hours(text: str) -> float:
    """A time that ends."""
    try:
        hours = float(text)
    except ValueError:
        hours = math.nan
    if not 0 < hours <= MOST_HOURS:
        raise argparse.ArgumentTypeError(f"expected hours, above 0 and up to {MOST_HOURS}, found {text}")
    return hours


def _rate(text: str) -> float:
    """A rate that something can be slower than."""
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not 0 < rate < math.inf:
        raise argparse.ArgumentTypeError(f"expected GB/s, a number above 0, found {text}")
    return rate


def _count(text: str) -> int:
    """A number of things."""
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"expected a whole number, found {text}")
    return int(text)


def _node_name(text: str) -> str:
    """A name that is also one of a file."""
    try:
        return file_name(text)
    except ContractError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _add_fail_on_degraded(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--fail-on-degraded", action="store_true", help="exit status 1 also for a degraded node"
    )


def _run(options: argparse.Namespace) -> int:
    expectation = _expectation(options.expect)
    plan = PLANS[options.plan]
    if options.hours is not None:
        plan = dataclasses.replace(plan, duration_s=options.hours * 3600)
    if options.storage_floor is not None and not options.storage:
        raise UsageError("--storage-floor needs a --storage to read from; name one, or leave it out")
    wishes = Wishes(tuple(options.storage), options.storage_floor, options.traces)
    left_out = plan.leaves_out - wishes.tests
    tests = dict.fromkeys(options.tests or (test for test in TESTS if test not in left_out))
    tests |= dict.fromkeys(test for test in TESTS if test in wishes.tests)
    if options.gpus is not None:
        if expectation.gpus is not None:
            raise UsageError("--gpus and an expectation that names GPUs: leave one of them out")
        expectation = dataclasses.replace(expectation, gpus=(ExpectedGpus("any", ANY_MODEL, options.gpus),))
    expectation = dataclasses.replace(expectation, required_tests=_required(options, expectation))
    to_file = options.output is not None and str(options.output) != "-"
    if to_file:
        report.claim(options.output)
    with Progress(len(tests)) as progress:
        result = run_plan(plan, expectation, options.node, tests, progress, options.state, wishes)
    verdict = judge_node(
        options.node, result, expectation, HEADLINES, fail_on_degraded=options.fail_on_degraded
    )
    if to_file:
        report.write_atomically(options.output, dumps(result))
    if str(options.output) == "-":
        print(dumps(result), end="")
    else:
        print(report.text(judge_fleet([verdict])), end="")
    return verdict.exit_status


def _required(options: argparse.Namespace, expectation: Expectation) -> tuple[str, ...]:
    """What must have run: what is expected, what was asked for by name, what proves a GPU where one is."""
    required = [*expectation.required_tests, *(options.tests or ())]
    if options.storage:
        required.append(StorageRead.id)
    if options.expect is None and not options.tests and machine.pci_gpus():
        required += PROVE_A_GPU
    return tuple(dict.fromkeys(required))


def _expectation(path: Path | None) -> Expectation:
    if path is None:
        return Expectation(references=models.at_hand())
    try:
        expectation = parse_expectation(_read(path), TESTS)
    except ContractError as error:
        raise ContractError(f"{'standard input' if path == STDIN else path}: {error}") from error
    if expectation.references == References():
        return dataclasses.replace(expectation, references=models.at_hand())
    return expectation


def _read(path: Path) -> bytes:
    """What a file holds, or standard input for `-`: undecodable bytes are the reader's to name."""
    return sys.stdin.buffer.read() if path == STDIN else path.read_bytes()


def _list(_options: argparse.Namespace) -> int:
    print("Tests:")
    for check in CHECKS.values():
        print(f"  {check.id:<21} {check.title} (needs {check.needs})")
    print("Plans:")
    for plan in PLANS.values():
        left_out = ", ".join(test for test in TESTS if test in plan.leaves_out)
        print(f"  {plan.name:<15} {plan.summary}" + (f" (without {left_out})" if left_out else ""))
    return EXIT_PASS


def _compare(options: argparse.Namespace) -> int:
    before, after = (_one_or_more(path) for path in (options.before, options.after))
    changes = compare.compare(before, after)
    print(compare.text(changes, everything=options.all), end="")
    if any(change.trend is compare.Trend.WORSE for change in changes):
        return EXIT_FAIL
    trends = {change.trend for change in changes}
    compared = bool(trends - {compare.Trend.UNKNOWN, compare.Trend.GONE})
    # What is gone may be as good as before or worse: nobody knows.
    return EXIT_PASS if compared and compare.Trend.GONE not in trends else EXIT_ENVIRONMENT


def _one_or_more(path: Path) -> dict[str, NodeResult]:
    """The results at a path, which is one, or the folder of a report or of results.

    Raises UsageError, ContractError, OSError.
    """
    if path.is_dir():
        folder = path / "results"
        results = _results_in(folder if folder.is_dir() else path)
        if not results:
            raise UsageError(f"{path}: expected results, found no JSON file")
        return results
    try:
        result = node_result(parse(path.read_bytes()))
    except ContractError as error:
        raise ContractError(f"{path}: {error}") from error
    return {result.node: result}


def _explain(options: argparse.Namespace) -> int:
    if options.code is None:
        print(explanations.overview(), end="")
        return EXIT_PASS
    try:
        print(explanations.explain(options.code), end="")
    except KeyError as error:
        close = explanations.closest(options.code)
        hint = f"did you mean {close}?" if close else "`validation explain` lists all"
        raise UsageError(f"no finding has the code {options.code}; {hint}") from error
    return EXIT_PASS


def _report(options: argparse.Namespace) -> int:
    if options.fleet == bool(options.results and options.expectations):
        raise UsageError("report needs either --results DIR and --expectations FILE, or --fleet")
    problems: dict[str, str] = {}
    options.fabric_fleet = loads(fabric.Fleet, options.fabric.read_bytes()) if options.fabric else None
    if options.fleet:
        expectations, results, options.fabric_fleet = _fleet_from_stdin(problems)
    else:
        expectations = read_fleet(options.expectations, TESTS)
        results = _results_in(options.results)
    if strangers := sorted(results.keys() - expectations.nodes.keys()):
        raise UsageError(
            f"there is a result of {strangers[0]}, but nothing is expected of a node of this name"
        )
    between_nodes = fabric.judge(options.fabric_fleet) if options.fabric_fleet else {}
    among_equals = cohort.compare(results)
    verdicts = []
    for name, expectation in expectations.nodes.items():
        if problem := problems.get(name):
            expectation = Expectation(gpus=expectation.gpus, not_run=problem)  # noqa: PLW2901
        result = results.get(name)
        verdicts.append(
            judge_node(
                name,
                result,
                expectation,
                HEADLINES,
                more_tests=(between_nodes[name],) if name in between_nodes else (),
                comparisons=_comparisons(name, result, among_equals, options.history),
                fail_on_degraded=options.fail_on_degraded,
            )
        )
    fleet = judge_fleet(verdicts)
    report.write(options.output, fleet, results, expectations, options.fabric_fleet)
    if options.history:
        for verdict in fleet.nodes:
            if result := results.get(verdict.node):
                history.append(options.history, result, verdict)
    if options.latest:
        report.point_latest_to(options.output)
    print(report.text(fleet, f"Report: {options.output / 'report.html'}"), end="")
    return fleet.exit_status


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


def _results_in(directory: Path) -> dict[str, NodeResult]:
    """The results in a folder by the name of their node.

    Raises UsageError for two of one node, ContractError for a bad one.
    """
    if not directory.is_dir():
        raise UsageError(f"{directory}: no such folder; expected one with a JSON file for each node")
    results: dict[str, NodeResult] = {}
    for path in sorted(directory.glob("*.json")):
        try:
            result = node_result(parse(path.read_bytes()))
        except ContractError as error:
            raise ContractError(f"{path}: {error}") from error
        if result.node in results:
            raise UsageError(f"{path}: a second result of node {result.node}; remove one of them")
        results[result.node] = result
    return results


def _fleet_from_stdin(
    problems: dict[str, str],
) -> tuple[FleetExpectations, dict[str, NodeResult], fabric.Fleet | None]:
    """Expectations, results and what was measured between nodes, in one piece.

    A result that is none becomes an entry of `problems`: its node was not measured.
    """
    fleet = parse(_read(STDIN))
    try:
        expectations, raw = fleet["expectations"], fleet["results"]
    except (KeyError, TypeError) as error:
        raise UsageError(
            f'standard input is not {{"expectations": ..., "results": ...}}: {error!r}'
        ) from error
    results = {}
    for name, value in raw.items():
        try:
            results[name] = node_result(value)
        except ContractError as error:
            problems[name] = f"its result cannot be read: {error}"
    between = decode(fabric.Fleet, fleet["fabric"], "fabric") if fleet.get("fabric") else None
    return fleet_from(expectations, TESTS), results, between


def _fabric(options: argparse.Namespace) -> int:
    order = loads(fabric.Order, _read(Path(options.order)))
    if order.plan not in PLANS or order.node not in {member.name for member in order.group}:
        raise UsageError(f"the order names plan {order.plan} and node {order.node}; one of them is unknown")
    print(dumps(fabric_run.run(order, Node(PLANS[order.plan], Expectation()))), end="")
    return EXIT_PASS


def _groups(options: argparse.Namespace) -> int:
    fleet = loads(fabric.Fleet, _read(STDIN))
    groups = fabric.next_groups(fleet, fabric.Round(options.round))
    found = fabric.orders(fleet, groups, secrets.token_hex(8))
    print(json.dumps({name: encode(order) for name, order in found.items()}))
    return EXIT_PASS


def _build(options: argparse.Namespace) -> int:
    if models.table() is None:
        print("validation: this Python reads no YAML: the build carries no references", file=sys.stderr)
    content = archive.build()
    with contextlib.suppress(FileNotFoundError):
        if options.output.read_bytes() == content:
            return EXIT_PASS
    options.output.parent.mkdir(parents=True, exist_ok=True)
    temporary = options.output.with_name(f".{options.output.name}.new")
    temporary.write_bytes(content)
    temporary.chmod(0o755)
    temporary.replace(options.output)
    return EXIT_PASS
