"""Health: none is healthy by silence, every fault has its own finding, a machine without GPUs is not ill."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.validation.samples import DRIVER, H100, expectation, gpu_xml, node, smi_xml
from validation.checks.health import Health
from validation.model.contract import State
from validation.model.expectations import ANY_MODEL, Expectation, ExpectedGpus, References
from validation.probes import kernel_log
from validation.probes.kernel_log import KernelLog
from validation.probes.machine import Grant, PciGpu
from validation.probes.nvidia_smi import NvidiaSmiError
from validation.probes.nvlink import Links

SECOND = gpu_xml(pci_bus_id="00000000:43:00.0", uuid="GPU-2")


def test_a_healthy_node_has_no_finding() -> None:
    result = Health().run(node())
    assert (result.state, result.findings) == (State.PASS, ())


@pytest.mark.parametrize(
    ("changes", "code", "state"),
    [
        ({"dram_uncorrectable": "2"}, "ecc-uncorrected", State.FAIL),
        ({"remapped_row_failure": "Yes"}, "row-remap-failure", State.FAIL),
        ({"remapped_row_pending": "Yes"}, "memory-repair-pending", State.DEGRADED),
        ({"pending_retirement": "Yes"}, "memory-repair-pending", State.DEGRADED),
        ({"gpu_recovery_action": "Drain and Reset"}, "recovery-action", State.FAIL),
        ({"hw_thermal_slowdown": "Active", "hw_slowdown": "Active"}, "hw-thermal-slowdown", State.FAIL),
        (
            {"hw_power_brake_slowdown": "Active", "hw_slowdown": "Active"},
            "hw-power-brake-slowdown",
            State.FAIL,
        ),
        ({"hw_slowdown": "Active"}, "hw-slowdown", State.FAIL),
        ({"sw_thermal_slowdown": "Active"}, "sw-thermal-slowdown", State.DEGRADED),
        ({"current_power_limit": "500.00 W"}, "power-limit-low", State.DEGRADED),
        ({"current_ecc": "Disabled"}, "ecc-off", State.DEGRADED),
        ({"used": "20480 MiB"}, "gpu-memory-taken", State.DEGRADED),
        ({"application_clock": "900 MHz"}, "application-clock-low", State.DEGRADED),
        ({"current_link_gen": "1"}, "pcie-link-down-trained", State.FAIL),
        ({"current_link_width": "8x"}, "pcie-link-down-trained", State.FAIL),
        ({"max_link_width": "8x", "current_link_width": "8x"}, "pcie-slot-limits", State.DEGRADED),
        ({"max_link_gen": "4", "current_link_gen": "4"}, "pcie-slot-limits", State.DEGRADED),
        ({"state": "In Progress", "status": "N/A"}, "fabric-not-ready", State.FAIL),
        ({"status": "Insufficient Resources"}, "fabric-not-ready", State.FAIL),
        ({"persistence_mode": "Disabled"}, "persistence-off", State.DEGRADED),
        ({"processes": "<process_info><pid>1</pid></process_info>"}, "gpu-busy", State.DEGRADED),
        ({"pci_device_id": "233110DE"}, "gpu-model", State.FAIL),
    ],
)
def test_a_fault_of_one_gpu_is_one_finding_that_names_it(
    changes: dict[str, str], code: str, state: State
) -> None:
    result = Health().run(node(smi_xml(gpu_xml(**changes), SECOND)))
    (finding,) = result.findings
    assert (finding.code, finding.state, finding.device) == (code, state, 0)
    assert "GPU 0" in finding.text
    assert finding.action
    assert result.state is state


@pytest.mark.parametrize(
    ("changes", "states"),
    [
        ({"current_link_gen": "1"}, []),
        ({"current_link_width": "8x"}, [State.DEGRADED]),
    ],
)
def test_the_pcie_link_of_a_superchip_fails_nothing(changes: dict[str, str], states: list[State]) -> None:
    gh200 = {"gh200": H100 | {"form_factor": "superchip"}}
    tested = node(
        smi_xml(gpu_xml(**changes), gpu_xml(pci_bus_id="00000000:43:00.0", uuid="GPU-2")),
        expectation=expectation(references=References(gh200)),
    )
    found = Health().run(tested).findings
    assert [one.state for one in found if one.code.startswith("pcie")] == states


def test_an_idle_gpu_may_lower_its_link() -> None:
    idle = gpu_xml(performance_state="P8", current_link_gen="1")
    assert Health().run(node(smi_xml(idle, SECOND))).state is State.PASS


def test_gpus_without_nvswitch_need_no_fabric() -> None:
    xml = smi_xml(gpu_xml(state="In Progress"), SECOND)
    facts: dict[str, Any] = {"nvswitch": False, "expectation": expectation(nvswitch=False)}
    assert Health().run(node(xml, **facts)).state is State.PASS


@pytest.mark.parametrize(
    ("pci_gpus", "xml", "codes"),
    [
        ((PciGpu("0000:1b:00.0", "2330"),), smi_xml(gpu_xml()), ["gpu-count"]),
        ((), NvidiaSmiError("missing", "nvidia-smi is not installed"), ["gpu-count", "driver-missing"]),
        (None, smi_xml(gpu_xml()), ["gpu-not-driven"]),
        (
            None,
            NvidiaSmiError("mismatch", "nvidia-smi: Driver/library version mismatch"),
            ["driver-mismatch"],
        ),
        (None, NvidiaSmiError("no-driver", "nvidia-smi: cannot communicate"), ["driver-no-driver"]),
        (None, NvidiaSmiError("lost", "nvidia-smi: GPU is lost"), ["driver-lost"]),
        (None, NvidiaSmiError("timeout", "nvidia-smi gave no answer within 60 s"), ["driver-timeout"]),
        (
            None,
            smi_xml(gpu_xml(), SECOND, driver="580.126.09"),
            ["driver-version", "library-version", "fabric-manager-version"],
        ),
    ],
)
def test_gpus_and_driver_must_be_the_expected_ones(
    pci_gpus: tuple[PciGpu, ...] | None, xml: str | NvidiaSmiError, codes: list[str]
) -> None:
    facts: dict[str, Any] = {} if pci_gpus is None else {"pci_gpus": pci_gpus}
    result = Health().run(node(xml, **facts))
    assert [(finding.code, finding.state) for finding in result.findings] == [
        (code, State.FAIL) for code in codes
    ]
    assert result.state is State.FAIL


@pytest.mark.parametrize(
    ("granted", "state"),
    [
        (Grant("NVIDIA_VISIBLE_DEVICES", 1), State.DEGRADED),
        (Grant("NVIDIA_VISIBLE_DEVICES", 2), State.FAIL),
        (None, State.FAIL),
    ],
)
def test_gpus_that_a_container_was_not_given_fail_nothing(granted: Grant | None, state: State) -> None:
    (finding,) = Health().run(node(smi_xml(gpu_xml()), granted=granted)).findings
    assert (finding.code, finding.state) == ("gpu-not-driven", state)


def test_a_mismatch_names_the_module_that_is_loaded_and_asks_for_a_reboot() -> None:
    error = NvidiaSmiError("mismatch", "nvidia-smi: Driver/library version mismatch")
    (finding,) = Health().run(node(error)).findings
    assert DRIVER in finding.text
    assert "reboot" in finding.action


@pytest.mark.parametrize(
    ("pci_gpus", "kind"), [((), "missing"), ((PciGpu("0000:1b:00.0", "2330"),), "missing"), ((), "no-driver")]
)
def test_without_an_expectation_a_machine_without_driver_is_not_run(
    pci_gpus: tuple[PciGpu, ...], kind: str
) -> None:
    facts: dict[str, Any] = {"pci_gpus": pci_gpus, "expectation": Expectation()}
    result = Health().run(node(NvidiaSmiError(kind, "nvidia-smi is not installed"), **facts))
    assert result.state is State.NOT_RUN
    assert result.reason


def test_no_gpu_where_none_is_expected_is_a_pass() -> None:
    facts: dict[str, Any] = {"pci_gpus": (), "expectation": Expectation(gpus=()), "nvswitch": False}
    result = Health().run(node(NvidiaSmiError("missing", "nvidia-smi is not installed"), **facts))
    assert (result.state, result.findings) == (State.PASS, ())


def test_without_an_expectation_broken_memory_is_still_found() -> None:
    broken = smi_xml(gpu_xml(dram_uncorrectable="1"), SECOND)
    result = Health().run(node(broken, expectation=Expectation()))
    assert [finding.code for finding in result.findings] == ["ecc-uncorrected"]


def test_a_gpu_that_no_table_knows_is_expected_by_its_pci_id_beside_one_that_is_known() -> None:
    mixed = expectation(
        gpus=(ExpectedGpus("h100_sxm_80gb", "H100 SXM 80 GB", 1), ExpectedGpus("unknown", "10de:9999", 1))
    )
    xml = smi_xml(gpu_xml(), gpu_xml(pci_bus_id="00000000:43:00.0", uuid="GPU-2", pci_device_id="999910DE"))
    assert Health().run(node(xml, expectation=mixed)).findings == ()


@pytest.mark.parametrize(("count", "codes"), [(2, []), (3, ["gpu-count"])])
def test_a_number_of_gpus_may_be_all_that_is_expected(count: int, codes: list[str]) -> None:
    wanted = expectation(gpus=(ExpectedGpus("any", ANY_MODEL, count),))
    unknown = smi_xml(gpu_xml(pci_device_id="999910DE"), SECOND)
    assert [f.code for f in Health().run(node(unknown, expectation=wanted)).findings] == codes


def test_a_power_limit_that_was_asked_for_is_no_finding() -> None:
    lowered = smi_xml(gpu_xml(current_power_limit="500.00 W"), SECOND)
    result = Health().run(node(lowered, expectation=expectation(power_limit_w=500.0)))
    assert result.findings == ()


def test_a_library_of_another_version_is_found() -> None:
    (finding,) = (
        Health().run(node(driver_libraries={"libcuda.so.1": "570.1", "libnvidia-ml.so.1": DRIVER})).findings
    )
    assert (finding.code, finding.state) == ("library-version", State.FAIL)
    assert finding.text.startswith(f"libcuda.so.1 has version 570.1, the driver that is loaded {DRIVER}")


def test_a_fabric_manager_of_another_version_is_found() -> None:
    (finding,) = Health().run(node(fabric_manager=lambda: "570.1")).findings
    assert (finding.code, finding.state) == ("fabric-manager-version", State.FAIL)


@pytest.mark.parametrize(("runs", "codes"), [(False, ["fabric-manager-stopped"]), (True, []), (None, [])])
def test_a_fabric_manager_that_does_not_run_is_found(runs: bool | None, codes: list[str]) -> None:
    findings = Health().run(node(fabric_manager_runs=runs)).findings
    assert [finding.code for finding in findings] == codes


def test_without_nvswitches_no_fabric_manager_is_asked() -> None:
    facts: dict[str, Any] = {"nvswitch": False, "expectation": expectation(nvswitch=False)}
    facts |= {"fabric_manager": lambda: "570.1"}
    assert Health().run(node(**facts)).findings == ()


@pytest.mark.parametrize(
    ("nvswitch", "code", "state"),
    [(True, "nvlink-down", State.FAIL), (False, "nvlink-fewer", State.DEGRADED)],
)
def test_links_that_are_down_are_named(nvswitch: bool, code: str, state: State) -> None:
    links = {0: Links(18, ()), 1: Links(16, (3, 17))}
    facts: dict[str, Any] = {"nvswitch": nvswitch, "expectation": expectation(nvswitch=nvswitch)}
    (finding,) = Health().run(node(nvlinks=lambda: links, **facts)).findings
    assert (finding.code, finding.state, finding.device) == (code, state, 1)


def test_links_that_no_gpu_uses_are_no_fault_of_a_node_without_nvswitches() -> None:
    links = {0: Links(12, (4, 5)), 1: Links(12, (4, 5))}
    facts: dict[str, Any] = {"nvswitch": False, "expectation": expectation(nvswitch=False)}
    assert Health().run(node(nvlinks=lambda: links, **facts)).findings == ()


def test_links_that_nvidia_smi_does_not_show_are_down_where_there_are_nvswitches() -> None:
    """`Unable to retrieve NVLink information as all links are inActive` has no line for any link."""
    (finding,) = Health().run(node(nvlinks=lambda: {0: Links(18, ())})).findings
    assert (finding.code, finding.state, finding.device) == ("nvlink-down", State.FAIL, 1)
    assert finding.text == "GPU 1: all NVLinks are down"


def test_switches_that_are_not_on_the_pci_bus_are_known_from_the_plan() -> None:
    """Those of the fifth generation show as network adapters."""
    findings = Health().run(node(nvswitch=False, nvlinks=dict)).findings
    assert [finding.code for finding in findings] == ["nvlink-down", "nvlink-down"]


def test_links_that_cannot_be_looked_at_are_said() -> None:
    def fails() -> Any:
        raise NvidiaSmiError("timeout", "nvidia-smi gave no answer within 10 s")

    (finding,) = Health().run(node(nvlinks=fails)).findings
    assert (finding.code, finding.state) == ("nvlink-unknown", State.DEGRADED)
    facts: dict[str, Any] = {"nvswitch": False, "expectation": expectation(nvswitch=False)}
    assert Health().run(node(nvlinks=fails, **facts)).findings == ()


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({"dram_uncorrectable": "Unknown Error"}, State.DEGRADED),
        ({"performance_state": "[Unknown Error]"}, State.DEGRADED),
        ({"current_power_limit": "ERR!"}, State.DEGRADED),
        ({"dram_uncorrectable": "GPU is lost"}, State.FAIL),
        ({"remapped_row_pending": "GPU requires reset"}, State.FAIL),
    ],
)
def test_an_error_in_place_of_a_value_is_not_healthy(changes: dict[str, str], state: State) -> None:
    (finding,) = Health().run(node(smi_xml(gpu_xml(**changes), SECOND))).findings
    assert (finding.code, finding.state, finding.device) == ("gpu-unanswered", state, 0)


def log_of(*lines: str) -> Any:
    return lambda: KernelLog(kernel_log.events(lines))


OFF_THE_BUS = "NVRM: Xid (PCI:0000:43:00): 79, pid=12, name=python3, GPU has fallen off the bus."


def test_an_xid_names_the_gpu_what_it_means_and_what_nvidia_recommends() -> None:
    (finding,) = Health().run(node(kernel_log=log_of(OFF_THE_BUS, OFF_THE_BUS))).findings
    assert (finding.code, finding.state, finding.device) == ("xid-79", State.FAIL, 1)
    assert finding.text == (
        "GPU 1: Xid 79, the GPU has fallen off the bus; 2 times since the driver was loaded, last: "
        "pid=12, name=python3, GPU has fallen off the bus."
    )
    assert "reboot" in finding.action


@pytest.mark.parametrize(
    "lines",
    [
        ["NVRM: Xid (PCI:0000:43:00): 31, pid=12, name=python3, MMU Fault"],
        ["NVRM: Xid (PCI:0000:43:00): 63, row remapping event"],
        [OFF_THE_BUS, "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.178.04"],
    ],
)
def test_a_programs_own_error_and_one_from_before_the_driver_was_loaded_are_no_fault(
    lines: list[str],
) -> None:
    assert Health().run(node(kernel_log=log_of(*lines))).findings == ()


def test_an_xid_that_no_catalogue_knows_is_said() -> None:
    line = "NVRM: Xid (PCI:0000:43:00): 999, something new"
    assert [f.code for f in Health().run(node(kernel_log=log_of(line))).findings] == ["xid-unknown"]


def test_a_kernel_log_that_cannot_be_read_is_said() -> None:
    result = Health().run(node(kernel_log=lambda: KernelLog(unreadable="dmesg: not permitted")))
    assert result.details["kernel_log"] == "dmesg: not permitted"
    (finding,) = result.findings
    assert (finding.code, finding.state) == ("kernel-log-unreadable", State.DEGRADED)


SWITCH = "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, {}, Link 30 LTSSM Fault Up"


def test_a_fatal_error_of_an_nvswitch_is_found_and_one_that_was_handled_counted() -> None:
    fatal = log_of(SWITCH.format("Fatal"), SWITCH.format("Fatal"))
    (finding,) = Health().run(node(kernel_log=fatal)).findings
    assert (finding.code, finding.state) == ("sxid-fatal", State.FAIL)
    assert finding.text == (
        "the NVSwitch at 0000:c1:00.0: 2 fatal errors since the driver was loaded, last: SXid 20034, Fatal, "
        "Link 30 LTSSM Fault Up"
    )
    handled = Health().run(node(kernel_log=log_of(SWITCH.format("Non-fatal"))))
    assert (handled.findings, handled.details["xids"]) == ((), {"SXid 20034": 1})


def test_a_report_that_lists_no_gpu_is_no_healthy_node() -> None:
    (finding,) = Health().run(node(smi_xml())).findings
    assert (finding.code, finding.state) == ("driver-no-devices", State.FAIL)
    assert node(smi_xml()).why_no_cuda() == "nvidia-smi -q -x lists no GPU"
