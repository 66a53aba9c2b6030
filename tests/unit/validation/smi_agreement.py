"""Two answers of one nvidia-smi: what the payload reads of `-q -x`, beside `--query-gpu` in plain columns."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING

from validation.probes import nvidia_smi
from validation.probes.report_values import is_absent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from validation.probes.nvidia_smi import Gpu


def _words(yes: str, no: str, read: Callable[[Gpu], bool | None]) -> Callable[[Gpu], str | None]:
    return lambda gpu: {True: yes, False: no}.get(read(gpu))  # type: ignore[arg-type]


def _reason(name: str) -> Callable[[Gpu], str | None]:
    return _words("Active", "Not Active", lambda gpu: gpu.readings.event_reasons.get(name))


#: By nvidia-smi's name of a column: what the payload has of it, or None where it has no value.
COLUMNS: dict[str, Callable[[Gpu], object]] = {
    "index": lambda gpu: gpu.index,
    "name": lambda gpu: gpu.name,
    "uuid": lambda gpu: gpu.uuid,
    "pstate": lambda gpu: gpu.performance_state,
    "persistence_mode": _words("Enabled", "Disabled", lambda gpu: gpu.persistence),
    "mig.mode.current": _words("Enabled", "Disabled", lambda gpu: gpu.mig),
    "ecc.mode.current": _words("Enabled", "Disabled", lambda gpu: gpu.ecc),
    "ecc.mode.pending": _words("Enabled", "Disabled", lambda gpu: gpu.ecc_pending),
    "compute_mode": lambda gpu: gpu.compute_mode,
    "pcie.link.gen.current": lambda gpu: gpu.pcie_generation,
    "pcie.link.gen.max": lambda gpu: gpu.pcie_generation_max,
    "pcie.link.width.current": lambda gpu: gpu.pcie_width,
    "pcie.link.width.max": lambda gpu: gpu.pcie_width_max,
    "memory.total": lambda gpu: gpu.readings.memory_total_mib,
    "memory.used": lambda gpu: gpu.memory_used_mib,
    "memory.free": lambda gpu: gpu.memory_free_mib,
    "power.limit": lambda gpu: gpu.power_limit_w,
    "power.default_limit": lambda gpu: gpu.power_limit_default_w,
    "power.draw": lambda gpu: gpu.readings.power_w,
    "temperature.gpu": lambda gpu: gpu.readings.temperature_c,
    "temperature.memory": lambda gpu: gpu.readings.memory_temperature_c,
    "utilization.gpu": lambda gpu: gpu.readings.utilization and round(gpu.readings.utilization * 100),
    "clocks.gr": lambda gpu: gpu.readings.clocks_mhz.get("graphics"),
    "clocks.sm": lambda gpu: gpu.readings.clocks_mhz.get("sm"),
    "clocks.mem": lambda gpu: gpu.readings.clocks_mhz.get("memory"),
    "clocks.video": lambda gpu: gpu.readings.clocks_mhz.get("video"),
    "clocks.max.gr": lambda gpu: gpu.readings.clocks_max_mhz.get("graphics"),
    "clocks.max.sm": lambda gpu: gpu.readings.clocks_max_mhz.get("sm"),
    "clocks.max.mem": lambda gpu: gpu.readings.clocks_max_mhz.get("memory"),
    "clocks.applications.gr": lambda gpu: gpu.application_clock_mhz,
    "clocks.default_applications.gr": lambda gpu: gpu.application_clock_default_mhz,
    "clocks_event_reasons.hw_slowdown": _reason("hw_slowdown"),
    "clocks_event_reasons.hw_thermal_slowdown": _reason("hw_thermal_slowdown"),
    "clocks_event_reasons.hw_power_brake_slowdown": _reason("hw_power_brake_slowdown"),
    "clocks_event_reasons.sw_thermal_slowdown": _reason("sw_thermal_slowdown"),
    "clocks_event_reasons.sw_power_cap": _reason("sw_power_cap"),
    "clocks_event_reasons.sync_boost": _reason("sync_boost"),
    "retired_pages.single_bit_ecc.count": lambda gpu: gpu.readings.retired_pages.get("corrected"),
    "retired_pages.double_bit.count": lambda gpu: gpu.readings.retired_pages.get("uncorrected"),
    "retired_pages.pending": _words("Yes", "No", lambda gpu: gpu.page_retirement_pending),
}
QUERY = [f"--query-gpu={','.join(COLUMNS)}", "--format=csv,noheader,nounits"]


def differences(report: str, columns: str) -> Iterator[tuple[int, str, str, object]]:
    """Yield each field in which the two are not alike: its GPU and column, and both values."""
    gpus = nvidia_smi.parse(report).gpus
    rows = list(csv.reader(columns.splitlines(), skipinitialspace=True))
    if [row[0] for row in rows] != [str(gpu.index) for gpu in gpus]:
        yield -1, "index", str([row[0] for row in rows]), [gpu.index for gpu in gpus]
        return
    for gpu, row in zip(gpus, rows, strict=True):
        for (column, read), said in zip(COLUMNS.items(), row, strict=True):
            value = read(gpu)
            if not _alike(said, value):
                yield gpu.index, column, said, value


#: What the mock answers in two ways (0.2.1): nvidia-smi asks for power by other functions in `-q -x`.
OF_THE_MOCK = {"power.limit", "power.default_limit", "power.draw"}


def ours_alone(found: Iterable[tuple[int, str, str, object]]) -> list[tuple[int, str, str, object]]:
    """Return the differences that are not the mock's own."""
    return [one for one in found if one[1] not in OF_THE_MOCK]


def _alike(said: str, value: object) -> bool:
    if is_absent(said) or value is None:
        # A number in one and nothing in the other is a value lost, or made up.
        return is_absent(said) and value is None
    if isinstance(value, int | float):
        try:
            return abs(float(said) - value) < 0.01
        except ValueError:
            return False
    return said == value
