"""A set of packages at exact versions as one setting: one transaction, then holds."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible.module_utils.temper import process
from ansible.module_utils.temper.packaging import node, packages
from ansible.module_utils.temper.packaging.node import PackageState
from ansible.module_utils.temper.packaging.packages import (
    Manager,
    OthersUnreadableError,
    PackageError,
    Packages,
    Wish,
    arguments,
)
from ansible.module_utils.temper.packaging.services import services_left_alone
from ansible.module_utils.temper.settings.base import Difference, Setting, State


def package_manager(
    pins: Sequence[Mapping[str, str]] = (), streams: Sequence[Mapping[str, str]] = ()
) -> Manager:
    """Apt where there is apt, else dnf with these pins and module streams. A node loads only its own."""
    if process.which("apt-get"):
        from ansible.module_utils.temper.packaging.apt import Apt

        return Apt()
    from ansible.module_utils.temper.packaging.dnf import Dnf

    return Dnf(pins, streams)


class PackageSet(Setting):
    """Packages at their versions, held together with everything of NVIDIA's at one of `hold_versions`."""

    key = "package:set"

    def __init__(
        self,
        wish: Wish,
        hold_versions: Sequence[str] = (),
        manager: Manager | None = None,
        *,
        state: PackageState | None = None,
    ) -> None:
        self.wish = wish
        self.hold_versions = list(hold_versions)
        self.manager = manager or package_manager()
        self.state = state or node.NODE
        self.spec = {}
        self.removals: list[str] = []
        self.made: dict[str, Any] | None = None
        self.notes: list[str] = []
        #: Records what packages are before they change: name -> version, None for one that is not there. With
        #: True: these have not come.
        self.note: Callable[..., None] = lambda _former, _failed=False: None

    @classmethod
    def from_items(
        cls,
        items: Mapping[str, Any],
        options: Mapping[str, Any],  # noqa: ARG003 - the signature is the one of all kinds
    ) -> PackageSet:
        """From items package, package_choice, pin, module_stream and hold_version, each "KIND:NAME".

        A choice needs its first package where none of `any` is installed.
        """
        kinds = ("package", "package_choice", "pin", "module_stream", "hold_version")
        found: dict[str, dict[str, Any]] = {kind: {} for kind in kinds}
        for item, wanted in items.items():
            kind, _, name = item.partition(":")
            found[kind][name] = wanted
        known = node.NODE.installed() if found["package_choice"] else {}
        for name, choice in found["package_choice"].items():
            if not any(known[other].installed for other in choice["any"] if other in known):
                found["package"].setdefault(name, {"version": "", "held": False})
        listed = {name: wanted for name, wanted in found["package"].items() if wanted}
        made = cls(
            Wish(
                {name: wanted["version"] for name, wanted in listed.items() if wanted["held"]},
                {name: wanted["version"] for name, wanted in listed.items() if not wanted["held"]},
            ),
            [version for version, held in found["hold_version"].items() if held],
            package_manager(
                [{"packages": name, **pin} for name, pin in found["pin"].items() if pin],
                [stream for stream in found["module_stream"].values() if stream],
            ),
        )
        made.removals = [name for name in found["package"] if name not in listed]
        return made

    @property
    def first(self) -> bool:
        """Whether these are programs that other settings work with, and nothing is held."""
        return not self.wish.packages

    # ------------------------------------------------------------ what is there

    @property
    def known(self) -> Packages:
        """The packages of the node."""
        return self.state.installed()

    def full_wish(self) -> Wish:
        """Return the wish with what holding itself needs."""
        required = dict.fromkeys(self.manager.required(), "")
        return Wish(self.wish.packages, {**self.wish.present, **required})

    def broken(self) -> list[str]:
        """Return packages that an interrupted transaction has left half-way."""
        return sorted(name for name, package in self.known.items() if package.broken)

    def needs_transaction(self) -> bool:
        """Return whether the package manager has to run, and not only to hold.

        Somebody else's package that is half installed is completed with the stack; a role that has the few
        programs it needs does not touch it.
        """
        half_way = not self.first and self.broken()
        return bool(self.full_wish().lacking(self.known) or half_way or not self.manager.prepared())

    def read(self) -> State:
        """Version and hold of what is wanted and of NVIDIA's family; None for a package that is missing."""
        family = [name for name in self.known if packages.FAMILY.match(name)]
        found = {
            name: {"version": package.version, "held": package.held}
            for name, package in self.known.items()
            if package.installed
        }
        return {name: found.get(name) for name in sorted({*self.wish.packages, *self.wish.present, *family})}

    def settled(self) -> bool:
        """Return whether all are there, at their versions, and held."""
        return not self.needs_transaction() and not self.to_hold()

    def change(self) -> list[Difference]:
        """Return what is asked of the package manager.

        Nothing is simulated: on a bare node the repositories are not there yet; preflight has done it.
        """
        lacking = self.full_wish().lacking(self.known)
        after = "".join(f"{argument}\n" for argument in arguments(lacking))
        holds = "".join(f"{name}\n" for name in self.to_hold())
        there = ((name, self.known.get(name)) for name in lacking)
        found = [f"{name}={package.version}\n" for name, package in there if package and package.installed]
        return [
            *([Difference("packages", "".join(found), after)] if lacking else []),
            *([Difference("holds", "", holds)] if holds else []),
        ]

    def obstacle(self) -> str | None:
        """Return the packages that must not be there, and that Temper does not remove.

        Only a role that is taken back removes packages, and only its own.
        """
        if not self.removals:
            return None
        return f"{', '.join(self.removals)}: Temper removes only what it installed; remove them by hand"

    def warnings(self) -> list[str]:
        """Repositories of others that could not be read."""
        return self.notes

    def result(self) -> dict[str, Any]:
        """Return what was installed, held and recovered, or would be."""
        if self.made is not None:
            return self.made
        if not self.needs_transaction():
            return {"installed": {}, "held": self.to_hold(), "recovered": []}
        lacking = self.full_wish().lacking(self.known)
        new = {name: version for name, version in lacking.items() if name in self.wish.packages}
        return {"installed": new, "held": sorted(new), "recovered": self.broken()}

    # ------------------------------------------------------------ the way there

    def apply(self) -> None:
        """Run the transaction where one is needed, then hold. Raises PackageError."""
        before, broken = self.known, self.broken()
        installed: dict[str, str] = {}
        if self.needs_transaction():
            with contextlib.nullcontext() if self.live else services_left_alone():
                self.transact()
            left = self.full_wish().lacking(self.known)
            if left:
                raise PackageError(
                    "The package manager reported success, but these are still not installed as wanted: "
                    f"{', '.join(arguments(left))}."
                )
            there = {name: package.version for name, package in before.items() if package.installed}
            installed = {
                name: package.version
                for name, package in self.known.items()
                if package.installed and there.get(name) != package.version
            }
        held = self.hold()
        self.made = {"installed": installed, "held": held, "recovered": broken}

    def transact(self) -> None:
        """Bring the packages to the wish; the package manager's state is as before where that fails."""
        lacking, broken = self.full_wish().lacking(self.known), self.broken()
        self.manager.prepare()
        try:
            if self.state.lists_outdated or not self.manager.offers(lacking):
                self.read_lists(lacking)
            # Another package manager may have had the lock until now, and changed something.
            self.state.forget()
            if broken:
                self.recover()
            lacking = self.full_wish().lacking(self.known)
            if lacking:
                self.install(lacking)
        except PackageError:
            self.manager.abandon()
            raise
        finally:
            self.state.forget()

    def read_lists(self, lacking: dict[str, str]) -> None:
        """Read the lists of packages; a repository that has nothing of what is wanted may fail."""
        try:
            self.manager.refresh()
        except OthersUnreadableError as error:
            if not self.manager.offers(lacking):
                raise
            self.notes.append(f"{error} Going on, because all that is wanted is offered all the same.")
        self.state.lists_outdated = False

    def install(self, wanted: dict[str, str]) -> None:
        """Run a transaction if its simulation shows nothing that it must not do."""
        transaction = self.manager.simulate(wanted)
        problems = packages.dangers(transaction, list(wanted), self.known, packages.recorded_holds())
        if problems:
            raise PackageError(
                f"The transaction is refused, because {' and '.join(problems)}. Nothing was changed. "
                f"Asked for: {' '.join(arguments(wanted)) or 'completing an interrupted installation'}."
            )
        # Tools of NVIDIA's family (profilers) come later, and the libraries stay as they were proven.
        if self.wish.packages and any(packages.FAMILY.match(change.name) for change in transaction.changes):
            node.mark_unproven()
        former = self.former(transaction)
        self.note(former)
        try:
            self.manager.install(wanted)
        except PackageError:
            self.state.forget()
            left = {name for name, package in self.known.items() if package.installed or package.broken}
            came = (None, packages.CONFIGURATION)
            self.note({name: None for name in former if former[name] in came and name not in left}, True)
            raise

    def former(self, transaction: packages.Transaction) -> dict[str, str | None]:
        """Return the versions before a transaction of what it changes.

        Of another architecture nothing is noted.

        One that was removed has none, but what is left of it is not Temper's.
        """
        there = {name: package.version for name, package in self.known.items() if package.installed}
        left = {name for name, package in self.known.items() if package.status == packages.CONFIGURATION}
        new = {
            change.name: packages.CONFIGURATION if change.name in left else None
            for change in transaction.install
            if change.name not in there
        }
        names = [change.name for change in (*transaction.upgrade, *transaction.downgrade)]
        names += [name for name, _ in transaction.remove]
        return {**new, **{name: there[name] for name in names if name in there}}

    def recover(self) -> None:
        """Complete what an interrupted run left half-way."""
        self.manager.recover()
        self.state.forget()
        # apt completes what lacks a dependency in a transaction of its own; after dnf nothing is left.
        if self.broken():
            try:
                self.install({})
            except PackageError:
                # One of ours that cannot be configured is gone now; what is wanted may be another version.
                self.state.forget()
                if self.broken():
                    raise
            self.state.forget()

    # ------------------------------------------------------------ holds

    def versions_to_hold(self) -> list[str]:
        """Return the versions; where any was asked for, the siblings of what is there now belong to it."""
        any_version = [name for name, version in self.wish.packages.items() if not version]
        found = [self.known[name] for name in any_version if name in self.known]
        return [*self.hold_versions, *(package.version for package in found if package.installed)]

    def to_hold(self) -> list[str]:
        """Return what has to be held and is not yet."""
        return packages.to_hold(self.wish.packages, self.versions_to_hold(), self.known)

    def hold(self) -> list[str]:
        """Hold what has to be held and is not yet; returns its names."""
        new, versions = self.to_hold(), self.versions_to_hold()
        if new:
            self.note({})
        ours = {
            name
            for name, package in self.known.items()
            if package.installed and packages.belongs(package, self.wish.packages, versions)
        }
        recorded = packages.recorded_holds()
        if not ours <= recorded:
            # Before the hold itself: cut off between the two, ours would look like somebody else's.
            packages.record_holds(ours | recorded)
        if new:
            self.manager.hold(new)
            self.state.forget()
        return new
