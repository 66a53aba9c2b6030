"""From a verified commit to a folder with its files, without git's checkout.

git would apply attributes (line ends, export-subst), filters and hooks on the way. Here a file is the blob
that the signed tree names: its hash is computed again from what is written.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from itertools import dropwhile
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from pull import files
from pull.processes import OutputError, run
from pull.repository import GIT_TIMEOUT_S, GitOutputError, RefusedError, RepositoryError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

    from pull.repository import Repository

MOST_FILES = 100_000
#: With the line that git writes before each, less than the largest file.
MOST_BYTES = 1 << 29
FILE, PROGRAM, LINK, SUBMODULE = "100644", "100755", "120000", "160000"


def folder_of(commits: Path, commit: str) -> Path:
    """Where a commit's files are."""
    return commits / commit


def check_out(repository: Repository, commit: str, commits: Path) -> Path:
    """The folder with a commit's files, which appears whole or not at all.

    Raises:
        RefusedError: the tree has something that must not be written.
        RepositoryError: an object cannot be read, or is another one than its name says.
        OSError: the disk.
    """
    target = folder_of(commits, commit)
    if target.is_dir():
        return target
    commits.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = commits / f".{commit}.unfinished"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(mode=0o700)
    entries = list(tree(repository, commit))
    contents = blobs(repository, [object_id for _, object_id, _ in entries])
    for (mode, _, path), content in zip(entries, contents):
        write(draft, mode, path, content)
    files.sync_below(draft)
    draft.rename(target)
    files.sync(commits)
    return target


def switch(current: Path, target: Path) -> None:
    """Let the link `current` name another commit's folder, in one step; other commits' folders go."""
    draft = current.with_name(f".{current.name}.new")
    draft.unlink(missing_ok=True)
    draft.symlink_to(target.relative_to(current.parent))
    draft.replace(current)
    for folder in target.parent.iterdir():
        if folder != target:
            shutil.rmtree(folder, ignore_errors=True)


def tree(repository: Repository, commit: str) -> Iterator[tuple[str, str, PurePosixPath]]:
    """Mode, object and path of each file. Raises RefusedError, RepositoryError."""
    try:
        listing = repository.git("ls-tree", "-r", "-z", "--full-tree", commit).split("\0")[:-1]
    except GitOutputError:
        listing = [""] * (MOST_FILES + 1)
    if len(listing) > MOST_FILES:
        raise RefusedError("too-large", f"Commit {commit} has more than {MOST_FILES} files.")
    for line in listing:
        details, _, name = line.partition("\t")
        mode, _, object_id = details.split(" ")
        path = PurePosixPath(name)
        if path.is_absolute() or {"..", ".", ".git"} & {part.lower() for part in path.parts}:
            raise RefusedError("unsafe-path", f"Commit {commit} has a file {name!r}, outside of itself.")
        if mode == SUBMODULE:
            raise RefusedError(
                "submodule",
                f"Commit {commit} has a submodule, {name!r}, whose content no signature covers here: put its "
                "files into the repository itself.",
            )
        yield mode, object_id, path


def blobs(repository: Repository, objects: list[str]) -> Iterator[bytes]:
    """The contents of objects, in their order, one in memory at a time.

    Raises RefusedError, RepositoryError, OSError.
    """
    with tempfile.TemporaryFile(dir=repository.folder.parent) as spool:
        batch(repository, "--batch-check=%(objecttype) %(objectsize)", objects, spool)
        found = [line.rstrip(b"\n").split(b" ") for line in spool]
        wrong = [
            name for name, words in zip(objects, found) if words[0] != b"blob" or not words[-1].isdigit()
        ]
        if wrong or len(found) != len(objects):
            raise RepositoryError(f"git has no file of the object {(wrong or ['?'])[0]}.")
        if sum(int(size) for _, size in found) > MOST_BYTES:
            raise RefusedError("too-large", f"The commit's files are larger than {MOST_BYTES >> 20} MiB.")
    with tempfile.TemporaryFile(dir=repository.folder.parent) as spool:
        batch(repository, "--batch=%(objectsize)", objects, spool)
        for name, (_, size) in zip(objects, found):
            head, content = spool.readline(80), spool.read(int(size))
            if head != size + b"\n" or git_hash(content, len(name)) != name:
                raise RepositoryError(f"The object {name} has another content than its name says.")
            spool.read(1)
            yield content


def batch(repository: Repository, option: str, objects: list[str], spool: BinaryIO) -> None:
    """Write what `git cat-file` prints of many objects into a file, to be read from its start.

    Raises RepositoryError, OSError.
    """
    command = ["git", f"--git-dir={repository.folder}", "cat-file", option]
    given = "".join(f"{name}\n" for name in objects).encode()
    try:
        answer = run(command, repository.environment(), GIT_TIMEOUT_S, given, into=spool)
    except subprocess.TimeoutExpired as error:
        raise RepositoryError(f"git cat-file did not end within {GIT_TIMEOUT_S} s.") from error
    except OutputError as error:
        raise RepositoryError(f"git cat-file: {error}.") from error
    if answer.returncode:
        raise RepositoryError(f"git cat-file failed: {answer.stderr.decode(errors='replace').strip()}")
    spool.seek(0)


def git_hash(content: bytes, digits: int) -> str:
    """The name that git gives a file: SHA-1, or in newer repositories SHA-256."""
    algorithm = hashlib.sha256 if digits == 64 else hashlib.sha1
    return algorithm(b"blob %d\0" % len(content) + content).hexdigest()


def write(folder: Path, mode: str, path: PurePosixPath, content: bytes) -> None:
    """Write one entry of the tree. A link that leaves the folder is left out."""
    target = folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.parent.resolve().is_relative_to(folder.resolve()):
        raise RefusedError("unsafe-path", f"The file {path} lies behind a link.")
    if mode == LINK:
        aim = content.decode("utf-8", "surrogateescape")
        if "\0" in aim:
            raise RefusedError("unsafe-path", f"The link {path} leads to what is no path.")
        meant = os.path.normpath(folder / path.parent / aim)
        # Behind another link, .. is another folder than the text says.
        down = list(dropwhile("..".__eq__, Path(aim).parts))
        if not Path(aim).is_absolute() and ".." not in down and Path(meant).is_relative_to(folder):
            target.symlink_to(aim)
        return
    if mode not in (FILE, PROGRAM, "100664"):
        raise RefusedError("unsafe-path", f"The file {path} has the mode {mode}: expected a file or a link.")
    with target.open("xb") as file:
        file.write(content)
    target.chmod(0o755 if mode == PROGRAM else 0o644)
