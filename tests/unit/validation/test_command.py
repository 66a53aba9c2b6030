"""Programs of the system: what they print, and that none keeps its caller waiting."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.validation.samples import is_running
from tests.waiting import wait_until
from validation.processes import command
from validation.processes.command import CommandError, CommandTimeoutError

pytestmark = pytest.mark.component


def test_status_and_both_outputs_come_back_whatever_their_bytes() -> None:
    program = "import sys; sys.stdout.buffer.write(b'\\xff!'); sys.stderr.write('no'); sys.exit(3)"
    done = command.run([sys.executable, "-c", program], 60)
    assert (done.status, done.output, done.errors) == (3, "\ufffd!", "no")


def test_a_program_that_hangs_is_ended() -> None:
    with pytest.raises(CommandTimeoutError, match=r"no answer within 0 s$"):
        command.run(["sleep", "600"], 0.1)


def test_a_program_that_cannot_be_killed_does_not_hold_its_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that sleeps in the kernel: the signal is sent, and nothing happens."""
    spared: list[subprocess.Popen[bytes]] = []
    kill = subprocess.Popen.kill

    def spare(process: subprocess.Popen[bytes]) -> None:
        spared.append(process)

    monkeypatch.setattr(subprocess.Popen, "kill", spare)
    monkeypatch.setattr(command, "REAP_S", 0.1)
    try:
        with pytest.raises(CommandTimeoutError, match="it cannot be killed: it is stuck in the kernel"):
            command.run(["sleep", "600"], 0.1)
        assert spared[0].poll() is None
    finally:
        for process in spared:
            kill(process)
            process.wait()


def test_a_program_that_never_stops_printing_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "MOST_BYTES", 1 << 20)
    with pytest.raises(CommandError, match="more than 1 MiB of text"):
        command.run(["yes"], 60)


def test_a_program_that_has_ended_is_not_waited_for_because_another_holds_its_pipes() -> None:
    """As a driver's helper does that nvidia-smi starts and leaves behind."""
    done = command.run(["sh", "-c", "sleep 600 & echo $!"], 60)
    try:
        assert done.status == 0
    finally:
        os.kill(int(done.output), signal.SIGKILL)


def test_all_of_a_long_answer_arrives() -> None:
    done = command.run(["sh", "-c", "head -c 3000000 /dev/zero; head -c 300000 /dev/zero >&2"], 60)
    assert (len(done.output), len(done.errors)) == (3_000_000, 300_000)


def test_a_program_ends_when_its_caller_is_killed(tmp_path: Path) -> None:
    caller = "import sys; from validation.processes import command; command.run(sys.argv[1:], 600)"
    note = tmp_path / "pid"
    deaf = f"trap '' TERM; echo $$ > {note}.new; mv {note}.new {note}; while :; do sleep 1; done"
    with subprocess.Popen([sys.executable, "-c", caller, "sh", "-c", deaf]) as process:
        wait_until(note.exists, "the program has started")
        process.kill()
    wait_until(lambda: not is_running(int(note.read_text())), "the program ends with its caller")
