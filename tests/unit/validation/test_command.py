"""Programs of the system: what they print, and that none keeps its caller waiting."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from validation import command
from validation.command import CommandTimeoutError


def test_status_and_both_outputs_come_back_whatever_their_bytes() -> None:
    program = "import sys; sys.stdout.buffer.write(b'\\xff!'); sys.stderr.write('no'); sys.exit(3)"
    done = command.run([sys.executable, "-c", program], 60)
    assert (done.status, done.output, done.errors) == (3, "\ufffd!", "no")


def test_a_program_that_hangs_is_ended() -> None:
    with pytest.raises(CommandTimeoutError, match=r"no answer within 0 s$"):
        command.run(["sleep", "600"], 0.1)


def test_a_program_that_cannot_be_killed_does_not_hold_its_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that sleeps in the kernel: the signal is sent, and nothing happens."""
    spared: list[subprocess.Popen[str]] = []
    kill = subprocess.Popen.kill

    def spare(process: subprocess.Popen[str]) -> None:
        spared.append(process)

    monkeypatch.setattr(subprocess.Popen, "kill", spare)
    monkeypatch.setattr(command, "REAP_S", 0.1)
    started = time.monotonic()
    try:
        with pytest.raises(CommandTimeoutError, match="it cannot be killed: it is stuck in the kernel"):
            command.run(["sleep", "600"], 0.1)
        assert time.monotonic() - started < 60
    finally:
        for process in spared:
            kill(process)
            process.wait()
