"""Gives the plan (package planning/) to Ansible."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

# Ansible loads this file by its path, so that the repository's packages are not importable by themselves.
ROOT = str(Path(__file__).resolve().parents[1])


def of_planning(name: str) -> Any:
    """A module of planning/, imported late: Ansible loads this file for each task of each node."""
    if ROOT not in sys.path:
        sys.path.append(ROOT)
    return importlib.import_module(f"planning.{name}")


def preflight_plan(*arguments: Any) -> dict[str, Any]:
    """The fact `preflight_plan` of a node, see planning/preflight.py."""
    plan: dict[str, Any] = of_planning("preflight").preflight_plan(*arguments)
    return plan


def mirror_list(nodes: list[dict[str, Any]]) -> dict[str, Any]:
    """What a mirror has to serve, see planning/mirror_list.py."""
    content: dict[str, Any] = of_planning("mirror_list").mirror_list(nodes)
    return content


class FilterModule:
    """Filters of this file."""

    def filters(self) -> dict[str, Any]:
        """Name -> function."""
        return {"preflight_plan": preflight_plan, "mirror_list": mirror_list}
