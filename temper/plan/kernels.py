"""Kernels that a node does not have yet: whether its driver is known to build for them."""

from __future__ import annotations

from temper.plan.distro_source import KERNEL_SERIES
from temper.plan.tables import Tables
from temper.plan.versions import version


def kernel_problem(source: str, system: str, release: str, tables: Tables) -> str:
    """Return why a kernel is none for a node with this plan; empty where nothing is known against it.

    `source` and `system` are the plan's: `nvidia` or `distro`, and `debian-12`. NVIDIA's drivers have no such
    limit in the tables; whether one compiles is seen before the node boots.
    """
    row = tables.distro_drivers.get(system) if source == "distro" else None
    series = KERNEL_SERIES.match(release)
    if not row or not row.last_kernel or not series or version(series[0]) <= version(row.last_kernel):
        return ""
    return (
        f"the distribution's driver {row.branch} is known to build for kernels up to {row.last_kernel}, and "
        f"kernel {release} is newer; name an older one, or set nvidia_stack_source: nvidia"
    )
