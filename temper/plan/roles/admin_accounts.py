"""Named administrators with their SSH keys and sudo."""

from __future__ import annotations

from typing import TYPE_CHECKING

from temper.plan.convert import plain
from temper.plan.node_plan import Kind, PlannedSetting, RoleOptions, RolePlan, Stage

if TYPE_CHECKING:
    from temper.plan.roles.context import Context

ROLE = "admin_accounts"


def role_plan(context: Context) -> RolePlan:
    """An account for each administrator."""
    wish = context.variables.admin_accounts
    options = RoleOptions(rollback_after_s=wish.rollback_after_s, absent=wish.state == "absent")
    if options.absent:
        return RolePlan(ROLE, Stage.HARDEN, options=options)
    accounts = {user.name: plain(user) for user in wish.users}
    return RolePlan(
        ROLE,
        Stage.HARDEN,
        tuple(
            PlannedSetting(
                Kind.ACCOUNT,
                name,
                {key: value for key, value in account.items() if key != "name"},
                "Each administrator has an account and keys of their own",
                way_in=True,
            )
            for name, account in accounts.items()
        ),
        options=options,
    )
