"""Drives: what NVMe drives say of their own health. Nothing is installed for it, and nothing is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from validation.checks.check import BEYOND_QUICK, Check, CostStep, IdleNode, Need, Scope
from validation.checks.launch import without_torch
from validation.checks.node import Node
from validation.findings.catalogue import finding
from validation.model.contract import Finding, Measured, TestResult, encode
from validation.model.not_run import NotRunError
from validation.probes import drives
from validation.probes.drives import Drives
from validation.processes.child import Request

#: What data has to be taken away from: reliability, media, backup of memory, persistent memory.
FAILING = 0x04 | 0x08 | 0x10 | 0x20
#: Of its rated life (NVM Express base specification 2.0: may exceed 100).
WORN_PERCENT = 100


class DriveHealth(Check):
    """Each NVMe drive's own critical warnings and wear (SMART), and drives that the kernel has given up.

    By nvme-cli or smartctl, whichever is installed; none is installed for it. Drives that are reached over a
    network are left out.
    """

    id = "drive_health"
    title = "what NVMe drives say of their health"
    place = 50
    scope = Scope.NODE
    plans = BEYOND_QUICK
    needs = (Need("an NVMe drive, nvme-cli or smartmontools, root"),)
    passes = "no drive warns, and none is worn out or dead"

    def cost(self, _idle: IdleNode) -> Iterator[CostStep]:
        """Yield how long it takes."""
        yield CostStep("ask the drives", 1.0)

    def perform(self, node: Node) -> TestResult:
        """Ask the drives of this node."""
        return without_torch(self, node, "the health of drives")


def measure(_request: Request, stage: Callable[[str], None]) -> Measured:
    """In a child: ask every drive. Raises NotRunError where one does not answer and no other warns."""
    stage("asking the NVMe drives for their health")
    found = drives.read()
    findings = tuple(examine(found))
    # What the others say counts; that all are well, nobody knows.
    if not findings and (found.unread or not found.read):
        reasons = "; ".join(f"{name}: {reason}" for name, reason in found.unread.items())
        raise NotRunError(reasons or "this node has no NVMe drive")
    return Measured(findings=findings, details=encode(found))


def examine(found: Drives) -> Iterator[Finding]:
    """Yield what is wrong with these drives."""
    for name, model in found.dead.items():
        yield finding("drive-dead", drive=name, model=model)
    for drive in found.read:
        reasons = "; ".join(words for bit, words in drives.WARNINGS.items() if drive.critical_warning & bit)
        if drive.critical_warning & FAILING:
            yield finding("drive-warning", "failing", drive=drive.name, model=drive.model, reasons=reasons)
        elif drive.critical_warning:
            reasons = reasons or f"critical warning {drive.critical_warning:#x}"
            yield finding("drive-warning", "warns", drive=drive.name, model=drive.model, reasons=reasons)
        if drive.used_percent >= WORN_PERCENT:
            yield finding("drive-worn", drive=drive.name, model=drive.model, used_percent=drive.used_percent)
