"""The health of a node as metrics: what the check `health` judges, and the counters beside it.

Nothing is measured, so that it may run beside jobs. What a GPU or its driver did not say has no value: a
counter that could not be read is not 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from validation.checks.health import Health
from validation.checks.measured import HW_SLOWDOWN, SLOWDOWNS
from validation.checks.node import Node
from validation.metrics.exposition import Exposition, counter, gauge
from validation.model.contract import Finding, State, worst
from validation.model.expectations import References
from validation.probes import counters
from validation.probes.kernel_log import Kind as EventKind
from validation.probes.nvidia_smi import Gpu, NvidiaSmiError, Report
from validation.probes.report_values import LOST

GPU = ("gpu", "uuid")
#: What health finds because nothing should run while it looks. Here jobs run: it says nothing of the node.
#: Slowdowns have a metric of their own, which counts for how long.
OF_AN_IDLE_NODE = {
    "gpu-busy",
    "gpu-memory-taken",
    *(reason.replace("_", "-") for reason in (*SLOWDOWNS, HW_SLOWDOWN)),
}
MIB = 1 << 20
MHZ = 1_000_000
LAST_SUCCESS = "temper_metrics_last_success_timestamp_seconds"
#: The metrics of a node. No label has values that grow without end.
METRICS = (
    gauge("metrics_last_success_timestamp_seconds", "When the node was last looked at to the end."),
    gauge("metrics_success", "Whether the node could be looked at this time; if not, the rest is missing."),
    gauge("metrics_interval_seconds", "How often the node is looked at."),
    gauge("metrics_duration_seconds", "How long it took to look at the node."),
    gauge("maintenance", "Whether the node is in maintenance: its flag file is there."),
    gauge("health", "The state of the node as a whole: 1 for the state that it is in.", "state"),
    gauge(
        "finding",
        "1 for what was found, by the code of the catalogue (temper explain CODE).",
        "code",
        "severity",
        *GPU,
    ),
    gauge("gpus", "NVIDIA GPUs on the PCI bus."),
    gauge("gpus_expected", "GPUs that the node is expected to have."),
    gauge(
        "driver_info",
        "The driver's version as its parts say it: the loaded module, the libraries, the fabric manager.",
        "module",
        "libcuda",
        "libnvidia_ml",
        "fabric_manager",
    ),
    gauge("driver_versions_match", "Whether all parts of the driver have the loaded module's version."),
    gauge("kernel_log_readable", "Whether the kernel log could be read, where the driver reports errors."),
    counter(
        "xid_errors",
        "Xid errors in the kernel log since the driver was loaded, by their number.",
        *GPU,
        "pci_address",
        "xid",
    ),
    counter(
        "nvswitch_errors",
        "SXid errors of NVSwitches in the kernel log since the driver was loaded, by their number.",
        "pci_address",
        "sxid",
        "fatal",
    ),
    gauge("gpu_answers", "Whether nvidia-smi answers for the GPU.", *GPU, "pci_address"),
    gauge("gpu_info", "The GPU and its model.", *GPU, "pci_address", "pci_id", "name"),
    gauge("gpu_health", "The state of the GPU: 1 for the state that it is in.", *GPU, "state"),
    counter(
        "gpu_ecc_errors",
        "Memory errors: since the driver was loaded (volatile), or in the GPU's life (aggregate).",
        *GPU,
        "period",
        "kind",
    ),
    gauge("gpu_ecc_enabled", "Whether ECC is on.", *GPU),
    gauge("gpu_mig_enabled", "Whether MIG is on.", *GPU),
    gauge("gpu_persistence_enabled", "Whether persistence mode is on.", *GPU),
    gauge("gpu_row_remap_pending", "Whether a memory row waits for a reset to be remapped.", *GPU),
    gauge("gpu_row_remap_failure", "Whether a memory row could not be remapped.", *GPU),
    gauge("gpu_remapped_rows", "Memory rows that were remapped, by the kind of their errors.", *GPU, "kind"),
    gauge("gpu_page_retirement_pending", "Whether a memory page waits for a reset to be retired.", *GPU),
    gauge("gpu_retired_pages", "Memory pages that were retired, by the kind of their errors.", *GPU, "kind"),
    gauge("gpu_pcie_link_generation", "Generation of the PCIe link; an idle GPU may lower it.", *GPU),
    gauge("gpu_pcie_link_generation_max", "Generation that GPU and port both can do.", *GPU),
    gauge("gpu_pcie_link_width_lanes", "Lanes of the PCIe link.", *GPU),
    gauge("gpu_pcie_link_width_lanes_max", "Lanes that GPU and port both have.", *GPU),
    counter("gpu_pcie_replays", "Packets that the PCIe link had to send again.", *GPU),
    gauge("gpu_nvlinks", "NVLinks of the GPU, by whether they are up.", *GPU, "state"),
    counter(
        "gpu_nvlink_errors",
        "Errors of an NVLink: data was sent again (resent), or the link trained again or lost data (lost).",
        *GPU,
        "link",
        "kind",
    ),
    gauge("gpu_slowdown_active", "Whether the clock is held down now, by the reason.", *GPU, "reason"),
    counter("gpu_slowdown_seconds", "For how long the clock was held down, by the reason.", *GPU, "reason"),
    gauge("gpu_temperature_celsius", "Temperature of the GPU and its memory.", *GPU, "sensor"),
    gauge("gpu_power_watts", "Power that the GPU draws.", *GPU),
    gauge("gpu_power_limit_watts", "Power limit in force.", *GPU),
    gauge("gpu_power_limit_default_watts", "Power limit without anybody's setting.", *GPU),
    gauge("gpu_clock_hertz", "Clocks now.", *GPU, "clock"),
    gauge("gpu_clock_max_hertz", "The highest clocks that the GPU can run at.", *GPU, "clock"),
    gauge("gpu_utilization_ratio", "Part of the last second or less in which a kernel ran, 0 to 1.", *GPU),
    gauge("gpu_memory_used_bytes", "Memory in use.", *GPU),
    gauge("gpu_memory_total_bytes", "Memory of the GPU.", *GPU),
    gauge("gpu_fabric_completed", "Whether the GPU has registered with the NVLink fabric.", *GPU),
)


def collect(node: Node, *, maintenance: bool) -> Exposition:
    """Look at a node and say what was found. That it could not be looked at is said, too."""
    found = Health().run(node)
    said = Exposition(METRICS)
    said.set("temper_maintenance", maintenance)
    said.set("temper_metrics_success", node.probe_failure is None)
    of_node = [finding for finding in found.findings if finding.code not in OF_AN_IDLE_NODE]
    state = State.NOT_RUN if found.state is State.NOT_RUN else worst(finding.state for finding in of_node)
    _states(said, "temper_health", state)
    _findings(said, of_node, {gpu.index: gpu.uuid for gpu in node.gpus})
    said.set("temper_gpus_expected", node.expectation.gpu_count)
    if node.probe_failure:
        return said
    said.set("temper_gpus", len(node.pci_gpus))
    _driver(said, node)
    _kernel_log(said, node)
    _gpus(said, node, of_node)
    return said


def _states(said: Exposition, name: str, state: State, **labels: object) -> None:
    for one in State:
        said.set(name, one is state, state=one, **labels)


def _findings(said: Exposition, findings: Iterable[Finding], uuids: Mapping[int, str]) -> None:
    """Write each code once for a GPU, as bad as its worst."""
    by_code: dict[tuple[str, int | None], State] = {}
    for one in findings:
        key = one.code, one.device
        by_code[key] = worst((one.state, by_code.get(key, one.state)))
    for (code, device), state in by_code.items():
        gpu, uuid = ("", "") if device is None else (device, uuids.get(device, ""))
        said.set("temper_finding", 1, code=code, severity=state, gpu=gpu, uuid=uuid)


def _driver(said: Exposition, node: Node) -> None:
    facts = node.facts
    if facts.loaded_driver is None:
        return
    libraries = facts.driver_libraries
    said.set(
        "temper_driver_info",
        1,
        module=facts.loaded_driver,
        libcuda=libraries.get("libcuda.so.1", ""),
        libnvidia_ml=libraries.get("libnvidia-ml.so.1", ""),
        fabric_manager=facts.fabric_manager or "",
    )
    others = {*libraries.values(), *([facts.fabric_manager] if facts.fabric_manager else [])}
    said.set("temper_driver_versions_match", others == {facts.loaded_driver} if others else None)


def _kernel_log(said: Exposition, node: Node) -> None:
    if not node.pci_gpus:
        return  # nobody looked
    said.set("temper_kernel_log_readable", not node.kernel_log.unreadable)
    gpus = {gpu.pci_address.rpartition(".")[0]: gpu for gpu in node.gpus}
    xids: dict[tuple[str, int], int] = {}
    switches: dict[tuple[str, int, bool], int] = {}
    for event in node.kernel_log.events:
        if event.kind is EventKind.SXID:
            switch = event.address, event.number, event.fatal
            switches[switch] = switches.get(switch, 0) + event.count
        elif event.number:
            xid = event.address, event.number
            xids[xid] = xids.get(xid, 0) + event.count
    for (address, number), count in xids.items():
        known = gpus.get(address)
        gpu, uuid = (known.index, known.uuid) if known else ("", "")
        said.set("temper_xid_errors_total", count, gpu=gpu, uuid=uuid, pci_address=address, xid=number)
    for (address, number, fatal), count in switches.items():
        said.set(
            "temper_nvswitch_errors_total", count, pci_address=address, sxid=number, fatal=str(fatal).lower()
        )


def _gpus(said: Exposition, node: Node, findings: list[Finding]) -> None:
    report = node.smi
    read = {gpu.index: gpu for gpu in report.gpus} if isinstance(report, Report) else {}
    errors = _nvlink_errors(node.probe.counts()) if read else {}
    for one in node.gpus:
        gpu = read.get(one.index)
        labels = {"gpu": one.index, "uuid": one.uuid}
        answers = gpu is not None and not any(
            value.error in LOST or value.is_vital for value in gpu.unanswered
        )
        said.set("temper_gpu_answers", answers, **labels, pci_address=one.pci_address)
        name = _model(one.name, one.pci_id, node.expectation.references)
        said.set("temper_gpu_info", 1, **labels, pci_address=one.pci_address, pci_id=one.pci_id, name=name)
        state = worst(finding.state for finding in findings if finding.device == one.index)
        silent = not answers and state is State.PASS
        _states(said, "temper_gpu_health", State.NOT_RUN if silent else state, **labels)
        if gpu is None:
            continue
        _memory(said, gpu, labels)
        _modes(said, gpu, labels)
        _sensors(said, gpu, labels)
        said.set("temper_gpu_pcie_link_generation", gpu.pcie_generation, **labels)
        said.set("temper_gpu_pcie_link_generation_max", one.pcie_generation_max, **labels)
        said.set("temper_gpu_pcie_link_width_lanes", gpu.pcie_width, **labels)
        said.set("temper_gpu_pcie_link_width_lanes_max", one.pcie_width_max, **labels)
        said.set("temper_gpu_pcie_replays_total", gpu.pcie_replays, **labels)
        for (link, kind), count in errors.get(one.index, {}).items():
            said.set("temper_gpu_nvlink_errors_total", count, **labels, link=link, kind=kind)
        if not isinstance(node.nvlinks, NvidiaSmiError) and (links := node.nvlinks.get(one.index)):
            said.set("temper_gpu_nvlinks", links.up, **labels, state="up")
            said.set("temper_gpu_nvlinks", len(links.down), **labels, state="down")
    # On the bus, and left out by nvidia-smi: its index is not known.
    driven = {one.pci_address for one in node.gpus}
    for address in (gpu.address for gpu in node.pci_gpus if gpu.address not in driven):
        said.set("temper_gpu_answers", 0, gpu="", uuid="", pci_address=address)


def _model(name: str, pci_id: str, references: References) -> str:
    """Return the model's name in the table, else the driver's: fleets are compared by it."""
    model = references.model_of(pci_id)
    return str(model["name"]) if model else name


def _nvlink_errors(counts: counters.Counts) -> dict[int, dict[tuple[str, str], int]]:
    """Return the counters of each link, added by what they mean."""
    found: dict[int, dict[tuple[str, str], int]] = {}
    for index, of_gpu in counts.items():
        sums = found.setdefault(index, {})
        for said, count in of_gpu.items():
            kind, _, rest = said.partition(" ")
            link, _, name = rest.partition(" ")
            if kind == "nvlink":
                key = link, "lost" if name in counters.RECOVERIES else "resent"
                sums[key] = sums.get(key, 0) + count
    return found


def _memory(said: Exposition, gpu: Gpu, labels: Mapping[str, object]) -> None:
    readings = gpu.readings
    for period, kind, count in (
        ("volatile", "corrected", gpu.ecc_corrected_volatile),
        ("volatile", "uncorrected", gpu.ecc_uncorrected_volatile),
        ("aggregate", "corrected", readings.ecc_corrected_aggregate),
        ("aggregate", "uncorrected", readings.ecc_uncorrected_aggregate),
    ):
        said.set("temper_gpu_ecc_errors_total", count, **labels, period=period, kind=kind)
    said.set("temper_gpu_row_remap_pending", gpu.row_remap_pending, **labels)
    said.set("temper_gpu_row_remap_failure", gpu.row_remap_failure, **labels)
    said.set("temper_gpu_page_retirement_pending", gpu.page_retirement_pending, **labels)
    for kind, count in readings.remapped_rows.items():
        said.set("temper_gpu_remapped_rows", count, **labels, kind=kind)
    for kind, count in readings.retired_pages.items():
        said.set("temper_gpu_retired_pages", count, **labels, kind=kind)
    said.set("temper_gpu_memory_used_bytes", _scaled(gpu.memory_used_mib, MIB), **labels)
    said.set("temper_gpu_memory_total_bytes", _scaled(readings.memory_total_mib, MIB), **labels)


def _modes(said: Exposition, gpu: Gpu, labels: Mapping[str, object]) -> None:
    said.set("temper_gpu_ecc_enabled", gpu.ecc, **labels)
    said.set("temper_gpu_mig_enabled", gpu.mig, **labels)
    said.set("temper_gpu_persistence_enabled", gpu.persistence, **labels)
    if gpu.fabric_state is not None:
        completed = gpu.fabric_state == "Completed" and gpu.fabric_status in {None, "Success"}
        said.set("temper_gpu_fabric_completed", completed, **labels)


def _sensors(said: Exposition, gpu: Gpu, labels: Mapping[str, object]) -> None:
    readings = gpu.readings
    for reason, active in readings.event_reasons.items():
        said.set("temper_gpu_slowdown_active", active, **labels, reason=reason)
    for reason, seconds in readings.slowdown_s.items():
        said.set("temper_gpu_slowdown_seconds_total", seconds, **labels, reason=reason)
    said.set("temper_gpu_temperature_celsius", readings.temperature_c, **labels, sensor="gpu")
    said.set("temper_gpu_temperature_celsius", readings.memory_temperature_c, **labels, sensor="memory")
    said.set("temper_gpu_power_watts", readings.power_w, **labels)
    said.set("temper_gpu_power_limit_watts", gpu.power_limit_w, **labels)
    said.set("temper_gpu_power_limit_default_watts", gpu.power_limit_default_w, **labels)
    for clock, mhz in readings.clocks_mhz.items():
        said.set("temper_gpu_clock_hertz", mhz * MHZ, **labels, clock=clock)
    for clock, mhz in readings.clocks_max_mhz.items():
        said.set("temper_gpu_clock_max_hertz", mhz * MHZ, **labels, clock=clock)
    said.set("temper_gpu_utilization_ratio", readings.utilization, **labels)


def _scaled(number: int | None, unit: int) -> int | None:
    return None if number is None else number * unit
