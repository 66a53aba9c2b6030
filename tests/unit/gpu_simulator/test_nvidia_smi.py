"""The simulated nvidia-smi: exit statuses, forms of output, settings and how long they last."""

import re
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.lab.gpu_simulator.profiles import PROFILES
from tests.unit.each import each
from tests.unit.gpu_simulator.conftest import PACKAGES, SimulatedNode

MakeNode = Callable[..., SimulatedNode]

FIRST_H100 = "00000000:1B:00.0"

# ---------------------------------------------------------------- exit statuses


def test_without_a_loaded_module_the_status_is_9(bare: MakeNode) -> None:
    node = bare()
    node.install("580.126.09")
    result = node.smi()
    assert result.returncode == 9
    assert result.stdout == (
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
        "Make sure that the latest NVIDIA driver is installed and running.\n\n"
    )


def test_without_its_library_the_status_is_12(bare: MakeNode) -> None:
    result = bare().smi()
    assert (result.returncode, "couldn't find libnvidia-ml.so" in result.stdout) == (12, True)


def test_between_upgrade_and_reboot_the_status_is_18(booted: MakeNode) -> None:
    node = booted(version="580.126.09")
    node.install("580.178.04")
    result = node.smi("-L")
    assert result.returncode == 18
    assert result.stdout == (
        "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.178\n"
    )
    node.boot()
    assert node.smi("-L").returncode == 0


NO_DEVICE = "No devices were found"


@each(
    ("--query-gpu=name,clocks.warp --format=csv", 2, 'Field "clocks.warp" is not a valid field to query.'),
    *((f"--query-gpu=name {form}", 2, "") for form in ("", "--format=xml", "--format=noheader")),
    *((words, 2, "") for words in ("-pl much", "-lgc fast", "-lgc 1,2,3", "-pm 2", "-mig x")),
    *((words, 6, NO_DEVICE) for words in ("-L -i 8", "-pm 1 -i 9", "-q -i GPU-0")),
    *((words, 255, "") for words in ("--frobnicate", "-x", "-q", "nvlink", "-pl")),
)
def test_wrong_arguments_have_the_status_of_the_real_one(
    words: str, status: int, said: str, h100: SimulatedNode
) -> None:
    result = h100.smi(*words.split())
    assert result.returncode == status
    assert not said or result.stdout.strip() == said


@each("-pm 0", "-lgc 1410", "-rgc", "-lmc 405", "-rmc", "-pl 60")
def test_settings_need_root_and_fail_with_4(words: str, l4: SimulatedNode) -> None:
    result = l4.smi(*words.split(), user=1000)
    assert result.returncode == 4
    assert result.stdout.endswith("\nTerminating early due to previous errors.\n")
    assert l4.query("persistence_mode,power.limit") == [["Enabled", "72.00"]]


@pytest.mark.component
def test_a_reader_that_goes_away_is_no_traceback(h100: SimulatedNode) -> None:
    pipeline = f"'{sys.executable}' -IS '{PACKAGES}/nvidia_smi.py' -q -x | head -1"
    result = subprocess.run(
        ["sh", "-c", pipeline], env=h100.environment, capture_output=True, text=True, timeout=30
    )
    assert (result.stdout, result.stderr) == ('<?xml version="1.0" ?>\n', "")


# ---------------------------------------------------------------- what is printed


def test_the_list_has_one_line_a_gpu(h100: SimulatedNode) -> None:
    lines = h100.smi("-L").stdout.splitlines()
    assert len(lines) == 8
    assert re.fullmatch(r"GPU 3: NVIDIA H100 80GB HBM3 \(UUID: GPU-[0-9a-f-]{36}\)", lines[3])


def test_a_csv_header_is_canonical_and_has_units(h100: SimulatedNode) -> None:
    fields = "gpu_name,clocks.sm,clocks.max.mem,memory.total,power.limit,clocks_throttle_reasons.active"
    header, first, *_ = h100.smi(f"--query-gpu={fields}", "--format=csv").stdout.splitlines()
    assert header == (
        "name, clocks.current.sm [MHz], clocks.max.memory [MHz], memory.total [MiB], power.limit [W], "
        "clocks_event_reasons.active"
    )
    assert first == "NVIDIA H100 80GB HBM3, 345 MHz, 2619 MHz, 81559 MiB, 700.00 W, 0x0000000000000001"


def test_what_a_gpu_has_not_is_bracketed(l4: SimulatedNode) -> None:
    assert l4.query("fan.speed,mig.mode.current,fabric.state,temperature.memory") == [["[N/A]"] * 4]


def test_gpus_are_chosen_by_index_uuid_or_address(h100: SimulatedNode) -> None:
    uuid = h100.query("uuid")[5][0]
    for name in ("5", uuid, "00000000:C3:00.0", "0000:c3:00.0", "C3:00.0"):
        assert h100.query("index", "-i", name) == [["5"]]
    assert h100.query("index", "--id=0,2") == [["0"], ["2"]]


@pytest.mark.parametrize("profile", [name for name in PROFILES if name != "unknown-1"])
def test_the_xml_has_what_roles_and_payload_read(profile: str, booted: MakeNode) -> None:
    node = booted(profile, "580.178.04")
    root = node.xml()
    model = PROFILES[profile].model
    assert root.findtext("driver_version") == "580.178.04"
    assert root.findtext("cuda_version") == "13.0"
    gpus = root.findall("gpu")
    assert len(gpus) == len(PROFILES[profile].gpu_addresses)
    expected = {
        "product_name": model.name,
        "persistence_mode": "Disabled",
        "pci/pci_gpu_link_info/pcie_gen/max_link_gen": str(model.pcie_gen_max),
        "pci/pci_gpu_link_info/pcie_gen/current_link_gen": str(model.pcie_gen_max),
        "pci/pci_gpu_link_info/link_widths/current_link_width": "16x",
        "clocks_event_reasons/clocks_event_reason_hw_thermal_slowdown": "Not Active",
        "fb_memory_usage/total": f"{model.memory_total_mib} MiB",
        "ecc_mode/current_ecc": "Enabled",
        "ecc_errors/volatile/dram_uncorrectable": "0",
        "gpu_power_readings/current_power_limit": f"{model.power_default_w:.2f} W",
        "gpu_power_readings/min_power_limit": f"{model.power_min_w:.2f} W",
        "clocks/sm_clock": f"{model.clock_graphics_idle_mhz} MHz",
        "max_clocks/graphics_clock": f"{model.supported_clocks[0].graphics_mhz[0]} MHz",
        "applications_clocks/graphics_clock": f"{model.clock_graphics_default_application_mhz} MHz",
        "fabric/state": "In Progress" if model.fabric else "N/A",
        "processes": "\n\t\t",
    }
    for path, value in expected.items():
        assert gpus[0].findtext(path) == value, path
    assert gpus[0].findtext("remapped_rows/remapped_row_failure") == "No"
    clocks = [
        int(element.text.split()[0]) for element in gpus[0].iter("supported_graphics_clock") if element.text
    ]
    assert clocks == [clock for entry in model.supported_clocks for clock in entry.graphics_mhz]


def test_driver_595_has_new_elements_and_no_application_clocks(booted: MakeNode) -> None:
    gpu = booted("hgx-h100-8", "595.91.07").xml().find("gpu")
    assert gpu is not None
    assert gpu.findtext("ecc_errors/unrepairable_memory") == "N/A"
    assert gpu.findtext("applications_clocks/graphics_clock") == "Requested functionality has been deprecated"


def test_supported_clocks_are_a_row_each(l4: SimulatedNode) -> None:
    rows = l4.smi("--query-supported-clocks=mem,gr", "--format=csv").stdout.splitlines()
    assert rows[:2] == ["memory [MHz], graphics [MHz]", "6251 MHz, 2040 MHz"]
    assert len(rows) == 1 + 123 + 30


def test_every_nvlink_has_a_speed(h100: SimulatedNode, l4: SimulatedNode) -> None:
    assert h100.smi("nvlink", "-s").stdout.count("26.562 GB/s") == 8 * 18
    assert "Link" not in l4.smi("nvlink", "--status").stdout


# ---------------------------------------------------------------- settings


def test_persistence_mode_says_whether_it_changed(booted: MakeNode) -> None:
    node = booted()
    assert (
        node.smi("-pm", "1").stdout
        == "Enabled Legacy persistence mode for GPU 00000000:31:00.0.\nAll done.\n"
    )
    assert (
        node.smi("-pm", "1").stdout
        == "Persistence mode is already Enabled for GPU 00000000:31:00.0.\nAll done.\n"
    )
    assert node.query("persistence_mode") == [["Enabled"]]
    assert node.smi("-pm", "0").stdout == "Disabled persistence mode for GPU 00000000:31:00.0.\nAll done.\n"
    assert node.query("persistence_mode") == [["Disabled"]]


@each(
    ("-lgc", "GPU clocks", "gpuClk", "1410", "-rgc", "clocks.sm", "345"),
    ("-lmc", "Memory clocks", "memClk", "1593", "-rmc", "clocks.mem", "2619"),
)
def test_locked_clocks_are_in_force_until_they_are_reset(
    lock: str, what: str, name: str, mhz: str, reset: str, field: str, idle: str, h100: SimulatedNode
) -> None:
    said = f'{what} set to "({name}Min {mhz}, {name}Max {mhz})" for GPU {FIRST_H100}\nAll done.\n'
    assert h100.smi(lock, f"{mhz},{mhz}", "-i", "0").stdout == said
    assert [row[0] for row in h100.query(field)] == [mhz, *[idle] * 7]
    assert h100.smi(reset).stdout == "All done.\n"
    assert h100.query(field) == [[idle]] * 8


def test_a_clock_that_no_gpu_has_becomes_the_nearest_that_it_has(h100: SimulatedNode) -> None:
    assert h100.smi("-lgc", "1412").returncode == 0
    assert h100.query("clocks.sm", "-i", "0") == [["1410"]]


def test_a_power_limit_is_taken_within_the_range(l4: SimulatedNode) -> None:
    result = l4.smi("-pl", "60")
    assert (
        result.stdout == "Power limit for GPU 00000000:31:00.0 was set to 60.00 W from 72.00 W.\nAll done.\n"
    )
    assert l4.query("power.limit,enforced.power.limit,power.default_limit") == [["60.00", "60.00", "72.00"]]


def test_a_power_limit_out_of_range_is_refused(l4: SimulatedNode) -> None:
    result = l4.smi("-pl", "300")
    assert result.returncode == 2
    assert result.stdout == (
        "Provided power limit 300.00 W is not a valid power limit which should be between 40.00 W and "
        "72.00 W for GPU 00000000:31:00.0\nTerminating early due to previous errors.\n"
    )
    assert l4.query("power.limit") == [["72.00"]]


def test_settings_are_lost_with_persistence_mode_and_at_reboot(l4: SimulatedNode) -> None:
    l4.smi("-pl", "60")
    l4.smi("-pm", "0")
    l4.smi("-pm", "1")
    assert l4.query("power.limit") == [["72.00"]]
    l4.smi("-lgc", "1500")
    l4.smi("-pl", "60")
    l4.boot()
    assert l4.query("persistence_mode,clocks.sm,power.limit") == [["Disabled", "210", "72.00"]]


def test_without_persistence_mode_a_setting_warns_and_does_not_last(booted: MakeNode) -> None:
    node = booted()
    result = node.smi("-pl", "60")
    assert result.returncode == 0
    assert "Warning: persistence mode is disabled on device 00000000:31:00.0." in result.stdout
    assert node.query("power.limit") == [["72.00"]]


def test_ecc_mode_waits_for_the_reboot(l4: SimulatedNode) -> None:
    assert "Reboot required." in l4.smi("-e", "0").stdout
    assert l4.query("ecc.mode.current,ecc.mode.pending") == [["Enabled", "Disabled"]]
    l4.boot()
    assert l4.query("ecc.mode.current,ecc.mode.pending") == [["Disabled", "Disabled"]]


def test_mig_mode_survives_the_reboot(h100: SimulatedNode) -> None:
    assert h100.smi("-mig", "1", "-i", "0").stdout == f"Enabled MIG Mode for GPU {FIRST_H100}\nAll done.\n"
    h100.boot()
    assert [row[0] for row in h100.query("mig.mode.current")] == ["Enabled", *["Disabled"] * 7]


def test_a_gpu_without_mig_says_so(l4: SimulatedNode) -> None:
    result = l4.smi("-mig", "1")
    assert (result.returncode, "is not supported for GPU" in result.stdout) == (0, True)
