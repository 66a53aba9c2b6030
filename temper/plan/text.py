"""The plan as the operator reads it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from temper.base.nodes import number_of
from temper.plan.facts import NodeFacts

if TYPE_CHECKING:
    from temper.plan.node_plan import NodePlan, WaivedControl

FABRICS = {"none": "", "nvswitch": ", NVSwitch", "nvlink5": ", NVLink 5 switches"}


def plan_text(plan: NodePlan, node: NodeFacts, not_tuned: Sequence[str] = ()) -> str:
    """Return the stack of the plan in a few lines.

    `not_tuned` is what the node lacks of the wanted tuning.
    """
    gpus = [f"{gpu.count}x {gpu.name}" for gpu in plan.gpus] + [
        f"{count}x 10de:{device_id} (unknown)" for device_id, count in Counter(plan.unknown_gpus).items()
    ]
    lines = [
        f"{node.os.pretty_name}, kernel {node.kernel.release}, {', '.join(gpus) or 'no GPU'}"
        + FABRICS[plan.fabric]
    ]
    if driver := plan.driver:
        state = "in place" if plan.settled else "to be installed"
        support = f", supported to {driver.end_of_life}" if driver.end_of_life else ""
        versions = {"CUDA": plan.cuda, "cuDNN": plan.runtime.cudnn, "NCCL": plan.runtime.nccl}
        libraries = "".join(f", {word} {version}" for word, version in versions.items() if version)
        lines.append(
            f"stack {plan.stack} ({state}): driver {driver.version} "
            f"({driver.modules} modules{support}){libraries}, {len(plan.packages)} packages"
        )
    if plan.image:
        lines.append(
            "image: written, installed and enabled only; the first run on each machine does the rest"
        )
        return "\n".join(lines)
    nccl = " ".join(f"{key}={value}" for key, value in plan.environment.nccl.items())
    lines.append(f"environment: OMP_NUM_THREADS={plan.environment.omp_num_threads} {nccl}".rstrip())
    if plan.environment.why:
        lines.append(f"NCCL's interface: {plan.environment.why}")
    if plan.payload:
        python = f" on Python {plan.payload.python}" if plan.payload.python else ""
        lines.append(f"payload: torch {plan.payload.torch}{python}")
    if not_tuned:
        lines.append(f"not tuned here: {'; '.join(not_tuned)}")
    return "\n".join(lines)


def waiver_text(profile: str, edition: str, waived: Sequence[WaivedControl]) -> str:
    """Return by which benchmark hardening is measured, how much it leaves out, and what lists that."""
    number = number_of(len(waived), "control")
    return (
        f"hardening: profile {profile}, by {edition}, {number} waived (temper plan --waived lists them with "
        "their reasons)"
    )
