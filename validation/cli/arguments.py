"""The command line's options, and the forms that their values must have."""

from __future__ import annotations

import argparse
import math
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from validation.autotune.knobs import KINDS
from validation.checks.registry import TESTS
from validation.cli import commands
from validation.jobs import batch
from validation.model.contract import ContractError
from validation.model.expectations import file_name
from validation.model.plans import MOST_HOURS, PLANS

JOURNAL = Path("/var/lib/temper/autotune-journal.json")
FAIL_ON_DEGRADED = "exit status 1 also for a degraded node"


def _number(expected: str, most: float) -> Callable[[str], float]:
    """Return a reader of numbers above 0 and up to `most`, but never infinite; `expected` says so."""

    def read(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not (0 < number <= most and math.isfinite(number)):
            raise argparse.ArgumentTypeError(f"expected {expected}, found {text}")
        return number

    return read


def parser() -> argparse.ArgumentParser:
    """Make the parser; each command carries its function as `function`."""
    whole = argparse.ArgumentParser(
        prog="validation",
        description="Measure this node.",
        epilog="Exit status: 0 passed, 1 a GPU or a node failed, 2 something required could not run.",
    )
    commands_of = whole.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, function: Callable[[argparse.Namespace], int], purpose: str) -> _Command:
        found = commands_of.add_parser(name, help=purpose)
        found.set_defaults(function=function)
        return _Command(found)

    run = command("run", commands.run, "run a plan's tests on this node")
    run.option("--plan", "how deep (default: quick)", choices=PLANS, default="quick")
    run.option(
        "--test",
        "run only this test; may be repeated",
        "TEST",
        action="append",
        choices=TESTS,
        dest="tests",
    )
    run.path("--expect", "what this node must be, as JSON; - reads standard input")
    run.option("--gpus", "this machine must have so many GPUs, of whatever model", "N", type=_count)
    run.path("--output", "write the result here as JSON; - writes it to standard output")
    hours = _number(f"hours, above 0 and up to {MOST_HOURS}", MOST_HOURS)
    run.option("--hours", "repeat the tests for so long, and stop at the first fault", "N", type=hours)
    run.path("--state", "keep rounds here, to go on after an interruption")
    run.path(
        "--storage",
        "measure reads of this file, or of a file of our own in this folder, beyond the quick plan also "
        "writes and checkpoints there; may be repeated",
        "PATH",
        action="append",
        default=[],
    )
    rate = _number("GB/s, a number above 0", math.inf)
    run.option("--storage-floor", "fail where a --storage reads more slowly", "GB/S", type=rate)
    run.path("--tensorflow", "also see whether the TensorFlow of this Python works", "PYTHON")
    run.flag("--graphics", "also see whether EGL draws on every GPU")
    run.path("--traces", "profile training steps, and write their Chrome traces here", "DIR")
    run.option(
        "--node",
        "the node's name in the result (default: its host name)",
        type=_node_name,
        default=socket.gethostname(),
    )
    run.flag("--fail-on-degraded", FAIL_ON_DEGRADED)

    exporting = command(
        "metrics", commands.metrics, "write the health of this node for Prometheus; measures nothing"
    )
    exporting.path("--expect", "what this node must be, as JSON; - reads standard input")
    seconds = _number("seconds, a number above 0", math.inf)
    exporting.option("--interval", "how often this runs, for alerts on silence", "SECONDS", type=seconds)
    exporting.path("--maintenance", "the node is in maintenance while this file exists")
    exporting.path(
        "--output", "the file for node_exporter's textfile collector; - is standard output", required=True
    )

    command("list", commands.list_tests, "say which tests and plans there are")

    explaining = command("explain", commands.explain, "say what a finding means and what to do about it")
    explaining.option("code", "its code; without one, all are listed", "FINDING", nargs="?")

    tuning = command("autotune", commands.autotune, "try settings in pairs of trials on this node")
    tuning.option(
        "--knob",
        "try only this setting; may be repeated",
        "KNOB",
        action="append",
        choices=KINDS,
        dest="knobs",
    )
    tuning.path("--storage", "also tune reads of this file, or of a file of our own in this folder", "PATH")
    minutes = _number("minutes, a number above 0", math.inf)
    tuning.option("--minutes", "have an answer by then, of what is proven until then", "N", type=minutes)
    tuning.path("--output", "write the evidence here as JSON; - writes it to standard output")
    tuning.path("--journal", f"note changes of the node here (default: {JOURNAL})", default=JOURNAL)
    tuning.option("--seed", "repeat the order of the trials of another run", "N", type=_count)
    tuning.option("--order", "tune together with these nodes, as JSON; - reads standard input", "FILE")
    tuning.flag("--restore", "only restore what a run that was ended has left changed")
    tuning.option(
        "--node",
        "the node's name in the evidence (default: its host name)",
        type=_node_name,
        default=socket.gethostname(),
    )

    batching = command("batch", commands.batch, "search the largest and the fastest batch of your own step")
    batching.option(
        "step",
        "a function that makes a step for a batch: train.py:make_step, or module:make_step",
        "FUNCTION",
    )
    batching.option("--device", "cpu, cuda or cuda:N (default: cuda)", default="cuda")
    batching.option("--most", "try no larger batch", "N", type=_count, default=batch.MOST_SAMPLES)
    gigabytes = _number("GB, a number above 0", math.inf)
    batching.option(
        "--memory",
        "what the step may take (default: 90 %% of a GPU's free memory, half of a CPU's)",
        "GB",
        type=gigabytes,
    )
    batching.option(
        "--minutes",
        f"then begin no other batch (default: {batch.MINUTES:g})",
        "N",
        type=minutes,
        default=batch.MINUTES,
    )

    taking_part = command("fabric", commands.take_part, "take part in a collective between nodes")
    taking_part.option("--order", "what to do, as JSON; - reads standard input", "FILE", required=True)

    building = command("build", commands.build, "write the payload as one file that Python runs")
    building.path("--output", None, required=True)
    return whole


class _Command:
    """A command whose options are added in one way."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self._parser = parser

    def option(self, name: str, purpose: str | None, metavar: str | None = None, **settings: Any) -> None:
        """Add an option or argument, as argparse's add_argument takes it."""
        self._parser.add_argument(name, help=purpose, metavar=metavar, **settings)

    def path(self, name: str, purpose: str | None, metavar: str = "FILE", **settings: Any) -> None:
        """Add one whose value is a path."""
        self.option(name, purpose, metavar, type=Path, **settings)

    def flag(self, name: str, purpose: str) -> None:
        """Add one without a value."""
        self._parser.add_argument(name, help=purpose, action="store_true")


def _count(text: str) -> int:
    """Return a number of things, of which nobody has a million."""
    if not text.isascii() or not text.isdigit() or len(text) > 6:
        raise argparse.ArgumentTypeError(f"expected a whole number, found {text}")
    return int(text)


def _node_name(text: str) -> str:
    """Return a name that is also one of a file."""
    try:
        return file_name(text)
    except ContractError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
