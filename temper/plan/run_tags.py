"""Decide by the tags of a run whether it carries out a role."""

from __future__ import annotations

from collections.abc import Collection

from temper.plan.node_plan import Stage

#: Roles that preflight refuses a run for, with the stages whose tags select them.
STAGES = {
    "nvidia_stack": Stage.PROVISION,
    **dict.fromkeys(("admin_accounts", "firewall", "ssh_hardening", "os_hardening"), Stage.HARDEN),
}


def reaches(role: str, run_tags: Collection[str], skipped_tags: Collection[str]) -> bool:
    """Return whether a run with these tags carries out a role; `all` and `tagged` are Ansible's."""
    own = {STAGES[role], role, "all", "tagged"}
    return bool(own & {*run_tags}) and not own & {*skipped_tags}
