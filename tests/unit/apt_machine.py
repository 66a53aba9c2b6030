"""A root directory with an apt and a dpkg of its own, and repositories of empty packages to install there."""

import contextlib
import functools
import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ansible.module_utils.temper.packaging import packages

from tests.unit.executables import executable
from tests.unit.openpgp_keys import KeyRing

HOLD = """
import fcntl, sys
lock = open(sys.argv[1], "w")
fcntl.lockf(lock, fcntl.LOCK_EX)
print(flush=True)
sys.stdin.read()
"""


@functools.cache
def built(control: str, script: str, removal: str) -> bytes:
    """Build a package; most tests publish the same ones."""
    with tempfile.TemporaryDirectory() as folder:
        tree, file = Path(folder, "tree/DEBIAN"), Path(folder, "package.deb")
        tree.mkdir(parents=True)
        (tree / "control").write_text(control)
        for kind, lines in (("postinst", script), ("postrm", removal)):
            if lines:
                executable(tree / kind, lines)
        command = ["dpkg-deb", "-Znone", "--build", str(tree.parent), str(file)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return file.read_bytes()


@dataclass(frozen=True)
class Archive:
    """A flat package repository of empty packages."""

    path: Path

    def add(self, name: str, version: str, script: str = "", removal: str = "", **fields: str) -> None:
        """Publish a package; `fields` are those of its control file, its postinst and postrm are shell."""
        control = {
            "Package": name,
            "Version": version,
            "Architecture": "all",
            "Maintainer": "Nobody <nobody@example.org>",
            "Description": "empty",
        } | fields
        text = "".join(f"{key}: {value}\n" for key, value in control.items())
        self.path.mkdir(exist_ok=True)
        file = self.path / f"{name}_{version}.deb"
        file.write_bytes(built(text, script, removal))
        checksum = hashlib.sha256(file.read_bytes()).hexdigest()
        entry = f"{text}Filename: ./{file.name}\nSize: {file.stat().st_size}\nSHA256: {checksum}\n\n"
        with (self.path / "Packages").open("a") as index:
            index.write(entry)

    def sign(self, ring: KeyRing, algorithm: str, dated: str = "Date: Fri, 20 Nov 2026 00:00:00 UTC") -> None:
        """Write the signed Release file of what has been added."""
        index = (self.path / "Packages").read_bytes()
        release = self.path / "Release"
        release.write_text(
            f"Origin: Tests\nLabel: Tests\n{dated}\nSHA256:\n"
            f" {hashlib.sha256(index).hexdigest()} {len(index)} Packages\n"
        )
        key = ["--local-user", ring.keys[algorithm], "--yes", "--output", str(self.path / "InRelease")]
        ring.gpg(*key, "--clearsign", str(release))


class Machine:
    """A root directory that apt and dpkg work on instead of this machine's."""

    def __init__(self, root: Path, archive: Archive) -> None:
        self.root = root
        for directory in (
            "etc/apt/apt.conf.d",
            "etc/apt/preferences.d",
            "etc/apt/sources.list.d",
            "var/lib/apt/lists/partial",
            "var/cache/apt/archives/partial",
            "var/lib/dpkg/info",
            "var/lib/dpkg/updates",
            "var/log/apt",
        ):
            (root / directory).mkdir(parents=True)
        (root / "var/lib/dpkg/status").touch()
        self.use(archive)
        (root / "apt.conf").write_text(
            f'Dir "{root}";\nDir::State::status "{root}/var/lib/dpkg/status";\nAPT::Sandbox::User "root";\n'
        )
        # Scripts of the packages run without chroot: there is no shell in this root.
        (root / ".dpkg.cfg").write_text(
            f"force-script-chrootless\nforce-unsafe-io\nlog={root}/var/log/dpkg.log\n"
        )

        self.pin("580-1")

    def pin(self, version: str) -> None:
        """Write what the role nvidia_stack writes: apt has no other version of the family to choose."""
        stanza = f"Package: libcuda1 nvidia-*\nPin: version {version}\nPin-Priority: 1001\n"
        (self.root / "etc/apt/preferences.d/temper-nvidia").write_text(stanza)

    def use(self, *archives: Archive) -> None:
        """Let these be the archives that the machine's own sources name."""
        sources = "".join(f"deb [trusted=yes] copy:{archive.path} ./\n" for archive in archives)
        (self.root / "etc/apt/sources.list").write_text(sources)

    @property
    def environment(self) -> dict[str, str]:
        return {"APT_CONFIG": f"{self.root}/apt.conf", "DPKG_ROOT": str(self.root), "HOME": str(self.root)}

    def run(self, *command: str) -> None:
        environment = os.environ | self.environment
        subprocess.run(command, check=True, capture_output=True, env=environment)

    def install(self, *arguments: str) -> None:
        self.run("apt-get", "-q", "update")
        self.run("apt-get", "-q", "-y", "install", *arguments)

    def versions(self) -> dict[str, str]:
        return {name: package.version for name, package in packages.query().items() if package.installed}

    def held(self) -> list[str]:
        return sorted(name for name, package in packages.query().items() if package.held)

    def snapshot(self) -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in self.root.rglob("*") if path.is_file()}


@contextlib.contextmanager
def holding(lock: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Have another process hold a lock, until it is ended."""
    command = [sys.executable, "-c", HOLD, str(lock)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"\n"
        yield other
        other.kill()
