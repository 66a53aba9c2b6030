"""Reading storage for real: files of our own, files that are there, what must never happen, each verdict."""

import dataclasses
import errno
import itertools
import mmap
import os
import subprocess
import sys
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.each import each
from tests.unit.validation.samples import measurement, node
from validation.backends import storage
from validation.backends.storage import BLOCK
from validation.checks import check
from validation.checks.storage import StorageRead, below_floor, measure, read
from validation.model.contract import Measured, State
from validation.model.not_run import NotRunError
from validation.model.plans import PLANS, RunOptions, Timing
from validation.processes.child import Request
from validation.processes.pool import run_children


def go_on() -> None:
    """Nobody waits for what these tests read."""


@pytest.fixture(params=[storage.DIRECT, storage.DROPPED])
def how(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With O_DIRECT, as the file system of the tests may have it, and as one that has not."""
    if request.param == storage.DROPPED:
        monkeypatch.setattr(os, "O_DIRECT", 0)
        monkeypatch.setattr(storage, "_past_the_cache", lambda _descriptor: storage.DROPPED)
    return str(request.param)


def asked(path: Path, **parameters: Any) -> Request:
    timing = {"warm_up_s": 0, "measure_s": 0, "least": 3, "most": 3}
    values = {"path": str(path), "timing": timing, "most_bytes": 8 * BLOCK, "write_s": 60, "floor_gb_s": None}
    return Request(str(path), "validation.checks.storage:measure", "cpu", parameters=values | parameters)


def measured(path: Path, **parameters: Any) -> Measured:
    return measure(asked(path, **parameters), lambda _stage: None)


def test_a_folder_is_measured_with_a_file_that_nobody_sees(tmp_path: Path, how: str) -> None:
    seen: list[list[Path]] = []
    found = measure(asked(tmp_path), lambda _stage: seen.append(list(tmp_path.iterdir())))
    assert [m.name for m in found.measurements] == ["storage_read_gb_s", "storage_read_one_thread_gb_s"]
    assert all(m.value > 0 and m.samples == 3 for m in found.measurements)
    assert found.measurements[0].conditions["path"] == str(tmp_path)
    assert found.findings == ()
    assert found.details["file_bytes"] == 8 * BLOCK
    assert seen
    assert not any(seen)


def test_a_file_is_only_read(tmp_path: Path, how: str) -> None:
    path = tmp_path / "data"
    path.write_bytes(os.urandom(9 * BLOCK + 5))
    before = path.read_bytes(), path.stat().st_mtime_ns
    found = measured(path)
    assert found.details["file_bytes"] == 8 * BLOCK
    assert found.findings == ()
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before


def test_every_byte_is_read_once_by_some_thread() -> None:
    for threads in (1, 3, 8):
        pieces = storage._pieces(BLOCK, 7 * BLOCK, threads)
        blocks = [start + place for start, size in pieces for place in range(0, size, BLOCK)]
        assert blocks == [BLOCK * number for number in range(1, 8)]


def test_no_two_sectors_are_alike_so_that_no_storage_keeps_one_for_many() -> None:
    content = storage.Content()
    blocks = content.block(0) + content.block(1)
    sectors = {blocks[start : start + 512] for start in range(0, len(blocks), 512)}
    assert len(sectors) == len(blocks) // 512
    assert len(zlib.compress(blocks[: 1 << 20], 1)) > 1 << 20
    assert content.block(1) == blocks[BLOCK:]
    assert storage.Content().block(1) != content.block(1)


def test_a_file_system_without_nameless_files_keeps_none_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = os.open

    def refuse(path: Any, flags: int, *mode: int, **options: Any) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        return opened(path, flags, *mode, **options)

    monkeypatch.setattr(os, "open", refuse)
    with storage.opened(tmp_path, 8 * BLOCK, 60, go_on) as source:
        assert not list(tmp_path.iterdir())
        assert not source.wrong(1)


def test_a_file_that_becomes_shorter_is_no_fault_of_the_storage_and_no_rate(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(bytes(8 * BLOCK))
    with storage.opened(path, 8 * BLOCK, 60, go_on) as source, ThreadPoolExecutor(1) as pool:
        os.truncate(path, BLOCK)
        with pytest.raises(NotRunError, match="became shorter while it was read"):
            source.seconds(pool, 1, 0, 8 * BLOCK, go_on)


def test_a_read_that_brings_nothing_though_the_file_is_longer_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "preadv", lambda *_arguments: 0)
    (finding,) = measured(tmp_path).findings
    assert finding.code == "storage-error"
    assert "brought 0 bytes of" in finding.text


def test_reads_and_writes_that_come_in_parts_are_whole_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that gets full takes a part of a block; a server answers with as much as it likes."""
    write, read = os.pwrite, os.preadv
    part = BLOCK // 2
    monkeypatch.setattr(os, "pwrite", lambda file, data, place: write(file, data[:part], place))
    monkeypatch.setattr(
        os, "preadv", lambda file, data, place: read(file, [memoryview(data[0])[:part]], place)
    )
    found = measured(tmp_path)
    assert (found.findings, found.details["file_bytes"]) == ((), 8 * BLOCK)


def test_a_file_with_holes_is_not_run(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.write(os.urandom(8 * BLOCK))
        file.truncate(64 * BLOCK)
    assert measured(path).findings == ()  # what is read of it is there
    with pytest.raises(NotRunError, match=f"has a hole at byte {8 * BLOCK}"):
        measured(path, most_bytes=16 * BLOCK)


def test_a_file_that_somebody_writes_to_accuses_no_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "data"
    path.write_bytes(os.urandom(8 * BLOCK))
    read, written_ns = storage.Source.read, path.stat().st_mtime_ns

    def overtaken(self: storage.Source, number: int) -> bytes:
        block = read(self, number)
        path.write_bytes(os.urandom(8 * BLOCK))
        os.utime(path, ns=(written_ns, written_ns))  # and hides it
        return block

    monkeypatch.setattr(storage.Source, "read", overtaken)
    with pytest.raises(NotRunError, match="was written to while it was read"):
        measured(path)


class SlowSource:
    """Storage of so many bytes a second, without any."""

    size_bytes, how, content, has_changed = 64 * storage.SECTION, storage.DIRECT, None, False

    def __init__(self, rate: float, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rate, self.now = rate, 0.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    def seconds(self, _pool: Any, _threads: int, _offset: int, size_bytes: int, _go_on: Any) -> float:
        self.now += size_bytes / self.rate
        # Noisy enough to be measured again.
        return size_bytes / self.rate * (1 + int(self.now) % 2)

    def wrong(self, _number: int) -> bool:
        self.now += 2 * BLOCK / self.rate
        return False


@each(1e6, 1e7, 1e8, 1e10)
def test_slow_storage_is_measured_within_the_budget_of_the_quick_plan(
    rate: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = PLANS["quick"]
    source: Any = SlowSource(rate, monkeypatch)
    request = asked(tmp_path, timing=dataclasses.asdict(quick.cpu))
    found = read(source, tmp_path, request, lambda _stage: None)
    assert source.now + 2 * quick.storage_write_s < quick.budget_s
    assert 1 <= found.details["checked_blocks"] <= 32
    assert all(m.value > 0 and m.samples >= quick.cpu.least for m in found.measurements)


def test_slow_storage_is_written_to_for_about_as_long_as_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the page cache takes at once, a slow disk takes when it is synchronised."""
    now, dirty = [0.0], [0]

    def write(_descriptor: int, data: Any, _place: int) -> int:
        dirty[0] += len(data)
        return len(data)

    def synchronise(_descriptor: int) -> None:
        now[0] += dirty[0] / 5e6
        dirty[0] = 0

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(os, "pwrite", write)
    monkeypatch.setattr(os, "fdatasync", synchronise)
    written = storage._write(0, tmp_path, storage.Content(), 1 << 30, 30, go_on)
    assert written >= storage.LEAST_BYTES
    assert now[0] <= 2 * 30


def test_blocks_that_arrive_are_progress_while_others_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last block comes only after somebody was told that reading goes on."""
    path, told, fill = tmp_path / "data", threading.Event(), storage._fill
    path.write_bytes(bytes(8 * BLOCK))

    def wait_for_it(descriptor: int, buffer: mmap.mmap, offset: int) -> None:
        if offset == 7 * BLOCK:
            assert told.wait(60)
        fill(descriptor, buffer, offset)

    monkeypatch.setattr(storage, "_fill", wait_for_it)
    monkeypatch.setattr(storage, "LOOK_S", 0.01)
    with storage.opened(path, 8 * BLOCK, 60, go_on) as source, ThreadPoolExecutor(2) as pool:
        assert source.seconds(pool, 2, 0, 8 * BLOCK, told.set) > 0


def test_reads_that_bring_nothing_are_no_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first block comes only after it was looked for several times."""
    path, looks, enough, fill = tmp_path / "data", itertools.count(1), threading.Event(), storage._fill
    path.write_bytes(bytes(8 * BLOCK))

    def look(*arguments: Any) -> Any:
        if next(looks) == 5:
            enough.set()
        return wait(*arguments)

    def hang(descriptor: int, buffer: mmap.mmap, offset: int) -> None:
        assert enough.wait(60)
        fill(descriptor, buffer, offset)

    told: list[bool] = []
    with storage.opened(path, 8 * BLOCK, 60, go_on) as source, ThreadPoolExecutor(2) as pool:
        monkeypatch.setattr(storage, "_fill", hang)
        monkeypatch.setattr(storage, "wait", look)
        monkeypatch.setattr(storage, "LOOK_S", 0.01)
        source.seconds(pool, 2, 0, 8 * BLOCK, lambda: told.append(enough.is_set()))
    assert next(looks) > 5
    assert all(told)


def test_every_block_that_is_written_and_compared_is_progress(tmp_path: Path) -> None:
    told: list[str] = []
    found = measure(asked(tmp_path), told.append)
    assert told.count(f"preparing a file in {tmp_path}") == 1 + 8
    assert told.count(f"comparing what was read from {tmp_path}") == found.details["checked_blocks"]


@pytest.mark.component
def test_storage_that_hangs_is_named_long_before_the_budget_is_spent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "LEAST_PATIENCE_S", 2.0)
    monkeypatch.setattr(StorageRead, "function", "tests.unit.validation.children:read_and_hang")
    path = tmp_path / "data"
    path.write_bytes(bytes(8 * BLOCK))
    plan = dataclasses.replace(PLANS["quick"], cpu=Timing(0, 0), storage_write_s=0)
    result = StorageRead().run(node(run_options=RunOptions((path,)), plan=plan))
    (finding,) = result.findings
    assert (finding.code, finding.state) == ("process-hung", State.FAIL)
    assert "made no progress for" in finding.text
    assert f"stage: reading from {path} in 8 threads" in finding.text


def test_below_the_operators_floor_fails(tmp_path: Path) -> None:
    (finding,) = measured(tmp_path, floor_gb_s=1e6).findings
    assert finding.code == "storage-below-floor"
    assert f"{tmp_path}: " in finding.text
    assert "wanted are 1000000 GB/s" in finding.text
    assert measured(tmp_path, floor_gb_s=1e-6).findings == ()


@each((1.5, 0.01, State.FAIL), (1.9, 0.3, State.DEGRADED), (1.5, 0.3, State.FAIL))
def test_noise_excuses_a_number_only_as_far_as_it_reaches(value: float, spread: float, state: State) -> None:
    number = measurement("storage_read_gb_s", value, spread=spread)
    assert [finding.state for finding in below_floor(number, Path("/data"), 2.0)] == [state]


def test_a_disk_is_not_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = 100 << 10  # of 1 MiB: 100 GiB, of which 5 GiB stay free
    for free, allowed in ((50 << 10, 45 << 30), ((5 << 10) + 2, 2 << 20), (5 << 10, 0), (0, 0)):
        said = SimpleNamespace(f_blocks=blocks, f_frsize=1 << 20, f_bavail=free)
        monkeypatch.setattr(os, "statvfs", lambda _path, said=said: said)
        assert storage.room(tmp_path) == allowed
    with pytest.raises(NotRunError, match="is too full"):
        measured(tmp_path)


def test_writing_ends_when_its_time_is_up(tmp_path: Path) -> None:
    with pytest.raises(NotRunError, match="too little to measure"):
        measured(tmp_path, write_s=0)


@each(("/dev/shm", "is on tmpfs, which is memory"), ("/nowhere/at/all", "cannot be used: No such file"))
def test_a_path_that_says_nothing_of_storage_is_not_run(path: str, reason: str) -> None:
    with pytest.raises(NotRunError, match=reason):
        measured(Path(path))


@each("pipe", "device")
def test_what_is_neither_a_folder_nor_a_file_is_not_opened(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "pipe" if kind == "pipe" else Path("/dev/null")
    if kind == "pipe":
        os.mkfifo(path)
    with pytest.raises(NotRunError, match="neither a folder nor a regular file"):
        measured(path)


def test_a_file_that_becomes_a_pipe_before_it_is_opened_holds_nothing_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, opened = tmp_path / "data", os.open
    path.write_bytes(b"")

    def swapped(name: Any, flags: int, *mode: int, **options: Any) -> int:
        path.unlink()
        os.mkfifo(path)
        return opened(name, flags, *mode, **options)

    monkeypatch.setattr(os, "open", swapped)
    with pytest.raises(NotRunError, match="neither a folder nor a regular file"):
        measured(path)


@each("zfs", "fuse.juicefs", "fuse")
def test_above_a_floor_out_of_a_cache_that_nobody_sees_through_is_degraded(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "_file_system", lambda _descriptor: kind)
    found = measured(tmp_path, floor_gb_s=1e-6)
    assert [(f.code, f.state) for f in found.findings] == [("storage-cache-unknown", State.DEGRADED)]
    assert {found.details["cache"], *(m.conditions["cache"] for m in found.measurements)} == {"unknown"}
    assert measured(tmp_path).findings == ()
    assert [f.code for f in measured(tmp_path, floor_gb_s=1e6).findings] == ["storage-below-floor"]


@each(("yes yes yes", True), ("yes no", False), ("no", False))
def test_a_page_that_fast_storage_brought_meanwhile_is_no_cache(
    answers: str, cached: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the kernel says of no page whether it is there: to ask for one begins to read it."""
    asked: list[int] = []
    coming = iter(answers.split())

    def preadv(_descriptor: int, buffers: list[bytearray], offset: int, flags: int) -> int:
        assert flags == os.RWF_NOWAIT
        asked.append(offset)
        if next(coming) == "no":
            raise BlockingIOError
        return len(buffers[0])

    path = tmp_path / "file"
    path.touch()
    with path.open("rb") as file:
        monkeypatch.setattr(storage, "_are_resident", lambda *_: True)
        monkeypatch.setattr(os, "preadv", preadv)
        assert storage._is_cached(file.fileno(), 8 * BLOCK) is cached
    assert asked == sorted(asked, reverse=True)  # read-ahead goes the other way


def test_the_kernel_says_which_pages_are_in_its_cache(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(8 * BLOCK))
    offsets = [0, 4 * BLOCK]
    with path.open("rb") as file:
        os.fsync(file.fileno())
        assert len(file.read()) == 8 * BLOCK
        assert storage._are_resident(file.fileno(), 8 * BLOCK, offsets)
        if storage._file_system(file.fileno()) in ("ext4", "xfs", "btrfs"):
            os.posix_fadvise(file.fileno(), 4 * BLOCK, 4 * BLOCK, os.POSIX_FADV_DONTNEED)
            assert not storage._are_resident(file.fileno(), 8 * BLOCK, offsets)
            with mmap.mmap(file.fileno(), 8 * BLOCK, prot=mmap.PROT_READ) as mapped:
                assert sum(mapped[::4096]) == 0
                assert storage._is_cached(file.fileno(), 8 * BLOCK)
            assert not storage._is_cached(file.fileno(), 8 * BLOCK)


def test_pages_that_cannot_be_dropped_are_a_cache_that_nobody_sees_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "_past_the_cache", lambda _descriptor: storage.DROPPED)
    path = tmp_path / "data"
    path.write_bytes(os.urandom(8 * BLOCK))
    os.sync()
    assert measured(path).details["cache"] == storage.DROPPED
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert len(bytes(mapped)) == 8 * BLOCK
        assert measured(path).details["cache"] == storage.UNKNOWN


@pytest.mark.component
def test_a_file_system_is_found_whatever_its_folder_is_called(tmp_path: Path) -> None:
    """In a mount namespace of its own: a tmpfs with a name that mountinfo writes in another way."""
    folder = tmp_path / "a b\\ü\n"
    folder.mkdir()
    code = "import sys; from pathlib import Path; from validation.backends import storage"
    script = f"{code}\nwith storage.opened(Path(sys.argv[1]), 1 << 25, 60, print): pass"
    command = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none "$1" && exec "$2" -c "$3" "$1"', "sh"]
    done = subprocess.run(
        [*command, str(folder), sys.executable, script], capture_output=True, text=True, check=False
    )
    if "Operation not permitted" in done.stderr:
        pytest.skip("only root may mount")
    assert "is on tmpfs, which is memory" in done.stderr


@pytest.mark.component
def test_each_path_is_read_and_one_that_cannot_be_is_named(tmp_path: Path) -> None:
    run_options = RunOptions((tmp_path, tmp_path / "missing"))
    plan = node().plan.__class__(**{**vars(node().plan), "storage_bytes": 8 * BLOCK})
    result = StorageRead().run(node(run_options=run_options, plan=plan, cpus=2))
    assert result.state is State.NOT_RUN
    assert f"{tmp_path}/missing cannot be used" in result.reason
    assert {m.conditions["path"] for m in result.measurements} == {str(tmp_path)}


@pytest.mark.component
def test_nothing_is_left_where_the_process_is_killed(tmp_path: Path) -> None:
    """The budget ends it while it writes a file that no folder has: the kernel frees its space."""
    asked_for = asked(tmp_path, most_bytes=1 << 40, write_s=600)
    (outcome,) = run_children([asked_for], budget_s=1.5)
    assert outcome.problem
    assert not list(tmp_path.iterdir())
