"""Real OpenPGP keys, made by GnuPG for one run of the tests."""

from __future__ import annotations

import subprocess
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


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
        """End the agent, and wait until its sockets are gone: it takes them away itself, a little later."""
        subprocess.run(["gpgconf", "--homedir", str(self.home), "--kill", "all"], check=True)
        deadline = time.monotonic() + AGENT_TIMEOUT_S
        while any(self.home.glob("S.*")):
            assert time.monotonic() < deadline, f"gpg-agent of {self.home} does not end"
            time.sleep(0.01)
