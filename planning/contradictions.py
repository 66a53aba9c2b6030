"""What an inventory says twice, and differently: found before anything is planned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

# Groups whose files of variables are a node's profile; inventory/example has some.
PROFILE = "profile_"


def profile_problems(host_variables: Mapping[str, Any]) -> list[str]:
    """A sentence where a node is in several profiles: which values it got would be chance."""
    groups = sorted(str(group) for group in host_variables.get("group_names") or ())
    profiles = [group for group in groups if group.startswith(PROFILE)]
    if len(profiles) <= 1:
        return []
    name = host_variables.get("inventory_hostname", "this node")
    return [
        f"{name} is in the groups {' and '.join(profiles)}, of which one would hide the values of another; "
        "a node has one profile: take it out of the other groups"
    ]
