"""What nvidia-smi says: `nvidia-smi -q -x` as data, and samples of clocks and links while something runs.

Exit status alone is no evidence (nvidia-smi answers 0 to some things that it did not do), so everything is
read from its output. Element names: nvsmi_device_v12.dtd (driver 535 to 575) and v13 (580 and newer); v10 and
v11 call event reasons throttle reasons.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
import statistics
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from validation.processes.command import CommandError, CommandTimeoutError, Done, Running

if TYPE_CHECKING:
    from collections.abc import Iterator

#: A node with eight GPUs and no persistence mode takes several seconds.
TIMEOUT_S = 60.0
#: Such a node takes more than ten at times while its GPUs work: that is slow, and nothing is lost.
SAMPLE_TIMEOUT_S, SLOW_SAMPLE_S = 30.0, 10.0
ABSENT = {
    "",
    "N/A",
    "[N/A]",
    "Not Supported",
    "[Not Supported]",
    "Requested functionality has been deprecated",
}
NO = {"Yes": "No", "Enabled": "Disabled"}
#: NVML's words for an error (nvmlErrorString), in place of a value, in brackets or without. Of a GPU that is
#: gone:
LOST = {"GPU is lost", "GPU requires reset"}
#: ... of one that should have answered,
FAULTS = {
    *LOST,
    "Unknown Error",
    "ERR!",
    "Timeout",
    "Interrupt Request Issue",
    "Corrupted infoROM",
    "Insufficient External Power",
}
#: ... and of one that was not asked in the right way, or by the right user: no fault, and no value either.
UNSAID = {
    "System is not in ready state",
    "Insufficient Permissions",
    "Function Not Found",
    "No data",
    "Not Found",
    "Uninitialized",
    "Invalid Argument",
    "Insufficient Size",
    "Insufficient Memory",
    "In use by another client",
    "Driver Not Loaded",
    "NVML Shared Library Not Found",
    "The operating system has blocked the request.",
    "RM has detected an NVML/RM version mismatch.",
}
UNANSWERED = FAULTS | UNSAID
#: What only describes the system, and can be an unknown error on a healthy GPU (an RTX 4090 of driver
#: 535.154.05, V100s of 550.127.05: origins gpud and gls of the tests' reports).
OF_THE_SYSTEM = {"addressing_mode", "max_host_link_gen"}
#: Parts of a report in which an unknown error is a fault of the GPU itself.
VITAL = {
    "ecc_mode",
    "ecc_errors",
    "temperature",
    "clocks",
    "clocks_event_reasons",
    "clocks_throttle_reasons",
}
#: Parts without which a GPU cannot be judged.
JUDGED = (VITAL - {"clocks"}) | {
    "retired_pages",
    "remapped_rows",
    "remapped_banks",
    "gpu_recovery_action",
    "fabric",
}

#: What an exit status says that comes with a whole report (nvidia-smi(1), "RETURN VALUE").
STATUSES = {
    8: "external power cables of a GPU are not attached",
    10: "an interrupt of a GPU does not arrive",
    14: "the infoROM of a GPU is corrupted",
}
#: The one of them with which a GPU still works.
CORRUPT_INFOROM = 14
REPORT_END = "</nvidia_smi_log>"
#: How nvidia-smi ends on a GPU that has gone, whatever error it names after that.
NO_HANDLE = "Unable to determine the device handle"
#: What no XML may have, and process names bring.
NO_XML = re.compile("[^\\t\\n\\r\\x20-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]")
BARE_AMPERSAND = re.compile(r"&(?!(?:amp|lt|gt|quot|apos|#\d+|#x[0-9a-fA-F]+);)")

#: Bits of clocks_event_reasons.active (nvml.h) by the name of their XML element.
EVENT_REASONS = {
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
}
#: Of the course of a test, so many points are kept of each GPU.
MOST_POINTS = 32
#: Elements of clocks_event_reasons_counters (nvsmi_device_v12.dtd and newer; microseconds) by their reason.
SLOWDOWN_COUNTERS = {
    "sw_power_cap": "sw_power_cap",
    "sync_boost": "sync_boost",
    "sw_thermal_slowdown": "sw_therm_slowdown",
    "hw_thermal_slowdown": "hw_therm_slowdown",
    "hw_power_brake_slowdown": "hw_power_brake",
}
#: Elements of clocks and max_clocks, of retired_pages and of remapped_rows by what they are called here.
CLOCKS = {"graphics": "graphics_clock", "sm": "sm_clock", "memory": "mem_clock", "video": "video_clock"}
RETIREMENTS = {"corrected": "multiple_single_bit_retirement", "uncorrected": "double_bit_retirement"}
REMAPPINGS = {"corrected": "remapped_row_corr", "uncorrected": "remapped_row_unc"}

GPU_IDLE = 0x1

#: Modes of a GPU that the host of a virtual machine gave to it: its port and its lanes are the host's.
GUEST_MODES = {"Pass-Through", "VGPU", "vGPU"}

#: In these performance states a GPU works or is ready to, and its link runs at full speed; below, it saves
#: power and may not.
FULL_SPEED_STATES = {"P0", "P1", "P2"}


@dataclass(eq=False)
class NvidiaSmiError(Exception):
    """nvidia-smi could not answer.

    `kind` is missing, mismatch, no-driver, lost, no-devices, timeout or other.
    """

    kind: str
    message: str

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True)
class Unanswered:
    """An error in place of a value: in which part of a GPU's report, of which element, in NVML's words."""

    part: str
    element: str
    error: str

    @property
    def is_vital(self) -> bool:
        """Whether the GPU does not know its own memory, temperature or clocks."""
        return self.part in VITAL and self.error in FAULTS

    def __str__(self) -> str:
        return f"{self.element}: {self.error}"


@dataclass(frozen=True)
class FabricHealth:
    """What is wrong with a GPU's way through the NVLink fabric: what fails it, and what slows it down."""

    broken: tuple[str, ...] = ()
    weak: tuple[str, ...] = ()


@dataclass(frozen=True)
class Readings:
    """What a GPU says of itself that monitoring records and no check judges. None or no key: it does not say.

    Utilisation is from 0 to 1. Clocks are by `graphics`, `sm`, `memory` and `video`. Aggregate errors,
    retired pages and remapped rows are of the GPU's whole life. `event_reasons` has those that were read,
    active or not, `slowdown_s` for how long each was active since the driver was loaded.
    """

    temperature_c: float | None = None
    memory_temperature_c: float | None = None
    power_w: float | None = None
    utilization: float | None = None
    memory_total_mib: int | None = None
    clocks_mhz: dict[str, int] = field(default_factory=dict)
    clocks_max_mhz: dict[str, int] = field(default_factory=dict)
    ecc_corrected_aggregate: int | None = None
    ecc_uncorrected_aggregate: int | None = None
    retired_pages: dict[str, int] = field(default_factory=dict)
    remapped_rows: dict[str, int] = field(default_factory=dict)
    event_reasons: dict[str, bool] = field(default_factory=dict)
    slowdown_s: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Gpu:
    """One GPU in nvidia-smi's report. None: this GPU or driver does not say."""

    index: int
    name: str
    uuid: str
    pci_address: str
    pci_id: str
    performance_state: str | None
    persistence: bool | None
    mig: bool | None
    ecc_uncorrected_volatile: int | None
    ecc_corrected_volatile: int | None
    pcie_replays: int | None
    row_remap_failure: bool | None
    row_remap_pending: bool | None
    page_retirement_pending: bool | None
    event_reasons: tuple[str, ...]
    pcie_generation: int | None
    pcie_generation_max: int | None
    pcie_width: int | None
    pcie_width_max: int | None
    fabric_state: str | None
    fabric_status: str | None
    recovery_action: str | None
    memory_free_mib: int | None
    power_limit_w: float | None
    power_limit_default_w: float | None
    processes: tuple[str, ...]
    compute_mode: str
    unanswered: tuple[Unanswered, ...] = ()
    #: Those that only draw on a screen; `processes` compute.
    graphics_processes: tuple[str, ...] = ()
    #: It was given to this virtual machine by its host.
    guest: bool = False
    sram_threshold_exceeded: bool | None = None
    memory_unrepairable: bool | None = None
    channel_repair_pending: bool | None = None
    tpc_repair_pending: bool | None = None
    fabric_health: FabricHealth = FabricHealth()
    ecc: bool | None = None
    memory_used_mib: int | None = None
    application_clock_mhz: int | None = None
    application_clock_default_mhz: int | None = None
    readings: Readings = field(default_factory=Readings)

    @property
    def is_exclusive(self) -> bool:
        """Whether it serves one process at a time."""
        return self.compute_mode.startswith("Exclusive")


@dataclass(frozen=True)
class Report:
    """The whole of `nvidia-smi -q -x`, and the exit status that it came with."""

    driver_version: str
    gpus: tuple[Gpu, ...]
    status: int = 0
    #: What nvidia-smi said besides.
    warning: str = ""


@dataclass(frozen=True)
class Sample:
    """One GPU at one moment. Clocks in MHz, power in W, temperature in degrees Celsius."""

    index: int
    sm_clock_mhz: float | None
    power_w: float | None
    temperature_c: float | None
    pcie_generation: int | None
    pcie_width: int | None
    event_reasons: int
    performance_state: str | None
    ecc_uncorrected: int | None

    @property
    def at_full_speed(self) -> bool:
        """Whether the GPU works, so that its link runs as fast as it can."""
        return self.performance_state in FULL_SPEED_STATES


def query() -> Report:
    """Ask nvidia-smi for everything. Raises NvidiaSmiError."""
    done = _finish(start(["-q", "-x"]), TIMEOUT_S)
    report = parse(_answer(done))
    if done.status not in STATUSES:
        return report
    said = re.search(r"^WARNING: .*$", done.output + done.errors, re.MULTILINE)
    return dataclasses.replace(
        report, status=done.status, warning=said.group() if said else STATUSES[done.status]
    )


def parse(text: str) -> Report:
    """The report of `nvidia-smi -q -x`. Raises NvidiaSmiError for anything else."""
    start, end = text.find("<?xml"), text.rfind(REPORT_END)
    xml = text[max(start, 0) : end + len(REPORT_END) if end >= 0 else None]
    try:
        root = ET.fromstring(BARE_AMPERSAND.sub("&amp;", NO_XML.sub("", xml)))  # noqa: S314 - from this node's own driver
    except ET.ParseError as error:
        problem = (
            f"nvidia-smi -q -x gave no XML: {_first_line(text)}"
            if start < 0
            else f"nvidia-smi -q -x gave XML that breaks off or is damaged ({error})"
        )
        raise NvidiaSmiError("other", problem) from error
    # 610 says that of the module by this name, and more than a number by the old one.
    driver = _text(root, "kmd_version") or _text(root, "driver_version")
    if driver is None:
        raise NvidiaSmiError("other", "nvidia-smi -q -x names no driver version")
    driver = driver.split()[0]
    gpus = tuple(_gpu(index, element) for index, element in enumerate(root.iterfind("gpu")))
    if not gpus:
        raise NvidiaSmiError("no-devices", "nvidia-smi -q -x lists no GPU")
    return Report(driver, gpus)


def sample() -> tuple[Sample, ...]:
    """Clocks, power, temperature, link and event reasons of every GPU now. Raises NvidiaSmiError."""
    # Each of these fields exists from driver 535 on; a single unknown one would fail the query.
    fields = "index,clocks.sm,power.draw,temperature.gpu,pcie.link.gen.current,pcie.link.width.current"
    rest = "clocks_event_reasons.active,pstate,ecc.errors.uncorrected.volatile.total"
    query = [f"--query-gpu={fields},{rest}", "--format=csv,noheader,nounits"]
    return parse_samples(ask(query, SAMPLE_TIMEOUT_S))


def parse_samples(text: str) -> tuple[Sample, ...]:
    """Samples from the CSV that `sample` asks for. Raises NvidiaSmiError."""
    samples = []
    for line in filter(None, map(str.strip, text.splitlines())):
        cells = [cell.strip() for cell in line.split(",")]
        try:
            index, clock, power, temperature, generation, width, reasons, state, errors = cells
            if lost := LOST & {cell.strip("[]") for cell in cells}:
                raise NvidiaSmiError("lost", f"nvidia-smi says of GPU {index}: {lost.pop()}")
            samples.append(
                Sample(
                    index=int(index),
                    sm_clock_mhz=_number(clock),
                    power_w=_number(power),
                    temperature_c=_number(temperature),
                    pcie_generation=_integer(generation),
                    pcie_width=_integer(width),
                    event_reasons=int(reasons, 16) if reasons.startswith("0x") else 0,
                    performance_state=None if _absent(state) else state,
                    ecc_uncorrected=_integer(errors),
                )
            )
        except ValueError as error:
            raise NvidiaSmiError(
                "other", f"nvidia-smi --query-gpu gave an unexpected line: {line}"
            ) from error
    return tuple(samples)


def summary(rounds: list[tuple[Sample, ...]]) -> list[dict[str, Any]]:
    """One object a GPU from samples taken during a test: medians, maxima, how often a reason was active.

    Clocks and reasons are those of samples in which the GPU worked: while processes start it idles.
    """
    by_gpu: dict[int, list[Sample]] = {}
    for samples in rounds:
        for one in samples:
            by_gpu.setdefault(one.index, []).append(one)
    working = {
        index: [s for s in samples if not s.event_reasons & GPU_IDLE] or samples
        for index, samples in by_gpu.items()
    }
    return [
        {
            "device": index,
            "samples": len(working[index]),
            "sm_clock_mhz_median": _median([s.sm_clock_mhz for s in working[index]]),
            "power_w_max": _maximum([s.power_w for s in samples]),
            "temperature_c_max": _maximum([s.temperature_c for s in samples]),
            "pcie_generation_max": _maximum([s.pcie_generation for s in samples if s.at_full_speed]),
            "pcie_width_max": _maximum([s.pcie_width for s in samples if s.at_full_speed]),
            "ecc_uncorrected_new": _growth([s.ecc_uncorrected for s in samples]),
            "event_reason_shares": {
                name: round(sum(bool(s.event_reasons & bit) for s in working[index]) / len(working[index]), 3)
                for name, bit in EVENT_REASONS.items()
                if any(s.event_reasons & bit for s in working[index])
            },
        }
        for index, samples in sorted(by_gpu.items())
    ]


def series(moments_s: list[float], rounds: list[tuple[Sample, ...]]) -> list[dict[str, Any]]:
    """One object a GPU with what it did over the time of a test, for a chart.

    `moments_s` are when the rounds were sampled, and `seconds` in the result counts from the first of them.
    Of a long test, MOST_POINTS stand for all samples: the lowest clock, the highest power and temperature and
    all event reasons of those that they stand for, so that no moment of throttling is lost. What a GPU does
    not say is null.
    """
    step = max(1, -(-len(rounds) // MOST_POINTS))
    found: dict[int, dict[str, Any]] = {}
    for start in range(0, len(rounds), step):
        by_gpu: dict[int, list[Sample]] = {}
        for one in itertools.chain.from_iterable(rounds[start : start + step]):
            by_gpu.setdefault(one.index, []).append(one)
        for index, samples in by_gpu.items():
            points = found.setdefault(
                index,
                {
                    "device": index,
                    **{
                        name: []
                        for name in ("seconds", "sm_clock_mhz", "power_w", "temperature_c", "event_reasons")
                    },
                },
            )
            clocks = [s.sm_clock_mhz for s in samples if s.sm_clock_mhz is not None]
            points["seconds"].append(round(moments_s[start] - moments_s[0], 1))
            points["sm_clock_mhz"].append(min(clocks, default=None))
            points["power_w"].append(_maximum([s.power_w for s in samples]))
            points["temperature_c"].append(_maximum([s.temperature_c for s in samples]))
            points["event_reasons"].append(
                [name for name, bit in EVENT_REASONS.items() if any(s.event_reasons & bit for s in samples)]
            )
    return [found[index] for index in sorted(found)]


def ask(arguments: list[str], timeout_s: float = TIMEOUT_S) -> str:
    """What nvidia-smi prints. Raises NvidiaSmiError."""
    return answer_of(start(arguments), timeout_s)


def start(arguments: list[str]) -> Running:
    """Start nvidia-smi, whose output `answer_of` reads. Raises NvidiaSmiError."""
    try:
        return Running(["nvidia-smi", *arguments])
    except FileNotFoundError as error:
        raise NvidiaSmiError("missing", "nvidia-smi is not installed") from error
    except OSError as error:
        raise NvidiaSmiError("other", f"nvidia-smi cannot be started: {error}") from error


def answer_of(asked: Running, timeout_s: float = TIMEOUT_S) -> str:
    """What a nvidia-smi prints that was started. Raises NvidiaSmiError."""
    return _answer(_finish(asked, timeout_s))


def _finish(asked: Running, timeout_s: float) -> Done:
    try:
        return asked.finish(timeout_s)
    except CommandError as error:
        kind = "timeout" if isinstance(error, CommandTimeoutError) else "other"
        raise NvidiaSmiError(kind, f"nvidia-smi gave {error}") from error


def _answer(done: Done) -> str:
    """What it printed, if that is an answer: some faults of a GPU have their own status beside a report."""
    output = done.output + done.errors
    if done.status in STATUSES and REPORT_END in done.output:
        return done.output
    if done.status != 0 or "Failed to initialize NVML" in output or NO_HANDLE in output:
        said = _first_line(output) if output.strip() else f"{done.ending} and said nothing"
        said = STATUSES.get(done.status, said)
        raise NvidiaSmiError(_kind(done.status, output), f"nvidia-smi: {said}")
    if re.search(r"No devices were found", output):
        raise NvidiaSmiError("no-devices", "nvidia-smi: No devices were found")
    return done.output


def _kind(status: int, output: str) -> str:
    if "version mismatch" in output:
        return "mismatch"
    if status == 9 or "couldn't communicate with the NVIDIA driver" in output:
        return "no-driver"
    if status == 12:
        return "missing"
    if status == 15 or "GPU is lost" in output or NO_HANDLE in output:
        return "lost"
    return "no-devices" if status == 6 else "other"


def _gpu(index: int, element: ET.Element) -> Gpu:
    link = "pci/pci_gpu_link_info"
    volatile = element.find("ecc_errors/volatile")
    processes = tuple(element.iterfind("processes/process_info"))
    graphics = [process for process in processes if _text(process, "type") == "G"]
    return Gpu(
        index=index,
        name=_text(element, "product_name") or "unknown",
        uuid=_text(element, "uuid") or "",
        pci_address=_pci_address(_text(element, "pci/pci_bus_id") or element.get("id") or ""),
        pci_id=(_text(element, "pci/pci_device_id") or "").removeprefix("0x")[:4].lower(),
        performance_state=_text(element, "performance_state"),
        persistence=_flag(element, "persistence_mode", "Enabled"),
        mig=_flag(element, "mig_mode/current_mig", "Enabled"),
        ecc_uncorrected_volatile=_errors(volatile, "uncorrectable", "double_bit"),
        ecc_corrected_volatile=_errors(volatile, "correctable", "single_bit"),
        pcie_replays=_integer(_text(element, "pci/replay_counter")),
        row_remap_failure=_flag(element, "remapped_rows/remapped_row_failure", "Yes"),
        row_remap_pending=_any(
            _flag(element, "remapped_rows/remapped_row_pending", "Yes"),
            # Since 615: whole banks (NVML, nvmlEccBankRemapperStatus_v1_t).
            _flag(element, "remapped_banks/bank_remapper_pending", "Yes"),
        ),
        page_retirement_pending=_any(
            _flag(element, "retired_pages/pending_retirement", "Yes"),
            _flag(element, "retired_pages/pending_blacklist", "Yes"),
        ),
        event_reasons=_event_reasons(element),
        pcie_generation=_integer(_text(element, f"{link}/pcie_gen/current_link_gen")),
        pcie_generation_max=_integer(_text(element, f"{link}/pcie_gen/max_link_gen")),
        pcie_width=_integer(_text(element, f"{link}/link_widths/current_link_width")),
        pcie_width_max=_integer(_text(element, f"{link}/link_widths/max_link_width")),
        fabric_state=_text(element, "fabric/state"),
        fabric_status=_text(element, "fabric/status"),
        recovery_action=_recovery_action(element),
        memory_free_mib=_integer(_text(element, "fb_memory_usage/free")),
        power_limit_w=_watts(element, "current_power_limit", "power_limit"),
        power_limit_default_w=_watts(element, "default_power_limit"),
        processes=tuple(_process(process) for process in processes if process not in graphics),
        graphics_processes=tuple(map(_process, graphics)),
        guest=_text(element, "gpu_virtualization_mode/virtualization_mode") in GUEST_MODES,
        sram_threshold_exceeded=_flag(element, "ecc_errors/aggregate/sram_threshold_exceeded", "Yes"),
        memory_unrepairable=_flag(element, "ecc_errors/unrepairable_memory", "Yes"),
        channel_repair_pending=_flag(element, "ecc_errors/channel_repair_pending", "Yes"),
        tpc_repair_pending=_flag(element, "ecc_errors/tpc_repair_pending", "Yes"),
        fabric_health=_fabric_health(element),
        compute_mode=_text(element, "compute_mode") or "Default",
        ecc=_flag(element, "ecc_mode/current_ecc", "Enabled"),
        memory_used_mib=_integer(_text(element, "fb_memory_usage/used")),
        application_clock_mhz=_integer(_text(element, "applications_clocks/graphics_clock")),
        application_clock_default_mhz=_integer(_text(element, "default_applications_clocks/graphics_clock")),
        unanswered=tuple(dict.fromkeys(_unanswered(element))),
        readings=_readings(element),
    )


def _readings(element: ET.Element) -> Readings:
    aggregate = element.find("ecc_errors/aggregate")
    share = _integer(_text(element, "utilization/gpu_util"))
    return Readings(
        temperature_c=_integer(_text(element, "temperature/gpu_temp")),
        memory_temperature_c=_integer(_text(element, "temperature/memory_temp")),
        # Driver 550 and newer have an average over a second beside the moment's draw.
        power_w=_watts(element, "power_draw", "average_power_draw", "instant_power_draw"),
        utilization=None if share is None else share / 100,
        memory_total_mib=_integer(_text(element, "fb_memory_usage/total")),
        clocks_mhz=_numbers(element, {name: f"clocks/{tag}" for name, tag in CLOCKS.items()}),
        clocks_max_mhz=_numbers(element, {name: f"max_clocks/{tag}" for name, tag in CLOCKS.items()}),
        ecc_corrected_aggregate=_errors(aggregate, "correctable", "single_bit"),
        ecc_uncorrected_aggregate=_errors(aggregate, "uncorrectable", "double_bit"),
        retired_pages=_numbers(
            element, {cause: f"retired_pages/{tag}/retired_count" for cause, tag in RETIREMENTS.items()}
        ),
        remapped_rows=_numbers(element, {cause: f"remapped_rows/{tag}" for cause, tag in REMAPPINGS.items()}),
        event_reasons={
            reason: text == "Active"
            for reason, text in _reasons(element)
            if reason in EVENT_REASONS and text in {"Active", "Not Active"}
        },
        slowdown_s={
            reason: microseconds / 1e6
            for reason, microseconds in _numbers(
                element,
                {
                    reason: f"clocks_event_reasons_counters/clocks_event_reasons_counters_{tag}"
                    for reason, tag in SLOWDOWN_COUNTERS.items()
                },
            ).items()
        },
    )


def _numbers(element: ET.Element, paths: dict[str, str]) -> dict[str, int]:
    """The whole numbers at these places, without those that are not there."""
    found = {name: _integer(_text(element, path)) for name, path in paths.items()}
    return {name: number for name, number in found.items() if number is not None}


def _unanswered(element: ET.Element) -> Iterator[Unanswered]:
    for part in element:
        for value in part.iter():
            error = (value.text or "").strip().strip("[]")
            tells = error in FAULTS and value.tag not in OF_THE_SYSTEM
            if error in LOST or tells or (error in UNSAID and part.tag in JUDGED):
                yield Unanswered(part.tag, value.tag, error)


def _process(process: ET.Element) -> str:
    return f"{_text(process, 'process_name') or 'a process'} (pid {_text(process, 'pid')})"


def _errors(counters: ET.Element | None, kind: str, bits: str) -> int | None:
    """Errors of a kind since boot, in DRAM and in SRAM, which drivers split in different ways.

    Up to Volta a GPU counts errors of one and of two bits, with their sum.
    """
    if counters is None:
        return None
    values = [
        _integer((counter.text or "").strip()) for counter in counters if kind in counter.tag.split("_")
    ]
    values.append(_integer(_text(counters, f"{bits}/total")))
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _recovery_action(element: ET.Element) -> str | None:
    """What the driver wants done with a GPU; drivers 535 to 560 say it by two flags."""
    for flag, action in (("reset_required", "Reset"), ("drain_and_reset_recommended", "Drain and Reset")):
        if _flag(element, f"gpu_reset_status/{flag}", "Yes"):
            return action
    return _text(element, "gpu_recovery_action")


def _fabric_health(element: ET.Element) -> FabricHealth:
    """Nothing is wrong with what is N/A: the GPU has no such fabric, or its driver does not say."""
    said = {
        value.tag: text
        for value in element.iterfind("fabric/health/*")
        if not _absent(text := (value.text or "").strip())
    }
    broken = [name for name in ("route_unhealthy",) if said.get(name) == "True"]
    broken += [
        f"{name}: {said[name]}"
        for name, good in (
            ("summary", {"Healthy", "Limited Capacity"}),
            ("incorrect_configuration", {"None"}),
        )
        if name in said and said[name] not in good
    ]
    weak = [
        name for name in ("route_recovery_in_progress", "access_timeout_recovery") if said.get(name) == "True"
    ]
    weak += [
        f"{name}: {bad}"
        for name, bad in (("summary", "Limited Capacity"), ("bandwidth", "Degraded"))
        if said.get(name) == bad
    ]
    return FabricHealth(tuple(broken), tuple(weak))


def _event_reasons(element: ET.Element) -> tuple[str, ...]:
    return tuple(sorted({reason for reason, text in _reasons(element) if text == "Active"}))


def _reasons(element: ET.Element) -> Iterator[tuple[str, str]]:
    """Each event reason with what is said of it."""
    for group, prefix in (
        ("clocks_event_reasons", "clocks_event_reason_"),
        ("clocks_throttle_reasons", "clocks_throttle_reason_"),
    ):
        for reason in element.iterfind(f"{group}/*"):
            yield reason.tag.removeprefix(prefix), (reason.text or "").strip()


def _watts(element: ET.Element, *names: str) -> float | None:
    """A power in W; driver 535 and newer group readings by where they are taken."""
    for group in ("gpu_power_readings", "gpu_power_readings/gpu_ceiling_power_limit", "power_readings"):
        for name in names:
            match = re.match(r"[\d.]+", _text(element, f"{group}/{name}") or "")
            if match:
                return float(match.group())
    return None


def _text(element: ET.Element, path: str) -> str | None:
    text = (element.findtext(path) or "").strip()
    return None if _absent(text) else text


def _absent(text: str) -> bool:
    return text in ABSENT or text.strip("[]") in UNANSWERED


def _flag(element: ET.Element, path: str, yes: str) -> bool | None:
    """None for every word but the two: what is no answer must not look like a good one."""
    text = _text(element, path)
    return {yes: True, NO[yes]: False}.get(text or "")


def _any(*flags: bool | None) -> bool | None:
    known = [flag for flag in flags if flag is not None]
    return any(known) if known else None


def _integer(text: str | None) -> int | None:
    match = re.match(r"\d+", text or "")
    return int(match.group()) if match else None


def _number(text: str) -> float | None:
    return None if _absent(text) else float(text)


def _pci_address(text: str) -> str:
    """`00000000:53:00.0` as sysfs writes it: `0000:53:00.0`."""
    return text.lower()[-12:]


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "no output")


def _median(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _growth(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return max(0, known[-1] - known[0]) if known else None


def _maximum(values: list[float | None] | list[int | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
