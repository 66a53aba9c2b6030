"""What the lab's cache promises: whole artefacts only, built once."""

import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from tests.lab.cache import digest, obtain, tree_parts


def build(directory: Path) -> None:
    """Make a small artefact."""
    (directory / "first").touch()
    (directory / "second").touch()


def die(directory: Path) -> None:
    """Be killed half-way."""
    (directory / "first").touch()
    os.kill(os.getpid(), signal.SIGKILL)


def obtain_and_die(cache: Path) -> None:
    obtain(cache, "thing", die)


def test_second_time_nothing_is_built(tmp_path: Path) -> None:
    first = obtain(tmp_path, "thing", build)

    assert obtain(tmp_path, "thing", die) == first


def test_failed_build_is_not_kept(tmp_path: Path) -> None:
    def fail(directory: Path) -> None:
        (directory / "first").touch()
        raise RuntimeError

    with pytest.raises(RuntimeError):
        obtain(tmp_path, "thing", fail)

    assert not (tmp_path / "thing").exists()


def test_build_that_was_killed_is_started_over(tmp_path: Path) -> None:
    process = multiprocessing.get_context("spawn").Process(target=obtain_and_die, args=(tmp_path,))
    process.start()
    process.join()

    found = obtain(tmp_path, "thing", build)

    assert process.exitcode == -signal.SIGKILL
    assert sorted(path.name for path in found.iterdir()) == ["first", "second"]
    assert [path.name for path in tmp_path.iterdir() if "unfinished" in path.name] == []


def test_digest_tells_where_parts_end() -> None:
    assert digest(["ab", "c"]) != digest(["a", "bc"])


def test_digest_of_a_tree_sees_names_contents_modes_and_links(tmp_path: Path) -> None:
    file = tmp_path / "file"
    seen = [digest(tree_parts(tmp_path))]
    for change in (
        file.touch,
        lambda: file.write_text("text"),
        lambda: file.chmod(0o755),
        lambda: (tmp_path / "link").symlink_to("file"),
        lambda: file.rename(tmp_path / "other"),
    ):
        change()
        seen.append(digest(tree_parts(tmp_path)))

    assert len(set(seen)) == len(seen)
