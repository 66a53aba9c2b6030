"""Debian's own repositories: what a node's sources lack for the driver, from the mirror that it uses."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from temper.plan.model import Repository
from temper.plan.refusals import Refusal, refusal

if TYPE_CHECKING:
    from temper.plan.facts import AptSource, NodeFacts
    from temper.plan.variables import NvidiaStack

# nvidia-kernel-dkms is in non-free, its firmware in non-free-firmware, persistenced and NCCL in contrib. What
# a security update depends on can be in main.
COMPONENTS = ("main", "contrib", "non-free", "non-free-firmware")
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


def missing_repositories(
    node: NodeFacts, wanted: NvidiaStack
) -> tuple[tuple[Repository, ...], list[Refusal], list[str]]:
    """Return the repositories to add, problems and warnings.

    A component that the node's own sources have is not asked for twice: apt warns of that at every run.
    """
    codename = node.os.codename
    own = {source.suite: source for source in reversed(node.apt_sources)}
    mirrors = {
        codename: wanted.distro_mirror_url,
        f"{codename}-updates": wanted.distro_mirror_url,
        f"{codename}-security": wanted.distro_security_mirror_url,
    }
    found = {
        suite: repository
        for suite, uri in mirrors.items()
        if (repository := missing(suite, uri, own.get(suite), node.apt_sources))
    }
    problems, warnings = [], []
    if codename not in found:
        problems.append(refusal("repository-debian-suite", suite=codename))
    elif f"{codename}-security" not in found:
        warnings.append(
            f"apt on this node has no source of {codename}-security: the driver gets no security updates of "
            "Debian; add a source, or set nvidia_stack_distro_security_mirror_url"
        )
    return merged(found.values()), problems, warnings


def missing(suite: str, uri: str, own: AptSource | None, every: Iterable[AptSource]) -> Repository | None:
    """Return what a suite lacks, from the operator's mirror or from the node's own.

    None where neither is there.
    """
    if uri:
        uri = f"{uri.rstrip('/')}/"
        same = [source for source in every if source.uri == uri]
        present = {name for source in same if source.suite == suite for name in source.components}
        # apt refuses two keyrings for one repository.
        signed_by = same[0].signed_by if same else KEYRING
    elif own:
        uri, present, signed_by = own.uri, set(own.components), own.signed_by
    else:
        return None
    name = f"debian{''.join(suite.partition('-')[1:])}"
    components = tuple(component for component in COMPONENTS if component not in present)
    return Repository(name, "apt", uri, suite, components, signed_by)


def merged(repositories: Iterable[Repository]) -> tuple[Repository, ...]:
    """Suites of the same mirror with the same components in one entry each; none where nothing is missing."""
    result: dict[tuple[object, ...], Repository] = {}
    for found in repositories:
        key = (found.uri, found.signed_by, found.components)
        if known := result.get(key):
            result[key] = replace(known, suite=f"{known.suite} {found.suite}")
        elif found.components:
            result[key] = found
    return tuple(result.values())
