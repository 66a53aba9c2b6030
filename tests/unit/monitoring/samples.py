"""What Prometheus would have scraped: the payload's metrics of healthy nodes and of faults, over time."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tests.unit.validation.samples import expectation, gpu_xml, node, smi_xml
from validation.checks.node import Node
from validation.metrics.node_metrics import collect
from validation.model.contract import Measured
from validation.probes.kernel_log import KernelLog, events
from validation.probes.machine import Grant, PciGpu
from validation.probes.node_probe import NodeProbe
from validation.probes.nvidia_smi import FabricHealth, NvidiaSmiError, Report, Unanswered, parse
from validation.probes.nvlink import Links
from validation.processes.child import Request
from validation.processes.pool import Ending, ProcessOutcome

SECOND = gpu_xml(pci_bus_id="00000000:43:00.0", uuid="GPU-2")
ONE = (PciGpu("0000:1b:00.0", "2330"),)
LOG = "NVRM: Xid (PCI:0000:1b:00): {}, pid=1, name=python3, something"


def instance(name: str) -> str:
    """The labels that Prometheus gives to what it scrapes from a node."""
    return f'instance="{name}:9100",job="node"'


INSTANCE = instance("gpu01")


def _xml(**changes: str) -> Callable[[], Node]:
    return lambda: node(smi_xml(gpu_xml(**changes), SECOND))


def _gpu(**changes: Any) -> Callable[[], Node]:
    """A node whose first GPU says something that the sample's XML has no place for."""

    def query() -> Report:
        report = parse(smi_xml(gpu_xml(), SECOND))
        return replace(report, gpus=(replace(report.gpus[0], **changes), *report.gpus[1:]))

    return lambda: node(query=query)


def _log(*lines: str) -> Callable[[], Node]:
    return lambda: node(kernel_log=lambda: KernelLog(events(lines)))


def _fails(kind: str) -> Callable[[], Node]:
    return lambda: node(NvidiaSmiError(kind, "nvidia-smi: said something"))


def _warns(status: int) -> Callable[[], Node]:
    def query() -> Report:
        return replace(parse(smi_xml(gpu_xml(), SECOND)), status=status, warnings=("WARNING: something",))

    return lambda: node(query=query)


class _Ends(NodeProbe):
    """A probe that comes back with no facts."""

    def __init__(self, ending: Ending) -> None:
        super().__init__()
        self._ending = ending

    def facts(self, on_switches: bool) -> ProcessOutcome:
        return ProcessOutcome(
            Request("probe", "x:y", "none"), self._ending, Measured(), "it ended", "asking", 0.0
        )


def _ends(ending: Ending) -> Callable[[], Node]:
    return lambda: node(probe=_Ends(ending))


#: A node with each finding that health can have, and the severity where that is not the only one.
FAULTS: dict[tuple[str, str], Callable[[], Node]] = {
    ("gpu-count", "fail"): lambda: node(pci_gpus=ONE, xml=smi_xml(gpu_xml())),
    ("gpu-not-driven", "fail"): lambda: node(smi_xml(gpu_xml())),
    ("gpu-not-driven", "degraded"): lambda: node(smi_xml(gpu_xml()), granted=Grant("SLURM_JOB_GPUS", 1)),
    ("gpu-unanswered", "fail"): _gpu(unanswered=(Unanswered("ecc_errors", "x", "GPU is lost"),)),
    ("gpu-unanswered", "degraded"): _gpu(unanswered=(Unanswered("fan", "fan_speed", "Unknown Error"),)),
    ("gpu-withheld", "degraded"): _xml(remapped_row_pending="Insufficient Permissions"),
    ("gpu-model", "fail"): _xml(pci_device_id="233110DE"),
    ("driver-version", "fail"): lambda: node(expectation=expectation(driver_version="570.1")),
    ("library-version", "fail"): lambda: node(driver_libraries={"libcuda.so.1": "570.1"}),
    ("fabric-manager-version", "fail"): lambda: node(fabric_manager=lambda: "570.1"),
    ("fabric-manager-stopped", "fail"): lambda: node(fabric_manager_runs=False),
    ("driver-warning", "degraded"): _warns(14),
    ("driver-warning", "fail"): _warns(8),
    ("kernel-log-unreadable", "degraded"): lambda: node(kernel_log=lambda: KernelLog(unreadable="no")),
    ("gpu-off-the-bus", "fail"): _log("NVRM: GPU 0000:1b:00.0: GPU has fallen off the bus."),
    ("sxid-fatal", "fail"): _log("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 Fault"),
    ("nvlink-unknown", "degraded"): lambda: node(nvlinks=NvidiaSmiError("other", "x")),
    ("nvlink-down", "fail"): lambda: node(nvlinks=lambda: {0: Links(16, (3, 17)), 1: Links(18, ())}),
    ("nvlink-fewer", "degraded"): lambda: node(
        nvlinks=lambda: {0: Links(10, ()), 1: Links(12, ())},
        nvswitch=False,
        expectation=expectation(nvswitch=False),
    ),
    ("c2c-off", "fail"): lambda: node(
        query=lambda: replace(
            parse(smi_xml(gpu_xml(), SECOND)),
            gpus=tuple(replace(gpu, c2c=gpu.index == 1) for gpu in parse(smi_xml(gpu_xml(), SECOND)).gpus),
        )
    ),
    ("temperature-high", "degraded"): _gpu(too_hot=("GPU 99 C, its limit for work is 87 C",)),
    ("power-limit-low", "degraded"): _xml(current_power_limit="500.00 W"),
    ("application-clock-low", "degraded"): _xml(application_clock="900 MHz"),
    ("ecc-off", "degraded"): _xml(current_ecc="Disabled"),
    ("vgpu-unlicensed", "degraded"): _gpu(license_missing="Unlicensed"),
    ("ecc-uncorrected", "fail"): _xml(dram_uncorrectable="2"),
    ("row-remap-failure", "fail"): _xml(remapped_row_failure="Yes"),
    ("memory-unrepairable", "fail"): _gpu(memory_unrepairable=True),
    ("sram-threshold-exceeded", "fail"): _gpu(sram_threshold_exceeded=True),
    ("memory-repair-pending", "degraded"): _xml(remapped_row_pending="Yes"),
    ("tpc-repair-pending", "degraded"): _gpu(tpc_repair_pending=True),
    ("recovery-action", "fail"): _xml(gpu_recovery_action="Drain and Reset"),
    ("pcie-link-down-trained", "fail"): _xml(current_link_gen="1"),
    ("pcie-slot-limits", "degraded"): _xml(max_link_gen="4", current_link_gen="4"),
    ("fabric-not-ready", "fail"): _xml(state="In Progress", status="N/A"),
    ("fabric-unhealthy", "fail"): _gpu(fabric_health=FabricHealth(("route_unhealthy",))),
    ("fabric-unhealthy", "degraded"): _gpu(fabric_health=FabricHealth((), ("bandwidth: Degraded",))),
    ("persistence-off", "degraded"): _xml(persistence_mode="Disabled"),
    ("xid-nvlink-nonfatal", "degraded"): _log(
        "NVRM: Xid (PCI:0000:1b:00): 145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008 0)"
    ),
    ("reset-required", "fail"): _log(
        "NVRM: nvAssertOkFailedNoLog: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED] (0x00000062)"
    ),
    ("reboot-required", "fail"): _log(
        "NVRM: nvGpuOpsReportFatalError: uvm encountered global fatal error 0x60, requiring os reboot"
    ),
    ("kernel-error-unreadable", "degraded"): _log("NVRM: Xid (PCI:0000:1b:00): something else"),
    ("xid-unknown", "degraded"): _log(LOG.format(999)),
    **{
        (f"driver-{kind}", "fail"): _fails(kind)
        for kind in ("missing", "mismatch", "no-driver", "lost", "no-devices", "timeout", "other")
    },
    **{
        (code, "fail"): _ends(ending)
        for code, ending in {
            "process-died": Ending.DIED,
            "process-hung": Ending.HUNG,
            "process-slow": Ending.SLOW,
            "process-unkillable": Ending.UNKILLABLE,
            "result-unreadable": Ending.UNREADABLE,
        }.items()
    },
}


def xid(number: int) -> Callable[[], Node]:
    """A node with this Xid error in its kernel log."""
    return _log(LOG.format(number))


def scraped(tested: Node, name: str = "gpu01") -> dict[str, float]:
    """The values of all series of a node as Prometheus keeps them."""
    found = {}
    for line in collect(tested, maintenance=False).text().splitlines():
        if not line.startswith("#"):
            series, _, value = line.rpartition(" ")
            metric, _, labels = series.removesuffix("}").partition("{")
            found[f"{metric}{{{','.join(filter(None, (instance(name), labels)))}}}"] = float(value)
    return found


def over_time(*parts: tuple[Mapping[str, float], int]) -> list[dict[str, str]]:
    """Promtool's input series: each part holds for so many steps; a series that it lacks is not scraped."""
    names = dict.fromkeys(name for values, _ in parts for name in values)
    return [
        {
            "series": name,
            "values": " ".join(
                (f"{values[name]:g}x{steps - 1}" if name in values else f"_x{steps}")
                for values, steps in parts
            ),
        }
        for name in names
    ]
