"""Health: what the node says of its GPUs while nothing runs, against what it should be.

Needs no torch, changes nothing.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from validation.checks import driver_health, pcie_link
from validation.checks.check import Check, CostStep, IdleNode, Scope, not_run
from validation.checks.measured import HW_CAUSES, HW_SLOWDOWN, SLOWDOWNS, result
from validation.checks.node import Node
from validation.findings.catalogue import finding
from validation.model.contract import Finding, State, TestResult
from validation.model.expectations import ANY_MODEL
from validation.model.plans import PLANS
from validation.model.printable import first_of
from validation.probes.nvidia_smi import Gpu, NvidiaSmiError, Report, Unanswered
from validation.probes.nvlink import Links
from validation.probes.report_values import FAULTS, LOST, WITHHELD
from validation.probes.topology import port_of

#: More than the driver and its daemons take of an idle GPU.
IDLE_MEMORY_MIB = 2048
#: How many of a list a sentence names: a busy node has hundreds of processes.
MOST_NAMES = 3
#: Product lines that come with ECC off, where they have it, as pro-6000-maxq-blackwell-v13.xml shows in
#: https://github.com/influxdata/telegraf/tree/74bae14c/plugins/inputs/nvidia_smi/testdata; and the edition
#: of them for servers, which is taken to come with ECC on (unverified: no published report shows one).
WORKSTATION, FOR_SERVERS = re.compile("GeForce|RTX|Quadro|TITAN"), "Server Edition"


class Health(Check):
    """Nothing runs. What the node says of its GPUs, against what is expected.

    GPU count and model; driver, its libraries and fabric manager of one version; a fabric manager that runs;
    uncorrectable memory errors, row remapping and other repairs; Xid errors, fatal SXid errors of NVSwitches,
    and GPUs that fell off the bus, in the kernel log since the driver was loaded, with NVIDIA's recommended
    action (a log that cannot be read is degraded); values that a GPU does not answer; temperatures,
    thermal and power slowdowns, power limit; PCIe link, against what card and port both can do, NVLinks,
    NVLink-C2C and fabric; ECC, application clock and persistence mode; a virtual GPU's licence; other users
    of the GPUs and of their memory.
    """

    id = "health"
    title = "GPUs, driver, links and error counters"
    plans = tuple(PLANS)
    place = 10
    scope = Scope.EACH_GPU
    passes = "nothing is found"
    method = 2
    proves_a_gpu = True

    def cost(self, idle: IdleNode) -> Iterator[CostStep]:
        """Yield how long it takes."""
        yield CostStep("nvidia-smi", idle.nvidia_smi, 2)

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
    yield from driver_health.recovery_actions(node)
    if isinstance(node.smi, NvidiaSmiError):
        if node.pci_gpus or node.expectation.gpu_count:
            yield driver_health.failure(node, node.smi)
        return
    yield from driver_health.version(node, node.smi)
    yield from driver_health.parts(node, node.smi)
    yield from driver_health.warning(node.smi)
    yield from _nvlink(node, node.smi)
    yield from _c2c(node, node.smi)
    for gpu in node.smi.gpus:
        yield from _model(node, gpu)
        yield from _unanswered(gpu)
        yield from _memory(gpu)
        yield from _clocks(node, gpu)
        yield from pcie_link.examine(node, gpu)
        yield from _fabric(gpu)
        yield from _use(gpu)
        yield from _power_limit(node, gpu)


def _gpu_count(node: Node) -> Iterator[Finding]:
    expected, found = node.expectation.gpu_count, len(node.pci_gpus)
    if expected is not None and found < expected and (given := node.newly_given):
        said = ", ".join(str(gpu) for gpu in given)
        yield finding("gpu-count", "given", found=found, expected=expected, given=said)
    elif expected is not None and found != expected:
        yield finding("gpu-count", "fewer" if found < expected else "more", found=found, expected=expected)
    driven = len(node.smi.gpus) if isinstance(node.smi, Report) else found
    if node.granted and driven == node.granted.gpus < found:
        yield finding("gpu-not-driven", "granted", driven=driven, found=found, variable=node.granted.variable)
    elif driven < found:
        yield finding("gpu-not-driven", "refused", driven=driven, found=found)
    elif driven > found > 0:
        # Where the bus has none at all, the GPU is on no bus: a system on a chip, or Windows' own Linux.
        yield finding("gpu-not-driven", "vanished", driven=driven, found=found)


def _nvlink(node: Node, report: Report) -> Iterator[Finding]:
    """On NVSwitches every link is used; with bridges, GPUs of one node and model have equally many.

    A GPU of which nvidia-smi shows no link at all has none that is up. Beside others that have some, that is
    a fault where its board has the links; on a card they need a bridge, which is optional.
    """
    if isinstance(node.nvlinks, NvidiaSmiError):
        if node.on_switches:
            yield finding("nvlink-unknown", reason=node.nvlinks)
        return
    found = {gpu.index: node.nvlinks.get(gpu.index, Links(0, ())) for gpu in report.gpus}
    for gpu in report.gpus:
        links = found[gpu.index]
        most = max(found[other.index].up for other in report.gpus if other.pci_id == gpu.pci_id)
        if gpu.mig:
            continue  # slices of a GPU use no NVLink
        if not links.up and not node.on_switches and not _links_on_board(node, gpu):
            # A bridge has two ends: where one of its GPUs has a link that is up, so has the other. The
            # details say how many are up.
            continue
        if (node.on_switches and links.down) or (not links.up and (most or node.on_switches)):
            yield (
                finding(
                    "nvlink-down",
                    "some",
                    gpu=gpu.index,
                    down=len(links.down),
                    links=links.up + len(links.down),
                    which=", ".join(map(str, links.down)),
                )
                if links.up
                else finding("nvlink-down", "all", gpu=gpu.index)
            )
        elif links.up < most:
            yield finding("nvlink-fewer", gpu=gpu.index, up=links.up, most=most)


def _c2c(node: Node, report: Report) -> Iterator[Finding]:
    """Yield a superchip whose NVLink-C2C is off: it copies over PCIe.

    GPUs without C2C say that it is off, too.

    The host of a virtual machine may keep it off for all GPUs.
    """
    on = {gpu.pci_id for gpu in report.gpus if gpu.c2c}
    for gpu in report.gpus:
        superchip = node.expectation.references.is_superchip(gpu.pci_id) and not gpu.guest
        if gpu.c2c is False and (superchip or gpu.pci_id in on):
            yield finding("c2c-off", gpu=gpu.index)


def _links_on_board(node: Node, gpu: Gpu) -> bool:
    """Return whether the board has the NVLinks of a GPU, so that it has some wherever its neighbours do."""
    form_factor = node.expectation.references.form_factor(gpu.pci_id)
    return "SXM" in gpu.name if form_factor is None else form_factor != "pcie"


def _power_limit(node: Node, gpu: Gpu) -> Iterator[Finding]:
    share = (node.expectation.power_limit_percent or 100) / 100
    wanted = node.expectation.power_limit_w or (gpu.power_limit_default_w or 0) * share
    if gpu.power_limit_w and wanted and gpu.power_limit_w < wanted - 1:
        yield finding("power-limit-low", gpu=gpu.index, limit_w=gpu.power_limit_w, expected_w=wanted)


def _model(node: Node, gpu: Gpu) -> Iterator[Finding]:
    if node.expectation.gpus is None:
        return
    model = node.expectation.references.model_of(gpu.pci_id)
    # One that no table knows is expected by its PCI id.
    unknown = {gpus.name for gpus in node.expectation.gpus}
    expected = unknown & {ANY_MODEL, f"10de:{gpu.pci_id}"}
    if model is None and node.expectation.references.models and not expected:
        names = ", ".join(f"{gpus.count} x {gpus.name}" for gpus in node.expectation.gpus)
        yield finding("gpu-model", gpu=gpu.index, name=gpu.name, pci_id=gpu.pci_id, expected=names)


def _unanswered(gpu: Gpu) -> Iterator[Finding]:
    """Yield each value that cannot be read, which may hide any fault; that it is withheld is none."""
    faults = [value for value in gpu.unanswered if value.error in FAULTS]
    if faults:
        # The worst first, because only some are named.
        faults.sort(key=lambda value: (value.error not in LOST, not value.is_vital))
        yield finding(
            "gpu-unanswered",
            "lost" if faults[0].error in LOST else "vital" if faults[0].is_vital else "values",
            gpu=gpu.index,
            values=first_of(faults, MOST_NAMES),
        )
    by_reason: dict[str, list[Unanswered]] = {}
    for value in gpu.unanswered:
        if value.error not in FAULTS:
            reason = next((why for why, errors in WITHHELD.items() if value.error in errors), "unknown")
            by_reason.setdefault(reason, []).append(value)
    for withheld, values in by_reason.items():
        yield finding("gpu-withheld", withheld, gpu=gpu.index, values=first_of(values, MOST_NAMES))


def _memory(gpu: Gpu) -> Iterator[Finding]:
    if not (WORKSTATION.search(gpu.name) and FOR_SERVERS not in gpu.name):
        if gpu.ecc is False:
            yield finding("ecc-off", "waits" if gpu.ecc_pending else "off", gpu=gpu.index)
        elif gpu.ecc and gpu.ecc_pending is False:
            yield finding("ecc-off", "pending", gpu=gpu.index)
    if gpu.ecc_uncorrected_volatile:
        yield finding("ecc-uncorrected", gpu=gpu.index, count=gpu.ecc_uncorrected_volatile)
    if gpu.row_remap_failure:
        yield finding("row-remap-failure", gpu=gpu.index)
    if gpu.memory_unrepairable:
        yield finding("memory-unrepairable", gpu=gpu.index)
    if gpu.sram_threshold_exceeded:
        yield finding("sram-threshold-exceeded", gpu=gpu.index)
    if gpu.row_remap_pending or gpu.page_retirement_pending or gpu.channel_repair_pending:
        yield finding("memory-repair-pending", gpu=gpu.index)
    if gpu.tpc_repair_pending:
        yield finding("tpc-repair-pending", gpu=gpu.index)


def _clocks(node: Node, gpu: Gpu) -> Iterator[Finding]:
    clock, default = gpu.application_clock_mhz, gpu.application_clock_default_mhz
    if clock and default and clock < default and not node.expectation.lower_clocks:
        yield finding("application-clock-low", gpu=gpu.index, clock_mhz=clock, default_mhz=default)
    if gpu.too_hot and not {*SLOWDOWNS, HW_SLOWDOWN} & {*gpu.event_reasons}:
        yield finding("temperature-high", gpu=gpu.index, sensors="; ".join(gpu.too_hot))
    for reason in SLOWDOWNS:
        if reason in gpu.event_reasons:
            yield finding(reason.replace("_", "-"), "idle", gpu=gpu.index)
    if HW_SLOWDOWN in gpu.event_reasons and not {*HW_CAUSES} & {*gpu.event_reasons}:
        yield finding("hw-slowdown", "idle", gpu=gpu.index)


def _fabric(gpu: Gpu) -> Iterator[Finding]:
    """GPUs of an NVLink fabric must have registered with it, or CUDA cannot start."""
    if gpu.fabric_state is not None and (
        gpu.fabric_state != "Completed" or gpu.fabric_status not in {None, "Success"}
    ):
        yield finding(
            "fabric-not-ready",
            gpu=gpu.index,
            fabric_state=gpu.fabric_state,
            fabric_status=gpu.fabric_status or "none",
        )
    health = gpu.fabric_health
    if health.broken or health.weak:
        yield finding(
            "fabric-unhealthy",
            gpu=gpu.index,
            state=State.FAIL if health.broken else State.DEGRADED,
            problems=", ".join(health.broken + health.weak),
        )


def _use(gpu: Gpu) -> Iterator[Finding]:
    if gpu.license_missing:
        yield finding("vgpu-unlicensed", gpu=gpu.index, status=gpu.license_missing)
    if gpu.persistence is False:
        yield finding("persistence-off", gpu=gpu.index)
    taken = (gpu.memory_used_mib or 0) > IDLE_MEMORY_MIB and not gpu.mig
    # What draws on a screen takes little, as a rule.
    if processes := gpu.processes or (gpu.graphics_processes if taken else ()):
        yield finding("gpu-busy", gpu=gpu.index, processes=first_of(processes, MOST_NAMES))
    elif taken:
        yield finding("gpu-memory-taken", gpu=gpu.index, used_mib=gpu.memory_used_mib)


def _xids(node: Node) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for event in node.kernel_log.events:
        counts[event.name] += event.count
    return dict(counts)


def _facts(node: Node) -> dict[str, Any]:
    """Return what was found, for the reader of the result."""
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
                "pcie_card": f"generation {gpu.pcie_generation_max} x{gpu.pcie_width_max}",
                "pcie_port_width": port.width if port else None,
                "event_reasons": list(gpu.event_reasons),
                "ecc_uncorrected_volatile": gpu.ecc_uncorrected_volatile,
                "fabric_state": gpu.fabric_state,
                "persistence": gpu.persistence,
                "power_limit_w": gpu.power_limit_w,
                "c2c": gpu.c2c,
                "nvlinks_up": nvlinks[gpu.index].up if gpu.index in nvlinks else None,
                "mig": gpu.mig,
            }
            for gpu in node.smi.gpus
            for port in [port_of(gpu, node.facts.pcie_ports)]
        ],
    }
