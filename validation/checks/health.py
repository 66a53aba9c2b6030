"""Health: what the node says of its GPUs while nothing runs, against what it should be.

Needs no torch, changes nothing.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

from validation.checks import driver_health
from validation.checks.check import Check, Scope, not_run
from validation.checks.cost import IdleNode, Step
from validation.checks.measured import HW_CAUSES, HW_SLOWDOWN, SLOWDOWNS, UNEXPLAINED, result
from validation.model.contract import Finding, State
from validation.model.expectations import ANY_MODEL
from validation.probes.nvidia_smi import FULL_SPEED_STATES, LOST, Gpu, NvidiaSmiError, Report
from validation.probes.nvlink import Links

if TYPE_CHECKING:
    from collections.abc import Iterator

    from validation.checks.node import Node
    from validation.model.contract import TestResult

#: More than the driver and its daemons take of an idle GPU.
IDLE_MEMORY_MIB = 2048
#: Product lines that come with ECC off, where they have it.
WORKSTATION = re.compile("GeForce|RTX|Quadro|TITAN")


class Health(Check):
    """Nothing runs. What the node says of its GPUs, against what is expected.

    GPU count and model; driver, its libraries and fabric manager of one version; a fabric manager that runs;
    uncorrectable memory errors, row remapping; Xid errors, and fatal SXid errors of NVSwitches, in the kernel
    log since the driver was loaded, with NVIDIA's recommended action (a log that cannot be read is degraded);
    values that a GPU does not answer; thermal and power slowdowns, power limit; PCIe link, NVLinks and
    fabric; ECC, application clock and persistence mode; other users of the GPUs and of their memory.
    """

    id = "health"
    title = "GPUs, driver, links and error counters"
    place = 10
    scope = Scope.EACH_GPU
    passes = "nothing is found"
    method = 2
    proves_a_gpu = True

    def cost(self, idle: IdleNode) -> Iterator[Step]:
        """How long it takes."""
        yield Step("nvidia-smi", idle.nvidia_smi, 2)

    def perform(self, node: Node) -> TestResult:
        """Look at this node."""
        if node.probe_failure:
            return result(self, [node.probe_failure])
        if reason := why_nothing_to_check(node):
            return dataclasses.replace(not_run(self, reason), details=_facts(node))
        return result(self, findings=examine(node), details=_facts(node))


def why_nothing_to_check(node: Node) -> str:
    """Without an expectation, a machine without GPU or driver is not ill: there is nothing to check."""
    if node.expectation.gpus is not None:
        return ""
    if not node.pci_gpus and isinstance(node.smi, NvidiaSmiError):
        return "no NVIDIA GPU on the PCI bus"
    if isinstance(node.smi, NvidiaSmiError) and node.smi.kind in {"missing", "no-driver"}:
        return str(node.smi)
    return ""


def examine(node: Node) -> Iterator[Finding]:
    """Everything that is not as it should be."""
    yield from _gpu_count(node)
    yield from driver_health.xid_errors(node)
    if isinstance(node.smi, NvidiaSmiError):
        if node.pci_gpus or node.expectation.gpu_count:
            yield driver_health.failure(node, node.smi)
        return
    yield from driver_health.version(node, node.smi)
    yield from driver_health.parts(node, node.smi)
    yield from _nvlink(node, node.smi)
    for gpu in node.smi.gpus:
        yield from _model(node, gpu)
        yield from _unanswered(gpu)
        yield from _memory(gpu)
        yield from _clocks(gpu)
        yield from _link(node, gpu)
        yield from _fabric(node, gpu)
        yield from _use(gpu)
        yield from _power_limit(node, gpu)


def _gpu_count(node: Node) -> Iterator[Finding]:
    expected, found = node.expectation.gpu_count, len(node.pci_gpus)
    if expected is not None and found != expected:
        yield Finding(
            "gpu-count",
            State.FAIL,
            f"{found} NVIDIA GPUs on the PCI bus, expected {expected}",
            "power-cycle the node; if one stays away, check its slot and power"
            if found < expected
            else "correct what is expected of this node",
        )
    driven = len(node.smi.gpus) if isinstance(node.smi, Report) else found
    if node.granted and driven == node.granted.gpus < found:
        yield Finding(
            "gpu-not-driven",
            State.DEGRADED,
            f"only {driven} of the {found} GPUs on the PCI bus can be looked at: "
            f"{node.granted.variable} gives this process no more",
            "validate outside of this container or job, where all GPUs of the node can be seen",
        )
    elif driven != found:
        yield Finding(
            "gpu-not-driven",
            State.FAIL,
            f"the driver drives {driven} of the {found} GPUs on the PCI bus",
            "look into the kernel log for the driver's reason",
        )


def _nvlink(node: Node, report: Report) -> Iterator[Finding]:
    """On NVSwitches every link is used; with bridges, GPUs of one node have equally many.

    A GPU of which nvidia-smi shows no link at all has none that is up.
    """
    if isinstance(node.nvlinks, NvidiaSmiError):
        if node.on_switches:
            yield Finding(
                "nvlink-unknown",
                State.DEGRADED,
                f"the NVLinks of this node with NVSwitches cannot be looked at: {node.nvlinks}",
                "run nvidia-smi nvlink --status on the node",
            )
        return
    most = max((links.up for links in node.nvlinks.values()), default=0)
    for gpu in report.gpus:
        index, links = gpu.index, node.nvlinks.get(gpu.index, Links(0, ()))
        if node.on_switches and (links.down or not links.up):
            which = f" ({', '.join(map(str, links.down))})" if links.down else ""
            count = f"{len(links.down)} of {links.up + len(links.down)}" if links.down else "all"
            yield Finding(
                "nvlink-down",
                State.FAIL,
                f"GPU {index}: {count} NVLinks are down{which}",
                "reset all GPUs of the node together; if links stay down, have GPU and baseboard looked at",
                index,
            )
        elif links.up < most:
            yield Finding(
                "nvlink-fewer",
                State.DEGRADED,
                f"GPU {index}: {links.up} NVLinks are up, another GPU of this node has {most}",
                "check that bridges are seated, if the node is not built like this",
                index,
            )


def _power_limit(node: Node, gpu: Gpu) -> Iterator[Finding]:
    wanted = node.expectation.power_limit_w or gpu.power_limit_default_w
    if gpu.power_limit_w and wanted and gpu.power_limit_w < wanted - 1:
        yield Finding(
            "power-limit-low",
            State.DEGRADED,
            f"GPU {gpu.index}: its power limit is {gpu.power_limit_w:.0f} W, expected {wanted:.0f} W",
            "set it, with gpu_settings_power_limit_w, or find out who lowered it",
            gpu.index,
        )


def _model(node: Node, gpu: Gpu) -> Iterator[Finding]:
    if node.expectation.gpus is None:
        return
    model = node.expectation.references.model_of(gpu.pci_id)
    # One that no table knows is expected by its PCI id.
    unknown = {gpus.name for gpus in node.expectation.gpus}
    expected = unknown & {ANY_MODEL, f"10de:{gpu.pci_id}"}
    if model is None and node.expectation.references.models and not expected:
        names = ", ".join(f"{gpus.count} x {gpus.name}" for gpus in node.expectation.gpus)
        yield Finding(
            "gpu-model",
            State.FAIL,
            f"GPU {gpu.index} is {gpu.name} (PCI id 10de:{gpu.pci_id}), expected {names}",
            "correct what is expected of this node, or have the GPU replaced",
            gpu.index,
        )


def _unanswered(gpu: Gpu) -> Iterator[Finding]:
    """A value that cannot be read may hide any fault."""
    if gpu.unanswered:
        lost = any(text.endswith(tuple(LOST)) for text in gpu.unanswered)
        more = f" and {len(gpu.unanswered) - 3} more" if len(gpu.unanswered) > 3 else ""
        yield Finding(
            "gpu-unanswered",
            State.FAIL if lost else State.DEGRADED,
            f"GPU {gpu.index} does not answer the driver ({', '.join(gpu.unanswered[:3])}{more})",
            "reset the GPU or reboot the node; if it happens again, have the GPU looked at",
            gpu.index,
        )


def _memory(gpu: Gpu) -> Iterator[Finding]:
    if gpu.ecc is False and not WORKSTATION.search(gpu.name):
        yield Finding(
            "ecc-off",
            State.DEGRADED,
            f"GPU {gpu.index}: ECC is off, so memory errors are neither corrected nor counted",
            "switch it on (nvidia-smi --ecc-config=1) and reset the GPU",
            gpu.index,
        )
    if gpu.ecc_uncorrected_volatile:
        yield Finding(
            "ecc-uncorrected",
            State.FAIL,
            f"GPU {gpu.index} has had {gpu.ecc_uncorrected_volatile} uncorrectable memory errors "
            "since the driver was loaded",
            "drain the node and reset the GPU; if errors come back, have it replaced",
            gpu.index,
        )
    if gpu.row_remap_failure:
        yield Finding(
            "row-remap-failure",
            State.FAIL,
            f"GPU {gpu.index} could not remap a faulty memory row: its spare rows are used up",
            "have the GPU replaced",
            gpu.index,
        )
    if gpu.row_remap_pending or gpu.page_retirement_pending:
        yield Finding(
            "memory-repair-pending",
            State.DEGRADED,
            f"GPU {gpu.index} has a memory repair pending, which takes effect at the next reset",
            "reset the GPU or reboot the node at the next opportunity",
            gpu.index,
        )
    if gpu.recovery_action not in {None, "None"}:
        yield Finding(
            "recovery-action",
            State.FAIL,
            f"the driver asks for a recovery action for GPU {gpu.index}: {gpu.recovery_action}",
            "carry it out, then validate again",
            gpu.index,
        )


def _clocks(gpu: Gpu) -> Iterator[Finding]:
    clock, default = gpu.application_clock_mhz, gpu.application_clock_default_mhz
    if clock and default and clock < default:
        yield Finding(
            "application-clock-low",
            State.DEGRADED,
            f"GPU {gpu.index}: its application clock is {clock} MHz, the default is {default} MHz",
            "give it back (nvidia-smi --reset-applications-clocks), or find out who lowered it",
            gpu.index,
        )
    for reason, (state, text, action) in SLOWDOWNS.items():
        if reason in gpu.event_reasons:
            yield Finding(reason.replace("_", "-"), state, f"GPU {gpu.index}: {text}", action, gpu.index)
    if HW_SLOWDOWN in gpu.event_reasons and not {*HW_CAUSES} & {*gpu.event_reasons}:
        state, text, action = UNEXPLAINED
        yield Finding("hw-slowdown", state, f"GPU {gpu.index}: {text}", action, gpu.index)


def _link(node: Node, gpu: Gpu) -> Iterator[Finding]:
    """An idle GPU may lower its link to generation 1; one at full speed may not, and lanes never go.

    A superchip's link is idle at full speed, too: it copies over NVLink-C2C, so a lost lane slows nothing.
    """
    superchip = node.expectation.references.is_superchip(gpu.pci_id)
    generation, width = gpu.pcie_generation, gpu.pcie_width
    generation_max, width_max = gpu.pcie_generation_max, gpu.pcie_width_max
    at_full_speed = gpu.performance_state in FULL_SPEED_STATES and not superchip
    slow = at_full_speed and generation and generation_max and generation < generation_max
    narrow = width and width_max and width < width_max
    if slow or narrow:
        yield Finding(
            "pcie-link-down-trained",
            State.DEGRADED if superchip else State.FAIL,
            f"GPU {gpu.index}: PCIe link at generation {generation} x{width}, it can do generation "
            f"{generation_max} x{width_max}",
            "reseat the GPU or its riser; look for AER errors in the kernel log",
            gpu.index,
        )
    model = node.expectation.references.model_of(gpu.pci_id)
    if model is None or "pcie" not in model or generation_max is None or width_max is None:
        return
    link = model["pcie"]
    if generation_max < link["generation"] or width_max < link["width"]:
        yield Finding(
            "pcie-slot-limits",
            State.DEGRADED,
            f"GPU {gpu.index}: its slot offers PCIe generation {generation_max} x{width_max}, "
            f"{model['name']} can do generation {link['generation']} x{link['width']}",
            "use another slot, or check the firmware's PCIe settings, if this is not by design",
            gpu.index,
        )


def _fabric(node: Node, gpu: Gpu) -> Iterator[Finding]:
    """GPUs on NVSwitches must have registered with the fabric, or CUDA cannot start."""
    if gpu.fabric_state is None or not node.on_switches:
        return
    if gpu.fabric_state != "Completed" or gpu.fabric_status not in {None, "Success"}:
        yield Finding(
            "fabric-not-ready",
            State.FAIL,
            f"GPU {gpu.index} is not part of the NVLink fabric: state {gpu.fabric_state}, "
            f"status {gpu.fabric_status or 'none'}",
            "check that nvidia-fabricmanager runs and has exactly the driver's version",
            gpu.index,
        )


def _use(gpu: Gpu) -> Iterator[Finding]:
    if gpu.persistence is False:
        yield Finding(
            "persistence-off",
            State.DEGRADED,
            f"GPU {gpu.index}: persistence mode is off: settings are lost, every start waits for the driver",
            "enable nvidia-persistenced",
            gpu.index,
        )
    if gpu.processes:
        yield Finding(
            "gpu-busy",
            State.DEGRADED,
            f"GPU {gpu.index} is in use by {', '.join(gpu.processes)}: numbers will be too low",
            "drain the node, then validate again",
            gpu.index,
        )
    elif (gpu.memory_used_mib or 0) > IDLE_MEMORY_MIB and not gpu.mig:
        yield Finding(
            "gpu-memory-taken",
            State.DEGRADED,
            f"GPU {gpu.index}: {gpu.memory_used_mib} MiB of its memory are in use, by nobody that can be "
            "seen from here: numbers may be too low",
            "look for its user outside of this container (fuser -v /dev/nvidia*); reset the GPU without one",
            gpu.index,
        )


def _xids(node: Node) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for event in node.kernel_log.events:
        counts[event.name] += event.count
    return dict(counts)


def _facts(node: Node) -> dict[str, Any]:
    """What was found, for the reader of the result."""
    if isinstance(node.smi, NvidiaSmiError):
        return {
            "nvidia_smi": str(node.smi),
            "pci_gpus": len(node.pci_gpus),
            "loaded_driver": node.loaded_driver,
        }
    nvlinks = {} if isinstance(node.nvlinks, NvidiaSmiError) else node.nvlinks
    return {
        "driver_version": node.smi.driver_version,
        "pci_gpus": len(node.pci_gpus),
        "nvswitch": node.facts.nvswitch,
        "driver_libraries": node.facts.driver_libraries,
        "fabric_manager": node.facts.fabric_manager,
        "xids": _xids(node),
        **({"kernel_log": node.kernel_log.unreadable} if node.kernel_log.unreadable else {}),
        "gpus": [
            {
                "device": gpu.index,
                "performance_state": gpu.performance_state,
                "pcie": f"generation {gpu.pcie_generation} x{gpu.pcie_width}",
                "event_reasons": list(gpu.event_reasons),
                "ecc_uncorrected_volatile": gpu.ecc_uncorrected_volatile,
                "fabric_state": gpu.fabric_state,
                "persistence": gpu.persistence,
                "power_limit_w": gpu.power_limit_w,
                "nvlinks_up": nvlinks[gpu.index].up if gpu.index in nvlinks else None,
                "mig": gpu.mig,
            }
            for gpu in node.smi.gpus
        ],
    }
