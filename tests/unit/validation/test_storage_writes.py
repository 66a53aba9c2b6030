"""Writes, random reads and checkpoints on real storage: what is measured, what must never happen."""

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.unit.each import each
from tests.unit.needs import needs_torch
from tests.unit.validation.samples import node
from tests.unit.validation.scripted import ScriptedBackend
from tests.unit.validation.test_torch import there
from validation.backends import storage
from validation.backends.protocol import CheckpointError
from validation.backends.storage import BLOCK
from validation.checks import storage as storage_read
from validation.checks import storage_checkpoint, storage_random, storage_write
from validation.checks.registry import CHECKS, in_plan
from validation.model.contract import Measured, State
from validation.model.not_run import NotRunError
from validation.model.plans import RunOptions
from validation.model.quantities import quantity
from validation.processes.child import Request

NEW = ("storage_write", "storage_random_read", "storage_checkpoint")
TIMING = {"warm_up_s": 0, "measure_s": 0, "least": 3, "most": 3}


def asked(path: Path) -> Request:
    return Request(
        *(str(path), "", "cpu"),
        parameters={"path": str(path), "timing": TIMING, "most_bytes": 9 * BLOCK, "write_s": 60}
        | {"floor_gb_s": None},
    )


def measured(module: ModuleType, path: Path) -> Measured:
    found: Measured = module.measure(asked(path), lambda _stage: None)
    return found


def checkpoint(backend: ScriptedBackend, path: Path) -> Measured:
    return storage_checkpoint.save_and_load(backend, asked(path), lambda _stage: None)


def go_on() -> None:
    """Nobody waits for what these tests write."""


@each("quick", "standard", "burn-in")
def test_a_path_adds_nothing_new_to_the_quick_plan(plan: str, tmp_path: Path) -> None:
    tests = set(in_plan(plan, RunOptions((tmp_path,))))
    assert set(NEW) & tests == (set() if plan == "quick" else set(NEW))


@each("storage_read", *NEW)
def test_without_a_path_nothing_is_measured(test: str) -> None:
    result = CHECKS[test].run(node())
    assert (result.state, result.measurements) == (State.NOT_RUN, ())
    assert "--storage" in result.reason


def test_writes_are_measured_in_a_file_that_nobody_sees(tmp_path: Path) -> None:
    seen: list[list[Path]] = []
    found = storage_write.measure(asked(tmp_path), lambda _stage: seen.append(list(tmp_path.iterdir())))
    names = [m.name for m in found.measurements]
    assert names == ["storage_write_gb_s", "storage_write_one_thread_gb_s"]
    assert all(m.value > 0 and m.samples == 3 for m in found.measurements)
    assert found.findings == ()
    assert (found.details["file_bytes"], found.details["checked_blocks"]) == (9 * BLOCK, 9)
    assert seen
    assert not any(seen)


def test_a_write_reaches_every_block_with_other_bytes_each_time(tmp_path: Path) -> None:
    with storage.opened(tmp_path, 9 * BLOCK, 60, go_on) as source, ThreadPoolExecutor(2) as pool:
        contents = [[source.read(number) for number in range(9)]]
        for _ in range(2):
            source.write_seconds(pool, 2, 0, 9 * BLOCK, go_on)
            contents.append([source.read(number) for number in range(9)])
        before, first, second = contents
        assert all(len({*blocks}) == 3 for blocks in zip(before, first, second, strict=True))
        pages = {block[at : at + storage.PAGE] for block in second for at in range(0, BLOCK, storage.PAGE)}
        assert len(pages) == 9 * BLOCK // storage.PAGE


def test_a_sample_of_writes_ends_when_the_storage_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    write, synchronise = os.pwrite, os.fdatasync

    def noted(descriptor: int, data: Any, place: int) -> int:
        order.append("write")
        return write(descriptor, data, place)

    def synchronised(descriptor: int) -> None:
        order.append("sync")
        synchronise(descriptor)

    with storage.opened(tmp_path, 9 * BLOCK, 60, go_on) as source, ThreadPoolExecutor(2) as pool:
        monkeypatch.setattr(os, "pwrite", noted)
        monkeypatch.setattr(os, "fdatasync", synchronised)
        source.write_seconds(pool, 2, 0, 4 * BLOCK, go_on)
    assert order == ["write"] * 4 + ["sync"]


@each(storage_read, storage_write)
def test_a_block_that_comes_back_changed_fails(
    module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = storage.Source.read

    def damaged(self: storage.Source, number: int) -> bytes:
        block = bytearray(read(self, number))
        block[4097] ^= number == 3
        return bytes(block)

    monkeypatch.setattr(storage.Source, "read", damaged)
    (finding,) = measured(module, tmp_path).findings
    assert (finding.code, finding.state) == ("storage-wrong-data", State.FAIL)
    assert f"the first at byte {3 * BLOCK}" in finding.text


@each(storage_write, storage_checkpoint)
def test_a_file_of_the_operator_is_never_written_to(module: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(os.urandom(9 * BLOCK))
    before = path.read_bytes(), path.stat().st_mtime_ns
    with pytest.raises(NotRunError, match="only read: name a folder"):
        if module is storage_checkpoint:
            checkpoint(ScriptedBackend("cpu"), path)
        else:
            measured(module, path)
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before


def test_random_reads_are_measured_by_bytes_and_by_latency(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(os.urandom(9 * BLOCK))
    before = path.stat().st_mtime_ns
    for place in (tmp_path, path):
        found = measured(storage_random, place)
        samples, pages = found.measurements
        assert (samples.name, samples.conditions["threads"]) == ("storage_random_gb_s", 8)
        assert (pages.name, pages.conditions["size_bytes"]) == ("storage_random_reads_s", 4096)
        assert quantity(pages).endswith(" reads/s")
        assert min(samples.value, pages.value) > 0
        assert found.findings == ()
    assert path.stat().st_mtime_ns == before


def test_random_reads_go_everywhere_in_whole_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places: list[int] = []
    fill = storage._fill

    def noted(descriptor: int, buffer: Any, offset: int) -> None:
        places.append(offset)
        fill(descriptor, buffer, offset)

    with storage.opened(tmp_path, 9 * BLOCK, 60, go_on) as source, ThreadPoolExecutor(2) as pool:
        monkeypatch.setattr(storage, "_fill", noted)
        source.random_seconds(pool, 2, 200, 4096, go_on)
    assert len(places) == 400
    assert all(0 <= place <= 9 * BLOCK - 4096 and place % 4096 == 0 for place in places)
    assert len({place // BLOCK for place in places}) > 4


@each(storage_read, storage_write, storage_random)
def test_an_error_of_the_storage_fails_with_what_the_system_said(
    module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_arguments: Any) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "preadv", broken)
    (finding,) = measured(module, tmp_path).findings
    assert (finding.code, finding.state) == ("storage-error", State.FAIL)
    assert "Input/output error" in finding.text


def test_a_checkpoint_is_saved_and_loaded_in_a_file_that_nobody_sees(tmp_path: Path) -> None:
    found = checkpoint(ScriptedBackend("cpu"), tmp_path)
    assert {m.name: (m.value, m.samples) for m in found.measurements} == {
        "checkpoint_save_gb_s": (0.4, 3),
        "checkpoint_load_gb_s": (1.0, 3),
        "checkpoint_gb": (0.004, 1),
    }
    assert found.findings == ()
    (text,) = found.details["advice"]["Checkpoints"]
    assert "0.40 GB/s" in text
    assert "84 GB" in text
    assert "210 s" in text
    assert not list(tmp_path.iterdir())


def test_a_checkpoint_that_differs_fails(tmp_path: Path) -> None:
    backend = ScriptedBackend("cpu", saved=CheckpointError("2 of its tensors differ"))
    found = checkpoint(backend, tmp_path)
    (finding,) = found.findings
    assert (finding.code, finding.state) == ("checkpoint-differs", State.FAIL)
    assert "2 of its tensors differ" in finding.text
    assert [m.name for m in found.measurements] == ["checkpoint_save_gb_s"]


@each(("first_rate", 1000.0, "would take 4000 s"), ("room", 1 << 20, "is too full"))
def test_a_checkpoint_for_which_there_is_no_time_or_room_is_not_written(
    what: str, found: float, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, what, lambda *_: found)
    monkeypatch.setattr(os, "pwrite", None)
    with pytest.raises(NotRunError, match=reason):
        checkpoint(ScriptedBackend("cpu"), tmp_path)


def test_without_the_memory_for_a_checkpoint_it_is_not_run(tmp_path: Path) -> None:
    with pytest.raises(NotRunError, match="of free memory needed"):
        checkpoint(ScriptedBackend("cpu", free=1 << 20), tmp_path)


@each(errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
def test_a_quota_is_no_fault_of_the_storage(
    error: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_arguments: Any) -> int:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(NotRunError, match="is full, or a limit or quota is"):
        measured(storage_read, tmp_path)
    with pytest.raises(NotRunError, match="is full, or a limit or quota is"):
        checkpoint(ScriptedBackend("cpu"), tmp_path)


@pytest.mark.component
@needs_torch
def test_torch_brings_a_checkpoint_back_and_sees_every_damage(tmp_path: Path) -> None:
    size, tensors, times, told, reasons, full, empty = there(f"""
    import errno, os, tempfile, torch
    from validation.backends.checkpoint import Checkpoint, WatchedFile
    from validation.backends.protocol import CheckpointError, Shape

    checkpoint = Checkpoint(torch.device("cpu"), Shape(layers=2, width=64, heads=2, tokens=8, batch=1))
    told = []

    def go_on():
        told.append(1)

    def reason(load):
        try:
            load()
        except CheckpointError as error:
            return str(error)

    with tempfile.TemporaryFile(dir={str(tmp_path)!r}) as file:
        descriptor = file.fileno()
        times = [checkpoint.save(descriptor, go_on), checkpoint.load(descriptor, go_on)]
        times.append(checkpoint.save(descriptor, go_on))  # over the one before
        size = os.fstat(descriptor).st_size
        state = checkpoint._state
        checkpoint._state = {{"model": state["model"], "optimizer": {{}}}}
        other = reason(lambda: checkpoint.load(descriptor, go_on))
        checkpoint._state = state
        state["model"][0].flatten()[5] += 1
        differs = reason(lambda: checkpoint.load(descriptor, go_on))
        os.ftruncate(descriptor, size // 2)
        short = reason(lambda: checkpoint.load(descriptor, go_on))

        def fill(self, data):
            self.failed = OSError(errno.ENOSPC, "No space left on device")
            raise self.failed

        WatchedFile.write = fill
        try:
            full = checkpoint.save(descriptor, go_on)
        except OSError as error:
            full = error.errno
    momentum = [one["momentum_buffer"] for one in state["optimizer"]["state"].values()]
    answer = [
        size,
        [checkpoint.size_bytes, len(state["model"]), len(momentum)],
        times,
        len(told),
        [other, differs, short],
        full,
        [one.grad is None for one in state["model"]].count(False),
    ]
    """)
    # Two layers of 12 x 64 x 64 weights of four bytes, and their momentum.
    assert tensors == [2 * 2 * 12 * 64 * 64 * 4, 8, 8]
    assert size > tensors[0]
    assert min(times) > 0
    assert told > 0
    assert "another number of tensors" in reasons[0]
    assert reasons[1] == "1 of its tensors differ"
    assert "cannot be read" in reasons[2]
    assert full == errno.ENOSPC
    assert empty == 0
