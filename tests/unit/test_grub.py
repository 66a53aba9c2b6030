"""Which kernel GRUB boots: by default, once, and what it says where it cannot be told."""

import subprocess
from pathlib import Path

import pytest
from ansible.module_utils.temper import process
from ansible.module_utils.temper.kernel import grub
from ansible.module_utils.temper.settings.base import SettingError

from tests.unit.grub_programs import UUID, Grub

pytestmark = pytest.mark.component

OLD, NEW, OTHER = "6.1.0-40-amd64", "6.1.0-41-amd64", "6.1.0-9-amd64"
OF_OLD = f"gnulinux-advanced-{UUID}>gnulinux-{OLD}-advanced-{UUID}"


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Grub:
    """A node with three kernels, of which the newest boots."""
    for release in (OLD, NEW, OTHER):
        (tmp_path / "boot").mkdir(exist_ok=True)
        (tmp_path / f"boot/vmlinuz-{release}").touch()
    made = Grub.install(tmp_path, tmp_path / "programs")
    monkeypatch.setenv("PATH", f"{made.programs}:/usr/bin:/bin")
    monkeypatch.setattr(grub, "ROOT", tmp_path)
    subprocess.run(["update-grub"], check=True)
    return made


def test_the_default_that_is_pinned_is_what_boots(node: Grub) -> None:
    assert (grub.default_release(), node.boot()) == (NEW, NEW)
    grub.pin(OLD)
    assert (grub.default_release(), node.boot(), node.boot()) == (OLD, OLD, OLD)
    grub.unpin()
    assert (grub.default_release(), node.boot()) == (NEW, NEW)


def test_a_kernel_that_comes_meanwhile_is_not_the_default(node: Grub) -> None:
    grub.pin(OLD)
    (node.root / "boot/vmlinuz-6.1.0-42-amd64").touch()
    subprocess.run(["update-grub"], check=True)
    assert node.boot() == OLD


def test_one_try_is_one_boot(node: Grub) -> None:
    grub.pin(OLD)
    grub.arm(NEW)
    assert grub.next_release() == NEW
    assert [node.boot(), node.boot()] == [NEW, OLD]
    assert grub.next_release() is None


def test_a_try_that_is_called_off_does_not_happen(node: Grub) -> None:
    grub.pin(OLD)
    grub.arm(NEW)
    grub.disarm()
    grub.disarm()
    assert node.boot() == OLD


def test_where_grub_cannot_write_the_try_is_called_off_afterwards(node: Grub) -> None:
    grub.pin(OLD)
    grub.arm(NEW)
    assert node.boot(forgets=False) == NEW
    grub.disarm()
    assert node.boot(forgets=False) == OLD


@pytest.mark.parametrize(("target", "answer"), [("abstraction", "diskfilter mdraid1x"), ("fs", "btrfs")])
def test_where_grub_cannot_write_it_is_said(node: Grub, target: str, answer: str) -> None:
    node.say("fs", "ext2")
    assert grub.warning() == ""
    node.say(target, answer)
    assert answer.split()[0] in grub.warning()


def test_the_options_of_the_operator_are_left_alone(node: Grub) -> None:
    (node.root / "etc/default").mkdir(parents=True)
    (node.root / "etc/default/grub").write_text("GRUB_DEFAULT=saved\n")
    subprocess.run(["update-grub"], check=True)
    subprocess.run(
        ["grub-editenv", str(node.root / grub.ENVIRONMENT), "set", f"saved_entry={OF_OLD}"], check=True
    )
    assert grub.default_release() == OLD
    grub.pin(NEW)
    assert node.boot() == NEW
    grub.unpin()
    assert (grub.default_release(), node.boot()) == (OLD, OLD)


def test_a_default_that_something_else_sets_is_an_error(node: Grub) -> None:
    drop_in = node.root / "etc/default/grub.d/zzz-other.cfg"
    drop_in.parent.mkdir(parents=True)
    drop_in.write_text("GRUB_DEFAULT=0\n")
    with pytest.raises(SettingError, match=f"Expected kernel {OLD} as GRUB's default, found {NEW}"):
        grub.pin(OLD)
    assert not grub.pinned()


def test_a_kernel_without_an_entry_is_an_error(node: Grub) -> None:
    with pytest.raises(SettingError, match=r"no entry of its own for kernel 6\.99"):
        grub.arm("6.99")


def test_no_grub_is_said(node: Grub, monkeypatch: pytest.MonkeyPatch) -> None:
    assert grub.problem() == ""
    (node.root / grub.SCRIPT).unlink()
    assert "/boot/grub/grub.cfg is missing" in grub.problem()
    monkeypatch.setattr(process, "which", lambda _name: None)
    assert "update-grub, grub-editenv, grub-probe" in grub.problem()


@pytest.mark.parametrize(
    ("path", "release"),
    [
        ("", NEW),
        ("0", NEW),
        ("1>2", OLD),
        (OF_OLD, OLD),
        ("Advanced options for Debian GNU/Linux>Debian GNU/Linux, with Linux 6.1.0-9-amd64", OTHER),
        ("1", None),  # a submenu
        ("7", None),
        ("0>0", None),
    ],
)
def test_a_default_is_read_as_grub_reads_it(node: Grub, path: str, release: str | None) -> None:
    assert grub.release_of(path, grub.menus((node.root / grub.SCRIPT).read_text())) == release


def test_entries_without_a_submenu_are_found() -> None:
    script = (
        "menuentry 'Ubuntu, with Linux 6.8.0-40-generic' --class ubuntu $menuentry_id_option "
        "'gnulinux-6.8.0-40-generic-advanced-x' {\n\tgfxmode $linux_gfx_mode\n"
        "\tlinux\t/vmlinuz-6.8.0-40-generic root=/dev/mapper/x ro\n}\n"
        "menuentry 'UEFI Firmware Settings' $menuentry_id_option 'uefi-firmware' {\n\tfwsetup\n}\n"
    )
    assert list(grub.paths(grub.menus(script))) == [
        ("6.8.0-40-generic", "gnulinux-6.8.0-40-generic-advanced-x")
    ]
