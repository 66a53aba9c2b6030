"""Files are written only where they differ, in one step, with the wanted owner and mode."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.files import File, Result, write_all
from ansible.module_utils.testing import patch_module_args

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="the files belong to root")


@pytest.fixture
def module() -> AnsibleModule:
    with patch_module_args({}):
        return AnsibleModule(argument_spec={})


@pytest.fixture
def strict_umask() -> Iterator[None]:
    old = os.umask(0o077)
    yield
    os.umask(old)


def permissions(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_a_missing_file_is_written_with_its_directories(module: Any, tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file"
    result = write_all(module, [File(str(path), "text\n", "0444")])
    assert path.read_text() == "text\n"
    assert permissions(path) == 0o444
    assert result.as_dict() == {
        "changed": True,
        "changed_files": [str(path)],
        "diff": [
            {"before_header": str(path), "after_header": str(path), "before": "", "after": "text\n"},
        ],
    }


@pytest.mark.usefixtures("strict_umask")
def test_new_directories_and_files_do_not_depend_on_the_umask(module: Any, tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file"
    write_all(module, [File(str(path), "")])
    assert [permissions(p) for p in (path.parent.parent, path.parent, path)] == [0o755, 0o755, 0o644]


def test_an_existing_directory_keeps_its_mode(module: Any, tmp_path: Path) -> None:
    directory = tmp_path / "private"
    directory.mkdir(mode=0o700)
    write_all(module, [File(str(directory / "file"), "")])
    assert permissions(directory) == 0o700


def test_a_file_as_wanted_is_left_alone(module: Any, tmp_path: Path) -> None:
    path = tmp_path / "file"
    file = File(str(path), "text\n")
    write_all(module, [file])
    before = path.stat()
    assert write_all(module, [file]) == Result()
    assert path.stat() == before


def spoil_content(path: Path) -> None:
    path.write_text("other")


def spoil_mode(path: Path) -> None:
    path.chmod(0o600)


def spoil_owner(path: Path) -> None:
    os.chown(path, 65534, 65534)


def spoil_kind(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


@pytest.mark.parametrize("spoil", [spoil_content, spoil_mode, spoil_owner, spoil_kind])
def test_any_deviation_is_repaired(module: Any, tmp_path: Path, spoil: Any) -> None:
    path = tmp_path / "file"
    file = File(str(path), "text\n", "0644")
    write_all(module, [file])
    spoil(path)
    assert write_all(module, [file]).changed_files == [str(path)]
    assert not path.is_symlink()
    assert (path.read_text(), permissions(path), path.stat().st_uid) == ("text\n", 0o644, 0)
    assert not write_all(module, [file]).changed


@pytest.mark.parametrize("dangling", [True, False])
def test_a_file_or_link_that_should_not_exist_is_removed(module: Any, tmp_path: Path, dangling: bool) -> None:
    path = tmp_path / "file"
    if dangling:
        path.symlink_to("nowhere")
    else:
        path.write_text("old")
    result = write_all(module, [File(str(path), None)])
    assert result.diff[0]["before"] == ("" if dangling else "old")
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
    module: Any, tmp_path: Path, old_mode: int | None, new: File
) -> None:
    path = tmp_path / "file"
    if old_mode is not None:
        path.write_text("old secret")
        path.chmod(old_mode)
    diff = write_all(module, [replace(new, path=str(path))]).diff[0]
    assert "secret" not in str(diff)
    assert diff["before"] != diff["after"]


def test_the_diff_shows_a_private_file_that_is_known_to_hold_no_secret(module: Any, tmp_path: Path) -> None:
    result = write_all(module, [File(str(tmp_path / "file"), "rules\n", "0600", public=True)])
    assert result.diff[0]["after"] == "rules\n"


def test_check_mode_says_what_would_change_and_changes_nothing(module: Any, tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.write_text("old")
    new = tmp_path / "directory" / "new"
    module.check_mode = True
    result = write_all(module, [File(str(old), None), File(str(new), "text")])
    assert result.changed_files == [str(old), str(new)]
    assert list(tmp_path.iterdir()) == [old]


def test_a_write_that_fails_leaves_the_old_file_and_no_debris(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def atomic_move(source: str, destination: str) -> None:
        raise OSError(28, "No space left on device", destination)

    with pytest.raises(OSError, match="No space left"):
        File(str(path), "new").write(SimpleNamespace(atomic_move=atomic_move))
    assert [p.read_text() for p in tmp_path.iterdir()] == ["old"]
