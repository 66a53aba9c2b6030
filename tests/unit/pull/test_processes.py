"""The bounds of what a node starts for its pull: real processes."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from pull.processes import PROGRAMS, OutputError, run

if TYPE_CHECKING:
    from pathlib import Path

ENVIRONMENT = {"PATH": PROGRAMS}


def test_both_streams_and_the_status_are_kept() -> None:
    done = run(["sh", "-c", "cat; echo no >&2; exit 3"], ENVIRONMENT, 20, b"x" * 300_000)
    assert (len(done.stdout), done.stderr, done.returncode) == (300_000, b"no\n", 3)


def test_input_that_nobody_reads_is_no_failure() -> None:
    assert run(["true"], ENVIRONMENT, 20, b"x" * 300_000).returncode == 0


@pytest.mark.parametrize("stream", ["", " >&2"])
def test_what_says_too_much_is_ended(stream: str) -> None:
    with pytest.raises(OutputError, match="100000 bytes"):
        run(["sh", "-c", f"exec yes{stream}"], ENVIRONMENT, 20, most=100_000)


def test_what_must_reach_its_end_is_left_to_say_what_it_will() -> None:
    done = run(["sh", "-c", "seq 1000000"], ENVIRONMENT, 60, most=1000, tail=True)
    assert done.returncode == 0
    assert done.stdout.endswith(b"999999\n1000000\n")
    assert len(done.stdout) <= 2000


def test_what_fills_a_folder_is_ended(tmp_path: Path) -> None:
    script = f"while :; do head -c 100000 /dev/zero > {tmp_path}/$((n+=1)); sleep 0.01; done"
    with pytest.raises(OutputError, match="grew beyond 1 MiB"):
        run(["sh", "-c", script], ENVIRONMENT, 60, grows=(tmp_path, 1 << 20))


def test_what_closes_its_streams_and_goes_on_is_ended_in_time() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        run(["sh", "-c", "exec >&- 2>&-; sleep 60"], ENVIRONMENT, 0.5)
