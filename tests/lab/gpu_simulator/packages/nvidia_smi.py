#!/usr/bin/python3 -IS
"""nvidia-smi, simulated by Temper's lab, for the Python of Debian 12 and newer; MIG is in nvidia_smi_mig.py.

What it prints follows real output of the drivers 580 and 595; the sources are named beside the templates
below and in tests/lab/gpu_simulator/profiles.py. Exit status as the real one's: 0 done, 2 bad argument, 4 no
permission, 6 no such device, 9 driver not loaded, 12 no NVML library, 15 GPU off the bus, 18 driver and
library of different versions, 255 anything else.

What it knows comes from the simulated kernel side (machine.py): /sys/module/nvidia, /proc/driver/nvidia/gpus,
the node's hardware.json and faults.json. What it sets lives in /run/gpu-simulator and is lost at reboot, and
when persistence mode ends.

GPU_SIMULATOR_ROOT puts another directory in the place of /, GPU_SIMULATOR_UID another user in the place of
the caller: for tests.
"""

# Nodes run this often, so it imports little: pathlib, subprocess and typing would cost 10 to 15 ms each.
# ruff: noqa: PTH103, PTH105, PTH120, PTH123, PTH208

from __future__ import annotations

import importlib
import json
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Leaf = tuple[str, str | list[Any]]

ROOT = os.environ.get("GPU_SIMULATOR_ROOT", "").rstrip("/")
UID = int(os.environ.get("GPU_SIMULATOR_UID", "0")) if ROOT else os.geteuid()
STATE = f"{ROOT}/var/lib/gpu-simulator"
RUN = f"{ROOT}/run/gpu-simulator"
NA = "N/A"
DEPRECATED = "Requested functionality has been deprecated"
LOST = "GPU is lost.  Reboot the system to recover this GPU"

NO_LIBRARY = """\
NVIDIA-SMI couldn't find libnvidia-ml.so library in your system. Please make sure that the NVIDIA \
Display Driver is properly installed and present in your system.
Please also try adding directory that contains libnvidia-ml.so to your system PATH."""
NO_DRIVER = """\
NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest \
NVIDIA driver is installed and running.
"""
NO_PERSISTENCE = """
Warning: persistence mode is disabled on device {}. See the Known Issues section of the nvidia-smi(1) man \
page for more information. Run with [--help | -h] switch to get more information on how to enable \
persistence mode."""


class SmiError(Exception):
    """End the program with `status` after printing `message`."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def read(path: str) -> str | None:
    """Return a file's text without the white space around it, None if there is no such file."""
    try:
        with open(path) as file:
            return file.read().strip()
    except FileNotFoundError:
        return None


def stand_in(path: str) -> Any:
    """Return the JSON text that a simulated library or module carries, None if there is no such file."""
    try:
        with open(path, "rb") as file:
            content = file.read()
    except FileNotFoundError:
        return None
    start = content.index(b'{"simulated"')
    return json.loads(content[start : content.index(b"}", start) + 1])


def read_json(path: str, default: Any) -> Any:
    text = read(path)
    return default if text is None else json.loads(text)


def write_json(path: str, value: object) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    temporary = f"{path}.{os.getpid()}"
    with open(temporary, "w") as file:
        json.dump(value, file)
    os.replace(temporary, path)


# ---------------------------------------------------------------- the node and its GPUs


class Node:
    """The loaded driver and what it drives; raises SmiError where NVML's initialisation fails."""

    def __init__(self) -> None:
        nvml = next((found for path in library_paths() if (found := stand_in(path)) is not None), None)
        if nvml is None:
            raise SmiError(12, NO_LIBRARY)
        self.nvml_version: str = nvml["version"]
        self.cuda_version: str = nvml["cuda"]
        self.faults = set(read_json(f"{STATE}/faults.json", []))
        self.driver_version = self._loaded_driver()
        if self.driver_version != self.nvml_version:
            short = ".".join(self.nvml_version.split(".")[:2])
            mismatch = "Failed to initialize NVML: Driver/library version mismatch"
            raise SmiError(18, f"{mismatch}\nNVML library version: {short}")
        self.branch = int(self.driver_version.split(".")[0])
        self.settings: dict[str, Any] = read_json(f"{RUN}/settings.json", {})
        self.inforom = read_json(f"{RUN}/inforom.json", {})
        self.inforom_pending = read_json(f"{STATE}/inforom.json", {})
        self.daemon = self._persistence_daemon()
        self.fabric_ready = read(f"{RUN}/fabric-ready") is not None and "fabric-not-ready" not in self.faults
        self.machine = read_json(f"{STATE}/hardware.json", {"gpus": [], "nvswitches": []})
        driven = set(os.listdir(f"{ROOT}/proc/driver/nvidia/gpus"))
        hardware = [gpu for gpu in self.machine["gpus"] if gpu["address"] in driven]
        last = len(self.machine["gpus"]) - 1
        self.gpus = [
            Gpu(self, index, gpu, first=gpu["index"] == 0, last=gpu["index"] == last)
            for index, gpu in enumerate(hardware)
        ]
        if not self.gpus:
            raise SmiError(6, "No devices were found")

    def _loaded_driver(self) -> str:
        path = f"{ROOT}/sys/module/nvidia/version"
        version = read(path)
        if version is None and UID == 0 and not ROOT:
            # The real one runs nvidia-modprobe, which is setuid; a script cannot be, so only root has this.
            os.system("/usr/lib/gpu-simulator/machine.py load 2>/dev/null")  # noqa: S605 - a constant
            version = read(path)
        if version is None or "no-driver" in self.faults:
            raise SmiError(9, NO_DRIVER)
        return version

    def _persistence_daemon(self) -> str | None:
        """Identify the nvidia-persistenced that keeps persistence on, None if there is none."""
        record = read_json(f"{RUN}/persistenced.json", None)
        if record is None or not record["persistence"]:
            return None
        status = read(f"/proc/{record['pid']}/stat")
        if status is None:
            return None
        fields = status.rpartition(")")[2].split()
        if fields[0] == "Z" or fields[19] != record["start"]:  # dead, or another process by now
            return None
        return f"daemon {record['pid']} {record['start']}"

    def select(self, wanted: str | None) -> list[Gpu]:
        """Return the GPUs of a comma separated list of indexes, UUIDs or bus addresses; all without one."""
        if wanted is None:
            return self.gpus
        chosen = [gpu for gpu in self.gpus if any(gpu.is_called(name.strip()) for name in wanted.split(","))]
        if not chosen:
            raise SmiError(6, "No devices were found")
        return chosen


def library_paths() -> list[str]:
    return [f"{ROOT}/usr/lib/{machine}-linux-gnu/libnvidia-ml.so.1" for machine in ("x86_64", "aarch64")]


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
        self.read_settings()

    def read_settings(self) -> None:
        """Take from the stored settings what is still in force."""
        self.session = self._session()
        stored = self.node.settings.get(self.uuid, {})
        in_force = self.session is not None and stored.get("session") == self.session
        self.settings: dict[str, Any] = stored if in_force else {}

    def _session(self) -> str | None:
        """Name what keeps this GPU initialised between two commands, so that its settings last; or None."""
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
            raise SmiError(15, f"Unable to determine the device handle for GPU{self.bus_id[4:]}: {LOST}")

    def supported_graphics(self) -> list[int]:
        clocks: list[int] = self.hw["supported_clocks"][0]["graphics_mhz"]
        return clocks

    def supported_memory(self) -> list[int]:
        return [entry["memory_mhz"] for entry in self.hw["supported_clocks"]]

    def applications(self) -> tuple[int, int]:
        """Return the application clocks: memory, graphics."""
        return self.supported_memory()[0], self.hw["clock_graphics_default_application_mhz"]

    def graphics(self) -> int:
        clock = self.applications()[1] if self.computing else self.hw["clock_graphics_idle_mhz"]
        if "graphics_lock" in self.settings:
            lowest, highest = self.settings["graphics_lock"]
            clock = closest(self.supported_graphics(), min(max(clock, lowest), highest))
        if self.throttled:  # the hardware halves the clocks at least
            clock = min(clock, closest(self.supported_graphics(), self.supported_graphics()[0] // 2))
        return clock

    def memory(self) -> int:
        busy = self.performance_state() == "P0"
        clock = self.applications()[0] if busy else self.hw["clock_memory_idle_mhz"]
        if "memory_lock" in self.settings:
            lowest, highest = self.settings["memory_lock"]
            clock = closest(self.supported_memory(), min(max(clock, lowest), highest))
        return clock

    def power_limit(self) -> float:
        return float(self.settings.get("power_limit_w", self.hw["power_default_w"]))

    def power_draw(self) -> float:
        idle: float = self.hw["power_idle_w"]
        return min(self.power_limit(), self.hw["power_default_w"] * 0.9) if self.computing else idle

    def temperature(self) -> int:
        if self.throttled:
            return int(self.hw["temperature_slowdown_c"])
        return int(self.hw["idle_temperature_c"]) + (30 if self.computing else 0)

    def event_reasons(self) -> int:
        """Return NVML's bit mask: 0x1 gpu_idle, 0x8 hw_slowdown, 0x40 hw_thermal_slowdown."""
        return (0 if self.computing else 0x1) | (0x48 if self.throttled else 0)

    def performance_state(self) -> str:
        busy = self.computing or "graphics_lock" in self.settings
        return "P0" if busy else str(self.hw["idle_performance_state"])

    def memory_used_mib(self) -> int:
        return 1024 if self.computing else 0

    def processes(self) -> list[tuple[int, str, int]]:
        """Return (process id, name, memory in MiB) of what computes here."""
        return [(4242, "/usr/bin/python3", 1024)] if self.computing else []

    def compute_mode(self) -> str:
        return str(self.settings.get("compute_mode", "Default"))

    def mode(self, name: str, pending: bool = False) -> str:
        """Return the MIG or ECC mode: "Enabled", "Disabled" or "N/A"."""
        if name == "mig" and not self.hw["mig_capable"]:
            return NA
        stored = self.node.inforom_pending if pending else self.node.inforom
        return "Enabled" if stored.get(self.uuid, {}).get(name, name == "ecc") else "Disabled"

    def fabric(self) -> tuple[str, str]:
        """Return state and status of the registration with the NVLink fabric."""
        if not self.hw["fabric"]:
            return NA, NA
        return ("Completed", "Success") if self.node.fabric_ready else ("In Progress", NA)


def closest(supported: list[int], wanted: int) -> int:
    return min(supported, key=lambda clock: abs(clock - wanted))


# ---------------------------------------------------------------- what is said of a GPU


def active(value: object) -> str:
    return "Active" if value else "Not Active"


def yes(value: object) -> str:
    return "Yes" if value else "No"


def enabled(value: object) -> str:
    return "Enabled" if value else "Disabled"


# `-q -x`: XML element | value; two spaces of indentation a level. A line whose value comes out empty is left
# out, as is a group of which nothing is left; [] is an empty group that stays. Order, names and values common
# to all GPUs: nvidia-smi 580.105.08 (H100) and 595.91.07 (L40S), captures in NVIDIA/k8s-test-infra. Elements
# that no reader of ours looks at are left out; tests/unit/validation/reports has whole reports.
REPORT = """\
product_name|{name}
persistence_mode|{persistence}
addressing_mode|HMM
mig_mode
  current_mig|{mig}
  pending_mig|{mig_pending}
mig_devices|[]
serial|{serial}
uuid|{uuid}
pdi|{pdi}
minor_number|{minor}
vbios_version|{vbios_version}
board_part_number|{board_part_number}
platformInfo
  chassis_serial_number|N/A
  module_id|{module_id}
  gpu_fabric_guid|N/A
c2c_mode|{hopper_disabled}
gpu_virtualization_mode
  virtualization_mode|None
gpu_recovery_action|None
pci
  pci_bus|{pci_bus}
  pci_device|{pci_device}
  pci_domain|0000
  pci_device_id|{pci_device_id}
  pci_bus_id|{bus_id}
  pci_sub_system_id|{pci_subsystem_id}
  pci_gpu_link_info
    pcie_gen
      max_link_gen|{pcie_gen_max}
      current_link_gen|{pcie_gen}
      device_current_link_gen|{pcie_gen}
      max_device_link_gen|{pcie_gen_max}
      max_host_link_gen|N/A
    link_widths
      max_link_width|{pcie_width_max}x
      current_link_width|{pcie_width_max}x
  replay_counter|0
fan_speed|N/A
performance_state|{performance_state}
clocks_event_reasons
  clocks_event_reason_gpu_idle|{gpu_idle}
  clocks_event_reason_applications_clocks_setting|Not Active
  clocks_event_reason_sw_power_cap|Not Active
  clocks_event_reason_hw_slowdown|{hw_slowdown}
  clocks_event_reason_hw_thermal_slowdown|{hw_slowdown}
  clocks_event_reason_hw_power_brake_slowdown|Not Active
  clocks_event_reason_sync_boost|Not Active
  clocks_event_reason_sw_thermal_slowdown|Not Active
  clocks_event_reason_display_clocks_setting|Not Active
clocks_event_reasons_counters
  clocks_event_reasons_counters_sw_power_cap|0 us
  clocks_event_reasons_counters_sync_boost|0 us
  clocks_event_reasons_counters_sw_therm_slowdown|0 us
  clocks_event_reasons_counters_hw_therm_slowdown|{hw_thermal_us} us
  clocks_event_reasons_counters_hw_power_brake|0 us
fb_memory_usage
  total|{memory_total_mib} MiB
  reserved|{memory_reserved_mib} MiB
  used|{memory_used} MiB
  free|{memory_free} MiB
compute_mode|{compute_mode}
utilization
  gpu_util|{utilization} %
ecc_mode
  current_ecc|{ecc}
  pending_ecc|{ecc_pending}
ecc_errors
  volatile
    sram_correctable|0
    sram_uncorrectable_parity|0
    sram_uncorrectable_secded|0
    dram_correctable|0
    dram_uncorrectable|{dram_errors}
  aggregate
    sram_correctable|0
    sram_uncorrectable_parity|0
    sram_uncorrectable_secded|0
    dram_correctable|0
    dram_uncorrectable|{dram_errors}
    sram_threshold_exceeded|No
  channel_repair_pending|No
  tpc_repair_pending|No
  unrepairable_memory|{r595_not_available}
retired_pages
  multiple_single_bit_retirement
    retired_count|N/A
  double_bit_retirement
    retired_count|N/A
  pending_blacklist|N/A
  pending_retirement|N/A
remapped_rows
  remapped_row_corr|0
  remapped_row_unc|{remapped_uncorrectable}
  remapped_row_pending|No
  remapped_row_failure|{remapped_failure}
temperature
  gpu_temp|{temperature} C
  gpu_temp_tlimit|{margin}
  gpu_temp_max_tlimit_threshold|{margin_shutdown}
  gpu_temp_slow_tlimit_threshold|{margin_slowdown}
  gpu_temp_max_gpu_tlimit_threshold|{margin_operating}
  gpu_temp_max_threshold|{absolute_shutdown}
  gpu_temp_slow_threshold|{absolute_slowdown}
  gpu_temp_max_gpu_threshold|{absolute_operating}
  memory_temp|{memory_temperature_unit}
  gpu_temp_max_mem_tlimit_threshold|{margin_memory}
  gpu_temp_max_mem_threshold|{absolute_memory}
gpu_power_readings
  power_state|{power_state}
  average_power_draw|{power_draw} W
  instant_power_draw|{power_draw} W
  current_power_limit|{power_limit} W
  requested_power_limit|{power_limit} W
  default_power_limit|{power_default_w:.2f} W
  min_power_limit|{power_min_w:.2f} W
  max_power_limit|{power_max_w:.2f} W
power_smoothing|N/A
clocks
  graphics_clock|{graphics} MHz
  sm_clock|{graphics} MHz
  mem_clock|{memory} MHz
  video_clock|{clock_video_idle_mhz} MHz
applications_clocks
  graphics_clock|{application_graphics_unit}
  mem_clock|{application_memory_unit}
default_applications_clocks
  graphics_clock|{application_graphics_default_unit}
  mem_clock|{application_memory_default_unit}
max_clocks
  graphics_clock|{graphics_max} MHz
  sm_clock|{graphics_max} MHz
  mem_clock|{memory_max} MHz
  video_clock|{clock_video_max_mhz} MHz
fabric
  state|{fabric_state}
  status|{fabric_status}
  cliqueId|{fabric_clique}
  clusterUuid|{fabric_cluster}
  health
    summary|N/A
    bandwidth|N/A
    route_recovery_in_progress|N/A
    route_unhealthy|N/A
    access_timeout_recovery|N/A
    incorrect_configuration|N/A
    partition_assigned|{r595_not_available}
supported_clocks|[]
processes|[]
accounted_processes|[]
capabilities
  egm|disabled
"""

# --query-gpu: name [unit] aliases = value, of the fields that somebody asks for. Names: nvidia_gpu_exporter's
# catalogue, which its author checked on an H100 with driver 590.48.01. clocks_throttle_reasons.* is accepted
# for every clocks_event_reasons.*.
GPU_FIELDS = """\
driver_version = {driver_version}
count = {count}
name gpu_name = {name}
serial gpu_serial = {serial}
uuid gpu_uuid = {uuid}
pci.bus_id gpu_bus_id = {bus_id}
pcie.link.gen.current = {pcie_gen}
pcie.link.gen.max = {pcie_gen_max}
pcie.link.width.current = {pcie_width_max}
pcie.link.width.max = {pcie_width_max}
index = {position}
persistence_mode = {persistence}
fan.speed [%] = N/A
pstate = {performance_state}
clocks_event_reasons.active = {event_reasons}
clocks_event_reasons.sw_power_cap = Not Active
clocks_event_reasons.hw_slowdown = {hw_slowdown}
clocks_event_reasons.hw_thermal_slowdown = {hw_slowdown}
memory.total [MiB] = {memory_total_mib}
compute_mode = {compute_mode}
utilization.gpu [%] = {utilization}
ecc.mode.current = {ecc}
ecc.mode.pending = {ecc_pending}
ecc.errors.corrected.aggregate.total = 0
ecc.errors.uncorrected.volatile.total = {dram_errors}
ecc.errors.uncorrected.aggregate.total = {dram_errors}
{remapped_rows}
temperature.gpu = {temperature}
temperature.memory = {memory_temperature}
power.draw [W] = {power_draw}
power.limit [W] = {power_limit}
enforced.power.limit [W] = {power_limit}
power.default_limit [W] = {power_default_w:.2f}
power.min_limit [W] = {power_min_w:.2f}
power.max_limit [W] = {power_max_w:.2f}
clocks.current.graphics [MHz] clocks.gr clocks.graphics = {graphics}
clocks.current.sm [MHz] clocks.sm = {graphics}
clocks.current.memory [MHz] clocks.mem clocks.memory = {memory}
clocks.applications.graphics [MHz] clocks.applications.gr = {application_graphics}
clocks.applications.memory [MHz] clocks.applications.mem = {application_memory}
clocks.default_applications.graphics [MHz] clocks.default_applications.gr = {application_graphics_default}
clocks.default_applications.memory [MHz] clocks.default_applications.mem = {application_memory_default}
clocks.max.graphics [MHz] clocks.max.gr = {graphics_max}
clocks.max.sm [MHz] = {graphics_max}
clocks.max.memory [MHz] clocks.max.mem = {memory_max}
mig.mode.current = {mig}
mig.mode.pending = {mig_pending}
fabric.state = {fabric_state}
fabric.status = {fabric_status}
"""
ROW_FIELDS = """\
remapped_rows.correctable = 0
remapped_rows.uncorrectable = {remapped_uncorrectable}
remapped_rows.pending = No
remapped_rows.failure = {remapped_failure}"""
IDENTITY_FIELDS = """\
timestamp = {now}
gpu_name = {name}
gpu_bus_id = {bus_id}
gpu_serial = {serial}
gpu_uuid = {uuid}
"""
# The fields of each --query-* option; an empty value is none, printed as N/A.
QUERIES = {
    "gpu": GPU_FIELDS.replace("{remapped_rows}", ROW_FIELDS),
    "compute-apps": IDENTITY_FIELDS
    + "pid = {pid}\nprocess_name name = {process}\nused_gpu_memory [MiB] used_memory = {process_mib}\n",
    "supported-clocks": IDENTITY_FIELDS
    + "memory [MHz] mem = {supported_memory}\ngraphics [MHz] gr = {supported_graphics}\n",
}


def values(gpu: Gpu) -> dict[str, Any]:
    """Return what the templates above ask for; "" where the GPU has nothing of the kind."""
    hw, node = gpu.hw, gpu.node
    r595 = node.branch >= 595
    reasons = gpu.event_reasons()
    state, status = gpu.fabric()
    application_memory, application_graphics = gpu.applications()
    applications = {
        "application_graphics": application_graphics,
        "application_memory": application_memory,
        "application_graphics_default": hw["clock_graphics_default_application_mhz"],
        "application_memory_default": gpu.supported_memory()[0],
    }
    temperature, memory_temperature = gpu.temperature(), hw["memory_temperature_c"]
    limits = {name: hw[f"temperature_{key}_c"] for name, key in TEMPERATURE_LIMITS}
    highest, margins = limits["operating"], hw["temperature_limits_are_margins"]
    return {
        **hw,
        "now": time.strftime("%Y/%m/%d %H:%M:%S.000"),
        "driver_version": node.driver_version,
        "count": len(node.gpus),
        "position": gpu.index,
        "minor": hw["index"],
        "pdi": f"0x{gpu.uuid.replace('-', '')[3:19]}",
        "bus_id": gpu.bus_id,
        "pci_bus": gpu.bus_id[9:11],
        "pci_device": gpu.bus_id[12:14],
        "pci_device_id": f"{hw['device_id'].upper()}10DE",
        "pci_subsystem_id": f"{hw['subsystem_id'].upper()}10DE",
        "pcie_gen": gpu.link_gen,
        "persistence": enabled(gpu.persistence),
        "performance_state": gpu.performance_state(),
        "power_state": DEPRECATED if r595 else gpu.performance_state(),
        "compute_mode": gpu.compute_mode(),
        "mig": gpu.mode("mig"),
        "mig_pending": gpu.mode("mig", pending=True),
        "ecc": gpu.mode("ecc"),
        "ecc_pending": gpu.mode("ecc", pending=True),
        "hopper_disabled": "Disabled" if hw["architecture"] == "Hopper" else NA,
        "event_reasons": f"0x{reasons:016X}",
        "gpu_idle": active(reasons & 0x1),
        "hw_slowdown": active(reasons & 0x8),
        "hw_thermal_us": 60_000_000 if gpu.throttled else 0,
        "memory_used": gpu.memory_used_mib(),
        "memory_free": hw["memory_total_mib"] - hw["memory_reserved_mib"] - gpu.memory_used_mib(),
        "utilization": 100 * gpu.computing,
        "dram_errors": gpu.memory_errors,
        "remapped_uncorrectable": int(gpu.remap_failed),
        "remapped_failure": yes(gpu.remap_failed),
        "r595_not_available": NA if r595 else "",
        "temperature": temperature,
        "margin": f"{highest - temperature} C" if margins else NA,
        **{f"margin_{name}": f"{highest - limit} C" if margins else "" for name, limit in limits.items()},
        **{f"absolute_{name}": "" if margins else f"{limit} C" for name, limit in limits.items()},
        "memory_temperature": NA if memory_temperature is None else memory_temperature,
        "memory_temperature_unit": NA if memory_temperature is None else f"{memory_temperature} C",
        "margin_memory": "" if not margins else NA if memory_temperature is None else "0 C",
        "absolute_memory": "" if margins else NA if memory_temperature is None else "95 C",
        "power_draw": f"{gpu.power_draw():.2f}",
        "power_limit": f"{gpu.power_limit():.2f}",
        "graphics": gpu.graphics(),
        "memory": gpu.memory(),
        "graphics_max": gpu.supported_graphics()[0],
        "memory_max": gpu.supported_memory()[0],
        **{name: DEPRECATED if r595 else clock for name, clock in applications.items()},
        **{f"{name}_unit": DEPRECATED if r595 else f"{clock} MHz" for name, clock in applications.items()},
        "fabric_state": state,
        "fabric_status": status,
        "fabric_clique": "0" if status == "Success" else NA,
        "fabric_cluster": "00000000-0000-0000-0000-000000000000" if status == "Success" else NA,
    }


TEMPERATURE_LIMITS = (("shutdown", "shutdown"), ("slowdown", "slowdown"), ("operating", "max_operating"))

# ---------------------------------------------------------------- nvidia-smi -q -x


def report(gpu: Gpu) -> list[Leaf]:
    """Return what `-q -x` says of a GPU: (XML element, value or a list of the same)."""
    filled = values(gpu)
    top: list[Leaf] = []
    stack = [top]
    for line in REPORT.splitlines():
        depth = (len(line) - len(line.lstrip(" "))) // 2
        tag, separator, value = line[2 * depth :].partition("|")
        del stack[depth + 1 :]
        if not separator:
            group: list[Leaf] = []
            stack[depth].append((tag, group))
            stack.append(group)
        elif value == "[]":
            stack[depth].append((tag, variable_part(tag, gpu)))
        elif text := value.format_map(filled):
            stack[depth].append((tag, text))
    return without_empty_groups(top)


def without_empty_groups(leaves: list[Leaf]) -> list[Leaf]:
    kept: list[Leaf] = []
    for tag, value in leaves:
        inner = without_empty_groups(value) if isinstance(value, list) else value
        if inner or tag in ("mig_devices", "processes", "accounted_processes"):
            kept.append((tag, inner))
    return kept


def variable_part(tag: str, gpu: Gpu) -> list[Leaf]:
    """Return what has a different length from GPU to GPU."""
    if tag == "mig_devices" and gpu.mode("mig") == "Enabled":
        return list(mig().report(gpu, RUN))
    if tag == "supported_clocks":
        return [
            (
                "supported_mem_clock",
                [
                    ("value", f"{entry['memory_mhz']} MHz"),
                    *(("supported_graphics_clock", f"{clock} MHz") for clock in entry["graphics_mhz"]),
                ],
            )
            for entry in gpu.hw["supported_clocks"]
        ]
    if tag == "processes":
        return [
            (
                "process_info",
                [
                    ("gpu_instance_id", NA),
                    ("compute_instance_id", NA),
                    ("pid", str(pid)),
                    ("type", "C"),
                    ("process_name", name),
                    ("used_memory", f"{memory} MiB"),
                ],
            )
            for pid, name, memory in gpu.processes()
        ]
    return []


def xml_lines(leaves: list[Leaf], depth: int) -> list[str]:
    indent = "\t" * depth
    lines: list[str] = []
    for tag, value in leaves:
        if tag == "mig_devices" and not value:
            lines += [f"{indent}<{tag}>", f"{indent}\tNone", f"{indent}</{tag}>"]
        elif isinstance(value, list):
            lines += [f"{indent}<{tag}>", *xml_lines(value, depth + 1), f"{indent}</{tag}>"]
        else:
            escaped = value.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
            lines.append(f"{indent}<{tag}>{escaped}</{tag}>")
    return lines


def query_all(node: Node, gpus: list[Gpu]) -> None:
    """Print `-q -x`."""
    for gpu in gpus:
        gpu.require_reachable()
    lines = [
        '<?xml version="1.0" ?>',
        '<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v13.dtd">',
        "<nvidia_smi_log>",
        f"\t<timestamp>{time.strftime('%a %b %e %H:%M:%S %Y')}</timestamp>",
        f"\t<driver_version>{node.driver_version}</driver_version>",
        f"\t<cuda_version>{node.cuda_version}</cuda_version>",
        f"\t<attached_gpus>{len(node.gpus)}</attached_gpus>",
    ]
    for gpu in gpus:
        lines += [f'\t<gpu id="{gpu.bus_id}">', *xml_lines(report(gpu), 2), "\t</gpu>", ""]
    print("\n".join([*lines, "</nvidia_smi_log>"]))


# ---------------------------------------------------------------- --query-gpu and the other --query-*


class Field:
    """One column of a --query-* option: a line of the templates above."""

    def __init__(self, line: str) -> None:
        names, _, self.template = line.partition(" = ")
        self.name, *rest = names.split()
        self.unit = rest.pop(0)[1:-1] if rest and rest[0].startswith("[") else ""
        self.aliases = rest
        if self.name.startswith("clocks_event_reasons."):
            self.aliases.append(self.name.replace("event", "throttle", 1))

    def text(self, filled: dict[str, Any], *, units: bool) -> str:
        value = self.template.format_map(filled) or NA
        if value in (NA, DEPRECATED):
            return f"[{value}]"
        return f"{value} {self.unit}" if self.unit and units else value


def fields_of(what: str) -> list[Field]:
    return [Field(line) for line in QUERIES[what].splitlines()]


def rows(what: str, gpu: Gpu) -> list[dict[str, Any]]:
    """Return the values of each row that one GPU adds to the answer of --query-`what`."""
    filled = values(gpu)
    if what == "compute-apps":
        return [
            {**filled, "pid": pid, "process": name, "process_mib": mib} for pid, name, mib in gpu.processes()
        ]
    if what == "supported-clocks":
        return [
            {**filled, "supported_memory": entry["memory_mhz"], "supported_graphics": clock}
            for entry in gpu.hw["supported_clocks"]
            for clock in entry["graphics_mhz"]
        ]
    return [filled]


def query_csv(gpus: list[Gpu], what: str, wanted: str, form: str | None) -> int:
    """Print the answer of a --query-* option; return the exit status."""
    options = set((form or "").split(","))
    if "csv" not in options or options - {"csv", "noheader", "nounits"}:
        raise SmiError(2, 'Option "--format=" expects csv[,noheader][,nounits].')
    known = {name: field for field in fields_of(what) for name in (field.name, *field.aliases)}
    chosen = []
    for name in wanted.split(","):
        if name.strip() not in known:
            raise SmiError(2, f'Field "{name.strip()}" is not a valid field to query.\n')
        chosen.append(known[name.strip()])
    units = "nounits" not in options
    if "noheader" not in options:
        print(", ".join(f"{field.name} [{field.unit}]" if field.unit else field.name for field in chosen))
    status = 0
    for gpu in gpus:
        if gpu.lost:
            print(f"Unable to determine the device handle for GPU{gpu.bus_id[4:]}: {LOST}")
            status = 15
            continue
        for filled in rows(what, gpu):
            print(", ".join(field.text(filled, units=units) for field in chosen))
    return status


# ---------------------------------------------------------------- list, NVLink


def list_gpus(gpus: list[Gpu]) -> int:
    status = 0
    for gpu in gpus:
        if gpu.lost:
            print(f"Unable to determine the device handle for gpu {gpu.bus_id[4:]}: {LOST}")
            status = 15
        else:
            print(f"GPU {gpu.index}: {gpu.hw['name']} (UUID: {gpu.uuid})")
            for name, ids, _ in mig().devices(gpu, RUN) if gpu.mode("mig") == "Enabled" else ():
                print(f"  MIG {name:<11} Device {ids['index']:>2}: (UUID: {ids['uuid']})")
    return status


def nvlink_status(gpus: list[Gpu]) -> None:
    for gpu in gpus:
        gpu.require_reachable()
        print(f"GPU {gpu.index}: {gpu.hw['name']} (UUID: {gpu.uuid})")
        for link in range(gpu.hw["nvlink_count"]):
            print(f"\t Link {link}: {gpu.hw['nvlink_gb_s']:g} GB/s")


# ---------------------------------------------------------------- settings

INVALID_COMBINATION = "Invalid combination of input arguments."
MOVING_ON = "Treating as warning and moving on."
TERMINATING = "Terminating early due to previous errors."
BUSY = (
    "is currently being used by one or more other processes (e.g. CUDA application or a monitoring "
    "application such as another instance of nvidia-smi). Please first kill all processes using the device "
    "and retry the command or reboot the system to make MIG mode effective."
)


def change(node: Node, gpu: Gpu, **changes: object) -> None:
    """Store settings of a GPU, or drop those given as None; warn, like the real one, if they cannot last."""
    if gpu.session is None:
        print(NO_PERSISTENCE.format(gpu.bus_id))
        return
    stored = {**gpu.settings, **changes, "session": gpu.session}
    gpu.settings = {key: value for key, value in stored.items() if value is not None}
    node.settings[gpu.uuid] = gpu.settings
    write_json(f"{RUN}/settings.json", node.settings)


def permitted(gpu: Gpu, refusal: str) -> None:
    gpu.require_reachable()
    if UID != 0:
        raise SmiError(4, f"{refusal}\n{TERMINATING}")


def may_change_clocks(gpu: Gpu) -> None:
    permitted(gpu, f"The current user does not have permission to change clocks for GPU {gpu.bus_id}.")


def unsupported(what: str, gpu: Gpu) -> None:
    print(f"{what} is not supported for GPU {gpu.bus_id}.\n{MOVING_ON}")


def clocks(text: str, option: str) -> tuple[int, int]:
    """Parse two clocks with a comma between them, or one for both."""
    numbers = text.split(",")
    if len(numbers) > 2 or not all(number.isdecimal() for number in numbers):
        raise SmiError(2, f'Option {option}: expected MHz or MHz,MHz, found "{text}".')
    return int(numbers[0]), int(numbers[-1])


def set_persistence(node: Node, gpu: Gpu, value: str) -> None:
    permitted(gpu, f"Unable to set persistence mode for GPU {gpu.bus_id}: Insufficient Permissions")
    wanted = {"1": True, "ENABLED": True, "0": False, "DISABLED": False}.get(value.upper())
    if wanted is None:
        raise SmiError(2, f"Invalid persistence mode specified: {value}")
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
    gpu.read_settings()


def lock_graphics(node: Node, gpu: Gpu, value: str) -> None:
    may_change_clocks(gpu)
    lowest, highest = clocks(value, "-lgc")
    print(f'GPU clocks set to "(gpuClkMin {lowest}, gpuClkMax {highest})" for GPU {gpu.bus_id}')
    change(node, gpu, graphics_lock=[lowest, highest])


def reset_graphics(node: Node, gpu: Gpu, _: str) -> None:
    may_change_clocks(gpu)
    if gpu.session:
        change(node, gpu, graphics_lock=None)


def lock_memory(node: Node, gpu: Gpu, value: str) -> None:
    may_change_clocks(gpu)
    lowest, highest = clocks(value, "-lmc")
    print(f'Memory clocks set to "(memClkMin {lowest}, memClkMax {highest})" for GPU {gpu.bus_id}')
    change(node, gpu, memory_lock=[lowest, highest])


def reset_memory(node: Node, gpu: Gpu, _: str) -> None:
    may_change_clocks(gpu)
    if gpu.session:
        change(node, gpu, memory_lock=None)


def power_limit(gpu: Gpu, value: str) -> float:
    """Return the limit if this GPU takes it."""
    permitted(gpu, f"Failed to set power management limit for GPU {gpu.bus_id}: Insufficient Permissions")
    try:
        watts = float(value)
    except ValueError:
        raise SmiError(2, f"Invalid power limit specified: {value}") from None
    lowest, highest = gpu.hw["power_min_w"], gpu.hw["power_max_w"]
    if not lowest <= watts <= highest:
        between = f"between {lowest:.2f} W and {highest:.2f} W for GPU {gpu.bus_id}"
        refusal = f"Provided power limit {watts:.2f} W is not a valid power limit which should be {between}"
        raise SmiError(2, f"{refusal}\n{TERMINATING}")
    return watts


def set_power_limit(node: Node, gpu: Gpu, value: str) -> None:
    watts = power_limit(gpu, value)
    print(f"Power limit for GPU {gpu.bus_id} was set to {watts:.2f} W from {gpu.power_limit():.2f} W.")
    change(node, gpu, power_limit_w=watts)


def set_mode(node: Node, gpu: Gpu, name: str, value: str) -> bool:
    """Store a mode in the InfoROM; return whether that changed it."""
    if value not in ("0", "1"):
        raise SmiError(2, f"Invalid mode specified: {value}")
    mine = node.inforom_pending.setdefault(gpu.uuid, {})
    if mine.get(name, name == "ecc") == (value == "1"):
        return False
    mine[name] = value == "1"
    write_json(f"{STATE}/inforom.json", node.inforom_pending)
    return True


def set_mig(node: Node, gpu: Gpu, value: str) -> None:
    permitted(gpu, f"Unable to set MIG mode for GPU {gpu.bus_id}: Insufficient Permissions")
    if not gpu.hw["mig_capable"]:
        unsupported("MIG mode", gpu)
        return
    resets = gpu.hw["architecture"] == "Ampere"
    in_use = "In use by another client"
    changes = gpu.mode("mig", pending=True) != enabled(value == "1")
    # The words are assumed: published logs have GPUs that are in use on Ampere only.
    if changes and (mig().devices(gpu, RUN) or (gpu.computing and not resets)):
        verb = "enable" if value == "1" else "disable"
        raise SmiError(19, f"Unable to {verb} MIG Mode for GPU {gpu.bus_id}: {in_use}\n{TERMINATING}")
    if set_mode(node, gpu, "mig", value) and gpu.computing:
        verb = "enable" if value == "1" else "disable"
        print(
            f"Warning: MIG mode is in pending {verb} state for GPU {gpu.bus_id}:{in_use}\n{gpu.bus_id} {BUSY}"
        )
        return
    if changes:
        node.inforom.setdefault(gpu.uuid, {})["mig"] = value == "1"
        write_json(f"{RUN}/inforom.json", node.inforom)
        if resets:  # and forgets what was set, but for its persistence mode
            change(node, gpu, **dict.fromkeys(set(gpu.settings) - {"session"}))
    print(f"{enabled(value == '1')} MIG Mode for GPU {gpu.bus_id}")


def set_compute_mode(node: Node, gpu: Gpu, value: str) -> None:
    permitted(gpu, f"Unable to set the compute mode for GPU {gpu.bus_id}: Insufficient Permissions")
    names = {"0": "Default", "2": "Prohibited", "3": "Exclusive_Process"}
    if value not in names:
        raise SmiError(2, f"Invalid compute mode specified: {value}")
    name = names[value]
    if gpu.mode("mig") == "Enabled" and name != "Default":  # NVML's reference; the words are assumed
        unsupported("Setting compute mode", gpu)
    elif gpu.compute_mode() == name:
        print(f"Compute mode is already set to {name.upper()} for GPU {gpu.bus_id}.")
    else:
        print(f"Set compute mode to {name.upper()} for GPU {gpu.bus_id}.")
        change(node, gpu, compute_mode=name)


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
    "-pl": set_power_limit,
    "-mig": set_mig,
    "-c": set_compute_mode,
    "-e": set_ecc,
}
LONG = {
    "--id": "-i",
    "--query": "-q",
    "--xml-format": "-x",
    "--list-gpus": "-L",
    "--persistence-mode": "-pm",
    "--lock-gpu-clocks": "-lgc",
    "--reset-gpu-clocks": "-rgc",
    "--lock-memory-clocks": "-lmc",
    "--reset-memory-clocks": "-rmc",
    "--power-limit": "-pl",
    "--multi-instance-gpu": "-mig",
    "--compute-mode": "-c",
    "--ecc-config": "-e",
}
QUERY_OPTIONS = {f"--query-{what}": what for what in QUERIES}
FLAGS = {"-q", "-x", "-L", "-rgc", "-rmc"}
WITH_VALUE = {"-i", "--format", *QUERY_OPTIONS, *(set(SETTERS) - FLAGS)}


def settings_lock() -> Any:
    """Open the lock that one nvidia-smi at a time holds while it writes; only root writes."""
    import fcntl

    if UID:
        return open(os.devnull)
    os.makedirs(RUN, exist_ok=True)
    lock = open(os.open(f"{RUN}/settings.lock", os.O_CREAT | os.O_RDWR, 0o600))  # noqa: SIM115 - the caller's
    fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


def apply_settings(wanted: str | None, options: list[tuple[str, str]]) -> None:
    """Run setters on the chosen GPUs, in the order given; one nvidia-smi writes at a time."""
    with settings_lock():
        node = Node()
        gpus = node.select(wanted)
        for name, value in options:
            if name == "-pl":  # a limit that one GPU does not take is set on none
                for gpu in gpus:
                    power_limit(gpu, value)
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
        given, separator, value = rest.pop(0).partition("=")
        name = LONG.get(given, given)
        if name not in FLAGS and name not in WITH_VALUE:
            raise SmiError(255, f"ERROR: Option {given} is not recognized. Please run 'nvidia-smi -h'.\n")
        if name in WITH_VALUE and not separator:
            if not rest:
                raise SmiError(255, f"ERROR: Option {given} expects a value. Please run 'nvidia-smi -h'.\n")
            value = rest.pop(0)
        options.append((name, value))
    return options


def run(arguments: list[str]) -> int:
    if arguments and arguments[0] == "mig":
        return mig_command(arguments[1:])
    if arguments and arguments[0] == "nvlink":
        if arguments[1:] not in (["-s"], ["--status"]):
            raise SmiError(255, f"{INVALID_COMBINATION} Please run 'nvidia-smi -h' for help.")
        nvlink_status(Node().gpus)
        return 0
    options = parse(arguments)
    given = dict(options)
    settings = [option for option in options if option[0] in SETTERS]
    if settings:
        apply_settings(given.get("-i"), settings)
        return 0
    node = Node()
    gpus = node.select(given.get("-i"))
    for name, what in QUERY_OPTIONS.items():
        if name in given:
            return query_csv(gpus, what, given[name], given.get("--format"))
    if "-q" in given and "-x" in given:
        query_all(node, gpus)
    elif "-q" in given or "-x" in given:  # the real one has text for `-q`, which nothing of ours reads
        raise SmiError(255, f"{INVALID_COMBINATION} Please run 'nvidia-smi -h' for help.")
    else:  # and a table for people where nothing is asked for
        return list_gpus(gpus)
    return 0


def mig() -> Any:
    """MIG's own file, which lies beside this one, or on a node with the simulator."""
    here = os.path.dirname(os.path.realpath(__file__))
    sys.dont_write_bytecode = True
    sys.path[:0] = [here, "/usr/lib/gpu-simulator"]
    return importlib.import_module("nvidia_smi_mig")


def mig_command(arguments: list[str]) -> int:
    """`nvidia-smi mig [-i GPUS] ...`: one at a time writes, as with settings."""
    wanted, rest = (arguments[1], arguments[2:]) if arguments[:1] == ["-i"] else (None, arguments)
    module = mig()
    try:
        with settings_lock():
            print(module.run(rest, Node().select(wanted), RUN, root=UID == 0))
    except module.MigError as stop:
        raise SmiError(stop.status, str(stop)) from stop
    return 0


def main() -> int:
    try:
        try:
            status = run(sys.argv[1:])
        except SmiError as stop:
            print(stop)
            status = stop.status
        sys.stdout.flush()
    except BrokenPipeError:  # the reader went away: the real one dies of the signal, without a word
        os._exit(141)
    return status


if __name__ == "__main__":
    sys.exit(main())
