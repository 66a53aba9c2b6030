"""What nvidia-smi says: it is asked, and `nvidia-smi -q -x` becomes data.

Exit status alone is no evidence (nvidia-smi answers 0 to some things that it did not do), so everything is
read from its output.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from validation.probes import report_text
from validation.probes.gpu_readings import Readings, readings
from validation.probes.reading import ReadingError, in_one_line
from validation.probes.report_text import REPORT_END, GpuText, Process, ReportText
from validation.probes.report_values import (
    ABSENT,
    FAULTS,
    LOST,
    NO_VALUE,
    OTHER_ERROR,
    UNSAID,
    degrees,
    errors,
    flag,
    integer,
    is_absent,
    reasons,
    text_of,
    watts,
)
from validation.processes.command import CommandError, CommandTimeoutError, Done, Running

if TYPE_CHECKING:
    import xml.etree.ElementTree as ET


#: A node with eight GPUs and no persistence mode takes several seconds.
TIMEOUT_S = 60.0
#: Such a node takes more than ten at times while its GPUs work: that is slow, and nothing is lost.
SAMPLE_TIMEOUT_S, SLOW_SAMPLE_S = 30.0, 10.0
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
    15: "a GPU has fallen off the bus or has otherwise become inaccessible",
}
#: The one of them with which a GPU still works, and the one that nvidia-smi itself has better words for.
CORRUPT_INFOROM, INACCESSIBLE = 14, 15
#: A report, whole or broken off.
REPORT = re.compile(r"(?:<\?xml|<nvidia_smi_log>)(?:.*\n[ \t]*<)?[^\n]*", re.DOTALL)
#: Where nvidia-smi says something beside a report.
BESIDE = rf"(?:^|(?<={REPORT_END}))[ \t]*"
WARNING = re.compile(rf"{BESIDE}(WARNING: .*)$", re.MULTILINE)
#: Of a GPU that has gone, whatever error it names after that.
NO_HANDLE = re.compile(rf"{BESIDE}(Unable to determine the device handle.*)$", re.MULTILINE)
#: Instead of an answer, with status 0, too.
NO_NVML = re.compile(rf"{BESIDE}Failed to initialize NVML", re.MULTILINE)
NO_DEVICES = re.compile(rf"{BESIDE}No devices were found", re.MULTILINE)
#: Modes of a GPU that the host of a virtual machine gave to it: its port and its lanes are the host's.
GUEST_MODES = {"Pass-Through", "VGPU", "vGPU"}
#: Of a part of a GPU, which computes with a licence only; for some minutes it is lent, "Unrestricted".
UNLICENSED = re.compile(r"Unlicensed(?! \(Unrestricted\))")

#: In these performance states a GPU works or is ready to, and its link runs at full speed; below, it saves
#: power and may not.
FULL_SPEED_STATES = {"P0", "P1", "P2"}


@dataclass(eq=False)
class NvidiaSmiError(ReadingError):
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
    #: What nvidia-smi says of a virtual GPU's licence, where there is none.
    license_missing: str | None = None
    #: It has no memory of its own, but the CPU's, as a system on a chip (GB10, Thor).
    shares_memory: bool = False
    sram_threshold_exceeded: bool | None = None
    memory_unrepairable: bool | None = None
    channel_repair_pending: bool | None = None
    tpc_repair_pending: bool | None = None
    fabric_health: FabricHealth = FabricHealth()
    ecc: bool | None = None
    #: The same after the next reset.
    ecc_pending: bool | None = None
    #: Temperatures that are past what the GPU or its memory may have at work, each with that limit.
    too_hot: tuple[str, ...] = ()
    #: Whether NVLink-C2C to the CPU is on.
    c2c: bool | None = None
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
    #: What nvidia-smi said of its GPUs besides, or what that status means.
    warnings: tuple[str, ...] = ()


def query() -> Report:
    """Ask nvidia-smi for everything. Raises NvidiaSmiError."""
    done = _finish(start(["-q", "-x"]), TIMEOUT_S)
    text = report_text.split(_answer(done))
    report = _report(text, _one_by_one(text) if text.is_forged else text.gpus)
    said = WARNING.findall(_beside(done))
    if done.status not in STATUSES:
        # With status 0 it may also warn of the library that is installed.
        said = [words for words in said if "infoROM is corrupted" in words]
    elif not said:
        said = [STATUSES[done.status]]
    return dataclasses.replace(report, status=done.status, warnings=tuple(dict.fromkeys(said)))


def parse(text: str) -> Report:
    """Return the report of `nvidia-smi -q -x`. Raises NvidiaSmiError for anything else."""
    report = report_text.split(text)
    if report.is_forged:
        raise NvidiaSmiError(
            "other",
            f"nvidia-smi -q -x: expected {report.attached} GPUs, found {len(report.gpus)}: "
            "the name of a process has lines of a report",
        )
    return _report(report, report.gpus)


def _one_by_one(text: ReportText) -> tuple[GpuText, ...]:
    """Return the GPUs, each asked for alone: the first one in such a report is always the driver's."""
    asked = [start(["-q", "-x", "-i", str(index)]) for index in range(text.attached or 0)]
    found: list[GpuText] = []
    for done in [_finish(one, TIMEOUT_S) for one in asked]:
        report = report_text.split(done.output)
        report = dataclasses.replace(report, gpus=report.gpus[:1])
        _answer(dataclasses.replace(done, output=f"{report.of_driver}\n{REPORT_END}"))
        found += report.gpus
    return tuple(found)


def _report(text: ReportText, gpus: Iterable[GpuText]) -> Report:
    if "<nvidia_smi_log" not in text.head:
        raise NvidiaSmiError("other", f"nvidia-smi -q -x gave no XML: {_first_line(text.head)}")
    if not text.is_whole:
        raise NvidiaSmiError("other", f"nvidia-smi -q -x gave XML that breaks off: it has no {REPORT_END}")
    # 610 says that of the module by this name, and more than a number by the old one.
    driver = text.of_head("kmd_version") or text.of_head("driver_version")
    if is_absent(driver):
        raise NvidiaSmiError("other", "nvidia-smi -q -x names no driver version")
    try:
        read = tuple(_gpu(index, gpu.element(), gpu.processes()) for index, gpu in enumerate(gpus))
    except ReadingError as error:
        raise NvidiaSmiError("other", str(error)) from error
    if not read:
        raise NvidiaSmiError("no-devices", "nvidia-smi -q -x lists no GPU")
    return Report(driver.split()[0], read)


def ask(arguments: list[str], timeout_s: float = TIMEOUT_S) -> str:
    """Return what nvidia-smi prints. Raises NvidiaSmiError."""
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
    """Return what a nvidia-smi prints that was started. Raises NvidiaSmiError."""
    return _answer(_finish(asked, timeout_s))


def _finish(asked: Running, timeout_s: float) -> Done:
    try:
        return asked.finish(timeout_s)
    except CommandError as error:
        kind = "timeout" if isinstance(error, CommandTimeoutError) else "other"
        raise NvidiaSmiError(kind, f"nvidia-smi gave {error}") from error


def _beside(done: Done) -> str:
    """Return all that it said, without what names of processes say."""
    return f"{report_text.split(done.output).of_driver}\n{done.errors}"


def _answer(done: Done) -> str:
    """Return what it printed, if that is an answer: some faults of a GPU have their own status beside one."""
    output = _beside(done)
    if lost := NO_HANDLE.search(output):
        # What there is of the GPUs before it may come first.
        raise NvidiaSmiError("lost", f"nvidia-smi: {lost[1].strip()}")
    if done.status in STATUSES and REPORT_END in done.output:
        return done.output
    answer = WARNING.sub("", done.output)
    if done.status == CORRUPT_INFOROM and answer.strip():
        return answer
    if done.status != 0 or NO_NVML.search(output):
        silent = STATUSES.get(done.status, f"{done.ending} and said nothing")
        beside = REPORT.sub("", output)
        raise NvidiaSmiError(_kind(done.status, beside), f"nvidia-smi: {_first_line(beside, silent)}")
    if NO_DEVICES.search(output):
        raise NvidiaSmiError("no-devices", "nvidia-smi: No devices were found")
    return answer


def _kind(status: int, output: str) -> str:
    if "version mismatch" in output:
        return "mismatch"
    if status == 9 or "couldn't communicate with the NVIDIA driver" in output:
        return "no-driver"
    if status == 12:
        return "missing"
    if status == INACCESSIBLE or "GPU is lost" in output:
        return "lost"
    return "no-devices" if status == 6 else "other"


def _gpu(index: int, element: ET.Element, processes: tuple[Process, ...]) -> Gpu:
    link = "pci/pci_gpu_link_info"
    volatile = element.find("ecc_errors/volatile")
    return Gpu(
        index=index,
        name=text_of(element, "product_name") or "unknown",
        uuid=text_of(element, "uuid") or "",
        pci_address=(text_of(element, "pci/pci_bus_id") or element.get("id") or "").lower()[-12:],
        pci_id=(text_of(element, "pci/pci_device_id") or "").removeprefix("0x")[:4].lower(),
        performance_state=text_of(element, "performance_state"),
        persistence=flag(element, "persistence_mode", "Enabled"),
        mig=flag(element, "mig_mode/current_mig", "Enabled"),
        ecc_uncorrected_volatile=_uncorrected(element, volatile),
        ecc_corrected_volatile=errors(volatile, "correctable", "single_bit"),
        pcie_replays=integer(text_of(element, "pci/replay_counter")),
        row_remap_failure=flag(element, "remapped_rows/remapped_row_failure", "Yes"),
        row_remap_pending=_any(
            flag(element, "remapped_rows/remapped_row_pending", "Yes"),
            # Since 615: whole banks (NVML, nvmlEccBankRemapperStatus_v1_t).
            flag(element, "remapped_banks/bank_remapper_pending", "Yes"),
        ),
        page_retirement_pending=_any(
            flag(element, "retired_pages/pending_retirement", "Yes"),
            flag(element, "retired_pages/pending_blacklist", "Yes"),
        ),
        event_reasons=tuple(sorted({reason for reason, text in reasons(element) if text == "Active"})),
        pcie_generation=integer(text_of(element, f"{link}/pcie_gen/current_link_gen")),
        pcie_generation_max=integer(text_of(element, f"{link}/pcie_gen/max_link_gen")),
        pcie_width=integer(text_of(element, f"{link}/link_widths/current_link_width")),
        pcie_width_max=integer(text_of(element, f"{link}/link_widths/max_link_width")),
        fabric_state=text_of(element, "fabric/state"),
        fabric_status=_fabric_status(element),
        recovery_action=_recovery_action(element),
        memory_free_mib=integer(text_of(element, "fb_memory_usage/free")),
        power_limit_w=watts(element, "current_power_limit", "power_limit"),
        power_limit_default_w=watts(element, "default_power_limit"),
        processes=tuple(str(process) for process in processes if process.kind != "G"),
        graphics_processes=tuple(str(process) for process in processes if process.kind == "G"),
        guest=text_of(element, "gpu_virtualization_mode/virtualization_mode") in GUEST_MODES,
        license_missing=_license_missing(element),
        shares_memory=(element.findtext("fb_memory_usage/total") or "").strip() in NO_VALUE,
        sram_threshold_exceeded=flag(element, "ecc_errors/aggregate/sram_threshold_exceeded", "Yes"),
        memory_unrepairable=flag(element, "ecc_errors/unrepairable_memory", "Yes"),
        channel_repair_pending=flag(element, "ecc_errors/channel_repair_pending", "Yes"),
        tpc_repair_pending=flag(element, "ecc_errors/tpc_repair_pending", "Yes"),
        fabric_health=_fabric_health(element),
        compute_mode=text_of(element, "compute_mode") or "Default",
        ecc=flag(element, "ecc_mode/current_ecc", "Enabled"),
        ecc_pending=flag(element, "ecc_mode/pending_ecc", "Enabled"),
        too_hot=tuple(_too_hot(element)),
        c2c=flag(element, "c2c_mode", "Enabled"),
        memory_used_mib=integer(text_of(element, "fb_memory_usage/used")),
        application_clock_mhz=integer(text_of(element, "applications_clocks/graphics_clock")),
        application_clock_default_mhz=integer(text_of(element, "default_applications_clocks/graphics_clock")),
        unanswered=tuple(dict.fromkeys(_unanswered(element))),
        readings=readings(element),
    )


def _unanswered(element: ET.Element) -> Iterator[Unanswered]:
    registration = element.find("fabric/status") if _fabric_status(element) else None
    for part in element:
        for value in part.iter():
            said = (value.text or "").strip()
            error = said.strip("[]")
            if value is registration and error not in LOST:
                continue  # an answer, which is judged by itself
            tells = error in FAULTS and value.tag not in OF_THE_SYSTEM
            unsaid = error in UNSAID or (said not in ABSENT and OTHER_ERROR.fullmatch(said))
            if error in LOST or tells or (unsaid and part.tag in JUDGED):
                yield Unanswered(part.tag, value.tag, error)


def _uncorrected(element: ET.Element, volatile: ET.Element | None) -> int | None:
    """Uncorrectable errors since boot; an instance of MIG counts those of its SRAM by itself."""
    instances = element.iterfind("mig_devices/mig_device/ecc_error_count/volatile_count")
    known = [errors(counters, "uncorrectable", "double_bit") for counters in instances]
    of_instances = [count for count in known if count is not None]
    of_gpu = errors(volatile, "uncorrectable", "double_bit")
    return max(of_gpu or 0, sum(of_instances)) if of_instances else of_gpu


def _too_hot(element: ET.Element) -> Iterator[str]:
    """Temperatures past their limit for work, above which clocks are lowered (nvidia-smi(1), "Temperature").

    Newer GPUs say their distance from it ("T.Limit"), which falls as they grow hot.
    """
    limits = {
        "GPU": ("gpu_temp", "gpu_temp_max_gpu_threshold"),
        "memory": ("memory_temp", "gpu_temp_max_mem_threshold"),
    }
    for what, (now, most) in limits.items():
        found, limit = (degrees(element, f"temperature/{name}") for name in (now, most))
        if found is not None and limit and found > limit:
            yield f"{what} {found:.0f} C, its limit for work is {limit:.0f} C"
    margin = degrees(element, "temperature/gpu_temp_tlimit")
    least = degrees(element, "temperature/gpu_temp_max_gpu_tlimit_threshold")
    if margin is not None and least is not None and margin < least:
        yield f"GPU T.Limit {margin:.0f} C, its limit for work is {least:.0f} C"


def _license_missing(element: ET.Element) -> str | None:
    """Return why no licence is there; a whole GPU that was passed through computes without one."""
    mode = text_of(element, "gpu_virtualization_mode/virtualization_mode")
    said = text_of(element, "vgpu_software_licensed_product/license_status") or ""
    return said if mode in GUEST_MODES - {"Pass-Through"} and UNLICENSED.match(said) else None


def _recovery_action(element: ET.Element) -> str | None:
    """Return what the driver wants done with a GPU; drivers 535 to 560 say it by two flags."""
    for name, action in (("reset_required", "Reset"), ("drain_and_reset_recommended", "Drain and Reset")):
        if flag(element, f"gpu_reset_status/{name}", "Yes"):
            return action
    return text_of(element, "gpu_recovery_action")


def _fabric_status(element: ET.Element) -> str | None:
    """Return how the registration ended.

    One of NVML's errors there is its end, no missing answer (nvml.h).
    """
    said = (element.findtext("fabric/status") or "").strip()
    return None if said in ABSENT or text_of(element, "fabric/state") is None else said


def _fabric_health(element: ET.Element) -> FabricHealth:
    """Nothing is wrong with what is N/A: the GPU has no such fabric, or its driver does not say."""
    said = {
        value.tag: text
        for value in element.iterfind("fabric/health/*")
        if not is_absent(text := (value.text or "").strip())
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


def _any(*flags: bool | None) -> bool | None:
    known = [flag for flag in flags if flag is not None]
    return any(known) if known else None


def _first_line(text: str, silent: str = "no output") -> str:
    return in_one_line(next((line for line in text.splitlines() if line.strip()), silent))
