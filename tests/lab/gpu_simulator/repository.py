"""Build signed apt repositories with NVIDIA's layout, full of simulated packages.

Below the destination, each repository being flat and with Packages, Packages.gz, Release, InRelease and
Release.gpg:

    compute/cuda/repos/debian12/<arch>/      driver, CUDA, cuDNN, NCCL, DCGM; the key as <last 8 digits>.pub
    compute/cuda/repos/debian13/<arch>/      the same
    libnvidia-container/stable/deb/<arch>/   the container toolkit
    libnvidia-container/gpgkey               its key: the same as above

Usage, from the root of the checkout: python3 -m tests.lab.gpu_simulator.repository DESTINATION GNUPG_HOME
"""

from __future__ import annotations

import gzip
import hashlib
import json
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.lab.gpu_simulator import deb, nvidia_packages, profiling_packages, server_packages
from tests.lab.gpu_simulator.contents import Architecture

RELEASES = ("debian12", "debian13")
CUDA_LABEL = "NVIDIA CUDA"
KEY_OWNER = "Temper's lab (signs simulated packages) <root@localhost>"
ARCHITECTURES = {
    "x86_64": Architecture("amd64", "x86_64", "x86_64-linux-gnu"),
    "aarch64": Architecture("arm64", "sbsa", "aarch64-linux-gnu"),
}


def architecture() -> Architecture:
    """Return this machine's architecture, which is its nodes' too.

    Raises ValueError if NVIDIA has no repository for it.
    """
    machine = platform.machine()
    if machine not in ARCHITECTURES:
        known = " or ".join(ARCHITECTURES)
        raise ValueError(f"expected a machine of {known}, found {machine}: no simulated packages for it")
    return ARCHITECTURES[machine]


@dataclass(frozen=True)
class Signer:
    """A gpg key in a home of its own."""

    home: Path
    fingerprint: str

    @classmethod
    def of(cls, home: Path) -> Signer:
        """Take the secret key in `home`; make one, without passphrase, if there is none.

        Debian 12's gpgv and Debian 13's sqv both accept its kind. Raises RuntimeError if gpg is missing or
        fails.
        """
        if shutil.which("gpg") is None:
            raise RuntimeError("expected the program gpg, found none: install the package gnupg")
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not (found := fingerprints(home)):
            gpg(home, "--passphrase", "", "--quick-generate-key", KEY_OWNER, "ed25519", "sign", "never")
            found = fingerprints(home)
        return cls(home, found[0])

    def sign(self, content: bytes, *options: str) -> bytes:
        """Return a signature, or with --clearsign the signed text."""
        return gpg(
            self.home, "--local-user", self.fingerprint, "--digest-algo", "SHA256", *options, stdin=content
        )

    def public_key(self, *options: str) -> bytes:
        """Return the public key, binary or with --armor as text."""
        return gpg(self.home, *options, "--export", self.fingerprint)

    def stop_agent(self) -> None:
        """End the agent that gpg leaves running for its home."""
        subprocess.run(["gpgconf", "--homedir", str(self.home), "--kill", "all"], check=False)


def gpg(home: Path, *arguments: str, stdin: bytes | None = None) -> bytes:
    """Run gpg and return what it prints; raise RuntimeError with its own words if it fails."""
    command = ["gpg", "--homedir", str(home), "--batch", "--no-tty", "--quiet", *arguments]
    result = subprocess.run(command, input=stdin, capture_output=True, check=False)
    if result.returncode != 0:
        words = result.stderr.decode(errors="replace").strip()
        raise RuntimeError(f"gpg {' '.join(arguments)} failed: {words}")
    return result.stdout


def fingerprints(home: Path) -> list[str]:
    """Return the fingerprints of the secret keys in `home`."""
    listing = gpg(home, "--with-colons", "--list-secret-keys").decode()
    return re.findall(r"^fpr:::::::::([0-9A-F]{40}):", listing, re.MULTILINE)


def write_repository(directory: Path, packages: Iterable[deb.Package], label: str, signer: Signer) -> None:
    """Write one flat repository: packages, indexes and signatures."""
    directory.mkdir(parents=True)
    (directory / "Packages").touch()
    add_packages(directory, packages, label, signer)


def add_packages(directory: Path, packages: Iterable[deb.Package], label: str, signer: Signer) -> None:
    """Publish more packages in a repository; with none, only sign it anew."""
    stanzas = [text] if (text := (directory / "Packages").read_text()) else []
    for package in packages:
        content = deb.build(package)
        (directory / package.filename).write_bytes(content)
        stanzas.append(deb.index_stanza(package, content, f"./{package.filename}"))
    index = "\n".join(stanzas).encode()
    release = (
        f"Origin: NVIDIA\nLabel: {label}\nArchitectures: {architecture().debian}\n"
        "Date: Fri, 20 Nov 2026 00:00:00 UTC\nDescription: simulated by Temper's lab\nSHA256:\n"
    )
    for name, content in (("Packages", index), ("Packages.gz", gzip.compress(index, mtime=deb.BUILD_TIME))):
        (directory / name).write_bytes(content)
        release += f" {hashlib.sha256(content).hexdigest()} {len(content)} {name}\n"
    signed = release.encode()
    (directory / "Release").write_bytes(signed)
    (directory / "InRelease").write_bytes(signer.sign(signed, "--clearsign"))
    (directory / "Release.gpg").write_bytes(signer.sign(signed, "--armor", "--detach-sign"))


def build(destination: Path, gnupg_home: Path) -> dict[str, list[str]]:
    """Build the web root at `destination`, which must not exist yet, signed with the key in `gnupg_home`.

    Returns {"fingerprints": [...]}, the keys that sign it. A missing key is made. Raises RuntimeError if gpg
    fails and ValueError on a machine that NVIDIA has no repository for.
    """
    arch = architecture()
    # Built beside the destination and moved there whole: an interrupted build leaves nothing that looks done.
    partial = destination.with_name(f"{destination.name}.partial")
    if partial.exists():
        shutil.rmtree(partial)
    signer = Signer.of(gnupg_home)
    try:
        armoured = signer.public_key("--armor")
        cuda = [
            *(
                package
                for version in nvidia_packages.DRIVERS
                for package in nvidia_packages.driver_packages(version, arch)
            ),
            *(
                package
                for version in nvidia_packages.DRIVERS
                for package in server_packages.fabric_packages(version, arch)
            ),
            *nvidia_packages.pinning_packages(),
            *nvidia_packages.cuda_packages(arch),
            *profiling_packages.profiling_packages(arch),
            *server_packages.dcgm_packages(arch),
            server_packages.nvlsm_package(arch),
            server_packages.dkms_package(),
            nvidia_packages.keyring_package(signer.public_key()),
        ]
        for release in RELEASES:
            directory = partial / "compute/cuda/repos" / release / arch.nvidia
            write_repository(directory, cuda, CUDA_LABEL, signer)
            (directory / f"{signer.fingerprint[-8:]}.pub").write_bytes(armoured)
        container = nvidia_packages.container_packages(arch)
        directory = partial / "libnvidia-container/stable/deb" / arch.debian
        write_repository(directory, container, "NVIDIA Container Toolkit", signer)
        (partial / "libnvidia-container/gpgkey").write_bytes(armoured)
    finally:
        signer.stop_agent()
    partial.rename(destination)
    return {"fingerprints": [signer.fingerprint]}


def content_key() -> str:
    """Hash all that `build` reads beside the signing key: the same hash, the same packages."""
    here = Path(__file__).resolve().parent
    digest = hashlib.sha256(architecture().debian.encode())
    for path in (*sorted(here.glob("*.py")), *sorted((here / "packages").iterdir())):
        if path.is_file():
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def main(arguments: Sequence[str]) -> int:
    """Build from the command line."""
    if len(arguments) != 2:
        print("usage: python3 -m tests.lab.gpu_simulator.repository DESTINATION GNUPG_HOME", file=sys.stderr)
        return 2
    destination = Path(arguments[0]).resolve()
    if destination.exists():
        print(f"expected no {destination} yet, found one: remove it first", file=sys.stderr)
        return 2
    print(json.dumps(build(destination, Path(arguments[1]))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
