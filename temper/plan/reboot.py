"""Predict whether only a reboot loads the planned driver, and refuse where that is not allowed."""

from __future__ import annotations

from temper.plan.facts import GPU_CLASSES, NodeFacts
from temper.plan.node_plan import NodePlan
from temper.plan.refusals import Refusal, Remedy, advice, refusal
from temper.plan.variables import NvidiaStack

FORBIDDEN = "reboot-forbidden"
NOUVEAU = "nouveau"
#: What brings a change of /etc/modprobe.d into the initramfs, by package manager.
INITRAMFS = {"apt": "update-initramfs -u", "dnf": "dracut --force"}


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
    facts = {"driver": plan.driver.version, "reason": plan.reboot}
    if not wish.reboot_ok:
        return [refusal(FORBIDDEN, way_out(plan, node, name), **facts)]
    busy = node.nvidia.compute_processes
    # Where the driver is still to be installed, machine.busy_problems refuses the node.
    if busy and plan.settled and not wish.busy_ok:
        return [refusal("reboot-busy", count=len(busy), processes=busy[:3], **facts)]
    return []


def way_out(plan: NodePlan, node: NodeFacts, name: str) -> Remedy:
    """Return what to type where Ansible may not reboot the node, by what a reboot by hand would bring."""
    if plan.settled:
        return advice("reboot-by-hand", node=name)
    if node.nvidia.loaded_version:
        return advice("reboot-allow", node=name, loaded=node.nvidia.loaded_version)
    return advice("reboot-without-nouveau", node=name, initramfs=INITRAMFS[plan.package_manager or "apt"])
