"""Parts of plans for the tests of the engine, and the module that carries them out."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import node_settings
from ansible.module_utils.temper.packaging import package_settings, packages
from ansible.module_utils.temper.packaging.packages import Change, Package, Transaction

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    import pytest
    from ansible.module_utils.temper.packaging.packages import Packages

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


class PackageManager:
    """Stands in for apt: what is installed, what was asked for, and what an installation brings besides."""

    def __init__(self, *installed: str) -> None:
        self.known: Packages = {}
        self.add(*installed)
        self.calls: list[dict[str, str]] = []
        self.queries = 0
        #: What others need, so that it cannot be removed.
        self.needed: set[str] = set()
        self.purged: list[str] = []
        self.brings: Callable[[], object] = lambda: None

    def add(self, *names: str) -> None:
        self.known |= {name: Package(name, "1", "install", "installed") for name in names}

    def query(self) -> Packages:
        self.queries += 1
        return dict(self.known)

    def required(self) -> list[str]:
        return []

    def prepared(self) -> bool:
        return True

    def prepare(self) -> None: ...

    def abandon(self) -> None: ...

    def with_details(self, transaction: Transaction) -> Transaction:
        return transaction

    def refresh(self) -> None: ...

    def offers(self, wanted: dict[str, str]) -> bool:
        return True

    def simulate(self, wanted: dict[str, str]) -> Transaction:
        new = [name for name in wanted if name not in self.known]
        return Transaction(tuple(Change(name, "1", "all") for name in new))

    def install(self, wanted: dict[str, str]) -> None:
        self.calls.append(wanted)
        self.add(*wanted)
        self.brings()

    def removable(self, names: Sequence[str], ours: Collection[str]) -> list[str]:
        return [name for name in names if name not in self.needed]

    def remove(self, names: Sequence[str], purge: Sequence[str]) -> None:
        self.purged += purge
        self.known = {name: package for name, package in self.known.items() if name not in names}

    def recover(self) -> None: ...

    def hold(self, names: Sequence[str]) -> None: ...

    def release(self, names: Sequence[str]) -> None: ...


def with_packages(monkeypatch: pytest.MonkeyPatch, *installed: str) -> PackageManager:
    """A package manager in the place of the node's own."""
    manager = PackageManager(*installed)
    monkeypatch.setattr(packages, "query", manager.query)
    monkeypatch.setattr(package_settings, "package_manager", lambda *_: manager)
    return manager
