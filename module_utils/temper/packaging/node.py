"""What one execution knows of the node's packages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ansible.module_utils.temper import process
from ansible.module_utils.temper.packaging import packages
from ansible.module_utils.temper.packaging.packages import Packages


def query() -> Packages:
    """Return all packages that dpkg knows, or rpm where there is no dpkg.

    Raises PackageError, CommandError.
    """
    if process.which("dpkg-query"):
        return packages.query()
    from ansible.module_utils.temper.packaging.dnf import Dnf

    return Dnf().query()


@dataclass
class PackageState:
    """What is known of packages: asked for once, and again after a change.

    `lists_outdated` says that a repository has changed since the package lists were read.
    """

    query: Callable[[], Packages] = query
    known: Packages | None = None
    lists_outdated: bool = False

    def installed(self) -> Packages:
        """Return all packages that the package manager knows."""
        if self.known is None:
            self.known = self.query()
        return self.known

    def forget(self) -> None:
        """Forget what was known, because it may have changed."""
        self.known = None


# All settings of one execution share it: asking dpkg takes a tenth of a second each time.
NODE = PackageState()


def unproven() -> Path:
    """There while NVIDIA's packages have changed, and none of their libraries has been asked for its version.

    A file, because a reboot may lie between, and a run may be cut off.
    """
    return packages.HOLD_RECORD.with_name("unproven-packages")


def mark_unproven() -> None:
    """Note that the libraries have to be asked for their versions."""
    unproven().parent.mkdir(parents=True, exist_ok=True)
    unproven().touch()
