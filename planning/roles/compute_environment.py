"""NCCL's settings and thread counts, for every process and for job launchers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planning.node_plan import RolePlan, Stage
from planning.roles.settings import file, render

if TYPE_CHECKING:
    from planning.roles.context import Context

ROLE = "compute_environment"


def role_plan(context: Context) -> RolePlan:
    """The files with the settings."""
    environment = context.plan.environment
    threads = {"omp_num_threads": environment.omp_num_threads}
    profile = render(ROLE, "profile.sh", **threads)
    return RolePlan(
        ROLE,
        Stage.TUNE,
        (
            file(
                "/etc/nccl.conf",
                render(ROLE, "nccl.conf", nccl=environment.nccl),
                "NCCL chooses its interface by the inventory's address",
            ),
            file(
                "/etc/temper/compute.env",
                render(ROLE, "compute.env", **threads),
                "Processes share the cores instead of fighting for them",
            ),
            file(
                "/etc/profile.d/temper-compute.sh",
                profile if context.variables.compute_environment.profile else None,
                "Login shells get the thread counts, where the operator wants it",
            ),
        ),
    )
