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


def obstacle(system: str | None, package_manager: str | None) -> str:
    """Why no control is made for this system; empty where they are, or where nobody knows it."""
    if package_manager in ("apt", None):
        return ""
    return (
        "The controls of os_hardening are made for Debian and what derives from it, and this node has "
        f"{system}. Leave the role out here: --skip-tags os_hardening"
    )


def role_plan(context: Context) -> RolePlan:
    """The settings of all controls; none where the hardening is to be taken back."""
    wish = context.variables.os_hardening
    absent = wish.state == "absent"
    reason = "" if absent else obstacle(context.plan.system, context.plan.package_manager)
    options = RoleOptions(
        busy_ok=wish.busy_ok,
        atomic=True,
        absent=absent,
        sysctl_file=PurePath(SYSCTL_FILE).name,
        obstacle=reason,
    )
    return RolePlan(
        "os_hardening",
        Stage.HARDEN,
        () if absent else context.hardening.settings,
        REACTIONS,
        options,
    )
