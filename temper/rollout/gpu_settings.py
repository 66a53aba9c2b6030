"""The settings of GPUs that a reboot or another driver may lose, as `nvidia-smi -q -x` says them.

Names of elements: nvidia-smi's XML, nvsmi_device_v12.dtd and v13.dtd. Locked clocks have no query; whoever
reads a node adds what it knows of them from elsewhere.
"""

from __future__ import annotations

import re
from math import isclose
from typing import TYPE_CHECKING

from validation.probes import report_text
from validation.probes.reading import ReadingError, in_one_line

if TYPE_CHECKING:
    import xml.etree.ElementTree as ET

#: Setting -> where it is; of several places, the first that has it. Pending values are what the next boot
#: brings.
PLACES = {
    "persistence mode": ("persistence_mode",),
    "compute mode": ("compute_mode",),
    "MIG mode": ("mig_mode/current_mig",),
    "pending MIG mode": ("mig_mode/pending_mig",),
    "ECC": ("ecc_mode/current_ecc",),
    "pending ECC": ("ecc_mode/pending_ecc",),
    "power limit": (
        "gpu_power_readings/current_power_limit",
        "gpu_power_readings/requested_power_limit",
        "power_readings/power_limit",
    ),
    "graphics clock of applications": ("applications_clocks/graphics_clock",),
    "memory clock of applications": ("applications_clocks/mem_clock",),
    # No setting, but lost by a reboot all the same: until it is back, CUDA does not start.
    "registration with the NVLink fabric": ("fabric/state",),
}
INSTANCES = "MIG instances"
MEMORY = re.compile(r"([0-9]+(?:\.[0-9]+)?) MiB")
#: What stands for a setting that this GPU or driver does not have, in brackets or not.
NONE = ("", "N/A", "Not Supported", "Requested functionality has been deprecated")


def parse(text: str) -> dict[str, dict[str, str]]:
    """GPU (UUID) -> setting -> value, with its unit. A setting that a GPU does not have is left out.

    Raises:
        ReadingError: this is no report of nvidia-smi, or a GPU in it has no UUID.
    """
    report = report_text.split(text)
    if "<nvidia_smi_log" not in report.head or not report.is_whole or report.is_forged:
        raise ReadingError(
            f"expected a whole report of `nvidia-smi -q -x` with {report.attached or 'its'} GPUs, "
            f"found {len(report.gpus)} in {in_one_line(text, 80)!r}"
        )
    found: dict[str, dict[str, str]] = {}
    for gpu in (one.element() for one in report.gpus):
        if not (uuid := _text(gpu, "uuid")):
            raise ReadingError(
                "nvidia-smi -q -x names a GPU without a UUID, so its settings cannot be compared."
            )
        settings = {
            name: value
            for name, places in PLACES.items()
            for value in [next(filter(None, (_text(gpu, place) for place in places)), "")]
            if value
        }
        if settings.get("MIG mode") == "Enabled":
            settings[INSTANCES] = _instances(gpu)
        found[uuid] = settings
    return found


def alike(name: str, was: str, now: str) -> bool:
    """Return whether a setting is what it was.

    Of the same MIG instance, drivers leave more or less memory to its programs: of A100's 2g.10gb, published
    reports of older ones have 9984 MiB, those of R535 9856 MiB. Instances with as many SMs and really another
    memory have half of it, or twice as much.
    """
    if name != INSTANCES:
        return was == now
    memory = [[float(size) for size in MEMORY.findall(text)] for text in (was, now)]
    return MEMORY.sub("", was) == MEMORY.sub("", now) and all(
        isclose(one, other, rel_tol=0.1) for one, other in zip(*memory, strict=True)
    )


def _instances(gpu: ET.Element) -> str:
    """Return the slices of a GPU, whatever their numbers: `1 x 14 SMs 9856 MiB, 2 x 42 SMs 40192 MiB`."""
    kinds: dict[str, int] = {}
    for device in gpu.iterfind("mig_devices/mig_device"):
        processors = _text(device, "device_attributes/shared/multiprocessor_count")
        kind = f"{processors} SMs {_text(device, 'fb_memory_usage/total')}".strip()
        kinds[kind] = kinds.get(kind, 0) + 1
    return ", ".join(f"{count} x {kind}" for kind, count in sorted(kinds.items())) or "none"


def _text(element: ET.Element, place: str) -> str:
    text = (element.findtext(place) or "").strip().strip("[]")
    return "" if text in NONE else text
