"""The GPUs for Docker, containerd, CRI-O and Podman."""

from __future__ import annotations

from dataclasses import asdict

from temper.plan.node_plan import PlannedSetting, RoleOptions, RolePlan, Stage
from temper.plan.roles.context import Context
from temper.plan.roles.settings import package, parameters
from temper.plan.wanted import EngineChoice, EngineParameters, Kind

ROLE = "container_engines"
TOOLKIT = "nvidia-container-toolkit"


def role_plan(context: Context) -> RolePlan:
    """Engines that are asked for, and how all of them get the GPUs."""
    wish = context.variables.container_engines
    absent = wish.state == "absent"
    options = RoleOptions(busy_ok=wish.busy_ok, absent=absent)
    choice: EngineChoice = {"engines": wish.manage, "exclude": wish.exclude}
    which = parameters(Kind.CONTAINER_ENGINE, "The operator names the engines", choice)
    if absent:
        return RolePlan(ROLE, Stage.PROVISION, which, options=options)
    settings: list[PlannedSetting] = [
        package(name, "The operator wants this engine") for name in wish.install
    ]
    if (
        "docker.io" in wish.install
        and context.node.os.id == "debian"
        and context.node.os.codename != "bookworm"
    ):
        settings.append(package("docker-cli", "Since Debian 13 docker.io only recommends its command"))
    limits = {"memlock": wish.ulimits.memlock, "stack": wish.ulimits.stack, "nofile": wish.ulimits.nofile}
    wanted: EngineParameters = {
        "default_runtime": wish.default_runtime,
        "cdi": wish.cdi,
        "shm_size": wish.shm_size,
        "ulimits": {name: limit for name, limit in limits.items() if limit is not None},
        "toolkit": {name: value for name, value in asdict(wish.toolkit).items() if value is not None},
        "toolkit_expected": TOOLKIT in context.plan.packages,
    }
    why = "Containers get the GPUs, and the limits that NCCL needs"
    settings += parameters(Kind.CONTAINER_ENGINE, why, wanted)
    return RolePlan(ROLE, Stage.PROVISION, (*settings, *which), options=options)
