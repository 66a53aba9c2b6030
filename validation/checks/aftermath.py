"""Health once more, after the load: what came while the node was tested.

Many faults show only under load. A test whose process came back says nothing of an Xid that ended no program,
of a memory row that waits to be remapped, or of a link that went down behind it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from validation.checks import health
from validation.checks.check import GPU, Check, CostStep, IdleNode, Scope, not_run
from validation.checks.measured import result
from validation.checks.node import Node
from validation.findings.catalogue import catalogue, finding
from validation.model.contract import Finding, TestResult
from validation.model.plans import PLANS
from validation.probes.nvidia_smi import Report

#: Facts of a finding that was there before and that change when more comes: its text is compared, too.
CHANGING = {"count", "requested"}
LINK = "pcie-link-down-trained"
#: What load leaves for a moment: heat, clocks that change, a link that is about to save power, a context that
#: is being torn down. (nvml.h: the plain slowdown "may be also reported during PState or clock change".)
PASSING = {"sw-thermal-slowdown", "temperature-high", "hw-slowdown", LINK, "gpu-busy", "gpu-memory-taken"}


class HealthAfter(Check):
    """What `health` finds now and did not find before the load.

    Xid and SXid errors, memory errors, links, a GPU that went away.
    """

    id = "health_after"
    title = "faults that came while the node was tested"
    plans = tuple(PLANS)
    place = 900
    scope = Scope.EACH_GPU
    needs = (GPU,)
    passes = "nothing came"

    def cost(self, idle: IdleNode) -> Iterator[CostStep]:
        """Yield how long it takes."""
        yield CostStep("nvidia-smi", idle.nvidia_smi, 2)

    def perform(self, node: Node) -> TestResult:
        """Look at this node, after all that loads it."""
        if reason := health.why_nothing_to_check(node):
            return not_run(self, reason)
        now = dataclasses.replace(node)  # looked at anew
        if now.probe_failure:
            return result(self, [now.probe_failure])
        before, narrowed = {_key(one) for one in health.examine(node)}, _narrowed(node, now)
        came = (
            one
            for one in health.examine(now)
            if (one.code == LINK and one.device in narrowed)
            or (one.code not in PASSING and _key(one) not in before)
        )
        return result(self, findings=[*_vanished(node, now), *came])


def _vanished(node: Node, now: Node) -> Iterator[Finding]:
    """Yield the GPUs that nvidia-smi has listed and lists no more: their number alone would not say which."""
    if isinstance(node.smi, Report) and isinstance(now.smi, Report):
        listed = {gpu.pci_address for gpu in now.smi.gpus}
        for gpu in node.smi.gpus:
            if gpu.pci_address not in listed:
                yield finding("gpu-vanished", gpu=gpu.index)


def _narrowed(node: Node, now: Node) -> set[int]:
    """Return the GPUs whose PCIe link has lost lanes: saving power never takes any."""
    if not isinstance(now.smi, Report):
        return set()
    before = {gpu.uuid: gpu.pcie_width for gpu in node.smi.gpus} if isinstance(node.smi, Report) else {}
    return {
        gpu.index
        for gpu in now.smi.gpus
        if gpu.pcie_width and gpu.pcie_width < (before.get(gpu.uuid) or gpu.pcie_width_max or 0)
    }


def _key(one: Finding) -> tuple[str, int | None, str]:
    changes = any(case.facts & CHANGING for case in catalogue()[one.code].cases.values())
    return one.code, one.device, one.text if changes else ""
