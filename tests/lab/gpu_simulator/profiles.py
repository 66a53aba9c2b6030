"""Hardware profiles: what a simulated node's GPUs are, as data.

`hardware(profile, node)` gives the content of `/var/lib/gpu-simulator/hardware.json`. The simulated kernel
side (`node/usr/lib/gpu-simulator`) and the simulated `nvidia-smi` read everything they know about a GPU from
that file.

Sources, named at each value:

* capture-h100: `nvidia-smi -q -x` of an 8x H100 80GB HBM3 server, driver 580.105.08, published with
  NVIDIA/k8s-test-infra (tests/e2e/go/assertions/nvidiasmi/testdata/hardware/qx-h100.xml, commit 63018b86,
  2026-08-21)
* capture-a100: the same, A100-SXM4-40GB, driver 570.148.08 (qx-a100.xml, commit 678cb23b, 2026-08-21)
* capture-l4: `nvidia-smi -q -x` of a server with two L4, driver 555.42.06 (published by a GPU monitor's test
  data, 2024-07-15)
* lspci-h100: `lspci -Dnn` of an 8x H100 SXM5 server: GPUs 1b 43 52 61 9d c3 d1 df, NVSwitches 07 08 09 0a,
  class 0680, device 22a3, subsystem 10de:1796 (published logs, read 2026-11-20)
* assumed: plausible, without a source; no role or test may depend on its value
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

SCHEMA_VERSION = 1

# A namespace of our own, so that a node's UUIDs are the same on every machine and collide with no real GPU's.
_UUID_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_DNS, "gpu-simulator.temper.invalid")


@dataclass(frozen=True)
class SupportedClocks:
    """The graphics clocks (MHz, highest first) that go with one memory clock (MHz)."""

    memory_mhz: int
    graphics_mhz: tuple[int, ...]


@dataclass(frozen=True)
class GpuModel:
    """One GPU product as the simulated driver and nvidia-smi describe it."""

    name: str
    architecture: str
    device_id: str  # 4 hexadecimal digits
    subsystem_id: str  # 4 hexadecimal digits; the subsystem vendor is NVIDIA
    board_part_number: str
    vbios_version: str
    memory_total_mib: int
    memory_reserved_mib: int
    pcie_gen_max: int
    pcie_width_max: int
    power_default_w: int
    power_min_w: int
    power_max_w: int
    power_idle_w: float
    clock_video_idle_mhz: int
    clock_video_max_mhz: int
    clock_graphics_idle_mhz: int
    clock_memory_idle_mhz: int
    clock_graphics_default_application_mhz: int
    supported_clocks: tuple[SupportedClocks, ...]
    idle_performance_state: str
    idle_temperature_c: int
    memory_temperature_c: int | None
    temperature_limits_are_margins: bool  # Ada and Hopper report what is left to the limit, not the limit
    temperature_shutdown_c: int
    temperature_slowdown_c: int
    temperature_max_operating_c: int
    mig_capable: bool
    nvlink_count: int
    nvlink_gb_s: float  # of one link, one direction
    fabric: bool  # registers with a fabric manager before CUDA can start
    branch_min: int  # first driver branch that knows the GPU
    known_to_driver: bool = True  # False: the driver does not know the device id at all


@dataclass(frozen=True)
class Profile:
    """A server: `count` GPUs of one model at `gpu_addresses`, and its NVSwitches."""

    model: GpuModel
    gpu_addresses: tuple[str, ...]
    module_ids: tuple[int, ...]
    numa_nodes: tuple[int, ...]
    nvswitch_addresses: tuple[str, ...] = ()
    nvswitch_device_id: str = ""
    nvswitch_subsystem_id: str = ""
    switch_managers: tuple[str, ...] = ()  # InfiniBand devices that manage NVLink 5 switches


def _addresses(buses: str) -> tuple[str, ...]:
    return tuple(f"0000:{bus}:00.0" for bus in buses.split())


def _steps(highest: int, lowest: int, step: int) -> tuple[int, ...]:
    return tuple(range(highest, lowest - 1, -step))


H100_SXM = GpuModel(  # capture-h100, but where noted
    name="NVIDIA H100 80GB HBM3",
    architecture="Hopper",
    device_id="2330",
    subsystem_id="16c1",
    board_part_number="692-2G520-0200-000",
    vbios_version="96.00.99.00.01",
    memory_total_mib=81559,
    memory_reserved_mib=480,
    pcie_gen_max=5,
    pcie_width_max=16,
    power_default_w=700,
    power_min_w=200,
    power_max_w=700,
    power_idle_w=68.57,
    clock_video_idle_mhz=765,
    clock_video_max_mhz=1545,
    clock_graphics_idle_mhz=345,
    clock_memory_idle_mhz=2619,
    clock_graphics_default_application_mhz=1980,
    supported_clocks=(
        SupportedClocks(2619, _steps(1980, 345, 15)),
        SupportedClocks(1593, _steps(1980, 345, 15)),
    ),
    idle_performance_state="P0",
    idle_temperature_c=29,
    memory_temperature_c=37,
    temperature_limits_are_margins=True,
    temperature_shutdown_c=95,  # assumed: the capture gives margins only (-8, -2, 0 C) and 58 C left at 29 C
    temperature_slowdown_c=89,
    temperature_max_operating_c=87,
    mig_capable=True,
    nvlink_count=18,
    nvlink_gb_s=26.562,  # `nvidia-smi nvlink --status` of H100 SXM, published logs read 2026-11-20
    fabric=True,
    branch_min=525,  # facts/nvidia.md 2.3: Hopper came with CUDA 11.8; 525 is the first branch of CUDA 12
)

L4 = GpuModel(  # capture-l4, but where noted
    name="NVIDIA L4",
    architecture="Ada Lovelace",
    device_id="27b8",
    subsystem_id="16ca",
    board_part_number="900-2G193-0000-001",
    vbios_version="95.04.29.00.06",
    memory_total_mib=23034,
    memory_reserved_mib=434,
    pcie_gen_max=4,
    pcie_width_max=16,
    power_default_w=72,
    power_min_w=40,
    power_max_w=72,
    power_idle_w=16.5,  # assumed: the capture was taken under load
    clock_video_idle_mhz=1170,  # assumed
    clock_video_max_mhz=1770,
    clock_graphics_idle_mhz=210,  # lowest supported; that an idle L4 rests there is assumed
    clock_memory_idle_mhz=405,  # lowest supported; that an idle L4 rests there is assumed
    clock_graphics_default_application_mhz=2040,
    supported_clocks=(
        SupportedClocks(6251, _steps(2040, 210, 15)),
        SupportedClocks(405, _steps(645, 210, 15)),
    ),
    idle_performance_state="P8",  # assumed
    idle_temperature_c=38,  # assumed
    memory_temperature_c=None,
    temperature_limits_are_margins=True,
    temperature_shutdown_c=89,  # 45 C + 39 C left - margins of -5, -2, 0 C
    temperature_slowdown_c=86,
    temperature_max_operating_c=84,
    mig_capable=False,
    nvlink_count=0,
    nvlink_gb_s=0.0,
    fabric=False,
    branch_min=525,
)

A100_SXM = GpuModel(  # capture-a100, but where noted
    name="NVIDIA A100-SXM4-40GB",
    architecture="Ampere",
    device_id="20b0",
    subsystem_id="134f",
    board_part_number="692-2G506-0200-003",
    vbios_version="92.00.45.00.03",
    memory_total_mib=40960,
    memory_reserved_mib=518,
    pcie_gen_max=4,
    pcie_width_max=16,
    power_default_w=400,
    power_min_w=100,
    power_max_w=400,
    power_idle_w=49.68,
    clock_video_idle_mhz=585,
    clock_video_max_mhz=1290,
    clock_graphics_idle_mhz=210,
    clock_memory_idle_mhz=1215,
    clock_graphics_default_application_mhz=1095,
    supported_clocks=(SupportedClocks(1215, _steps(1410, 210, 15)),),
    idle_performance_state="P0",
    idle_temperature_c=33,
    memory_temperature_c=34,
    temperature_limits_are_margins=False,
    temperature_shutdown_c=92,
    temperature_slowdown_c=89,
    temperature_max_operating_c=85,
    mig_capable=True,
    nvlink_count=12,
    nvlink_gb_s=25.0,  # A100 white paper: 12 links, 600 GB/s in both directions
    fabric=False,  # the capture reports fabric N/A; the GPU needs the fabric manager all the same
    branch_min=450,  # facts/nvidia.md 2.1: CUDA 11.0
)

# No capture of one was at hand: what is not named here is an H100's.
B200_SXM = replace(
    H100_SXM,
    name="NVIDIA B200",
    architecture="Blackwell",
    device_id="2901",  # NVIDIA/open-gpu-kernel-modules, list of supported GPUs
    subsystem_id="1999",  # assumed
    board_part_number="692-2G525-0220-002",  # assumed
    vbios_version="97.00.9A.00.0F",  # assumed
    memory_total_mib=183359,  # 180 GB, as nvidia-smi of such servers prints it in published logs
    power_default_w=1000,  # data/gpu_models.yml
    power_max_w=1000,
    power_idle_w=140.0,  # assumed
    clock_memory_idle_mhz=3996,  # assumed
    clock_graphics_default_application_mhz=1965,  # assumed
    supported_clocks=(SupportedClocks(3996, _steps(1965, 120, 15)),),  # assumed
    nvlink_gb_s=50.0,  # NVLink 5: 18 links, 1.8 TB/s in both directions
    branch_min=570,  # data/nvidia_compatibility.yml
)

# A GPU that no table of ours and no simulated driver knows: a plan must refuse it, by its id.
UNKNOWN = replace(
    L4,
    name="NVIDIA Graphics Device",
    device_id="fff0",
    subsystem_id="fff0",
    board_part_number="000-00000-0000-000",
    known_to_driver=False,
)

# The bus of a GPU that is alone in its server is assumed.
PROFILES: Mapping[str, Profile] = {
    "hgx-h100-8": Profile(
        model=H100_SXM,
        gpu_addresses=_addresses("1b 43 52 61 9d c3 d1 df"),  # lspci-h100
        module_ids=(7, 5, 6, 8, 1, 2, 4, 3),  # assumed order; capture-h100 starts with 7, 5
        numa_nodes=(0, 0, 0, 0, 1, 1, 1, 1),  # `nvidia-smi topo -m` of such servers
        nvswitch_addresses=_addresses("07 08 09 0a"),  # lspci-h100
        nvswitch_device_id="22a3",  # lspci-h100
        nvswitch_subsystem_id="1796",  # lspci-h100
    ),
    "l4-1": Profile(model=L4, gpu_addresses=_addresses("31"), module_ids=(1,), numa_nodes=(0,)),
    "a100-sxm-8": Profile(
        model=A100_SXM,
        gpu_addresses=_addresses("07 0f 47 4e 87 90 b7 bd"),  # assumed
        module_ids=(7, 5, 6, 8, 3, 1, 2, 4),  # assumed
        numa_nodes=(0, 0, 0, 0, 1, 1, 1, 1),  # assumed
        nvswitch_addresses=_addresses("c4 c5 c6 c7 c8 c9"),  # assumed
        nvswitch_device_id="1af1",  # the public PCI id list: GA100 [A100 NVSwitch]
        nvswitch_subsystem_id="0000",  # assumed
    ),
    "hgx-b200-8": Profile(
        model=B200_SXM,
        gpu_addresses=_addresses("1b 43 52 61 9d c3 d1 df"),  # assumed
        module_ids=(7, 5, 6, 8, 1, 2, 4, 3),  # assumed
        numa_nodes=(0, 0, 0, 0, 1, 1, 1, 1),
        switch_managers=("mlx5_4", "mlx5_5"),  # facts/nvidia.md 2.7; their number and names are assumed
    ),
    "unknown-1": Profile(model=UNKNOWN, gpu_addresses=_addresses("31"), module_ids=(1,), numa_nodes=(0,)),
}


def hardware(profile: str, node: str) -> dict[str, Any]:
    """Describe the hardware of `node`, ready to be written as JSON.

    Serial numbers and UUIDs follow from the node's name, so that they differ between nodes and stay the same
    over rebuilds.

    Raises ValueError for an unknown profile.
    """
    if profile not in PROFILES:
        raise ValueError(f"unknown GPU profile {profile!r}: expected one of {', '.join(sorted(PROFILES))}")
    server = PROFILES[profile]
    model = asdict(server.model)
    gpus = []
    for index, address in enumerate(server.gpu_addresses):
        identity = uuid.uuid5(_UUID_NAMESPACE, f"{node}/{profile}/{index}")
        gpus.append(
            {
                **model,
                "index": index,
                "address": address,
                "uuid": f"GPU-{identity}",
                "serial": f"{1650000000000 + identity.int % 10**9}",
                "module_id": server.module_ids[index],
                "numa_node": server.numa_nodes[index],
            }
        )
    nvswitches = [
        {
            "address": address,
            "device_id": server.nvswitch_device_id,
            "subsystem_id": server.nvswitch_subsystem_id,
            "numa_node": 0,
        }
        for address in server.nvswitch_addresses
    ]
    return {
        "schema": SCHEMA_VERSION,
        "simulated": True,
        "profile": profile,
        "node": node,
        "gpus": gpus,
        "nvswitches": nvswitches,
        "switch_managers": list(server.switch_managers),
    }
