"""The fleet's repository on the node: fetched with git, and believed only where a signature says so.

git runs with an environment of ours, without any configuration of the node, and in a bare repository whose
own configuration is written anew each time: none of hooks, filters, attributes, submodules, replaced objects,
grafts, alternates or credential helpers is there to be used.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import stat
import subprocess
import tempfile
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from pull import keyring, versions
from pull.processes import MOST_OUTPUT, PROGRAMS, OutputError, folder_bytes, run

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pull.configuration import Configuration
    from pull.keyring import Signer

#: The first with signatures of SSH keys that a keyring's namespace limits.
OLDEST_GIT = (2, 34)
FETCH_TIMEOUT_S = 600
GIT_TIMEOUT_S = 300
#: Each fetch that brings something leaves a pack, which repeats much of the others. git fsck reads them all.
MOST_PACKS = 20
#: What a fetch may say: a server's words come with it, and git is told to be quiet.
MOST_WORDS = 1 << 20
#: The most that the clone may have: a server can send objects that nobody has signed.
LARGEST_CLONE = 2 << 30
SSH_SIGNATURE = "-----BEGIN SSH SIGNATURE-----"
OTHER_SIGNATURE = re.compile("-----BEGIN (PGP SIGNATURE|PGP MESSAGE|SIGNED MESSAGE)-----")
#: Lines that go on begin with a space.
OWN_SIGNATURE = re.compile(r"^gpgsig(?:-sha256)? .*(?:\n .*)*", re.MULTILINE)
GOOD = re.compile(r'^Good "git" signature for (\S+) with ', re.MULTILINE)
#: What git warns of, and calls a success: of a shallow repository it takes nothing new.
SHALLOW = "because shallow roots are not allowed to be updated"
TAGS = "refs/temper/tags/"
HEAD = "refs/temper/head"
SETTINGS = {
    # git reads what is larger piece by piece, and not as a whole into memory.
    "core.bigFileThreshold": "32m",
    "core.hooksPath": "/dev/null",
    "core.attributesFile": "/dev/null",
    "core.fsmonitor": "false",
    "core.logAllRefUpdates": "false",
    "credential.helper": "",
    "fetch.fsckObjects": "true",
    "fetch.recurseSubmodules": "false",
    "fetch.unpackLimit": "1",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "gpg.format": "ssh",
    "gpg.minTrustLevel": "fully",
    # git chooses by the signature's own first line: one of OpenPGP would be judged by root's keyring.
    "gpg.openpgp.program": "/bin/false",
    "gpg.x509.program": "/bin/false",
    # The service has one core.
    "pack.threads": "1",
    "repack.writeBitmaps": "false",
    "http.followRedirects": "false",
    "http.sslVerify": "true",
    "protocol.allow": "never",
    "transfer.fsckObjects": "true",
}


class RepositoryError(Exception):
    """git itself failed: there is nothing that could be judged. The message is a sentence."""


class GitTimeoutError(RepositoryError):
    """git took too long, and was ended: nobody knows what it would have found. The message is a sentence."""


class GitOutputError(RepositoryError):
    """git said or wrote more than it may, and was ended. The message is a sentence."""


class RefusedError(Exception):
    """What was offered is not applied. `code` is for programs, the message a sentence for the operator."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Accepted:
    """The last commit that was verified, and the versions' tags as they were seen first: name -> object."""

    commit: str = ""
    tags: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Candidate:
    """What the repository offers: a commit, and the tag that names it, if it is named by one.

    `tags` are all that have a version, `passed_over` those that count for nothing because they have none.
    """

    commit: str
    ref: str
    tag: str = ""
    tags: tuple[tuple[str, str], ...] = ()
    passed_over: tuple[str, ...] = ()


@dataclass(frozen=True)
class Verified:
    """A commit that somebody of the keyring stands for; `time` (UTC) is what its author says.

    `remark` is what the operator should know of the tags; empty where there is nothing.
    """

    commit: str
    ref: str
    signer: str
    tags: tuple[tuple[str, str], ...] = ()
    time: str = ""
    remark: str = ""


class Repository:
    """A bare repository in a folder that only root can read, of which nothing but its objects is believed."""

    def __init__(self, folder: Path, configuration: Configuration) -> None:
        self.folder = folder
        self.wanted = configuration

    def fetch(self) -> str:
        """Bring what the repository offers; a clone that is damaged is replaced once a new one is whole.

        A disk that is full looks like damage, too: what is there is not given up for it. Returns why the
        clone could not be repacked, where that was due; it is used all the same.

        Raises:
            RepositoryError: it cannot be reached, sends what git takes for broken, or does not have the ref.
            OSError: the disk.
        """
        require_git()
        new = Repository(self.folder.with_name(f"{self.folder.name}.new"), self.wanted)
        old = self.folder.with_name(f"{self.folder.name}.old")
        if old.is_dir() and not self.folder.exists():  # of a run that was killed as it replaced it
            old.rename(self.folder)
        for left in (new.folder, old):
            remove(left)
        # Before the check, which then is of the new pack, and ends where it did not with the old ones.
        problem = self.repack()
        if self.sound():
            self.download(checked=True)
            return problem
        try:
            new.make()
            new.download()
            if os.path.lexists(self.folder):
                self.folder.rename(old)
            new.folder.rename(self.folder)
            remove(old)
        except BaseException:
            with contextlib.suppress(OSError):
                remove(new.folder)
            raise
        return ""

    def repack(self) -> str:
        """Make one pack of many; returns why it could not be made, empty where all is well.

        What no ref leads to any more is kept: of a history that was rewritten, the node has to know what it
        has applied. The old packs go once the new one is on the disk.
        """
        if len(list(self.folder.glob("objects/pack/*.pack"))) <= MOST_PACKS:
            return ""
        try:
            self.clean()
            options = ["-a", "-d", "--keep-unreachable", "-n", "--quiet"]
            self.git("repack", *options, timeout_s=FETCH_TIMEOUT_S)
        except (RepositoryError, OSError) as error:
            return f"The clone {self.folder} could not be repacked: {error}"
        return ""

    def download(self, *, checked: bool = False) -> None:
        """Bring what the repository offers into this one. Raises RepositoryError, OSError.

        Where all that lies here is `checked` already, it is checked anew only if the fetch has changed it.
        """
        before = self.contents() if checked else None
        wanted = self.wanted
        source = f"refs/tags/{wanted.tags}" if wanted.tags else f"refs/heads/{wanted.branch}"
        target = f"{TAGS}{wanted.tags}" if wanted.tags else HEAD
        options = ["--quiet", "--no-tags", "--prune", "--no-recurse-submodules", "--no-write-fetch-head"]
        command = ["fetch", *options, "--refmap=", "--", wanted.url, f"+{source}:{target}"]
        self.git(*command, timeout_s=FETCH_TIMEOUT_S, most=MOST_WORDS, bounded=True)
        # A server of files alone is asked for each of them, and git looks at those less closely.
        if self.contents() != before and not self.sound():
            raise RepositoryError(f"What came from {wanted.url} is damaged.")

    def make(self) -> None:
        """An empty repository. Raises RepositoryError, OSError."""
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        self.git("init", "--quiet", "--bare", "--template=", str(self.folder), inside=False)
        self.clean()

    def contents(self) -> dict[str, tuple[int, ...]]:
        """All files of the repository, each with what changes whenever it is written. Raises OSError."""
        found: dict[str, tuple[int, ...]] = {}
        for path in self.folder.rglob("*"):
            state = path.lstat()
            if not stat.S_ISDIR(state.st_mode):
                found[str(path)] = (state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns)
        return found

    def clean(self) -> None:
        """Take away all that git would read beside objects and our refs, and what a killed git left."""
        for name in ("hooks", "info", "modules", "worktrees", "logs", "refs/replace", "lfs"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        for name in ("shallow", "config.worktree", "objects/info/alternates", "objects/info/http-alternates"):
            (self.folder / name).unlink(missing_ok=True)
        packs = ("objects/pack/tmp_*", "objects/pack/.tmp-*", "objects/pack/*.keep")
        for pattern in ("*.lock", *packs, "objects/**/tmp_obj_*", "refs/**/*.lock"):
            for path in self.folder.glob(pattern):
                path.unlink()
        (self.folder / "config").write_text("[core]\nrepositoryformatversion = 0\nbare = true\n")

    def sound(self) -> bool:
        """Whether all objects are whole, what git needs of them is there, and nobody has filled it.

        Raises:
            RepositoryError: it could not be found out in time, which is no damage.
        """
        if not (self.folder / "HEAD").is_file() or folder_bytes(self.folder) > LARGEST_CLONE:
            return False
        try:
            self.clean()
            self.git("fsck", "--full", "--strict", "--no-dangling", "--no-reflogs", "--no-progress")
        except GitTimeoutError as error:
            raise RepositoryError(
                f"Whether the clone {self.folder} is whole is not known, and it was kept: {error} Look for "
                "what keeps the node or its disk busy; the next start tries again."
            ) from error
        except (RepositoryError, OSError):
            return False
        return True

    def candidate(self) -> Candidate:
        """What the last fetch has brought.

        Raises:
            RefusedError: a tag is none that could be signed.
            RepositoryError: there is nothing.
        """
        if not self.wanted.tags:
            return Candidate(self.git("rev-parse", "--verify", f"{HEAD}^0").strip(), self.wanted.branch)
        pattern = self.wanted.tags
        listing = self.git(
            "for-each-ref", "--format=%(objectname) %(objecttype) %(refname)", f"{TAGS}{pattern}"
        )
        found = [line.split(" ", 2) for line in listing.splitlines()]
        kinds = {name.removeprefix(TAGS): (object_id, kind) for object_id, kind, name in found}
        start, star, end = pattern.partition("*")
        order = {
            name: versions.key(name[len(start) : len(name) - len(end)]) if star else () for name in kinds
        }
        # Of two spellings of one version, the same one for every node.
        name = max(((one, name) for name, one in order.items() if one is not None), default=((), ""))[1]
        if not name:
            others = f" Others count for nothing: {', '.join(sorted(kinds)[:5])}." if kinds else ""
            wanted = f"{pattern}, with a version of PEP 440 for the *" if star else pattern
            raise RepositoryError(f"{self.wanted.url} has no tag {wanted}.{others}")
        tags = tuple((one, kinds[one][0]) for one in kinds if order[one] is not None)
        passed_over = tuple(sorted(name for name, one in order.items() if one is None))
        tag, kind = kinds[name]
        if kind != "tag":
            raise RefusedError(
                "unsigned", f"The tag {name} is a name without a signature: make it with `git tag --sign`."
            )
        commit = self.git("rev-parse", "--verify", f"{tag}^{{commit}}").strip()
        return Candidate(commit, name, tag, tags, passed_over)

    def verify(self, candidate: Candidate, accepted: Accepted, now: datetime) -> Verified:
        """Judge what is offered against the keyring and against what was accepted before.

        Raises:
            RefusedError: it is not to be applied.
            KeyringError: there is no keyring to judge by.
            RepositoryError: git failed.
        """
        # The first object of a tag is the one that is remembered: what has moved can never be taken, however
        # often it is seen beside a newer one.
        known = {**dict(candidate.tags), **dict(accepted.tags)}
        moved = sorted(name for name, object_id in candidate.tags if known[name] != object_id)
        if candidate.ref in moved:
            star = "*" in self.wanted.tags
            other = "Sign a tag with a higher version" if star else "Name another tag in pull_tags"
            was = known[candidate.ref]
            raise RefusedError(
                "tag-moved",
                f"The tag {candidate.ref} was {was}, and is {candidate.tag} now: a tag must never move. "
                f"{other}, or let this one be {was} again.",
            )
        signer = self.signer(candidate, now)
        if accepted.commit and candidate.commit != accepted.commit:
            self.require_descendant(candidate.commit, accepted.commit)
        seconds = self.git("show", "--no-patch", "--no-notes", "--format=%ct", candidate.commit).strip()
        try:
            time = datetime.fromtimestamp(int(seconds), timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        except (ValueError, OverflowError, OSError) as error:
            raise RefusedError(
                "wrong-time",
                f"Commit {candidate.commit} claims to be made {seconds} s after 1970, which is no day that "
                "a calendar has: make it again with a clock that is right.",
            ) from error
        remark = " ".join(
            f"{said}: {', '.join(names[:5])}{', ...' if len(names) > 5 else ''}."
            for said, names in (
                ("Tags have moved since this node saw them first, and are never taken", moved),
                ("Tags whose names are no versions of PEP 440 count for nothing", candidate.passed_over),
            )
            if names
        )
        return Verified(candidate.commit, candidate.ref, signer, tuple(sorted(known.items())), time, remark)

    def signer(self, candidate: Candidate, now: datetime) -> str:
        """Who of the keyring has signed the tag, or else the commit. Raises as `verify` does."""
        kind, name = ("tag", candidate.tag) if candidate.tag else ("commit", candidate.commit)
        header, _, body = self.git("cat-file", kind, name).partition("\n\n")
        if candidate.tag and f"\ntag {candidate.ref}\n" not in f"\n{header}\n":
            raise RefusedError(
                "tag-renamed", f"The tag {candidate.ref} is another one that was signed, under a new name."
            )
        # Of a merge the header also has the whole tag that was merged, with its own signature.
        signed = body if candidate.tag else "\n".join(OWN_SIGNATURE.findall(header))
        what = f"The tag {candidate.ref}" if candidate.tag else f"Commit {candidate.commit}"
        if OTHER_SIGNATURE.search(signed):
            raise RefusedError(
                "wrong-signature", f"{what} is signed with OpenPGP or X.509: expected an SSH signature."
            )
        if SSH_SIGNATURE not in signed:
            raise RefusedError("unsigned", f"{what} is not signed.")
        signers = keyring.load(Path(self.wanted.keyring))
        current = tuple(one for one in signers if one.valid(now))
        if found := self.good(kind, name, current):
            return found
        if found := self.good(kind, name, signers):
            raise RefusedError(
                "signer-expired",
                f"{what} is signed by {found}, whose key does not count today ({now:%Y-%m-%d}): sign it anew "
                "with a key that does.",
            )
        raise RefusedError(
            "bad-signature",
            f"{what} has a signature that is not by one of the keyring's {len(signers)} keys, or is not of "
            "this content.",
        )

    def good(self, kind: str, name: str, signers: tuple[Signer, ...]) -> str:
        """Who of these has signed; empty where nobody has."""
        if not signers:
            return ""
        with tempfile.TemporaryDirectory(dir=self.folder.parent) as folder:
            path = Path(folder, "allowed_signers")
            path.write_text(keyring.allowed_signers(signers), encoding="ascii")
            setting = f"gpg.ssh.allowedSignersFile={path}"
            # git writes the signature into a file: a /tmp that jobs have filled must not make it a bad one.
            answer = self.execute(
                ["-c", setting, f"verify-{kind}", "--raw", name], GIT_TIMEOUT_S, temporary=folder
            )
        said = GOOD.findall(answer.stderr + answer.stdout)
        # One sentence and success: neither alone is believed.
        names = {signer.name for signer in signers}
        return said[0] if answer.returncode == 0 and len(said) == 1 and said[0] in names else ""

    def require_descendant(self, commit: str, accepted: str) -> None:
        """Refuse a commit that does not come after the accepted one: a replay, or a rewritten history."""
        if self.is_ancestor(accepted, commit):
            return
        if self.is_ancestor(commit, accepted):
            raise RefusedError(
                "older",
                f"Commit {commit} is older than {accepted}, which this node has applied. To go back, sign a "
                "new commit that takes the change back (git revert).",
            )
        raise RefusedError(
            "not-descendant",
            f"The history of commit {commit} does not have {accepted}, which this node has applied: it was "
            "rewritten, or is another repository's.",
        )

    def is_ancestor(self, older: str, newer: str) -> bool:
        """Whether `newer` has `older` in its history."""
        command = ["merge-base", "--is-ancestor", older, newer]
        return self.execute(command, GIT_TIMEOUT_S).returncode == 0

    def git(
        self,
        *arguments: str,
        timeout_s: float = GIT_TIMEOUT_S,
        inside: bool = True,
        most: int = MOST_OUTPUT,
        bounded: bool = False,
    ) -> str:
        """Standard output of a git command that has to succeed; `bounded`: the clone's size, too.

        Raises RepositoryError.
        """
        answer = self.execute(list(arguments), timeout_s, inside=inside, most=most, bounded=bounded)
        if answer.returncode or SHALLOW in answer.stderr:
            said = " ".join((answer.stderr or answer.stdout).split())[-500:] or f"status {answer.returncode}"
            raise RepositoryError(f"git {arguments[0]} failed: {said}")
        return answer.stdout

    def execute(
        self,
        arguments: list[str],
        timeout_s: float,
        *,
        inside: bool = True,
        temporary: str = "",
        most: int = MOST_OUTPUT,
        bounded: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """A git command, whatever comes of it; one that takes too long is ended with all that it started."""
        settings = {**SETTINGS, **self.transport()}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        options += [f"--git-dir={self.folder}"] if inside else []
        try:
            environment = {**self.environment(), **({"TMPDIR": temporary} if temporary else {})}
            grows = (self.folder, LARGEST_CLONE) if bounded else None
            answer = run(["git", *options, *arguments], environment, timeout_s, most=most, grows=grows)
        except subprocess.TimeoutExpired as error:
            raise GitTimeoutError(f"git {arguments[0]} did not end within {timeout_s:g} s.") from error
        except OutputError as error:
            raise GitOutputError(f"git {arguments[0]}: {error}.") from error
        return subprocess.CompletedProcess(
            answer.args,
            answer.returncode,
            answer.stdout.decode("utf-8", "backslashreplace"),
            answer.stderr.decode("utf-8", "backslashreplace"),
        )

    def transport(self) -> Mapping[str, str]:
        """The one protocol that the address names."""
        scheme, separator, _ = self.wanted.url.partition("://")
        found = {f"protocol.{scheme if separator else 'ssh'}.allow": "always"}
        if self.wanted.ca_file:
            found["http.sslCAInfo"] = self.wanted.ca_file
        return found

    def environment(self) -> dict[str, str]:
        """What git finds: nothing of root's or the service's own."""
        return {
            "PATH": PROGRAMS,
            "LC_ALL": "C.UTF-8",
            "HOME": "/nonexistent",
            "XDG_CONFIG_HOME": "/nonexistent",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_SYSTEM": "/dev/null",
            "GIT_CONFIG_GLOBAL": "/dev/null",
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_NO_REPLACE_OBJECTS": "1",
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_SSH_COMMAND": shlex.join(ssh_command(self.wanted.known_hosts, self.wanted.ssh_key)),
        }


def remove(path: Path) -> None:
    """Take away whatever is there. Raises OSError."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def ssh_command(known_hosts: str, key: str) -> list[str]:
    """ssh, without any configuration but this, that asks nobody and believes only the listed host keys."""
    identity = ["-i", key, "-o", "IdentitiesOnly=yes"] if key else []
    options = {
        "BatchMode": "yes",
        "StrictHostKeyChecking": "yes",
        "UserKnownHostsFile": known_hosts,
        "GlobalKnownHostsFile": "/dev/null",
        "UpdateHostKeys": "no",
        "ConnectTimeout": "20",
        "ServerAliveInterval": "15",
        "ServerAliveCountMax": "4",
    }
    pairs = [part for name, value in options.items() for part in ("-o", f"{name}={value}")]
    return ["ssh", "-F", "/dev/null", *pairs, *identity]


def require_git() -> None:
    """Refuse a git that cannot verify SSH signatures. Raises RepositoryError."""
    try:
        said = run(["git", "--version"], {"PATH": PROGRAMS}, GIT_TIMEOUT_S).stdout.decode()
    except (OSError, OutputError, subprocess.TimeoutExpired) as error:
        raise RepositoryError(f"git cannot be run ({error}): install it on this node.") from error
    found = re.search(r"(\d+)\.(\d+)", said)
    if not found or (int(found[1]), int(found[2])) < OLDEST_GIT:
        raise RepositoryError(
            f"Expected git {OLDEST_GIT[0]}.{OLDEST_GIT[1]} or newer, which verifies SSH signatures; found "
            f"{said.strip() or 'none'}."
        )
