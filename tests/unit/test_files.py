"""Files are written only where they differ, in one step, with the wanted owner and mode."""

import json
import os
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.temper import files
from ansible.module_utils.temper.files import File, put_back, saved

from tests.unit.each import each

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="the files belong to root")


@pytest.fixture
def strict_umask() -> Iterator[None]:
    old = os.umask(0o077)
    yield
    os.umask(old)


def permissions(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_a_missing_file_is_written_with_its_directories(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file"
    file = File(str(path), "text\n", "0444")
    assert file.differs()
    assert file.before_and_after() == ("", "text\n")
    file.write()
    assert path.read_text() == "text\n"
    assert permissions(path) == 0o444


@pytest.mark.usefixtures("strict_umask")
def test_new_directories_and_files_do_not_depend_on_the_umask(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file"
    File(str(path), "").write()
    assert [permissions(p) for p in (path.parent.parent, path.parent, path)] == [0o755, 0o755, 0o644]


def test_an_existing_directory_keeps_its_mode(tmp_path: Path) -> None:
    directory = tmp_path / "private"
    directory.mkdir(mode=0o700)
    File(str(directory / "file"), "").write()
    assert permissions(directory) == 0o700


def test_a_file_as_wanted_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "file"
    file = File(str(path), "text\n")
    file.write()
    assert not file.differs()


def spoil_content(path: Path) -> None:
    path.write_text("other")


def spoil_mode(path: Path) -> None:
    path.chmod(0o600)


def spoil_owner(path: Path) -> None:
    os.chown(path, 65534, 65534)


def spoil_kind(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


@each(spoil_content, spoil_mode, spoil_owner, spoil_kind)
def test_any_deviation_is_repaired(spoil: Any, tmp_path: Path) -> None:
    path = tmp_path / "file"
    file = File(str(path), "text\n", "0644")
    file.write()
    spoil(path)
    assert file.differs()
    file.write()
    assert not path.is_symlink()
    assert (path.read_text(), permissions(path), path.stat().st_uid) == ("text\n", 0o644, 0)
    assert not file.differs()


@each(True, False)
def test_a_file_or_link_that_should_not_exist_is_removed(dangling: bool, tmp_path: Path) -> None:
    path = tmp_path / "file"
    if dangling:
        path.symlink_to("nowhere")
    else:
        path.write_text("old")
    file = File(str(path), None)
    assert file.differs()
    assert file.before_and_after() == ("" if dangling else "old", "")
    file.write()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("old_mode", "new"),
    [
        pytest.param(0o600, File("", None), id="removed"),
        pytest.param(0o600, File("", "new secret", "0600"), id="replaced"),
        pytest.param(0o644, File("", "new secret", "0600"), id="closed"),
        pytest.param(0o640, File("", "new secret"), id="opened"),
        pytest.param(None, File("", "new secret", "0600"), id="written"),
    ],
)
def test_the_diff_shows_no_text_of_a_file_that_not_everybody_may_read(
    tmp_path: Path, old_mode: int | None, new: File
) -> None:
    path = tmp_path / "file"
    if old_mode is not None:
        path.write_text("old secret")
        path.chmod(old_mode)
    before, after = replace(new, path=str(path)).before_and_after()
    assert "secret" not in before + after
    assert before != after


def test_the_diff_shows_a_private_file_that_is_known_to_hold_no_secret(tmp_path: Path) -> None:
    file = File(str(tmp_path / "file"), "rules\n", "0600", public=True)
    assert file.before_and_after() == ("", "rules\n")


def test_a_write_that_fails_leaves_the_old_file_and_no_debris(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def refuse(_handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="No space left"):
        File(str(path), "new").write()
    assert [p.read_text() for p in tmp_path.iterdir()] == ["old"]


def test_a_file_gets_its_label_where_selinux_is_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A renamed file keeps the label of the name that it was written under, a new directory its parent's."""
    commands: list[list[str]] = []
    monkeypatch.setattr(files, "SELINUX", tmp_path)
    monkeypatch.setattr(files, "which", lambda program: f"/sbin/{program}")
    monkeypatch.setattr(files, "succeeds", commands.append)
    for _ in range(2):
        File(str(tmp_path / "new/file"), "text").write()
    file = str(tmp_path / "new/file")
    assert commands == [["/sbin/restorecon", str(tmp_path / "new"), file], ["/sbin/restorecon", file]]


@each("file", "link", "nothing")
def test_a_file_comes_back_as_it_was_saved(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    if kind == "file":
        path.write_bytes(b"\xff")
        path.chmod(0o640)
        os.chown(path, 65534, 65534)
    elif kind == "link":
        path.symlink_to("elsewhere")
    before = saved(path)
    File(str(path), "other").write()
    put_back(path, json.loads(json.dumps(before)))
    assert saved(path) == before
    assert path.is_symlink() == (kind == "link")
