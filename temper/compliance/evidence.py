"""A report that can be shown to be whole: digests of its files, a chain through all reports, a signature.

Each report's manifest has its number in the chain and the digest of the manifest before it, and the history
knows them all. So a changed byte, a missing or additional file, and a report that is gone are found. No clock
decides the order. Who can change everything on the controller can also make all of it anew, or end the chain
earlier: against that, sign with a key that is not kept there, and keep the chain's head elsewhere.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from temper.base.options import told
from temper.base.programs import Answer, ask
from validation.model.contract import ContractError, dumps, loads
from validation.processes.files import open_plain, write_atomically

MANIFEST = "manifest.json"
SIGNATURE = "manifest.json.sig"
#: What the signature is for (ssh-keygen(1), -n): one made for something else does not count here.
NAMESPACE = "temper-compliance"
SIGNING_TIMEOUT_S = 60
HEAD = re.compile(r"([0-9]{1,9}) (\S{1,100}) ([0-9a-f]{64})")


class EvidenceError(Exception):
    """A manifest cannot be signed; the message is a sentence for the operator."""


@dataclass(frozen=True)
class Manifest:
    """Digests (SHA-256) of all files of a report, and what made it.

    `previous` is the name of the report before, empty for the first; `previous_sha256` that of its manifest.
    `number` counts all reports so far, this one included; 0 in those of version 1.
    """

    made_at: str
    tool: str
    data_sha256: str
    inventory_sha256: str
    previous: str
    previous_sha256: str
    files: dict[str, str] = field(default_factory=dict)
    number: int = 0


@dataclass(frozen=True)
class Head:
    """The last report of a chain at a moment. As text it is one line, to be kept elsewhere."""

    number: int
    report: str
    sha256: str

    def __str__(self) -> str:
        return f"{self.number} {self.report} {self.sha256}"


def heads_of(text: str) -> list[Head]:
    """Read heads, one a line and at least one. Raises EvidenceError."""
    found = []
    for line in filter(str.strip, text.splitlines()):
        if not (parts := HEAD.fullmatch(line.strip())):
            raise EvidenceError(f"expected a head, as `temper compliance head` prints it, found {line!r}")
        found.append(Head(int(parts[1]), parts[2], parts[3]))
    if not found:  # what was to be kept elsewhere is not there: nothing would be proven
        raise EvidenceError("expected a head, as `temper compliance head` prints it, found none")
    return found


def content_of(path: Path) -> bytes:
    """Read a file of a report. Raises OSError, also for a link or a pipe."""
    with open_plain(path) as file:
        return file.read()


def digest(path: Path) -> str:
    """Return the SHA-256 of a file. Raises OSError, also for a link or a pipe."""
    with open_plain(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_of_tree(roots: list[Path]) -> str:
    """SHA-256 over names and contents of all files below some folders, or of single files. Raises OSError."""
    total = hashlib.sha256()
    for root in roots:
        files = sorted(path for path in root.rglob("*") if path.is_file()) if root.is_dir() else [root]
        for path in files:
            if "__pycache__" in path.parts:
                continue
            name = path.relative_to(root) if path != root else path.name
            found = hashlib.sha256(path.read_bytes()).hexdigest()  # an inventory may have links
            total.update(f"{name}\0{found}\0".encode())
    return total.hexdigest()


def contents_of(report: Path) -> tuple[dict[str, Path], list[str]]:
    """Return all files of a report but the manifest and its signature, by their names in it.

    And the names of what is neither a file nor a folder with files: links, pipes, empty folders. Raises
    OSError.
    """
    files: dict[str, Path] = {}
    others = []
    folders = [report]
    while folders:
        folder = folders.pop()
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        for entry in entries:
            name = Path(entry.path).relative_to(report).as_posix()
            if entry.is_dir(follow_symlinks=False):
                folders.append(Path(entry.path))
            elif not entry.is_file(follow_symlinks=False):
                others.append(name)
            elif name not in (MANIFEST, SIGNATURE):
                files[name] = Path(entry.path)
        if not entries and folder != report:
            others.append(folder.relative_to(report).as_posix())
    return files, others


def seal(report: Path, manifest: Manifest, key: str = "") -> str:
    """Write the manifest of a report whose other files are there, and sign it; returns the manifest's digest.

    `key` is a private key that ssh-keygen can use without asking, or the public one of a key in an agent.
    Raises OSError, EvidenceError.
    """
    files = {name: digest(path) for name, path in contents_of(report)[0].items()}
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
    if done.status:
        raise EvidenceError(f"the report cannot be signed with {key}: {done.errors.strip()}")


def ssh_keygen(action: str, *arguments: str, signed: bytes = b"") -> Answer:
    """Return what `ssh-keygen -Y` did; `signed` is its standard input.

    Raises EvidenceError where it gave no answer.

    It asks nobody: a key with a passphrase or a token that waits for a touch must not hold a scheduled run.
    """
    try:
        return ask(["ssh-keygen", "-q", "-Y", action, *arguments], SIGNING_TIMEOUT_S, signed)
    except TimeoutError as error:
        raise EvidenceError(
            f"ssh-keygen -Y {action} gave no answer within {SIGNING_TIMEOUT_S} s: see whether the key's "
            "agent or token answers"
        ) from error
    except OSError as error:
        raise EvidenceError(f"ssh-keygen cannot be run: {told(error)}") from error


def verify(
    directory: Path,
    recorded: Mapping[str, str],
    signers: Path | None = None,
    heads: Iterable[Head] = (),
    number: int = 0,
) -> list[str]:
    """Return what is wrong with the reports in a folder, a sentence each; none where all is as written.

    `recorded` has the digests of the manifests by report, in the order in which they were made, and `number`
    says how many there ever were, both as the history knows them. `signers` is an allowed_signers file
    (ssh-keygen(1)): with it, every report must be signed by one of them. `heads` were kept elsewhere: the
    chain must still have each of them.
    """
    found = sorted(path.name for path in directory.iterdir() if path.is_dir() and not path.is_symlink())
    problems = [
        f"{name}: the history knows this report, and its folder is gone"
        for name in recorded
        if name not in found
    ]
    unknown = "the history does not know it: a check was cut off, or somebody put it there"
    problems += [f"{name}: {unknown}" for name in found if name not in recorded]
    manifests: dict[str, Manifest] = {}
    for name in (name for name in recorded if name in found):
        report = directory / name
        try:
            manifests[name] = loads(Manifest, content_of(report / MANIFEST))
            problems += [f"{name}: {text}" for text in faults(report, recorded[name], manifests[name])]
        except FileNotFoundError:
            problems.append(f"{name}: {MANIFEST} is missing")
        except (OSError, ContractError) as error:
            problems.append(f"{name}: it cannot be read: {told(error)}")
        if signers and (problem := unsigned(report, signers)):
            problems.append(f"{name}: {problem}")
    return [*problems, *breaks(recorded, manifests, number), *lost(list(recorded.items()), heads)]


def faults(report: Path, recorded: str, manifest: Manifest) -> Iterator[str]:
    """Find what is wrong with the files of one report. Raises OSError."""
    if digest(report / MANIFEST) != recorded:
        yield f"{MANIFEST} is not the one that was written"
    files, others = contents_of(report)
    yield from (f"{name} was added, and is no file" for name in others)
    for name in sorted(manifest.files.keys() | files.keys()):
        if name not in files:
            yield f"{name} is missing"
        elif name not in manifest.files:
            yield f"{name} was added"
        elif digest(files[name]) != manifest.files[name]:
            yield f"{name} was changed"


def breaks(recorded: Mapping[str, str], manifests: Mapping[str, Manifest], number: int) -> Iterator[str]:
    """Find where the chain of reports is cut, thinned, or in another order."""
    last, numbered = 0, False
    for name, before in pairs(list(recorded), manifests):
        last += 1
        if (manifest := manifests.get(name)) is None:
            continue
        if (manifest.previous, manifest.previous_sha256) != (before, recorded.get(before, "")):
            yield f"{name}: it follows {manifest.previous or 'no report'}, expected {before or 'none'}"
        numbered = numbered or bool(manifest.number)
        if numbered and manifest.number != last:
            yield f"{name}: it is report {manifest.number} of the chain, expected {last}"
            last = manifest.number
    if number > last:
        yield f"the history has counted {number} reports, and its last one is {last}: the newest are gone"


def pairs(names: Sequence[str], manifests: Mapping[str, Manifest]) -> Iterator[tuple[str, str]]:
    """Return each report with the one that it should follow.

    Those of version 1 have no number, and each followed the one that was the newest by the clock.
    """
    former = 0
    while former < len(names) and not getattr(manifests.get(names[former]), "number", 0):
        former += 1
    newest = ""
    for name in by_links(names[:former], manifests):
        yield name, newest
        newest = max(newest, name)
    yield from zip(names[former:], ["", *names][former:], strict=False)


def by_links(names: Iterable[str], manifests: Mapping[str, Manifest]) -> Iterator[str]:
    """Return reports by the clock's order, but none before the one that it follows."""
    waiting, before = list(names), {""}
    while waiting:
        following = (one for one in waiting if one not in manifests or manifests[one].previous in before)
        name = next(following, waiting[0])
        waiting.remove(name)
        before.add(name)
        yield name


def lost(recorded: Sequence[tuple[str, str]], heads: Iterable[Head]) -> Iterator[str]:
    """Find heads that the chain does not have any more."""
    for head in heads:
        there = recorded[head.number - 1 : head.number] if head.number > 0 else []
        if there != [(head.report, head.sha256)]:
            name = there[0][0] if there else "none"
            yield f"the chain had the head {head}, and its report {head.number} is {name} now, or another one"


def unsigned(report: Path, signers: Path) -> str:
    """Return why a manifest's signature does not count; empty where it does."""
    signature, manifest = report / SIGNATURE, report / MANIFEST
    if signature.is_symlink() or not signature.is_file():
        return "it is not signed"
    if manifest.is_symlink() or not manifest.is_file():
        return "there is no manifest that the signature could be of"
    of = ("-f", str(signers), "-s", str(signature))
    try:
        principals = ssh_keygen("find-principals", *of).output.splitlines()
        if not principals:
            return f"it is signed with a key that is not in {signers}"
        done = ssh_keygen("verify", *of, "-n", NAMESPACE, "-I", principals[0], signed=manifest.read_bytes())
    except EvidenceError as error:
        return f"its signature could not be checked: {error}"
    return "" if not done.status else "its signature is not of this manifest"
