"""Which commits a node believes: real git, real keys, and what an attacker of the server can do."""

from __future__ import annotations

import contextlib
import errno
import http.server
import os
import select
import shlex
import shutil
import subprocess
import threading
from datetime import UTC, datetime
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from pull import keyring, processes
from pull import repository as repository_module
from pull.checkout import LINK, check_out, write
from pull.repository import Accepted, RefusedError, Repository, RepositoryError, Verified, require_git
from tests.unit.pull.origin import Origin, configuration, key, line, origin


class Silent(http.server.SimpleHTTPRequestHandler):
    """Serves files, and says nothing."""

    def log_message(self, *_: object) -> None:
        """Say nothing."""


NOW = datetime(2026, 11, 23, tzinfo=UTC)


@pytest.fixture
def source(tmp_path: Path) -> Origin:
    return origin(tmp_path)


@pytest.fixture
def ada(tmp_path: Path) -> Path:
    """The key that the keyring has."""
    path = key(tmp_path, "ada")
    (tmp_path / "keyring").write_text(line("ada", path))
    return path


def node(tmp_path: Path, source: Origin, **values: object) -> Repository:
    return Repository(tmp_path / "node" / "repository.git", configuration(tmp_path, source, **values))


def pulled(repository: Repository, accepted: Accepted | None = None) -> Verified:
    repository.fetch()
    return repository.verify(repository.candidate(), accepted or Accepted(), NOW)


def refusal(repository: Repository, accepted: Accepted | None = None) -> str:
    with pytest.raises(RefusedError) as caught:
        pulled(repository, accepted)
    return caught.value.code


def test_a_signed_commit_is_taken_and_its_signer_named(tmp_path: Path, source: Origin, ada: Path) -> None:
    commit = source.commit(ada)
    found = pulled(node(tmp_path, source))
    assert found == Verified(commit, "main", "ada", time=found.time)
    assert datetime.fromisoformat(found.time) <= datetime.now(UTC)


def test_a_full_tmp_makes_no_signature_a_bad_one(
    tmp_path: Path, source: Origin, ada: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = source.commit(ada)
    environment = Repository.environment
    nowhere = {"TMPDIR": "/nonexistent"}
    monkeypatch.setattr(Repository, "environment", lambda self: {**environment(self), **nowhere})
    assert pulled(node(tmp_path, source)).commit == commit


def test_an_unsigned_commit_is_refused_also_behind_a_signed_one(
    tmp_path: Path, source: Origin, ada: Path
) -> None:
    source.commit(ada)
    source.commit(None)
    assert refusal(node(tmp_path, source)) == "unsigned"


def test_another_key_is_refused(tmp_path: Path, source: Origin, ada: Path) -> None:
    source.commit(key(tmp_path, "mallory"))
    assert refusal(node(tmp_path, source)) == "bad-signature"


def test_a_signature_of_another_commit_is_refused(tmp_path: Path, source: Origin, ada: Path) -> None:
    """A commit whose content was changed and whose signature was kept."""
    source.commit(ada)
    text = source.git("cat-file", "commit", "HEAD")
    forged = subprocess.run(
        ["git", "-C", str(source.folder), "hash-object", "-t", "commit", "-w", "--stdin"],
        input=f"{text} and more\n",
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    source.git("update-ref", "refs/heads/main", forged)
    assert refusal(node(tmp_path, source)) == "bad-signature"


def test_a_signature_made_for_something_else_is_refused(tmp_path: Path, source: Origin, ada: Path) -> None:
    """The same key, another namespace: what was signed as a file is no commit."""
    source.commit(None)
    text = source.git("cat-file", "commit", "HEAD") + "\n"
    signed = subprocess.run(
        ["ssh-keygen", "-q", "-Y", "sign", "-n", "file", "-f", str(ada)],
        input=text.encode(),
        capture_output=True,
        check=True,
    ).stdout.decode()
    header, _, body = text.partition("\n\n")
    forged = f"{header}\ngpgsig {signed.rstrip().replace(chr(10), chr(10) + ' ')}\n\n{body}"
    name = subprocess.run(
        ["git", "-C", str(source.folder), "hash-object", "-t", "commit", "-w", "--stdin"],
        input=forged.encode(),
        capture_output=True,
        check=True,
    ).stdout.decode()
    source.git("update-ref", "refs/heads/main", name.strip())
    assert refusal(node(tmp_path, source)) == "bad-signature"


def test_a_signature_of_openpgp_is_refused_whatever_roots_keyring_has(
    tmp_path: Path, source: Origin, ada: Path
) -> None:
    source.commit(None)
    text = source.git("cat-file", "commit", "HEAD")
    header, _, body = text.partition("\n\n")
    forged = (
        f"{header}\ngpgsig -----BEGIN PGP SIGNATURE-----\n \n AAAA\n -----END PGP SIGNATURE-----\n\n{body}\n"
    )
    name = subprocess.run(
        ["git", "-C", str(source.folder), "hash-object", "-t", "commit", "-w", "--stdin"],
        input=forged.encode(),
        capture_output=True,
        check=True,
    ).stdout.decode()
    source.git("update-ref", "refs/heads/main", name.strip())
    assert refusal(node(tmp_path, source)) == "wrong-signature"


@pytest.mark.parametrize(
    "options", [',valid-before="20261101Z"', ',valid-after="20261201Z"'], ids=["expired", "not yet"]
)
def test_a_key_counts_only_in_its_time(tmp_path: Path, source: Origin, ada: Path, options: str) -> None:
    source.commit(ada)
    (tmp_path / "keyring").write_text(line("ada", ada, options))
    assert refusal(node(tmp_path, source)) == "signer-expired"


def test_an_expired_key_does_not_count_for_a_commit_that_claims_to_be_old(
    tmp_path: Path, source: Origin, ada: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Git judges a key's time at the time of the commit, which its author chooses."""
    source.commit(ada)
    raw = ["commit", "--quiet", "--amend", "--gpg-sign", "--no-edit", "--date=2026-01-01T00:00:00Z"]
    subprocess.run(
        ["git", "-C", str(source.folder), *source.signing(ada), *raw],
        env={
            "PATH": "/usr/bin:/bin",
            "HOME": str(tmp_path),
            "GIT_COMMITTER_DATE": "2026-01-01T00:00:00Z",
            "GIT_COMMITTER_NAME": "ada",
            "GIT_COMMITTER_EMAIL": "ada@example.org",
        },
        check=True,
    )
    (tmp_path / "keyring").write_text(line("ada", ada, ',valid-before="20260201Z"'))
    assert refusal(node(tmp_path, source)) == "signer-expired"


def test_a_key_that_is_removed_counts_no_more_for_what_is_applied(
    tmp_path: Path, source: Origin, ada: Path
) -> None:
    commit = source.commit(ada)
    repository = node(tmp_path, source)
    pulled(repository)
    (tmp_path / "keyring").write_text(line("grace", key(tmp_path, "grace")))
    assert refusal(repository, Accepted(commit)) == "bad-signature"


@pytest.mark.parametrize(
    "text", ["", "# nobody\n", "ada ssh-ed25519 AAAA\n", '* namespaces="git" ssh-ed25519 AA==\n']
)
def test_a_keyring_that_trusts_nobody_or_everybody_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "keyring").write_text(text)
    with pytest.raises(keyring.KeyringError):
        keyring.load(tmp_path / "keyring")


def test_an_older_commit_is_refused(tmp_path: Path, source: Origin, ada: Path) -> None:
    first = source.commit(ada)
    second = source.commit(ada)
    repository = node(tmp_path, source)
    assert pulled(repository, Accepted(first)).commit == second
    source.git("reset", "--quiet", "--hard", first)
    assert refusal(repository, Accepted(second)) == "older"


def test_a_rewritten_history_is_refused_also_after_the_clone_was_lost(
    tmp_path: Path, source: Origin, ada: Path
) -> None:
    first = source.commit(ada)
    second = source.commit(ada)
    repository = node(tmp_path, source)
    pulled(repository)
    source.git("reset", "--quiet", "--hard", first)
    source.commit(ada, "other")
    assert refusal(repository, Accepted(second)) == "not-descendant"
    shutil.rmtree(repository.folder)
    assert refusal(repository, Accepted(second)) == "not-descendant"


def test_going_back_is_a_new_commit(tmp_path: Path, source: Origin, ada: Path) -> None:
    source.commit(ada)
    second = source.commit(ada)
    source.git(*source.signing(ada), "revert", "--no-edit", "--gpg-sign", "HEAD")
    assert pulled(node(tmp_path, source), Accepted(second)).signer == "ada"


def test_the_highest_of_the_signed_tags_counts(tmp_path: Path, source: Origin, ada: Path) -> None:
    for name in ("fleet-9", "fleet-10"):
        commit = source.commit(None)
        source.tag(name, ada)
    found = pulled(node(tmp_path, source, tags="fleet-*"))
    assert (found.commit, found.ref, found.signer) == (commit, "fleet-10", "ada")
    assert dict(found.tags).keys() == {"fleet-9", "fleet-10"}


@pytest.mark.parametrize("signed", [True, False], ids=["annotated", "lightweight"])
def test_a_tag_without_a_signature_is_refused(
    tmp_path: Path, source: Origin, ada: Path, signed: bool
) -> None:
    source.commit(ada)
    if signed:
        source.tag("fleet-1", None)
    else:
        source.git("tag", "fleet-1")
    assert refusal(node(tmp_path, source, tags="fleet-*")) == "unsigned"


def test_a_tag_of_another_key_is_refused(tmp_path: Path, source: Origin, ada: Path) -> None:
    source.commit(ada)
    source.tag("fleet-1", key(tmp_path, "mallory"))
    assert refusal(node(tmp_path, source, tags="fleet-*")) == "bad-signature"


def test_a_tag_that_moved_is_refused_also_forward(tmp_path: Path, source: Origin, ada: Path) -> None:
    source.commit(ada)
    source.tag("fleet-1", ada)
    repository = node(tmp_path, source, tags="fleet-*")
    found = pulled(repository)
    source.commit(ada)
    source.tag("fleet-1", ada, "--force")
    assert refusal(repository, Accepted(found.commit, found.tags)) == "tag-moved"


def test_a_newer_tag_is_taken_although_an_older_one_moved(tmp_path: Path, source: Origin, ada: Path) -> None:
    """Else no tag would help: the one that moved keeps every node from all that come after it."""
    source.commit(None)
    source.tag("fleet-1", ada)
    repository = node(tmp_path, source, tags="fleet-*")
    first = pulled(repository)
    source.commit(None)
    source.tag("fleet-1", ada, "--force")
    commit = source.commit(None)
    source.tag("fleet-2", ada)
    found = pulled(repository, Accepted(first.commit, first.tags))
    assert (found.commit, found.ref) == (commit, "fleet-2")
    assert "fleet-1" in found.remark
    # It is still known as what it was, and never taken as what it is now.
    assert dict(found.tags)["fleet-1"] == dict(first.tags)["fleet-1"]
    source.git("tag", "--delete", "fleet-2")
    source.tag("fleet-1", ada, "--force")
    assert refusal(repository, Accepted(found.commit, found.tags)) == "tag-moved"


def test_a_tag_that_moved_after_a_newer_one_was_taken_brings_nothing_back(
    tmp_path: Path, source: Origin, ada: Path
) -> None:
    """Moved to a later commit, and the newer tag taken away: signed, a descendant, and another content."""
    source.commit(None)
    source.tag("fleet-1", ada)
    source.commit(None)
    source.tag("fleet-2", ada)
    repository = node(tmp_path, source, tags="fleet-*")
    accepted = pulled(repository)
    source.commit(None)
    source.tag("fleet-1", ada, "--force")
    found = pulled(repository, Accepted(accepted.commit, accepted.tags))
    assert (found.commit, found.tags) == (accepted.commit, accepted.tags)
    source.git("tag", "--delete", "fleet-2")
    assert refusal(repository, Accepted(found.commit, found.tags)) == "tag-moved"


@pytest.mark.parametrize("history", ["older", "not-descendant"])
def test_a_newer_tag_beside_one_that_moved_brings_no_other_history(
    tmp_path: Path, source: Origin, ada: Path, history: str
) -> None:
    root = source.commit(None)
    source.commit(None)
    source.tag("fleet-1", ada)
    repository = node(tmp_path, source, tags="fleet-*")
    found = pulled(repository)
    source.git("reset", "--quiet", "--hard", root)
    if history == "not-descendant":
        source.commit(None, "other")
    source.tag("fleet-1", ada, "--force")
    source.tag("fleet-2", ada)
    assert refusal(repository, Accepted(found.commit, found.tags)) == history


def test_a_tag_that_is_no_version_may_move(tmp_path: Path, source: Origin, ada: Path) -> None:
    commit = source.commit(None)
    source.tag("fleet-1", ada)
    source.git("tag", "fleet-test")
    repository = node(tmp_path, source, tags="fleet-*")
    found = pulled(repository)
    assert dict(found.tags).keys() == {"fleet-1"}
    source.commit(None)
    source.git("tag", "--force", "fleet-test")
    # A node that this program's predecessor has made knows the tag.
    known = (*found.tags, ("fleet-test", commit))
    again = pulled(repository, Accepted(found.commit, known))
    assert (again.ref, "moved" in again.remark) == ("fleet-1", False)


def test_what_helps_against_a_tag_that_moved_is_said_and_helps(
    tmp_path: Path, source: Origin, ada: Path
) -> None:
    source.commit(None)
    source.tag("fleet-1", ada)
    repository = node(tmp_path, source, tags="fleet-*")
    first = pulled(repository)
    was = source.git("rev-parse", "fleet-1")
    source.commit(None)
    source.tag("fleet-1", ada, "--force")
    with pytest.raises(RefusedError, match=f"higher version.*{was}"):
        pulled(repository, Accepted(first.commit, first.tags))
    source.git("update-ref", "refs/tags/fleet-1", was)
    assert pulled(repository, Accepted(first.commit, first.tags)).remark == ""


def test_a_signed_tag_under_a_new_name_is_refused(tmp_path: Path, source: Origin, ada: Path) -> None:
    source.commit(ada)
    source.tag("fleet-1", ada)
    source.git("update-ref", "refs/tags/fleet-2", source.git("rev-parse", "refs/tags/fleet-1"))
    assert refusal(node(tmp_path, source, tags="fleet-*")) == "tag-renamed"


def test_a_tag_that_is_taken_away_leaves_no_older_commit(tmp_path: Path, source: Origin, ada: Path) -> None:
    for name in ("fleet-1", "fleet-2"):
        source.commit(ada)
        source.tag(name, ada)
    repository = node(tmp_path, source, tags="fleet-*")
    found = pulled(repository)
    source.git("tag", "--delete", "fleet-2")
    assert refusal(repository, Accepted(found.commit, found.tags)) == "older"


def test_a_clone_that_was_damaged_is_made_anew(tmp_path: Path, source: Origin, ada: Path) -> None:
    commit = source.commit(ada)
    repository = node(tmp_path, source)
    pulled(repository)
    (pack,) = repository.folder.glob("objects/pack/*.pack")
    pack.chmod(0o600)
    pack.write_bytes(pack.read_bytes()[:-30])
    assert not repository.sound()
    assert pulled(repository).commit == commit


def test_what_a_killed_fetch_has_left_is_taken_away(tmp_path: Path, source: Origin, ada: Path) -> None:
    source.commit(ada)
    repository = node(tmp_path, source)
    pulled(repository)
    left = [repository.folder / "shallow.lock", repository.folder / "objects/pack/tmp_pack_abc"]
    for path in left:
        path.write_text("half")
    commit = source.commit(ada)
    assert pulled(repository).commit == commit
    assert not any(path.exists() for path in left)


def test_a_source_with_a_damaged_object_changes_nothing(tmp_path: Path, source: Origin, ada: Path) -> None:
    first = source.commit(ada)
    repository = node(tmp_path, source)
    pulled(repository)
    source.commit(ada)
    blob = source.git("rev-parse", "HEAD:file")
    path = source.folder / ".git/objects" / blob[:2] / blob[2:]
    path.chmod(0o600)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(RepositoryError):
        repository.fetch()
    assert repository.sound()
    assert repository.candidate().commit == first


def malformed(source: Origin, signer: Path) -> None:
    """A signed commit of a tree with a file `.git`, which a checkout would have written into."""
    source.commit(signer)
    blob = source.git("rev-parse", "HEAD:file")
    tree = subprocess.run(
        ["git", "-C", str(source.folder), "hash-object", "-t", "tree", "-w", "--literally", "--stdin"],
        input=b"100644 .git\0" + bytes.fromhex(blob),
        capture_output=True,
        check=True,
    ).stdout.decode()
    commit = source.git(
        *source.signing(signer), "commit-tree", "-S", "-m", "evil", "-p", "HEAD", tree.strip()
    )
    source.git("update-ref", "refs/heads/main", commit)


def test_objects_that_git_takes_for_malformed_do_not_come_in(
    tmp_path: Path, source: Origin, ada: Path
) -> None:
    malformed(source, ada)
    with pytest.raises(RepositoryError):
        pulled(node(tmp_path, source))


@pytest.mark.parametrize("evil", [False, True], ids=["whole", "malformed"])
def test_a_server_of_files_alone_is_looked_at_as_closely(
    tmp_path: Path, source: Origin, ada: Path, evil: bool
) -> None:
    """The dumb protocol, over which objects come one by one."""
    commit = source.commit(ada)
    if evil:
        malformed(source, ada)
    source.git("update-server-info")
    handler = partial(Silent, directory=str(source.folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            repository = node(tmp_path, source, url=f"http://127.0.0.1:{server.server_port}/.git")
            if evil:
                with pytest.raises(RepositoryError):
                    pulled(repository)
            else:
                assert pulled(repository).commit == commit
        finally:
            server.shutdown()
            thread.join()


def test_nothing_that_lies_in_the_clone_is_obeyed(
    tmp_path: Path, source: Origin, ada: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Configuration, hooks, replaced objects and the environment would each let a forged commit in."""
    source.commit(ada)
    repository = node(tmp_path, source)
    good = pulled(repository).commit
    mallory = key(tmp_path, "mallory")
    everybody = tmp_path / "everybody"
    everybody.write_text(line("ada", mallory))
    forged = source.commit(mallory)
    proof = tmp_path / "proof"
    (repository.folder / "hooks").mkdir()
    hook = repository.folder / "hooks/reference-transaction"
    hook.write_text(f"#!/bin/sh\ntouch {proof}\n")
    hook.chmod(0o755)
    (repository.folder / "config").write_text(
        f'[gpg "ssh"]\nallowedSignersFile = {everybody}\nprogram = /bin/true\n[core]\nbare = true\n'
        f"fsmonitor = touch {proof}\n"
    )
    replaced = repository.folder / "refs/replace"
    replaced.mkdir(parents=True)
    (replaced / forged).write_text(f"{good}\n")
    for name, value in (
        ("GIT_CONFIG_COUNT", "1"),
        ("GIT_CONFIG_KEY_0", "gpg.ssh.program"),
        ("GIT_CONFIG_VALUE_0", "/bin/true"),
        ("HOME", str(tmp_path)),
    ):
        monkeypatch.setenv(name, value)
    (tmp_path / ".gitconfig").write_text(f'[gpg "ssh"]\nallowedSignersFile = {everybody}\n')
    assert refusal(repository) == "bad-signature"
    assert not proof.exists()


def test_files_are_those_of_the_tree_whatever_its_attributes_say(
    tmp_path: Path, source: Origin, ada: Path
) -> None:
    (source.folder / ".gitattributes").write_text(
        "* text eol=crlf ident\nsecret export-ignore\n* filter=lfs\n"
    )
    (source.folder / "run").write_text("#!/bin/sh\n# $Id$\n")
    (source.folder / "run").chmod(0o755)
    (source.folder / "inside").symlink_to("run")
    (source.folder / "outside").symlink_to("/etc/passwd")
    commit = source.commit(ada, "secret", "kept\n")
    repository = node(tmp_path, source)
    pulled(repository)
    found = check_out(repository, commit, tmp_path / "commits")
    assert (found / "run").read_text() == "#!/bin/sh\n# $Id$\n"
    assert (found / "run").stat().st_mode & 0o777 == 0o755
    assert (found / "secret").read_text() == "kept\n"
    assert (found / "inside").readlink() == Path("run")
    assert not (found / "outside").is_symlink()


def test_a_submodule_is_refused(tmp_path: Path, source: Origin, ada: Path) -> None:
    first = source.commit(ada)
    source.git("update-index", "--add", "--cacheinfo", f"160000,{first},module")
    source.git(*source.signing(ada), "commit", "--quiet", "--gpg-sign", "--message", "module")
    repository = node(tmp_path, source)
    found = pulled(repository)
    with pytest.raises(RefusedError) as caught:
        check_out(repository, found.commit, tmp_path / "commits")
    assert caught.value.code == "submodule"
    assert not (tmp_path / "commits" / found.commit).exists()


def test_a_shallow_repository_offers_nothing_and_that_is_told(
    tmp_path: Path, source: Origin, ada: Path
) -> None:
    """Git ends with success; a node would keep to its commit for ever, and call that the newest."""
    source.commit(ada)
    pulled(node(tmp_path, source))
    source.commit(ada)
    shallow = tmp_path / "shallow"
    source.git("clone", "--quiet", "--depth", "1", f"file://{source.folder}", str(shallow))
    with pytest.raises(RepositoryError, match="shallow"):
        node(tmp_path, source, url=f"file://{shallow}").fetch()


def test_an_object_with_another_content_is_never_written(tmp_path: Path, source: Origin, ada: Path) -> None:
    """A loose object in the place of the signed one, after git has looked at all of them."""
    commit = source.commit(ada, text="signed\n")
    blob = source.git("rev-parse", "HEAD:file")
    repository = node(tmp_path, source)
    pulled(repository)
    forged = tmp_path / "forged"
    forged.mkdir()
    subprocess.run(["git", "init", "--quiet", "--bare", str(forged)], check=True)
    command = ["git", "-C", str(forged), "hash-object", "-w", "--stdin"]
    name = subprocess.run(command, input=b"forged\n", capture_output=True, check=True).stdout.decode().strip()
    for pack in repository.folder.glob("objects/pack/*"):
        pack.chmod(0o600)
    target = repository.folder / "objects" / blob[:2]
    target.mkdir()
    # git prefers packs: the tree and the commit move into loose objects, and the forged one stands beside.
    (pack,) = repository.folder.glob("objects/pack/*.pack")
    moved = tmp_path / "moved.pack"
    pack.rename(moved)
    pack.with_suffix(".idx").unlink()
    unpack = ["git", f"--git-dir={repository.folder}", "unpack-objects", "-q"]
    subprocess.run(unpack, input=moved.read_bytes(), check=True)
    loose = target / blob[2:]
    loose.chmod(0o600)
    loose.write_bytes((forged / "objects" / name[:2] / name[2:]).read_bytes())
    with pytest.raises(RepositoryError):
        check_out(repository, commit, tmp_path / "commits")
    assert list((tmp_path / "commits").glob("[!.]*")) == []


def test_only_the_addresss_own_protocol_is_used(tmp_path: Path, source: Origin, ada: Path) -> None:
    source.commit(ada)
    proof = tmp_path / "proof"
    with pytest.raises(RepositoryError):
        node(tmp_path, source, url=f"ext::touch% {proof}").fetch()
    with pytest.raises(RepositoryError):
        node(tmp_path, source, url=str(source.folder)).fetch()
    assert not proof.exists()


def test_a_git_that_cannot_verify_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "git"
    program.write_text("#!/bin/sh\necho git version 2.30.2\n")
    program.chmod(0o755)
    monkeypatch.setattr("pull.repository.PROGRAMS", str(tmp_path))
    with pytest.raises(RepositoryError, match=r"2\.34"):
        require_git()


def test_a_signed_merge_of_a_tag_that_openpgp_signed_is_taken(
    tmp_path: Path, source: Origin, ada: Path
) -> None:
    """Of a merge, git keeps the whole merged tag, with its signature, in the header."""
    first = source.commit(ada)
    source.git("checkout", "--quiet", "-b", "upstream")
    source.commit(None, "other")
    text = source.git("rev-parse", "HEAD")
    armour = "-----BEGIN PGP SIGNATURE-----\n\niQ==\n-----END PGP SIGNATURE-----\n"
    tag = f"object {text}\ntype commit\ntag v1\ntagger a <a@example.org> 1 +0000\n\nv1\n{armour}"
    (source.folder / ".git" / "draft").write_text(tag)
    name = source.git("hash-object", "-t", "tag", "-w", ".git/draft")
    source.git("update-ref", "refs/tags/v1", name)
    source.git("checkout", "--quiet", "main")
    source.git(*source.signing(ada), "merge", "--quiet", "--no-ff", "--gpg-sign", "--message", "m", "v1")
    assert "mergetag" in source.git("cat-file", "commit", "HEAD")
    assert pulled(node(tmp_path, source), Accepted(first)).signer == "ada"


def test_a_merged_tag_with_a_signature_signs_no_commit(tmp_path: Path, source: Origin, ada: Path) -> None:
    source.commit(ada)
    source.git("checkout", "--quiet", "-b", "upstream")
    source.commit(ada, "other")
    source.tag("v1", ada)
    source.git("checkout", "--quiet", "main")
    source.git("merge", "--quiet", "--no-ff", "--no-gpg-sign", "--message", "m", "v1")
    assert "mergetag" in source.git("cat-file", "commit", "HEAD")
    assert refusal(node(tmp_path, source)) == "unsigned"


def test_a_checkout_waits_for_its_own_files_and_for_no_other_file_system(
    tmp_path: Path, source: Origin, ada: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mount whose server is away would keep a wait for all of them from ever ending."""
    source.commit(ada, "inventory/mine/hosts.yml")
    (source.folder / "link").symlink_to("inventory")
    commit = source.commit(ada, "run")
    repository = node(tmp_path, source)
    pulled(repository)
    commits = tmp_path / "commits"
    kept: list[str] = []
    real = os.fsync

    def fsync(handle: int) -> None:
        kept.append(str(Path(f"/proc/self/fd/{handle}").readlink()))
        real(handle)

    monkeypatch.setattr(os, "sync", lambda: pytest.fail("waited for all file systems"))
    monkeypatch.setattr(os, "fsync", fsync)
    check_out(repository, commit, commits)
    draft = commits / f".{commit}.unfinished"
    names = ["inventory/mine/hosts.yml", "run", "inventory/mine", "inventory", ""]
    wanted = {*(str(draft / name) for name in names), str(commits)}
    assert set(kept) == wanted
    # The folder's new name last: whoever finds it finds all of it.
    assert kept[-1] == str(commits)


def test_no_link_leaves_the_checkout_by_way_of_another(tmp_path: Path) -> None:
    folder = tmp_path / "commits" / "one"
    folder.mkdir(parents=True)
    write(folder, LINK, PurePosixPath("p/q/r/up"), b"../../..")
    write(folder, LINK, PurePosixPath("p/q/r/out"), b"up/../../x")
    write(folder, LINK, PurePosixPath("p/q/in"), b"../../file")
    assert {path.name for path in folder.rglob("*") if path.is_symlink()} == {"up", "in"}
    with pytest.raises(RefusedError, match="no path"):
        write(folder, LINK, PurePosixPath("nul"), b"a\0b")


def test_a_key_in_a_folder_with_a_space_is_one_word(tmp_path: Path, source: Origin) -> None:
    given = node(tmp_path, source, ssh_key="/root/a key; id").environment()["GIT_SSH_COMMAND"]
    words = shlex.split(given)
    assert words[words.index("-i") + 1] == "/root/a key; id"
    assert subprocess.run(["sh", "-nc", given], check=False).returncode == 0


def test_a_git_that_does_not_end_has_failed(
    tmp_path: Path, source: Origin, ada: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = source.commit(ada)
    repository = node(tmp_path, source)
    pulled(repository)
    real = processes.run

    def run(command: list[str], *arguments: Any, **options: Any) -> subprocess.CompletedProcess[bytes]:
        if "--batch" in command[-1]:
            raise subprocess.TimeoutExpired(command, 300)
        return real(command, *arguments, **options)

    monkeypatch.setattr("pull.checkout.run", run)
    with pytest.raises(RepositoryError, match="did not end"):
        check_out(repository, commit, tmp_path / "commits")


def test_what_is_ended_is_ended_with_what_left_its_session(tmp_path: Path) -> None:
    """As Ansible's processes for nodes do."""
    note = tmp_path / "id"
    script = f"setsid sh -c 'echo $$ >{note}.draft; mv {note}.draft {note}; exec sleep 600' & wait"
    with pytest.raises(subprocess.TimeoutExpired):
        processes.run(["sh", "-c", script], {"PATH": "/usr/bin:/bin"}, 2)
    assert note.exists()
    # It has closed its output, for which run() waits, a moment before it has ended.
    with contextlib.suppress(ProcessLookupError):
        ended = os.pidfd_open(int(note.read_text()))
        assert select.select([ended], [], [], 60)[0]
        os.close(ended)


def test_a_release_comes_after_its_candidates_and_tags_that_are_no_versions_count_for_nothing(
    tmp_path: Path, source: Origin, ada: Path
) -> None:
    for name in ("fleet-1-rc1", "fleet-1", "fleet-1-rc2", "fleet-old", "fleet-zz-hotfix"):
        commit = source.commit(None)
        source.tag(name, ada)
        if name == "fleet-1":
            release = commit
    repository = node(tmp_path, source, tags="fleet-*")
    found = pulled(repository)
    assert (found.commit, found.ref) == (release, "fleet-1")
    assert dict(found.tags).keys() == {"fleet-1-rc1", "fleet-1", "fleet-1-rc2"}
    assert "fleet-old, fleet-zz-hotfix" in found.remark


def test_tags_of_which_none_is_a_version_are_named(tmp_path: Path, source: Origin, ada: Path) -> None:
    source.commit(ada)
    source.tag("fleet-old", ada)
    with pytest.raises(RepositoryError, match=r"with a version of PEP 440 .*fleet-old"):
        pulled(node(tmp_path, source, tags="fleet-*"))
    # One that is named in full needs none.
    assert pulled(node(tmp_path, source, tags="fleet-old")).ref == "fleet-old"


def packs(repository: Repository) -> int:
    return len(list(repository.folder.glob("objects/pack/*.pack")))


def failing(monkeypatch: pytest.MonkeyPatch, command: str, error: Exception) -> list[str]:
    """Lets one of git's commands fail; returns a list that all commands will be noted in."""
    called: list[str] = []
    real = Repository.git

    def git(self: Repository, *arguments: str, **options: Any) -> str:
        called.append(arguments[0])
        if arguments[0] == command:
            raise error
        return real(self, *arguments, **options)

    monkeypatch.setattr(Repository, "git", git)
    return called


def test_many_packs_become_one_which_has_all_that_they_had(
    tmp_path: Path, source: Origin, ada: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each fetch brings one, and each start looks at all of them."""
    monkeypatch.setattr("pull.repository.MOST_PACKS", 2)
    first = source.commit(ada)
    repository = node(tmp_path, source)
    repository.fetch()
    rewritten = source.commit(ada)
    repository.fetch()
    source.git("reset", "--quiet", "--hard", first)
    found = []
    for _ in range(4):
        commit = source.commit(ada, "other")
        assert repository.fetch() == ""
        found.append(packs(repository))
    assert found == [3, 2, 3, 2]
    assert repository.sound()
    assert repository.candidate().commit == commit
    # No ref leads to it any more. It has to be known, as what the node has applied.
    assert repository.git("cat-file", "-t", rewritten).strip() == "commit"


@pytest.mark.parametrize(
    "error", [RepositoryError("git repack failed: No space left on device"), OSError(errno.ENOSPC, "full")]
)
def test_a_clone_that_cannot_be_repacked_is_used_and_that_is_told(
    tmp_path: Path, source: Origin, ada: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr("pull.repository.MOST_PACKS", 0)
    source.commit(ada)
    repository = node(tmp_path, source)
    repository.fetch()
    commit = source.commit(ada)
    called = failing(monkeypatch, "repack", error)
    assert str(error) in repository.fetch()
    assert repository.candidate().commit == commit
    # First, so that a check which its packs have made too long ends again.
    assert called[:2] == ["repack", "fsck"]


def test_what_a_killed_repack_has_left_is_taken_away(
    tmp_path: Path, source: Origin, ada: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what a killed fetch protects from being packed again."""
    source.commit(ada)
    repository = node(tmp_path, source)
    repository.fetch()
    (pack,) = repository.folder.glob("objects/pack/*.pack")
    left = [pack.with_name(".tmp-77-pack-abc.pack"), pack.with_suffix(".keep")]
    for path in left:
        path.write_text("half")
    monkeypatch.setattr("pull.repository.MOST_PACKS", 1)
    source.commit(ada)
    repository.fetch()
    repository.fetch()
    assert packs(repository) == 1
    assert not any(path.exists() for path in left)


def test_a_check_that_does_not_end_is_no_damage(
    tmp_path: Path, source: Origin, ada: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new clone would only add to what the machine has to do, for each of the fleet's nodes."""
    commit = source.commit(ada)
    repository = node(tmp_path, source)
    pulled(repository)
    before = repository.folder.stat().st_ino
    real = processes.run

    def run(command: list[str], *arguments: Any, **options: Any) -> subprocess.CompletedProcess[bytes]:
        if "fsck" in command:
            raise subprocess.TimeoutExpired(command, 300)
        assert "init" not in command
        return real(command, *arguments, **options)

    with monkeypatch.context() as slow:
        slow.setattr(repository_module, "run", run)
        with pytest.raises(RepositoryError, match=r"fsck.*did not end within 300 s"):
            repository.fetch()
    assert repository.folder.stat().st_ino == before
    assert pulled(repository).commit == commit


def test_a_clone_is_looked_at_again_only_where_the_fetch_changed_it(
    tmp_path: Path, source: Origin, ada: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = source.commit(ada)
    repository = node(tmp_path, source)
    pulled(repository)
    called = failing(monkeypatch, "", OSError())
    repository.fetch()
    assert called.count("fsck") == 1
    called.clear()
    source.commit(ada)
    repository.fetch()
    assert called.count("fsck") == 2
    called.clear()
    # Only the ref changes: all objects are there.
    source.git("reset", "--quiet", "--hard", commit)
    repository.fetch()
    assert called.count("fsck") == 2


@pytest.mark.parametrize("fails", ["init", "fetch", "fsck", "config"])
def test_a_disk_that_is_full_takes_no_clone_away(
    fails: str, tmp_path: Path, source: Origin, ada: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Git fails for lack of room as it does for a damaged object."""
    commit = source.commit(ada)
    repository = node(tmp_path, source)
    pulled(repository)
    with monkeypatch.context() as full:
        git = Repository.git

        def without_room(self: Repository, *arguments: str, **options: Any) -> str:
            if arguments[0] in (fails, "fsck"):
                raise RepositoryError(f"git {arguments[0]} failed: No space left on device")
            return git(self, *arguments, **options)

        def no_room(self: Repository) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        if fails == "config":
            full.setattr(Repository, "clean", no_room)
        else:
            full.setattr(Repository, "git", without_room)
        with pytest.raises((RepositoryError, OSError), match=r"No space left|is damaged"):
            repository.fetch()
    # Also without the server, what was there can be verified and used.
    assert repository.sound()
    assert repository.verify(repository.candidate(), Accepted(commit), NOW).commit == commit
    assert pulled(repository).commit == commit
    assert {path.name for path in repository.folder.parent.iterdir()} == {"repository.git"}


def test_a_clone_that_was_being_replaced_by_a_run_that_was_killed_is_there_again(
    tmp_path: Path, source: Origin, ada: Path
) -> None:
    commit = source.commit(ada)
    repository = node(tmp_path, source)
    pulled(repository)
    repository.folder.rename(tmp_path / "node/repository.git.old")
    (tmp_path / "node/repository.git.new/objects").mkdir(parents=True)
    source.folder.rename(tmp_path / "away")
    with pytest.raises(RepositoryError):
        repository.fetch()
    assert repository.verify(repository.candidate(), Accepted(), NOW).commit == commit
    assert {path.name for path in repository.folder.parent.iterdir()} == {"repository.git"}


def test_a_server_that_talks_for_ever_is_ended(
    tmp_path: Path, source: Origin, ada: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its words are git's own standard error, and would all lie in this program's memory."""
    programs = tmp_path / "programs"
    programs.mkdir()
    ssh = programs / "ssh"
    ssh.write_text("#!/bin/sh\nexec yes 'remote: a word' >&2\n")
    ssh.chmod(0o755)
    monkeypatch.setattr(repository_module, "PROGRAMS", f"{programs}:{processes.PROGRAMS}")
    with pytest.raises(RepositoryError, match=r"git fetch: it said more than 1 MiB, and was ended"):
        node(tmp_path, source, url="ssh://git@example.org/fleet.git").fetch()


def test_a_clone_that_a_server_has_filled_is_made_anew(
    tmp_path: Path, source: Origin, ada: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = source.commit(ada)
    repository = node(tmp_path, source)
    pulled(repository)
    with (repository.folder / "objects" / "filled").open("wb") as file:
        file.truncate(repository_module.LARGEST_CLONE)
    assert pulled(repository).commit == commit
    assert not (repository.folder / "objects" / "filled").exists()


def test_a_commit_whose_list_of_files_has_no_end_is_refused(
    tmp_path: Path, source: Origin, ada: Path
) -> None:
    """Folders that name one folder ten times each: a few objects, and more files than any disk has."""
    source.commit(ada)
    tree = source.git("rev-parse", "HEAD^{tree}")
    for _ in range(7):
        tree = subprocess.run(
            ["git", "-C", str(source.folder), "mktree"],
            input="".join(f"040000 tree {tree}\t{number}{'x' * 40}\n" for number in range(10)),
            capture_output=True, check=True, text=True,
        ).stdout.strip()  # fmt: skip
    commit = source.git(*source.signing(ada), "commit-tree", "-S", "-m", "many", "-p", "HEAD", tree)
    source.git("update-ref", "refs/heads/main", commit)
    repository = node(tmp_path, source)
    pulled(repository)
    with pytest.raises(RefusedError) as error:
        check_out(repository, commit, tmp_path / "commits")
    assert error.value.code == "too-large"


def test_a_commit_of_a_day_that_no_calendar_has_is_refused(tmp_path: Path, source: Origin, ada: Path) -> None:
    """Its tag is signed; the commit's time is what its author says."""
    source.commit(ada)
    text = source.git("cat-file", "commit", "HEAD").partition("\ngpgsig")[0]
    far = text.rpartition("> ")[0] + f"> {10**12} +0000\n\nfar\n"
    written = subprocess.run(
        ["git", "-C", str(source.folder), "hash-object", "-t", "commit", "-w", "--stdin"],
        input=far, capture_output=True, check=True, text=True,
    )  # fmt: skip
    source.git("update-ref", "refs/heads/main", written.stdout.strip())
    source.tag("fleet-1", ada)
    assert refusal(node(tmp_path, source, branch="", tags="fleet-*")) == "wrong-time"
