"""A report that can be shown to be whole: digests of its files, a chain through all reports, a signature.

Each report's manifest names the digest of the manifest before it, and the history knows them all. So a
changed byte, a missing or additional file, and a report that is gone are found. Who can change everything on
the controller can also make all of it anew: against that, sign with a key that is not kept there.
"""

from __future__ import annotations

import hashlib
import subprocess
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from validation.model.contract import ContractError, dumps, loads
from validation.processes.files import write_atomically

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

MANIFEST = "manifest.json"
SIGNATURE = "manifest.json.sig"
#: What the signature is for (ssh-keygen(1), -n): one made for something else does not count here.
NAMESPACE = "temper-compliance"
SIGNING_TIMEOUT_S = 60


class EvidenceError(Exception):
    """A manifest cannot be signed; the message is a sentence for the operator."""


@dataclass(frozen=True)
class Manifest:
    """Digests (SHA-256) of all files of a report, and what made it.

    `previous` is the name of the report before, empty for the first; `previous_sha256` that of its manifest.
    """

    made_at: str
    tool: str
    data_sha256: str
    inventory_sha256: str
    previous: str
    previous_sha256: str
    files: dict[str, str] = field(default_factory=dict)


def digest(path: Path) -> str:
    """SHA-256 of a file. Raises OSError."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def digest_of_tree(roots: list[Path]) -> str:
    """SHA-256 over names and contents of all files below some folders, or of single files. Raises OSError."""
    total = hashlib.sha256()
    for root in roots:
        files = sorted(path for path in root.rglob("*") if path.is_file()) if root.is_dir() else [root]
        for path in files:
            if "__pycache__" in path.parts:
                continue
            name = path.relative_to(root) if path != root else path.name
            total.update(f"{name}\0{digest(path)}\0".encode())
    return total.hexdigest()


def files_of(report: Path) -> dict[str, Path]:
    """All files of a report but the manifest and its signature, by their names in it."""
    return {
        str(path.relative_to(report)): path
        for path in sorted(report.rglob("*"))
        if path.is_file() and path.relative_to(report).as_posix() not in (MANIFEST, SIGNATURE)
    }


def seal(report: Path, manifest: Manifest, key: str = "") -> str:
    """Write the manifest of a report whose other files are there, and sign it; returns the manifest's digest.

    `key` is a private key that ssh-keygen can use without asking, or the public one of a key in an agent.
    Raises OSError, EvidenceError.
    """
    files = {name: digest(path) for name, path in files_of(report).items()}
    path = report / MANIFEST
    write_atomically(path, dumps(Manifest(**{**vars(manifest), "files": files})))
    if key:
        sign(path, key)
    return digest(path)


def sign(path: Path, key: str) -> None:
    """Write the signature beside a file. Raises EvidenceError."""
    try:
        done = ssh_keygen("sign", "-f", key, "-n", NAMESPACE, str(path))
    except EvidenceError as error:
        raise EvidenceError(f"the report cannot be signed with {key}: {error}") from error
    if done.returncode:
        raise EvidenceError(f"the report cannot be signed with {key}: {done.stderr.decode().strip()}")


def ssh_keygen(action: str, *arguments: str, signed: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """What `ssh-keygen -Y` did; `signed` is its standard input. Raises EvidenceError where it gave no answer.

    It asks nobody: a key with a passphrase or a token that waits for a touch must not hold a scheduled run.
    """
    try:
        return subprocess.run(  # noqa: S603 - paths of this machine and words of ours
            ["ssh-keygen", "-q", "-Y", action, *arguments],  # noqa: S607 - the administrator's PATH
            input=signed,
            capture_output=True,
            timeout=SIGNING_TIMEOUT_S,
            check=False,
            start_new_session=True,
        )
    except subprocess.TimeoutExpired as error:
        raise EvidenceError(
            f"ssh-keygen -Y {action} gave no answer within {SIGNING_TIMEOUT_S} s: see whether the key's "
            "agent or token answers"
        ) from error
    except OSError as error:
        raise EvidenceError(f"ssh-keygen cannot be run: {error}") from error


def verify(directory: Path, recorded: Mapping[str, str], signers: Path | None = None) -> list[str]:
    """What is wrong with the reports in a folder, a sentence each; none where all is as it was written.

    `recorded` has the digests of the manifests by report, the oldest first, as the history knows them.
    `signers` is an allowed_signers file (ssh-keygen(1)): with it, every report must be signed by one of them.
    """
    found = sorted(path.name for path in directory.iterdir() if path.is_dir() and not path.is_symlink())
    problems = [
        f"{name}: the history knows this report, and its folder is gone"
        for name in recorded
        if name not in found
    ]
    unknown = "the history does not know it: a check was cut off, or somebody put it there"
    problems += [f"{name}: {unknown}" for name in found if name not in recorded]
    previous, previous_sha256 = "", ""
    for name in recorded:
        report = directory / name
        if name in found:
            problems += [
                f"{name}: {text}" for text in faults(report, recorded[name], previous, previous_sha256)
            ]
            if signers and (problem := unsigned(report, signers)):
                problems.append(f"{name}: {problem}")
        previous, previous_sha256 = name, recorded[name]
    return problems


def faults(report: Path, recorded: str, previous: str, previous_sha256: str) -> Iterator[str]:
    """What is wrong with one report."""
    path = report / MANIFEST
    try:
        if digest(path) != recorded:
            yield f"{MANIFEST} is not the one that was written"
        manifest = loads(Manifest, path.read_bytes())
    except FileNotFoundError:
        yield f"{MANIFEST} is missing"
        return
    except (OSError, ContractError) as error:
        yield f"{MANIFEST} cannot be read: {error}"
        return
    if (manifest.previous, manifest.previous_sha256) != (previous, previous_sha256):
        yield f"it follows {manifest.previous or 'no report'}, expected {previous or 'none'}"
    present = files_of(report)
    for name in sorted(manifest.files.keys() | present.keys()):
        if name not in present:
            yield f"{name} is missing"
        elif name not in manifest.files:
            yield f"{name} was added"
        elif digest(present[name]) != manifest.files[name]:
            yield f"{name} was changed"


def unsigned(report: Path, signers: Path) -> str:
    """Why a manifest's signature does not count; empty where it does."""
    signature, manifest = report / SIGNATURE, report / MANIFEST
    if not signature.is_file():
        return "it is not signed"
    if not manifest.is_file():
        return "there is no manifest that the signature could be of"
    of = ("-f", str(signers), "-s", str(signature))
    try:
        principals = ssh_keygen("find-principals", *of).stdout.decode(errors="replace").splitlines()
        if not principals:
            return f"it is signed with a key that is not in {signers}"
        done = ssh_keygen("verify", *of, "-n", NAMESPACE, "-I", principals[0], signed=manifest.read_bytes())
    except EvidenceError as error:
        return f"its signature could not be checked: {error}"
    return "" if not done.returncode else "its signature is not of this manifest"
