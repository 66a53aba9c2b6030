"""The families of distributions: a class each, and the releases of a family as rows of the tables."""

from __future__ import annotations

from temper.plan.distributions.base import REPOSITORY_ARCHITECTURES, Distribution
from temper.plan.distributions.debian import Debian
from temper.plan.distributions.rhel import EnterpriseLinux
from temper.plan.distributions.ubuntu import Ubuntu
from temper.plan.facts import NodeFacts
from temper.plan.refusals import Refusal, refusal
from temper.plan.tables import Tables

__all__ = ["REPOSITORY_ARCHITECTURES", "Distribution", "distribution_of", "package_family"]
# What all families with the same package manager have in common.
PACKAGE_FAMILIES: dict[str, type[Distribution]] = {
    family.package_manager: family for family in (Debian, EnterpriseLinux)
}
FAMILIES: dict[str, type[Distribution]] = {"debian": Debian, "ubuntu": Ubuntu, "rhel": EnterpriseLinux}


def distribution_of(node: NodeFacts, tables: Tables) -> tuple[Distribution | None, list[Refusal]]:
    """Return the node's distribution, or why there is none that a plan can be made for."""
    os = node.os
    problems: list[Refusal] = []
    name = tables.rebuilds.get(os.id, os.id)
    # The key of Enterprise Linux has the major version only, Ubuntu's the whole release.
    keys = (f"{name}-{os.version_id}", f"{name}-{os.version_id.partition('.')[0]}")
    release = next((tables.distributions[key] for key in keys if key in tables.distributions), None)
    if not release:
        problems.append(
            refusal(
                "system-unsupported",
                system=os.pretty_name or os.id or "unknown",
                known=[*tables.distributions],
                rebuilds=[f"{rebuild} for {original}" for rebuild, original in tables.rebuilds.items()],
            )
        )
    if node.architecture not in REPOSITORY_ARCHITECTURES:
        known = [*REPOSITORY_ARCHITECTURES]
        problems.append(refusal("architecture-unsupported", architecture=node.architecture, known=known))
    if not release or problems:
        return None, problems
    return FAMILIES[release.family](release, node.architecture), []


def package_family(package_manager: str | None) -> type[Distribution]:
    """Return what all distributions with this package manager have in common."""
    return PACKAGE_FAMILIES[package_manager] if package_manager else Distribution
