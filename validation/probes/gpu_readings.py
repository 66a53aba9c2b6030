"""What a GPU says of itself that monitoring records and no check judges."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from validation.probes.report_values import EVENT_REASONS, errors, integer, numbers, reasons, text_of, watts

if TYPE_CHECKING:
    import xml.etree.ElementTree as ET

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


def readings(element: ET.Element) -> Readings:
    """Return those of one GPU in the report."""
    aggregate = element.find("ecc_errors/aggregate")
    share = integer(text_of(element, "utilization/gpu_util"))
    return Readings(
        temperature_c=integer(text_of(element, "temperature/gpu_temp")),
        memory_temperature_c=integer(text_of(element, "temperature/memory_temp")),
        # Driver 550 and newer have an average over a second beside the moment's draw.
        power_w=watts(element, "power_draw", "average_power_draw", "instant_power_draw"),
        utilization=None if share is None else share / 100,
        memory_total_mib=integer(text_of(element, "fb_memory_usage/total")),
        clocks_mhz=numbers(element, {name: f"clocks/{tag}" for name, tag in CLOCKS.items()}),
        clocks_max_mhz=numbers(element, {name: f"max_clocks/{tag}" for name, tag in CLOCKS.items()}),
        ecc_corrected_aggregate=errors(aggregate, "correctable", "single_bit"),
        ecc_uncorrected_aggregate=errors(aggregate, "uncorrectable", "double_bit"),
        retired_pages=numbers(
            element, {cause: f"retired_pages/{tag}/retired_count" for cause, tag in RETIREMENTS.items()}
        ),
        remapped_rows=numbers(element, {cause: f"remapped_rows/{tag}" for cause, tag in REMAPPINGS.items()}),
        event_reasons={
            reason: text == "Active"
            for reason, text in reasons(element)
            if reason in EVENT_REASONS and text in {"Active", "Not Active"}
        },
        slowdown_s={
            reason: microseconds / 1e6
            for reason, microseconds in numbers(
                element,
                {
                    reason: f"clocks_event_reasons_counters/clocks_event_reasons_counters_{tag}"
                    for reason, tag in SLOWDOWN_COUNTERS.items()
                },
            ).items()
        },
    )
