"""Prometheus' own programs, for tests: what they read and refuse is what counts."""

import contextlib
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence

import pytest

from tests.waiting import wait_until
from tools.bootstrap import MONITORING


def program(name: str) -> str:
    """Its path. Where it is not, the test is skipped: `make test` has it unpacked before."""
    # A test of it starts a process, also where it is skipped.
    sys.audit("subprocess.Popen", name, (), None, None)
    found = shutil.which(name, path=str(MONITORING / "usr/bin")) or shutil.which(name)
    if not found:
        pytest.skip(f"{name} is not here: python3 -m tools.bootstrap monitoring")
    return found


def run(name: str, *arguments: object, given: str = "") -> subprocess.CompletedProcess[str]:
    """Run one to its end."""
    command = [program(name), *map(str, arguments)]
    return subprocess.run(command, input=given, capture_output=True, text=True, timeout=300)


#: Debian's Alertmanager reads its templates from /usr/share alone: there it sees what was unpacked, too.
SHARED = 'mount -t overlay none -o "lowerdir=$0:/usr/share" /usr/share && exec "$@"'


@contextlib.contextmanager
def server(name: str, arguments: Sequence[object], ready: str) -> Iterator[str]:
    """Run one on loopback until the body ends; yields its address. `ready` is a path that it answers then."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{found.getsockname()[1]}"
    path = program(name)
    command = [path, f"--web.listen-address={address}", *map(str, arguments)]
    if name == "prometheus-alertmanager" and path.startswith(str(MONITORING)):
        private = ["unshare", "--mount", "--map-root-user", "sh", "-c", SHARED]
        command = [*private, str(MONITORING / "usr/share"), *command]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            up = f"http://{address}{ready}"
            wait_until(lambda: answers(up) or process.poll() is not None, f"{name} does not answer", 60)
            assert process.poll() is None, f"{name} ended with status {process.returncode}"
            yield f"http://{address}"
        finally:
            process.kill()


def answers(url: str) -> bool:
    """Whether somebody answers well."""
    with contextlib.suppress(OSError, urllib.error.URLError):
        get(url)
        return True
    return False


def get(url: str) -> str:
    """What a server on loopback says."""
    with urllib.request.urlopen(url, timeout=30) as answer:  # noqa: S310 - on loopback
        return str(answer.read().decode())
