"""Temporary files of measuring processes that were killed: they go when the run is over."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.unit.each import each
from tests.unit.validation.samples import expectation, one_test
from validation.model.contract import State
from validation.model.plans import PLANS
from validation.processes import scratch
from validation.processes.child import Request
from validation.processes.pool import ROOT, Ending, run_children
from validation.run import runner


@pytest.mark.component
def test_what_a_killed_process_leaves_goes_with_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[Path] = []

    class Killed:
        id = "cpu_copy"

        def run(self, _node: Any) -> Any:
            (outcome,) = run_children(
                [Request("it", "tests.unit.validation.children:leave_a_folder", "cpu")], 60
            )
            assert outcome.ending is Ending.DIED
            left.append(Path(outcome.problem.rpartition(" ")[2]))
            assert left[0].is_dir()
            return one_test("cpu_copy", State.PASS)

    monkeypatch.setattr(runner, "CHECKS", {"cpu_copy": Killed()})
    result = runner.run_plan(PLANS["quick"], expectation(), "here", ["cpu_copy"], lambda *_: None)
    assert [(test.state, test.findings) for test in result.tests] == [(State.PASS, ())]
    assert left[0].parent.name.startswith("temper-validation-")
    assert not left[0].parent.exists()
    assert "TMPDIR" not in scratch.environment()


def test_without_room_for_a_folder_a_run_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_options: Any) -> None:
        raise OSError

    monkeypatch.setattr(tempfile, "TemporaryDirectory", full)
    with scratch.folder():
        assert "TMPDIR" not in scratch.environment()


@each(("us", True), ("stranger", False), ("link", False), ("", False))
def test_cuda_looks_for_a_daemon_only_where_no_other_user_could_put_one(
    made_by: str, trusted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "nvidia-mps"
    monkeypatch.setattr(scratch, "MPS", folder)
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    if made_by == "link":
        folder.symlink_to(tmp_path)
    elif made_by:
        folder.mkdir()
    if made_by == "stranger":
        if os.getuid() != 0:
            pytest.skip("only root can give a folder away")
        os.chown(folder, 65534, 65534)
    given = scratch.environment().get("CUDA_MPS_PIPE_DIRECTORY")
    assert given is None if trusted else not Path(str(given)).exists()
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/run/mps")
    assert "CUDA_MPS_PIPE_DIRECTORY" not in scratch.environment()


HOLD = """
import sys, tempfile, time
from validation.processes import scratch
with scratch.folder():
    tempfile.mkdtemp()
    print(tempfile.gettempdir(), flush=True)
    time.sleep(600)
"""


def hold() -> subprocess.Popen[str]:
    """A run that says where its folder is and waits."""
    return subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE, text=True, cwd=ROOT)


@pytest.mark.component
def test_the_next_run_removes_what_a_killed_one_left_and_leaves_one_that_runs_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "temper-validation-of-somebody").mkdir()
    (tmp_path / f"{scratch.PREFIX}link").symlink_to(tmp_path / "temper-validation-of-somebody")
    with hold() as killed, hold() as running:
        left, alive = (
            Path((process.stdout or sys.stdin).readline().strip()) for process in (killed, running)
        )
        for path in (left, alive):
            os.utime(path, (0, 0))
        killed.kill()
        killed.wait()
        assert list(left.iterdir())
        with scratch.folder():
            assert not left.exists()
            assert list(alive.iterdir())
        running.kill()
    assert (tmp_path / "temper-validation-of-somebody").is_dir()


def test_a_run_keeps_its_own_temporary_files_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with scratch.folder():
        assert tempfile.gettempdir() == scratch.environment()["TMPDIR"]
    assert tempfile.gettempdir() == str(tmp_path)
    assert list(tmp_path.iterdir()) == []
