"""Kernels and modules in a file tree, for tests: real objects, which modinfo reads and depmod finds."""

from __future__ import annotations

import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.lab.gpu_simulator import libraries


@dataclass(frozen=True)
class Certificate:
    """A machine owner key."""

    key: Path
    der: Path

    @classmethod
    def make(cls, directory: Path, owner: str) -> Certificate:
        made = cls(directory / "mok.key", directory / "mok.der")
        subject = ["-subj", f"/CN={owner}/", "-days", "36500", "-newkey", "rsa:2048"]
        output = ["-keyout", str(made.key), "-outform", "DER", "-out", str(made.der)]
        subprocess.run(
            ["openssl", "req", "-new", "-x509", "-nodes", *subject, *output], check=True, capture_output=True
        )
        return made

    @property
    def serial(self) -> str:
        """As openssl prints it."""
        command = ["openssl", "x509", "-inform", "DER", "-in", str(self.der), "-noout", "-serial"]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        return output.strip().partition("=")[2]

    def sign(self, content: bytes) -> bytes:
        """A module with a signature after it, as the kernel's sign-file writes it."""
        pem = self.der.with_suffix(".pem")
        convert = ["openssl", "x509", "-inform", "DER", "-in", str(self.der), "-out", str(pem)]
        subprocess.run(convert, check=True, capture_output=True)
        options = ["-binary", "-noattr", "-nocerts", "-outform", "DER", "-md", "sha512"]
        command = ["openssl", "cms", "-sign", *options, "-signer", str(pem), "-inkey", str(self.key)]
        signature = subprocess.run(command, input=content, check=True, capture_output=True).stdout
        # struct module_signature of the kernel's include/linux/module_signature.h: PKCS#7 has id 2.
        trailer = struct.pack(">BBBBB3xI", 0, 0, 2, 0, 0, len(signature))
        return content + signature + trailer + b"~Module signature appended~\n"


def install_kernel(root: Path, release: str, *, headers: bool = True) -> None:
    """A kernel as its packages leave it."""
    modules = root / "lib/modules" / release
    modules.mkdir(parents=True)
    (root / "boot").mkdir(exist_ok=True)
    (root / f"boot/vmlinuz-{release}").write_text("")
    if headers:
        (modules / "build/include").mkdir(parents=True)


def install_module(
    root: Path,
    release: str,
    version: str,
    *,
    name: str = "nvidia",
    place: str = "updates/dkms",
    certificate: Certificate | None = None,
    built_for: str = "",
) -> Path:
    """A module where DKMS puts it, known to modprobe; `built_for` where that is another kernel."""
    content = libraries.built_for(libraries.kernel_module(version, "open"), built_for or release)
    path = root / "lib/modules" / release / place / f"{name}.ko"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(certificate.sign(content) if certificate else content)
    depmod(root, release)
    return path


def depmod(root: Path, release: str) -> None:
    subprocess.run(["depmod", "-b", str(root), release], check=True, capture_output=True)


def dkms_build(root: Path, name: str, version: str, *releases: str, installed: bool = True) -> None:
    """DKMS's record of a module that it has built for these kernels."""
    tree = root / "var/lib/dkms" / name
    (tree / version).mkdir(parents=True, exist_ok=True)
    (tree / version / "source").symlink_to(f"/usr/src/{name}-{version}")
    for release in releases:
        (tree / version / release / "x86_64/module").mkdir(parents=True)
        if installed:
            (tree / f"kernel-{release}-x86_64").symlink_to(f"{version}/{release}/x86_64")
