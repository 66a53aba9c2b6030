"""What each role sets on a node: a module for each, with one pure function `role_plan(context)`.

The same context gives the same plan: nothing here reads the node, the inventory or the network, and of this
machine's files only the roles' templates.
"""

from __future__ import annotations

from dataclasses import replace

from temper.plan.expectation import expectation
from temper.plan.image import of_image
from temper.plan.jump_hosts import plan_line
from temper.plan.node_plan import NodePlan
from temper.plan.os_systems import systems
from temper.plan.roles import (
    admin_accounts,
    compute_environment,
    container_engines,
    firewall,
    gpu_settings,
    monitoring,
    nvidia_stack,
    os_hardening,
    os_tuning,
    profiling_tools,
    pull,
    ssh_hardening,
)
from temper.plan.roles.context import Context
from temper.plan.roles.foretold import foretold
from temper.plan.text import waiver_text

# In the order in which they are carried out. The firewall comes before SSH, so that a new port is open when
# sshd moves there, and the ways in are proven before the rest of the system is hardened.
ROLES = (
    nvidia_stack,
    container_engines,
    profiling_tools,
    gpu_settings,
    compute_environment,
    os_tuning,
    monitoring,
    pull,
    admin_accounts,
    firewall,
    ssh_hardening,
    os_hardening,
)


def complete(context: Context) -> NodePlan:
    """Return the context's plan with what roles set, hardening waives, and validation expects.

    To be called last: the package manager's simulation may have changed the driver's version.
    """
    wanted = context.variables.os_hardening
    waived = context.waived if wanted.state == "present" else ()
    roles = tuple(role.role_plan(context) for role in ROLES)
    text = [context.plan.text, *foretold(context, roles)]
    if context.gpus and (words := compute_environment.slurm_gres(context)):
        text.append(f"slurm.conf needs: GresTypes=gpu, and Gres={words} in the line of this node")
    text += [plan_line(context.jump)] if context.jump else []
    system = systems().get(context.plan.system or "")
    if waived and system and (edition := system.edition_of(wanted.profile)):
        text.append(waiver_text(wanted.profile, edition, waived))
    text += context.programs_said.lines()
    text += [f"warning: {warning}" for warning in context.plan.warnings]
    return replace(
        context.plan,
        text="\n".join(text),
        roles=tuple(map(of_image, roles)) if context.plan.image else roles,
        waived=waived,
        expectation=expectation(context.plan, context.variables, context.models),
    )
