"""The simulated kernel side: what a node shows in /sys, /proc and /dev, and which module it loads."""

import os
import struct
from collections.abc import Callable

import pytest

from tests.lab.gpu_simulator.profiles import PROFILES
from tests.unit.each import each
from tests.unit.gpu_simulator.conftest import SimulatedNode

MakeNode = Callable[..., SimulatedNode]


@pytest.mark.parametrize("profile", PROFILES)
def test_every_gpu_and_nvswitch_is_a_pci_device(bare: MakeNode, profile: str) -> None:
    node = bare(profile)
    server = PROFILES[profile]
    expected = sorted((*server.gpu_addresses, *server.nvswitch_addresses))
    assert sorted(path.name for path in (node.root / "sys/bus/pci/devices").iterdir()) == expected


LINK = ("32.0 GT/s PCIe", "16")


@each(
    (
        "vendor device class subsystem_vendor subsystem_device",
        ("0x10de", "0x2330", "0x030200", "0x10de", "0x16c1"),
    ),
    ("numa_node", ("1",)),
    ("current_link_speed current_link_width max_link_speed max_link_width", LINK * 2),
)
def test_a_gpu_shows_its_ids_class_numa_node_and_link(
    names: str, values: tuple[str, ...], bare: MakeNode
) -> None:
    node = bare("hgx-h100-8")
    device = "sys/bus/pci/devices/0000:9d:00.0"
    assert tuple(node.read(f"{device}/{name}") for name in names.split()) == values


def test_the_configuration_space_agrees_with_the_attributes(bare: MakeNode) -> None:
    config = (bare("hgx-h100-8").root / "sys/bus/pci/devices/0000:07:00.0/config").read_bytes()
    assert len(config) == 64
    assert struct.unpack_from("<HH", config, 0) == (0x10DE, 0x22A3)
    assert config[9:12][::-1] == bytes.fromhex("068000")
    assert struct.unpack_from("<HH", config, 44) == (0x10DE, 0x1796)


def test_nouveau_takes_the_gpus_of_a_bare_node(bare: MakeNode) -> None:
    node = bare()
    assert (node.root / "sys/module/nouveau").is_dir()
    assert (node.root / "sys/bus/pci/devices/0000:31:00.0/driver").resolve().name == "nouveau"


@pytest.mark.parametrize("directory", ["etc/modprobe.d", "lib/modprobe.d", "usr/lib/modprobe.d"])
@pytest.mark.parametrize("line", ["blacklist nouveau", "install nouveau /bin/false"])
def test_a_blacklist_keeps_nouveau_out_at_the_next_boot(bare: MakeNode, directory: str, line: str) -> None:
    node = bare()
    node.write(f"{directory}/off.conf", f"# nouveau\n{line}\n")
    assert (node.root / "sys/module/nouveau").is_dir()
    node.boot()
    assert not (node.root / "sys/module/nouveau").exists()


def test_an_empty_file_in_etc_hides_a_blacklist_of_the_same_name(bare: MakeNode) -> None:
    node = bare()
    node.write("usr/lib/modprobe.d/nvidia.conf", "blacklist nouveau\n")
    node.write("etc/modprobe.d/nvidia.conf", "")
    node.boot()
    assert (node.root / "sys/module/nouveau").is_dir()


def test_a_boot_loads_the_module_that_is_on_disk(booted: MakeNode) -> None:
    node = booted("hgx-h100-8", "580.178.04")
    assert node.read("sys/module/nvidia/version") == "580.178.04"
    banner = node.read("proc/driver/nvidia/version").splitlines()[0]
    assert banner.startswith(
        f"NVRM version: NVIDIA UNIX Open Kernel Module for {os.uname().machine}  580.178.04  "
    )
    assert len(list((node.root / "proc/driver/nvidia-nvswitch/devices").iterdir())) == 4
    assert {"nvidiactl", "nvidia0", "nvidia7", "nvidia-nvswitch0"} <= {
        path.name for path in (node.root / "dev").iterdir()
    }
    assert (node.root / "sys/bus/pci/devices/0000:1b:00.0/driver").resolve().name == "nvidia"


def test_the_proprietary_module_names_itself_differently(booted: MakeNode) -> None:
    banner = booted(flavour="proprietary").read("proc/driver/nvidia/version")
    assert banner.startswith(f"NVRM version: NVIDIA UNIX {os.uname().machine} Kernel Module  580.126.09  ")


def test_an_option_of_the_module_opens_the_counters_at_the_next_boot(booted: MakeNode) -> None:
    node = booted()
    node.write("etc/modprobe.d/profiling.conf", "options nvidia NVreg_RestrictProfilingToAdminUsers=0\n")
    assert node.read("proc/driver/nvidia/params") == "RmProfilingAdminOnly: 1"
    node.boot()
    assert node.read("proc/driver/nvidia/params") == "RmProfilingAdminOnly: 0"


def test_an_upgrade_leaves_the_loaded_module_until_the_next_boot(booted: MakeNode) -> None:
    node = booted(version="580.126.09")
    node.install("580.178.04")
    assert node.machine("load").returncode == 0
    assert node.read("sys/module/nvidia/version") == "580.126.09"
    node.boot()
    assert node.read("sys/module/nvidia/version") == "580.178.04"


def test_a_module_loads_without_a_reboot_where_nouveau_never_was(bare: MakeNode) -> None:
    node = bare()
    node.write("etc/modprobe.d/nouveau.conf", "blacklist nouveau\n")
    node.boot()
    node.install("580.126.09")
    assert node.machine("load").returncode == 0
    assert node.read("sys/module/nvidia/version") == "580.126.09"


def test_nouveau_keeps_a_freshly_installed_module_out(bare: MakeNode) -> None:
    node = bare()
    node.install("580.126.09")
    result = node.machine("load")
    assert (result.returncode, "nouveau holds the GPUs" in result.stderr) == (1, True)


@pytest.mark.parametrize(
    ("profile", "version", "flavour", "loads"),
    [
        ("v100-1", "580.178.04", "proprietary", True),
        ("v100-1", "580.178.04", "open", False),  # no GSP
        ("v100-1", "595.91.07", "proprietary", False),  # dropped after 580
        ("unknown-1", "595.91.07", "open", False),
        ("a100-sxm-8", "595.91.07", "open", True),
    ],
)
def test_a_module_loads_only_for_gpus_that_it_drives(
    booted: MakeNode, profile: str, version: str, flavour: str, loads: bool
) -> None:
    node = booted(profile, version, flavour)
    assert (node.root / "sys/module/nvidia").exists() == loads
    result = node.machine("load")
    assert result.returncode == (0 if loads else 1)
    assert ("drives no GPU of this node" in result.stderr) == (not loads)


def test_a_node_without_hardware_file_says_so(bare: MakeNode) -> None:
    node = bare()
    (node.root / "var/lib/gpu-simulator/hardware.json").unlink()
    result = node.machine("boot")
    assert result.returncode == 1
    assert "hardware.json, found no file: create the node again" in result.stderr


@each([], ["start"], ["fault", "ecc-errors"], ["fault", "ecc-errors", "maybe"])
def test_wrong_usage_is_an_error(arguments: list[str], bare: MakeNode) -> None:
    assert bare().machine(*arguments).returncode == 2


def test_a_server_with_nvlink_5_has_devices_that_manage_its_switches(bare: MakeNode) -> None:
    node = bare("hgx-b200-8")
    vpds = sorted((node.root / "sys/class/infiniband").glob("*/device/vpd"))
    assert [b"SW_MNG" in vpd.read_bytes() for vpd in vpds] == [True, True]
    assert not list((node.root / "sys/bus/pci/drivers").glob("nvidia-nvswitch"))
    assert not (bare("hgx-h100-8").root / "sys/class/infiniband").exists()
