"""Reports of real GPUs are judged right: healthy ones have no fault, each fault that is in one is found."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.unit.each import each
from tests.unit.validation.real_reports import RealReport, addresses, from_folder, from_table, of_gpu
from tests.unit.validation.samples import node
from validation.checks.health import Health
from validation.model import gpu_models
from validation.model.contract import NodeResult, State, loads
from validation.model.expectations import Expectation
from validation.probes import nvidia_smi
from validation.probes.machine import PciGpu
from validation.verdict.judge import judge_node

if TYPE_CHECKING:
    from collections.abc import Iterator

    from validation.model.contract import Finding, Measurement

TABLE = from_table()
FOLDER = Path(__file__).parent / "reports"
REPORTS = [*TABLE, *from_folder()]
HEALTHY = [report for report in REPORTS if not report.faults]
FAULTY = [report for report in REPORTS if report.faults]
#: What a machine may be set up or used like.
OF_THE_OWNER = {
    "persistence-off",
    "gpu-busy",
    "gpu-memory-taken",
    "power-limit-low",
    "application-clock-low",
    "ecc-off",
    # In a virtual machine, or where nobody sees the port, as in a report alone.
    "pcie-link-down-trained",
}


def judged(text: str) -> tuple[Finding, ...]:
    """What health finds on a node of which only this report is known."""
    report = nvidia_smi.parse(text)
    alone: dict[str, Any] = {
        "pci_gpus": tuple(PciGpu(gpu.pci_address, gpu.pci_id) for gpu in report.gpus),
        "pcie_ports": lambda _: {},
        "nvswitch": False,
        "nvlinks": dict,
        "loaded_driver": report.driver_version,
        "driver_libraries": {},
        "fabric_manager": None,
    }
    return Health().run(node(text, expectation=Expectation(), **alone)).findings


def test_there_are_many_of_many_kinds() -> None:
    facts = [report.facts for report in TABLE if report.facts]
    assert len({(fact["origin"], fact["file"]) for fact in facts}) == len(facts) >= 90
    assert len({fact["name"] for fact in facts}) >= 60
    assert len({fact["driver"].split(".")[0] for fact in facts}) >= 30


@each(*TABLE)
def test_a_report_is_read_without_loss(report: RealReport) -> None:
    facts = report.facts
    assert facts is not None
    read = nvidia_smi.parse(report.text)
    assert read.driver_version == facts["driver"]
    assert [gpu.pci_address for gpu in read.gpus] == [address.lower()[4:] for address in addresses(facts)]
    yes_or_no = {"Enabled": True, "Disabled": False, "Yes": True, "No": False}
    for index, gpu in enumerate(read.gpus):
        said = of_gpu(facts, index)
        errors, remapped = said["errors"][1], said.get("remapped", "N/A")
        link = (gpu.pcie_generation, gpu.pcie_generation_max, gpu.pcie_width, gpu.pcie_width_max)
        assert link == (
            tuple(int(number) for part in said["link"] for number in part.split("/"))
            if "link" in said
            else (None,) * 4
        )
        assert (gpu.name, gpu.pci_id, gpu.performance_state) == (
            said["name"],
            said["id"].lower(),
            said["state"],
        )
        assert gpu.guest == said.get("guest", False)
        for value, name in ((gpu.persistence, "persistence"), (gpu.mig, "mig"), (gpu.ecc, "ecc")):
            assert value == yes_or_no.get(said.get(name, "N/A"))
        assert gpu.ecc_uncorrected_volatile == (None if errors == "N/A" else errors)
        assert gpu.page_retirement_pending == yes_or_no.get(said.get("retired", "N/A"))
        assert gpu.row_remap_failure == yes_or_no.get(remapped)
        assert gpu.row_remap_pending == yes_or_no.get(said.get("row_pending", remapped))
        assert [gpu.power_limit_w, gpu.power_limit_default_w] == said.get("power", [None, None])
        assert gpu.fabric_state == said.get("fabric", [None])[0]
        assert set(gpu.event_reasons) == set(said.get("active", []))
        assert len(gpu.processes + gpu.graphics_processes) == len(said.get("processes", []))
        assert gpu.memory_used_mib == said.get("used", 0)
        assert gpu.recovery_action in {None, "None"}


@each(*HEALTHY)
def test_nothing_is_found_on_healthy_gpus_but_how_their_owner_uses_them(report: RealReport) -> None:
    found = judged(report.text)
    assert all(finding.state is State.DEGRADED for finding in found)
    assert {finding.code for finding in found} <= OF_THE_OWNER
    if report.finds is not None:
        assert {finding.code for finding in found} == set(report.finds)


@each(*FAULTY)
def test_what_is_wrong_with_a_real_gpu_is_found(report: RealReport) -> None:
    found = judged(report.text)
    assert {finding.code for finding in found} == {*(report.finds or ()), *report.faults}
    assert set(report.faults).isdisjoint(OF_THE_OWNER)


#: Where a fault shows: which elements must have what text before, which text it is, what health finds then.
FAULTS = [
    ("ecc_errors/volatile/dram_uncorrectable", "0", "3", "ecc-uncorrected", State.FAIL),
    ("ecc_errors/volatile/sram_uncorrectable", "0", "1", "ecc-uncorrected", State.FAIL),
    ("ecc_errors/volatile/sram_uncorrectable_parity", "0", "1", "ecc-uncorrected", State.FAIL),
    ("ecc_errors/volatile/double_bit/total", "0", "2", "ecc-uncorrected", State.FAIL),
    ("ecc_errors/volatile/double_bit/device_memory", "0", "2", "ecc-uncorrected", State.FAIL),
    ("ecc_errors/volatile/dram_uncorrectable", "0", "Unknown Error", "gpu-unanswered", State.FAIL),
    ("ecc_errors/volatile/dram_uncorrectable", "0", "No data", "gpu-withheld", State.DEGRADED),
    ("ecc_errors/aggregate/sram_threshold_exceeded", "No", "Yes", "sram-threshold-exceeded", State.FAIL),
    ("ecc_errors/unrepairable_memory", "No", "Yes", "memory-unrepairable", State.FAIL),
    ("ecc_errors/channel_repair_pending", "No", "Yes", "memory-repair-pending", State.DEGRADED),
    ("ecc_errors/tpc_repair_pending", "No", "Yes", "tpc-repair-pending", State.DEGRADED),
    ("retired_pages/pending_blacklist", "No", "Yes", "memory-repair-pending", State.DEGRADED),
    ("remapped_rows/remapped_row_pending", "No", "Yes", "memory-repair-pending", State.DEGRADED),
    ("remapped_banks/bank_remapper_pending", "No", "Yes", "memory-repair-pending", State.DEGRADED),
    ("remapped_rows/remapped_row_failure", "No", "Yes", "row-remap-failure", State.FAIL),
    ("remapped_rows/remapped_row_failure", "No", "GPU requires reset", "gpu-unanswered", State.FAIL),
    ("gpu_reset_status/reset_required", "No", "Yes", "recovery-action", State.FAIL),
    ("gpu_reset_status/drain_and_reset_recommended", "No", "Yes", "recovery-action", State.FAIL),
    ("gpu_recovery_action", "None", "Reset", "recovery-action", State.FAIL),
    ("gpu_recovery_action", "None", "NODE_REBOOT", "recovery-action", State.FAIL),
    ("fabric/state", "Completed", "In Progress", "fabric-not-ready", State.FAIL),
    ("fabric/status", "Success", "Unknown Error", "fabric-not-ready", State.FAIL),
    ("fabric/health/route_unhealthy", "False", "True", "fabric-unhealthy", State.FAIL),
    ("fabric/health/summary", "Healthy", "Unhealthy", "fabric-unhealthy", State.FAIL),
    ("fabric/health/bandwidth", "Full", "Degraded", "fabric-unhealthy", State.DEGRADED),
    ("temperature/gpu_temp", None, "Unknown Error", "gpu-unanswered", State.FAIL),
    ("temperature/gpu_temp", None, "[Unknown Error]", "gpu-unanswered", State.FAIL),
    ("clocks/graphics_clock", None, "Unknown Error", "gpu-unanswered", State.FAIL),
    ("fan_speed", None, "Unknown Error", "gpu-unanswered", State.DEGRADED),
    ("uuid", None, "GPU is lost", "gpu-unanswered", State.FAIL),
    ("uuid", None, "[GPU requires reset]", "gpu-unanswered", State.FAIL),
    ("ecc_errors/channel_repair_pending", "No", "GPU requires reset", "gpu-unanswered", State.FAIL),
    ("addressing_mode", None, "GPU is lost", "gpu-unanswered", State.FAIL),
    *(
        (f"clocks_{kind}_reasons/clocks_{kind}_reason_{name}", "Not Active", "Active", code, State.FAIL)
        for kind in ("event", "throttle")
        for name, code in (
            ("hw_thermal_slowdown", "hw-thermal-slowdown"),
            ("hw_power_brake_slowdown", "hw-power-brake-slowdown"),
            ("hw_slowdown", "hw-slowdown"),
        )
    ),
]


def spliced(text: str, path: str, before: str | None, after: str) -> str | None:
    """The report with another text in this element of its first GPU; None where it has no such element."""
    root = ET.fromstring(text)  # noqa: S314 - our own
    element = root.find(f"gpu/{path}")
    if element is None or (before is not None and (element.text or "").strip() != before):
        return None
    element.text = after
    return ET.tostring(root, encoding="unicode")


def cases() -> Iterator[tuple[RealReport, str, str, str, State]]:
    """Each fault in each report that has a place for it."""
    for report in REPORTS:
        for path, before, after, code, state in FAULTS:
            if text := spliced(report.text, path, before, after):
                yield report, f"{path}: {after}", text, code, state


CASES = list(cases())


@each(*REPORTS)
def test_a_fault_that_is_put_into_a_report_is_found(report: RealReport) -> None:
    mine = [case for case in CASES if case[0] is report]
    assert mine
    before = {(finding.code, finding.device) for finding in judged(report.text)}
    for _, what, text, code, state in mine:
        new = [one for one in judged(text) if (one.code, one.device) not in before]
        assert [(one.code, one.state, one.device) for one in new] == [(code, state, 0)], what


def test_every_fault_has_a_place_in_some_report() -> None:
    assert {what for _, what, *_ in CASES} == {f"{path}: {after}" for path, _, after, *_ in FAULTS}


#: What the quick plan measured on GPUs that are well.
QUICK = {
    name: loads(NodeResult, FOLDER.joinpath(f"{name}-quick.json").read_bytes())
    for name in ("h100-sxm", "h200-sxm")
}


@each(*QUICK)
def test_a_gpu_that_is_well_passes_the_quick_plan_and_one_that_is_a_tenth_slower_does_not(name: str) -> None:
    def slower(one: Measurement) -> Measurement:
        return replace(one, value=0.9 * one.value)

    quick = QUICK[name]
    matmul = next(test for test in quick.tests if test.id == "gpu_matmul")
    slow = replace(matmul, measurements=tuple(map(slower, matmul.measurements)))
    tests = tuple(slow if test is matmul else test for test in quick.tests)
    wanted = Expectation(references=gpu_models.available())
    verdicts = [judge_node("gpu-node", one, wanted, {}) for one in (quick, replace(quick, tests=tests))]
    assert [verdict.state for verdict in verdicts] == [State.PASS, State.FAIL]
    assert [verdict.reasons != () for verdict in verdicts] == [False, True]
