"""Limits and kernel parameters for GPU jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planning.node_plan import Reaction, RoleOptions, RolePlan, Stage
from planning.roles.settings import file, render, sysctl, sysctl_file

if TYPE_CHECKING:
    from planning.roles.context import Context

ROLE = "os_tuning"
MANAGER = "/etc/systemd/system.conf.d/90-temper.conf"
LOGIND = "/etc/systemd/logind.conf.d/90-temper.conf"


def role_plan(context: Context) -> RolePlan:
    """Limits of logins and services, and kernel parameters."""
    wish = context.variables.os_tuning
    limits = {"memlock": wish.memlock, "nofile": wish.nofile, "stack_kib": wish.stack_kib}
    parameter = "The operator's tuning for GPU jobs"
    return RolePlan(
        ROLE,
        Stage.TUNE,
        (
            file(
                "/etc/security/limits.d/90-temper.conf",
                render(ROLE, "limits.conf", **limits),
                "NCCL and RDMA pin memory, data loaders open many files",
            ),
            file(MANAGER, render(ROLE, "systemd.conf", **limits), "Limits of logins do not reach services"),
            file(
                LOGIND,
                render(ROLE, "logind.conf"),
                "Else the shared memory of a user's job goes when the login ends",
            ),
            # Sorts after hardening files, so that tuning wins where both set a parameter.
            file("/etc/sysctl.d/95-temper-tuning.conf", sysctl_file(wish.sysctls), parameter),
            *(sysctl(name, value, parameter) for name, value in wish.sysctls.items()),
        ),
        reactions=(
            Reaction((MANAGER,), ("systemctl", "daemon-reexec")),
            Reaction((LOGIND,), ("systemctl", "kill", "--signal=HUP", "systemd-logind.service")),
        ),
        options=RoleOptions(busy_ok=wish.busy_ok),
    )
