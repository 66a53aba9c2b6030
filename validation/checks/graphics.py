"""Graphics without a display: can programs draw on every GPU by EGL?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from validation.checks.check import DRIVER, Check, CostStep, IdleNode, Need, Scope
from validation.checks.measured import result
from validation.checks.node import Node
from validation.findings.catalogue import finding
from validation.model.contract import Finding, Measured, TestResult, encode
from validation.model.not_run import NotRunError
from validation.probes import egl
from validation.probes.egl import Device
from validation.processes.child import Request
from validation.processes.pool import run_children


class HeadlessEgl(Check):
    """A pixel drawn by OpenGL ES on every EGL device of the NVIDIA driver, without a display, and read again.

    `--graphics` puts it into every plan and makes it required; so does `nvidia_stack_graphics`.
    """

    id = "egl"
    title = "graphics without a display: EGL on every GPU"
    place = 45
    scope = Scope.NODE
    needs = (DRIVER, Need("libEGL and the driver's libraries for graphics"))
    plans = ()
    passes = "EGL has a device for each GPU, and each drew what it was to draw"
    option = "graphics"
    required_if_asked = True

    def cost(self, idle: IdleNode) -> Iterator[CostStep]:
        """Yield how long it takes."""
        yield CostStep("contexts", idle.contexts)

    def perform(self, node: Node) -> TestResult:
        """Draw on this node."""
        request = Request("EGL", self.function, "none", parameters={"gpus": len(node.gpus)})
        outcomes = run_children([request], node.budget_s, patience_s=self.patience_s(node))
        return result(self, outcomes)


def measure(request: Request, stage: Callable[[str], None]) -> Measured:
    """In a child: draw on every device. Raises NotRunError where there is no EGL of the driver's."""
    stage("looking for the driver's libraries for graphics")
    if not egl.has_nvidia():
        raise NotRunError(
            f"the driver's libraries for graphics are not installed ({egl.NVIDIA_LIBRARY}): "
            "nvidia_stack_graphics installs them"
        )
    stage("drawing on every EGL device")
    try:
        found = egl.devices()
    except egl.EglError as error:
        raise NotRunError(f"there is no EGL to be asked: {error}") from error
    return Measured(
        findings=tuple(examine(found, request.parameters["gpus"])),
        details={"devices": [encode(device) for device in found]},
    )


def examine(found: Iterable[Device], gpus: int) -> Iterator[Finding]:
    """Yield what keeps programs from drawing on the GPUs.

    Other devices, of Mesa say, are nobody's concern.
    """
    devices = [device for device in found if device.nvidia]
    if len(devices) != gpus:
        yield finding("egl-gpu-count", seen=len(devices), listed=gpus)
    for number, device in enumerate(devices):
        if device.error:
            # EGL counts its devices in an order of its own, so no GPU is named.
            yield finding("egl-context", number=number, error=device.error)
