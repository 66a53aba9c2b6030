"""What happens to a package repository during its life, for tests: new versions, a new key, damage, silence.

A lab's server normally shows the repositories that all labs of this machine share. Here it shows a copy of
its own; `up` and `reset` of the lab go back to the shared ones.
"""

import dataclasses
import itertools
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from tests.lab import repositories
from tests.lab.gpu_simulator import deb, nvidia_packages, repository
from tests.lab.settings import CHECKOUT, Lab, Node

# Newer than everything that a stack names.
NEWER_DRIVER = "595.99.01"
# A server tells a file's age in whole seconds: every state is younger than the one before by more than that.
_TIMES = itertools.count(int(time.time()), 2)


class Repositories:
    """The repositories of one lab, as its nodes see them."""

    def __init__(self, lab: Lab) -> None:
        """Take over from the shared ones."""
        self.lab = lab
        self._link = lab.state / "www"
        self._shared = self._link.resolve()
        self._own = lab.state / "www.own"
        self.signer = repository.Signer.of(lab.cache / "gnupg")
        self.restore()

    def restore(self) -> None:
        """As they were, and reachable."""
        if not repositories.served(self.lab):
            # As a command: the server must not be a child of this process.
            command = [sys.executable, "-m", "tests.lab", "up"]
            environment = os.environ | {"LAB_NAME": self.lab.name, "LAB_NODES": "1"}
            subprocess.run(command, cwd=CHECKOUT, env=environment, check=True)
        self.signer = repository.Signer.of(self.lab.cache / "gnupg")
        shutil.rmtree(self._own, ignore_errors=True)
        shutil.copytree(self._shared, self._own)
        self._show()

    def close(self) -> None:
        """Leave the lab's server with the shared repositories."""
        unfinished = self._link.with_name(".www.unfinished")
        unfinished.unlink(missing_ok=True)
        unfinished.symlink_to(self._shared)
        unfinished.rename(self._link)
        shutil.rmtree(self._own, ignore_errors=True)
        self.signer.stop_agent()

    def cuda(self, node: Node) -> Path:
        """The folder with the repository of the node's release."""
        release = f"debian{node.release.version}"
        return self._own / "compute/cuda/repos" / release / repository.architecture().nvidia

    def publish(self, node: Node, packages: Iterable[deb.Package]) -> None:
        """Publish more packages for a node's release."""
        repository.add_packages(self.cuda(node), packages, repository.CUDA_LABEL, self.signer)
        self._show()

    def withdraw(self, node: Node, version: str) -> None:
        """Take all packages of a version back."""
        index = self.cuda(node) / "Packages"
        stanzas = index.read_text().split("\n\n")
        kept = [stanza.strip("\n") for stanza in stanzas if f"\nVersion: {version}\n" not in stanza]
        assert len(kept) < len(stanzas), f"no package has version {version}"
        index.write_text("\n\n".join(kept) + "\n")
        self.publish(node, [])

    def rotate_key(self, node: Node, home: Path) -> str:
        """Sign with the key of another gpg home from now on; return its fingerprint."""
        self.signer = repository.Signer.of(home)
        (self._own / "libnvidia-container/gpgkey").write_bytes(self.signer.public_key("--armor"))
        self.publish(node, [])
        return self.signer.fingerprint

    def corrupt(self, node: Node, name: str, version: str) -> None:
        """Change a package's bytes, not its size, behind its checksum's back."""
        path = self.cuda(node) / self._file(name, version)
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 0xFF
        path.write_bytes(content)
        self._show()

    def lose(self, node: Node, name: str, version: str) -> None:
        """Let the index promise a package that is not there."""
        (self.cuda(node) / self._file(name, version)).unlink()
        self._show()

    def silence(self) -> None:
        """End the server: connections are refused."""
        repositories.stop(self.lab)

    def _file(self, name: str, version: str) -> str:
        return f"{name}_{version}_{repository.architecture().debian}.deb"

    def _show(self) -> None:
        time_s = next(_TIMES)
        for path in self._own.rglob("*"):
            os.utime(path, (time_s, time_s))
        unfinished = self._link.with_name(".www.unfinished")
        unfinished.unlink(missing_ok=True)
        unfinished.symlink_to(self._own)
        unfinished.rename(self._link)


def newer_driver() -> list[deb.Package]:
    """A driver that is newer than those of all stacks: never to be installed, so its files do not matter."""
    newest = max(nvidia_packages.DRIVERS)
    return [
        dataclasses.replace(
            package,
            version=f"{NEWER_DRIVER}-1",
            depends=package.depends.replace(f"{newest}-1", f"{NEWER_DRIVER}-1"),
            recommends=package.recommends.replace(f"{newest}-1", f"{NEWER_DRIVER}-1"),
        )
        for package in nvidia_packages.driver_packages(newest, repository.architecture())
    ]


def bystander(version: str) -> deb.Package:
    """A package of the same repository that is none of Temper's business."""
    return deb.Package("bystander", version, "all", "something else in the same repository")
