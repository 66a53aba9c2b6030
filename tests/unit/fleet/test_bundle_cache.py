"""What a helper keeps of the bundles that it was sent."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from temper.base import ROOT
from temper.fleet.bundle import KEPT, UNUSED_S, in_use, prune
from tests.unit.each import each

NOW_S = 2_000_000_000.0
DAY_S = 86_400.0


def made(cache: Path, name: str, age_s: float) -> Path:
    folder = cache / name
    (folder / "temper/fleet").mkdir(parents=True)
    (folder / "temper/fleet/worker.py").touch()
    os.utime(folder, (NOW_S - age_s, NOW_S - age_s))
    return folder


def bundles(cache: Path, count: int) -> list[Path]:
    """From the newest to the oldest; the newest was used two days ago."""
    return [made(cache, f"bundle-{number:016x}", (number + 2) * DAY_S) for number in range(count)]


def names(cache: Path) -> set[str]:
    return {path.name for path in cache.iterdir()}


def test_the_newest_bundles_stay_and_older_ones_go(tmp_path: Path) -> None:
    folders = bundles(tmp_path, KEPT + 2)
    assert prune(tmp_path, NOW_S) == [folders[-1].name, folders[-2].name]
    assert names(tmp_path) == {folder.name for folder in folders[:KEPT]}


def test_a_bundle_in_use_stays_however_old_it_is(tmp_path: Path) -> None:
    folders = bundles(tmp_path, KEPT + 2)
    with in_use(folders[-1]):
        os.utime(folders[-1], (0, 0))
        assert prune(tmp_path, NOW_S) == [folders[-2].name]
    assert folders[-1].is_dir()


def test_a_slice_that_begins_makes_its_bundle_the_newest(tmp_path: Path) -> None:
    folders = bundles(tmp_path, KEPT + 1)
    before_s = folders[-1].stat().st_mtime
    with in_use(folders[-1]), in_use(folders[-1]):  # of two slices at once
        pass
    assert folders[-1].stat().st_mtime != before_s


def test_a_bundle_that_was_used_today_stays(tmp_path: Path) -> None:
    """Its run may be between two slices."""
    folders = bundles(tmp_path, KEPT)
    made(tmp_path, f"bundle-{99:016x}", 100)
    for folder in folders:
        os.utime(folder, (NOW_S - 50, NOW_S - 50))
    assert prune(tmp_path, NOW_S) == []


@each("bundle-0000000000000001.4711", "bundle-0000000000000001.removed")
def test_what_was_cut_off_goes_in_time(name: str, tmp_path: Path) -> None:
    made(tmp_path, name, 60)
    assert prune(tmp_path, NOW_S) == []
    assert prune(tmp_path, NOW_S + UNUSED_S) == [name]
    assert not names(tmp_path)


def test_nothing_else_is_touched(tmp_path: Path) -> None:
    made(tmp_path, "downloads", 99 * DAY_S)
    (tmp_path / "bundle-notes.txt").touch()
    assert prune(tmp_path, NOW_S) == []


def test_a_checkout_is_no_bundle(tmp_path: Path) -> None:
    checkout = made(tmp_path, "temper", 5)
    before_s = checkout.stat().st_mtime
    with in_use(checkout):
        assert checkout.stat().st_mtime == before_s


@pytest.mark.component
def test_a_helper_prunes_what_lies_beside_the_bundle_that_it_runs_from(tmp_path: Path) -> None:
    folders = bundles(tmp_path, KEPT + 1)
    for name in ("__init__.py", "base/__init__.py", "fleet/__init__.py", "fleet/bundle.py"):
        place = folders[0] / "temper" / name
        place.parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / "temper" / name, place)
    for number, folder in enumerate(folders):
        used_s = time.time() - (number + 2) * DAY_S
        os.utime(folder, (used_s, used_s))
    subprocess.run([sys.executable, "-m", "temper.fleet.bundle"], cwd=folders[0], check=True)
    assert names(tmp_path) == {folder.name for folder in folders[:KEPT]}
