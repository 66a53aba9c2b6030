"""The distribution and architecture of a node, as the tables know them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planning.model import System

if TYPE_CHECKING:
    from planning.model import Facts

# The kernel's word -> NVIDIA's word in repository addresses, and what package managers call it.
REPOSITORY_ARCHITECTURES = {"x86_64": "x86_64", "aarch64": "sbsa"}
DEBIAN_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def system_of(node: Facts, tables: Facts) -> tuple[System | None, list[str]]:
    """The node's system, or why there is none that a plan can be made for."""
    os, architecture = node["os"], node["architecture"]
    problems = []
    key = f"{os['id']}-{os['version_id']}"
    row = tables["nvidia_distributions"].get(key)
    if not row:
        known = ", ".join(sorted(tables["nvidia_distributions"]))
        problems.append(
            f"operating system {os['pretty_name'] or os['id'] or 'unknown'} is not supported; "
            f"expected one of: {known}"
        )
    if architecture not in REPOSITORY_ARCHITECTURES:
        known = ", ".join(REPOSITORY_ARCHITECTURES)
        problems.append(f"architecture {architecture} is not supported; expected one of: {known}")
    if not row or problems:
        return None, problems
    package_architecture: str = (
        DEBIAN_ARCHITECTURES[architecture] if row["package_manager"] == "apt" else architecture
    )
    return System(key, row, architecture, package_architecture, REPOSITORY_ARCHITECTURES[architecture]), []
