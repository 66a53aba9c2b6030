"""A node's way to another kernel beside the one that runs, and back (apt).

Only packages that are named after a kernel's release come and go, never the ones that follow the newest
(linux-image-amd64): so the way back removes what has come, and nothing that was there before depends on it.
What has to be known for that is noted on the node, for whoever goes on after a crash.
"""

from __future__ import annotations

import contextlib
import platform
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ansible.module_utils.temper import records
from ansible.module_utils.temper.driver import kernel_modules, module_builds
from ansible.module_utils.temper.kernel import grub
from ansible.module_utils.temper.packaging import apt_preview, staging
from ansible.module_utils.temper.packaging.apt import Apt, stanza
from ansible.module_utils.temper.packaging.packages import (
    FAMILY,
    OthersUnreadableError,
    PackageError,
    Packages,
    Wish,
    nearest,
)
from ansible.module_utils.temper.packaging.repositories import Repository
from ansible.module_utils.temper.settings.base import SettingError

RECORD = Path("/var/lib/temper/kernel-upgrade.json")
RECORD_VERSION = 2
UPGRADE = {
    **dict.fromkeys(("former", "release", "version"), str),
    **{name: {str: str} for name in ("packages", "back")},
    **{name: [str] for name in ("added", "automatic")},
}
NEWEST = "newest"
IMAGE = "linux-image-"
IMAGES = (IMAGE, "linux-image-unsigned-")
#: Debian's and Ubuntu's: 6.1.0-37-cloud-amd64, 6.12.117+deb13-amd64, 6.8.0-134-generic.
RELEASE = re.compile(r"\d[\d.]*(?:-\d+|\+(?:deb|bpo)[\d.]*)-(?P<flavour>[a-z0-9][\w-]*)")
#: Names of packages that bring kernels: linux-image-amd64, linux-image-generic-hwe-22.04.
FOLLOWS = re.compile(r"linux-image-(?!\d|unsigned-|extra-)(?!.*-dbg)")
NAMED = re.compile(r"linux-image-(\d[^\s,|()]*)")
MIB = 2**20


class RefusedError(SettingError):
    """The node cannot get another kernel; nothing was changed on it."""


class SettledError(RefusedError):
    """It has the kernel already, and runs it."""


@dataclass(frozen=True)
class Upgrade:
    """What is noted on the node: `packages` are the wish, `added` those that come, `back` what is replaced.

    `automatic` are packages of the former kernel that apt would remove by itself.
    """

    former: str
    release: str
    version: str
    packages: dict[str, str]
    added: list[str] = field(default_factory=list)
    back: dict[str, str] = field(default_factory=dict)
    automatic: list[str] = field(default_factory=list)

    def write(self) -> None:
        """Note it, in one step."""
        records.store(RECORD, {"upgrade": asdict(self)}, version=RECORD_VERSION)


@dataclass(frozen=True)
class Driver:
    """The driver whose module the new kernel needs; without a name in DKMS, its packages bring the module."""

    version: str
    dkms: str


def noted() -> Upgrade | None:
    """Return the upgrade that is under way on this node; None where there is none. Raises RecordError."""
    # In version 1 `version` is the kernel's.
    version, fields = records.load(RECORD, {"version": str}, RECORD_VERSION)
    if not fields:
        return None
    noted = fields if version == 1 else fields.get("upgrade", {})
    try:
        upgrade = Upgrade(**noted)
    except TypeError as error:
        raise records.damaged(RECORD, error) from error
    records.expect(RECORD, "upgrade", asdict(upgrade), UPGRADE)
    return upgrade


def look(
    wish: str, driver: Driver, repositories: Sequence[Repository], pins: Sequence[Mapping[str, str]]
) -> tuple[Upgrade, dict[str, Any]]:
    """Return the kernel that the node would get, and what that would change; nothing is changed.

    Raises:
        SettledError: it has that kernel already.
        RefusedError: it gets none, with the reason.
        PackageError: the repositories cannot be read.
    """
    if trouble := grub.problem():
        raise RefusedError(trouble)
    running = platform.release()
    with apt_preview.private_root(repositories, pins) as (root, unreadable):
        # The node's own lists may be months old, and what is newest may be where nobody could read.
        problems = [*root.read_all(repositories), *root.unread] if root else unreadable
        if root is None or problems:
            raise PackageError(" ".join(problems))
        known = root.apt.query()
        release, version = find(wish, running, known, root.apt)
        upgrade = Upgrade(running, release, version, packages(running, release, version, known, driver))
        preview = apt_preview.resolve(root, Wish(upgrade.packages), known)
    changes = preview.transaction
    driven = [one.name for one in (*changes.upgrade, *changes.downgrade) if FAMILY.match(one.name)]
    other = [f"It comes only with another driver ({', '.join(driven)}): bring that first."] if driven else []
    if problems := [*preview.problems, *other, *no_room(running)]:
        raise RefusedError(f"kernel {release}: {' '.join(problems)}")
    return upgrade, {
        "running": running,
        "release": release,
        "version": version,
        "install": [change.name for change in changes.install],
        "upgrade": [change.name for change in changes.upgrade],
        "download_bytes": changes.download_bytes,
        "warning": grub.warning(),
    }


def find(wish: str, running: str, known: Packages, apt: Apt) -> tuple[str, str]:
    """Release and package version of the kernel that is wished for. Raises RefusedError and SettledError."""
    match = RELEASE.fullmatch(running)
    image = next((stem for stem in IMAGES if (one := known.get(stem + running)) and one.installed), None)
    if image is None or not match:
        raise RefusedError(
            f"the running kernel {running} is from none of the distribution's packages: boot one that is"
        )
    current = known[image + running].version
    if wish == NEWEST:
        release = newest(match["flavour"], known, apt)
        version = next(iter(apt.offered([image + release]).get(image + release, [])), "")
        if release != running and apt.older(release, running):
            raise SettledError(f"it has the newest kernel already: {running}; {release} is offered")
    else:
        release, version = of_version(wish, image, match["flavour"], apt)
    if release == running and version in (current, ""):
        newer = "the newest kernel" if wish == NEWEST else "this kernel"
        raise SettledError(f"it has {newer} already: {running} ({current})")
    if release == running:
        raise RefusedError(
            f"version {version} would replace the running kernel {running} ({current}) in its place, so that "
            "there is no way back: upgrade it by hand"
        )
    if (installed := known.get(image + release)) and installed.installed:
        raise RefusedError(
            f"kernel {release} is installed, and {running} runs: reboot the node, or remove that kernel"
        )
    return release, version


def newest(flavour: str, known: Packages, apt: Apt) -> str:
    """Return the newest kernel of a flavour that the installed packages which follow kernels ask for."""
    following = [name for name, package in known.items() if package.installed and FOLLOWS.match(name)]
    asked: list[str] = []
    if following:
        shown = apt.run(
            ["apt-cache", "show", "--no-all-versions", *following], "Looking for the newest kernel"
        )
        for record in map(stanza, shown.split("\n\n")):
            asked += NAMED.findall(record.get("Depends", ""))
    found = [release for release in asked if flavour_of(release) == flavour]
    if not found:
        raise RefusedError(
            f"no package that brings kernels like {flavour} is installed ({IMAGE}{flavour} or such): name "
            "the version of the kernel instead of newest"
        )
    best = found[0]
    for release in found[1:]:
        best = release if apt.older(best, release) else best
    return best


def of_version(version: str, image: str, flavour: str, apt: Apt) -> tuple[str, str]:
    """Return the kernel of a flavour whose image has a package version."""
    names = apt.attempt(["apt-cache", "pkgnames", image]).stdout.split()
    images = [name for name in names if flavour_of(name[len(image) :]) == flavour]
    offered = apt.offered(images) if images else {}
    for name, versions in offered.items():
        if version in versions:
            return name[len(image) :], version
    known = sorted({one for versions in offered.values() for one in versions})
    raise RefusedError(
        f"no repository of this node offers a kernel of version {version} for {flavour}; nearest are "
        f"{', '.join(nearest(version, known)) or 'none'}"
    )


def flavour_of(release: str) -> str:
    """Return what comes after the numbers of a kernel's release; empty for a kernel of others."""
    match = RELEASE.fullmatch(release)
    return match["flavour"] if match else ""


def packages(running: str, release: str, version: str, known: Packages, driver: Driver) -> dict[str, str]:
    """Return a counterpart of each installed package of the running kernel, and the headers for DKMS.

    Ubuntu's linux-modules-extra are among them, and the driver's modules that Canonical has built: without
    the one a node may have no network, without the other no GPU.
    """
    own = f"-{running}"
    names = {
        name[: -len(running)] + release: version if name.startswith(IMAGES) else ""
        for name, package in known.items()
        if package.installed and name.endswith(own)
    }
    return names | ({f"linux-headers-{release}": ""} if driver.dkms else {})


def no_room(running: str) -> list[str]:
    """Return why /boot has too little space.

    A new kernel needs as much as the running one, and its initrd twice that for a while.
    """
    boot = grub.ROOT / "boot"
    sizes = {file.name: file.stat().st_size for file in boot.glob(f"*-{running}") if file.is_file()}
    need = sum(sizes.values()) + sizes.get(f"initrd.img-{running}", 0)
    free = shutil.disk_usage(boot).free
    if free >= need:
        return []
    return [
        f"/boot has {free // MIB} MiB free, and another kernel needs {-(-need // MIB)} MiB there; remove one "
        "that nobody boots any more."
    ]


def stage(
    wish: str, driver: Driver, repositories: Sequence[Repository], pins: Sequence[Mapping[str, str]]
) -> dict[str, Any]:
    """Fetch the packages of the kernel, and note what leads back. Raises as `look` does."""
    upgrade, found = look(wish, driver, repositories, pins)
    apt = Apt()
    if not apt.offers(upgrade.packages):
        # A repository that is none of this may be down.
        with contextlib.suppress(OthersUnreadableError):
            apt.refresh()
    preview, back = staging.stage(Wish(upgrade.packages), repositories, pins)
    if preview.problems:
        raise RefusedError(f"kernel {upgrade.release}: {' '.join(preview.problems)}")
    marked = apt.run(["apt-mark", "showauto"], "Asking which packages apt would remove").split()
    former = [name for name in marked if name.endswith(f"-{upgrade.former}")]
    versions = {change.name: change.version for change in preview.transaction.changes}
    replace(
        upgrade,
        packages={name: versions.get(name, version) for name, version in upgrade.packages.items()},
        added=[change.name for change in preview.transaction.install],
        back=back,
        automatic=former,
    ).write()
    return found


def install(upgrade: Upgrade, driver: Driver) -> None:
    """Install the kernel beside the one that runs, which stays the default, with the driver's module."""
    # First: the packages themselves would make the newest kernel the default.
    grub.pin(upgrade.former)
    apt = Apt()
    if upgrade.automatic:
        apt.run(["apt-mark", "manual", *upgrade.automatic], "Keeping the former kernel")
    known = apt.query()
    if any(package.broken for package in known.values()):
        apt.recover()
        known = apt.query()
    if lacking := Wish(upgrade.packages).lacking(known):
        apt.install(lacking)
    if driver.dkms and module_problem(upgrade.release, driver):
        failure = module_builds.build(driver.dkms, driver.version, upgrade.release)
        if failure:
            raise SettingError(f"Kernel {upgrade.release} gets no nvidia module: {failure}")
    ready(upgrade, driver)


def ready(upgrade: Upgrade, driver: Driver) -> None:
    """Raise SettingError where the new kernel must not be tried, or the former one would not come back."""
    for release in (upgrade.release, upgrade.former):
        if trouble := module_problem(release, driver):
            raise SettingError(trouble)
        grub.path_of(release)
    grub.pin(upgrade.former)


def module_problem(release: str, driver: Driver) -> str:
    """Return why a kernel would not load the driver, from its module file itself; empty where it would."""
    root = grub.ROOT
    path = kernel_modules.module_path(root, release)
    if path is None:
        return f"Kernel {release} has no nvidia module."
    fields = kernel_modules.modinfo([path]).get(str(path), {})
    built_for = fields.get("vermagic", "").partition(" ")[0] or "none that it names"
    if built_for != release:
        return f"The nvidia module of kernel {release} is built for {built_for}: {path}"
    version = fields.get("version")
    if version != driver.version:
        return (
            f"The nvidia module of kernel {release} is of version {version or 'none'}, expected "
            f"{driver.version}: {path}"
        )
    return ""


def arm(upgrade: Upgrade, driver: Driver) -> None:
    """Have the new kernel boot once; whatever comes after that boots the former one."""
    ready(upgrade, driver)
    grub.arm(upgrade.release)


def confirm(upgrade: Upgrade, release: str) -> None:
    """Raise SettingError where another kernel runs than this one."""
    grub.disarm()
    running = platform.release()
    if running != release:
        raise SettingError(
            f"Expected kernel {release}, found {running} running: "
            + (
                "it was tried once and did not stay up, or GRUB did not boot it."
                if release == upgrade.release
                else "boot it from GRUB's menu."
            )
        )


def keep(upgrade: Upgrade) -> str:
    """Make the new kernel the default for good; the former one stays. Says what is left on the node."""
    confirm(upgrade, upgrade.release)
    said = default_to(upgrade.release)
    close(upgrade)
    return said


def leave(upgrade: Upgrade) -> bool:
    """Have the former kernel boot. Returns whether the node must boot for that."""
    grub.disarm()
    grub.pin(upgrade.former)
    return platform.release() != upgrade.former


def remove(upgrade: Upgrade) -> str:
    """Remove what has come, and return to what it replaced. Says what is left on the node."""
    running = platform.release()
    if running != upgrade.former:
        raise SettingError(
            f"Expected kernel {upgrade.former} to run before {upgrade.release} goes, found {running}."
        )
    grub.disarm()
    apt = Apt()
    known = apt.query()
    gone = present(upgrade.added, known)
    back = Wish(upgrade.back).lacking(known)
    if not (gone or back or grub.pinned()):
        return ""  # it was only staged
    if gone or back:
        if any(package.broken for package in known.values()):
            apt.recover()
        apt.revert(gone, back, purge=True)
    known = apt.query()
    left = [*present(upgrade.added, known), *Wish(upgrade.back).lacking(known)]
    if left:
        raise SettingError(
            f"Kernel {upgrade.release} could not be removed: {', '.join(left)} stay; "
            "`apt-get purge` on the node says why."
        )
    return default_to(upgrade.former)


def close(upgrade: Upgrade) -> None:
    """Nothing is under way any more: apt may treat the former kernel as before."""
    apt = Apt()
    if names := present(upgrade.automatic, apt.query()):
        apt.run(["apt-mark", "auto", *names], "Treating the former kernel as before")
    RECORD.unlink(missing_ok=True)


def default_to(release: str) -> str:
    """Leave the default to the node's own options, where they boot this kernel; else say what is kept."""
    grub.unpin()
    if grub.default_release() == release:
        return ""
    grub.pin(release)
    return f"GRUB's own options would boot another kernel than {release}: /{grub.PIN} keeps it as the default"


def present(names: Iterable[str], known: Packages) -> list[str]:
    """Return the packages that have left something on the node."""
    return [name for name in names if name in known and known[name].status != "not-installed"]
