#!/usr/bin/python3
"""A set of packages at exact versions, installed in one transaction and held."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: package_set
short_description: Install exact package versions in one transaction and hold them
description:
  - Compares what is installed with the wanted versions and, only where they differ, runs one transaction
    with the complete explicit list, then holds the packages together with everything else that has one of
    O(hold_versions).
  - Every transaction is simulated first; one that would remove a package outside the NVIDIA family, change
    one that somebody else holds, or install a kernel that was not asked for, is refused.
  - Everything is downloaded before anything is installed. An installation that fails is undone, so that the
    package manager goes on working; one that was interrupted is completed by the next run.
options:
  packages:
    description: Names and exact versions, which are held. An empty version means what is offered.
    type: dict
    required: true
  present:
    description: Names that must be installed at any version; these are not held.
    type: list
    elements: str
    default: []
  hold_versions:
    description: Every installed package of the NVIDIA family at one of these versions is held as well.
    type: list
    elements: str
    default: []
  refresh:
    description: Read the package lists again even if all versions are known, because a repository changed.
    type: bool
    default: false
  pins:
    description: Patterns of names and the version that a transaction may choose of them (dnf; for apt they
      are in its preferences).
    type: list
    elements: dict
    default: []
  module_streams:
    description: Modules (C(name)) and the stream (C(stream)) that is enabled before the transaction (dnf).
    type: list
    elements: dict
    default: []
author: Temper developers
"""

EXAMPLES = r"""
- name: Install the stack
  package_set:
    packages: {nvidia-driver-cuda: 580.178.04-1, libnccl2: 2.28.9-1+cuda13.0}
    hold_versions: [580.178.04-1]
"""

RETURN = r"""
installed:
  description: Names that were installed, upgraded or downgraded, with their new versions.
  returned: always
  type: dict
held:
  description: Names whose hold was set.
  returned: always
  type: list
  elements: str
recovered:
  description: Names that an interrupted earlier transaction had left half-way.
  returned: always
  type: list
  elements: str
"""

from typing import Any

from ansible.module_utils import process
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.packaging import packages
from ansible.module_utils.packaging.apt import Apt, arguments
from ansible.module_utils.packaging.dnf import Dnf
from ansible.module_utils.packaging.packages import (
    Manager,
    OthersUnreadableError,
    PackageError,
    Packages,
    Wish,
)


def package_manager(pins: list[dict[str, str]], streams: list[dict[str, str]]) -> Manager:
    """The node's package manager."""
    return Apt() if process.which("apt-get") else Dnf(pins, streams)


def install(manager: Manager, wanted: dict[str, str], known: Packages) -> None:
    """Run a transaction if its simulation shows nothing that it must not do."""
    transaction = manager.simulate(wanted)
    problems = packages.dangers(transaction, list(wanted), known, packages.recorded_holds())
    if problems:
        raise PackageError(
            f"The transaction is refused, because {' and '.join(problems)}. Nothing was changed. "
            f"Asked for: {' '.join(arguments(wanted)) or 'completing an interrupted installation'}."
        )
    manager.install(wanted)


def settle(
    manager: Manager, wish: Wish, versions: list[str], *, refresh: bool, check: bool
) -> dict[str, Any]:
    """Bring the node to the wish; returns what the module returns."""
    wish = Wish(wish.packages, [*wish.present, *manager.required()])
    known = manager.query()
    broken = sorted(name for name, package in known.items() if package.broken)
    lacking = wish.lacking(known)
    if not lacking and not broken and manager.prepared():
        holds = hold(manager, wish, versions, known, check=check)
        return {"changed": bool(holds), "installed": {}, "held": holds, "recovered": []}
    if check:
        # Nothing is simulated: on a bare node the repositories are not there yet; preflight has done it.
        new = {name: version for name, version in lacking.items() if name in wish.packages}
        diff = {"before": "", "after": "".join(f"{argument}\n" for argument in arguments(lacking))}
        return {"changed": True, "installed": new, "held": sorted(new), "recovered": broken, "diff": diff}

    warnings: list[str] = []
    manager.prepare()
    try:
        if refresh or not manager.offers(lacking):
            warnings = read_lists(manager, lacking)
        # Another package manager may have held the lock, and changed something, before the lists were read.
        before = recover(manager, known) if broken else manager.query()
        lacking = wish.lacking(before)
        if lacking:
            install(manager, lacking, before)
    except PackageError:
        manager.abandon()
        raise
    after = manager.query()
    left = wish.lacking(after)
    if left:
        raise PackageError(
            "The package manager reported success, but these are still not installed as wanted: "
            f"{', '.join(arguments(left))}."
        )
    installed = {
        name: package.version
        for name, package in after.items()
        if package.installed
        and (name not in known or known[name].version != package.version or not known[name].installed)
    }
    holds = hold(manager, wish, versions, after, check=False)
    return {
        "changed": True,
        "installed": installed,
        "held": holds,
        "recovered": broken,
        "warnings": warnings,
    }


def read_lists(manager: Manager, lacking: dict[str, str]) -> list[str]:
    """Read the lists of packages; says which could not be read although nothing wanted is in them."""
    try:
        manager.refresh()
    except OthersUnreadableError as error:
        if not manager.offers(lacking):
            raise
        return [f"{error} Going on, because all that is wanted is offered elsewhere."]
    return []


def recover(manager: Manager, known: Packages) -> Packages:
    """Complete what an interrupted run left half-way; returns the packages after that."""
    manager.recover()
    known = manager.query()
    # apt completes what lacks a dependency in a transaction of its own; after dnf nothing is left.
    if any(package.broken for package in known.values()):
        try:
            install(manager, {}, known)
        except PackageError:
            # One of ours that cannot be configured is gone now; what is wanted may be another version.
            if any(package.broken for package in manager.query().values()):
                raise
        known = manager.query()
    return known


def hold(manager: Manager, wish: Wish, versions: list[str], known: Packages, *, check: bool) -> list[str]:
    """Hold what has to be held and is not yet; returns its names.

    Where any version was asked for, the siblings of what is there now belong to it.
    """
    found = {name: known[name] for name, version in wish.packages.items() if not version and name in known}
    versions = [*versions, *(package.version for package in found.values() if package.installed)]
    new = packages.to_hold(wish.packages, versions, known)
    if check:
        return new
    ours = {
        name
        for name, package in known.items()
        if package.installed and packages.belongs(package, wish.packages, versions)
    }
    recorded = packages.recorded_holds()
    if not ours <= recorded:
        # Before the hold itself: cut off between the two, ours would look like somebody else's.
        packages.record_holds(ours | recorded)
    if new:
        manager.hold(new)
    return new


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "packages": {"type": "dict", "required": True},
            "present": {"type": "list", "elements": "str", "default": []},
            "hold_versions": {"type": "list", "elements": "str", "default": []},
            "refresh": {"type": "bool", "default": False},
            "pins": {"type": "list", "elements": "dict", "default": []},
            "module_streams": {"type": "list", "elements": "dict", "default": []},
        },
        supports_check_mode=True,
    )
    wish = Wish(module.params["packages"], module.params["present"])
    try:
        result = settle(
            package_manager(module.params["pins"], module.params["module_streams"]),
            wish,
            module.params["hold_versions"],
            refresh=module.params["refresh"],
            check=module.check_mode,
        )
    except PackageError as error:
        module.fail_json(msg=str(error), output=error.output)
    for warning in result.pop("warnings", []):
        module.warn(warning)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
