"""Persistence mode, clocks, power limits, modes and MIG layouts of the GPUs, now and at every boot."""

from __future__ import annotations

import json

from temper.plan.convert import plain
from temper.plan.node_plan import RoleOptions, RolePlan, Stage
from temper.plan.roles import nvidia_stack
from temper.plan.roles.context import Context
from temper.plan.roles.settings import file, parameters, render, unit
from temper.plan.wanted import GpuParameters, Kind

ROLE = "gpu_settings"
WANTED = "/etc/temper/gpu-settings.json"
UNIT = "/etc/systemd/system/temper-gpu-settings.service"
PROGRAMS = "/usr/local/lib/temper"
PROGRAM = "gpu_settings.py"
IMPORTED = ("holders.py", "mig.py", "smi.py", "process.py")


def role_plan(context: Context) -> RolePlan:
    """Return the unit that applies the settings at boot, and the settings themselves."""
    wish = context.variables.gpu_settings
    if wish.state == "absent" or nvidia_stack.taken_back(context.variables):
        return RolePlan(ROLE, Stage.TUNE, options=RoleOptions(busy_ok=wish.busy_ok, absent=True))
    wanted = wanted_settings(context)
    service = render(ROLE, "temper-gpu-settings.service", python=context.python, mig=wanted.get("mig"))
    at_boot = "No such setting survives a reboot"
    programs = [
        file(
            f"{PROGRAMS}/{name}", context.programs[name], at_boot, mode="0755" if name == PROGRAM else "0644"
        )
        for name in (PROGRAM, *IMPORTED)
    ]
    return RolePlan(
        ROLE,
        Stage.TUNE,
        (
            file(WANTED, json.dumps(plain(wanted), indent=4, sort_keys=True) + "\n", at_boot),
            *programs,
            file(UNIT, service, at_boot),
            *(unit(name, "The hardware needs it to compute") for name in context.plan.services),
            unit("temper-gpu-settings", at_boot, restart_on=[WANTED, UNIT]),
            *parameters(Kind.GPU, "GPUs of one model run alike, and measure alike", wanted),
        ),
        options=RoleOptions(busy_ok=wish.busy_ok),
    )


def wanted_settings(context: Context) -> GpuParameters:
    """Return what the GPUs shall have; the program at boot reads the same."""
    wish = context.variables.gpu_settings
    found: GpuParameters = {
        "clocks": wish.clocks,
        "power_limit_w": whole(wish.power_limit_w),
        "locked_clocks": context.plan.locked_clocks,
    }
    if (percent := whole(wish.power_limit_percent)) is not None:
        found["power_limit_percent"] = percent
    if wish.compute_mode is not None:
        found["compute_mode"] = wish.compute_mode
    if wish.ecc is not None:
        found["ecc"] = wish.ecc
    if wish.mig is not None:
        # The second says what a run may do, and is of no use without layouts.
        found |= {"mig": wish.mig, "mig_change_ok": bool(wish.mig) and wish.mig_change_ok}
    return found


def whole(number: float | None) -> float | None:
    """Return a number as the operator wrote it: 300 and not 300.0."""
    return int(number) if number is not None and number.is_integer() else number
