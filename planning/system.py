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
    distributions = tables["nvidia_distributions"]
    family = tables["nvidia_distribution_families"].get(os["id"], {"family": os["id"]})["family"]
    # Enterprise Linux is told by its major version, Ubuntu by its release.
    releases = (os["version_id"], os["version_id"].partition(".")[0])
    key = next((f"{family}-{release}" for release in releases if f"{family}-{release}" in distributions), "")
    row = distributions.get(key)
    if not row:
        known = ", ".join(distributions)
        problems.append(
            f"operating system {os['pretty_name'] or os['id'] or 'unknown'} is not supported; "
            f"expected one of: {known} (or a rebuild of it)"
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
