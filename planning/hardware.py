"""GPUs and what joins them, from PCI ids: a new server has no driver to ask."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

GPU_CLASSES = ("0300", "0302")
BRIDGE_CLASS = "0680"
NVLINK_5_ARCHITECTURES = ("blackwell", "rubin")


def model_of(device_id: str, models: Mapping[str, Any]) -> str | None:
    """The key of the GPU model that has this PCI device id (4 hex digits, lower case)."""
    return next((key for key, model in models.items() if device_id in model["pci_ids"]), None)


def gpu_inventory(
    pci: Iterable[Mapping[str, str]], models: Mapping[str, Any]
) -> tuple[list[dict[str, Any]], list[str]]:
    """Known GPUs by model with their count, and the device id of each GPU that no table knows."""
    gpus = [device["device_id"] for device in pci if device["class_id"] in GPU_CLASSES]
    found = Counter(model_of(device_id, models) for device_id in gpus)
    known = [
        {
            "model": key,
            "name": models[key]["name"],
            "architecture": models[key]["architecture"],
            "count": count,
        }
        for key, count in sorted((key, count) for key, count in found.items() if key is not None)
    ]
    return known, sorted(device_id for device_id in gpus if model_of(device_id, models) is None)


def fabric_of(node: Mapping[str, Any], wish: str) -> str:
    """What joins the GPUs: `nvswitch` (NVLink 4 and before), `nvlink5`, or `none`.

    An NVSwitch is a PCI device of NVIDIA's. NVLink 5 switches are managed through an InfiniBand device whose
    vital product data say so.
    """
    if wish != "auto":
        return wish
    if node.get("nvlink_switch_managed", False):
        return "nvlink5"
    return "nvswitch" if any(device["class_id"] == BRIDGE_CLASS for device in node["pci"]) else "none"


def fabric_warnings(
    gpus: list[dict[str, Any]], fabric: str, models: Mapping[str, Any], values: Mapping[str, Any]
) -> list[str]:
    """GPUs that NVLink 5 switches usually join, on a node where none were found."""
    found = []
    for gpu in gpus:
        model = models[gpu["model"]]
        joined = gpu["architecture"] in NVLINK_5_ARCHITECTURES and model["nvswitch_system_possible"]
        if not joined or fabric != "none" or values["nvidia_stack_fabric"] == "none":
            continue
        if model.get("form_factor") == "superchip":
            if not values["nvidia_stack_imex"]:
                found.append(
                    f"{gpu['name']}: in an NVL72 rack the switch trays run the fabric, and each node needs "
                    "IMEX for memory that several nodes share; set nvidia_stack_imex: true there"
                )
        else:
            found.append(
                f"{gpu['name']}: no management device of NVLink 5 switches was found. On an HGX board CUDA "
                "does not start without the fabric manager: check that mlx5_core has the board's bridges, "
                "or set nvidia_stack_fabric: nvlink5 (none, where there are no switches)"
            )
    return found
