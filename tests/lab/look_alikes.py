"""Nodes of Debian with the shape of another distribution: its files, its packages' names, its units."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.lab import node as machine
from tests.lab.fleet import on_node

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.lab.settings import Node


def install(node: Node, packages: str) -> None:
    """Install Debian's packages of what such a server has."""
    on_node(
        node, f"apt-get update -qq; apt-get install -yqq --no-install-recommends {packages} >/dev/null", 1800
    )


def root(node: Node) -> Path:
    """Return a running node's root directory, as this machine sees it."""
    return Path(f"/proc/{machine.leader(node)}/root")


def put(node: Node, files: Mapping[str, str], modes: Mapping[str, str]) -> None:
    """Write files on a node, with the modes that are named, or 644."""
    for name, content in files.items():
        path = root(node) / name.lstrip("/")
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        # A link's target would be looked for on this machine.
        path.unlink(missing_ok=True)
        path.write_text(content)
        path.chmod(int(modes.get(name, "644"), 8))


def read(*trees: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Return the files of trees and the modes of programs among them; a later tree wins."""
    found = {
        f"/{path.relative_to(tree)}": path
        for tree in trees
        for path in sorted(tree.rglob("*"))
        if path.is_file()
    }
    programs = [name for name, path in found.items() if path.stat().st_mode & 0o100]
    return {name: path.read_text() for name, path in found.items()}, dict.fromkeys(programs, "755")
