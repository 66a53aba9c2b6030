"""What the transactions of a role have brought to a node, as one setting that is only taken back."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible.module_utils.temper import process
from ansible.module_utils.temper.driver import loaded_state
from ansible.module_utils.temper.packaging import node, packages
from ansible.module_utils.temper.packaging.packages import Manager
from ansible.module_utils.temper.packaging.services import services_left_alone
from ansible.module_utils.temper.settings.base import NOTED, Difference, NodeModule, Setting, State

ROOT = Path("/")
#: Where each engine keeps containers of any account: an engine that has some is not removed.
CONTAINERS = {
    re.compile(r"^(docker(\.io|-ce|-engine)?|moby-engine)$"): (
        "var/lib/docker/containers/*",
        "home/*/.local/share/docker/containers/*",
    ),
    re.compile(r"^(podman|cri-o|crio)"): (
        "var/lib/containers/storage/overlay-containers/*/userdata",
        "root/.local/share/containers/storage/overlay-containers/*/userdata",
        "home/*/.local/share/containers/storage/overlay-containers/*/userdata",
    ),
    re.compile(r"^containerd(\.io)?$"): ("run/containerd/io.containerd.runtime.v2.task/*/*",),
}
#: Of NVIDIA's family, what works with a driver and is none.
NO_DRIVER = re.compile(
    r"^(cuda-|cudnn|libcudnn|libnccl|datacenter-gpu-manager|(lib)?nvidia-container|nvidia-nsight)"
)
#: Administrators come in and become root by these, and everybody's programs, Ansible's too, need them.
WAYS_IN = re.compile(
    r"^(sudo(-rs|-ldap)?|openssh-server|ca-certificates|(platform-)?python3[\d.]*(-minimal|-apt|-libselinux)?)$"
)
#: A purge takes images and volumes, records of audits and measurements, or the site's own files along.
ONLY_REMOVED = re.compile(
    r"^(auditd|chrony|atop|nftables|docker(\.io|-.*)?|moby-.*|containerd.*|podman.*|cri-?o.*|buildah)$"
)
#: As they are removed they flush rules, or nobody can change these any more.
FIREWALLS = re.compile(r"^(nftables|iptables|ufw|firewalld)$")
#: Names the tables of iptables that are not nftables', where there are any.
LEGACY_TABLES = ("ip_tables_names", "ip6_tables_names")
#: In the order in which the kernel lets go of them.
MODULES = ("nvidia_peermem", "nvidia_uvm", "nvidia_drm", "nvidia_modeset", "nvidia")


class BroughtPackages(Setting):
    """Packages that came with Temper's transactions; `original` has the state of each before the first.

    They are purged, but those of `engines`, and those that are `only_removed`, leave their configuration and
    data. `holds`: it is the role whose packages are held. The packages in `earlier` were there before: what
    they only recommend they did without.
    """

    key = "package:set"

    def __init__(
        self,
        engines: bool = False,
        holds: bool = False,
        only_removed: Sequence[str] = (),
        earlier: Sequence[str] = (),
    ) -> None:
        self.spec = {"engines": engines, "holds": holds, "only_removed": list(only_removed)}
        self.spec["earlier"] = list(earlier)
        self.engines = engines
        self.only_removed = frozenset(only_removed)
        self.earlier = frozenset(earlier)
        self.held_here = holds
        self.known = node.NODE
        self._manager: Manager | None = None
        #: Whether another role takes over what cannot go yet (engine.py).
        self.heir = False
        self._leaving: list[str] | None = None
        self.took_driver = False

    @property
    def manager(self) -> Manager:
        """The node's package manager."""
        if self._manager is None:
            # Imported on demand: a role that only takes its files back needs none.
            from ansible.module_utils.temper.packaging.package_settings import package_manager

            self._manager = package_manager()
        return self._manager

    @property
    def before(self) -> dict[str, Any]:
        """What the record says of each package: its version, None where it was not there.

        CONFIGURATION where it had left that.
        """
        return dict((self.original or {"state": {}})["state"])

    @property
    def ours(self) -> set[str]:
        """Those that came with Temper and dpkg still knows."""
        known = self.known.installed()
        return came(self.before) & known.keys()

    @property
    def brought(self) -> list[str]:
        """Those that were not there before and are now, or left half-way, or with their configuration alone.

        Not those that are never removed.
        """
        known = self.known.installed()
        never = {name for names in self.never.values() for name in names}
        return sorted(
            name
            for name in self.ours - never
            if (known[name].installed or known[name].broken or self.leaves_configuration(known[name]))
        )

    @property
    def never(self) -> dict[str, list[str]]:
        """Those that came with Temper and are never removed, by the reason."""
        known = self.known.installed()
        ours = sorted(name for name in self.ours if known[name].installed or known[name].broken)
        firewalls = [name for name in ours if FIREWALLS.match(name)]
        found = {
            "kernels are never removed, as one may be running": list(filter(packages.KERNEL.match, ours)),
            "administrators and other programs may depend on them": list(filter(WAYS_IN.match, ours)),
            "rules of others are in force": firewalls if firewalls and self.live and rules_stand() else [],
        }
        return {why: names for why, names in found.items() if names}

    def purged(self, name: str) -> bool:
        """Return whether a package goes with its configuration."""
        kept = self.engines or name in self.only_removed or ONLY_REMOVED.match(name)
        return not kept and self.before[name] is None

    def leaves_configuration(self, package: packages.Package) -> bool:
        """Return whether a purge is still due for a package that is gone."""
        return package.status == packages.CONFIGURATION and self.purged(package.name)

    @property
    def leaving(self) -> list[str]:
        """Those that can go without any package that Temper has not brought."""
        if self._leaving is None:
            notes = [state for read in NOTED for state in read(self.key)]
            ours = set[str]().union(*map(came, [self.before, *notes]))
            self._leaving = self.manager.removable(self.brought, ours | self.earlier)
        return self._leaving

    @property
    def needed(self) -> list[str]:
        """Those that have to stay for others."""
        return [name for name in self.brought if name not in self.leaving]

    @property
    def holds(self) -> list[str]:
        """Holds of ours on what stays."""
        if not self.held_here:
            return []
        known, ours = self.known.installed(), packages.recorded_holds()
        leaving = set(self.leaving)
        return sorted(n for n, package in known.items() if package.held and n in ours and n not in leaving)

    def begin(self, node: NodeModule) -> None:
        """Complete what is half-way: apt's simulations know nothing of dpkg's journal, and keep too much."""
        if not node.check_mode:
            self.manager.recover()
            self.known.forget()

    def read(self) -> State:
        """Return the present version of each package of the record."""
        known = self.known.installed()
        return {
            name: known[name].version if name in known and known[name].installed else None
            for name in self.before
        }

    def is_at(self, state: State) -> bool:  # noqa: ARG002 - the record's, as in `before`
        """Return whether nothing is left to remove or to release."""
        return not self.leaving and not self.holds

    def taken_back(self) -> list[Difference]:
        """Return the packages that go, and the holds that are released."""
        found = [("packages", self.leaving), ("holds", self.holds)]
        return [Difference(name, "".join(f"{one}\n" for one in names), "") for name, names in found if names]

    @property
    def takes_driver(self) -> bool:
        """Whether a loaded driver, which this role holds, is among what goes."""
        if not self.held_here or not self.live or not loaded_state.loaded_version(ROOT):
            return False
        return any(packages.FAMILY.match(name) and not NO_DRIVER.match(name) for name in self.leaving)

    def containers(self) -> list[str]:
        """Return where the engines that go have containers."""
        found = [
            ROOT.glob(pattern)
            for engine, patterns in CONTAINERS.items()
            if self.live and any(map(engine.match, self.leaving))
            for pattern in patterns
        ]
        return sorted(str(path) for paths in found for path in paths)

    def obstacle(self) -> str | None:
        """Return who uses a GPU whose driver would go, or has containers in an engine that would."""
        if found := self.containers():
            return (
                f"an engine that Temper installed has containers ({found[0]}): remove them, or keep the "
                "engines (--skip-tags container_engines)"
            )
        if not self.takes_driver or self.busy_ok:
            return None
        users, _ = loaded_state.gpu_users(ROOT)
        if not users:
            return None
        more = f" and {len(users) - 1} more" if len(users) > 1 else ""
        return (
            f"a GPU is in use ({users[0]}{more}), and its driver would go: drain the node, or set "
            "nvidia_stack_busy_ok: true"
        )

    def warnings(self) -> list[str]:
        """Return what stays, and why."""
        before, now = self.before, self.read()
        needed = [] if self.heir else self.needed
        # Of an earlier version of Temper there is no record, and what it held is told from nothing else.
        there = [name for name in self.holds if name not in before]
        moved = [
            f"{name} {now[name] or 'removed'} (was {version})"
            for name, version in before.items()
            if version not in (None, packages.CONFIGURATION) and now[name] != version
        ]
        left = sorted(name for name in self.leaving if not self.purged(name))
        data = [f"configuration and data of {', '.join(left)}"] if left else []
        others = "they may hold what is not Temper's: records, images, or what was there before"
        if process.which("apt-get"):
            others += f"; to remove them: apt-get purge {' '.join(left)}"
        # No command for what stays: it would close the ways in, or take packages of others along.
        said = [
            *((names, why) for why, names in self.never.items()),
            (needed, "packages that stay need them"),
            (there, "they were there before, or an earlier version of Temper installed them"),
            (data, others),
            (moved, "there is no way back to the former version: install it with the package manager"),
        ]
        return [f"stays: {', '.join(sorted(names))}, because {why}." for names, why in said if names]

    def restore(self, state: State) -> None:  # noqa: ARG002 - the record's, as in `before`
        """Remove them in one transaction and release the holds. Raises PackageError.

        Minutes may have passed since somebody asked for obstacles.
        """
        if reason := self.obstacle():
            raise packages.PackageError(f"No package was removed: {reason}.")
        self.took_driver, holds = self.takes_driver, self.holds
        if self.leaving:
            with contextlib.nullcontext() if self.live else services_left_alone():
                self.manager.remove(self.leaving, list(filter(self.purged, self.leaving)))
        if holds:
            self.manager.release(holds)
        if gone := packages.recorded_holds() & {*self.leaving, *holds}:
            packages.record_holds(packages.recorded_holds() - gone)
        self.known.forget()
        self._leaving = None
        if self.took_driver:
            node.unproven().unlink(missing_ok=True)
            self.unload()

    def inherited(self, note: dict[str, Any]) -> dict[str, Any]:
        """Return a later role's note with what it needs, and which of that is only removed."""
        kept = {name for name in self.needed if not self.purged(name)}
        only_removed = sorted({*note["spec"].get("only_removed", ()), *kept})
        earlier = sorted(self.earlier & {*note["spec"].get("earlier", ())})
        return {
            "spec": {**note["spec"], "only_removed": only_removed, "earlier": earlier},
            "state": {**{name: self.before[name] for name in self.needed}, **note["state"]},
        }

    def unload(self) -> None:
        """Unload the driver's modules where its files are gone; one in use stays until the next boot."""
        if loaded_state.userspace_version(ROOT):
            return
        for name in MODULES:
            if (ROOT / "sys/module" / name).exists():
                process.succeeds(["rmmod", name])

    def after(self) -> list[str]:
        """Say that a reboot is due, where the driver that is gone is still loaded."""
        return loaded_state.gone_but_loaded(ROOT) if self.live and self.took_driver else []


def came(state: Mapping[str, str | None]) -> set[str]:
    """Return the packages of a record that were not there before Temper."""
    return {name for name, version in state.items() if version in (None, packages.CONFIGURATION)}


def rules_stand() -> bool:
    """Return whether the kernel filters by tables that are not Temper's, or does not say."""
    # Imported on demand: a node compiles whatever an execution imports.
    from ansible.module_utils.temper.access.nftables_rules import TABLE

    legacy = any(loaded_state.read(ROOT / "proc/net" / name) for name in LEGACY_TABLES)
    if legacy or not process.which("nft"):
        return True
    listed = process.complete(["nft", "list", "tables"])
    tables = [line.split()[1:] for line in listed.stdout.splitlines() if line.strip()]
    return bool(listed.returncode) or any(table != TABLE.split() for table in tables)
