"""MIG of the simulated nvidia-smi: its lists are those of a real H100, and it refuses as real ones do."""

from collections.abc import Callable

import pytest

from temper.rollout.gpu_settings import parse
from tests.unit.gpu_simulator.conftest import SimulatedNode

MakeNode = Callable[..., SimulatedNode]

# `nvidia-smi mig -lgip` of an H100 80GB HBM3, driver 580.173.02, MIG off (starkdrift/prickle-exporter,
# h100-default-20260729).
PROFILES = """\
+-------------------------------------------------------------------------------+
| GPU instance profiles:                                                        |
| GPU   Name               ID    Instances   Memory     P2P    SM    DEC   ENC  |
|                                Free/Total   GiB              CE    JPEG  OFA  |
|===============================================================================|
|   0  MIG 1g.10gb         19     7/7        9.75       No     16     1     0   |
|                                                               1     1     0   |
+-------------------------------------------------------------------------------+
|   0  MIG 1g.10gb+me      20     1/1        9.75       No     16     1     0   |
|                                                               1     1     1   |
+-------------------------------------------------------------------------------+
|   0  MIG 1g.20gb         15     4/4        19.62      No     26     1     0   |
|                                                               1     1     0   |
+-------------------------------------------------------------------------------+
|   0  MIG 2g.20gb         14     3/3        19.62      No     32     2     0   |
|                                                               2     2     0   |
+-------------------------------------------------------------------------------+
|   0  MIG 3g.40gb          9     2/2        39.50      No     60     3     0   |
|                                                               3     3     0   |
+-------------------------------------------------------------------------------+
|   0  MIG 4g.40gb          5     1/1        39.50      No     64     4     0   |
|                                                               4     4     0   |
+-------------------------------------------------------------------------------+
|   0  MIG 7g.80gb          0     1/1        79.25      No     132    7     0   |
|                                                               8     7     1   |
+-------------------------------------------------------------------------------+
"""
# The same GPU in MIG mode (h100-mig-mixed-20260729): what is free, by profile, and one line of each list.
FREE = {"1g.10gb": 1, "1g.10gb+me": 0, "1g.20gb": 0, "2g.20gb": 0, "3g.40gb": 0, "4g.40gb": 0, "7g.80gb": 0}
INSTANCE = "|   0  MIG 3g.40gb            9        1          0:4     |"
COMPUTE = "|   0      1       MIG 3g.40gb          0         0          0:1     |"


@pytest.fixture
def divided(h100: SimulatedNode) -> SimulatedNode:
    """As the real one was: 3g.40gb at 0, 1g.10gb+me at 4, 1g.10gb at 6, on the first of eight GPUs."""
    assert h100.smi("-i", "0", "-mig", "1").returncode == 0
    made = h100.smi("mig", "-i", "0", "-cgi", "9:0,1g.10gb+me:4,MIG 1g.10gb:6", "-C")
    assert made.returncode == 0, made.stdout
    return h100


def test_profiles_are_listed_as_a_real_gpu_lists_them_with_mig_off(h100: SimulatedNode) -> None:
    assert h100.smi("mig", "-i", "0", "-lgip").stdout == PROFILES


def test_what_is_free_is_what_the_real_gpu_had_left(divided: SimulatedNode) -> None:
    lines = [line.split() for line in divided.smi("mig", "-i", "0", "-lgip").stdout.splitlines()]
    assert {line[3]: int(line[5].partition("/")[0]) for line in lines if "MIG" in line} == FREE


def test_instances_are_listed_as_a_real_gpu_lists_them(divided: SimulatedNode) -> None:
    assert INSTANCE in divided.smi("mig", "-lgi").stdout.splitlines()
    assert COMPUTE in divided.smi("mig", "-lci").stdout.splitlines()
    assert "  MIG 1g.10gb     Device  1: (UUID: MIG-" in divided.smi("-L", "-i", "0").stdout


def test_a_report_counts_instances_for_a_roll_out(divided: SimulatedNode) -> None:
    settings = next(iter(parse(divided.smi("-q", "-x").stdout).values()))
    assert settings["MIG instances"] == "2 x 16 SMs 9984 MiB, 1 x 60 SMs 40448 MiB"
    assert "mig_device" not in divided.smi("-q", "-x", "-i", "1").stdout.replace("mig_devices", "")


def test_instances_are_lost_at_reboot_and_the_mode_is_not(divided: SimulatedNode) -> None:
    divided.boot()
    assert divided.query("mig.mode.current", "-i", "0") == [["Enabled"]]
    result = divided.smi("mig", "-lgi")
    assert (result.returncode, result.stdout) == (6, "No GPU instances found: Not Found\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-cgi", "9"], "Failed to create GPU instances: Insufficient Resources"),
        (
            ["-cgi", "1g.5gb"],
            "Unable to create a GPU instance on GPU  0 using profile 1g.5gb: Invalid Argument",
        ),
        (["-dgi"], "Unable to destroy GPU instance ID  1 from GPU  0: In use by another client"),
        (["-lcip"], "Invalid combination of input arguments."),
    ],
)
def test_what_a_real_gpu_refuses_is_refused(divided: SimulatedNode, arguments: list[str], words: str) -> None:
    result = divided.smi("mig", "-i", "0", *arguments)
    assert result.returncode != 0
    assert words in result.stdout


def test_with_the_mode_off_there_are_no_lists_of_instances(h100: SimulatedNode) -> None:
    for verb in ("-lgi", "-lci"):
        result = h100.smi("mig", verb)
        assert (result.returncode, result.stdout) == (6, "No MIG-enabled devices found.\n")


def test_only_root_divides(h100: SimulatedNode) -> None:
    h100.smi("-i", "0", "-mig", "1")
    assert h100.smi("mig", "-cgi", "9", "-C", user=1000).returncode == 4


def test_the_mode_stays_on_while_there_are_instances(divided: SimulatedNode) -> None:
    result = divided.smi("-i", "0", "-mig", "0")
    assert (result.returncode, "In use by another client" in result.stdout) == (19, True)


def test_a_busy_ampere_waits_for_its_reset_and_an_idle_one_forgets_its_clocks(booted: MakeNode) -> None:
    node = booted("a100-sxm-8")
    node.smi("-pm", "1")
    node.smi("-i", "1", "-pl", "300")
    node.fault("compute-process")
    assert "in pending enable state for GPU" in node.smi("-i", "0", "-mig", "1").stdout
    assert node.smi("-i", "1", "-mig", "1").returncode == 0
    fields = "mig.mode.current,mig.mode.pending,power.limit,persistence_mode"
    assert node.query(fields)[:2] == [
        ["Disabled", "Enabled", "400.00", "Enabled"],
        ["Enabled", "Enabled", "400.00", "Enabled"],
    ]


def test_compute_mode_is_said_everywhere_and_lost_at_reboot(h100: SimulatedNode) -> None:
    said = h100.smi("-i", "0", "-c", "3").stdout
    assert said.startswith("Set compute mode to EXCLUSIVE_PROCESS for GPU 00000000:1B:00.0.")
    assert "already set to EXCLUSIVE_PROCESS" in h100.smi("-i", "0", "--compute-mode=3").stdout
    assert h100.query("compute_mode")[:2] == [["Exclusive_Process"], ["Default"]]
    assert h100.xml().findtext("gpu/compute_mode") == "Exclusive_Process"
    h100.boot()
    assert h100.query("compute_mode", "-i", "0") == [["Default"]]
