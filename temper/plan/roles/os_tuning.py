"""Limits, kernel parameters and the kernel's values in /sys for GPU jobs. See docs/operate/tuning.md."""

from __future__ import annotations

from temper.plan.node_plan import PlannedSetting, Reaction, RoleOptions, RolePlan, Stage
from temper.plan.role_variables import argument_specs
from temper.plan.roles.context import Context
from temper.plan.roles.settings import file, package, render, sysctl, sysctl_file, unit
from temper.plan.strictness import EXACTLY, order_of
from temper.plan.tuning import KEEP, RUNNING, kernel_values, network_sysctls
from temper.plan.wanted import Kind, UnitWanted

ROLE = "os_tuning"
MANAGER = "/etc/systemd/system.conf.d/90-temper.conf"
LOGIND = "/etc/systemd/logind.conf.d/90-temper.conf"
AT_BOOT = "/etc/tmpfiles.d/temper-tuning.conf"
NVME_RULE = "/etc/udev/rules.d/90-temper-nvme.rules"
UNIT = "/etc/systemd/system/temper-os-tuning.service"
SHM = "/dev/shm"  # noqa: S108 - where processes of a job share memory
PEERMEM = "/etc/modules-load.d/temper-peermem.conf"
IRQBALANCE = "irqbalance.service"
RDMA_PACKAGES = {
    "apt": ("rdma-core", "ibverbs-providers", "ibverbs-utils", "infiniband-diags"),
    "dnf": ("rdma-core", "libibverbs", "libibverbs-utils", "infiniband-diags"),
}
# Also where the files go because nobody asks for them any more.
REACTIONS = (
    Reaction((MANAGER,), ("systemctl", "daemon-reexec")),
    Reaction((LOGIND,), ("systemctl", "kill", "--signal=HUP", "systemd-logind.service")),
    # A module that is in use stays until the next boot.
    Reaction(
        (PEERMEM,),
        (
            "sh",
            "-c",
            f"if [ -e {PEERMEM} ]; then modprobe nvidia-peermem; else modprobe -r -q nvidia-peermem || :; fi",
        ),
    ),
)


def role_plan(context: Context) -> RolePlan:
    """Return what the operator wants of the operating system, as far as this node has it."""
    wish = context.variables.os_tuning
    absent = wish.state == "absent"
    return RolePlan(
        ROLE,
        Stage.TUNE,
        ()
        if absent
        else (
            # Also what sets fs.nr_open at boot is there before the limits that need it.
            *parameters(context),
            *limits(context),
            *values_of_the_kernel(context),
            *interrupts(context),
            *rdma(context),
        ),
        REACTIONS,
        RoleOptions(busy_ok=wish.busy_ok, absent=absent),
    )


def limits(context: Context) -> tuple[PlannedSetting, ...]:
    """Limits of logins and services."""
    wish = context.variables.os_tuning
    values = {"memlock": wish.memlock, "nofile": wish.nofile, "stack_kib": wish.stack_kib}
    return (
        file(
            "/etc/security/limits.d/90-temper.conf",
            render(ROLE, "limits.conf", **values),
            "NCCL and RDMA pin memory, data loaders open many files",
        ),
        file(MANAGER, render(ROLE, "systemd.conf", **values), "Limits of logins do not reach services"),
        file(
            LOGIND,
            render(ROLE, "logind.conf"),
            "Else the shared memory of a user's job goes when the login ends",
        ),
    )


def parameters(context: Context) -> tuple[PlannedSetting, ...]:
    """Kernel parameters, now and at every boot."""
    wish = context.variables.os_tuning
    wanted = network_sysctls(wish) | wish.sysctls
    why = "The operator's tuning for GPU jobs"
    # What the operator has written is made as it is. Where it is the role's choice, a larger value stays.
    own = argument_specs()[ROLE]["argument_specs"]["main"]["options"]["os_tuning_sysctls"]["default"]
    orders = {
        name: order
        for name, value in wanted.items()
        if own.get(name) == value and (order := order_of(Kind.SYSCTL, name))
    }
    return (
        # Sorts after hardening files, so that tuning wins where both set a parameter.
        file("/etc/sysctl.d/95-temper-tuning.conf", sysctl_file(wanted), why, orders=orders),
        *(sysctl(name, value, why, orders.get(name, EXACTLY)) for name, value in wanted.items()),
    )


def values_of_the_kernel(context: Context) -> list[PlannedSetting]:
    """Return values in /sys and the size of /dev/shm.

    They are set now, by a unit at every boot, and by udev for drives that come later.

    The unit is for drives, too: of those with several paths, udev is not told of the paths.
    """
    wish = context.variables.os_tuning
    values = kernel_values(wish, context.node.tunables)
    shm = wish.shm if context.node.tunables.shm else ""
    rules = [one for one in values if one.attribute]
    why = "The next boot forgets it"
    settings: list[PlannedSetting] = []
    if rules:
        rule = render(ROLE, "nvme.rules", rules=rules)
        settings.append(file(NVME_RULE, rule, "Drives that come later get it, too"))
    if values:
        settings.append(file(AT_BOOT, render(ROLE, "tmpfiles.conf", values=values), why))
    if values or shm:
        text = render(ROLE, "temper-os-tuning.service", path=AT_BOOT if values else "", shm=shm, folder=SHM)
        settings.append(file(UNIT, text, why))
        restart_on = [*([AT_BOOT] if values else []), UNIT]
        settings.append(unit("temper-os-tuning", why, restart_on=restart_on))
    settings += [PlannedSetting(Kind.SYSFS, one.pattern, one.why, wanted=one.value) for one in values]
    if shm:
        workers = "The workers of data loaders hand over their batches there"
        settings.append(PlannedSetting(Kind.TMPFS, SHM, workers, wanted=shm))
    return settings


def interrupts(context: Context) -> list[PlannedSetting]:
    """Return who spreads interrupts over the CPUs."""
    wish = context.variables.os_tuning.irqbalance
    if wish == KEEP:
        return []
    if wish == RUNNING:
        why = "The operator wants interrupts spread over the CPUs"
        return [package("irqbalance", why), unit(IRQBALANCE, why)]
    if not context.node.tunables.irqbalance:
        return []
    why = "The operator places interrupts"
    return [PlannedSetting(Kind.UNIT, IRQBALANCE, why, wanted=UnitWanted(on=False))]


def rdma(context: Context) -> list[PlannedSetting]:
    """Return the distribution's RDMA programs where no vendor's are, and NVIDIA's module for both."""
    wish, node = context.variables.os_tuning, context.node.tunables
    if not node.rdma:
        return []
    names = RDMA_PACKAGES.get(context.plan.package_manager or "", ()) if wish.rdma and not node.ofed else ()
    settings = [package(name, "Programs reach RDMA adapters through these libraries") for name in names]
    if wish.peermem:
        why = "With an OFED, adapters reach the memory of GPUs through this module"
        settings.append(file(PEERMEM, "# Managed by Temper.\nnvidia-peermem\n", why))
    return settings
