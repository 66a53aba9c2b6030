"""Snapshots on a real btrfs: on a loop device of this machine, which a node mounts at /srv/root.

The steps are those of a roll-out; the file system is not the node's root, which is an overlay here. LVM needs
a device mapper and ZFS its module, which the lab's kernel need not have: they have unit tests only.
"""

import asyncio
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from temper.rollout.model import Outcome, Step, StepResult
from temper.rollout.playbooks import Ansible, Played
from temper.rollout.policy import Policy, Snapshot
from temper.rollout.snapshots import name_of
from tests.lab import rollouts
from tests.lab.fleet import Fleet, on_node
from tests.lab.rollouts import Way
from tests.lab.settings import Lab

pytestmark = [pytest.mark.lab, pytest.mark.slow]

LAB = Lab(name="snapshot")
FLEET = Fleet(LAB, size=1)
(NODE,) = LAB.nodes(1)
MOUNT = "/srv/root"
BTRFS = Policy(snapshot=Snapshot.BTRFS, snapshot_gib=1)
LAYOUT = """
apt-get install -qq --no-install-recommends btrfs-progs >/dev/null 2>&1
mkfs.btrfs -q {device} >/dev/null
mkdir -p /srv/top {mount}
mount {device} /srv/top
btrfs -q subvolume create /srv/top/@
btrfs -q subvolume create /srv/top/@boot
mount -o subvol=@ {device} {mount}
mkdir -p {mount}/boot {mount}/usr {mount}/var/lib/dpkg
mount -o subvol=@boot {device} {mount}/boot
echo old >{mount}/usr/driver
"""


class OnMount(Ansible):
    """Ansible, with the snapshots of another file system than the root."""

    async def playbook(self, name: str, node: str, label: str, variables: Mapping[str, Any]) -> Played:
        return await super().playbook(name, node, label, {**variables, "upgrade_snapshot_mount": MOUNT})


class Copies(Way):
    """What a roll-out does with the node's snapshot; each one is another try of another folder."""

    def __init__(self, folder: Path, policy: Policy = BTRFS) -> None:
        super().__init__(folder, NODE, policy=policy, ansible=OnMount(folder))

    @property
    def place(self) -> str:
        return f"{MOUNT}/.temper-snapshots/{name_of(self.ticket(Step.INSTALL))}"

    def take(self) -> StepResult:
        return asyncio.run(self.executor.snapshots.before_change(self.ticket(Step.INSTALL)))

    def drop(self) -> StepResult:
        return asyncio.run(self.executor.snapshots.drop(self.ticket(Step.INSTALL)))

    def kept(self) -> StepResult:
        return asyncio.run(self.executor.snapshots.kept(self.ticket(Step.INSTALL)))


@pytest.fixture(scope="module", autouse=True)
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A node with a btrfs of 3 GiB, and no loop device left afterwards."""
    image = tmp_path_factory.mktemp("disk") / "btrfs.img"
    with image.open("wb") as file:
        file.truncate(3 * 2**30)
    attach = ["losetup", "--find", "--show", str(image)]
    device = subprocess.run(attach, check=True, capture_output=True, text=True).stdout.strip()
    number = os.minor(os.stat(device).st_rdev)  # noqa: PTH116 - what mknod takes
    try:
        with rollouts.booted(FLEET):
            on_node(NODE, f"mknod {device} b 7 {number}" + LAYOUT.format(device=device, mount=MOUNT), 300)
            yield
    finally:
        # With the node went its mounts, and the kernel lets the device go.
        subprocess.run(["losetup", "--detach", device], check=True)


def uuid(path: str) -> str:
    shown = on_node(NODE, f"btrfs subvolume show {path}")
    return next(line.split()[-1] for line in shown.splitlines() if line.strip().startswith("UUID:"))


def snapshots() -> str:
    return on_node(NODE, f"ls -A {MOUNT}/.temper-snapshots 2>/dev/null || true").strip()


def test_it_has_what_was_there_before_the_change_and_cannot_be_written(tmp_path: Path) -> None:
    way = Copies(tmp_path)
    taken = way.take()
    assert taken.outcome is Outcome.DONE, taken.reason
    assert way.place in taken.facts["snapshot"]
    assert f"without {MOUNT}/boot" in taken.facts["snapshot"]
    on_node(NODE, f"echo new >{MOUNT}/usr/driver")
    assert on_node(NODE, f"cat {way.place}/usr/driver") == "old\n"
    assert "Read-only" in on_node(NODE, f"touch {way.place}/x 2>&1 || true")
    first = uuid(way.place)
    assert way.take().facts == taken.facts
    # As after a crash between the snapshot and the note of it.
    (tmp_path / NODE.name / "snapshot.json").unlink()
    assert way.take().outcome is Outcome.DONE
    assert uuid(way.place) == first
    assert way.kept().facts == taken.facts
    on_node(NODE, f"echo old >{MOUNT}/usr/driver")
    assert way.drop().facts == {"snapshot": ""}
    assert snapshots() == ""


def test_one_that_is_gone_before_the_change_was_over_is_not_taken_anew(tmp_path: Path) -> None:
    way = Copies(tmp_path)
    assert way.take().outcome is Outcome.DONE
    on_node(NODE, f"btrfs -q subvolume delete {way.place}")
    again = way.take()
    assert again.outcome is Outcome.REFUSED
    assert "found none" in again.reason
    assert "found none" in way.kept().facts["snapshot"]
    assert way.drop().reason == ""


def test_a_subvolume_of_somebody_else_stays(tmp_path: Path) -> None:
    way = Copies(tmp_path)
    on_node(NODE, f"mkdir -p {MOUNT}/.temper-snapshots; btrfs -q subvolume create {way.place}")
    refused = way.take()
    assert refused.outcome is Outcome.REFUSED
    assert "is left alone" in refused.reason
    assert "is left alone" in way.drop().reason
    assert snapshots() == way.place.rpartition("/")[2]
    on_node(NODE, f"btrfs -q subvolume delete {way.place}")


def test_a_subvolume_of_its_own_for_the_packages_is_no_way_back(tmp_path: Path) -> None:
    # Not mounted, and yet outside: a snapshot has an empty folder in its place.
    on_node(NODE, f"btrfs -q subvolume create {MOUNT}/var/lib/rpm")
    try:
        refused = Copies(tmp_path).take()
    finally:
        on_node(NODE, f"btrfs -q subvolume delete {MOUNT}/var/lib/rpm")
    assert refused.outcome is Outcome.REFUSED
    assert f"{MOUNT}/var/lib/rpm would be outside" in refused.reason
    assert snapshots() == ""


@pytest.mark.parametrize(
    ("policy", "fact"),
    [
        (Policy(snapshot=Snapshot.BTRFS, snapshot_gib=50), "GiB are free on /srv/root"),
        (Policy(snapshot=Snapshot.ZFS), "found btrfs"),
        (Policy(snapshot=Snapshot.LVM), "found btrfs"),
    ],
)
def test_what_the_node_has_not_is_refused(policy: Policy, fact: str, tmp_path: Path) -> None:
    way = Copies(tmp_path, policy)
    refused = way.take()
    assert refused.outcome is Outcome.REFUSED
    assert fact in refused.reason
    assert snapshots() == ""
    assert way.drop().reason == ""


def test_a_person_can_go_back_to_it_with_the_commands_of_the_documentation(tmp_path: Path) -> None:
    way = Copies(tmp_path)
    assert way.take().outcome is Outcome.DONE
    on_node(NODE, f"echo broken >{MOUNT}/usr/driver")
    name = way.place.rpartition("/")[2]
    on_node(
        NODE,
        f"umount {MOUNT}/boot {MOUNT}; cd /srv/top; mv @ @broken;"
        f"btrfs -q subvolume snapshot @broken/.temper-snapshots/{name} @;"
        f"mount -o subvol=@ $(findmnt -no SOURCE /srv/top) {MOUNT}",
    )
    assert on_node(NODE, f"cat {MOUNT}/usr/driver; touch {MOUNT}/usr/written") == "old\n"
