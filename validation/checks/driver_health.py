"""The driver's part of health: is it loaded, has all of it one version, what did it complain about."""

from __future__ import annotations

from collections.abc import Iterator

from validation.checks.node import Node
from validation.findings.catalogue import catalogue, finding, xid_code
from validation.model.contract import Finding
from validation.probes.kernel_log import RECOVERY, Event, Kind
from validation.probes.nvidia_smi import CORRUPT_INFOROM, NvidiaSmiError, Report

#: What a recovery action comes to, by a word in it: names of NVML (nvmlDeviceGpuRecoveryAction_t), words of
#: nvidia-smi and those of Xid 154 differ (Reset, GPU_RESET, GPU Reset Required, PF FLR; OS Reboot).
RECOVERIES = {"reboot": "reboot", "imex": "imex", "reset": "reset", "flr": "reset", "drain": "drain"}


def failure(node: Node, error: NvidiaSmiError) -> Finding:
    """Return why nvidia-smi cannot answer."""
    return finding(f"driver-{error.kind}", reason=error, loaded=node.loaded_driver or "none")


def version(node: Node, report: Report) -> Iterator[Finding]:
    """Yield a finding where another driver is loaded than expected."""
    expected = node.expectation.driver_version
    if expected and report.driver_version != expected:
        yield finding("driver-version", loaded=report.driver_version, expected=expected)


def parts(node: Node, report: Report) -> Iterator[Finding]:
    """Libraries and fabric manager must have exactly the driver's version."""
    for name, found in node.facts.driver_libraries.items():
        if found != report.driver_version:
            yield finding("library-version", library=name, version=found, driver=report.driver_version)
    fabric_manager = node.facts.fabric_manager
    if fabric_manager and fabric_manager != report.driver_version:
        yield finding("fabric-manager-version", version=fabric_manager, driver=report.driver_version)
    elif node.facts.fabric_manager_runs is False:
        yield finding("fabric-manager-stopped", version=fabric_manager)


def warning(report: Report) -> Iterator[Finding]:
    """Yield what nvidia-smi warns of beside a whole report, each of the GPU that it names."""
    for said in report.warnings:
        yield finding(
            "driver-warning",
            "works" if report.status in {0, CORRUPT_INFOROM} else "broken",
            gpu=next((gpu.index for gpu in report.gpus if gpu.pci_address in said.lower()), None),
            warning=said,
            status=report.status,
        )


def xid_errors(node: Node) -> Iterator[Finding]:
    """Xid errors since the driver was loaded, each once for its GPU, with what NVIDIA recommends."""
    if node.kernel_log.unreadable:
        yield finding("kernel-log-unreadable", reason=node.kernel_log.unreadable)
    yield from _switch_errors(node)
    gpus = {gpu.pci_address.rpartition(".")[0]: gpu.index for gpu in node.gpus}
    for event in node.kernel_log.events:
        device = gpus.get(event.address)
        elsewhere = f"the GPU at {event.address}" if event.address else "a GPU"
        where = f"GPU {device}" if device is not None else elsewhere
        if event.kind is Kind.OFF_THE_BUS:
            yield finding("gpu-off-the-bus", gpu=device, where=where, count=event.count, detail=event.detail)
        elif event.kind is Kind.RESET_REQUIRED:
            yield finding("reset-required", gpu=device, count=event.count, detail=event.detail)
        elif event.kind is Kind.REBOOT_REQUIRED:
            yield finding("reboot-required", count=event.count, detail=event.detail)
        elif event.kind is Kind.UNREADABLE:
            yield finding("kernel-error-unreadable", gpu=device, count=event.count, detail=event.detail)
        elif code := _xid_code(event):
            yield finding(
                code,
                gpu=device,
                where=where,
                number=event.number,
                title=catalogue()[code].title,
                count=event.count,
                detail=event.detail or "no detail",
            )


def recovery_actions(node: Node) -> Iterator[Finding]:
    """Yield what the driver wants done with GPUs.

    Nvidia-smi says it of now, and Xid 154 where it does not.
    """
    wanted = {
        event.address: event.recovery_action
        for event in node.kernel_log.events
        if event.kind is Kind.XID and event.number == RECOVERY
    }
    if isinstance(node.smi, Report):
        wanted |= {
            gpu.pci_address.rpartition(".")[0]: gpu.recovery_action
            for gpu in node.smi.gpus
            if gpu.recovery_action
        }
    devices = {gpu.pci_address.rpartition(".")[0]: gpu.index for gpu in node.gpus}
    for address, words in wanted.items():
        if (said := words.lower()) == "none":
            continue
        device = devices.get(address)
        where = f"the GPU at {address}" if device is None else f"GPU {device}"
        recovery = next((case for word, case in RECOVERIES.items() if word in said), "other")
        yield finding("recovery-action", recovery, gpu=device, where=where, requested=words)


def _xid_code(event: Event) -> str | None:
    if event.kind is Kind.NONFATAL:
        return "xid-nvlink-nonfatal"
    return xid_code(event.number) if event.kind is Kind.XID else None


def _switch_errors(node: Node) -> Iterator[Finding]:
    """Fatal errors of NVSwitches; one that is not fatal was handled, and is counted in the details.

    NVIDIA, Fabric Manager user guide, "NVSwitch SXid Errors".
    """
    fatal = [event for event in node.kernel_log.events if event.fatal]
    for address in dict.fromkeys(event.address for event in fatal):
        mine = [event for event in fatal if event.address == address]
        yield finding(
            "sxid-fatal",
            address=address,
            count=sum(event.count for event in mine),
            number=mine[-1].number,
            detail=mine[-1].detail,
        )
