"""Parts of plans for the tests of the engine, and the module that carries them out."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import node_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

OPTIONS = {"busy_ok": False, "rollback_after_s": 120, "atomic": False, "absent": False, "sysctl_file": None}


def item(kind: str, key: str, wanted: Any, *controls: str) -> dict[str, Any]:
    """One planned setting."""
    return {
        "kind": kind,
        "key": key,
        "wanted": wanted,
        "why": "",
        "controls": list(controls),
        "waiver": None,
        "way_in": False,
    }


def role_plan(
    role: str, items: Iterable[dict[str, Any]], reactions: Iterable[dict[str, Any]] = (), **options: Any
) -> dict[str, Any]:
    """The part of one role."""
    return {
        "role": role,
        "settings": list(items),
        "reactions": [{"unit": None, **reaction} for reaction in reactions],
        "options": {**OPTIONS, **options},
    }


def carried_out(
    run_module: Callable[..., dict[str, Any]], *plans: dict[str, Any], check_mode: bool = False
) -> dict[str, Any]:
    """What the module returns of the last role, with its results beside; `msg` where it failed."""
    result = run_module(node_settings.main, check_mode=check_mode, roles=json.dumps(plans))
    role = result["roles"][plans[-1]["role"]]
    return {**role, **role.get("results", {}), "warnings": result.get("warnings", [])}
