"""The operator's inventory, and the part of it that a slice gets.

It is read once: a plug-in that asks a cloud, or a file for each of ten thousand nodes, would cost every slice
the same again.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

ROOT = Path(__file__).resolve().parents[1]
#: The group whose nodes Temper's playbooks are for.
NODES = "gpu_nodes"
#: Variables that every host has and that say nothing.
NOISE = ("ansible_local",)


class InventoryError(Exception):
    """The inventory cannot be read; the message is a sentence."""


@dataclass(frozen=True)
class Inventory:
    """Hosts and groups, and each host's variables with those of its groups."""

    groups: Mapping[str, Mapping[str, Any]]
    variables: Mapping[str, Mapping[str, Any]]

    @property
    def nodes(self) -> list[str]:
        """The nodes, in the order of the inventory."""
        return list(self._below(NODES))

    @property
    def names(self) -> set[str]:
        """Every host and every group."""
        return {*self.groups, *self.variables}

    def addresses(self) -> list[tuple[str, str]]:
        """Each node with its `ansible_host`, or an empty text."""
        return [(node, str(self.variables.get(node, {}).get("ansible_host", ""))) for node in self.nodes]

    def slice(self, nodes: Collection[str]) -> dict[str, Any]:
        """An inventory of these nodes alone, in Ansible's own form, with their groups and variables."""
        wanted = set(nodes)
        kept: dict[str, Any] = {}
        for name in self.groups:
            hosts = {host: None for host in self.groups[name].get("hosts", ()) if host in wanted}
            children = {
                child: None
                for child in self.groups[name].get("children", ())
                if wanted.intersection(self._below(child))
            }
            if name not in ("all", "ungrouped") and (hosts or children):
                kept[name] = {"hosts": hosts, "children": children}
        return {
            "all": {
                "hosts": {node: dict(self.variables.get(node, {})) for node in sorted(wanted)},
                "children": kept,
            }
        }

    def _below(self, group: str) -> dict[str, None]:
        """The hosts of a group and of the groups in it, in order, each once."""
        own = self.groups.get(group, {})
        found = dict.fromkeys(own.get("hosts", ()))
        for child in own.get("children", ()):
            found |= self._below(child)
        return found


def from_listing(listing: Mapping[str, Any]) -> Inventory:
    """What `ansible-inventory --list` says."""
    hostvars = listing.get("_meta", {}).get("hostvars", {})
    variables = {
        host: {key: value for key, value in own.items() if key not in NOISE or value}
        for host, own in hostvars.items()
    }
    return Inventory({name: group for name, group in listing.items() if name != "_meta"}, variables)


def read(sources: Sequence[str], limit: str = "") -> Inventory:
    """Read inventories as Ansible does; the configured one without `sources`. Raises InventoryError."""
    words = [word for source in sources for word in ("-i", source)] + (["--limit", limit] if limit else [])
    program = Path(sys.executable).with_name("ansible-inventory")
    done = subprocess.run(
        [str(program), *words, "--list"], cwd=ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, "LC_ALL": "C.UTF-8"}, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    named = ", ".join(sources) or "the default inventory"
    if done.returncode:
        said = " ".join(line.strip() for line in done.stderr.strip().splitlines()[-4:])
        raise InventoryError(f"{named}: expected an inventory of Ansible: {said}")
    found = from_listing(json.loads(done.stdout))
    if not found.nodes:
        chosen = f" that --limit {limit} chooses" if limit else ""
        raise InventoryError(f"{named}: expected nodes in the group {NODES}{chosen}, found none.")
    return found
