"""The controls of data/os_controls, as the profile and the operator's waivers have them."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING

from temper.plan.node_plan import Reaction, RoleOptions, RolePlan, Stage
from temper.plan.os_controls import SYSCTL_FILE

if TYPE_CHECKING:
    from temper.plan.roles.context import Context

# What reads its files anew only when it is told to, and only while it runs.
REACTIONS = (
    Reaction(
        ("/etc/systemd/journald.conf.d/",),
        ("systemctl", "restart", "systemd-journald.service"),
        unit="systemd-journald.service",
    ),
    Reaction(
        ("/etc/audit/rules.d/",),
        # Rules that somebody has locked (-e 2) cannot change before the next boot, which reads the new ones.
        ("sh", "-c", "auditctl -s | grep -q '^enabled 2' || augenrules --load"),
        unit="auditd.service",
    ),
    Reaction(
        ("/etc/audit/auditd.conf",),
        ("systemctl", "kill", "--signal=HUP", "auditd.service"),
        unit="auditd.service",
    ),
)


def role_plan(context: Context) -> RolePlan:
    """The settings of all controls; none where the hardening is to be taken back."""
    wish = context.variables.os_hardening
    absent = wish.state == "absent"
    return RolePlan(
        "os_hardening",
        Stage.HARDEN,
        () if absent else context.hardening.settings,
        REACTIONS,
        RoleOptions(busy_ok=wish.busy_ok, atomic=True, absent=absent, sysctl_file=PurePath(SYSCTL_FILE).name),
    )
