"""GPUs and what joins them, from PCI ids: a new server has no driver to ask."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from temper.plan.facts import BRIDGE_CLASS, GPU_CLASSES, VGA_CLASS, NodeFacts, PciDevice
from temper.plan.model import Driver, Gpu
from temper.plan.refusals import Refusal, refusal
from temper.plan.rules import drives
from temper.plan.tables import Tables
from temper.plan.variables import NvidiaStack
from validation.model.grouping import by_key

NVLINK_5_ARCHITECTURES = ("blackwell", "rubin")
# A chip has so many PCI ids in a row (data/gpu_ids.yml).
IDS_OF_A_CHIP = 0x80


class Place(Enum):
    """Where a PCI id stands among those of the tables."""

    KNOWN = auto()
    BETWEEN = auto()
    NEWER = auto()
    OLDER = auto()
    INTEGRATED = auto()


@dataclass(frozen=True)
class Hardware:
    """The GPUs of a node.

    `known` and `similar` decide its stack: GPUs of the tables, and GPUs between them by id, which have the
    model of the nearest one. So do `newer` ones, of which only the id is known. No stack drives `refused`
    ones. `display` ones, beside others, only have a monitor.
    """

    known: tuple[Gpu, ...] = ()
    similar: tuple[Gpu, ...] = ()
    newer: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    display: tuple[Gpu, ...] = ()
    unknown: tuple[str, ...] = ()  # the ids of those that are neither `known` nor `display`
    display_ids: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """How many GPUs compute."""
        return sum(gpu.count for gpu in self.known + self.similar) + len(self.newer)


def nearest_id(device_id: str, tables: Tables) -> str:
    """Return the id of the tables that most probably is of the same chip."""
    number = int(device_id, 16)

    def distance(known: str) -> tuple[bool, int]:
        other = int(known, 16)
        return number // IDS_OF_A_CHIP != other // IDS_OF_A_CHIP, abs(number - other)

    return min((*tables.models_by_id, *tables.integrated_gpus), key=distance)


def place_of(device_id: str, tables: Tables) -> Place:
    """Return where a PCI id stands among those of the tables."""
    if device_id in tables.models_by_id:
        return Place.KNOWN
    if device_id < min(tables.models_by_id):
        return Place.OLDER
    if int(device_id, 16) // IDS_OF_A_CHIP > int(max(tables.models_by_id), 16) // IDS_OF_A_CHIP:
        return Place.NEWER
    return Place.INTEGRATED if nearest_id(device_id, tables) in tables.integrated_gpus else Place.BETWEEN


def gpu_hardware(pci: Iterable[PciDevice], tables: Tables) -> Hardware:
    """Return the GPUs among PCI devices."""
    devices = sorted((item for item in pci if item.class_id in GPU_CLASSES), key=lambda item: item.device_id)
    placed: dict[Place, list[PciDevice]] = {place: [] for place in Place}
    for device in devices:
        placed[place_of(device.device_id, tables)].append(device)
    models = Counter(tables.models_by_id[device.device_id] for device in placed[Place.KNOWN])
    known = tuple(
        Gpu(key, tables.models[key].name, tables.models[key].architecture, count)
        for key, count in sorted(models.items())
    )
    similar = tuple(
        unnamed(device_id, count, tables.models_by_id[nearest_id(device_id, tables)], tables)
        for device_id, count in Counter(ids(placed[Place.BETWEEN])).items()
    )
    newer = ids(placed[Place.NEWER])
    display: tuple[Gpu, ...] = ()
    small = {key for key in models if tables.models[key].display}
    if similar or newer or small < models.keys():
        display = tuple(gpu for gpu in known if gpu.model in small)
        known = tuple(gpu for gpu in known if gpu.model not in small)
    beside = placed[Place.OLDER] if known or similar or newer else []
    monitors = [device for device in beside if device.class_id == VGA_CLASS]
    refused = [item for item in placed[Place.OLDER] + placed[Place.INTEGRATED] if item not in monitors]
    return Hardware(
        known=known,
        similar=similar,
        newer=newer,
        refused=ids(refused),
        display=display
        + tuple(unnamed(device_id, count, "", tables) for device_id, count in Counter(ids(monitors)).items()),
        unknown=tuple(sorted((*ids(placed[Place.BETWEEN]), *newer, *ids(refused)))),
        display_ids=tuple(
            device_id
            for device_id in ids(placed[Place.KNOWN] + monitors)
            if tables.models_by_id.get(device_id, "") not in {gpu.model for gpu in known}
        ),
    )


def ids(devices: Iterable[PciDevice]) -> tuple[str, ...]:
    """Return the PCI ids of devices."""
    return tuple(device.device_id for device in devices)


def unnamed(device_id: str, count: int, model: str, tables: Tables) -> Gpu:
    """GPUs that no table knows; `model` is what they are planned like, empty where nothing is planned."""
    architecture = tables.models[model].architecture if model else ""
    return Gpu(model, f"GPU 10de:{device_id}", architecture, count)


def given_gpus(node: NodeFacts) -> tuple[PciDevice, ...]:
    """Return the GPUs that another driver has, as for virtual machines."""
    return tuple(device for device in node.pci if device.given_away and device.class_id in GPU_CLASSES)


def given_findings(given: Sequence[PciDevice], expected: int) -> tuple[list[Refusal], list[str]]:
    """Problems and warnings about GPUs that another driver has; `expected` are those that stay the node's."""
    by_driver = by_key((device.driver, device.address) for device in given)
    whose = ", ".join(f"{driver} ({', '.join(addresses)})" for driver, addresses in by_driver.items())
    if given and expected:
        return [], [
            f"{len(given)} of {len(given) + expected} GPUs belong to {whose}: they are left alone; expected "
            f"GPUs: {expected}"
        ]
    if given:
        return [refusal("gpus-given-away", count=len(given), whose=whose)], []
    return [], []


def gpu_findings(
    hardware: Hardware, given: Sequence[PciDevice], tables: Tables, *, newer_ok: bool
) -> tuple[list[Refusal], list[str]]:
    """Problems and warnings about GPUs that no table knows, and about a node that has none."""
    problems, warnings = [], []
    if not hardware.count and not hardware.refused and not given:
        problems.append(refusal("gpu-absent"))
    for device_id in dict.fromkeys(hardware.refused):
        if place_of(device_id, tables) is Place.OLDER:
            problems.append(refusal("gpu-too-old", pci_id=f"10de:{device_id}"))
        else:
            chip = tables.integrated_gpus[nearest_id(device_id, tables)]
            problems.append(refusal("gpu-integrated", pci_id=f"10de:{device_id}", chip=chip))
    for device_id in dict.fromkeys(hardware.newer):
        if newer_ok:
            warnings.append(
                f"GPU with PCI id 10de:{device_id} is in no table, and its id is beyond all known ones: its "
                "stack is a guess, and validation has no reference for it"
            )
        else:
            problems.append(refusal("gpu-unknown", pci_id=f"10de:{device_id}"))
    for gpu in hardware.similar:
        model = tables.models[gpu.model]
        warnings.append(
            f"{gpu.name} is in no table; it is planned like the GPU with the nearest id, {model.name} "
            f"({model.architecture}), and validation has no reference for it"
        )
    return problems, warnings


def display_gpus(
    hardware: Hardware, driver: Driver | None, tables: Tables
) -> tuple[tuple[Gpu, ...], list[str]]:
    """Return the GPUs for a monitor that this driver drives as well, and a warning about each of them."""
    driven = tuple(
        gpu for gpu in hardware.display if driver and drives(driver.branch, driver.modules, gpu, tables)
    )
    return driven, [
        f"{gpu.name} is taken for a card with a monitor, beside GPUs that compute: it does not decide the "
        "stack, and the planned driver "
        + ("drives it, too" if gpu in driven else "leaves it alone: it shows what the firmware set up")
        for gpu in hardware.display
    ]


def undriven_ids(hardware: Hardware, driven: Iterable[Gpu], tables: Tables) -> tuple[str, ...]:
    """Return the ids of the GPUs for a monitor that the driver leaves alone."""
    models = {gpu.model for gpu in driven}
    return tuple(
        sorted(one for one in hardware.display_ids if tables.models_by_id.get(one, "") not in models)
    )


def fabric_of(node: NodeFacts, wanted: str) -> str:
    """Return what joins the GPUs: `nvswitch` (NVLink 4 and before), `nvlink5`, or `none`.

    An NVSwitch is a PCI device of NVIDIA's. NVLink 5 switches are managed through an InfiniBand device whose
    vital product data say so.
    """
    if wanted != "auto":
        return wanted
    if node.nvlink_switch_managed:
        return "nvlink5"
    return "nvswitch" if any(device.class_id == BRIDGE_CLASS for device in node.own_pci) else "none"


def fabric_warnings(gpus: Iterable[Gpu], fabric: str, tables: Tables, wanted: NvidiaStack) -> list[str]:
    """GPUs that NVLink 5 switches usually join, on a node where none were found."""
    if fabric != "none" or wanted.fabric == "none":
        return []
    found = []
    for gpu in gpus:
        model = tables.models[gpu.model]
        if gpu.architecture not in NVLINK_5_ARCHITECTURES or not model.nvswitch_system_possible:
            continue
        if model.form_factor != "superchip":
            found.append(
                f"{gpu.name}: no management device of NVLink 5 switches was found. On an HGX board CUDA "
                "does not start without the fabric manager: check that mlx5_core and mlx5_ib have the "
                "board's bridges (Ubuntu's kernels for clouds have them in linux-modules-extra-RELEASE), or "
                "set nvidia_stack_fabric: nvlink5 (none, where there are no switches)"
            )
        elif not wanted.imex:
            # No distribution packages IMEX.
            source = "nvidia_stack_source: nvidia and " if wanted.source == "distro" else ""
            found.append(
                f"{gpu.name}: in an NVL72 rack the switch trays run the fabric, and each node needs "
                f"IMEX for memory that several nodes share; set {source}nvidia_stack_imex: true there"
            )
    return found
