"""Loading the operator's own files: the sweep on a scripted loader, real files, and real workers."""

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.needs import needs_torch
from tests.unit.validation.samples import node
from tests.unit.validation.scripted import ScriptedBackend
from tests.unit.validation.test_torch import there
from validation.backends import files
from validation.checks import storage_loading
from validation.checks.registry import CHECKS
from validation.model.contract import State
from validation.model.not_run import NotRunError
from validation.processes.child import Request

TIMING = {"warm_up_s": 0, "measure_s": 1.0, "least": 5, "most": 100}
#: Seconds of a batch by workers: from 4 on no faster.
BATCHES = {0: 0.8, 1: 0.8, 2: 0.4, 4: 0.2, 8: 0.196}
#: With more batches ready, and over epochs whose workers are new, or stay.
FILES = {(4, 4, False): 0.16, (4, 8, False): 0.158, (4, 4, True): 0.1}


def go_on() -> None:
    """Nobody waits for what these tests look for."""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Forty files of 1000 bytes."""
    folder = tmp_path / "data"
    (folder / "below").mkdir(parents=True)
    for number in range(40):
        (folder / ("below" if number % 2 else ".") / f"{number}").write_bytes(os.urandom(1000))
    return folder


def sweep(backend: ScriptedBackend, path: Path, shared_bytes: int = 1 << 30) -> Any:
    parameters = {"path": str(path), "cpus": 8, "timing": TIMING}
    request = Request(str(path), "", "cpu", parameters=parameters)
    return storage_loading.sweep(backend, request, lambda _stage: None, shared_bytes)


def test_workers_are_tried_first_then_what_they_keep_ready_and_whether_they_stay(data: Path) -> None:
    backend = ScriptedBackend("cpu", batches=BATCHES, files=FILES)
    measured = sweep(backend, data)
    assert [call for call in backend.calls if call.startswith("files")] == [
        *(f"files {workers} 2 False" for workers in BATCHES),
        *("files 4 4 False", "files 4 8 False"),
        *("files 4 4 False", "files 4 4 True"),
    ]
    values = {m.name: m.value for m in measured.measurements}
    assert values["best_file_loading_samples_s"] == 200.0
    assert values["best_file_loading_gb_s"] == 0.0002
    epochs = [m for m in measured.measurements if m.name == "file_epochs_samples_s"]
    assert [(m.conditions["persistent_workers"], m.value) for m in epochs] == [(0, 200.0), (1, 320.0)]
    assert measured.findings == ()
    assert all(one.closed for one in backend.loadings)


def test_advice_has_the_setting_and_its_numbers(data: Path) -> None:
    texts = sweep(ScriptedBackend("cpu", batches=BATCHES, files=FILES), data).details["advice"]["DataLoader"]
    assert texts[0].startswith(
        f"num_workers=4, prefetch_factor=4 is enough for the files of {data}: 200 samples/s"
    )
    # Epochs of 16 batches: 2.56 s, or 1.6 s.
    assert "0.96 s sooner" in texts[1]


def test_workers_that_stay_are_not_advised_where_they_gain_nothing(data: Path) -> None:
    alike = FILES | {(4, 4, True): 0.16}
    texts = sweep(ScriptedBackend("cpu", batches=BATCHES, files=alike), data).details["advice"]["DataLoader"]
    assert len(texts) == 1


def test_where_no_worker_is_fastest_nothing_more_is_tried(data: Path) -> None:
    backend = ScriptedBackend("cpu", batches=dict.fromkeys(BATCHES, 0.4))
    measured = sweep(backend, data)
    assert len(backend.loadings) == len(BATCHES)
    assert measured.details["advice"]["DataLoader"][0].startswith("num_workers=0 is enough")


def test_no_more_is_kept_ready_than_shared_memory_holds(data: Path) -> None:
    batch = 32 * 1000
    backend = ScriptedBackend("cpu", batches=BATCHES, files=FILES)
    sweep(backend, data, shared_bytes=batch * (4 * 4 + 1))
    tried = {call for call in backend.calls if call.startswith("files")}
    assert tried == {*(f"files {workers} 2 False" for workers in (0, 1, 2, 4)), "files 4 2 True"}


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("DataLoader worker (pid 7) is killed by signal: Killed.", "loader-worker-died"),
        ("DataLoader worker (pid 7) is killed by signal: Bus error.", "shm-too-small"),
        ("Caught OSError in DataLoader worker process 0. [Errno 5] Input/output error", "loader-worker-died"),
    ],
)
def test_a_worker_that_dies_fails(words: str, code: str, data: Path) -> None:
    backend = ScriptedBackend("cpu", batches=BATCHES, deaths={2: 0}, last_words=words)
    assert [(f.code, f.state) for f in sweep(backend, data).findings] == [(code, State.FAIL)]


def test_a_limit_of_the_environment_is_degraded(data: Path) -> None:
    backend = ScriptedBackend("cpu", batches=BATCHES, most_workers=2)
    assert {f.code for f in sweep(backend, data).findings} == {"loader-limited"}


@pytest.mark.parametrize("wrong", [math.nan, 1.0])
def test_a_wrong_sample_fails(wrong: float, data: Path) -> None:
    findings = sweep(ScriptedBackend("cpu", batches=BATCHES, wrong=wrong), data).findings
    assert {(f.code, f.state) for f in findings} == {("wrong-result", State.FAIL)}


@pytest.mark.parametrize("seen", [{"wrong": 1.0}, {"deaths": {0: 0}}])
@pytest.mark.parametrize("change", ["written", "gone"])
def test_files_that_somebody_changes_accuse_no_storage(
    change: str, seen: dict[str, Any], data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = files.found

    def changed(*arguments: Any) -> files.Found:
        listed = found(*arguments)
        if change == "gone":
            (data / "0").unlink()
        else:
            written_ns = (data / "0").stat().st_mtime_ns
            (data / "0").write_bytes(b"other")
            os.utime(data / "0", ns=(written_ns, written_ns))  # and hides it
        return listed

    monkeypatch.setattr(files, "found", changed)
    with pytest.raises(NotRunError, match="was written to while it was read"):
        sweep(ScriptedBackend("cpu", batches=BATCHES, **seen), data)


def test_samples_are_regular_files_and_parts_of_larger_ones(data: Path, tmp_path: Path) -> None:
    (data / "shard").write_bytes(os.urandom(2 * files.PIECE_BYTES + 7))
    (data / "empty").write_bytes(b"")
    os.mkfifo(data / "pipe")
    (tmp_path / "elsewhere").write_bytes(b"secret")
    (data / "link").symlink_to(tmp_path / "elsewhere")
    (data / "folder").symlink_to(tmp_path)
    found = files.found(data, 32, go_on)
    assert len(found.pieces) == 40 + 3
    assert len(found.changed_ns) == 41
    assert sorted(piece.size_bytes for piece in found.pieces)[-3:] == [
        1000,
        files.PIECE_BYTES,
        files.PIECE_BYTES,
    ]
    shard = sorted((piece.start, bytes(files.read(piece))) for piece in found.pieces if "shard" in piece.path)
    assert b"".join(content for _, content in shard) == (data / "shard").read_bytes()
    assert found.pieces == files.found(data, 32, go_on).pieces  # the same order again


@pytest.mark.parametrize("bound", ["MOST_PIECES", "MOST_ENTRIES"])
def test_a_folder_without_end_is_looked_through_only_so_far(
    bound: str, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, bound, 10)
    assert len(files.found(data, 1, go_on).pieces) == 10


@pytest.mark.component
def test_folders_that_are_nested_deeper_than_calls_hide_nothing(data: Path) -> None:
    folder = os.open(data, os.O_RDONLY)
    for _ in range(sys.getrecursionlimit() + 10):
        os.mkdir("a", dir_fd=folder)
        below = os.open("a", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = below
    os.close(folder)
    try:
        assert len(files.found(data, 1, go_on).pieces) == 40
    finally:  # pytest cannot
        subprocess.run(["rm", "-r", data / "a"], check=True)


def test_folders_count_among_the_entries(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their user has made as many as he likes."""
    (data / "00").mkdir()
    monkeypatch.setattr(files, "MOST_ENTRIES", 10)
    assert len(files.found(data, 1, go_on).pieces) == 9


def test_a_folder_with_too_few_files_and_a_file_are_not_run(tmp_path: Path) -> None:
    path = tmp_path / "one"
    path.write_bytes(b"1")
    with pytest.raises(NotRunError, match="fewer than 32"):
        sweep(ScriptedBackend("cpu"), tmp_path)
    with pytest.raises(NotRunError, match="is no folder"):
        sweep(ScriptedBackend("cpu"), path)
    with pytest.raises(NotRunError, match="No such file"):
        sweep(ScriptedBackend("cpu"), tmp_path / "missing")


def test_without_a_path_nothing_is_loaded() -> None:
    assert CHECKS["storage_loading"].run(node()).state is State.NOT_RUN


@pytest.mark.component
@needs_torch
def test_epoch_after_epoch_brings_every_sample_in_its_place_whoever_loads_it(data: Path) -> None:
    found = there(f"""
    import contextlib
    from pathlib import Path
    from validation.backends import files
    from validation.backends.cpu import CpuBackend

    data = files.found(Path({str(data)!r}), 32, lambda: None)
    answer = []
    for workers, persistent in ((0, False), (2, False), (2, True)):
        setting = dict(prefetch=2, persistent=persistent, batches=3)
        with contextlib.closing(CpuBackend().file_loading(data.pieces, workers, **setting)) as loading:
            errors, pids = [], set()
            for _ in range(8):  # the first batch of each kind, and over the ends of two epochs
                errors.append(loading.error())
                pids |= {{worker.pid for worker in getattr(loading._batches, "_workers", [])}}
            taken = loading.take(4, lambda: None)
            answer.append([errors, len(pids), taken > 0])
    """)
    assert [one[0] for one in found] == [[0.0] * 8] * 3
    # Workers that stay are the same in every epoch.
    assert [one[1] for one in found] == [0, 6, 2]
    assert all(one[2] for one in found)


@pytest.mark.component
@needs_torch
def test_a_sample_that_is_not_what_is_in_its_file_is_seen(data: Path) -> None:
    errors = there(f"""
    import contextlib
    from pathlib import Path
    from validation.backends import files
    from validation.backends.cpu import CpuBackend
    from validation.backends.loading import Pieces

    data = files.found(Path({str(data)!r}), 32, lambda: None)
    right = Pieces.__getitem__

    def damaged(self, number):
        content, number = right(self, number)
        content[7] ^= number == 5
        return content, number

    answer = []
    for get in (right, damaged):
        Pieces.__getitem__ = get
        with contextlib.closing(
            CpuBackend().file_loading(data.pieces, 1, prefetch=2, persistent=False, batches=3)
        ) as loading:
            Pieces.__getitem__ = right
            answer.append(loading.error())
    """)
    assert errors == [0.0, 1.0]
