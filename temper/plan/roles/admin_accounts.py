"""Named administrators with their SSH keys and sudo."""

from __future__ import annotations

from temper.plan.node_plan import PlannedSetting, RoleOptions, RolePlan, Stage
from temper.plan.roles.context import Context
from temper.plan.wanted import AccountWanted, Kind

ROLE = "admin_accounts"


def role_plan(context: Context) -> RolePlan:
    """Return an account for each administrator."""
    wish = context.variables.admin_accounts
    options = RoleOptions(rollback_after_s=wish.rollback_after_s, absent=wish.state == "absent")
    if options.absent:
        return RolePlan(ROLE, Stage.HARDEN, options=options)
    return RolePlan(
        ROLE,
        Stage.HARDEN,
        tuple(
            PlannedSetting(
                Kind.ACCOUNT,
                user.name,
                "Each administrator has an account and keys of their own",
                way_in=True,
                wanted=AccountWanted(user.keys, user.sudo, user.groups, user.state),
            )
            for user in wish.users
        ),
        options=options,
    )
