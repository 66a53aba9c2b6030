"""Where a report comes from: the fleet, its inventories, the controller, and the groups of its nodes."""

from __future__ import annotations

import os
import platform
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

from temper.base import ROOT
from temper.base.nodes import RACK
from temper.judge.results import naming
from validation.model.contract import dumps, loads
from validation.processes.files import write_atomically

FILE = "origin.json"
#: The variable of the environment by which a check names itself to the commands that it runs.
CHECK = "TEMPER_CHECK"
#: Names of inventories that say nothing: the folder around them does.
PLAIN = ("hosts", "inventory", "inventories")


@dataclass(frozen=True)
class Origin:
    """Where a report comes from. What nobody knows is empty.

    `inventories` are written as one types them in the checkout, `made_at` is ISO 8601, and `groups` has those
    of each node that tell nodes apart. `check` is what the scheduled check calls itself that made the report.
    """

    controller: str = ""
    inventories: tuple[str, ...] = ()
    made_at: str = ""
    groups: dict[str, tuple[str, ...]] = field(default_factory=dict)
    check: str = ""

    @property
    def fleet(self) -> str:
        """Return the fleet's name: that of its inventories."""
        return " + ".join(dict.fromkeys(map(_name, self.inventories)))

    @property
    def options(self) -> str:
        """Return the words that name the inventories on a command line: ` -i inventory/mine`."""
        return "".join(f" -i {shlex.quote(one)}" for one in self.inventories)

    def racks(self, node: str) -> list[str]:
        """Return the node's racks."""
        return [name for name in self.groups.get(node, ()) if name.startswith(RACK)]

    def other_groups(self, node: str) -> list[str]:
        """Return the node's groups that are no racks."""
        return [name for name in self.groups.get(node, ()) if not name.startswith(RACK)]


def origin(sources: Iterable[str], made_at: str, groups: Mapping[str, Collection[str]]) -> Origin:
    """Return the origin of a report that this machine makes. `groups` has all groups of each node."""
    members = Counter(chain.from_iterable(groups.values()))
    distinct = {
        node: tuple(sorted(name for name in names if members[name] < len(groups)))
        for node, names in groups.items()
    }
    return Origin(
        platform.node(),
        tuple(map(typed, sources)),
        made_at,
        {node: names for node, names in distinct.items() if names},
        os.environ.get(CHECK, ""),
    )


def merged(origins: Iterable[Origin]) -> Origin:
    """Return the origin of a report that is made of several: the newest holds, with the groups of all."""
    found = sorted(origins, key=lambda one: one.made_at)
    groups = {node: names for one in found for node, names in one.groups.items()}
    return replace(found[-1], groups=groups) if found else Origin()


def write(folder: Path, found: Origin) -> None:
    """Write the origin of a report into its folder. Raises OSError."""
    write_atomically(folder / FILE, dumps(found))


def read(folder: Path) -> Origin:
    """Read the origin of a report; former reports have none. Raises OSError, ContractError."""
    with naming(folder / FILE) as file:
        return loads(Origin, file.read_bytes()) if file.exists() else Origin()


def typed(source: str, root: Path = ROOT) -> str:
    """Return an inventory as one types it in the checkout."""
    return str(Path(source).relative_to(root)) if Path(source).is_relative_to(root) else source


def _name(inventory: str) -> str:
    """Return what an inventory is called; one that is a list of hosts is called as it is."""
    if "," in inventory:
        return inventory.rstrip(",")
    path = Path(inventory)
    return path.parent.name if path.stem in PLAIN and path.parent.name else path.stem
