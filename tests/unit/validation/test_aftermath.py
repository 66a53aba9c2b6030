"""Health after the load: what came meanwhile counts, what was there before and what passes does not."""

from typing import Any

from tests.unit.each import each
from tests.unit.validation.samples import gpu_xml, node, smi_xml
from validation.checks.aftermath import HealthAfter
from validation.model.contract import State
from validation.model.expectations import Expectation
from validation.probes import kernel_log, nvidia_smi
from validation.probes.kernel_log import KernelLog
from validation.probes.machine import PciGpu
from validation.probes.nvidia_smi import NvidiaSmiError

SECOND = gpu_xml(pci_bus_id="00000000:43:00.0", uuid="GPU-2")
HEALTHY = smi_xml(gpu_xml(), SECOND)
OFF_THE_BUS = "NVRM: Xid (PCI:0000:43:00): 79, pid=12, name=python3, GPU has fallen off the bus."
RESET_REQUIRED = (
    "NVRM: nvAssertOkFailedNoLog: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED] (0x00000062) "
    "returned from status @ kernel_channel.c:2827"
)
REBOOT_REQUIRED = (
    "NVRM: nvGpuOpsReportFatalError: uvm encountered global fatal error 0x60, requiring os reboot to recover."
)


def one_after_the_other(*reports: str | NvidiaSmiError) -> Any:
    """What nvidia-smi answers: each once, the last for ever."""
    script = list(reports)

    def query() -> nvidia_smi.Report:
        said = script.pop(0) if len(script) > 1 else script[0]
        if isinstance(said, NvidiaSmiError):
            raise said
        return nvidia_smi.parse(said)

    return query


def codes(**facts: Any) -> list[str]:
    tested = node(**facts)
    tested.probe_now()
    return [finding.code for finding in HealthAfter().run(tested).findings]


def test_nothing_came() -> None:
    result = HealthAfter().run(node())
    assert (result.state, result.findings) == (State.PASS, ())


@each(
    ({"dram_uncorrectable": "2"}, ["ecc-uncorrected"]),
    ({"remapped_row_pending": "Yes"}, ["memory-repair-pending"]),
    ({"gpu_recovery_action": "Reset"}, ["recovery-action"]),
    ({"sw_thermal_slowdown": "Active"}, []),
    ({"hw_slowdown": "Active"}, []),
    ({"current_link_gen": "1"}, []),
    ({"current_link_width": "8x"}, ["pcie-link-down-trained"]),
)
def test_what_the_load_brought_to_light_is_found(changes: dict[str, str], expected: list[str]) -> None:
    assert codes(query=one_after_the_other(HEALTHY, smi_xml(gpu_xml(**changes), SECOND))) == expected


def test_what_was_there_before_is_not_said_twice() -> None:
    worn = smi_xml(gpu_xml(remapped_row_pending="Yes"), SECOND)
    assert codes(query=one_after_the_other(worn, worn)) == []


def test_one_more_line_of_an_error_is_found() -> None:
    for line, code in (
        (OFF_THE_BUS, "xid-79"),
        ("NVRM: GPU 0000:43:00.0: GPU has fallen off the bus.", "gpu-off-the-bus"),
        ("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up", "sxid-fatal"),
        (RESET_REQUIRED, "reset-required"),
        (REBOOT_REQUIRED, "reboot-required"),
        ("NVRM: Xid (PCI:0000:43:00): a new form, 13", "kernel-error-unreadable"),
    ):
        for before in ([], [line], [line] * 49):
            logs = [KernelLog(kernel_log.events(lines)) for lines in (before, [*before, line])]
            assert codes(kernel_log=lambda logs=logs: logs.pop(0)) == [code], (line, len(before))
        logs = [KernelLog(kernel_log.events([line])) for _ in range(2)]
        assert codes(kernel_log=lambda logs=logs: logs.pop(0)) == [], line


def test_another_recovery_action_than_before_is_found() -> None:
    for before, now, found in (
        ("Drain P2P", "Reset", ["recovery-action"]),
        ("Reset", "Reboot", ["recovery-action"]),
        ("Reset", "Reset", []),
    ):
        reports = [smi_xml(gpu_xml(gpu_recovery_action=one), SECOND) for one in (before, now)]
        assert codes(query=one_after_the_other(*reports)) == found, (before, now)


def test_a_gpu_that_fell_off_the_bus_is_found() -> None:
    both = PciGpu("0000:1b:00.0", "2330"), PciGpu("0000:43:00.0", "2330")
    on_the_bus = [both, both[:1]]
    query = one_after_the_other(HEALTHY, smi_xml(gpu_xml()))
    assert codes(query=query, pci_gpus=lambda: on_the_bus.pop(0)) == ["gpu-vanished", "gpu-count"]


def test_a_gpu_that_nobody_lists_any_more_is_named_where_no_number_of_gpus_is_expected() -> None:
    both = PciGpu("0000:1b:00.0", "2330"), PciGpu("0000:43:00.0", "2330")
    on_the_bus = [both, both[1:]]
    tested = node(
        query=one_after_the_other(HEALTHY, smi_xml(SECOND)),
        pci_gpus=lambda: on_the_bus.pop(0),
        expectation=Expectation(),
    )
    tested.probe_now()
    (found,) = HealthAfter().run(tested).findings
    assert (found.code, found.state, found.device) == ("gpu-vanished", State.FAIL, 0)


def test_a_driver_that_died_is_found() -> None:
    died = NvidiaSmiError("timeout", "nvidia-smi gave no answer within 60 s")
    assert codes(query=one_after_the_other(HEALTHY, died)) == ["driver-timeout"]


def test_without_a_gpu_there_is_nothing_to_look_at() -> None:
    assert HealthAfter().run(node(pci_gpus=())).state is State.NOT_RUN
