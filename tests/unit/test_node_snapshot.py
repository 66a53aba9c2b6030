"""A snapshot before a change: found, taken once, refused where it is no way back, and only ours removed.

What btrfs says was recorded from btrfs-progs 6.2 on a loop device; there is a real one in the lab. The JSON
of the origin is that of lvs 2.03.16; its snapshots, which need a device mapper, and ZFS are as their manuals
say.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import node_snapshot
import pytest
from ansible.module_utils.temper import process, snapshots
from ansible.module_utils.temper.snapshots import GIB, Root, SnapshotError

NAME = "temper-7-x"
NOW = 1795387800.0  # 2026-11-22T22:50:00Z
MOUNTINFO = r"""
29 1 0:39 /@ / rw,relatime shared:1 - btrfs /dev/vda2 rw,subvolid=256,subvol=/@
30 29 8:1 / /boot rw,relatime shared:2 - ext4 /dev/vda1 rw
31 29 0:39 /@home /home rw,relatime shared:3 - btrfs /dev/vda2 rw,subvolid=258,subvol=/@home
32 29 0:5 / /proc rw - proc proc rw
33 29 7:0 / /snap/core ro - squashfs /dev/loop0 ro
34 29 8:3 / /srv/my\040disk rw - ext4 /dev/vdb1 rw
"""
LVM_MOUNTS = "29 1 253:0 / / rw,relatime shared:1 - ext4 /dev/mapper/vg0-root rw"
ZFS_MOUNTS = """
29 1 0:30 / / rw,relatime shared:1 - zfs rpool/ROOT/ubuntu rw
30 29 0:31 / /var/lib/dpkg rw - zfs rpool/ROOT/ubuntu/var/lib/dpkg rw
31 29 0:32 / /boot rw - zfs bpool/BOOT/ubuntu rw
"""
ROOT_SHOWN = """@
	Name: 			@
	UUID: 			8902ea73-506f-cb40-8f3c-d9d4fd0c0975
	Parent UUID: 		-
	Received UUID: 		-
	Creation time: 		2026-11-22 22:49:35 +0000
	Subvolume ID: 		256
	Flags: 			-
	Snapshot(s):
"""
SNAPSHOT_SHOWN = """@/.temper-snapshots/temper-7-x
	Name: 			temper-7-x
	UUID: 			247b527f-94f9-cb47-81ad-540fae3b372d
	Parent UUID: 		8902ea73-506f-cb40-8f3c-d9d4fd0c0975
	Received UUID: 		-
	Creation time: 		2026-11-22 22:49:35 +0000
	Subvolume ID: 		257
	Flags: 			readonly
	Snapshot(s):
"""
ORIGIN = {
    "vg_name": "vg0", "lv_name": "root", "origin": "", "lv_attr": "owi-aos---", "lv_tags": "",
    "data_percent": "", "metadata_percent": "", "pool_lv": "", "lv_time": "1795387756",
    "lv_size": str(40 * GIB), "vg_free": str(30 * GIB),
}  # fmt: skip
COPY = {**ORIGIN, "lv_name": NAME, "origin": "root", "lv_attr": "sri-a-s---", "lv_tags": "temper"}
COPY |= {"data_percent": "12.30"}
POOL = {**ORIGIN, "lv_name": "pool", "lv_attr": "twi-aotz--", "data_percent": "50", "metadata_percent": "20"}
THIN = {**ORIGIN, "pool_lv": "pool", "lv_attr": "Vwi-aotz--", "data_percent": "60"}
THIN_COPY = {**COPY, "pool_lv": "pool", "lv_attr": "Vri---tz-k", "data_percent": ""}


class Programs:
    """The node's programs: what they print, by the beginning of their command line, and what was asked."""

    def __init__(self) -> None:
        self.answers: dict[str, str | list[str]] = {}
        self.asked: list[str] = []

    def run(self, command: Sequence[str], *_: object) -> str:
        line = " ".join(command)
        self.asked.append(line)
        found = [text for begin, text in self.answers.items() if line.startswith(begin)]
        if not found:
            raise process.CommandError(f"`{line}` failed with status 1: nobody has recorded it")
        answer = found[-1]
        return answer.pop(0) if isinstance(answer, list) else answer

    @property
    def changes(self) -> list[str]:
        """What was asked that changes anything."""
        looks = ("btrfs subvolume show", "lvs", "zfs list")
        return [line for line in self.asked if not line.startswith(looks)]


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> Programs:
    made = Programs()
    monkeypatch.setattr(process, "run", made.run)
    monkeypatch.setattr(snapshots, "time", SimpleNamespace(time=lambda: NOW))
    return made


class Node:
    """A node's file systems: its mounts, and on which device each path lies."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.file = folder / "mountinfo"
        self.devices: dict[str, int] = {}
        monkeypatch.setattr(snapshots, "MOUNTS", self.file)
        monkeypatch.setattr(snapshots, "device_of", lambda path: self.devices.get(path, 1))

    def mount(self, text: str, **devices: int) -> None:
        self.file.write_text(text)
        self.devices = {f"/{path.replace('_', '/')}": device for path, device in devices.items()}


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    made = Node(tmp_path, monkeypatch)
    made.mount(LVM_MOUNTS)
    return made


@pytest.fixture
def btrfs(tmp_path: Path, node: Node, programs: Programs, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root of btrfs in a folder, where a snapshot makes its folder as btrfs does."""
    root = tmp_path / "root"
    root.mkdir()
    node.mount(f"29 1 0:39 /@ {root} rw - btrfs /dev/vda2 rw,subvol=/@")
    place = root / ".temper-snapshots" / NAME
    programs.answers = {
        f"btrfs subvolume show {root}": ROOT_SHOWN,
        f"btrfs subvolume show {place}": SNAPSHOT_SHOWN,
        "btrfs subvolume snapshot": "",
        "btrfs subvolume delete": "",
    }
    run = programs.run

    def act(command: Sequence[str], *more: object) -> str:
        output = run(command, *more)
        if command[2] == "snapshot":
            place.mkdir()
        if command[2] == "delete":
            place.rmdir()
        return output

    monkeypatch.setattr(process, "run", act)
    return root


def lvs(*volumes: dict[str, str]) -> str:
    return json.dumps({"report": [{"lv": list(volumes)}]})


def test_what_lies_outside_of_a_snapshot_is_found(node: Node) -> None:
    node.mount(MOUNTINFO, boot=2, home=3, snap_core=4, **{"srv_my disk": 5})
    assert Root("btrfs").outside() == ["/boot", "/home", "/srv/my disk"]


def test_a_subvolume_that_lacks_the_packages_is_no_way_back(node: Node, programs: Programs) -> None:
    node.mount(MOUNTINFO, usr=9)
    with pytest.raises(SnapshotError, match="/usr would be outside"):
        snapshots.take(Root("btrfs"), NAME, GIB)
    assert programs.asked == []


def test_another_file_system_than_the_wanted_one_is_refused(node: Node, programs: Programs) -> None:
    with pytest.raises(SnapshotError, match=r"Expected btrfs at /.*found ext4 on /dev/mapper/vg0-root"):
        Root("btrfs")
    with pytest.raises(SnapshotError, match=r"Expected a logical volume at /, .* found btrfs on /dev/vda2"):
        node.mount(MOUNTINFO)
        Root("lvm")
    with pytest.raises(SnapshotError, match=r"on /dev/mapper/vg0-root, which LVM does not know: `lvs"):
        node.mount(LVM_MOUNTS)
        Root("lvm")
    with pytest.raises(SnapshotError, match="at /nothing, found none"):
        Root("btrfs", "/nothing")


@pytest.mark.parametrize(
    "name", ["root", "temper-", "temper-7/..", "temper-7@x", "--all", "temper-7 x", "temper-7\n"]
)
def test_what_is_no_name_of_ours_is_never_removed(name: str, node: Node, programs: Programs) -> None:
    programs.answers["lvs"] = lvs(ORIGIN)
    root = Root("lvm")
    with pytest.raises(SnapshotError, match="Expected a name"):
        snapshots.remove(root, name)
    assert programs.changes == []


def test_btrfs_takes_a_snapshot_once(btrfs: Path, programs: Programs) -> None:
    place = btrfs / ".temper-snapshots" / NAME
    for changed in (True, False):  # the second time as after a crash
        found, did = snapshots.take(Root("btrfs", str(btrfs)), NAME, 1)
        assert found
        assert (found.place, found.taken, did) == (str(place), "2026-11-22T22:49:35Z", changed)
    assert programs.changes == [f"btrfs subvolume snapshot -r {btrfs} {place}"]


def test_btrfs_removes_the_snapshot_and_its_folder(btrfs: Path, programs: Programs) -> None:
    root = Root("btrfs", str(btrfs))
    snapshots.take(root, NAME, 1)
    assert snapshots.remove(root, NAME)
    assert not snapshots.remove(root, NAME)
    assert list(btrfs.iterdir()) == []


@pytest.mark.parametrize(
    "shown",
    [
        SNAPSHOT_SHOWN.replace("readonly", "-"),
        SNAPSHOT_SHOWN.replace("8902ea73", "00000000"),
    ],
)
def test_a_subvolume_of_somebody_else_is_neither_used_nor_removed(
    shown: str, btrfs: Path, programs: Programs
) -> None:
    place = btrfs / ".temper-snapshots" / NAME
    place.mkdir(parents=True)
    programs.answers[f"btrfs subvolume show {place}"] = shown
    root = Root("btrfs", str(btrfs))
    for act in (lambda: snapshots.take(root, NAME, 1), lambda: snapshots.remove(root, NAME)):
        with pytest.raises(SnapshotError, match="is left alone"):
            act()
    assert programs.changes == []


def test_a_plain_folder_in_its_place_is_left_alone(btrfs: Path, programs: Programs) -> None:
    (btrfs / ".temper-snapshots" / NAME).mkdir(parents=True)
    del programs.answers[f"btrfs subvolume show {btrfs}/.temper-snapshots/{NAME}"]
    programs.answers = {"btrfs subvolume show /nowhere": "", "btrfs subvolume snapshot": ""}
    with pytest.raises(SnapshotError, match="failed with status 1"):
        snapshots.take(Root("btrfs", str(btrfs)), NAME, 1)
    assert programs.changes == []


def test_too_little_room_is_said_with_numbers(btrfs: Path, programs: Programs) -> None:
    with pytest.raises(SnapshotError, match=r"needs 1048576\.0 GiB .* are free on .*lower `snapshot_gib`"):
        snapshots.take(Root("btrfs", str(btrfs)), NAME, 2**20 * GIB)
    assert programs.changes == []


def test_a_snapshot_that_is_too_old_is_replaced_and_refused_where_it_is_only_checked(
    btrfs: Path, programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Root("btrfs", str(btrfs))
    snapshots.take(root, NAME, 1)
    assert snapshots.verify(root, NAME, 60).name == NAME  # it is 25 s old
    with pytest.raises(SnapshotError, match="cannot be relied on: it was taken 2026-11-22T22:49:35Z"):
        snapshots.verify(root, NAME, 10)
    with monkeypatch.context() as ahead:
        ahead.setattr(snapshots, "time", SimpleNamespace(time=lambda: 0.0))  # it was, and was set back since
        with pytest.raises(SnapshotError, match="cannot be relied on: it was taken 2026-11-22T22:49:35Z"):
            snapshots.verify(root, NAME, 60)
    with pytest.raises(SnapshotError, match="cannot be relied on"):  # the stand-in's clock stands still
        snapshots.take(root, NAME, 1, 10)
    assert [line.split()[2] for line in programs.changes] == ["snapshot", "delete", "snapshot"]


def test_lvm_takes_a_read_only_snapshot_with_our_tag(node: Node, programs: Programs) -> None:
    programs.answers["lvs"] = [lvs(ORIGIN), lvs(ORIGIN), lvs(ORIGIN, COPY)]
    programs.answers["lvcreate"] = ""
    found, changed = snapshots.take(Root("lvm"), NAME, 20 * GIB)
    assert found
    assert (found.place, found.used_percent, changed) == ("vg0/temper-7-x", 12.3, True)
    assert programs.changes == [
        f"lvcreate --yes --snapshot --name {NAME} --permission r --addtag temper --size {20 * GIB}b vg0/root"
    ]


def test_a_thin_snapshot_gets_no_size(node: Node, programs: Programs) -> None:
    programs.answers["lvs"] = [lvs(THIN), lvs(POOL, THIN), lvs(POOL, THIN), lvs(POOL, THIN, THIN_COPY)]
    programs.answers["lvcreate"] = ""
    snapshots.take(Root("lvm"), NAME, 20 * GIB)  # half of 40 GiB are free
    (line,) = programs.changes
    assert line == f"lvcreate --yes --snapshot --name {NAME} --permission r --addtag temper vg0/root"


@pytest.mark.parametrize(
    ("volumes", "why"),
    [
        ([{**ORIGIN, "vg_free": str(GIB)}], "1.0 GiB are free in volume group vg0"),
        ([THIN, {**POOL, "data_percent": "51"}], "are free in thin pool vg0/pool"),
        ([THIN, {**POOL, "data_percent": "100.00"}], "thin pool vg0/pool is full"),
        ([THIN, {**POOL, "metadata_percent": "91.2"}], "metadata of thin pool vg0/pool are full to 91.2 %"),
        ([THIN, {**POOL, "data_percent": ""}], "is not active"),
    ],
)
def test_lvm_refuses_where_room_is_missing(
    volumes: list[dict[str, str]], why: str, node: Node, programs: Programs
) -> None:
    programs.answers["lvs"] = lvs(*volumes)
    programs.answers["lvs --reportformat json --units b"] = [lvs(volumes[0]), lvs(*volumes), lvs(*volumes)]
    with pytest.raises(SnapshotError, match=why):
        snapshots.take(Root("lvm"), NAME, 20 * GIB)
    assert programs.changes == []


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"lv_attr": "sri-I-s---", "data_percent": "100.00"}, "has run full"),
        ({"data_percent": "119.25"}, "has run full"),
        ({"data_percent": ""}, "not active"),
    ],
)
def test_a_void_lvm_snapshot_is_not_relied_on(
    change: dict[str, str], why: str, node: Node, programs: Programs
) -> None:
    programs.answers["lvs"] = [lvs(ORIGIN), lvs(ORIGIN, COPY | change)]
    with pytest.raises(SnapshotError, match=f"vg0/{NAME} cannot be relied on: it .*{why}"):
        snapshots.verify(Root("lvm"), NAME)


@pytest.mark.parametrize("change", [{"lv_tags": "backup"}, {"origin": "var"}, {"lv_tags": "", "origin": ""}])
def test_a_volume_of_somebody_else_is_neither_used_nor_removed(
    change: dict[str, str], node: Node, programs: Programs
) -> None:
    programs.answers["lvs"] = [lvs(ORIGIN), lvs(ORIGIN, COPY | change), lvs(ORIGIN, COPY | change)]
    root = Root("lvm")
    with pytest.raises(SnapshotError, match="is left alone"):
        snapshots.remove(root, NAME)
    with pytest.raises(SnapshotError, match="is left alone"):
        snapshots.take(root, NAME, GIB)
    assert programs.changes == []


def test_zfs_takes_the_datasets_below_as_well(node: Node, programs: Programs) -> None:
    node.mount(ZFS_MOUNTS, var_lib_dpkg=2, boot=3)
    row = f"rpool/ROOT/ubuntu@{NAME}\t{NOW:.0f}\tyes\nrpool/ROOT/ubuntu@other\t1\t-\n"
    programs.answers = {
        "zfs list": ["", f"{30 * GIB}\n", row, row],
        "zfs snapshot": "",
        "zfs destroy": "",
    }
    root = Root("zfs")
    assert root.outside() == ["/boot"]
    assert root.missing() == []
    found, changed = snapshots.take(root, NAME, 20 * GIB)
    assert found
    assert (found.taken, changed) == ("2026-11-22T22:50:00Z", True)
    assert snapshots.remove(root, NAME)
    assert programs.changes == [
        f"zfs snapshot -r -o temper:snapshot=yes rpool/ROOT/ubuntu@{NAME}",
        f"zfs destroy -r rpool/ROOT/ubuntu@{NAME}",
    ]


def test_a_snapshot_of_zfs_without_our_property_is_left_alone(node: Node, programs: Programs) -> None:
    node.mount(ZFS_MOUNTS)
    programs.answers = {"zfs list": f"rpool/ROOT/ubuntu@{NAME}\t1\t-\n", "zfs destroy": ""}
    with pytest.raises(SnapshotError, match="is left alone"):
        snapshots.remove(Root("zfs"), NAME)
    assert programs.changes == []


def test_the_module_says_what_it_did(btrfs: Path, run_module: Any) -> None:
    given = {"kind": "btrfs", "name": NAME, "mount": str(btrfs), "room_gib": 0.001}
    assert run_module(node_snapshot.main, check_mode=True, **given)["changed"]
    assert list(btrfs.iterdir()) == []
    assert run_module(node_snapshot.main, **given)["changed"]
    again = run_module(node_snapshot.main, **given)
    assert (again["changed"], again["taken"], again["outside"]) == (False, "2026-11-22T22:49:35Z", [])
    assert run_module(node_snapshot.main, state="absent", **given)["changed"]
    missing = run_module(node_snapshot.main, state="checked", **given)
    assert (missing["failed"], missing["refused"]) == (True, True)
    assert "found none" in missing["msg"]


def test_where_none_can_be_there_is_none_to_remove(node: Node, run_module: Any) -> None:
    assert not run_module(node_snapshot.main, kind="zfs", name=NAME, state="absent")["changed"]
    assert run_module(node_snapshot.main, kind="zfs", name=NAME)["refused"]
