"""GPUs and what joins them, from PCI ids: a new server has no driver to ask."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from planning.model import Gpu

if TYPE_CHECKING:
    from collections.abc import Iterable

    from planning.facts import NodeFacts, PciDevice
    from planning.tables import GpuModel, Tables
    from planning.variables import NvidiaStack

GPU_CLASSES = ("0300", "0302")
BRIDGE_CLASS = "0680"
NVLINK_5_ARCHITECTURES = ("blackwell", "rubin")


def gpu_inventory(
    pci: Iterable[PciDevice], models: dict[str, GpuModel]
) -> tuple[tuple[Gpu, ...], tuple[str, ...]]:
    """Known GPUs by model with their count, and the device id of each GPU that no table knows."""
    by_id = {device_id: key for key, model in models.items() for device_id in model.pci_ids}
    gpus = sorted(device.device_id for device in pci if device.class_id in GPU_CLASSES)
    counts = Counter(by_id[device_id] for device_id in gpus if device_id in by_id)
    known = tuple(
        Gpu(key, models[key].name, models[key].architecture, count) for key, count in sorted(counts.items())
    )
    return known, tuple(device_id for device_id in gpus if device_id not in by_id)


def unknown_gpu_findings(device_ids: Iterable[str], *, allowed: bool) -> tuple[list[str], list[str]]:
    """Problems and warnings about GPUs that no table knows."""
    texts = [f"GPU with PCI id 10de:{device_id} is in no table" for device_id in dict.fromkeys(device_ids)]
    if allowed:
        return [], [f"{text}; its stack is a guess, and validation has no reference for it" for text in texts]
    remedy = (
        "add it to data/gpu_models.yml, or set preflight_unknown_gpu_ok: true to go on without references"
    )
    return [f"{text}; {remedy}" for text in texts], []


def fabric_of(node: NodeFacts, wanted: str) -> str:
    """What joins the GPUs: `nvswitch` (NVLink 4 and before), `nvlink5`, or `none`.

    An NVSwitch is a PCI device of NVIDIA's. NVLink 5 switches are managed through an InfiniBand device whose
    vital product data say so.
    """
    if wanted != "auto":
        return wanted
    if node.nvlink_switch_managed:
        return "nvlink5"
    return "nvswitch" if any(device.class_id == BRIDGE_CLASS for device in node.pci) else "none"


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
                "does not start without the fabric manager: check that mlx5_core has the board's bridges, "
                "or set nvidia_stack_fabric: nvlink5 (none, where there are no switches)"
            )
        elif not wanted.imex:
            found.append(
                f"{gpu.name}: in an NVL72 rack the switch trays run the fabric, and each node needs "
                "IMEX for memory that several nodes share; set nvidia_stack_imex: true there"
            )
    return found
