"""The bounded runner of programs, with a kernel that says when a process ends and with one that does not."""

import os
import subprocess
from pathlib import Path

import pytest
from ansible.module_utils.temper import process

from tests.waiting import wait_until

pytestmark = pytest.mark.component


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


def test_process_that_cannot_be_killed_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wedged GPU holds its caller in the kernel, where no signal reaches it."""
    started: list[subprocess.Popen[str]] = []
    kill = subprocess.Popen.kill

    def survive(child: subprocess.Popen[str]) -> None:
        started.append(child)

    monkeypatch.setattr(subprocess.Popen, "kill", survive)
    monkeypatch.setattr(process, "KILL_TIMEOUT_S", 0.1)
    with pytest.raises(process.CommandError, match=r"has not come to an end within 0\.1 s"):
        process.run(["sleep", "600"], timeout_s=0.1)
    assert started[0].poll() is None
    assert not process.succeeds(["false"])
    kill(started[0])
    started[0].wait()


def test_file_descriptors_are_given_back() -> None:
    before = sorted(Path("/proc/self/fd").iterdir())
    process.complete(["true"])
    assert sorted(Path("/proc/self/fd").iterdir()) == before


def test_program_that_prints_without_end_is_ended_with_its_children(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(process, "MOST_BYTES", 2**20)
    with pytest.raises(process.OutputError, match="`sh -c"):
        process.run(["sh", "-c", f"yes & echo $! > {tmp_path}/pid; wait"], timeout_s=60)
    child = Path("/proc", (tmp_path / "pid").read_text().strip(), "stat")

    def ended() -> bool:
        # Nobody may have taken its status yet.
        return not child.exists() or child.read_text().split()[2] == "Z"

    wait_until(ended, "the child ends")


def test_program_that_fills_a_folder_is_ended(tmp_path: Path) -> None:
    script = f"while :; do head -c 100000 /dev/zero >{tmp_path}/$((n += 1)); done"
    with pytest.raises(process.OutputError, match="larger than 1 MiB"):
        process.complete(["sh", "-c", script], 60, grows=(tmp_path, 2**20))


def test_line_that_cannot_be_read_is_named_with_its_program() -> None:
    with pytest.raises(process.OutputError, match=r"`count`.*'x\\x1b'"):
        process.each_line("count", "1\n\n2\nx\x1b\n", int)


def test_only_a_line_feed_ends_a_line() -> None:
    assert process.each_line("count", "a\x0cb\u2028c\rd\n\ne", str) == ["a\x0cb\u2028c\rd", "e"]
