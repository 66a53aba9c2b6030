"""A snapshot of a file system before a change: find its kind, take one, check that it holds, remove it.

Three kinds: btrfs, LVM (with a size of its own, or thin) and ZFS. What is to be snapshotted is found from the
mount point. A snapshot counts only where a person could go back to it: the packages' database and `/usr` have
to be within it, and an LVM snapshot that has run full is void (lvs(8)). What carries our name and not our
mark is somebody else's, and is neither used nor removed. Nothing here restores anything.

LVM and ZFS are used by the command lines of their manuals: lvcreate(8), lvs(8), zfs-snapshot(8), zfs-list(8).
"""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeVar

from ansible.module_utils.temper import process
from ansible.module_utils.temper.mounts import Mount, mounts

MOUNTS = Path("/proc/self/mountinfo")
#: LVM and ZFS both take such a name, and it is never an option or a path.
NAME = re.compile(r"temper-[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
#: Our mark: a tag of LVM, a property of ZFS. On btrfs it is the folder in which our snapshots lie.
TAG, PROPERTY, FOLDER = "temper", "temper:snapshot", ".temper-snapshots"
#: Without them in the snapshot, the package manager would know of other packages than there are.
NEEDED = ("etc", "usr", "var/lib/dpkg", "var/lib/rpm", "usr/lib/sysimage/rpm")
#: Images, which nobody writes to.
READ_ONLY = ("squashfs", "iso9660", "erofs")
#: A thin pool whose metadata are full goes read-only (lvmthin(7)).
METADATA_LIMIT_PERCENT = 90.0
LVS = "vg_name,lv_name,origin,lv_attr,lv_tags,data_percent,metadata_percent,pool_lv,lv_time,lv_size,vg_free"
GIB = 2**30
#: What clocks may differ by.
CLOCKS_S = 300.0


Value = TypeVar("Value")


class SnapshotError(Exception):
    """There is none that can be relied on, or none can be taken; the message is a sentence."""


class OtherKindError(SnapshotError):
    """The file system is of another kind than the wanted one: it has no such snapshot."""


@dataclass(frozen=True)
class Snapshot:
    """A snapshot of ours. `place` is what its own tools call it, `created_s` is Unix time.

    `void` is why it is no way back any more; `used_percent` how much of its room an LVM snapshot has used.
    """

    name: str
    kind: str
    place: str
    created_s: float
    void: str = ""
    used_percent: float | None = None

    @property
    def taken(self) -> str:
        """When, for people."""
        # Python 3.9 has no datetime.UTC.
        return datetime.fromtimestamp(self.created_s, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")  # noqa: UP017 - not in Python 3.9


def device_of(path: str) -> int:
    """Return the file system of a path; each subvolume of btrfs counts as one."""
    return os.stat(path).st_dev  # noqa: PTH116 - a number, and tests give their own


class Root:
    """The file system at a mount point, of the wanted kind. Raises SnapshotError where it is another one."""

    def __init__(self, kind: str, point: str = "/") -> None:
        self.point = point
        self.all = mounts(MOUNTS)
        # The last one hides those before it.
        here = [one for one in self.all if one.point == point]
        if not here:
            raise SnapshotError(f"Expected a mounted file system at {point}, found none.")
        self.mount = here[-1]
        self.volumes: Btrfs | Lvm | Zfs
        if kind == "lvm":
            self.volumes = Lvm(self.mount)
        elif self.mount.kind != kind:
            raise OtherKindError(
                f"Expected {kind} at {point}, as the policy's `snapshot` says, found {self.mount.kind} on "
                f"{self.mount.source}."
            )
        else:
            self.volumes = Btrfs(self.mount) if kind == "btrfs" else Zfs(self.mount)

    def outside(self) -> list[str]:
        """Return the mount points below that no snapshot of this one has: `/boot`, often."""
        below = [
            one
            for one in self.all
            if one.point.startswith(f"{self.point.rstrip('/')}/")
            and (one.source.startswith("/dev/") or one.kind in ("btrfs", "zfs"))
            and one.kind not in READ_ONLY
            # A user mounted it, may name any device, and need not answer a question about the folder.
            and not one.kind.startswith("fuse")
        ]
        return sorted({process.printable(one.point) for one in below if not self._has(one.point)})

    def missing(self) -> list[str]:
        """Return what a way back needs, and a snapshot of this file system has not."""
        paths = (str(Path(self.point, name)) for name in NEEDED)
        return [path for path in paths if os.path.exists(path) and not self._has(path)]  # noqa: PTH110 - names, not Paths

    def _has(self, path: str) -> bool:
        try:
            if device_of(path) == device_of(self.point):
                return True
        except OSError:
            return False  # nobody can tell; then it is said
        if self.mount.kind != "zfs":
            return False
        real = os.path.realpath(path)
        holders = [one for one in self.all if f"{real}/".startswith(f"{one.point.rstrip('/')}/")]
        source = max(holders, key=lambda one: len(one.point)).source
        return source.startswith(f"{self.mount.source}/")


class Btrfs:
    """Snapshots of a subvolume, in a folder of its own within it: they are no part of each other."""

    def __init__(self, mount: Mount) -> None:
        self.point = mount.point
        self.folder = Path(mount.point, FOLDER)

    def find(self, name: str) -> Snapshot | None:
        """Return the snapshot of that name. Raises SnapshotError where it is something else."""
        path = self.folder / name
        if not os.path.lexists(path):
            return None
        shown, own = self._show(str(path)), self._show(self.point)
        if shown.get("Parent UUID") != own.get("UUID") or "readonly" not in shown.get("Flags", ""):
            raise SnapshotError(
                f"{path} is no read-only snapshot of {self.point}: it is not Temper's, and is left alone. "
                "Move it away."
            )
        created_s = _value(
            "btrfs subvolume show",
            shown.get("Creation time", ""),
            lambda text: datetime.strptime(text, "%Y-%m-%d %H:%M:%S %z").timestamp(),
        )
        return Snapshot(name, "btrfs", str(path), created_s)

    def take(self, name: str, room_bytes: int) -> None:
        """Take it, where so much is free: what is replaced stays."""
        self.check_room(room_bytes)
        self.folder.mkdir(mode=0o700, exist_ok=True)
        # Onto a folder that is there, btrfs would put it inside: find() has looked.
        _run(["btrfs", "subvolume", "snapshot", "-r", self.point, str(self.folder / name)])

    def check_room(self, room_bytes: int) -> None:
        """Raise SnapshotError where there is not enough."""
        free = os.statvfs(self.point)
        _enough(free.f_bavail * free.f_frsize, room_bytes, f"on {self.point}")

    def remove(self, found: Snapshot) -> None:
        """Remove it, and the folder with the last one."""
        _run(["btrfs", "subvolume", "delete", "--commit-after", found.place])
        if not os.listdir(self.folder):  # noqa: PTH208 - all there is
            self.folder.rmdir()

    def _show(self, path: str) -> dict[str, str]:
        lines = _run(["btrfs", "subvolume", "show", path]).split("\n")
        pairs = (line.strip().partition(":") for line in lines if ":" in line)
        return {key: value.strip() for key, _, value in pairs}


class Lvm:
    """Snapshots of a logical volume: with a size of their own, or in the thin pool of their origin."""

    def __init__(self, mount: Mount) -> None:
        if not mount.source.startswith("/dev/mapper/"):
            raise OtherKindError(
                f"Expected a logical volume at {mount.point}, as the policy's `snapshot` says, found "
                f"{mount.kind} on {mount.source}."
            )
        try:
            (self.origin,) = _lvs(mount.source)
        except (SnapshotError, ValueError) as error:
            raise SnapshotError(
                f"Expected a logical volume at {mount.point}, as the policy's `snapshot` says, found "
                f"{mount.kind} on {mount.source}, which LVM does not know: {error}"
            ) from error

    def find(self, name: str) -> Snapshot | None:
        """Return the snapshot of that name. Raises SnapshotError where it is something else."""
        group = self.origin["vg_name"]
        volumes = {one["lv_name"]: one for one in _lvs(group)}
        if name not in volumes:
            return None
        found, place = volumes[name], f"{group}/{name}"
        if TAG not in found["lv_tags"].split(",") or found["origin"] != self.origin["lv_name"]:
            raise SnapshotError(
                f"The logical volume {place} is no snapshot of {group}/{self.origin['lv_name']} with tag "
                f"{TAG}: it is not Temper's, and is left alone. Rename or remove it."
            )
        void, used = _state(found, volumes)
        return Snapshot(name, "lvm", place, _value("lvs", found["lv_time"], _finite), void, used)

    def take(self, name: str, room_bytes: int) -> None:
        """Take it: of so much, or in the thin pool, where so much has to be free."""
        self.check_room(room_bytes)
        size = [] if self.origin["pool_lv"] else ["--size", f"{room_bytes}b"]
        own = f"{self.origin['vg_name']}/{self.origin['lv_name']}"
        options = ["--snapshot", "--name", name, "--permission", "r", "--addtag", TAG]
        _run(["lvcreate", "--yes", *options, *size, own])

    def check_room(self, room_bytes: int) -> None:
        """Raise SnapshotError where there is not enough."""
        group, pool_name = self.origin["vg_name"], self.origin["pool_lv"]
        if not pool_name:
            # More than the origin's size is never used.
            wanted = min(room_bytes, _value("lvs", self.origin["lv_size"], int))
            _enough(_value("lvs", self.origin["vg_free"], int), wanted, f"in volume group {group}")
            return
        pool = next((one for one in _lvs(group) if one["lv_name"] == pool_name), None)
        if pool is None:
            raise SnapshotError(f"Expected the thin pool {group}/{pool_name} from `lvs`, found none.")
        if full := _pool_is_full(pool):
            raise SnapshotError(f"No snapshot is taken: {full}.")
        free = _value("lvs", pool["lv_size"], int) * (100.0 - _percent(pool["data_percent"] or "100")) / 100.0
        _enough(int(free), room_bytes, f"in thin pool {group}/{pool_name}")

    def remove(self, found: Snapshot) -> None:
        """Remove it."""
        _run(["lvremove", "--yes", found.place])


class Zfs:
    """Snapshots of a dataset and of all below it, at one moment: Ubuntu's `/var/lib/dpkg` is one of those."""

    def __init__(self, mount: Mount) -> None:
        self.dataset = mount.source

    def find(self, name: str) -> Snapshot | None:
        """Return the snapshot of that name. Raises SnapshotError where it is something else."""
        place = f"{self.dataset}@{name}"
        options = ["-H", "-p", "-t", "snapshot", "-d", "1", "-o", f"name,creation,{PROPERTY}"]
        listed = _run(["zfs", "list", *options, self.dataset])
        rows = {row[0]: row for row in (line.split("\t") for line in listed.splitlines()) if len(row) == 3}
        if place not in rows:
            return None
        _, created, mark = rows[place]
        if mark != "yes":
            raise SnapshotError(
                f"The snapshot {place} has not the property {PROPERTY}=yes: it is not Temper's, and is left "
                "alone. Rename or destroy it."
            )
        return Snapshot(name, "zfs", place, _value("zfs list", created, _finite))

    def take(self, name: str, room_bytes: int) -> None:
        """Take it, where so much is free: what is replaced stays."""
        self.check_room(room_bytes)
        _run(["zfs", "snapshot", "-r", "-o", f"{PROPERTY}=yes", f"{self.dataset}@{name}"])

    def check_room(self, room_bytes: int) -> None:
        """Raise SnapshotError where there is not enough."""
        available = _run(["zfs", "list", "-H", "-p", "-o", "available", self.dataset])
        _enough(_value("zfs list", available, int), room_bytes, f"for dataset {self.dataset}")

    def remove(self, found: Snapshot) -> None:
        """Remove it. Only what has this name after the @ goes, here and below."""
        _run(["zfs", "destroy", "-r", found.place])


def take(
    root: Root, name: str, room_bytes: int, max_age_s: float | None = None, *, check: bool = False
) -> tuple[Snapshot | None, bool]:
    """Return the snapshot of this name, taken now where there is none; and whether that changed anything.

    One that is void, or older than `max_age_s`, is replaced: it is asked for before anything is changed.
    With `check` nothing is done, and what does not exist yet is None.

    Raises:
        SnapshotError: it cannot be taken, or would be no way back.
    """
    _named(name)
    if lost := root.missing():
        raise SnapshotError(
            f"A snapshot of {root.point} would be no way back: {', '.join(lost)} would be outside of it. "
            "Take one with the platform's own commands (`snapshot: commands`), or none."
        )
    found = root.volumes.find(name)
    if found and not _unfit(found, max_age_s):
        return found, False
    if check:
        root.volumes.check_room(room_bytes)
        return None, True
    if found:
        root.volumes.remove(found)
    root.volumes.take(name, room_bytes)
    return verify(root, name, max_age_s), True


def verify(root: Root, name: str, max_age_s: float | None = None) -> Snapshot:
    """Return the snapshot of this name. Raises SnapshotError where it is missing, void or too old."""
    found = root.volumes.find(_named(name))
    if not found:
        raise SnapshotError(f"Expected the snapshot {name} of {root.point}, found none.")
    if unfit := _unfit(found, max_age_s):
        raise SnapshotError(f"The snapshot {found.place} cannot be relied on: {unfit}.")
    return found


def remove(root: Root, name: str, *, check: bool = False) -> bool:
    """Remove the snapshot of this name, and nothing else; returns whether there was one."""
    found = root.volumes.find(_named(name))
    if found and not check:
        root.volumes.remove(found)
    return found is not None


def _named(name: str) -> str:
    if not NAME.fullmatch(name):
        raise SnapshotError(f"Expected a name such as temper-7, of letters, digits, . _ -, found {name!r}.")
    return name


def _unfit(found: Snapshot, max_age_s: float | None) -> str:
    """Return why it cannot be relied on; empty where it can."""
    age_s = time.time() - found.created_s
    # One of a time to come was taken by a clock that was wrong, nobody knows when.
    if not found.void and max_age_s is not None and not -CLOCKS_S <= age_s <= max_age_s:
        return f"it was taken {found.taken}, and may be {max_age_s / 60:g} min old"
    return found.void


def _enough(free_bytes: int, room_bytes: int, where: str) -> None:
    if free_bytes < room_bytes:
        raise SnapshotError(
            f"A snapshot needs {room_bytes / GIB:.1f} GiB for what changes after it, and "
            f"{free_bytes / GIB:.1f} GiB are free {where}: make room, or lower `snapshot_gib` in the policy."
        )


def _lvs(what: str) -> list[dict[str, str]]:
    """Return the logical volume, or all of a group. Times are Unix time, sizes bytes."""
    options = ["--reportformat", "json", "--units", "b", "--nosuffix", "--config", 'report/time_format="%s"']
    text = _run(["lvs", *options, "--options", LVS, what])
    try:
        report: dict[str, Any] = json.loads(text)
        return [{name: str(one[name]) for name in LVS.split(",")} for one in report["report"][0]["lv"]]
    except process.MISREAD as error:
        raise SnapshotError(f"Expected JSON from `lvs`, found {' '.join(text.split())[:80]!r}.") from error


def _state(found: dict[str, str], volumes: dict[str, dict[str, str]]) -> tuple[str, float | None]:
    """Return why an LVM snapshot is void, and how full it is in percent."""
    if found["pool_lv"]:
        pool = volumes.get(found["pool_lv"])
        return (_pool_is_full(pool) if pool else ""), None
    used = _percent(found["data_percent"]) if found["data_percent"] else None
    # lvs(8): the fifth character is the state; I and S are invalid snapshots.
    if found["lv_attr"][4:5] in ("I", "S") or (used is not None and used >= 100):
        return "it has run full, and LVM has dropped what it held", used
    if used is None:
        return "it is not active, so LVM does not say whether it has run full", used
    return "", used


def _pool_is_full(pool: dict[str, str]) -> str:
    """Return why nothing in a thin pool can be relied on; empty where it can."""
    place = f"thin pool {pool['vg_name']}/{pool['lv_name']}"
    if not pool["data_percent"]:
        return f"{place} is not active, so LVM does not say how full it is"
    if _percent(pool["data_percent"]) >= 100:
        return f"{place} is full"
    if _percent(pool["metadata_percent"] or "0") >= METADATA_LIMIT_PERCENT:
        return f"the metadata of {place} are full to {pool['metadata_percent']} %"
    return ""


def _percent(text: str) -> float:
    return _value("lvs", text, _finite)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("expected a finite number")
    return number


def _value(program: str, text: str, read: Callable[[str], Value]) -> Value:
    try:
        return process.parsed(program, text, read)
    except process.OutputError as error:
        raise SnapshotError(str(error)) from error


def _run(command: Sequence[str]) -> str:
    try:
        return process.run(command)
    except process.CommandError as error:
        raise SnapshotError(f"{error}.") from error


def sentence(found: Snapshot, outside: Sequence[str]) -> str:
    """Return the snapshot for people, with what it does not have."""
    without = f", without {', '.join(outside)}" if outside else ""
    return f"{found.kind} snapshot {found.place} of {found.taken}{without}"
