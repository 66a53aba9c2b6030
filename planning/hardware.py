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


def fabric_of(node: Mapping[str, Any]) -> str:
    """What joins the GPUs: `nvswitch` (NVLink 4 and before), `nvlink5`, or `none`.

    An NVSwitch is a PCI device of NVIDIA's. NVLink 5 switches are managed through an InfiniBand device whose
    vital product data say so.
    """
    if node.get("nvlink_switch_managed", False):
        return "nvlink5"
    return "nvswitch" if any(device["class_id"] == BRIDGE_CLASS for device in node["pci"]) else "none"


def fabric_warnings(gpus: list[dict[str, Any]], fabric: str, models: Mapping[str, Any]) -> list[str]:
    """NVLink 5 systems have no NVSwitch of NVIDIA's on the PCI bus, and need more than this plan installs."""
    return [
        f"{gpu['name']}: if its GPUs are joined by NVLink switches (HGX B200, GB200 NVL72), the fabric also "
        "needs nvidia-fabricmanager and nvlsm, which this plan does not install"
        for gpu in gpus
        if gpu["architecture"] in NVLINK_5_ARCHITECTURES
        and models[gpu["model"]]["nvswitch_system_possible"]
        and fabric == "none"
    ]
