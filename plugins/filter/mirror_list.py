"""Gives the list of what a mirror has to serve to Ansible."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

# Ansible loads this file by its path, so that the repository's packages are not importable by themselves.
ROOT = str(Path(__file__).resolve().parents[2])


def _planning() -> Any:
    """See temper/plan/mirror_list.py. Imported late: Ansible loads this file for each task of each node."""
    if ROOT not in sys.path:
        sys.path.insert(0, ROOT)
    return importlib.import_module("temper.plan.mirror_list")


def mirror_list(nodes: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what a mirror has to serve for all nodes."""
    content: dict[str, Any] = _planning().mirror_list(nodes)
    return content


def mirror_downloads(transaction: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what a node would download; one that says it in another form fails alone."""
    packages: list[dict[str, Any]] = _planning().downloads(transaction)
    return packages


class FilterModule:
    """Filters of this file."""

    def filters(self) -> dict[str, Any]:
        """Name -> function."""
        return {"mirror_downloads": mirror_downloads, "mirror_list": mirror_list}
