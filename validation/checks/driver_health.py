"""The driver's part of health: is it loaded, has all of it one version, what did it complain about."""

from __future__ import annotations

from typing import TYPE_CHECKING

from validation.findings import xids
from validation.model.contract import Finding, State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from validation.checks.node import Node
    from validation.probes.nvidia_smi import NvidiaSmiError, Report

DRIVER_ACTIONS = {
    "missing": "install the driver",
    "mismatch": "reboot the node, so that the kernel module that is loaded is the one that is installed",
    "no-driver": "look into the kernel log and `dkms status` for why the module is not loaded, then reboot",
    "lost": "reset or power-cycle the node; if the GPU is lost again, have it replaced",
    "no-devices": "look into the kernel log for why the driver refused the GPUs",
    "timeout": "look for Xid errors in the kernel log, then reboot the node",
    "other": "run nvidia-smi -q on the node",
}


def failure(node: Node, error: NvidiaSmiError) -> Finding:
    """Why nvidia-smi cannot answer, and what to do about it."""
    loaded = f" (loaded kernel module: {node.loaded_driver})" if node.loaded_driver else ""
    return Finding(f"driver-{error.kind}", State.FAIL, f"{error}{loaded}", DRIVER_ACTIONS[error.kind])


def version(node: Node, report: Report) -> Iterator[Finding]:
    """The driver that is loaded must be the expected one."""
    expected = node.expectation.driver_version
    if expected and report.driver_version != expected:
        yield Finding(
            "driver-version",
            State.FAIL,
            f"driver {report.driver_version} is loaded, expected {expected}",
            "reboot the node if the right version is installed, else install it",
        )


def parts(node: Node, report: Report) -> Iterator[Finding]:
    """Libraries and fabric manager must have exactly the driver's version."""
    for name, found in node.facts.driver_libraries.items():
        if found != report.driver_version:
            yield Finding(
                "library-version",
                State.FAIL,
                f"{name} has version {found}, the driver that is loaded {report.driver_version}: "
                "CUDA cannot start",
                "reboot the node if an upgrade was not finished, else install the driver's own libraries",
            )
    fabric_manager = node.facts.fabric_manager
    if fabric_manager and fabric_manager != report.driver_version:
        yield Finding(
            "fabric-manager-version",
            State.FAIL,
            f"the fabric manager has version {fabric_manager}, the driver that is loaded "
            f"{report.driver_version}: it will not start",
            "install the fabric manager of exactly the driver's version",
        )
    elif node.facts.fabric_manager_runs is False:
        yield Finding(
            "fabric-manager-stopped",
            State.FAIL,
            f"the fabric manager {fabric_manager} of this node with NVSwitches does not run: programs may "
            "go on, but after the next reset CUDA cannot start",
            "read its log (journalctl --unit nvidia-fabricmanager), then start it",
        )


def xid_errors(node: Node) -> Iterator[Finding]:
    """Xid errors since the driver was loaded, each once for its GPU, with what NVIDIA recommends."""
    if node.kernel_log.unreadable:
        yield Finding(
            "kernel-log-unreadable",
            State.DEGRADED,
            "the kernel log cannot be read, so nobody knows of all Xid errors "
            f"({node.kernel_log.unreadable})",
            "run this as root, or as a user that may read the kernel log; see that journalctl answers",
        )
    yield from _switch_errors(node)
    gpus = {gpu.pci_address.rpartition(".")[0]: gpu.index for gpu in node.gpus}
    for event in node.kernel_log.events:
        number = event.number
        if not event.of_switch and (entry := xids.find(number)):
            device = gpus.get(event.address)
            where = f"GPU {device}" if device is not None else f"the GPU at {event.address}"
            yield Finding(
                f"xid-{number}" if number in xids.REPORTED else "xid-unknown",
                entry.state,
                f"{where}: Xid {number}, {entry.title}; {event.count} times since the driver was loaded, "
                f"last: {event.detail or 'no detail'}",
                entry.action,
                device,
            )


def _switch_errors(node: Node) -> Iterator[Finding]:
    """Fatal errors of NVSwitches; one that is not fatal was handled, and is counted in the details.

    NVIDIA, Fabric Manager user guide, "NVSwitch SXid Errors".
    """
    fatal = [
        event for event in node.kernel_log.events if event.of_switch and event.detail.startswith("Fatal")
    ]
    for address in dict.fromkeys(event.address for event in fatal):
        mine = [event for event in fatal if event.address == address]
        count = sum(event.count for event in mine)
        yield Finding(
            "sxid-fatal",
            State.FAIL,
            f"the NVSwitch at {address}: {count} fatal errors since the driver was loaded, last: SXid "
            f"{mine[-1].number}, {mine[-1].detail}",
            "reset all GPUs and NVSwitches together; if it comes back, have the baseboard looked at",
        )
