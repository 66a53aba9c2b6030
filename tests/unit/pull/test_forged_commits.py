"""Forged objects of git that no key of the keyring stands for."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from pull.repository import Accepted, RefusedError, Repository, RepositoryError
from tests.unit.pull.origin import configuration, key, line, origin
from tests.unit.pull.test_repository import NOW

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.pull.origin import Origin


@pytest.fixture
def source(tmp_path: Path) -> Origin:
    made = origin(tmp_path)
    signer = key(tmp_path, "ada")
    (tmp_path / "keyring").write_text(line("ada", signer))
    made.commit(signer)
    return made


def written(source: Origin, kind: str, content: bytes) -> str:
    """Write an object as it is, and have the branch be it, or a commit of it."""
    name = subprocess.run(
        ["git", "-C", str(source.folder), "hash-object", "-t", kind, "-w", "--literally", "--stdin"],
        input=content,
        capture_output=True,
        check=True,
    ).stdout.decode()
    return name.strip()


def offered(tmp_path: Path, source: Origin, commit: str) -> Repository:
    """Return the repository of a node that is offered a commit."""
    source.git("update-ref", "refs/heads/main", commit)
    repository = Repository(tmp_path / "node" / "repository.git", configuration(tmp_path, source))
    repository.fetch()
    return repository


def test_a_signature_in_the_message_signs_nothing(tmp_path: Path, source: Origin) -> None:
    header, _, message = source.git("cat-file", "commit", "HEAD").partition("\n\n")
    unsigned, _, signature = header.partition("gpgsig ")
    words = f"{message}\ngpgsig {signature}\n"
    forged = written(source, "commit", f"{unsigned.rstrip()}\n\n{words}".encode())
    repository = offered(tmp_path, source, forged)
    with pytest.raises(RefusedError) as refused:
        repository.verify(repository.candidate(), Accepted(), NOW)
    assert refused.value.code == "unsigned"


def test_two_files_of_one_name_do_not_come_in(tmp_path: Path, source: Origin) -> None:
    blob = bytes.fromhex(source.git("rev-parse", "HEAD:file"))
    tree = written(source, "tree", (b"100644 file\0" + blob) * 2)
    signing = source.signing(tmp_path / "ada")
    commit = source.git(*signing, "commit-tree", "-S", "-m", "twins", "-p", "HEAD", tree)
    with pytest.raises(RepositoryError):
        offered(tmp_path, source, commit)
