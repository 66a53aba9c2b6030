"""The distribution's own repositories: what a node's sources lack for the driver, from the mirror it uses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planning.model import Facts, Request

# nvidia-kernel-dkms is in non-free, its firmware in non-free-firmware, persistenced and NCCL in contrib. What
# a security update depends on can be in main.
COMPONENTS = ("main", "contrib", "non-free", "non-free-firmware")
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
MIRROR = "nvidia_stack_distro_mirror_url"
SECURITY_MIRROR = "nvidia_stack_distro_security_mirror_url"


def distribution_repositories(request: Request) -> tuple[list[dict[str, Any]], list[str], list[str]]:
    """The repositories to add, problems and warnings.

    A component that the node's own sources have is not asked for twice: apt warns of that at every run.
    """
    codename = request.node["os"]["codename"]
    mirror, security_mirror = request.values[MIRROR], request.values[SECURITY_MIRROR]
    own = {source["suite"]: source for source in reversed(request.node["apt_sources"])}
    wanted = {codename: mirror, f"{codename}-updates": mirror, f"{codename}-security": security_mirror}
    sources = [
        source
        for suite, uri in wanted.items()
        if (source := source_of(suite, uri, own.get(suite), request.node["apt_sources"]))
    ]
    found = [source["suite"] for source in sources]
    problems, warnings = [], []
    if codename not in found:
        problems.append(
            f"apt on this node has no source of Debian's suite {codename}, whose mirror could be used; "
            f"set {MIRROR}"
        )
    elif f"{codename}-security" not in found:
        warnings.append(
            f"apt on this node has no source of {codename}-security, so that the driver comes without "
            f"Debian's security updates; add one, or set {SECURITY_MIRROR}"
        )
    return merged(sources), problems, warnings


def source_of(suite: str, uri: str, own: Facts | None, every: list[dict[str, Any]]) -> dict[str, Any] | None:
    """What has to be added for a suite, from the operator's mirror or from the node's own."""
    if not uri and not own:
        return None
    if own and not uri:
        return {
            "uri": own["uri"],
            "suite": suite,
            "signed_by": own["signed_by"],
            "components": [name for name in COMPONENTS if name not in own["components"]],
        }
    uri = f"{uri.rstrip('/')}/"
    same = [source for source in every if source["uri"] == uri]
    present = [name for source in same if source["suite"] == suite for name in source["components"]]
    return {
        "uri": uri,
        "suite": suite,
        # apt refuses two keyrings for one repository.
        "signed_by": same[0]["signed_by"] if same else KEYRING,
        "components": [name for name in COMPONENTS if name not in present],
    }


def merged(sources: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Suites of the same mirror with the same components in one entry each; none where nothing is missing."""
    result: dict[tuple[Any, ...], dict[str, Any]] = {}
    for source in sources:
        key = (source["uri"], source["signed_by"], *source["components"])
        if not source["components"]:
            continue
        if key in result:
            result[key]["suite"] += f" {source['suite']}"
        else:
            suffix = source["suite"].partition("-")[1:]
            result[key] = {"name": f"debian{''.join(suffix)}", "kind": "apt"} | source
    return list(result.values())
