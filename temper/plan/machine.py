"""What is wrong with the machine itself, whatever is to be installed on it."""

from __future__ import annotations

from temper.base.nodes import duration
from temper.plan.distributions import Distribution
from temper.plan.facts import NodeFacts
from temper.plan.model import Target
from temper.plan.refusals import Refusal, refusal
from temper.plan.variables import Variables

GIB = 2**30
LEAST_INTERVAL_S = 60
ALWAYS_WRITTEN = ("/", "/var")
# An answer may be under way for minutes where the controller has much to do.
CLOCK_OFF_S = 300


def disk_problems(node: NodeFacts, variables: Variables, *, settled: bool) -> list[Refusal]:
    """Disks that are full. A node that has the stack needs no room for it."""
    needed = variables.preflight.minimum_free_gib
    # What goes to /usr also passes through /var/cache; a separate small /boot is no target.
    return [
        refusal("disk-full", path=disk.path, free_gib=disk.free_bytes / GIB, needed_gib=needed)
        for disk in node.disks
        if not settled and disk.path != "/boot" and disk.free_bytes < needed * GIB
    ]


def state_problems(node: NodeFacts) -> list[Refusal]:
    """Why nothing can be changed there now: nobody can write, or cloud-init may change it, too."""
    # Of others, a hook of apt's may make them writable for each installation.
    problems = [
        refusal("disk-read-only", path=disk.path)
        for disk in node.disks
        if disk.read_only and disk.path in ALWAYS_WRITTEN
    ]
    return [*problems, *([refusal("first-boot")] if node.being_set_up else [])]


def clock_warnings(node: NodeFacts, target: Target) -> list[str]:
    """Say that two clocks differ: what is downloaded would seem to be expired, or from the future."""
    ahead_s = node.clock_s - target.now_s
    if not node.clock_s or not target.now_s or abs(ahead_s) <= CLOCK_OFF_S:
        return []
    side = "ahead of" if ahead_s > 0 else "behind"
    return [
        f"the node's clock is {duration(abs(ahead_s))} {side} this machine's: set the wrong one right, or "
        "apt and TLS may take repositories for expired, or for not valid yet"
    ]


def signs_modules(node: NodeFacts, mok_sha256: str) -> bool:
    """Return whether modules are signed with the operator's key, because the firmware demands it."""
    return node.secure_boot == "enabled" and mok_sha256 in node.mok_enrolled


def secure_boot_problems(
    node: NodeFacts, variables: Variables, distribution: Distribution, mok_sha256: str, *, signed: bool
) -> list[Refusal]:
    """With Secure Boot, the kernel loads only modules that an enrolled key has signed.

    `mok_sha256` is the SHA-256 of the operator's certificate in DER, empty where there is none. `signed` says
    that the distribution has a driver with modules of its own signature.
    """
    if node.secure_boot != "enabled":
        return []
    if mok_sha256 and not variables.nvidia_stack.mok_private_key:
        return [refusal("secure-boot-key-missing")]
    if variables.preflight.secure_boot_ok or signs_modules(node, mok_sha256):
        return []
    if mok_sha256:
        return [refusal("secure-boot-not-enrolled", sha256=mok_sha256)]
    certificate = distribution.dkms_certificate
    return [refusal("secure-boot-unsigned", signed=signed, dkms_certificate=certificate)]


def monitoring_problems(variables: Variables, distribution: Distribution) -> list[Refusal]:
    """Return what keeps a node from being monitored as the operator wants it."""
    wish = variables.monitoring
    if not wish.enabled:
        return []
    found = []
    if distribution.package_manager != "apt":
        found.append(refusal("monitoring-system", system=distribution.name))
    if wish.interval_s < LEAST_INTERVAL_S:
        found.append(refusal("monitoring-interval", interval_s=wish.interval_s, least_s=LEAST_INTERVAL_S))
    return found


def busy_problems(node: NodeFacts, variables: Variables, *, settled: bool) -> list[Refusal]:
    """Return the refusals of a node whose driver would change under a job."""
    busy = node.nvidia.compute_processes
    if not busy or settled or variables.nvidia_stack.busy_ok:
        return []
    return [refusal("gpus-busy", count=len(busy), processes=busy[:3])]
