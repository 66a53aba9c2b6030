"""Each fault shows where it should and nowhere else."""

import json
import re

import pytest

from tests.lab.gpu_simulator import faults
from tests.unit.gpu_simulator.conftest import MACHINE, SimulatedNode

HEALTH = (
    "clocks_event_reasons.active,ecc.errors.uncorrected.volatile.total,remapped_rows.failure,"
    "pcie.link.gen.gpucurrent,fabric.state,utilization.gpu"
)
HEALTHY = ["0x0000000000000001", "0", "No", "5", "Completed", "0"]


@pytest.fixture
def server(h100: SimulatedNode) -> SimulatedNode:
    """Eight H100 whose fabric manager runs."""
    h100.write("run/gpu-simulator/fabric-ready", "")
    assert h100.query(HEALTH) == [HEALTHY] * 8
    return h100


def test_the_node_knows_the_same_faults_as_the_lab() -> None:
    on_node = re.search(r"^FAULTS = \(([^)]*)\)", MACHINE.read_text(), re.MULTILINE)
    assert on_node is not None
    assert sorted(re.findall(r'"([a-z0-9-]+)"', on_node[1])) == sorted(faults.FAULTS)


def test_an_unknown_fault_is_refused_by_the_lab_with_the_names_it_knows() -> None:
    with pytest.raises(ValueError, match=r"unknown fault gpu-lots: expected one of .*gpu-lost"):
        faults.check(["gpu-lots", "ecc-errors"])


def test_an_unknown_fault_is_refused_on_the_node_with_the_names_it_knows(server: SimulatedNode) -> None:
    result = server.machine("fault", "gpu-lots", "on")
    assert result.returncode == 2
    assert "unknown fault gpu-lots: expected one of " in result.stderr
    assert not (server.root / "var/lib/gpu-simulator/faults.json").exists()


@pytest.mark.parametrize(
    ("fault", "column", "shown"),
    [
        ("throttling", 0, "0x0000000000000049"),
        ("ecc-errors", 1, "2"),
        ("row-remap-failure", 2, "Yes"),
        ("pcie-gen1", 3, "1"),
        ("compute-process", 5, "100"),
    ],
)
def test_a_fault_shows_on_the_first_gpu_alone_and_ends(
    server: SimulatedNode, fault: str, column: int, shown: str
) -> None:
    server.fault(fault)
    first, *others = server.query(HEALTH)
    assert first[column] == shown
    assert others == [HEALTHY] * 7
    # An idle GPU is idle no more when it computes; beside that, the other columns stay as they are.
    untouched = [index for index in range(len(HEALTHY)) if index not in (column, 0)]
    assert [first[index] for index in untouched] == [HEALTHY[index] for index in untouched]
    server.fault(fault, "off")
    assert server.query(HEALTH) == [HEALTHY] * 8


def test_throttling_lowers_clocks_that_are_locked_high(server: SimulatedNode) -> None:
    server.smi("-lgc", "1980,1980")
    server.fault("throttling")
    clocks = [int(row[0]) for row in server.query("clocks.sm")]
    assert clocks[0] <= 1980 // 2
    assert set(clocks[1:]) == {1980}
    reasons = server.xml().find("gpu/clocks_event_reasons")
    assert reasons is not None
    assert reasons.findtext("clocks_event_reason_hw_thermal_slowdown") == "Active"


def test_a_slow_link_shows_in_sysfs_too_and_under_load(server: SimulatedNode) -> None:
    server.fault("pcie-gen1")
    server.fault("compute-process")
    assert server.read("sys/bus/pci/devices/0000:1b:00.0/current_link_speed") == "2.5 GT/s PCIe"
    assert server.read("sys/bus/pci/devices/0000:43:00.0/current_link_speed") == "32.0 GT/s PCIe"
    assert server.query("pcie.link.gen.current")[0] == ["1"]


def test_a_lost_gpu_is_the_last_one_and_the_others_work_on(server: SimulatedNode) -> None:
    server.fault("gpu-lost")
    lost = (
        "Unable to determine the device handle for GPU0000:DF:00.0: "
        "GPU is lost.  Reboot the system to recover this GPU"
    )
    for arguments in ([], ["-q"], ["-q", "-x"]):
        result = server.smi(*arguments)
        assert (result.returncode, result.stdout.strip()) == (15, lost)
    listed = server.smi("-L")
    assert (listed.returncode, listed.stdout.count("UUID")) == (15, 7)
    queried = server.smi("--query-gpu=index", "--format=csv,noheader")
    assert (queried.returncode, queried.stdout.splitlines()) == (15, [*"0123456", lost])
    assert server.query("index", "-i", "0") == [["0"]]


def test_a_lost_gpu_answers_the_bus_with_all_bits_set(server: SimulatedNode) -> None:
    server.fault("gpu-lost")
    assert server.read("sys/bus/pci/devices/0000:df:00.0/current_link_speed") == "Unknown"


def test_a_lost_gpu_is_missing_after_the_next_boot(server: SimulatedNode) -> None:
    server.fault("gpu-lost")
    server.boot()
    assert not (server.root / "sys/bus/pci/devices/0000:df:00.0").exists()
    assert len(server.query("index")) == 7


def test_without_driver_nothing_answers_and_it_comes_back(server: SimulatedNode) -> None:
    server.fault("no-driver")
    result = server.smi()
    assert result.returncode == 9
    assert result.stdout.startswith(
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    )
    assert not (server.root / "sys/module/nvidia").exists()
    server.boot()
    assert server.smi().returncode == 9
    server.fault("no-driver", "off")
    assert server.smi().returncode == 0


def test_a_fabric_that_is_not_ready_is_in_progress_on_every_gpu(server: SimulatedNode) -> None:
    server.fault("fabric-not-ready")
    assert server.query("fabric.state,fabric.status") == [["In Progress", "[N/A]"]] * 8


def test_a_compute_process_is_listed(server: SimulatedNode) -> None:
    server.fault("compute-process")
    result = server.smi("--query-compute-apps=gpu_uuid,pid,name,used_memory", "--format=csv,noheader")
    assert result.stdout.strip() == f"{server.query('uuid')[0][0]}, 4242, /usr/bin/python3, 1024 MiB"
    process = server.xml().find("gpu/processes/process_info")
    assert process is not None
    assert (process.findtext("pid"), process.findtext("type")) == ("4242", "C")
    assert "4242" in server.smi().stdout


def test_faults_do_not_disturb_each_other(server: SimulatedNode) -> None:
    for name in ("ecc-errors", "throttling", "pcie-gen1"):
        server.fault(name)
    assert server.query(HEALTH)[0] == ["0x0000000000000049", "2", "No", "1", "Completed", "0"]
    server.fault("throttling", "off")
    assert server.query(HEALTH)[0] == ["0x0000000000000001", "2", "No", "1", "Completed", "0"]


def test_a_list_written_by_the_lab_takes_effect(server: SimulatedNode) -> None:
    server.write("var/lib/gpu-simulator/faults.json", json.dumps(faults.check(["pcie-gen1"])))
    assert server.machine("refresh").returncode == 0
    assert server.read("sys/bus/pci/devices/0000:1b:00.0/current_link_speed") == "2.5 GT/s PCIe"
