"""Values in `nvidia-smi -q -x`: numbers, flags, words for "no value", and NVML's errors in the place of one.

Element names: nvsmi_device_v12.dtd (driver 535 to 575) and v13 (580 and newer); v10 and v11 call event
reasons throttle reasons.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import xml.etree.ElementTree as ET

NUMBER = re.compile(r"-?[0-9]{1,12}(?:\.[0-9]{1,9})?(?![0-9.])")
#: What stands for a value that a GPU does not have.
NO_VALUE = {"N/A", "[N/A]", "Not Supported", "[Not Supported]"}
ABSENT = {"", *NO_VALUE, "Requested functionality has been deprecated"}
#: What is the opposite of a word.
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
#: ... and of one that is not at fault, but gives no value either: to this user, through these libraries, or
#: now.
WITHHELD = {
    "permission": {"Insufficient Permissions", "The operating system has blocked the request."},
    "libraries": {
        "Function Not Found",
        "Uninitialized",
        "Invalid Argument",
        "Insufficient Size",
        "Argument version mismatch",
        "Driver Not Loaded",
        "NVML Shared Library Not Found",
        "RM has detected an NVML/RM version mismatch.",
    },
    "now": {
        "System is not in ready state",
        "No data",
        "Not Found",
        "Insufficient Memory",
        "In use by another client",
    },
}
UNSAID = set().union(*WITHHELD.values())
UNANSWERED = FAULTS | UNSAID
#: Any other error: brackets stand around nothing else. An error that its libraries have no words for is
#: `unknown return value: 32766` (nvidia-smi 550.163.01).
OTHER_ERROR = re.compile(r"\[[^\[\]]+\]|unknown return value: -?[0-9]+", re.IGNORECASE)

#: Bits of clocks_event_reasons.active (nvml.h) by the name of their XML element.
EVENT_REASONS = {
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
}


def text_of(element: ET.Element, path: str) -> str | None:
    """Return the text at this place; None where there is none, or no value."""
    text = (element.findtext(path) or "").strip()
    return None if is_absent(text) else text


def is_absent(text: str) -> bool:
    """Return whether a GPU or its driver says with this that it has no value, or none to tell."""
    return text in ABSENT or text.strip("[]") in UNANSWERED or bool(OTHER_ERROR.fullmatch(text))


def flag(element: ET.Element, path: str, yes: str) -> bool | None:
    """None for every word but the two: what is no answer must not look like a good one."""
    text = text_of(element, path)
    return {yes: True, NO[yes]: False}.get(text or "")


def integer(text: str | None) -> int | None:
    """Return the whole number that a text begins with, before its unit; None where it begins with none.

    More than 18 digits are no count of anything.
    """
    match = re.match(r"[0-9]{1,18}(?![0-9])", text or "")
    return int(match.group()) if match else None


def number(text: str) -> float | None:
    """Return a number, None for any other text: it costs this value alone."""
    return float(text) if NUMBER.fullmatch(text) else None


def degrees(element: ET.Element, path: str) -> float | None:
    """Return a temperature in degrees Celsius, or a margin to one, which is below zero when it is used up."""
    match = NUMBER.match(text_of(element, path) or "")
    return float(match.group()) if match else None


def numbers(element: ET.Element, paths: dict[str, str]) -> dict[str, int]:
    """Return the whole numbers at these places, without those that are not there."""
    found = {name: integer(text_of(element, path)) for name, path in paths.items()}
    return {name: number for name, number in found.items() if number is not None}


def watts(element: ET.Element, *names: str) -> float | None:
    """Return a power in W; driver 535 and newer group readings by where they are taken."""
    for group in ("gpu_power_readings", "gpu_power_readings/gpu_ceiling_power_limit", "power_readings"):
        for name in names:
            match = NUMBER.match(text_of(element, f"{group}/{name}") or "")
            if match:
                return float(match.group())
    return None


def errors(counters: ET.Element | None, kind: str, bits: str) -> int | None:
    """Errors of a kind since boot, in DRAM and in SRAM, which drivers split in different ways.

    Up to Volta a GPU counts errors of one and of two bits by unit, with their sum; it may know one of these.
    """
    if counters is None:
        return None
    values = [integer((counter.text or "").strip()) for counter in counters if kind in counter.tag.split("_")]
    known = [value for value in values if value is not None]
    units = {unit.tag: integer((unit.text or "").strip()) for unit in counters.iterfind(f"{bits}/*")}
    total = units.pop("total", None)
    counted = [value for value in units.values() if value is not None]
    known += [max(total or 0, sum(counted))] if counted or total is not None else []
    return sum(known) if known else None


def reasons(element: ET.Element) -> Iterator[tuple[str, str]]:
    """Yield each event reason with what is said of it."""
    for group, prefix in (
        ("clocks_event_reasons", "clocks_event_reason_"),
        ("clocks_throttle_reasons", "clocks_throttle_reason_"),
    ):
        for reason in element.iterfind(f"{group}/*"):
            yield reason.tag.removeprefix(prefix), (reason.text or "").strip()
