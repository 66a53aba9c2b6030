"""The controls of data/os_controls, as the profile and the operator's waivers have them."""

from __future__ import annotations

from pathlib import PurePath

from temper.plan.node_plan import Reaction, RoleOptions, RolePlan, Stage
from temper.plan.os_controls import SYSCTL_FILE
from temper.plan.os_systems import hardened, systems
from temper.plan.refusals import Refusal, refusal, texts
from temper.plan.roles.context import Context
from temper.plan.variables import OsHardening

ROLE = "os_hardening"
UNHARDENED = "hardening-system"
UNMEASURED = "hardening-profile"
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


def system_refusals(system: str, wish: OsHardening) -> list[Refusal]:
    """Return why a run that hardens this system must not begin."""
    if wish.state == "absent" or system in hardened(wish.profile):
        return []
    if system in systems():
        return [refusal(UNMEASURED, system=system, profile=wish.profile, known=hardened(wish.profile))]
    return [refusal(UNHARDENED, system=system, known=[*systems()])]


def system_warnings(system: str, wish: OsHardening) -> tuple[str, ...]:
    """Return what a run that hardens this system should be told first."""
    unproven = systems()[system].unproven if system in systems() and wish.state != "absent" else ""
    return (unproven,) if unproven else ()


def role_plan(context: Context) -> RolePlan:
    """Return the settings of all controls; none where the hardening is to be taken back."""
    wish = context.variables.os_hardening
    absent = wish.state == "absent"
    options = RoleOptions(
        busy_ok=wish.busy_ok,
        atomic=True,
        absent=absent,
        sysctl_file=PurePath(SYSCTL_FILE).name,
        # Preflight refuses a run that reaches this role; the plan may be carried out by another.
        obstacle="; ".join(texts(system_refusals(context.system, wish))),
    )
    return RolePlan(
        ROLE,
        Stage.HARDEN,
        () if absent else context.hardening.settings,
        REACTIONS,
        options,
    )
