#!/usr/bin/python3 -IS
"""nvidia-smi, simulated by Temper's lab: one file, standard library only, for the Python of Debian 12 and newer.

What it prints follows real output (drivers 580 and 595; the sources are named in tests/lab/gpu_simulator/profiles.py and below).
Exit status as the real one's: 0 done, 2 bad argument, 4 no permission, 6 no such device, 9 driver not loaded, 12 no NVML library,
15 GPU off the bus, 18 driver and library of different versions, 255 anything else.

What it knows comes from the simulated kernel side (machine.py): /sys/module/nvidia, /proc/driver/nvidia/gpus, the node's
hardware.json and faults.json. What it sets lives in /run/gpu-simulator and is lost at reboot, and when persistence mode ends.

GPU_SIMULATOR_ROOT puts another directory in the place of /, GPU_SIMULATOR_UID another user in the place of the caller: for tests.
"""

from __future__ import annotations

import json
import os
import sys
import time

ROOT = os.environ.get("GPU_SIMULATOR_ROOT", "").rstrip("/")
UID = int(os.environ.get("GPU_SIMULATOR_UID", "0")) if ROOT else os.geteuid()
STATE = f"{ROOT}/var/lib/gpu-simulator"
RUN = f"{ROOT}/run/gpu-simulator"
NA = "N/A"
DEPRECATED = "Requested functionality has been deprecated"
LOST = "GPU is lost.  Reboot the system to recover this GPU"

if False:  # typing costs 5 ms at each start
    from typing import Any

    Leaf = tuple[str, str, "str | list[Any]"]


class Stop(Exception):
    """End the program with `status` after printing `message`."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def read(path: str) -> str | None:
    """Return a file's text without the white space around it, None if there is no such file."""
    try:
        with open(path) as file:  # noqa: PTH123 - pathlib costs 10 ms at each start
            return file.read().strip()
    except FileNotFoundError:
        return None


def read_json(path: str, default: Any) -> Any:
    text = read(path)
    return default if text is None else json.loads(text)


def write_json(path: str, value: object) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120 - pathlib costs 10 ms at each start
    temporary = f"{path}.{os.getpid()}"
    with open(temporary, "w") as file:  # noqa: PTH123 - pathlib costs 10 ms at each start
        json.dump(value, file)
    os.replace(temporary, path)  # noqa: PTH105 - pathlib costs 10 ms at each start


# ---------------------------------------------------------------- the node and its GPUs


class Node:
    """The loaded driver and what it drives. Raises Stop, as NVML's initialisation does, if it cannot be reached."""

    def __init__(self) -> None:
        library = next((found for name in library_paths() if (found := read(name)) is not None), None)
        if library is None:
            raise Stop(
                12,
                "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system. Please make sure that the NVIDIA Display "
                "Driver is properly installed and present in your system.\nPlease also try adding directory that contains "
                "libnvidia-ml.so to your system PATH.",
            )
        nvml = json.loads(library)
        self.nvml_version: str = nvml["version"]
        self.cuda_version: str = nvml["cuda"]
        self.faults = set(read_json(f"{STATE}/faults.json", []))
        self.driver_version = self._loaded_driver()
        if self.driver_version != self.nvml_version:
            short = ".".join(self.nvml_version.split(".")[:2])
            raise Stop(18, f"Failed to initialize NVML: Driver/library version mismatch\nNVML library version: {short}")
        self.branch = int(self.driver_version.split(".")[0])
        self.settings: dict[str, Any] = read_json(f"{RUN}/settings.json", {})
        self.inforom = read_json(f"{RUN}/inforom.json", {})
        self.inforom_pending = read_json(f"{STATE}/inforom.json", {})
        self.daemon = self._persistence_daemon()
        self.fabric_ready = read(f"{RUN}/fabric-ready") is not None and "fabric-not-ready" not in self.faults
        self.machine = read_json(f"{STATE}/hardware.json", {"gpus": [], "nvswitches": []})
        driven = set(os.listdir(f"{ROOT}/proc/driver/nvidia/gpus"))  # noqa: PTH208 - pathlib costs 10 ms at each start
        hardware = [gpu for gpu in self.machine["gpus"] if gpu["address"] in driven]
        last = len(self.machine["gpus"]) - 1
        self.gpus = [
            Gpu(self, index, gpu, first=gpu["index"] == 0, last=gpu["index"] == last) for index, gpu in enumerate(hardware)
        ]
        if not self.gpus:
            raise Stop(6, "No devices were found")

    def _loaded_driver(self) -> str:
        path = f"{ROOT}/sys/module/nvidia/version"
        version = read(path)
        if version is None and UID == 0 and not ROOT:
            # The real one has the setuid program nvidia-modprobe load the module; the simulated one needs root for that.
            os.system("/usr/lib/gpu-simulator/machine.py load 2>/dev/null")  # noqa: S605 - subprocess costs 15 ms
            version = read(path)
        if version is None or "no-driver" in self.faults:
            raise Stop(
                9,
                "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
                "Make sure that the latest NVIDIA driver is installed and running.\n",
            )
        return version

    def _persistence_daemon(self) -> str | None:
        """Return what identifies the running nvidia-persistenced, None if none runs or it does not keep persistence on."""
        record = read_json(f"{RUN}/persistenced.json", None)
        if record is None or not record["persistence"]:
            return None
        status = read(f"/proc/{record['pid']}/stat")
        alive = status is not None and status.rpartition(")")[2].split()[19] == record["start"]
        return f"daemon {record['pid']} {record['start']}" if alive else None

    def select(self, wanted: str | None) -> list[Gpu]:
        """Return the GPUs of a comma separated list of indexes, UUIDs or bus addresses; all without one."""
        if wanted is None:
            return self.gpus
        chosen = [gpu for gpu in self.gpus if any(gpu.is_called(name.strip()) for name in wanted.split(","))]
        if not chosen:
            raise Stop(6, "No devices were found")
        return chosen


def library_paths() -> list[str]:
    return [f"{ROOT}/usr/lib/{triplet}/libnvidia-ml.so.1" for triplet in ("x86_64-linux-gnu", "aarch64-linux-gnu")]


class Gpu:
    """One GPU: its hardware, its faults and its settings, as numbers. Clocks in MHz, power in W."""

    def __init__(self, node: Node, index: int, hardware: dict[str, Any], *, first: bool, last: bool) -> None:
        self.node = node
        self.index = index
        self.hw = hardware
        self.uuid: str = hardware["uuid"]
        self.bus_id = f"0000{hardware['address'].upper()}"
        # Faults concern one GPU of a node; see faults.py.
        self.lost = last and "gpu-lost" in node.faults
        mine = node.faults if first else set()
        self.throttled = "throttling" in mine
        self.computing = "compute-process" in mine
        self.memory_errors = 2 if "ecc-errors" in mine else 0
        self.remap_failed = "row-remap-failure" in mine
        self.link_gen = 1 if "pcie-gen1" in mine else hardware["pcie_gen_max"]
        self.session = self._session()
        stored = node.settings.get(self.uuid, {})
        self.settings = stored if self.session and stored.get("session") == self.session else {}

    def _session(self) -> str | None:
        """Return what keeps this GPU initialised between two commands; None: nothing does, so no setting lasts."""
        legacy = self.node.settings.get("legacy", {}).get(self.uuid)
        if legacy is True:
            return "legacy"
        return None if legacy == self.node.daemon else self.node.daemon

    @property
    def persistence(self) -> bool:
        return self.session is not None

    def is_called(self, name: str) -> bool:
        address = self.bus_id.lower()
        return name in (str(self.index), self.uuid) or name.lower() in (address, address[4:], address[9:])

    def require_reachable(self) -> None:
        if self.lost:
            raise Stop(15, f"Unable to determine the device handle for GPU{self.bus_id[4:]}: {LOST}")

    def supported_graphics(self) -> list[int]:
        clocks: list[int] = self.hw["supported_clocks"][0]["graphics_mhz"]
        return clocks

    def supported_memory(self) -> list[int]:
        return [entry["memory_mhz"] for entry in self.hw["supported_clocks"]]

    def applications(self) -> tuple[int, int]:
        """Application clocks: memory, graphics."""
        default = (self.supported_memory()[0], self.hw["clock_graphics_default_application_mhz"])
        memory, graphics = self.settings.get("applications", default)
        return memory, graphics

    def graphics(self) -> int:
        clock = self.applications()[1] if self.computing else self.hw["clock_graphics_idle_mhz"]
        if "graphics_lock" in self.settings:
            lowest, highest = self.settings["graphics_lock"]
            clock = closest(self.supported_graphics(), min(max(clock, lowest), highest))
        if self.throttled:  # the hardware halves the clocks at least
            clock = min(clock, closest(self.supported_graphics(), self.supported_graphics()[0] // 2))
        return clock

    def memory(self) -> int:
        clock = self.applications()[0] if self.computing else self.hw["clock_memory_idle_mhz"]
        if "memory_lock" in self.settings:
            lowest, highest = self.settings["memory_lock"]
            clock = closest(self.supported_memory(), min(max(clock, lowest), highest))
        return clock

    def power_limit(self) -> float:
        return float(self.settings.get("power_limit_w", self.hw["power_default_w"]))

    def power_draw(self) -> float:
        return min(self.power_limit(), self.hw["power_default_w"] * 0.9) if self.computing else self.hw["power_idle_w"]

    def temperature(self) -> int:
        if self.throttled:
            return int(self.hw["temperature_slowdown_c"])
        return int(self.hw["idle_temperature_c"]) + (30 if self.computing else 0)

    def event_reasons(self) -> int:
        """NVML's bit mask of what holds the clocks down: gpu_idle 1, hw_slowdown 8, hw_thermal_slowdown 0x40."""
        return (0 if self.computing else 0x1) | (0x48 if self.throttled else 0)

    def memory_used_mib(self) -> int:
        return 1024 if self.computing else 0

    def processes(self) -> list[tuple[int, str, int]]:
        """(process id, name, memory in MiB) of what computes here."""
        return [(4242, "/usr/bin/python3", 1024)] if self.computing else []

    def mode(self, name: str, pending: bool = False) -> str:
        """MIG or ECC mode: "Enabled", "Disabled" or "N/A"."""
        if name == "mig" and not self.hw["mig_capable"]:
            return NA
        stored = self.node.inforom_pending if pending else self.node.inforom
        return "Enabled" if stored.get(self.uuid, {}).get(name, name == "ecc") else "Disabled"

    def fabric(self) -> tuple[str, str]:
        """State and status of the registration with the NVLink fabric."""
        if not self.hw["fabric"]:
            return NA, NA
        return ("Completed", "Success") if self.node.fabric_ready else ("In Progress", NA)


def closest(supported: list[int], wanted: int) -> int:
    return min(supported, key=lambda clock: abs(clock - wanted))


# ---------------------------------------------------------------- nvidia-smi -q, as text and as XML


def active(value: object) -> str:
    return "Active" if value else "Not Active"


def yes(value: object) -> str:
    return "Yes" if value else "No"


def enabled(value: object) -> str:
    return "Enabled" if value else "Disabled"


def report(gpu: Gpu) -> list[Leaf]:
    """Return what `-q` says of a GPU: (XML element, text label, value or a list of the same); "" leaves one form out.

    Order, names and the values that are the same for all GPUs: nvidia-smi 580.105.08 (H100) and 595.91.07 (L40S), captures in
    NVIDIA/k8s-test-infra; labels: nvidia-smi 580.173.02.
    """
    hw, node = gpu.hw, gpu.node
    r595 = node.branch >= 595
    bus, device = gpu.bus_id[9:11], gpu.bus_id[12:14]
    mig, ecc, reasons = gpu.mode("mig"), gpu.mode("ecc"), gpu.event_reasons()
    errors = str(gpu.memory_errors)
    zero = "0" if hw["row_remapper_banks"] else NA
    remapper = hw["row_remapper_banks"] is not None
    state, status = gpu.fabric()
    memory_application, graphics_application = gpu.applications()
    total, reserved, used = hw["memory_total_mib"], hw["memory_reserved_mib"], gpu.memory_used_mib()
    mhz, watt = "{} MHz".format, "{:.2f} W".format

    def modes(current: str, pending: str, suffix: str) -> list[Leaf]:
        return [(f"current_{suffix}", "Current", current), (f"pending_{suffix}", "Pending", pending)]

    def ecc_counts(*, aggregate: bool) -> list[Leaf]:
        counts: list[Leaf] = [
            ("sram_correctable", "SRAM Correctable", zero),
            ("sram_uncorrectable_parity", "SRAM Uncorrectable Parity", zero),
            ("sram_uncorrectable_secded", "SRAM Uncorrectable SEC-DED", zero),
            ("dram_correctable", "DRAM Correctable", "0"),
            ("dram_uncorrectable", "DRAM Uncorrectable", errors),
        ]
        if aggregate:
            counts.append(("sram_threshold_exceeded", "SRAM Threshold Exceeded", "No" if remapper else NA))
        return counts

    ecc_errors: list[Leaf] = [
        ("volatile", "Volatile", ecc_counts(aggregate=False)),
        ("aggregate", "Aggregate", ecc_counts(aggregate=True)),
        (
            "aggregate_uncorrectable_sram_sources",
            "Aggregate Uncorrectable SRAM Sources",
            [
                ("sram_l2", "SRAM L2", zero),
                ("sram_sm", "SRAM SM", zero),
                ("sram_microcontroller", "SRAM Microcontroller", zero),
                ("sram_pcie", "SRAM PCIE", zero),
                ("sram_other", "SRAM Other", zero),
            ],
        ),
        ("channel_repair_pending", "Channel Repair Pending", "No"),
        ("tpc_repair_pending", "TPC Repair Pending", "No"),
    ]
    if r595:
        ecc_errors.append(("unrepairable_memory", "Unrepairable Memory", NA))

    retired = NA if remapper else "0"
    retired_pages: list[Leaf] = [
        (
            f"{kind}_retirement",
            "",
            [("retired_count", "", retired), ("retired_pagelist", "", NA)],
        )
        for kind in ("multiple_single_bit", "double_bit")
    ]
    retired_pages += [
        ("", "Single Bit ECC", retired),
        ("", "Double Bit ECC", retired),
        ("pending_blacklist", "Pending Page Blacklist", NA if remapper else "No"),
        ("pending_retirement", "", NA if remapper else "No"),
    ]

    remapped_rows: str | list[Leaf] = NA
    if remapper:
        remapped_rows = [
            ("remapped_row_corr", "Correctable Error", "0"),
            *([("remapped_row_corr_inactive", "Correctable Error Inactive", "0")] if r595 else []),
            ("remapped_row_unc", "Uncorrectable Error", "1" if gpu.remap_failed else "0"),
            *([("remapped_row_unc_inactive", "Uncorrectable Error Inactive", "0")] if r595 else []),
            ("remapped_row_pending", "Pending", "No"),
            ("remapped_row_failure", "Remapping Failure Occurred", yes(gpu.remap_failed)),
            (
                "row_remapper_histogram",
                "Bank Remap Availability Histogram",
                [
                    (f"row_remapper_histogram_{key.lower()}", key, f"{count} bank(s)")
                    for key, count in zip(
                        ("Max", "High", "Partial", "Low", "None"),
                        (hw["row_remapper_banks"] - gpu.remap_failed, 0, 0, 0, int(gpu.remap_failed)),
                    )
                ],
            ),
        ]

    shutdown, slowdown, highest = (
        hw["temperature_shutdown_c"],
        hw["temperature_slowdown_c"],
        hw["temperature_max_operating_c"],
    )
    memory_temperature = NA if hw["memory_temperature_c"] is None else f"{hw['memory_temperature_c']} C"
    if hw["temperature_limits_are_margins"]:
        limits: list[Leaf] = [
            ("gpu_temp_tlimit", "GPU T.Limit Temp", f"{highest - gpu.temperature()} C"),
            ("gpu_temp_max_tlimit_threshold", "GPU Shutdown T.Limit Temp", f"{highest - shutdown} C"),
            ("gpu_temp_slow_tlimit_threshold", "GPU Slowdown T.Limit Temp", f"{highest - slowdown} C"),
            ("gpu_temp_max_gpu_tlimit_threshold", "GPU Max Operating T.Limit Temp", "0 C"),
            ("gpu_target_temperature", "GPU Target Temperature", NA),
            ("memory_temp", "Memory Current Temp", memory_temperature),
            (
                "gpu_temp_max_mem_tlimit_threshold",
                "Memory Max Operating T.Limit Temp",
                NA if memory_temperature == NA else "0 C",
            ),
        ]
    else:
        limits = [
            ("gpu_temp_tlimit", "GPU T.Limit Temp", NA),
            ("gpu_temp_max_threshold", "GPU Shutdown Temp", f"{shutdown} C"),
            ("gpu_temp_slow_threshold", "GPU Slowdown Temp", f"{slowdown} C"),
            ("gpu_temp_max_gpu_threshold", "GPU Max Operating Temp", f"{highest} C"),
            ("gpu_target_temperature", "GPU Target Temperature", NA),
            ("memory_temp", "Memory Current Temp", memory_temperature),
            ("gpu_temp_max_mem_threshold", "Memory Max Operating Temp", "95 C"),
        ]

    def power_readings(values: list[str]) -> list[Leaf]:
        keys = ("average_power_draw", "instant_power_draw", "current_power_limit", "requested_power_limit")
        keys += ("default_power_limit", "min_power_limit", "max_power_limit")  # type: ignore[assignment]
        labels = ("Average Power Draw", "Instantaneous Power Draw", "Current Power Limit", "Requested Power Limit")
        labels += ("Default Power Limit", "Min Power Limit", "Max Power Limit")  # type: ignore[assignment]
        return [("power_state", "", DEPRECATED if r595 else hw["idle_performance_state"]), *zip(keys, labels, values)]

    clock_application = (
        (DEPRECATED, DEPRECATED) if r595 else (mhz(graphics_application), mhz(memory_application))
    )
    clock_default = (
        (DEPRECATED, DEPRECATED)
        if r595
        else (mhz(hw["clock_graphics_default_application_mhz"]), mhz(gpu.supported_memory()[0]))
    )
    health = NA
    return [
        ("product_name", "Product Name", hw["name"]),
        ("product_brand", "Product Brand", "Tesla" if hw["name"].startswith("Tesla") else "NVIDIA"),
        ("product_architecture", "Product Architecture", hw["architecture"]),
        ("display_mode", "Display Mode", DEPRECATED),
        ("display_attached", "Display Attached", "No"),
        ("display_active", "Display Active", "Disabled"),
        ("persistence_mode", "Persistence Mode", enabled(gpu.persistence)),
        ("addressing_mode", "Addressing Mode", "HMM"),
        ("mig_mode", "MIG Mode", modes(mig, gpu.mode("mig", pending=True), "mig")),
        ("mig_devices", "", "\n\t\t\tNone\n\t\t"),
        ("accounting_mode", "Accounting Mode", "Disabled"),
        ("accounting_mode_buffer_size", "Accounting Mode Buffer Size", "4000"),
        ("driver_model", "Driver Model", modes(NA, NA, "dm")),
        ("serial", "Serial Number", hw["serial"]),
        ("uuid", "GPU UUID", gpu.uuid),
        ("pdi", "GPU PDI", f"0x{gpu.uuid.replace('-', '')[3:19]}"),
        ("minor_number", "Minor Number", str(hw["index"])),
        ("vbios_version", "VBIOS Version", hw["vbios_version"]),
        ("multigpu_board", "MultiGPU Board", "No"),
        ("board_id", "Board ID", f"0x{bus.lower().lstrip('0')}00"),
        ("board_part_number", "Board Part Number", hw["board_part_number"]),
        ("gpu_part_number", "GPU Part Number", hw["gpu_part_number"]),
        ("gpu_fru_part_number", "FRU Part Number", NA),
        (
            "platformInfo",
            "Platform Info",
            [
                ("chassis_serial_number", "Chassis Serial Number", NA),
                ("slot_number", "Slot Number", NA),
                ("tray_index", "Tray Index", NA),
                ("host_id", "Host ID", NA),
                ("peer_type", "Peer Type", NA),
                ("module_id", "Module Id", str(hw["module_id"])),
                ("gpu_fabric_guid", "GPU Fabric GUID", NA),
            ],
        ),
        (
            "inforom_version",
            "Inforom Version",
            [
                ("img_version", "Image Version", hw["inforom_image_version"]),
                ("oem_object", "OEM Object", hw["inforom_oem_object"]),
                ("ecc_object", "ECC Object", hw["inforom_ecc_object"]),
                ("pwr_object", "Power Management Object", NA),
            ],
        ),
        (
            "inforom_bbx_flush",
            "Inforom BBX Object Flush",
            [("latest_timestamp", "Latest Timestamp", NA), ("latest_duration", "Latest Duration", NA)],
        ),
        ("gpu_operation_mode", "GPU Operation Mode", modes(NA, NA, "gom")),
        ("c2c_mode", "GPU C2C Mode", "Disabled" if hw["architecture"] == "Hopper" else NA),
        (
            "gpu_virtualization_mode",
            "GPU Virtualization Mode",
            [
                ("virtualization_mode", "Virtualization Mode", "None"),
                ("host_vgpu_mode", "Host VGPU Mode", NA),
                ("vgpu_heterogeneous_mode", "vGPU Heterogeneous Mode", NA),
            ],
        ),
        ("gpu_recovery_action", "GPU Recovery Action", "None"),
        ("gsp_firmware_version", "GSP Firmware Version", node.driver_version if hw["gsp_firmware"] else NA),
        ("ibmnpu", "IBMNPU", [("relaxed_ordering_mode", "Relaxed Ordering Mode", NA)]),
        (
            "pci",
            "PCI",
            [
                ("", "Bus", f"0x{bus}"),
                ("", "Device", f"0x{device}"),
                ("", "Domain", "0x0000"),
                ("", "Base Classcode", "0x3"),
                ("", "Sub Classcode", "0x2"),
                ("", "Device Id", f"0x{hw['device_id'].upper()}10DE"),
                ("pci_bus", "", bus),
                ("pci_device", "", device),
                ("pci_domain", "", "0000"),
                ("pci_base_class", "", "3"),
                ("pci_sub_class", "", "2"),
                ("pci_device_id", "", f"{hw['device_id'].upper()}10DE"),
                ("pci_bus_id", "Bus Id", gpu.bus_id),
                ("", "Sub System Id", f"0x{hw['subsystem_id'].upper()}10DE"),
                ("pci_sub_system_id", "", f"{hw['subsystem_id'].upper()}10DE"),
                (
                    "pci_gpu_link_info",
                    "GPU Link Info",
                    [
                        (
                            "pcie_gen",
                            "PCIe Generation",
                            [
                                ("max_link_gen", "Max", str(hw["pcie_gen_max"])),
                                ("current_link_gen", "Current", str(gpu.link_gen)),
                                ("device_current_link_gen", "Device Current", str(gpu.link_gen)),
                                ("max_device_link_gen", "Device Max", str(hw["pcie_gen_max"])),
                                ("max_host_link_gen", "Host Max", NA),
                            ],
                        ),
                        (
                            "link_widths",
                            "Link Width",
                            [
                                ("max_link_width", "Max", f"{hw['pcie_width_max']}x"),
                                ("current_link_width", "Current", f"{hw['pcie_width_max']}x"),
                            ],
                        ),
                    ],
                ),
                (
                    "pci_bridge_chip",
                    "Bridge Chip",
                    [("bridge_chip_type", "Type", NA), ("bridge_chip_fw", "Firmware", NA)],
                ),
                ("replay_counter", "Replays Since Reset", "0"),
                ("replay_rollover_counter", "Replay Number Rollovers", "0"),
                ("tx_util", "Tx Throughput", "502 KB/s"),
                ("rx_util", "Rx Throughput", "578 KB/s"),
                ("atomic_caps_outbound", "Atomic Caps Outbound", NA),
                ("atomic_caps_inbound", "Atomic Caps Inbound", NA),
            ],
        ),
        ("fan_speed", "Fan Speed", NA),
        ("performance_state", "Performance State", performance_state(gpu)),
        (
            "clocks_event_reasons",
            "Clocks Event Reasons",
            [
                ("clocks_event_reason_gpu_idle", "Idle", active(reasons & 0x1)),
                ("clocks_event_reason_applications_clocks_setting", "Applications Clocks Setting", active(0)),
                ("clocks_event_reason_sw_power_cap", "SW Power Cap", active(0)),
                ("clocks_event_reason_hw_slowdown", "HW Slowdown", active(reasons & 0x8)),
                ("clocks_event_reason_hw_thermal_slowdown", "    HW Thermal Slowdown", active(reasons & 0x40)),
                ("clocks_event_reason_hw_power_brake_slowdown", "    HW Power Brake Slowdown", active(0)),
                ("clocks_event_reason_sync_boost", "Sync Boost", active(0)),
                ("clocks_event_reason_sw_thermal_slowdown", "SW Thermal Slowdown", active(0)),
                ("clocks_event_reason_display_clocks_setting", "Display Clock Setting", active(0)),
            ],
        ),
        (
            "clocks_event_reasons_counters",
            "Clocks Event Reasons Counters",
            [
                ("clocks_event_reasons_counters_sw_power_cap", "SW Power Capping", "0 us"),
                ("clocks_event_reasons_counters_sync_boost", "Sync Boost", "0 us"),
                ("clocks_event_reasons_counters_sw_therm_slowdown", "SW Thermal Slowdown", "0 us"),
                (
                    "clocks_event_reasons_counters_hw_therm_slowdown",
                    "HW Thermal Slowdown",
                    f"{60_000_000 if gpu.throttled else 0} us",
                ),
                ("clocks_event_reasons_counters_hw_power_brake", "HW Power Braking", "0 us"),
            ],
        ),
        ("sparse_operation_mode", "Sparse Operation Mode", "Disabled" if hw["architecture"] == "Hopper" else NA),
        (
            "fb_memory_usage",
            "FB Memory Usage",
            [
                ("total", "Total", f"{total} MiB"),
                ("reserved", "Reserved", f"{reserved} MiB"),
                ("used", "Used", f"{used} MiB"),
                ("free", "Free", f"{total - reserved - used} MiB"),
            ],
        ),
        (
            "bar1_memory_usage",
            "BAR1 Memory Usage",
            [
                ("total", "Total", f"{hw['bar1_total_mib']} MiB"),
                ("used", "Used", "1 MiB"),
                ("free", "Free", f"{hw['bar1_total_mib'] - 1} MiB"),
            ],
        ),
        (
            "cc_protected_memory_usage",
            "Conf Compute Protected Memory Usage",
            [("total", "Total", "0 MiB"), ("used", "Used", "0 MiB"), ("free", "Free", "0 MiB")],
        ),
        ("compute_mode", "Compute Mode", "Default"),
        (
            "utilization",
            "Utilization",
            [
                ("gpu_util", "GPU", f"{100 * gpu.computing} %"),
                ("memory_util", "Memory", f"{40 * gpu.computing} %"),
                ("encoder_util", "Encoder", "0 %"),
                ("decoder_util", "Decoder", "0 %"),
                ("jpeg_util", "JPEG", "0 %"),
                ("ofa_util", "OFA", "0 %"),
            ],
        ),
        *(
            (
                tag,
                label,
                [
                    ("session_count", "Active Sessions", "0"),
                    ("average_fps", "Average FPS", "0"),
                    ("average_latency", "Average Latency", "0"),
                ],
            )
            for tag, label in (("encoder_stats", "Encoder Stats"), ("fbc_stats", "FBC Stats"))
        ),
        ("dram_encryption_mode", "DRAM Encryption Mode", modes(NA, NA, "dram_encryption")),
        ("ecc_mode", "ECC Mode", modes(ecc, gpu.mode("ecc", pending=True), "ecc")),
        ("ecc_errors", "ECC Errors", ecc_errors),
        ("retired_pages", "Retired Pages", retired_pages),
        ("remapped_rows", "Remapped Rows", remapped_rows),
        ("temperature", "Temperature", [("gpu_temp", "GPU Current Temp", f"{gpu.temperature()} C"), *limits]),
        ("supported_gpu_target_temp", "", [("gpu_target_temp_min", "", NA), ("gpu_target_temp_max", "", NA)]),
        (
            "gpu_power_readings",
            "GPU Power Readings",
            power_readings(
                [
                    watt(gpu.power_draw()),
                    watt(gpu.power_draw()),
                    watt(gpu.power_limit()),
                    watt(gpu.power_limit()),
                    watt(hw["power_default_w"]),
                    watt(hw["power_min_w"]),
                    watt(hw["power_max_w"]),
                ]
            ),
        ),
        (
            "gpu_memory_power_readings",
            "GPU Memory Power Readings ",
            [("average_power_draw", "Average Power Draw", NA), ("instant_power_draw", "Instantaneous Power Draw", NA)],
        ),
        ("module_power_readings", "Module Power Readings", power_readings([NA] * 7)),
        ("power_smoothing", "Power Smoothing", NA),
        (
            "power_profiles",
            "Workload Power Profiles",
            [
                ("power_profile_requested_profiles", "Requested Profiles", NA),
                ("power_profile_enforced_profiles", "Enforced Profiles", NA),
            ],
        ),
        *([("edpp_multiplier", "EDPp Multiplier", NA)] if r595 else []),
        (
            "clocks",
            "Clocks",
            [
                ("graphics_clock", "Graphics", mhz(gpu.graphics())),
                ("sm_clock", "SM", mhz(gpu.graphics())),
                ("mem_clock", "Memory", mhz(gpu.memory())),
                ("video_clock", "Video", mhz(hw["clock_video_idle_mhz"])),
            ],
        ),
        (
            "applications_clocks",
            "Applications Clocks",
            [("graphics_clock", "Graphics", clock_application[0]), ("mem_clock", "Memory", clock_application[1])],
        ),
        (
            "default_applications_clocks",
            "Default Applications Clocks",
            [("graphics_clock", "Graphics", clock_default[0]), ("mem_clock", "Memory", clock_default[1])],
        ),
        ("deferred_clocks", "Deferred Clocks", [("mem_clock", "Memory", NA)]),
        (
            "max_clocks",
            "Max Clocks",
            [
                ("graphics_clock", "Graphics", mhz(gpu.supported_graphics()[0])),
                ("sm_clock", "SM", mhz(gpu.supported_graphics()[0])),
                ("mem_clock", "Memory", mhz(gpu.supported_memory()[0])),
                ("video_clock", "Video", mhz(hw["clock_video_max_mhz"])),
            ],
        ),
        (
            "max_customer_boost_clocks",
            "Max Customer Boost Clocks",
            [("graphics_clock", "Graphics", mhz(gpu.supported_graphics()[0]))],
        ),
        (
            "clock_policy",
            "Clock Policy",
            [("auto_boost", "Auto Boost", NA), ("auto_boost_default", "Auto Boost Default", NA)],
        ),
        (
            "fabric",
            "Fabric",
            [
                ("state", "State", state),
                ("status", "Status", status),
                ("cliqueId", "CliqueId", "0" if status == "Success" else NA),
                (
                    "clusterUuid",
                    "ClusterUUID",
                    "00000000-0000-0000-0000-000000000000" if status == "Success" else NA,
                ),
                (
                    "health",
                    "Health",
                    [
                        ("summary", "Summary", health),
                        ("bandwidth", "Bandwidth", health),
                        ("route_recovery_in_progress", "Route Recovery in progress", health),
                        ("route_unhealthy", "Route Unhealthy", health),
                        ("access_timeout_recovery", "Access Timeout Recovery", health),
                        ("incorrect_configuration", "Incorrect Configuration", health),
                        *([("partition_assigned", "Partition Assigned", health)] if r595 else []),
                    ],
                ),
            ],
        ),
        (
            "supported_clocks",
            "Supported Clocks",
            [
                (
                    "supported_mem_clock",
                    "",
                    [
                        ("value", "", mhz(entry["memory_mhz"])),
                        *(("supported_graphics_clock", "", mhz(clock)) for clock in entry["graphics_mhz"]),
                    ],
                )
                for entry in hw["supported_clocks"]
            ],
        ),
        (
            "processes",
            "",
            [
                (
                    "process_info",
                    "",
                    [
                        ("gpu_instance_id", "", NA),
                        ("compute_instance_id", "", NA),
                        ("pid", "", str(pid)),
                        ("type", "", "C"),
                        ("process_name", "", name),
                        ("used_memory", "", f"{memory} MiB"),
                    ],
                )
                for pid, name, memory in gpu.processes()
            ],
        ),
        ("", "Processes", text_processes(gpu)),
        ("accounted_processes", "", []),
        ("capabilities", "Capabilities", [("egm", "EGM", "disabled")]),
    ]


def performance_state(gpu: Gpu) -> str:
    return "P0" if gpu.computing or "graphics_lock" in gpu.settings else str(gpu.hw["idle_performance_state"])


def text_processes(gpu: Gpu) -> str | list[Leaf]:
    leaves: list[Leaf] = []
    for pid, name, memory in gpu.processes():
        leaves += [
            ("", "GPU instance ID", NA),
            ("", "Compute instance ID", NA),
            ("", "Process ID", str(pid)),
            ("", "    Type", "C"),
            ("", "    Name", name),
            ("", "    Used GPU Memory", f"{memory} MiB"),
        ]
    return leaves or "None"


def xml_lines(leaves: list[Leaf], depth: int) -> list[str]:
    indent, lines = "\t" * depth, []
    for tag, _, value in leaves:
        if not tag:
            continue
        if isinstance(value, list):
            lines += [f"{indent}<{tag}>", *xml_lines(value, depth + 1), f"{indent}</{tag}>"]
        else:
            escaped = value.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
            lines.append(f"{indent}<{tag}>{escaped}</{tag}>")
    return lines


def text_lines(leaves: list[Leaf], depth: int) -> list[str]:
    indent, lines = "    " * depth, []
    for _, label, value in leaves:
        if not label:
            continue
        if isinstance(value, list):
            lines += [f"{indent}{label}", *text_lines(value, depth + 1)]
        else:
            lines.append(f"{indent}{label}".ljust(55) + f": {value}")
    return lines


# The elements that `-d` selects; without it, text leaves the long list of supported clocks out.
SECTIONS = {
    "MEMORY": ("fb_memory_usage", "bar1_memory_usage", "cc_protected_memory_usage"),
    "UTILIZATION": ("utilization", "encoder_stats", "fbc_stats"),
    "ECC": ("ecc_mode", "ecc_errors"),
    "TEMPERATURE": ("temperature", "supported_gpu_target_temp"),
    "POWER": ("gpu_power_readings", "gpu_memory_power_readings", "module_power_readings", "power_smoothing"),
    "CLOCK": (
        "clocks",
        "applications_clocks",
        "default_applications_clocks",
        "deferred_clocks",
        "max_clocks",
        "max_customer_boost_clocks",
        "clock_policy",
    ),
    "COMPUTE": ("compute_mode",),
    "PIDS": ("processes", ""),
    "PERFORMANCE": ("performance_state", "clocks_event_reasons", "clocks_event_reasons_counters", "sparse_operation_mode"),
    "SUPPORTED_CLOCKS": ("supported_clocks",),
    "PAGE_RETIREMENT": ("retired_pages",),
    "ROW_REMAPPER": ("remapped_rows",),
}


def query_all(node: Node, gpus: list[Gpu], *, xml: bool, display: str | None) -> None:
    """Print `-q` or `-q -x`, whole or the sections named in `display`."""
    wanted = None
    if display is not None:
        names = display.upper().split(",")
        unknown = [name for name in names if name not in SECTIONS]
        if unknown:
            raise Stop(2, f"Invalid display type specified: {unknown[0]}")
        wanted = [element for name in names for element in SECTIONS[name]]
    for gpu in gpus:
        gpu.require_reachable()
    stamp = time.strftime("%a %b %e %H:%M:%S %Y")
    if xml:
        lines = [
            '<?xml version="1.0" ?>',
            '<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v13.dtd">',
            "<nvidia_smi_log>",
            f"\t<timestamp>{stamp}</timestamp>",
            f"\t<driver_version>{node.driver_version}</driver_version>",
            f"\t<cuda_version>{node.cuda_version}</cuda_version>",
            f"\t<attached_gpus>{len(node.gpus)}</attached_gpus>",
        ]
    else:
        lines = ["", "==============NVSMI LOG==============", ""]
        for label, value in (("Timestamp", stamp), ("Driver Version", node.driver_version), ("CUDA Version", node.cuda_version)):
            lines.append(label.ljust(55) + f": {value}")
        lines += ["", "Attached GPUs".ljust(55) + f": {len(node.gpus)}"]
    for gpu in gpus:
        leaves = [leaf for leaf in report(gpu) if wanted is None or leaf[0] in wanted]
        if xml:
            lines += [f'\t<gpu id="{gpu.bus_id}">', *xml_lines(leaves, 2), "\t</gpu>", ""]
        else:
            if wanted is None:
                leaves = [leaf for leaf in leaves if leaf[0] != "supported_clocks"]
            lines += [f"GPU {gpu.bus_id}", *text_lines(leaves, 1), *supported_clocks_text(gpu, wanted), ""]
    print("\n".join(lines + (["</nvidia_smi_log>"] if xml else [])))


def supported_clocks_text(gpu: Gpu, wanted: list[str] | None) -> list[str]:
    lines: list[str] = []
    if wanted and "supported_clocks" in wanted:
        for entry in gpu.hw["supported_clocks"]:
            lines.append("        Memory".ljust(55) + f": {entry['memory_mhz']} MHz")
            lines += ["            Graphics".ljust(55) + f": {clock} MHz" for clock in entry["graphics_mhz"]]
    return lines


# ---------------------------------------------------------------- --query-gpu and the other --query-*

UNITS = {
    "fan.speed": "%", "memory.total": "MiB", "memory.reserved": "MiB", "memory.used": "MiB", "memory.free": "MiB",
    "utilization.gpu": "%", "utilization.memory": "%", "power.draw": "W", "power.draw.average": "W",
    "power.draw.instant": "W", "power.limit": "W", "enforced.power.limit": "W", "power.default_limit": "W",
    "power.min_limit": "W", "power.max_limit": "W", "clocks.current.graphics": "MHz", "clocks.current.sm": "MHz",
    "clocks.current.memory": "MHz", "clocks.current.video": "MHz", "clocks.applications.graphics": "MHz",
    "clocks.applications.memory": "MHz", "clocks.default_applications.graphics": "MHz",
    "clocks.default_applications.memory": "MHz", "clocks.max.graphics": "MHz", "clocks.max.sm": "MHz",
    "clocks.max.memory": "MHz", "clocks_event_reasons_counters.sw_power_cap": "us",
    "clocks_event_reasons_counters.sync_boost": "us", "clocks_event_reasons_counters.sw_thermal_slowdown": "us",
    "clocks_event_reasons_counters.hw_thermal_slowdown": "us",
    "clocks_event_reasons_counters.hw_power_brake_slowdown": "us",
    "used_gpu_memory": "MiB", "memory": "MHz", "graphics": "MHz",
}  # fmt: skip

ALIASES = {
    "gpu_name": "name", "gpu_serial": "serial", "gpu_uuid": "uuid", "gpu_bus_id": "pci.bus_id",
    "inforom.image": "inforom.img", "clocks.gr": "clocks.current.graphics", "clocks.graphics": "clocks.current.graphics",
    "clocks.sm": "clocks.current.sm", "clocks.mem": "clocks.current.memory", "clocks.memory": "clocks.current.memory",
    "clocks.video": "clocks.current.video", "clocks.applications.gr": "clocks.applications.graphics",
    "clocks.applications.mem": "clocks.applications.memory",
    "clocks.default_applications.gr": "clocks.default_applications.graphics",
    "clocks.default_applications.mem": "clocks.default_applications.memory", "clocks.max.gr": "clocks.max.graphics",
    "clocks.max.mem": "clocks.max.memory", "retired_pages.sbe": "retired_pages.single_bit_ecc.count",
    "retired_pages.dbe": "retired_pages.double_bit.count",
}  # fmt: skip

EVENT_REASONS = {
    "gpu_idle": 0x1, "applications_clocks_setting": 0x2, "sw_power_cap": 0x4, "hw_slowdown": 0x8,
    "hw_thermal_slowdown": 0x40, "hw_power_brake_slowdown": 0x80, "sw_thermal_slowdown": 0x20, "sync_boost": 0x10,
}  # fmt: skip


def gpu_fields(gpu: Gpu) -> dict[str, str]:
    """Return every field that --query-gpu knows, by its canonical name, without units.

    Names and order: nvidia_gpu_exporter's catalogue, checked by its author on an H100 with driver 590.48.01.
    """
    hw, node = gpu.hw, gpu.node
    remapper = hw["row_remapper_banks"] is not None
    memory_application, graphics_application = gpu.applications()
    r595 = node.branch >= 595
    state, status = gpu.fabric()
    watt = "{:.2f}".format
    used, total, reserved = gpu.memory_used_mib(), hw["memory_total_mib"], hw["memory_reserved_mib"]
    fields = {
        "timestamp": time.strftime("%Y/%m/%d %H:%M:%S.000"),
        "driver_version": node.driver_version,
        "count": str(len(node.gpus)),
        "name": hw["name"],
        "serial": hw["serial"],
        "uuid": gpu.uuid,
        "pci.bus_id": gpu.bus_id,
        "pci.domain": "0x0000",
        "pci.bus": f"0x{gpu.bus_id[9:11]}",
        "pci.device": f"0x{gpu.bus_id[12:14]}",
        "pci.baseClass": "0x3",
        "pci.subClass": "0x2",
        "pci.device_id": f"0x{hw['device_id'].upper()}10DE",
        "pci.sub_device_id": f"0x{hw['subsystem_id'].upper()}10DE",
        "pcie.link.gen.current": str(gpu.link_gen),
        "pcie.link.gen.gpucurrent": str(gpu.link_gen),
        "pcie.link.gen.max": str(hw["pcie_gen_max"]),
        "pcie.link.gen.gpumax": str(hw["pcie_gen_max"]),
        "pcie.link.gen.hostmax": NA,
        "pcie.link.width.current": str(hw["pcie_width_max"]),
        "pcie.link.width.max": str(hw["pcie_width_max"]),
        "index": str(gpu.index),
        "display_mode": DEPRECATED,
        "display_attached": "No",
        "display_active": "Disabled",
        "persistence_mode": enabled(gpu.persistence),
        "addressing_mode": "HMM",
        "accounting.mode": "Disabled",
        "accounting.buffer_size": "4000",
        "driver_model.current": NA,
        "driver_model.pending": NA,
        "vbios_version": hw["vbios_version"],
        "inforom.img": hw["inforom_image_version"],
        "inforom.oem": hw["inforom_oem_object"],
        "inforom.ecc": hw["inforom_ecc_object"],
        "inforom.pwr": NA,
        "inforom.checksum_validation": "valid",
        "gpu_recovery_action": "None",
        "gom.current": NA,
        "gom.pending": NA,
        "fan.speed": NA,
        "pstate": performance_state(gpu),
        "clocks_event_reasons.supported": "0x00000000000001FF",
        "clocks_event_reasons.active": f"0x{gpu.event_reasons():016X}",
    }
    for name, bit in EVENT_REASONS.items():
        fields[f"clocks_event_reasons.{name}"] = active(gpu.event_reasons() & bit)
    for name in ("sw_power_cap", "sync_boost", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"):
        hot = gpu.throttled and name == "hw_thermal_slowdown"
        fields[f"clocks_event_reasons_counters.{name}"] = "60000000" if hot else "0"
    fields.update(
        {
            "memory.total": str(total),
            "memory.reserved": str(reserved),
            "memory.used": str(used),
            "memory.free": str(total - reserved - used),
            "compute_mode": "Default",
            "compute_cap": hw["compute_capability"],
            "utilization.gpu": str(100 * gpu.computing),
            "utilization.memory": str(40 * gpu.computing),
            "encoder.stats.sessionCount": "0",
            "encoder.stats.averageFps": "0",
            "encoder.stats.averageLatency": "0",
            "ecc.mode.current": gpu.mode("ecc"),
            "ecc.mode.pending": gpu.mode("ecc", pending=True),
        }
    )
    sram = "0" if remapper else NA
    for kind, count in (("corrected", 0), ("uncorrected", gpu.memory_errors)):
        for period in ("volatile", "aggregate"):
            prefix = f"ecc.errors.{kind}.{period}"
            fields[f"{prefix}.device_memory"] = fields[f"{prefix}.dram"] = str(count)
            for place in ("register_file", "l1_cache", "l2_cache", "texture_memory", "cbu"):
                fields[f"{prefix}.{place}"] = NA
            fields[f"{prefix}.sram"] = sram
            fields[f"{prefix}.total"] = str(count)
    for place in ("volatile.sram.parity", "volatile.sram.secded", "aggregate.sram.parity", "aggregate.sram.secded"):
        fields[f"ecc.errors.uncorrected.{place}"] = sram
    retired = NA if remapper else "0"
    fields.update(
        {
            "retired_pages.single_bit_ecc.count": retired,
            "retired_pages.double_bit.count": retired,
            "retired_pages.pending": NA if remapper else "No",
            **remapped_row_fields(gpu),
            "temperature.gpu": str(gpu.temperature()),
            "temperature.gpu.tlimit": str(hw["temperature_max_operating_c"] - gpu.temperature())
            if hw["temperature_limits_are_margins"]
            else NA,
            "temperature.memory": NA if hw["memory_temperature_c"] is None else str(hw["memory_temperature_c"]),
            "power.management": DEPRECATED,
            "power.draw": watt(gpu.power_draw()),
            "power.draw.average": watt(gpu.power_draw()),
            "power.draw.instant": watt(gpu.power_draw()),
            "power.limit": watt(gpu.power_limit()),
            "enforced.power.limit": watt(gpu.power_limit()),
            "power.default_limit": watt(hw["power_default_w"]),
            "power.min_limit": watt(hw["power_min_w"]),
            "power.max_limit": watt(hw["power_max_w"]),
            "clocks.current.graphics": str(gpu.graphics()),
            "clocks.current.sm": str(gpu.graphics()),
            "clocks.current.memory": str(gpu.memory()),
            "clocks.current.video": str(hw["clock_video_idle_mhz"]),
            "clocks.applications.graphics": DEPRECATED if r595 else str(graphics_application),
            "clocks.applications.memory": DEPRECATED if r595 else str(memory_application),
            "clocks.default_applications.graphics": DEPRECATED
            if r595
            else str(hw["clock_graphics_default_application_mhz"]),
            "clocks.default_applications.memory": DEPRECATED if r595 else str(gpu.supported_memory()[0]),
            "clocks.max.graphics": str(gpu.supported_graphics()[0]),
            "clocks.max.sm": str(gpu.supported_graphics()[0]),
            "clocks.max.memory": str(gpu.supported_memory()[0]),
            "mig.mode.current": gpu.mode("mig"),
            "mig.mode.pending": gpu.mode("mig", pending=True),
            "gsp.mode.current": "Enabled" if hw["gsp_firmware"] else NA,
            "gsp.mode.default": "Enabled" if hw["gsp_firmware"] else NA,
            "c2c.mode": "Disabled" if hw["architecture"] == "Hopper" else NA,
            "fabric.state": state,
            "fabric.status": status,
            "fabric.cliqueId": "0" if status == "Success" else NA,
            "fabric.clusterUuid": "00000000-0000-0000-0000-000000000000" if status == "Success" else NA,
            "platform.module_id": str(hw["module_id"]),
            "hostname": os.uname().nodename,
        }
    )
    return fields


def remapped_row_fields(gpu: Gpu) -> dict[str, str]:
    banks = gpu.hw["row_remapper_banks"]
    failed = int(gpu.remap_failed)
    values = {
        "correctable": "0",
        "uncorrectable": str(failed),
        "pending": "No",
        "failure": yes(failed),
        "histogram.max": str((banks or 0) - failed),
        "histogram.high": "0",
        "histogram.partial": "0",
        "histogram.low": "0",
        "histogram.none": str(failed),
    }
    return {f"remapped_rows.{name}": NA if banks is None else value for name, value in values.items()}


def identity_fields(gpu: Gpu) -> dict[str, str]:
    return {
        "timestamp": time.strftime("%Y/%m/%d %H:%M:%S.000"),
        "gpu_name": gpu.hw["name"],
        "gpu_bus_id": gpu.bus_id,
        "gpu_serial": gpu.hw["serial"],
        "gpu_uuid": gpu.uuid,
    }


def query_rows(what: str, gpu: Gpu) -> list[dict[str, str]]:
    """Return the rows that one GPU adds to the answer of --query-`what`."""
    if what == "gpu":
        return [gpu_fields(gpu)]
    if what == "remapped-rows":
        return [{**identity_fields(gpu), **remapped_row_fields(gpu)}]
    if what == "compute-apps":
        return [
            {**identity_fields(gpu), "pid": str(pid), "process_name": name, "used_gpu_memory": str(memory)}
            for pid, name, memory in gpu.processes()
        ]
    return [
        {**identity_fields(gpu), "memory": str(entry["memory_mhz"]), "graphics": str(clock)}
        for entry in gpu.hw["supported_clocks"]
        for clock in entry["graphics_mhz"]
    ]


QUERY_ALIASES = {
    "gpu": ALIASES,
    "remapped-rows": {},
    "compute-apps": {"name": "process_name", "used_memory": "used_gpu_memory"},
    "supported-clocks": {"mem": "memory", "gr": "graphics"},
}
QUERY_NAMES = {
    "compute-apps": ("timestamp", "gpu_name", "gpu_bus_id", "gpu_serial", "gpu_uuid", "pid", "process_name", "used_gpu_memory"),
}


def canonical(what: str, field: str) -> str:
    if what == "gpu" and field.startswith("clocks_throttle_reasons."):
        return field.replace("throttle", "event", 1)
    return QUERY_ALIASES[what].get(field, field)


def query_csv(node: Node, gpus: list[Gpu], what: str, wanted: str, form: str | None) -> int:
    """Print the answer of a --query-* option; return the exit status."""
    options = (form or "").split(",")
    if "csv" not in options or set(options) - {"csv", "noheader", "nounits"}:
        raise Stop(2, '"--format=" switch is missing or has an invalid value; csv is required. Run \'nvidia-smi -h\' for help.')
    known = QUERY_NAMES.get(what) or query_rows(what, node.gpus[0])[0].keys()
    names = []
    for field in wanted.split(","):
        name = canonical(what, field.strip())
        if name not in known:
            raise Stop(2, f'Field "{field.strip()}" is not a valid field to query.\n')
        names.append(name)
    if "noheader" not in options:
        print(", ".join(f"{name} [{UNITS[name]}]" if name in UNITS else name for name in names))
    status = 0
    for gpu in gpus:
        if gpu.lost:
            print(f"Unable to determine the device handle for GPU{gpu.bus_id[4:]}: {LOST}")
            status = 15
            continue
        for row in query_rows(what, gpu):
            print(", ".join(cell(row[name], UNITS.get(name), "nounits" not in options) for name in names))
    return status


def cell(value: str, unit: str | None, units: bool) -> str:
    if value in (NA, DEPRECATED):
        return f"[{value}]"
    return f"{value} {unit}" if unit and units else value


def help_query(what: str) -> None:
    """List the fields of a --query-* option, in the real form: a quoted name, its aliases, an explanation."""
    node = Node()
    known = QUERY_NAMES.get(what) or list(query_rows(what, node.gpus[0])[0])
    lines = [f'List of valid properties to query for the switch "--query-{what}":']
    for name in known:
        others = [alias for alias, target in QUERY_ALIASES[what].items() if target == name]
        if name.startswith("clocks_event_reasons.") and what == "gpu":
            others.append(name.replace("event", "throttle", 1))
        lines += ["", " or ".join(f'"{each}"' for each in (name, *others)), "Simulated by Temper's lab."]
    print("\n".join(lines) + "\n")


# ---------------------------------------------------------------- table, list, topology


def table(node: Node, gpus: list[Gpu]) -> None:
    for gpu in gpus:
        gpu.require_reachable()
    wide = "+" + "-" * 89 + "+"
    row = "+" + "-" * 41 + "+" + "-" * 24 + "+" + "-" * 22 + "+"
    print(time.strftime("%a %b %e %H:%M:%S %Y").ljust(40))
    print(wide)
    left = f"NVIDIA-SMI {node.driver_version}".ljust(34) + f"Driver Version: {node.driver_version}".ljust(31)
    print(f"| {left}CUDA Version: {node.cuda_version}".ljust(90) + "|")
    print(row)
    print("| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |")
    print("| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |")
    print("|                                         |                        |               MIG M. |")
    print(row.replace("-", "=").replace("+", "|", 1)[:-1] + "|")
    for gpu in gpus:
        errors = str(gpu.memory_errors) if gpu.mode("ecc") == "Enabled" else "Off"
        power = f"{gpu.power_draw():>4.0f}W / {gpu.power_limit():>4.0f}W"
        memory = f"{gpu.memory_used_mib():>8}MiB / {gpu.hw['memory_total_mib']:>6}MiB"
        print(
            f"| {gpu.index:>3}  {gpu.hw['name'][:30]:<31}{'On' if gpu.persistence else 'Off':<3} |   {gpu.bus_id} Off "
            f"| {errors:>20} |"
        )
        print(
            f"|{NA:>4}{gpu.temperature():>5}C{performance_state(gpu):>6}{power:>24} |{memory} "
            f"|{100 * gpu.computing:>7}%{'Default':>13} |"
        )
        print(f"|{'':41}|{'':24}|{gpu.mode('mig'):>21} |")
        print(row)
    print()
    print(wide)
    print("| Processes:".ljust(90) + "|")
    print("|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |")
    print("|        ID   ID                                                               Usage      |")
    print("|" + "=" * 89 + "|")
    rows = [(gpu.index, *process) for gpu in gpus for process in gpu.processes()]
    for index, pid, name, memory_mib in rows:
        print(f"| {index:>4}   N/A  N/A  {pid:>15}      C   {name[:34]:<36}{memory_mib:>7}MiB |")
    if not rows:
        print("|  No running processes found".ljust(90) + "|")
    print(wide)


def list_gpus(gpus: list[Gpu]) -> int:
    status = 0
    for gpu in gpus:
        if gpu.lost:
            print(f"Unable to determine the device handle for gpu {gpu.bus_id[4:]}: {LOST}")
            status = 15
        else:
            print(f"GPU {gpu.index}: {gpu.hw['name']} (UUID: {gpu.uuid})")
    return status


def topology(node: Node) -> None:
    """Print `topo -m`. CPU affinity halves the machine's processors between the NUMA nodes of the profile."""
    for gpu in node.gpus:
        gpu.require_reachable()
    count, halves = len(node.gpus), max(gpu.hw["numa_node"] for gpu in node.gpus) + 1
    print("\t" + "\t".join(f"GPU{gpu.index}" for gpu in node.gpus) + "\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID")
    cpus = os.cpu_count() or 1
    for gpu in node.gpus:
        cells = []
        for other in node.gpus:
            if other is gpu:
                cells.append(" X ")
            elif gpu.hw["nvlink_count"] and count > 1:
                cells.append(f"NV{gpu.hw['nvlink_count']}")
            else:
                cells.append("NODE" if other.hw["numa_node"] == gpu.hw["numa_node"] else "SYS")
        half, share = gpu.hw["numa_node"], max(cpus // halves, 1)
        affinity = f"{half * share}-{(half + 1) * share - 1}"
        print(f"GPU{gpu.index}\t" + "\t".join(cells) + f"\t{affinity}\t{half}\t\tN/A")
    print(
        """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node
  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)
  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks"""
    )


def nvlink_status(gpus: list[Gpu]) -> None:
    for gpu in gpus:
        gpu.require_reachable()
        print(f"GPU {gpu.index}: {gpu.hw['name']} (UUID: {gpu.uuid})")
        for link in range(gpu.hw["nvlink_count"]):
            print(f"\t Link {link}: {gpu.hw['nvlink_gb_s']:g} GB/s")


# ---------------------------------------------------------------- settings


def change(node: Node, gpu: Gpu, **values: object) -> None:
    """Store settings of a GPU, or drop those given as None; print the real warning where they would not last."""
    if gpu.session is None:
        print(
            f"\nWarning: persistence mode is disabled on device {gpu.bus_id}. See the Known Issues section of the nvidia-smi(1) "
            "man page for more information. Run with [--help | -h] switch to get more information on how to enable "
            "persistence mode."
        )
        return
    stored = {**gpu.settings, **values, "session": gpu.session}
    gpu.settings = node.settings[gpu.uuid] = {key: value for key, value in stored.items() if value is not None}
    write_json(f"{RUN}/settings.json", node.settings)


def permitted(gpu: Gpu, refusal: str) -> None:
    gpu.require_reachable()
    if UID != 0:
        raise Stop(4, f"{refusal}\nTerminating early due to previous errors.")


def pair(text: str, option: str) -> tuple[int, int]:
    """Parse MIN,MAX or one number for both."""
    numbers = text.split(",")
    if len(numbers) > 2 or not all(number.isdecimal() for number in numbers):
        raise Stop(2, f"Invalid argument \"{text}\" for option {option}: expected a clock in MHz, or two with a comma.")
    return int(numbers[0]), int(numbers[-1])


def set_persistence(node: Node, gpu: Gpu, value: str) -> None:
    permitted(gpu, f"Unable to set persistence mode for GPU {gpu.bus_id}: Insufficient Permissions")
    wanted = {"1": True, "ENABLED": True, "0": False, "DISABLED": False}.get(value.upper())
    if wanted is None:
        raise Stop(2, f"Invalid persistence mode specified: {value}")
    if wanted == gpu.persistence:
        print(f"Persistence mode is already {enabled(wanted)} for GPU {gpu.bus_id}.")
        return
    legacy = node.settings.setdefault("legacy", {})
    legacy.pop(gpu.uuid, None)
    if not wanted:
        node.settings.pop(gpu.uuid, None)
        if node.daemon:
            legacy[gpu.uuid] = node.daemon  # this daemon leaves this GPU alone from now on
        print(f"Disabled persistence mode for GPU {gpu.bus_id}.")
    elif node.daemon:
        print(f"Enabled persistence mode for GPU {gpu.bus_id}.")
    else:
        legacy[gpu.uuid] = True
        print(f"Enabled Legacy persistence mode for GPU {gpu.bus_id}.")
    write_json(f"{RUN}/settings.json", node.settings)
    gpu.session = gpu._session()


def no_clock_permission(gpu: Gpu) -> None:
    permitted(gpu, f"The current user does not have permission to change clocks for GPU {gpu.bus_id}.")


def lock_graphics(node: Node, gpu: Gpu, value: str) -> None:
    no_clock_permission(gpu)
    lowest, highest = pair(value, "-lgc")
    print(f'GPU clocks set to "(gpuClkMin {lowest}, gpuClkMax {highest})" for GPU {gpu.bus_id}')
    change(node, gpu, graphics_lock=[lowest, highest])


def reset_graphics(node: Node, gpu: Gpu, _: str) -> None:
    no_clock_permission(gpu)
    if gpu.session:
        change(node, gpu, graphics_lock=None)


def lock_memory(node: Node, gpu: Gpu, value: str) -> None:
    no_clock_permission(gpu)
    lowest, highest = pair(value, "-lmc")
    if not gpu.hw["locked_memory_clocks"]:
        print(f"Setting locked memory clocks is not supported for GPU {gpu.bus_id}.\nTreating as warning and moving on.")
        return
    print(f'Memory clocks set to "(memClkMin {lowest}, memClkMax {highest})" for GPU {gpu.bus_id}')
    change(node, gpu, memory_lock=[lowest, highest])


def reset_memory(node: Node, gpu: Gpu, _: str) -> None:
    no_clock_permission(gpu)
    if not gpu.hw["locked_memory_clocks"]:
        print(f"Resetting locked memory clocks is not supported for GPU {gpu.bus_id}.\nTreating as warning and moving on.")
    elif gpu.session:
        change(node, gpu, memory_lock=None)


def deprecated_clocks(node: Node, gpu: Gpu, verb: str) -> bool:
    """From 595 on NVML answers DEPRECATED to application clocks; how nvidia-smi words that for a setter is assumed."""
    if node.branch < 595:
        return False
    print(f"Failed to {verb} applications clocks for GPU {gpu.bus_id}: {DEPRECATED}\nTreating as warning and moving on.")
    return True


def set_applications(node: Node, gpu: Gpu, value: str) -> None:
    no_clock_permission(gpu)
    memory, graphics = pair(value, "-ac")
    if deprecated_clocks(node, gpu, "set"):
        return
    combination = f'"(MEM {memory}, SM {graphics})"'
    if not any(e["memory_mhz"] == memory and graphics in e["graphics_mhz"] for e in gpu.hw["supported_clocks"]):
        print(
            f"Specified clock combination {combination} is not supported for GPU {gpu.bus_id}. Run 'nvidia-smi -q -d "
            "SUPPORTED_CLOCKS' to see list of supported clock combinations\nTreating as warning and moving on."
        )
        return
    print(f"Applications clocks set to {combination} for GPU {gpu.bus_id}")
    change(node, gpu, applications=[memory, graphics])


def reset_applications(node: Node, gpu: Gpu, _: str) -> None:
    no_clock_permission(gpu)
    if not deprecated_clocks(node, gpu, "reset") and gpu.session:
        change(node, gpu, applications=None)


def set_power_limit(node: Node, gpu: Gpu, value: str) -> None:
    permitted(gpu, f"Failed to set power management limit for GPU {gpu.bus_id}: Insufficient Permissions")
    try:
        watts = float(value)
    except ValueError:
        raise Stop(2, f"Invalid power limit specified: {value}") from None
    lowest, highest = gpu.hw["power_min_w"], gpu.hw["power_max_w"]
    if not lowest <= watts <= highest:
        raise Stop(
            2,
            f"Provided power limit {watts:.2f} W is not a valid power limit which should be between {lowest:.2f} W and "
            f"{highest:.2f} W for GPU {gpu.bus_id}\nTerminating early due to previous errors.",
        )
    print(f"Power limit for GPU {gpu.bus_id} was set to {watts:.2f} W from {gpu.power_limit():.2f} W.")
    change(node, gpu, power_limit_w=watts)


def set_mode(node: Node, gpu: Gpu, name: str, value: str) -> bool:
    """Store a mode in the InfoROM; return whether that changed it."""
    if value not in ("0", "1"):
        raise Stop(2, f"Invalid mode specified: {value}")
    mine = node.inforom_pending.setdefault(gpu.uuid, {})
    if mine.get(name, name == "ecc") == (value == "1"):
        return False
    mine[name] = value == "1"
    write_json(f"{STATE}/inforom.json", node.inforom_pending)
    return True


def set_mig(node: Node, gpu: Gpu, value: str) -> None:
    permitted(gpu, f"Unable to set MIG mode for GPU {gpu.bus_id}: Insufficient Permissions")
    if not gpu.hw["mig_capable"]:
        print(f"MIG mode is not supported for GPU {gpu.bus_id}.\nTreating as warning and moving on.")
        return
    if set_mode(node, gpu, "mig", value):  # in force at once: the simulated GPU is idle and can be reset
        node.inforom.setdefault(gpu.uuid, {})["mig"] = value == "1"
        write_json(f"{RUN}/inforom.json", node.inforom)
    print(f"{enabled(value == '1')} MIG Mode for GPU {gpu.bus_id}")


def set_ecc(node: Node, gpu: Gpu, value: str) -> None:
    permitted(gpu, f"Unable to set ECC mode for GPU {gpu.bus_id}: Insufficient Permissions")
    if set_mode(node, gpu, "ecc", value):
        print(f"{enabled(value == '1')} ECC support for GPU {gpu.bus_id}.")
    else:
        print(f"ECC support is already {enabled(value == '1')} for GPU {gpu.bus_id}.")


SETTERS = {
    "-pm": set_persistence,
    "-lgc": lock_graphics,
    "-rgc": reset_graphics,
    "-lmc": lock_memory,
    "-rmc": reset_memory,
    "-ac": set_applications,
    "-rac": reset_applications,
    "-pl": set_power_limit,
    "-mig": set_mig,
    "-e": set_ecc,
}
LONG = {
    "--id": "-i",
    "--query": "-q",
    "--xml-format": "-x",
    "--display": "-d",
    "--list-gpus": "-L",
    "--help": "-h",
    "--persistence-mode": "-pm",
    "--lock-gpu-clocks": "-lgc",
    "--reset-gpu-clocks": "-rgc",
    "--lock-memory-clocks": "-lmc",
    "--reset-memory-clocks": "-rmc",
    "--applications-clocks": "-ac",
    "--reset-applications-clocks": "-rac",
    "--power-limit": "-pl",
    "--multi-instance-gpu": "-mig",
    "--ecc-config": "-e",
}
FLAGS = {"-q", "-x", "-L", "-h", "-rgc", "-rmc", "-rac", "--version"}
QUERIES = {f"--query-{what}": what for what in QUERY_ALIASES}
HELP_QUERIES = {f"--help-query-{what}": what for what in QUERY_ALIASES}


def apply_settings(node: Node, gpus: list[Gpu], options: list[tuple[str, str]]) -> None:
    """Run setters in the order given; one writer at a time."""
    import fcntl

    os.makedirs(RUN, exist_ok=True)  # noqa: PTH103 - pathlib costs 10 ms at each start
    lock = os.open(f"{RUN}/settings.lock", os.O_CREAT | os.O_RDWR, 0o600) if UID == 0 else None
    if lock is not None:
        fcntl.flock(lock, fcntl.LOCK_EX)
        node.settings.clear()
        node.settings.update(read_json(f"{RUN}/settings.json", {}))
    for name, value in options:
        if name == "-pl":
            for gpu in gpus:  # a limit that one GPU cannot take is set on none
                if not gpu.hw["power_min_w"] <= float(value or "nan") <= gpu.hw["power_max_w"]:
                    set_power_limit(node, gpu, value)
        for gpu in gpus:
            SETTERS[name](node, gpu, value)
        print("All done.")
        if name == "-e" and any(gpu.mode("ecc") != gpu.mode("ecc", pending=True) for gpu in gpus):
            print("Reboot required.")


def parse(arguments: list[str]) -> list[tuple[str, str]]:
    """Split the command line into (option, value); an option may be written --name=value or --name value."""
    options = []
    rest = list(arguments)
    while rest:
        name, separator, value = rest.pop(0).partition("=")
        name = LONG.get(name, name)
        known = name in FLAGS or name in SETTERS or name in QUERIES or name in HELP_QUERIES or name in ("-i", "-d", "--format")
        if not known:
            raise Stop(255, f"ERROR: Option {name} is not recognized. Please run 'nvidia-smi -h'.\n")
        if not separator and name not in FLAGS and name not in HELP_QUERIES:
            if not rest:
                raise Stop(255, f"ERROR: Option {name} requires an argument. Please run 'nvidia-smi -h'.\n")
            value = rest.pop(0)
        options.append((name, value))
    return options


def usage() -> None:
    print(
        "NVIDIA System Management Interface -- simulated by Temper's lab\n\n"
        "    nvidia-smi [-i ID]\n    nvidia-smi -L\n    nvidia-smi -q [-x] [-d TYPES] [-i ID]\n    nvidia-smi --version\n"
        + "".join(f"    nvidia-smi {name}=FIELDS --format=csv[,noheader][,nounits] [-i ID]\n" for name in QUERIES)
        + "".join(f"    nvidia-smi {name}\n" for name in HELP_QUERIES)
        + "    nvidia-smi topo -m\n    nvidia-smi nvlink -s [-i ID]\n"
        + "".join(f"    nvidia-smi {short}{'' if short in FLAGS else ' VALUE'} [-i ID]\n" for short in SETTERS)
    )


def subcommand(arguments: list[str]) -> int:
    if arguments[0] == "topo":
        if arguments[1:] not in (["-m"], ["--matrix"]):
            raise Stop(255, "Invalid combination of input arguments. Please run 'nvidia-smi topo -h' for help.")
        topology(Node())
        return 0
    options = arguments[1:]
    if options[:1] not in (["-s"], ["--status"]):
        raise Stop(255, "Invalid combination of input arguments. Please run 'nvidia-smi nvlink -h' for help.")
    chosen = options[2] if options[1:2] == ["-i"] and len(options) == 3 else None
    nvlink_status(Node().select(chosen))
    return 0


def run(arguments: list[str]) -> int:
    if arguments and arguments[0] in ("topo", "nvlink"):
        return subcommand(arguments)
    options = parse(arguments)
    given = dict(options)
    if "-h" in given:
        usage()
        return 0
    for name in given:
        if name in HELP_QUERIES:
            help_query(HELP_QUERIES[name])
            return 0
    node = Node()
    gpus = node.select(given.get("-i"))
    if "--version" in given:
        print(f"NVIDIA-SMI version  : {node.driver_version}")
        print(f"NVML version        : {'.'.join(node.nvml_version.split('.')[:2])}")
        print(f"DRIVER version      : {node.driver_version}")
        print(f"CUDA Version        : {node.cuda_version}")
        print("Simulated by        : Temper's lab")
        return 0
    settings = [option for option in options if option[0] in SETTERS]
    if settings:
        apply_settings(node, gpus, settings)
        return 0
    for name, what in QUERIES.items():
        if name in given:
            return query_csv(node, gpus, what, given[name], given.get("--format"))
    if "-L" in given:
        return list_gpus(gpus)
    if "-q" in given:
        query_all(node, gpus, xml="-x" in given, display=given.get("-d"))
        return 0
    if "-x" in given or "-d" in given:
        raise Stop(255, "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.")
    table(node, gpus)
    return 0


def main() -> int:
    try:
        try:
            status = run(sys.argv[1:])
        except Stop as stop:
            print(stop)
            status = stop.status
        sys.stdout.flush()
    except BrokenPipeError:  # the reader went away: the real one dies of the signal, without a word
        os._exit(141)
    return status


if __name__ == "__main__":
    sys.exit(main())
