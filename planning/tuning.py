"""What the operating system of a node can be tuned to, and what it cannot have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from planning.facts import Tunables
    from planning.variables import OsTuning

KEEP = "keep"
AUTO = "auto"
PERFORMANCE = "performance"
HUGEPAGES = "kernel/mm/transparent_hugepage"


@dataclass(frozen=True)
class KernelValue:
    """A value for the files below /sys that match `pattern`.

    `variable` is what asks for it, `offered` what the node has to choose from, `subject` what it is of, and
    `lacking` why a node may have none.
    """

    variable: str
    pattern: str
    value: str
    offered: tuple[str, ...]
    why: str
    subject: str
    lacking: str


def asked(wanted: OsTuning, node: Tunables) -> Iterator[KernelValue]:
    """What the operator wants of the kernel's values, whether or not the node has them."""
    governor = wanted.cpu_governor
    if governor != KEEP and not (governor == AUTO and node.tuners):
        yield KernelValue(
            "os_tuning_cpu_governor",
            "devices/system/cpu/cpufreq/policy*/scaling_governor",
            PERFORMANCE if governor == AUTO else governor,
            node.cpu_governors,
            "CPUs that lower their clocks start copies and kernels late",
            "CPU governor",
            "the system sets no clocks of CPUs (no cpufreq), as in a virtual machine",
        )
    choices = {
        "enabled": ("os_tuning_transparent_hugepages", wanted.transparent_hugepages, node.hugepages),
        "defrag": (
            "os_tuning_transparent_hugepages_defrag",
            wanted.transparent_hugepages_defrag,
            node.hugepages_defrag,
        ),
    }
    for name, (variable, value, offered) in choices.items():
        if value != KEEP:
            yield KernelValue(
                variable,
                f"{HUGEPAGES}/{name}",
                value,
                offered,
                "The operator says which programs get huge pages, and when",
                f"transparent huge pages ({name})",
                "the kernel has none, or they cannot be set from here",
            )


def kernel_values(wanted: OsTuning, node: Tunables) -> tuple[KernelValue, ...]:
    """What is set on this node."""
    return tuple(one for one in asked(wanted, node) if one.value in one.offered)


def tuning_problems(wanted: OsTuning, node: Tunables) -> list[str]:
    """Values that this node does not offer, where it offers others."""
    return [
        f"{one.variable} asks for {one.value}, and this node offers {', '.join(one.offered)}; "
        f"choose one of them, or {KEEP}"
        for one in asked(wanted, node)
        if wanted.state == "present" and one.offered and one.value not in one.offered
    ]


def tuning_notes(wanted: OsTuning, node: Tunables) -> list[str]:
    """What of the wanted tuning is left out here, and why."""
    if wanted.state == "absent":
        return []
    found = [f"{one.subject} ({one.lacking})" for one in asked(wanted, node) if not one.offered]
    if wanted.cpu_governor == AUTO and node.tuners:
        found.append(f"CPU governor ({', '.join(node.tuners)} sets it)")
    return found


def tuning_warnings(wanted: OsTuning, node: Tunables) -> list[str]:
    """Values that another service sets, too."""
    if not node.tuners or wanted.state == "absent":
        return []
    return [
        f"{one.variable} is {one.value}, and {', '.join(node.tuners)} on this node may set it anew; "
        f"disable that service, or set {KEEP}"
        for one in kernel_values(wanted, node)
    ]
