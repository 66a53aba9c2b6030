"""Look up the addresses of the fleet, and find the nodes that others are reached through."""

from __future__ import annotations

import sys
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase

# Ansible loads this file by its path, so that the repository's packages are not importable by themselves.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from temper.plan.convert import plain
from temper.plan.fleet_addresses import AT_ONCE, fleet, resolve
from temper.plan.jump_hosts import SshNode, jump_hosts, named
from temper.plan.ssh_client import SshClient, connections


def addresses(names: Collection[str]) -> dict[str, set[str]]:
    """Return the addresses of names, as this machine knows them."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip(names, pool.map(resolve, names), strict=True))


class ActionModule(ActionBase):  # type: ignore[misc]  # Ansible ships no types
    """fleet_ways: nodes, pairs of a node's name and its `ansible_host` or an empty text.

    Once for all nodes of the inventory, whatever --limit says: a run on some must not close the ways to the
    others.
    """

    TRANSFERS_FILES = False
    _requires_connection = False
    _VALID_ARGS = frozenset(("nodes",))

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the `fleet` (its addresses), and `jump_hosts`: a JumpHost by each one's name."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        names = variables["groups"].get("gpu_nodes", [])
        found = connections(names, variables["hostvars"], self._templar)
        ways = SshClient().ways(found)
        nodes = {}
        for name in names:
            way, one = ways.get(name), found.get(name)
            nodes[name] = SshNode(
                frozenset({name, *([one.host] if one else []), *([way.host] if way else [])}), way
            )
        warnings = []
        if unknown := [name for name, way in ways.items() if way is None]:
            warnings.append(
                f"ssh on this machine does not say (ssh -G) through which nodes it reaches {named(unknown)}"
            )
        pairs = [(str(name), str(host)) for name, host in self._task.args["nodes"]]
        found_ways = {"fleet": fleet(pairs), "jump_hosts": plain(jump_hosts(nodes, addresses))}
        return result | {"changed": False, "warnings": warnings} | found_ways
