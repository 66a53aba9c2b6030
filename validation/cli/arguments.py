"""The command line's options, and the forms that their values must have."""

from __future__ import annotations

import argparse
import math
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from validation.checks.registry import TESTS
from validation.cli import commands, fleet_commands
from validation.model.contract import ContractError
from validation.model.expectations import file_name
from validation.model.plans import MOST_HOURS, PLANS

if TYPE_CHECKING:
    from collections.abc import Callable


def _number(expected: str, most: float) -> Callable[[str], float]:
    """A reader of numbers above 0 and up to `most`, but never infinite; `expected` says so."""

    def read(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not (0 < number <= most and math.isfinite(number)):
            raise argparse.ArgumentTypeError(f"expected {expected}, found {text}")
        return number

    return read


_hours = _number(f"hours, above 0 and up to {MOST_HOURS}", MOST_HOURS)
_rate = _number("GB/s, a number above 0", math.inf)


def parser() -> argparse.ArgumentParser:
    """Make the parser; each command carries its function as `function`."""
    whole = argparse.ArgumentParser(
        prog="validation",
        description="Measure this node, or judge the results of a fleet.",
        epilog="Exit status: 0 passed, 1 a GPU or a node failed, 2 something required could not run.",
    )
    command = whole.add_subparsers(required=True, metavar="COMMAND")

    run = command.add_parser("run", help="run a plan's tests on this node")
    run.set_defaults(function=commands.run)
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
        "--hours",
        type=_number(f"hours, above 0 and up to {MOST_HOURS}", MOST_HOURS),
        metavar="N",
        help="repeat the tests for so long, and stop at the first fault",
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
        "--storage-floor",
        type=_number("GB/s, a number above 0", math.inf),
        metavar="GB/S",
        help="fail where a --storage reads more slowly",
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

    listing = command.add_parser("list", help="say which tests and plans there are")
    listing.set_defaults(function=commands.list_tests)

    comparing = command.add_parser("compare", help="say what became better or worse between two results")
    comparing.set_defaults(function=commands.compare_results)
    for side in ("before", "after"):
        comparing.add_argument(
            side, type=Path, metavar=side.upper(), help="a result, or the folder of a report or of results"
        )
    comparing.add_argument("--all", action="store_true", help="list what stayed the same, too")

    explaining = command.add_parser("explain", help="say what a finding means and what to do about it")
    explaining.set_defaults(function=commands.explain)
    explaining.add_argument(
        "code", nargs="?", metavar="FINDING", help="its code; without one, all are listed"
    )

    judging = command.add_parser("report", help="judge the results of a fleet and write the report")
    judging.set_defaults(function=fleet_commands.judge)
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

    taking_part = command.add_parser("fabric", help="take part in a collective between nodes")
    taking_part.set_defaults(function=fleet_commands.take_part)
    taking_part.add_argument(
        "--order", required=True, metavar="FILE", help="what to do, as JSON; - reads standard input"
    )

    grouping = command.add_parser("groups", help="say which nodes measure with which in the next rounds")
    grouping.set_defaults(function=fleet_commands.group)

    building = command.add_parser("build", help="write the payload as one file that Python runs")
    building.set_defaults(function=commands.build)
    building.add_argument("--output", type=Path, metavar="FILE", required=True)
    return whole


def _add_fail_on_degraded(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--fail-on-degraded", action="store_true", help="exit status 1 also for a degraded node"
    )


def _count(text: str) -> int:
    """A number of things, of which nobody has a million."""
    if not text.isascii() or not text.isdigit() or len(text) > 6:
        raise argparse.ArgumentTypeError(f"expected a whole number, found {text}")
    return int(text)


def _node_name(text: str) -> str:
    """A name that is also one of a file."""
    try:
        return file_name(text)
    except ContractError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
