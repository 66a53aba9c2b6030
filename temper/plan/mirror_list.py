"""What a mirror has to serve for a set of planned nodes. Pure functions, on the controller."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from temper.plan.convert import checked, from_node, plain
from temper.plan.fleet import without_secrets


@dataclass(frozen=True)
class Package:
    """A package that a node would download."""

    name: str
    version: str
    architecture: str
    uri: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class Downloads:
    """What a node would download."""

    install: tuple[Package, ...]
    upgrade: tuple[Package, ...]
    downgrade: tuple[Package, ...]


def downloads(transaction: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the packages of a transaction that a node has simulated.

    Raises ValueError for one of another form.
    """
    said = from_node({"transaction": transaction}, "package_preview")["transaction"]
    found = checked(Downloads, said, "package_preview.transaction")
    assert isinstance(found, Downloads)
    return [plain(one) for one in (*found.install, *found.upgrade, *found.downgrade)]


def mirror_list(nodes: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the union over nodes of what their transactions download.

    `nodes` have name, os (the distribution's name), repositories (of the plan) and packages (`downloads` of
    what was simulated as if the node were bare). The result has, for each repository, its address, signing
    key and packages; and for each distribution the packages that come from its own repositories. No password
    is in it.
    """
    repositories: dict[str, dict[str, Any]] = {}
    distributions: dict[str, dict[str, dict[str, Any]]] = {}
    for node in nodes:
        for repository in node["repositories"]:
            repositories.setdefault(
                repository["uri"],
                {
                    "name": repository["name"],
                    "kind": repository["kind"],
                    "uri": repository["uri"],
                    "suite": repository.get("suite", "/"),
                    "key_url": repository.get("key_url") or "",
                    "packages": {},
                },
            )
        for package in node["packages"]:
            owner = next(
                (uri for uri in repositories if package["uri"].startswith(uri.rstrip("/") + "/")), None
            )
            # A distribution's own archive is mirrored as a whole, or already is.
            own = owner is not None and repositories[owner]["key_url"]
            found = (
                repositories[owner]["packages"] if own and owner else distributions.setdefault(node["os"], {})
            )
            found[package["uri"]] = package
    result: dict[str, Any] = {
        "repositories": [
            repository
            | {"packages": in_order(repository["packages"]), "size_bytes": size(repository["packages"])}
            for _, repository in sorted(repositories.items())
            if repository["key_url"]
        ],
        "distributions": {name: in_order(found) for name, found in sorted(distributions.items())},
    }
    return without_secrets(result)


def in_order(packages: Mapping[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the packages by name and version."""
    return sorted(packages.values(), key=lambda package: (package["name"], package["version"]))


def size(packages: Mapping[str, dict[str, Any]]) -> int:
    """Return what the packages take, in bytes."""
    return sum(package["size_bytes"] for package in packages.values())
