"""The addresses of the fleet's nodes, as this machine knows them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ansible.plugins.lookup import LookupBase

# Ansible loads this file by its path, so that the repository's packages are not importable by themselves.
ROOT = str(Path(__file__).resolve().parents[2])
if ROOT not in sys.path:
    sys.path.append(ROOT)

from temper.plan.fleet_addresses import fleet  # noqa: E402 - needs the path above

DOCUMENTATION = r"""
name: fleet_addresses
short_description: The addresses of nodes, whose names are looked up
description:
  - Takes each node's name and its C(ansible_host), if any. Addresses are taken as they are; names are looked
    up on this machine.
options:
  _terms:
    description: Pairs of a node's name and its C(ansible_host), or an empty text.
    required: true
"""


class LookupModule(LookupBase):  # type: ignore[misc]  # Ansible ships no types
    """lookup('fleet_addresses', pairs): a mapping of `addresses` and `unknown`."""

    def run(self, terms: list[Any], variables: Any = None, **kwargs: Any) -> list[dict[str, list[str]]]:
        """Look all names up at once."""
        return [fleet([(str(name), str(host)) for name, host in terms[0]])]
