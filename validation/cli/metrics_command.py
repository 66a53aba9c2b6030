"""The command metrics: write the node's health where node_exporter's textfile collector finds it."""

from __future__ import annotations

import contextlib
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

from validation.checks.node import Node
from validation.cli.commands import STDIN, read_expectation
from validation.metrics.node_metrics import LAST_SUCCESS, collect
from validation.model.plans import PLANS
from validation.processes import files
from validation.verdict.judge import EXIT_PASS

if TYPE_CHECKING:
    import argparse

#: More than the metrics of any node.
MOST_BYTES = 1 << 20


def metrics(options: argparse.Namespace) -> int:
    """Look at this node and write its metrics; also where it could not be looked at."""
    started = time.monotonic()
    expected = read_expectation(options.expect)
    with contextlib.closing(Node(PLANS["quick"], expected)) as node:
        said = collect(node, maintenance=bool(options.maintenance and options.maintenance.exists()))
        looked_at = node.probe_failure is None
    said.set("temper_metrics_interval_seconds", options.interval)
    said.set("temper_metrics_duration_seconds", round(time.monotonic() - started, 3))
    said.set(LAST_SUCCESS, round(time.time(), 3) if looked_at else _last_success(options.output))
    if options.output == STDIN:
        print(said.text(), end="")
    else:
        files.write_atomically(options.output, said.text())
    return EXIT_PASS


def _last_success(path: Path) -> float | None:
    """Return what the file of an earlier run says; None where there is none, or another file in its place."""
    try:
        with files.open_plain(path) as file:
            text = file.read(MOST_BYTES).decode(errors="replace")
    except OSError:
        return None
    found = re.search(rf"^{LAST_SUCCESS} ([0-9]{{1,12}}(?:\.[0-9]{{1,9}})?)$", text, re.MULTILINE)
    return float(found[1]) if found else None
