"""MTU: do packets as large as an interface allows get through, or do they vanish on the way?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from validation.checks.check import BEYOND_QUICK, Check, CostStep, IdleNode, Need, Scope
from validation.checks.launch import without_torch
from validation.checks.node import Node
from validation.findings.catalogue import finding
from validation.model.contract import Finding, Measured, TestResult, encode
from validation.model.not_run import NotRunError
from validation.probes import mtu
from validation.probes.mtu import Way
from validation.processes.child import Request
from validation.processes.command import CommandError


class MtuPasses(Check):
    """Packets of each interface's whole MTU, to neighbours that answer small ones.

    Up to four neighbours of each interface with hardware, of those that the kernel knows; two packets of each
    size with ping, which nobody may take apart. Interfaces to which no neighbour answers are left out.
    """

    id = "network_mtu"
    title = "whether packets of the whole MTU get through"
    place = 60
    scope = Scope.NODE
    plans = BEYOND_QUICK
    needs = (Need("ping, and a neighbour that answers it"),)
    passes = "on each interface, a neighbour that answers small packets answers those of the MTU"

    def cost(self, _idle: IdleNode) -> Iterator[CostStep]:
        """Yield how long it takes."""
        yield CostStep("ask neighbours", 8.0)

    def perform(self, node: Node) -> TestResult:
        """Ask the neighbours of this node."""
        return without_torch(self, node, "the MTU of interfaces")


def measure(_request: Request, stage: Callable[[str], None]) -> Measured:
    """In a child: ask neighbours. Raises NotRunError where nobody can be asked."""
    stage("sending packets to the neighbours of each interface")
    try:
        ways = mtu.read()
    except FileNotFoundError as error:
        raise NotRunError(f"{error.filename} is not installed") from error
    except CommandError as error:
        raise NotRunError(f"a program that asks gave {error}") from error
    if not any(way.answering for way in ways):
        raise NotRunError("no neighbour on an interface with hardware is known to answer")
    return Measured(findings=tuple(examine(ways)), details={"interfaces": [encode(way) for way in ways]})


def examine(ways: Iterable[Way]) -> Iterator[Finding]:
    """Interfaces on which nothing of the whole MTU gets through."""
    for way in ways:
        if way.answering and not way.passing:
            yield finding(
                "mtu-blocked", interface=way.interface, mtu=way.mtu, neighbours=", ".join(way.answering)
            )
