"""Reading nvidia-smi: reports of several driver generations, absent values, and every way to fail."""

from pathlib import Path
from typing import Any

import pytest

from tests.unit.each import each
from tests.unit.executables import executable
from tests.unit.validation.samples import DRIVER, gpu_xml, smi_xml
from validation.probes import gpu_samples, nvidia_smi
from validation.probes.nvidia_smi import NvidiaSmiError
from validation.probes.report_values import UNANSWERED
from validation.processes.command import Done


def test_a_report_is_read() -> None:
    report = nvidia_smi.parse(smi_xml(gpu_xml(), gpu_xml(uuid="GPU-2")))
    assert report.driver_version == DRIVER
    assert [gpu.index for gpu in report.gpus] == [0, 1]
    gpu = report.gpus[0]
    assert (gpu.pci_address, gpu.pci_id) == ("0000:1b:00.0", "2330")
    assert (gpu.pcie_generation, gpu.pcie_generation_max, gpu.pcie_width, gpu.pcie_width_max) == (
        5,
        5,
        16,
        16,
    )
    assert (gpu.persistence, gpu.mig, gpu.row_remap_failure) == (True, False, False)
    assert gpu.page_retirement_pending is None, "N/A is not No"
    assert gpu.memory_free_mib == 81080


def test_uncorrectable_errors_are_added_over_all_memories_and_correctable_ones_are_not() -> None:
    assert nvidia_smi.parse(smi_xml(gpu_xml(dram_uncorrectable="3"))).gpus[0].ecc_uncorrected_volatile == 3


@each(
    ({"device_memory": "0", "total": "0"}, 0),
    ({"device_memory": "2", "register_file": "1", "cbu": "N/A", "total": "3"}, 3),
    ({"device_memory": "2", "total": "0"}, 2),
    ({"device_memory": "0", "total": "N/A"}, 0),
    ({"device_memory": "N/A", "total": "4"}, 4),
    ({"device_memory": "N/A", "total": "N/A"}, None),
)
def test_errors_of_two_bits_are_found_in_their_units_and_in_their_sum(
    units: dict[str, str], count: int | None
) -> None:
    told = "".join(f"<{name}>{text}</{name}>" for name, text in units.items())
    newer = gpu_xml().partition("<volatile>")[2].partition("</volatile>")[0]
    volta = f"<single_bit><total>7</total></single_bit><double_bit>{told}</double_bit>"
    (gpu,) = nvidia_smi.parse(smi_xml(gpu_xml().replace(newer, volta))).gpus
    assert (gpu.ecc_uncorrected_volatile, gpu.ecc_corrected_volatile) == (count, 7)


def test_event_reasons_have_one_name_in_old_and_new_drivers() -> None:
    new = gpu_xml(hw_thermal_slowdown="Active")
    old = new.replace("clocks_event_reason", "clocks_throttle_reason")
    for xml in (new, old):
        assert nvidia_smi.parse(smi_xml(xml)).gpus[0].event_reasons == ("hw_thermal_slowdown",)


def test_a_process_is_named() -> None:
    process = "<process_info><pid>42</pid><process_name>python3</process_name></process_info>"
    assert nvidia_smi.parse(smi_xml(gpu_xml(processes=process))).gpus[0].processes == ("python3 (pid 42)",)


@each(
    (gpu_xml(), False),
    (gpu_xml().replace("<compute_mode>Default</compute_mode>", ""), False),
    (gpu_xml(compute_mode="Prohibited"), False),
    (gpu_xml(compute_mode="Exclusive_Process"), True),
)
def test_a_gpu_that_serves_one_process_at_a_time_is_told(xml: str, exclusive: bool) -> None:
    assert nvidia_smi.parse(smi_xml(xml)).gpus[0].is_exclusive == exclusive


@each(*sorted(UNANSWERED), "[Unknown Error]", "unknown return value: 999", "Perhaps")
def test_a_word_that_is_no_answer_is_never_a_no(word: str) -> None:
    changes = dict.fromkeys(
        ("persistence_mode", "current_mig", "current_ecc", "remapped_row_failure", "remapped_row_pending"),
        word,
    )
    (gpu,) = nvidia_smi.parse(smi_xml(gpu_xml(**changes))).gpus
    answers = (gpu.persistence, gpu.mig, gpu.ecc, gpu.row_remap_failure, gpu.row_remap_pending)
    assert answers == (None,) * 5


def test_what_nobody_may_ask_is_unanswered_only_where_a_gpu_is_judged_by_it() -> None:
    asked = gpu_xml(remapped_row_pending="Insufficient Permissions", used="Insufficient Permissions")
    (gpu,) = nvidia_smi.parse(smi_xml(asked)).gpus
    assert list(map(str, gpu.unanswered)) == ["remapped_row_pending: Insufficient Permissions"]


def test_an_error_that_nvidia_smi_has_no_words_for_is_none_of_its_values() -> None:
    words = "unknown return value: 32766"
    asked = gpu_xml(dram_uncorrectable=words, state=words, current_power_limit=words)
    (gpu,) = nvidia_smi.parse(smi_xml(asked)).gpus
    assert {str(one) for one in gpu.unanswered} == {f"dram_uncorrectable: {words}", f"state: {words}"}
    assert (gpu.fabric_state, gpu.power_limit_w) == (None, None)


def test_an_element_of_a_gpu_may_have_more_than_its_address() -> None:
    (gpu,) = nvidia_smi.parse(smi_xml(gpu_xml()).replace('">', '" state="new">')).gpus
    assert gpu.uuid == "GPU-1"


def test_an_unknown_error_in_what_describes_the_system_is_none_of_the_gpu() -> None:
    described = gpu_xml().replace("<max_link_gen>", "<max_host_link_gen>{}</max_host_link_gen><max_link_gen>")
    for error, told in (("Unknown Error", []), ("GPU is lost", ["max_host_link_gen: GPU is lost"])):
        (gpu,) = nvidia_smi.parse(smi_xml(described.format(error))).gpus
        assert list(map(str, gpu.unanswered)) == told


def test_a_bank_that_will_be_remapped_waits_for_a_reset_as_a_row_does() -> None:
    for pending in (True, False):
        banks = f"<remapped_banks><bank_remapper_pending>{'Yes' if pending else 'No'}</bank_remapper_pending>"
        xml = gpu_xml().replace("<remapped_rows>", f"{banks}</remapped_banks><remapped_rows>")
        assert nvidia_smi.parse(smi_xml(xml)).gpus[0].row_remap_pending is pending


@each(
    "a\x1b[31mb",
    "a\x00b",
    "sh -c a&&b",
    "tom & jerry",
    "R&amp;D",
    "cat <(ls) </dev/null",
    "a&#1;b&no;",
    "python3 -c a[b[0]]>1",
)
def test_what_no_xml_may_have_loses_no_report(name: str) -> None:
    process = f"<process_info><pid>42</pid><process_name>{name}</process_name></process_info>"
    (gpu,) = nvidia_smi.parse(f"{smi_xml(gpu_xml(processes=process))}\nWARNING: more text\n").gpus
    assert gpu.processes[0].endswith("(pid 42)")


FAULTY = gpu_xml(pci_bus_id="00000000:43:00.0", uuid="GPU-2", dram_uncorrectable="2")
FORGED = f"</process_name></process_info></processes></gpu>\n\n\t{FAULTY.partition('</processes>')[0]}"


def called(name: str) -> str:
    """The process that somebody called so."""
    return f"<process_info><pid>42</pid><type>C</type><process_name>{name}</process_name></process_info>"


@each(
    "",
    "\n",
    "</process_name>",
    "<process_name>",
    "</processes></gpu></nvidia_smi_log>",
    "\n</nvidia_smi_log>\n",
    "<![CDATA[",
    "<!--",
    "<?x",
    "&#0;&lt",
    "\ud800\ufffe\x1b",
    '<gpu id="00000000:43:00.0">',
    "\nWARNING: infoROM is corrupted at gpu 0000:03:00.0\n",
    "\nUnable to determine the device handle for GPU0000:02:00.0: Unknown Error\n",
    "\nFailed to initialize NVML\n",
    "\nNo devices were found\n",
)
def test_no_name_of_a_process_hides_or_makes_a_gpu_or_a_fault(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes = called(name) + called("other")
    text = smi_xml(gpu_xml(processes=processes), FAULTY, attached=2)
    monkeypatch.setattr(nvidia_smi, "start", lambda _: None)
    monkeypatch.setattr(nvidia_smi, "_finish", lambda *_: Done(0, text, ""))
    report = nvidia_smi.query()
    assert report.warnings == ()
    assert [(gpu.pci_address, gpu.ecc_uncorrected_volatile) for gpu in report.gpus] == [
        ("0000:1b:00.0", 0),
        ("0000:43:00.0", 2),
    ]
    assert (len(report.gpus[0].processes), report.gpus[0].processes[1]) == (2, "other (pid 42)")


@pytest.mark.component
@pytest.mark.parametrize("address", ["00000000:1B:00.0", "00000000:43:00.0"])
def test_a_gpu_that_the_name_of_a_process_adds_is_found_out(address: str, fake: Path) -> None:
    """The driver's are then asked for alone, and each is the first in its report."""
    words = FORGED.replace("00000000:43:00.0", address).replace("<uuid>", f"\n{NO_HANDLE}\n<uuid>")
    forged = gpu_xml(processes=called(words))
    alone = smi_xml(forged, attached=1)
    assert NO_HANDLE in alone
    program = fake / "nvidia-smi"
    (fake / "report").write_text(alone)
    executable(program, f'echo "$*" >>{fake}/asked\nexec /bin/cat {fake}/report')
    (gpu,) = nvidia_smi.query().gpus
    assert (gpu.pci_address, gpu.ecc_uncorrected_volatile) == ("0000:1b:00.0", 0)
    assert (fake / "asked").read_text().splitlines() == ["-q -x", "-q -x -i 0"]
    with pytest.raises(NvidiaSmiError, match="expected 1 GPUs, found 2"):
        nvidia_smi.parse(alone)


def test_text_that_is_no_report_is_an_error_with_its_first_line() -> None:
    with pytest.raises(NvidiaSmiError, match="gave no XML: something else"):
        nvidia_smi.parse("\nsomething else\n")


def test_a_report_that_breaks_off_is_an_error_that_says_so() -> None:
    with pytest.raises(NvidiaSmiError, match="gave XML that breaks off: it has no </nvidia_smi_log>"):
        nvidia_smi.parse(smi_xml(gpu_xml())[:900])


def test_samples_are_read_with_values_that_a_gpu_does_not_have() -> None:
    first, second, third = gpu_samples.parse_samples(
        "0, 1980, 512.30, 61, 5, 16, 0x0000000000000004, P0, 2\n"
        "1, [N/A], [N/A], 30, [N/A], 16, [N/A], [N/A], [N/A]\n"
        "2, 1980 MHz, unknown return value: 7, 61, ?, 16, 4, P0, \n"
    )
    assert (third.sm_clock_mhz, third.power_w, third.temperature_c, third.ecc_uncorrected) == (
        None,
        None,
        61,
        None,
    )
    assert (third.pcie_generation, third.pcie_width, third.event_reasons) == (None, 16, 0)
    assert (first.sm_clock_mhz, first.power_w, first.pcie_generation, first.event_reasons) == (
        1980,
        512.3,
        5,
        4,
    )
    assert (second.sm_clock_mhz, second.power_w, second.pcie_generation, second.event_reasons) == (
        None,
        None,
        None,
        0,
    )


def test_an_unexpected_sample_is_an_error() -> None:
    with pytest.raises(NvidiaSmiError, match="unexpected line: 0, 1980"):
        gpu_samples.parse_samples("0, 1980")


def test_a_summary_says_how_often_a_reason_was_active() -> None:
    rounds = [
        gpu_samples.parse_samples(f"0, {clock}, 700, 70, 5, 16, {reason}, P0, {errors}")
        for clock, reason, errors in (
            (1980, "0x0", 1),
            (1500, "0x4", 1),
            (1400, "0x4", 3),
            (1300, "0x44", 3),
        )
    ]
    (gpu,) = gpu_samples.summary(rounds)
    assert gpu["sm_clock_mhz_median"] == 1450
    assert gpu["event_reason_shares"] == {"sw_power_cap": 0.75, "hw_thermal_slowdown": 0.25}
    assert gpu["ecc_uncorrected_new"] == 2


def test_a_series_says_what_a_gpu_did_over_time() -> None:
    rounds = [
        gpu_samples.parse_samples(f"0, {clock}, 700, 70, 5, 16, {reason}, P0, 0")
        for clock, reason in ((1980, "0x0"), (1500, "0x44"))
    ]
    (gpu,) = gpu_samples.series([100.0, 101.04], rounds)
    assert gpu == {
        "device": 0,
        "seconds": [0.0, 1.0],
        "sm_clock_mhz": [1980, 1500],
        "power_w": [700, 700],
        "temperature_c": [70, 70],
        "event_reasons": [[], ["sw_power_cap", "hw_thermal_slowdown"]],
    }


def test_a_long_series_is_thinned_and_loses_no_moment_of_throttling() -> None:
    count = 10 * gpu_samples.MOST_POINTS + 3
    rounds = [
        gpu_samples.parse_samples(
            f"0, {300 if place == 57 else 1980}, {650 + (place == 58)}, 70, 5, 16, "
            f"{'0x4' if place == 59 else '0x0'}, P0, 0"
        )
        for place in range(count)
    ]
    (gpu,) = gpu_samples.series([float(place) for place in range(count)], rounds)
    assert len(gpu["seconds"]) <= gpu_samples.MOST_POINTS
    assert min(gpu["sm_clock_mhz"]) == 300
    assert max(gpu["power_w"]) == 651
    assert ["sw_power_cap"] in gpu["event_reasons"]


def test_a_gpu_that_went_away_keeps_its_part_of_the_series() -> None:
    both = gpu_samples.parse_samples(
        "0, 1980, 700, 70, 5, 16, 0x0, P0, 0\n1, 1980, 700, 70, 5, 16, 0x0, P0, 0"
    )
    first, second = gpu_samples.series([0.0, 1.0], [both, both[:1]])
    assert (first["seconds"], second["seconds"]) == ([0.0, 1.0], [0.0])


def test_the_link_of_a_gpu_counts_only_while_it_works() -> None:
    rounds = [
        gpu_samples.parse_samples(f"0, 300, 70, 30, {generation}, 16, 0x0, {state}, 0")
        for generation, state in ((5, "P8"), (3, "P0"), (1, "P8"))
    ]
    assert gpu_samples.summary(rounds)[0]["pcie_generation_max"] == 3
    assert gpu_samples.summary(rounds[:1])[0]["pcie_generation_max"] is None


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder as PATH, in which a test may put a nvidia-smi."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


@pytest.mark.component
@pytest.mark.parametrize(
    ("status", "output", "kind"),
    [
        (9, "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", "no-driver"),
        (18, "Failed to initialize NVML: Driver/library version mismatch", "mismatch"),
        (0, "Failed to initialize NVML: Driver/library version mismatch", "mismatch"),
        (12, "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.", "missing"),
        (15, "Unable to determine the device handle for GPU0000:DF:00.0: GPU is lost.", "lost"),
        (255, "Unable to determine the device handle for GPU0000:0A:00.0: Unknown Error", "lost"),
        (0, "Unable to determine the device handle for GPU 0000:0A:00.0: Unknown Error", "lost"),
        (6, "No devices were found", "no-devices"),
        (0, "No devices were found", "no-devices"),
        (255, "Unknown Error", "other"),
        (14, "the infoROM of a GPU is corrupted", "other"),
        (15, "GPU 0000:DF:00.0 is gone", "lost"),
        (8, "Unable to determine the device handle for GPU0000:DF:00.0: insufficient power", "lost"),
    ],
)
def test_a_failure_has_a_kind_and_the_first_line_as_its_message(
    fake: Path, status: int, output: str, kind: str
) -> None:
    executable(fake / "nvidia-smi", f"printf '%s\\n' \"{output}\"\nexit {status}")
    with pytest.raises(NvidiaSmiError) as caught:
        nvidia_smi.query()
    assert caught.value.kind == kind
    assert output[:30] in str(caught.value)


def says(fake: Path, status: int, text: str) -> None:
    """Have nvidia-smi print this text, and end like that."""
    (fake / "text").write_text(text)
    executable(fake / "nvidia-smi", f"/bin/cat {fake}/text\nexit {status}")


@pytest.mark.component
@pytest.mark.parametrize(
    ("status", "said", "warnings"),
    [
        (0, (), ()),
        (0, ("WARNING: infoROM is corrupted at gpu 0000:03:00.0",), ...),
        (0, ("WARNING: You should always run with libnvidia-ml.so that is installed",), ()),
        (14, ("WARNING: infoROM is corrupted at gpu 0000:03:00.0",), ...),
        (14, ("WARNING: infoROM is corrupted at gpu 0000:03:00.0", "WARNING: ... at gpu 0000:04:00.0"), ...),
        (14, (), ("the infoROM of a GPU is corrupted",)),
        (8, (), ("external power cables of a GPU are not attached",)),
        (15, (), ("a GPU has fallen off the bus or has otherwise become inaccessible",)),
    ],
)
def test_a_status_that_comes_with_a_report_does_not_lose_it(
    status: int, said: tuple[str, ...], warnings: Any, fake: Path
) -> None:
    says(fake, status, "\n".join((smi_xml(gpu_xml()), *said, "")))
    report = nvidia_smi.query()
    assert (len(report.gpus), report.status) == (1, status)
    assert report.warnings == (said if warnings is ... else warnings)


NO_HANDLE = "Unable to determine the device handle for GPU0000:02:00.0: Unknown Error"


@pytest.mark.component
@pytest.mark.parametrize(
    ("status", "text", "message"),
    [
        # Of four GPUs the second is lost: what there is of the others comes before that.
        (255, f"{smi_xml(gpu_xml())[:900]}\n{NO_HANDLE}\n", NO_HANDLE),
        (0, f"{smi_xml(gpu_xml())}\n{NO_HANDLE}\n", NO_HANDLE),
        (0, f"{smi_xml(gpu_xml())}{NO_HANDLE}", NO_HANDLE),
        (255, f"WARNING: infoROM is corrupted at gpu 0000:03:00.0\n{NO_HANDLE}\n", NO_HANDLE),
        (255, smi_xml(gpu_xml()), "it ended with exit status 255 and said nothing"),
        (255, smi_xml(gpu_xml())[:900], "it ended with exit status 255 and said nothing"),
        # Elements of newer drivers have their text on a line of its own.
        (
            255,
            "<?xml?>\n<nvidia_smi_log>\n<gpu>\nNone\n</gpu>\n<g",
            "it ended with exit status 255 and said nothing",
        ),
        (255, f"{smi_xml(gpu_xml())}\nUnknown Error\n", "Unknown Error"),
        (255, f"<?xml?>\n<nvidia_smi_log>\n{NO_HANDLE}\n<gpu>\n</gpu></nvidia_smi_log>", NO_HANDLE),
        (8, "", "external power cables of a GPU are not attached"),
    ],
)
def test_a_failure_says_why_and_not_what_it_printed_before(
    status: int, text: str, message: str, fake: Path
) -> None:
    says(fake, status, text)
    with pytest.raises(NvidiaSmiError) as caught:
        nvidia_smi.query()
    assert str(caught.value) == f"nvidia-smi: {message}"


@pytest.mark.component
@pytest.mark.parametrize("name", ["No devices were found", NO_HANDLE, "Failed to initialize NVML"])
def test_a_process_that_is_named_like_a_failure_is_none(name: str, fake: Path) -> None:
    process = f"<process_info><pid>42</pid><process_name>grep {name}</process_name></process_info>"
    says(fake, 0, smi_xml(gpu_xml(processes=process)))
    assert len(nvidia_smi.query().gpus) == 1


SAMPLES = "0, 1980, 512.30, 61, 5, 16, 0x0, P0, 0\n1, 1980, 512.30, 61, 5, 16, 0x0, P0, 0\n"


@pytest.mark.component
@pytest.mark.parametrize("status", [0, 14])
def test_samples_of_gpus_of_which_one_has_a_corrupt_inforom_are_samples(status: int, fake: Path) -> None:
    says(fake, status, f"{SAMPLES}WARNING: infoROM is corrupted at gpu 0000:03:00.0\n")
    assert [one.index for one in gpu_samples.sample()] == [0, 1]


@pytest.mark.component
def test_samples_of_gpus_of_which_one_is_lost_name_that_one(fake: Path) -> None:
    says(fake, 255, f"{SAMPLES}{NO_HANDLE}\n[Unknown Error], [Unknown Error]\n")
    with pytest.raises(NvidiaSmiError, match=NO_HANDLE) as caught:
        gpu_samples.sample()
    assert caught.value.kind == "lost"


@pytest.mark.component
@pytest.mark.parametrize(
    ("script", "ending"),
    [("exit 255", "it ended with exit status 255"), ("kill -SEGV $$", "it was killed by SIGSEGV")],
)
def test_a_failure_without_a_word_says_how_it_ended(fake: Path, script: str, ending: str) -> None:
    executable(fake / "nvidia-smi", script)
    with pytest.raises(NvidiaSmiError, match=f"nvidia-smi: {ending} and said nothing"):
        nvidia_smi.query()


@pytest.mark.component
@pytest.mark.usefixtures("fake")
def test_a_missing_program_is_said_to_be_missing() -> None:
    with pytest.raises(NvidiaSmiError, match="nvidia-smi is not installed") as caught:
        nvidia_smi.query()
    assert caught.value.kind == "missing"


@pytest.mark.component
def test_a_program_that_hangs_is_given_up(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executable(fake / "nvidia-smi", "exec /bin/sleep 60")
    monkeypatch.setattr(gpu_samples, "SAMPLE_TIMEOUT_S", 0.2)
    with pytest.raises(NvidiaSmiError, match="no answer within 0 s") as caught:
        gpu_samples.sample()
    assert caught.value.kind == "timeout"
