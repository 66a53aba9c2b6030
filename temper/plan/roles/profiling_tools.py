"""Profilers of GPUs and system, and who may use them."""

from __future__ import annotations

from temper.plan.node_plan import PlannedSetting, RoleOptions, RolePlan, Stage
from temper.plan.roles.context import Context
from temper.plan.roles.settings import file, package, rebuild_initramfs, sysctl, sysctl_file, unit

ROLE = "profiling_tools"
COUNTERS = "/etc/modprobe.d/temper-profiling.conf"
COUNTERS_TEXT = """\
# Managed by Temper. Users without privileges may read the GPU's performance counters.
options nvidia NVreg_RestrictProfilingToAdminUsers=0
"""
PARANOID = "kernel.perf_event_paranoid"
RECORDERS = ("sysstat", "sysstat-collect.timer", "sysstat-summary.timer", "atop")


def role_plan(context: Context) -> RolePlan:
    """Return packages, recorders and permissions, where they are wanted."""
    wish = context.variables.profiling_tools
    # Also where the file goes because the tools are no longer wanted.
    reactions = (rebuild_initramfs(COUNTERS),)
    options = RoleOptions(busy_ok=wish.busy_ok, absent=not wish.install)
    if not wish.install:
        return RolePlan(ROLE, Stage.PROVISION, reactions=reactions, options=options)
    level = wish.perf_event_paranoid
    measures = "It says who may measure with perf"
    settings: list[PlannedSetting] = [
        *(package(name, "The operator wants profilers") for name in packages(context)),
        file(
            "/etc/default/sysstat",
            '# Managed by Temper.\nENABLED="true"\n',
            "Debian's package switches its units off at an upgrade where this says false",
        ),
        file(
            COUNTERS,
            COUNTERS_TEXT if wish.gpu_counters else None,
            "It says who may read the GPU's performance counters",
        ),
        file(
            "/etc/sysctl.d/96-temper-profiling.conf",
            None if level is None else sysctl_file({PARANOID: level}),
            measures,
        ),
    ]
    if level is not None:
        settings.append(sysctl(PARANOID, level, measures))
    settings += [unit(name, "What led to a slow job is on record") for name in RECORDERS]
    return RolePlan(ROLE, Stage.PROVISION, tuple(settings), reactions, options)


def packages(context: Context) -> tuple[str, ...]:
    """Return the profilers' packages.

    NVIDIA names its own after the CUDA release, Debian has one version of each; perf has a name in each
    distribution.
    """
    release = (context.plan.cuda or "").replace(".", "-")
    nsight: tuple[str, ...] = ("nsight-systems", "nsight-compute")
    if context.plan.source == "nvidia":
        # Without a stack, nobody says which.
        nsight = (f"cuda-nsight-systems-{release}", f"cuda-nsight-compute-{release}") if release else ()
    perf = {"debian": "linux-perf", "ubuntu": f"linux-tools-{context.node.kernel.release}"}.get(
        context.node.os.id, "perf"
    )
    return (*nsight, perf, "atop", "sysstat")
