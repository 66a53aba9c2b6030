"""What package managers have in common: packages, transactions, and what makes a transaction dangerous.

`apt.Apt` and `dnf.Dnf` implement `Manager`. Only the command lines of dpkg-query, apt-get, apt-mark, rpm and
dnf are used: they are stable over releases, their Python interfaces are not.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ansible.module_utils.temper import process
from ansible.module_utils.temper.files import read_regular, replace_file
from ansible.module_utils.temper.records import damaged
from ansible.module_utils.temper.settings.base import SettingError

# The names that belong to a GPU stack, whoever packaged them.
FAMILY = re.compile(
    r"^(nvidia-|libnvidia-|libnvsdm|libcudnn|cudnn|libnccl|cuda-|datacenter-gpu-manager|nvlsm$"
    r"|lib(cuda|cudadebugger|nvcuvid|nvoptix)1$|firmware-nvidia|kmod-nvidia-|linux-(modules|objects|signatures)-nvidia-(?!fs-)"
    r"|lib(egl|gl1|gles|glx)-nvidia)"
)
# An image that a boot loader offers; headers and other modules are none.
KERNEL = re.compile(r"^(linux-image-|kernel(-core|-rt|-rt-core|-64k|-64k-core)?$)")
#: With an architecture behind a colon where it is not the native one.
PACKAGE_NAME = re.compile(r"[A-Za-z0-9][\w.+:-]*")
#: What the records have of a package that was removed before Temper came, and had left its configuration.
CONFIGURATION = "config-files"
# Names whose hold is Temper's: any other hold is somebody's, and is respected.
HOLD_RECORD = Path("/var/lib/temper/held-packages")
# A transaction may wait for another package manager, download 10 GB over a slow line and compile modules for
# every kernel. Killing it leaves packages half-way, so only what hangs may reach this.
TRANSACTION_TIMEOUT_S = 6 * 3600
ERROR_LINES = 15
NEAREST = 3


@dataclass(frozen=True)
class Package:
    """One package that the package manager knows.

    `want` and `status` are dpkg's words: install or hold; installed, half-configured, config-files ...
    `others` are versions that rpm has installed beside it, as it does of a kernel's packages.
    """

    name: str
    version: str
    want: str
    status: str
    others: tuple[str, ...] = ()

    @property
    def installed(self) -> bool:
        """Unpacked and configured."""
        return self.status == "installed"

    @property
    def base(self) -> str:
        """The name without an architecture."""
        return self.name.partition(":")[0]

    @property
    def held(self) -> bool:
        """Whether its version is left alone."""
        return self.want == "hold"

    def is_version(self, wanted: str) -> bool:
        """Return whether it is there at a version; "" is any, and rpm's may be named without their epoch."""
        return not wanted or any(
            wanted in (version, version.partition(":")[2]) for version in (self.version, *self.others)
        )

    @property
    def broken(self) -> bool:
        """Whether an installation or a removal stopped half-way."""
        return self.status not in ("installed", "config-files", "not-installed")


Packages = dict[str, Package]


@dataclass(frozen=True)
class Wish:
    """What shall be installed: names and versions, "" for any. `packages` are held at them."""

    packages: dict[str, str]
    present: Mapping[str, str] = field(default_factory=dict)

    def lacking(self, known: Packages) -> dict[str, str]:
        """Return names and versions of what is missing or at another version."""
        return {
            name: version
            for name, version in {**self.present, **self.packages}.items()
            if not (name in known and known[name].installed and known[name].is_version(version))
        }


@dataclass(frozen=True)
class Change:
    """A package that a transaction installs; `previous` is the version it replaces."""

    name: str
    version: str
    architecture: str
    previous: str = ""
    uri: str = ""
    size_bytes: int = 0
    sha256: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For Ansible: an upgrade and a downgrade also say `from` and `to`."""
        said = asdict(self)
        previous = said.pop("previous")
        return {**said, **({"from": previous, "to": self.version} if previous else {})}


@dataclass(frozen=True)
class Transaction:
    """What one run of the package manager would do. `disk_bytes` is what it takes beyond what it frees."""

    install: tuple[Change, ...] = ()
    upgrade: tuple[Change, ...] = ()
    downgrade: tuple[Change, ...] = ()
    remove: tuple[tuple[str, str], ...] = ()
    download_bytes: int = 0
    disk_bytes: int = 0

    @classmethod
    def of(cls, parts: Mapping[str, Sequence[Change]], removed: Iterable[tuple[str, str]]) -> Transaction:
        """Return the transaction of changes by their kind, and of removals.

        What is replaced by another architecture's, or removed and then installed, is no removal.
        """
        install, upgrade, downgrade = (
            tuple(parts.get(kind, ())) for kind in ("install", "upgrade", "downgrade")
        )
        names = {change.name for change in (*install, *upgrade, *downgrade)}
        return cls(install, upgrade, downgrade, tuple(one for one in removed if one[0] not in names))

    def detailed(self, add: Callable[[Change], Change], download_bytes: int, disk_bytes: int) -> Transaction:
        """Return the same with the details of each change, and its sizes."""
        return Transaction(
            tuple(map(add, self.install)),
            tuple(map(add, self.upgrade)),
            tuple(map(add, self.downgrade)),
            self.remove,
            download_bytes,
            disk_bytes,
        )

    @property
    def changes(self) -> tuple[Change, ...]:
        """All that is installed, whatever was there before."""
        return self.install + self.upgrade + self.downgrade

    def as_dict(self) -> dict[str, Any]:
        """For Ansible."""
        return {
            "install": [change.as_dict() for change in self.install],
            "upgrade": [change.as_dict() for change in self.upgrade],
            "downgrade": [change.as_dict() for change in self.downgrade],
            "remove": [{"name": name, "version": version} for name, version in self.remove],
            "download_bytes": self.download_bytes,
            "disk_bytes": self.disk_bytes,
        }


class PackageError(SettingError):
    """A step of the package manager failed; the message is the sentence for the operator."""

    def __init__(self, message: str, output: str = "") -> None:
        super().__init__(message)
        self.output = [line.strip() for line in output.splitlines() if line.strip()]


class OthersUnreadableError(PackageError):
    """Only repositories that are not ours could not be read; what is wanted may be there all the same."""


class Manager(Protocol):
    """One package manager."""

    def query(self) -> Packages:
        """Return all packages that are installed, or left half-way."""

    def required(self) -> list[str]:
        """Return packages that are missing and that holding needs."""

    def prepared(self) -> bool:
        """Return whether everything is as a transaction needs it: module streams."""

    def prepare(self) -> None:
        """Make it so."""

    def abandon(self) -> None:
        """Return to how it was, because the transaction did not take place."""

    def with_details(self, transaction: Transaction) -> Transaction:
        """Return the transaction with addresses, sizes and checksums."""

    def refresh(self) -> None:
        """Read the lists of packages of all repositories anew."""

    def offers(self, wanted: dict[str, str]) -> bool:
        """Return whether the lists on the node know all these versions already."""

    def simulate(self, wanted: dict[str, str]) -> Transaction:
        """Return what installing these versions would do; changes nothing."""

    def install(self, wanted: dict[str, str]) -> None:
        """Install them in one transaction. One that fails is undone, as far as that is possible."""

    def recover(self) -> None:
        """Complete, as far as it goes without a transaction, what an interrupted run left half-way."""

    def hold(self, names: Sequence[str]) -> None:
        """Keep these packages at their versions."""

    def release(self, names: Sequence[str]) -> None:
        """Let these packages move again."""

    def removable(self, names: Sequence[str], ours: Collection[str]) -> list[str]:
        """Return which of these packages can be removed without changing any other; changes nothing.

        What a package recommends that is not one of `ours` stays as well.
        """

    def remove(self, names: Sequence[str], purge: Sequence[str]) -> None:
        """Remove them in one transaction, then the configuration of `purge`. Raises PackageError."""


def closed(names: Sequence[str], touched: Callable[[Sequence[str]], set[str]]) -> list[str]:
    """Return those of `names` whose removal touches none but `names`; `touched` simulates a removal."""
    ours = set(names)
    left = list(names)
    if left and not touched(left) <= ours:
        left = [name for name in left if touched([name]) <= ours]
        # One package may stand in for another: the two cannot go together.
        if left and not touched(left) <= ours:
            left = []
    return left


def dangers(transaction: Transaction, asked: Sequence[str], known: Packages, ours: set[str]) -> list[str]:
    """Return why a transaction must not run.

    It removes what is none of its business, changes what somebody holds, or brings a kernel that nobody asked
    for. `ours` are the names whose hold is Temper's.
    """
    changes = transaction.changes
    # The other flavour of the kernel modules, and the previous generation's names, give way by design.
    removed = [name for name, _ in transaction.remove if not FAMILY.match(name)]
    held = [
        name
        for name in [*(change.name for change in changes), *(name for name, _ in transaction.remove)]
        if name in known and known[name].held and name not in ours and name not in removed
    ]
    kernels = [change.name for change in changes if KERNEL.match(change.name) and change.name not in asked]
    problems = []
    if removed:
        problems.append(f"it would remove {', '.join(removed)}")
    if held:
        problems.append(f"it would change {', '.join(held)}, which somebody holds")
    if kernels:
        problems.append(f"it would install another kernel ({', '.join(kernels)})")
    return problems


def to_hold(wanted: dict[str, str], versions: Sequence[str], known: Packages) -> list[str]:
    """Installed packages that must be held and are not.

    They are the listed ones, and their siblings at one of the versions.
    """
    return sorted(
        name
        for name, package in known.items()
        if package.installed and not package.held and belongs(package, wanted, versions)
    )


def belongs(package: Package, wanted: dict[str, str], versions: Sequence[str]) -> bool:
    """Return whether a package is one that Temper holds."""
    if package.base in wanted:
        return package.is_version(wanted[package.base])
    return bool(FAMILY.match(package.base)) and any(
        version and package.is_version(version) for version in versions
    )


def recorded_holds() -> set[str]:
    """Return names that Temper holds, as far as it has noted. Raises RecordError."""
    try:
        names = set(read_regular(HOLD_RECORD).decode().split())
    except FileNotFoundError:
        return set()
    except (OSError, ValueError) as error:
        raise damaged(HOLD_RECORD, error) from error
    if strange := [name for name in names if not PACKAGE_NAME.fullmatch(name)]:
        raise damaged(HOLD_RECORD, f"expected names of packages, found {min(strange)!r}")
    return names


def record_holds(names: set[str]) -> None:
    """Note the names that Temper holds, in one step."""
    replace_file(HOLD_RECORD, "".join(f"{name}\n" for name in sorted(names)).encode(), 0o644)


def arguments(wanted: Mapping[str, str]) -> list[str]:
    """NAME=VERSION, or NAME where any version will do."""
    return [f"{name}={version}" if version else name for name, version in wanted.items()]


def nearest(version: str, offered: Sequence[str]) -> list[str]:
    """Return the offered versions that have most in common with a wanted one, best first."""

    def common(other: str) -> int:
        pairs = enumerate(zip(version, other))  # noqa: B905 - strict= is newer than some nodes' Python
        return next((count for count, (one, two) in pairs if one != two), min(len(version), len(other)))

    return sorted(dict.fromkeys(offered), key=common, reverse=True)[:NEAREST]


def attempt(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Return a finished command of a package manager, which may have failed."""
    try:
        return process.complete(command, TRANSACTION_TIMEOUT_S, environment)
    except FileNotFoundError as error:
        raise PackageError(f"`{command[0]}` is not installed on this node.") from error
    except subprocess.TimeoutExpired as error:
        raise PackageError(
            f"`{shlex.join(command)}` has not come to an end within {TRANSACTION_TIMEOUT_S // 3600} hours. "
            "Look for what holds it on the node, then run again: that completes what was left half-way."
        ) from error
    except process.OutputError as error:
        raise PackageError(str(error)) from error


def parse_dpkg(text: str, native: str = "") -> Packages:
    """Parse `dpkg-query -W -f QUERY_FORMAT`; what is not of the native architecture is NAME:ARCHITECTURE.

    Raises OutputError.
    """

    def package(line: str) -> Package:
        name, version, want, status, *architecture = line.split("\t")
        if native and architecture and architecture[0] not in ("", "all", native):
            name = f"{name}:{architecture[0]}"
        return Package(name, version, want, status)

    packages: Packages = {}
    for one in process.each_line("dpkg-query -W", text, package):
        if one.name not in packages or one.installed:
            packages[one.name] = one
    return packages


QUERY_FORMAT = "${Package}\\t${Version}\\t${db:Status-Want}\\t${db:Status-Status}\\t${Architecture}\\n"


def query() -> Packages:
    """Return all packages dpkg knows of. Raises CommandError where there is no dpkg, and when it fails."""
    listing = process.run(["dpkg-query", "-W", "-f", QUERY_FORMAT])
    # dpkg itself is of the native architecture.
    own = re.search(r"^dpkg\t.*\t(\S+)$", listing, re.MULTILINE)
    return parse_dpkg(listing, own[1] if own else "")
