"""Driver, CUDA and container toolkit: repositories, packages, files and services."""

from __future__ import annotations

from collections.abc import Iterator

from temper.plan.distributions import package_family
from temper.plan.model import Driver
from temper.plan.node_plan import PlannedSetting, Reaction, RoleOptions, RolePlan, Stage
from temper.plan.roles.context import Context
from temper.plan.roles.settings import file, no_file, package, rebuild_initramfs, render, unit
from temper.plan.variables import Variables
from temper.plan.wanted import DriverWanted, FileWanted, Kind, PinWanted

ROLE = "nvidia_stack"
NOUVEAU = "/etc/modprobe.d/temper-nouveau.conf"
# The pair that DKMS signs modules with. Only nodes with Secure Boot have it.
MOK_KEY = "/var/lib/temper/module-signing/mok.key"
MOK_CERTIFICATE = "/var/lib/temper/module-signing/mok.der"
UNSIGNED = "No module is signed here"

# A unit starts only where its hardware is, so that an image made from this node starts on any other. The
# driver's own list of switches is asked, not /dev: those files appear only when the first client asks.
SWITCHES = "ConditionDirectoryNotEmpty=/proc/driver/nvidia-nvswitch/devices"
LOADED = "ConditionPathExists=/proc/driver/nvidia/version"
# The fabric manager's start script refuses without it (spectrocloud/CanvOS pull request 700, 2026-07-20; and
# NVIDIA/gpu-operator issue 2781), and says so where the kernel has no such module.
UMAD = "/etc/modules-load.d/temper-nvlink5.conf"
LOAD_UMAD = Reaction((UMAD,), ("sh", "-c", f"[ ! -e {UMAD} ] || modprobe ib_umad || :"))
GATED_SERVICES = ("nvidia-fabricmanager", "nvidia-imex", "nvidia-dcgm")


def role_plan(context: Context) -> RolePlan:
    """Return what the role sets; nothing where no driver could be planned."""
    plan = context.plan
    settings: list[PlannedSetting] = []
    absent = taken_back(context.variables)
    if absent:
        # Secrets are not recorded, so that their absence has to be asked for.
        settings = [no_file(MOK_KEY, UNSIGNED)]
    elif plan.driver:
        settings = [
            *repositories(context),
            *signing_pair(context),
            *files(context),
            *packages(context, plan.driver),
            driver(context, plan.driver),
            *(unit(name, "The hardware needs it to compute") for name in plan.services),
        ]
    return RolePlan(
        ROLE,
        Stage.PROVISION,
        tuple(settings),
        reactions=(rebuild_initramfs(NOUVEAU), LOAD_UMAD),
        options=RoleOptions(busy_ok=context.variables.nvidia_stack.busy_ok, absent=absent),
    )


def taken_back(variables: Variables) -> bool:
    """Return whether the node is to have no stack."""
    return variables.nvidia_stack.state == "absent"


def repositories(context: Context) -> Iterator[PlannedSetting]:
    """Yield those of the plan, without sources that would contradict them."""
    planned = {repository.name: repository for repository in context.plan.repositories}
    for name, repository in planned.items():
        yield PlannedSetting(Kind.REPOSITORY, name, "The stack's packages come from it", wanted=repository)
    for path, why in package_family(context.plan.package_manager).refused_sources(planned).items():
        yield file(path, None, why)


def signing_pair(context: Context) -> Iterator[PlannedSetting]:
    """Yield the key that DKMS signs modules with, which a node has only while it needs it."""
    if not context.plan.mok:
        yield no_file(MOK_KEY, UNSIGNED)
        yield file(MOK_CERTIFICATE, None, UNSIGNED)
        return
    source = context.variables.nvidia_stack.mok_private_key
    secret = FileWanted(mode="0600", secret=True, source=source)
    yield PlannedSetting(Kind.FILE, MOK_KEY, "Secure Boot loads only signed modules", wanted=secret)
    yield file(
        MOK_CERTIFICATE, context.mok_certificate, "Secure Boot knows the modules by it", encoding="der"
    )


def files(context: Context) -> Iterator[PlannedSetting]:
    """Yield what keeps nouveau, other versions and automatic upgrades away from the driver."""
    plan = context.plan
    yield file(NOUVEAU, render(ROLE, "nouveau.conf"), "nouveau and the driver cannot share a GPU")
    dkms = render(ROLE, "dkms", key=MOK_KEY, certificate=MOK_CERTIFICATE)
    yield file(
        "/etc/dkms/framework.conf.d/temper.conf", dkms if plan.mok else None, "DKMS signs with our key"
    )
    umad = "# Managed by Temper.\nib_umad\n" if plan.fabric == "nvlink5" else None
    yield file(UMAD, umad, "Through this module the fabric manager reaches NVLink 5 switches")
    for name in GATED_SERVICES:
        switches = name == "nvidia-fabricmanager" and plan.fabric == "nvswitch"
        gate = render(ROLE, "service.conf", condition=SWITCHES if switches else LOADED)
        yield file(
            f"/etc/systemd/system/{name}.service.d/temper.conf",
            gate if name in plan.services else None,
            "The service starts only where its hardware is",
        )
    for own in package_family(plan.package_manager).configuration:
        yield file(own.path, render(ROLE, own.template, pins=plan.pins), own.why)


def packages(context: Context, driver: Driver) -> Iterator[PlannedSetting]:
    """Yield the stack, in one transaction."""
    plan = context.plan
    for name, version in plan.packages.items():
        yield package(name, "The stack is one set of versions", version, held=True)
    for name, version in plan.present.items():
        if name not in plan.packages:
            if name.startswith("linux-image-"):
                yield package(name, "A kernel comes only with its modules", version, held=True)
            else:
                yield package(name, "The stack is built with it", version)
    for pin in plan.pins:
        why = "What the stack depends on stays at the stack's versions"
        yield PlannedSetting(Kind.PIN, pin.packages, why, wanted=PinWanted(pin.version))
    for stream in plan.module_streams:
        why = "dnf offers the driver's packages only in this stream"
        yield PlannedSetting(Kind.MODULE_STREAM, stream.name, why, wanted=stream)
    why = "Whatever has the driver's version changes only with it"
    yield PlannedSetting(Kind.HOLD_VERSION, driver.package_version, why, wanted=True)


def driver(context: Context, driver: Driver) -> PlannedSetting:
    """Return the driver that must be loaded, and built for every kernel."""
    plan = context.plan
    wanted = DriverWanted(
        version=driver.version,
        dkms=driver.dkms,
        package_manager=plan.package_manager,
        mok_certificate=context.mok_certificate if plan.mok else "",
        runtime=plan.runtime,
        kernel=context.node.kernel.release if plan.image else None,
    )
    return PlannedSetting(Kind.DRIVER, "nvidia", "What is loaded must be what is installed", wanted=wanted)
