"""Real OpenPGP keys, made by GnuPG for one run of the tests."""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ansible.module_utils.temper.packaging import openpgp

from tests.waiting import wait_until

AGENT_TIMEOUT_S = 30


@dataclass(frozen=True)
class KeyRing:
    """A GnuPG home and its keys: algorithm -> fingerprint."""

    home: Path
    keys: dict[str, str] = field(default_factory=dict)

    def gpg(self, *arguments: str) -> bytes:
        command = ["gpg", "--batch", "--quiet", "--homedir", str(self.home), *arguments]
        return subprocess.run(command, check=True, capture_output=True).stdout

    def generate(self, algorithm: str, expires: str = "never") -> None:
        user = f"{algorithm} <{algorithm}@example.org>"
        self.gpg("--passphrase", "", "--quick-generate-key", user, algorithm, "sign", expires)
        listing = self.gpg("--with-colons", "--list-keys", user).decode()
        row = next(line for line in listing.splitlines() if line.startswith("fpr:"))
        self.keys[algorithm] = row.split(":")[9]

    def export(self, *algorithms: str, armour: bool = True) -> bytes:
        form = ["--armor"] if armour else []
        return self.gpg(*form, "--export", *(self.keys[algorithm] for algorithm in algorithms))

    def stop_agent(self) -> None:
        """End the agent, and wait until its sockets are gone: it takes them away itself, a little later.

        gpgconf would look for it in vain where /run/user/UID was made after the agent had started.
        """
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (process / "cmdline").read_bytes().split(b"\0")
                if b"gpg-agent" in words[0] and str(self.home).encode() in words:
                    os.kill(int(process.name), signal.SIGTERM)
        wait_until(lambda: not any(self.home.glob("S.*")), f"gpg-agent of {self.home} ends", AGENT_TIMEOUT_S)


@contextlib.contextmanager
def made(*algorithms: str) -> Iterator[KeyRing]:
    """A ring with new keys, for as long as it is needed."""
    # Not below pytest's long temporary path: the agent's socket must fit into 108 characters.
    ring = KeyRing(Path(tempfile.mkdtemp()))
    try:
        for algorithm in algorithms:
            ring.generate(algorithm)
        yield ring
    finally:
        ring.stop_agent()
        shutil.rmtree(ring.home)


def forged(fingerprint: str, kind: int = 0x13, created: int = 0, algorithm: int = 1) -> bytes:
    """A packet that says it is a signature by this key (RFC 9580, 5.2.3), with anything in its place."""
    hashed = b"\x05\x02" + (created or int(time.time())).to_bytes(4, "big")
    hashed += bytes([2 + len(fingerprint) // 2, 33, 4]) + bytes.fromhex(fingerprint)
    body = bytes([4, kind, algorithm, 10]) + len(hashed).to_bytes(2, "big") + hashed + bytes(4)
    body += b"\x08\x00" + b"\x80" * 256
    return b"\xc2\xff" + len(body).to_bytes(4, "big") + body


def fingerprints(data: bytes) -> list[str]:
    """Fingerprints of the primary keys of a key file."""
    return [key.fingerprint for key in openpgp.keys(data)]
