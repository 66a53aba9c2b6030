"""The command `fabric`: take part in a collective between nodes."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from validation.checks.node import Node
from validation.cli.commands import read
from validation.fabric.groups import Order
from validation.fabric.measure import run_part
from validation.model.contract import dumps, loads
from validation.model.expectations import Expectation
from validation.model.plans import PLANS
from validation.model.usage import UsageError
from validation.verdict.judge import EXIT_PASS

if TYPE_CHECKING:
    import argparse


def take_part(options: argparse.Namespace) -> int:
    """Take part in a collective between nodes."""
    order = loads(Order, read(Path(options.order)))
    if order.plan not in PLANS or order.node not in {member.name for member in order.group}:
        raise UsageError(f"the order names plan {order.plan} and node {order.node}; one of them is unknown")
    with contextlib.closing(Node(PLANS[order.plan], Expectation())) as node:
        print(dumps(run_part(order, node)), end="")
    return EXIT_PASS
