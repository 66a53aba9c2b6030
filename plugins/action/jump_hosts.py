"""Find the nodes that others are reached through, from the inventory and this machine's ssh."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.plugins.action import ActionBase

# Ansible loads this file by its path, so that the repository's packages are not importable by themselves.
ROOT = str(Path(__file__).resolve().parents[2])
if ROOT not in sys.path:
    sys.path.append(ROOT)

from temper.plan.convert import plain  # noqa: E402 - likewise
from temper.plan.fleet_addresses import AT_ONCE, resolve  # noqa: E402 - needs the path above
from temper.plan.jump_hosts import Node, jump_hosts, named  # noqa: E402 - likewise
from temper.plan.ssh_client import SshClient, connections  # noqa: E402 - likewise

if TYPE_CHECKING:
    from collections.abc import Collection


def addresses(names: Collection[str]) -> dict[str, set[str]]:
    """Return the addresses of names, as this machine knows them."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip(names, pool.map(resolve, names), strict=True))


class ActionModule(ActionBase):  # type: ignore[misc]  # Ansible ships no types
    """jump_hosts: no arguments. Once for all nodes of the inventory, whatever --limit says.

    A run on some must not close the ways to the others.
    """

    TRANSFERS_FILES = False
    _requires_connection = False
    _VALID_ARGS: frozenset[str] = frozenset()

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """The result has `jump_hosts`: those of temper.plan.jump_hosts.JumpHost, by name."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        names = variables["groups"].get("gpu_nodes", [])
        found = connections(names, variables["hostvars"], self._templar)
        ways = SshClient().ways(found)
        nodes = {}
        for name in names:
            way, one = ways.get(name), found.get(name)
            nodes[name] = Node(
                frozenset({name, *([one.host] if one else []), *([way.host] if way else [])}), way
            )
        warnings = []
        if unknown := [name for name, way in ways.items() if way is None]:
            warnings.append(
                f"ssh on this machine does not say (ssh -G) through which nodes it reaches {named(unknown)}"
            )
        jumps = plain(jump_hosts(nodes, addresses))
        return result | {"changed": False, "jump_hosts": jumps, "warnings": warnings}
