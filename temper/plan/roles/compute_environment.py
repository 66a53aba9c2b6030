"""NCCL's settings and thread counts, by every way in which a job starts: docs/operate/jobs.md says why."""

from __future__ import annotations

from temper.plan.environment import portable
from temper.plan.node_plan import PlannedSetting, Reaction, RoleOptions, RolePlan, Stage
from temper.plan.roles.container_engines import TOOLKIT
from temper.plan.roles.context import PYTHON, Context
from temper.plan.roles.settings import file, render
from temper.plan.slurm import cgroup_value, gres, gres_lines

ROLE = "compute_environment"
PROGRAMS = "/usr/local/lib/temper"
MANAGER = "/etc/systemd/system.conf.d/91-temper-compute.conf"
TASK_PROLOG = f"{PROGRAMS}/slurm-task-prolog"
RANK = "/usr/local/bin/temper-rank"
CDI_SERVICE = "nvidia-cdi-refresh.service"
CDI_PROGRAM = f"{PROGRAMS}/cdi_nccl.py"
CDI_DROP_IN = f"/etc/systemd/system/{CDI_SERVICE}.d/50-temper.conf"
CONTAINER_NCCL = "/etc/temper/container-nccl.conf"
# Drop-ins of units need no reaction to be read; nothing is renewed where the toolkit is not installed.
REACTIONS = (
    Reaction((MANAGER,), ("systemctl", "daemon-reexec")),
    Reaction(
        (CDI_DROP_IN, CDI_PROGRAM, CONTAINER_NCCL),
        ("sh", "-c", f"! systemctl cat {CDI_SERVICE} >/dev/null 2>&1 || systemctl restart {CDI_SERVICE}"),
    ),
)


def role_plan(context: Context) -> RolePlan:
    """Return the files with the settings. What is no longer wanted returns to what it was."""
    wish = context.variables.compute_environment
    absent = wish.state == "absent"
    return RolePlan(
        ROLE,
        Stage.TUNE,
        ()
        if absent
        else (*always(context), *where_wanted(context), *for_slurm(context), *in_containers(context)),
        REACTIONS,
        RoleOptions(busy_ok=wish.busy_ok, absent=absent),
    )


def always(context: Context) -> tuple[PlannedSetting, ...]:
    """Return what is read only by NCCL, or by those who ask for it."""
    environment = context.plan.environment
    why = "A rank whose command asks for it runs on the CPUs beside its GPU"
    rank = context.programs["rank.py"].replace(PYTHON, context.python, 1)
    return (
        file(
            "/etc/nccl.conf",
            render(ROLE, "nccl.conf", nccl=environment.nccl),
            f"NCCL's interface: {environment.why}"
            if environment.why
            else "NCCL chooses its interface by the inventory's address",
        ),
        file(
            "/etc/temper/compute.env",
            render(ROLE, "compute.env", omp_num_threads=environment.omp_num_threads),
            "Processes share the cores instead of fighting for them",
        ),
        file(RANK, rank, why, mode="0755"),
    )


def where_wanted(context: Context) -> list[PlannedSetting]:
    """Return the ways that the operator has asked for, and CUDA's programs for login shells."""
    wish = context.variables.compute_environment
    threads = {"omp_num_threads": context.plan.environment.omp_num_threads}
    settings = []
    if wish.profile:
        why = "The operator wants the thread counts in what users start"
        settings += [
            file("/etc/profile.d/temper-compute.sh", render(ROLE, "profile.sh", **threads), why),
            file(
                "/etc/environment.d/50-temper-compute.conf", render(ROLE, "environment.conf", **threads), why
            ),
        ]
    if wish.services:
        why = "The operator wants the thread counts in these services"
        names = sorted({name if "." in name else f"{name}.service" for name in wish.services})
        settings.append(file(MANAGER, render(ROLE, "manager.conf", **threads), why))
        settings += [
            file(f"/etc/systemd/system/{name}.d/50-temper-compute.conf", render(ROLE, "service.conf"), why)
            for name in names
        ]
    if wish.slurm_task_prolog:
        text = render(ROLE, "slurm-task-prolog.sh", path=TASK_PROLOG, **threads)
        settings.append(file(TASK_PROLOG, text, "Slurm's tasks get the thread counts", mode="0755"))
    if wish.cuda_path and any(name.startswith("cuda-toolkit-") for name in context.plan.packages):
        settings.append(
            file("/etc/profile.d/temper-cuda.sh", render(ROLE, "cuda.sh"), "Users find nvcc, nsys and ncu")
        )
    return settings


def slurm_gres(context: Context) -> str:
    """Return what slurm.conf has to say of this node's GPUs; empty where Slurm is not told of them."""
    wish = context.variables.compute_environment
    if wish.slurm_gpus == "none" or wish.state == "absent":
        return ""
    layouts = (context.variables.gpu_settings.mig or {}).values()
    divided = any(isinstance(layout, list) for layout in layouts)
    return gres(context.gpus, typed=wish.slurm_gpus == "devices", divided=divided)


def for_slurm(context: Context) -> list[PlannedSetting]:
    """Return the node's half of Slurm's configuration for GPUs. Its daemons are the operator's to restart."""
    wish, settings = context.variables.compute_environment, []
    if words := slurm_gres(context):
        typed = wish.slurm_gpus == "devices"
        lines = (
            ["AutoDetect=off", *gres_lines(context.gpus, context.node.cpu.sockets)]
            if typed
            else ["AutoDetect=nvml"]
        )
        text = render(ROLE, "gres.conf", lines=lines, gres=words)
        why = "Slurm gives jobs the GPUs that the node has"
        settings.append(file(f"{wish.slurm_directory}/gres.conf", text, why))
    if wish.slurm_cgroup:
        values = {name: cgroup_value(value) for name, value in wish.slurm_cgroup.items()}
        text = render(ROLE, "cgroup.conf", values=values)
        why = "The operator says how Slurm keeps jobs apart"
        settings.append(file(f"{wish.slurm_directory}/cgroup.conf", text, why))
    return settings


def in_containers(context: Context) -> tuple[PlannedSetting, ...]:
    """NCCL's settings in the CDI specification, where there are some that hold in a container."""
    wish = context.variables.compute_environment
    engines = context.variables.container_engines
    nccl = context.plan.environment.nccl
    given = {"none": {}, "portable": portable(nccl), "all": nccl}[wish.container_nccl]
    if not given or not engines.cdi or engines.state == "absent" or TOOLKIT not in context.plan.packages:
        return ()
    why = "Containers with a GPU get NCCL's settings, too"
    return (
        file(CONTAINER_NCCL, render(ROLE, "nccl.conf", nccl=given), why),
        file(CDI_PROGRAM, context.programs["cdi_nccl.py"], why, mode="0755"),
        file(CDI_DROP_IN, render(ROLE, "cdi.conf", python=context.python, program=CDI_PROGRAM), why),
    )
