"""What a simulated transaction means for a node: the verdict that apt's and dnf's previews share."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible.module_utils.temper.packaging.packages import (
    Manager,
    Packages,
    Transaction,
    Wish,
    dangers,
    recorded_holds,
)
from ansible.module_utils.temper.packaging.site_rules import SiteRule, sentence

MIB = 2**20
# Where the packages' files go, as far as one directory can stand for all.
INSTALLED_IN = Path("/usr")


@dataclass(frozen=True)
class Lacking:
    """A package that no repository offers; `version` is the one that none has, empty where none has any."""

    name: str
    version: str
    nearest: Sequence[str]

    def __str__(self) -> str:
        """Return what the operator reads."""
        if self.version:
            near = ", ".join(self.nearest)
            return f"No repository of this node offers {self.name} {self.version}; nearest are {near}."
        hint = f"; offered are, for instance, {', '.join(self.nearest)}" if self.nearest else ""
        return f"No repository of this node offers a package {self.name}{hint}."


@dataclass(frozen=True)
class Preview:
    """What a transaction would do, and why it must not or cannot run.

    `unresolved`: the package manager finds no transaction in the repositories that it has read, and no rule
    of the node's owner is why. `not_offered` are packages that no repository has, or not in this version.
    """

    transaction: Transaction
    resolved: dict[str, str]
    problems: list[str]
    unresolved: bool = False
    not_offered: Sequence[Lacking] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return what the module returns."""
        return {
            "transaction": self.transaction.as_dict(),
            "resolved": self.resolved,
            "problems": self.problems,
            "unresolved": self.unresolved,
            "not_offered": [{"name": one.name, "version": one.version} for one in self.not_offered],
        }


def refused(*problems: str) -> Preview:
    """There is nothing to show but why."""
    return Preview(Transaction(), {}, list(problems))


def unresolved(rules: Sequence[SiteRule], lacking: Sequence[Lacking], otherwise: Sequence[str]) -> Preview:
    """There is no transaction: because of rules of the node, or else by what the repositories have."""
    if rules:
        return refused(sentence(rules))
    problems = [str(one) for one in lacking] or list(otherwise)
    return Preview(Transaction(), {}, problems, unresolved=True, not_offered=lacking)


def conclude(
    manager: Manager, wish: Wish, transaction: Transaction, known: Packages, archives: Path
) -> Preview:
    """Return the preview of a transaction that was simulated.

    `archives` is where downloads go on the node.
    """
    transaction = manager.with_details(transaction)
    wanted = {**wish.present, **wish.packages}
    refusals = dangers(transaction, list(wanted), known, recorded_holds())
    problems = [f"The transaction is refused, because {' and '.join(refusals)}."] if refusals else []
    versions = {change.name: change.version for change in transaction.changes}
    resolved = {
        name: versions.get(name) or known[name].version
        for name, version in wanted.items()
        if not version and (name in versions or name in known)
    }
    return Preview(transaction, resolved, problems + no_room(transaction, archives))


def no_room(transaction: Transaction, archives: Path) -> list[str]:
    """Return which file systems have too little room for what is downloaded and installed."""
    existing = next(path for path in (archives, *archives.parents) if path.exists())
    needs: dict[int, list[Any]] = {}
    for path, size in (
        (existing, transaction.download_bytes),
        (INSTALLED_IN, max(0, transaction.disk_bytes)),
    ):
        # Both usually lie on one file system, which then needs room for both.
        need = needs.setdefault(path.stat().st_dev, [path, 0])
        need[1] += size
    return [
        f"{path} has {shutil.disk_usage(path).free // MIB} MiB free, and the transaction needs "
        f"{-(-size // MIB)} MiB there ({transaction.download_bytes // MIB} MiB to download, "
        f"{transaction.disk_bytes // MIB} MiB installed); free some space."
        for path, size in needs.values()
        if size and shutil.disk_usage(path).free < size
    ]
