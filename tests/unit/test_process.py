"""The bounded runner of programs, with a kernel that says when a process ends and with one that does not."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from ansible.module_utils import process


@pytest.fixture(params=["pidfd", "poll"], autouse=True)
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux 5.3 and newer, and older."""
    if request.param == "poll":

        def unknown(_process: int) -> int:
            raise OSError(38, "Function not implemented")

        monkeypatch.setattr(os, "pidfd_open", unknown)


def test_output_complaint_and_status_are_kept_apart() -> None:
    done = process.complete(["sh", "-c", "cat; echo bad >&2; exit 3"], text="given")
    assert (done.returncode, done.stdout, done.stderr) == (3, "given", "bad\n")


def test_process_that_does_not_end_in_time_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[int] = []
    kill = subprocess.Popen.kill

    def note(started: subprocess.Popen[str]) -> None:
        killed.append(started.pid)
        kill(started)

    monkeypatch.setattr(subprocess.Popen, "kill", note)
    with pytest.raises(process.CommandError, match=r"`sleep 60` has not come to an end within 0\.1 s"):
        process.run(["sleep", "60"], timeout_s=0.1)
    (child,) = killed
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_file_descriptors_are_given_back() -> None:
    before = sorted(Path("/proc/self/fd").iterdir())
    process.complete(["true"])
    assert sorted(Path("/proc/self/fd").iterdir()) == before
