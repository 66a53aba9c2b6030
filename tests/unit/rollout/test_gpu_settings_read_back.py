"""Settings of GPUs, read from reports of nvidia-smi."""

import pytest

from temper.rollout.gate import judge_settings
from temper.rollout.gpu_settings import parse
from tests.unit.each import each
from tests.unit.validation.real_reports import RealReport, from_table
from tests.unit.validation.samples import gpu_xml, smi_xml
from validation.probes.reading import ReadingError

MIG = """<mig_devices>
<mig_device><index>0</index><gpu_instance_id>1</gpu_instance_id><device_attributes><shared>
<multiprocessor_count>42</multiprocessor_count></shared></device_attributes>
<fb_memory_usage><total>40192 MiB</total></fb_memory_usage></mig_device>
<mig_device><index>1</index><gpu_instance_id>9</gpu_instance_id><device_attributes><shared>
<multiprocessor_count>14</multiprocessor_count></shared></device_attributes>
<fb_memory_usage><total>9856 MiB</total></fb_memory_usage></mig_device></mig_devices><processes>"""

ECC = "<pending_ecc>Enabled</pending_ecc><current_ecc>"


def lost(before: str, after: str) -> list[str]:
    found: list[str] = []
    judge_settings(parse(before), parse(after), found, [])
    return found


@each(*from_table())
def test_a_real_report_says_the_same_of_itself(report: RealReport) -> None:
    if "<?xml" not in report.text:
        pytest.skip("this nvidia-smi gave no report")
    settings = parse(report.text)
    assert settings
    assert lost(report.text, report.text) == []
    assert not {"N/A", "[N/A]"} & {value for gpu in settings.values() for value in gpu.values()}


@each(
    ("current_power_limit", "power limit", "600.00 W"),
    ("current_mig", "MIG mode", "Enabled"),
    ("current_ecc", "ECC", "Disabled"),
    ("application_clock", "graphics clock of applications", "1410 MHz"),
    ("persistence_mode", "persistence mode", "Disabled"),
    ("compute_mode", "compute mode", "Exclusive_Process"),
)
def test_each_setting_is_missed_when_it_is_lost(what: str, name: str, value: str) -> None:
    (sentence,) = [one for one in lost(smi_xml(gpu_xml(**{what: value})), smi_xml(gpu_xml())) if name in one]
    assert value in sentence


def test_a_gpu_that_has_not_registered_with_its_fabric_yet_is_said() -> None:
    (sentence,) = lost(smi_xml(gpu_xml(state="Completed")), smi_xml(gpu_xml(state="In Progress")))
    assert "NVLink fabric was Completed, and is In Progress" in sentence


def test_a_mode_that_waited_for_the_boot_is_not_lost() -> None:
    waits = smi_xml(gpu_xml(current_ecc="Disabled").replace("<current_ecc>", ECC))
    assert lost(waits, smi_xml(gpu_xml(current_ecc="Enabled"))) == []
    (sentence,) = lost(waits, smi_xml(gpu_xml(current_ecc="Disabled")))
    assert "ECC was Enabled, and is Disabled" in sentence


def test_mig_instances_that_a_reboot_took_are_missed() -> None:
    """MIG mode survives a reboot, instances do not."""
    enabled = gpu_xml(current_mig="Enabled")
    before = smi_xml(enabled.replace("<processes>", MIG))
    (sentence,) = lost(before, smi_xml(enabled))
    assert "1 x 14 SMs 9856 MiB, 1 x 42 SMs 40192 MiB" in sentence
    assert "none" in sentence


@each(
    ("<gpu_instance_id>9", "<gpu_instance_id>2", True),
    # Another driver keeps more memory for itself. A100, 2g.10gb: 9984 MiB before R535, 9856 MiB with it.
    ("9856", "9984", True),
    ("9856", "10112", True),
    ("9856", "4864", False),
    ("9856", "19968", False),
)
def test_instances_with_other_numbers_are_the_same(old: str, new: str, same: bool) -> None:
    enabled = gpu_xml(current_mig="Enabled")
    before = smi_xml(enabled.replace("<processes>", MIG))
    after = smi_xml(enabled.replace("<processes>", MIG.replace(old, new)))
    assert (lost(before, after) == []) is same


@each("", "NVIDIA-SMI has failed", smi_xml(gpu_xml(uuid="")))
def test_what_is_no_report_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="nvidia-smi -q -x"):
        parse(text)


@each("", "<", "</process_name>", "&", "a\x00b", '</gpu><gpu id="0000:43:00.0">')
def test_no_name_of_a_process_changes_or_hides_a_setting(name: str) -> None:
    process = f"<process_info><pid>42</pid><type>C</type><process_name>{name}</process_name></process_info>"
    second = gpu_xml(pci_bus_id="00000000:43:00.0", uuid="GPU-2", current_ecc="Disabled")
    assert parse(smi_xml(gpu_xml(processes=process), second, attached=2)) == parse(smi_xml(gpu_xml(), second))


@each(
    "",
    "nvidia-smi: command not found",
    smi_xml(gpu_xml())[:900],
    '<?xml?>\n<!DOCTYPE a [<!ENTITY b "c">]>',
)
def test_what_is_no_whole_report_is_an_error_that_says_what_it_is(text: str) -> None:
    with pytest.raises(ReadingError, match="expected a whole report of `nvidia-smi -q -x`"):
        parse(text)
