"""What is wrong with the machine itself, whatever is to be installed on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from temper.plan.distributions import Distribution
    from temper.plan.facts import NodeFacts
    from temper.plan.variables import Variables

GIB = 2**30
LEAST_INTERVAL_S = 60


def disk_problems(node: NodeFacts, variables: Variables, *, settled: bool) -> list[str]:
    """Disks that are full. A node that has the stack needs no room for it."""
    needed = variables.preflight.minimum_free_gib
    # What goes to /usr also passes through /var/cache; a separate small /boot is no target.
    return [
        f"{disk.path} has {disk.free_bytes / GIB:.1f} GiB free, the stack needs {needed} GiB "
        "there; free space or lower preflight_minimum_free_gib"
        for disk in node.disks
        if not settled and disk.path != "/boot" and disk.free_bytes < needed * GIB
    ]


def signs_modules(node: NodeFacts, mok_sha256: str) -> bool:
    """Whether modules are signed with the operator's key, because the firmware accepts nothing else."""
    return node.secure_boot == "enabled" and mok_sha256 in node.mok_enrolled


def secure_boot_problems(
    node: NodeFacts, variables: Variables, distribution: Distribution, mok_sha256: str, *, signed: bool
) -> list[str]:
    """With Secure Boot, the kernel loads only modules that an enrolled key has signed.

    `mok_sha256` is the SHA-256 of the operator's certificate in DER, empty where there is none. `signed` says
    that the distribution has a driver with modules of its own signature.
    """
    if node.secure_boot != "enabled":
        return []
    if mok_sha256 and not variables.nvidia_stack.mok_private_key:
        return [
            "Secure Boot is enabled, and nvidia_stack_mok_certificate is set without "
            "nvidia_stack_mok_private_key: a certificate alone signs nothing; set both or neither"
        ]
    if variables.preflight.secure_boot_ok or signs_modules(node, mok_sha256):
        return []
    if mok_sha256:
        return [
            "Secure Boot is enabled, and the certificate nvidia_stack_mok_certificate (SHA-256 "
            f"{mok_sha256[:16]}...) is not enrolled on this node, so that the kernel would refuse the "
            "modules it signs. Copy it there in DER form; as root: mokutil --import FILE.der (choose a "
            "password); reboot, and at the console choose Enroll MOK and give the password; run again"
        ]
    own = "set nvidia_stack_source: distro, whose modules the distribution has signed; or " if signed else ""
    return [
        "Secure Boot is enabled, and the kernel would refuse modules that DKMS builds. One of: "
        f"{own}make a key pair for the fleet, enrol its certificate on each node (mokutil --import FILE.der, "
        "reboot, Enroll MOK at the console) and set nvidia_stack_mok_certificate and "
        "nvidia_stack_mok_private_key; or enrol the node's own DKMS key (mokutil --import "
        f"{distribution.dkms_certificate}, the same way) and set preflight_secure_boot_ok: true; or disable "
        "Secure Boot in the firmware"
    ]


def monitoring_problems(variables: Variables, distribution: Distribution) -> list[str]:
    """What keeps a node from being monitored as the operator wants it."""
    wish = variables.monitoring
    if not wish.enabled:
        return []
    found = []
    if distribution.package_manager != "apt":
        found.append(
            f"monitoring_enabled needs the exporter of Debian or Ubuntu, and {distribution.name} is neither; "
            "leave it off for this node"
        )
    if wish.interval_s < LEAST_INTERVAL_S:
        found.append(
            f"monitoring_interval_s is {wish.interval_s}, and a look at a node may take a minute; set it to "
            f"{LEAST_INTERVAL_S} or more"
        )
    return found


def busy_problems(node: NodeFacts, variables: Variables, *, settled: bool) -> list[str]:
    """A driver does not change under a job."""
    busy = node.nvidia.compute_processes
    if not busy or settled or variables.nvidia_stack.busy_ok:
        return []
    return [
        f"the driver would change while {len(busy)} process(es) use the GPUs ({'; '.join(busy[:3])}); "
        "drain the node first, or set nvidia_stack_busy_ok: true"
    ]
