"""Whether the planned driver is loaded only by a reboot: said, and refused, before anything is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from temper.plan.facts import GPU_CLASSES
from temper.plan.refusals import Refusal, advice, refusal

if TYPE_CHECKING:
    from temper.plan.facts import NodeFacts
    from temper.plan.node_plan import NodePlan
    from temper.plan.variables import NvidiaStack

FORBIDDEN = "reboot-forbidden"
NOUVEAU = "nouveau"


def reboot_reason(plan: NodePlan, node: NodeFacts) -> str:
    """Return why the planned driver is loaded only by a reboot; empty where it can be loaded without one.

    module_utils/temper/driver/loaded.py looks again once the driver is installed.
    """
    loaded = node.nvidia.loaded_version
    if plan.image or not plan.driver or loaded == plan.driver.version:
        return ""
    if loaded:
        return f"driver {loaded} is loaded"
    held = [
        device
        for device in node.own_pci
        if device.class_id in GPU_CLASSES
        and device.driver == NOUVEAU
        and device.device_id not in plan.undriven_gpus
    ]
    return f"{NOUVEAU} holds the GPUs" if held else ""


def reboot_refusals(plan: NodePlan, node: NodeFacts, wish: NvidiaStack, name: str) -> list[Refusal]:
    """Return why a run that installs the stack must not begin: it would end before the driver is loaded."""
    if not plan.reboot or not plan.driver:
        return []
    if not wish.reboot_ok:
        by_hand = advice("reboot-by-hand", node=name) if plan.settled else advice("reboot-allow")
        return [refusal(FORBIDDEN, by_hand, driver=plan.driver.version, reason=plan.reboot)]
    busy = node.nvidia.compute_processes
    # Of a driver that is still to be installed, it has been said.
    if busy and plan.settled and not wish.busy_ok:
        return [refusal("gpus-busy", count=len(busy), processes=busy[:3])]
    return []
