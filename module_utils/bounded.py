"""Run a command that may hang: a wedged GPU holds its caller in the kernel, where no signal reaches it."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile


def run(command: list[str], timeout_s: float, kill_timeout_s: float = 2) -> subprocess.CompletedProcess[str]:
    """The finished command, with its output. Raises OSError, and TimeoutExpired after `timeout_s`.

    subprocess.run would wait for ever for what it killed.
    """
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=errors)
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(kill_timeout_s)
            raise
        output.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(command, process.returncode, output.read(), errors.read())
