"""The fleet's repository on the node: git fetches, verifies signatures and order, and checks out.

Own code is what git has no answer for: the highest version of the tags, tags that moved, keys whose days are
over by the node's clock, and bounds on what a server sends. git runs without any configuration of the node:
no hooks, filters, credential helpers or keyrings of root's.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pull.configuration import Configuration
from pull.shared import PROGRAMS, EndedError, process, run

if TYPE_CHECKING:
    import subprocess


GIT_TIMEOUT_S = 600
#: A server can send objects that nobody has signed.
LARGEST_CLONE = 2 << 30
LARGEST_CHECKOUT = 1 << 29
MOST_FILES = 100_000
MOST_TAGS = 20_000
OBJECT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
REF = re.compile(rf"({OBJECT.pattern})\trefs/(?:heads|tags)/([^\s\x00-\x20\x7f-\x9f]{{1,200}})")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
GOOD = re.compile(r'^Good "git" signature for (\S+) with ', re.MULTILINE)
#: How a signature begins: in a commit's header (not in a tag that it has merged), or in a tag's text.
SIGNATURE = {
    "commit": re.compile(r"^gpgsig(?:-sha256)? -----BEGIN (\w+)", re.MULTILINE),
    "tag": re.compile(r"^-----BEGIN (\w+) (?:SIGNATURE|MESSAGE)-----", re.MULTILINE),
}
#: A line of the keyring, in ssh-keygen's form ALLOWED SIGNERS, as the role writes it.
SIGNER = re.compile(
    r'(?P<name>[\w.@+-]+) namespaces="git"(?:,valid-after="(?P<after>\d{8})Z")?'
    r'(?:,valid-before="(?P<before>\d{8})Z")? (?P<key>[a-z][\w@.-]+ [A-Za-z0-9+/]+=*)'
)
#: No attribute of the tree changes a file on its way out.
ATTRIBUTES = "* -text -ident -filter !working-tree-encoding\n"
SETTINGS = {
    # git reads what is larger piece by piece, and not as a whole into memory.
    "core.bigFileThreshold": "32m",
    "core.hooksPath": "/dev/null",
    "fetch.recurseSubmodules": "false",
    "gc.autoDetach": "false",
    # Of a history that was rewritten, the node has to know what it has applied.
    "gc.pruneExpire": "never",
    "gpg.format": "ssh",
    "gpg.minTrustLevel": "fully",
    # git chooses by the signature's own first line: one of OpenPGP would be judged by root's keyring.
    "gpg.openpgp.program": "/bin/false",
    "gpg.x509.program": "/bin/false",
    "http.followRedirects": "false",
    "transfer.fsckObjects": "true",
}
#: ssh that asks nobody and believes only the listed host keys.
SSH = (
    "ssh -F /dev/null -o BatchMode=yes -o StrictHostKeyChecking=yes -o GlobalKnownHostsFile=/dev/null "
    "-o UpdateHostKeys=no -o ConnectTimeout=20 -o ServerAliveInterval=15 -o ServerAliveCountMax=4"
)
#: Versions in the order of PEP 440, by the package that ansible-core needs; what is none is left out.
ORDER = """
import json, sys
from packaging.version import InvalidVersion, Version
found = {}
for text in json.load(sys.stdin):
    try:
        found[text] = Version(text)
    except InvalidVersion:
        pass
print(json.dumps(sorted(found, key=lambda text: (found[text], text))))
"""


REFUSALS = {
    "bad-signature": "{offer} has a signature that is by none of the keyring's keys, or of another content.",
    "keyring": "The keyring {path} cannot be used ({problem}), so nothing can be trusted. Run "
    "playbooks/tune.yml for this node again.",
    "not-descendant": "Commit {commit} does not have {accepted}, which this node has applied, in its "
    "history: that was rewritten, or is another repository's.",
    "older": "Commit {commit} is older than {accepted}, which this node has applied. To go back, sign a new "
    "commit that takes the change back (git revert).",
    "signer-expired": "{offer} is signed by {signer}, whose key does not count on {today}: sign it anew "
    "with a key that does.",
    "submodule": "Commit {commit} has a submodule, whose content no signature covers here: put its files "
    "into the repository itself.",
    "tag-moved": "{offer} was {was}, and is {now} now: a tag must never move. Sign a tag with a higher "
    "version, or let this one be {was} again.",
    "tag-renamed": "{offer} is another one that was signed, under a new name.",
    "too-large": "{what}: expected at most {most}.",
    "unsigned": "{offer} has no signature: `git commit --gpg-sign` and `git tag --sign` make one.",
    "wrong-signature": "{offer} is signed with OpenPGP or X.509: expected a signature of an SSH key.",
    "wrong-time": "Commit {commit} claims to be of {time}, which no calendar has: make it again with a clock "
    "that is right.",
}


class RepositoryError(Exception):
    """git itself failed: there is nothing that could be judged. The message is a sentence."""


class GitEndedError(RepositoryError):
    """git went beyond a bound: nobody knows what it would have found. The message is a sentence."""


class RefusedError(Exception):
    """What was offered is not applied. `code` is for programs, the message a sentence for the operator."""

    def __init__(self, code: str, **facts: object) -> None:
        super().__init__(REFUSALS[code].format(**facts))
        self.code = code


@dataclass(frozen=True)
class Accepted:
    """The last commit that was verified, and the versions' tags as they were seen first: name -> object."""

    commit: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Offer:
    """A branch or tag and its object: a commit or tag that has to be signed.

    `tags` are all that have a version, `passed_over` those that count for nothing because they have none.
    """

    kind: str
    name: str
    object_id: str
    tags: Mapping[str, str] = field(default_factory=dict)
    passed_over: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"The tag {self.name}" if self.kind == "tag" else f"Commit {self.object_id}"


@dataclass(frozen=True)
class Verified:
    """A commit that somebody of the keyring stands for; `time` (UTC) is what its author says.

    `remark` is what the operator should know of the tags; empty where there is nothing.
    """

    commit: str
    ref: str
    signer: str
    tags: Mapping[str, str]
    time: str
    remark: str


class Repository:
    """A bare repository in a folder that only root can read."""

    def __init__(self, folder: Path, configuration: Configuration) -> None:
        self.folder = folder
        self.wanted = configuration

    def offer(self) -> Offer:
        """Ask the server what counts there. Raises RepositoryError, also where nothing does."""
        wanted = self.wanted
        kind, source = ("tag", f"tags/{wanted.tags}") if wanted.tags else ("commit", f"heads/{wanted.branch}")
        pattern = wanted.tags or wanted.branch
        refs = refs_in(self.git("ls-remote", "--refs", "--", wanted.url, f"refs/{source}"))
        counting = self.ordered(list(refs)) if wanted.tags and "*" in pattern else [pattern]
        others = tuple(sorted(refs.keys() - counting))
        if not counting or counting[-1] not in refs:
            wish = f"refs/{source}{', with a version of PEP 440 for the *' if wanted.tags else ''}"
            nothing = f" Others count for nothing: {listed(others)}." if others else ""
            raise RepositoryError(f"{wanted.url} has no {wish}.{nothing}")
        tags = {name: refs[name] for name in counting} if wanted.tags else {}
        return Offer(kind, counting[-1], refs[counting[-1]], tags, others if wanted.tags else ())

    def ordered(self, names: list[str]) -> list[str]:
        """Return the tags that have a version, the highest last. Raises RepositoryError."""
        start, _, end = self.wanted.tags.partition("*")
        versions = {
            name[len(start) : len(name) - len(end)]: name
            for name in names
            if name.startswith(start) and name.endswith(end)
        }
        command = [self.wanted.python, "-I", "-c", ORDER]
        try:
            done = run(command, GIT_TIMEOUT_S, {"PATH": PROGRAMS}, text=json.dumps(list(versions)))
            return [versions[text] for text in json.loads(done.stdout)]
        except (ValueError, EndedError) as error:
            raise RepositoryError(
                f"pull_python: expected a Python with the package packaging, as ansible-core needs it, found "
                f"{self.wanted.python or 'none'}: tags have no order ({error})."
            ) from error

    def bring(self, offer: Offer) -> None:
        """Fetch what is offered; a clone that is damaged is replaced by a new one, once that is whole.

        So is one whose check does not end, as of one that a server has filled. A full disk looks like damage,
        too: no clone is given up for it. Raises RepositoryError, OSError.
        """
        try:
            self.update(offer)
        except RepositoryError:
            new = Repository(self.folder.with_name(f"{self.folder.name}.new"), self.wanted)
            new.git("init", "--quiet", "--bare", "--template=")
            new.update(offer)
            shutil.rmtree(self.folder, ignore_errors=True)
            new.folder.rename(self.folder)

    def update(self, offer: Offer) -> None:
        """Fetch what is offered where it is not here yet, and look at all that is. Raises RepositoryError."""
        place = "tags" if offer.kind == "tag" else "heads"
        target = f"refs/temper/{place}/{offer.name}"
        if process.folder_bytes(self.folder) > LARGEST_CLONE:
            raise RepositoryError(f"The clone is larger than {LARGEST_CLONE >> 20} MiB.")
        shown = ("for-each-ref", "--format=%(objectname)", target)
        if self.git(*shown).strip() != offer.object_id:
            options = ("--quiet", "--no-tags", "--no-write-fetch-head")
            source = f"+refs/{place}/{offer.name}:{target}"
            said = self.attempt("fetch", *options, "--", self.wanted.url, source).stderr
            # Of a shallow repository git takes nothing, and calls that a success.
            if self.git(*shown).strip() != offer.object_id:
                raise RepositoryError(f"{self.wanted.url} did not send {offer.name}: {one_line(said)}")
        # Each object's content by its name, also of a server that has only files.
        self.git("fsck", "--full", "--strict", "--no-dangling", "--no-reflogs", "--no-progress")

    def verify(self, offer: Offer, accepted: Accepted, now: datetime) -> Verified:
        """Judge what is offered by the keyring and by what was accepted before.

        Raises:
            RefusedError: it is not to be applied.
            RepositoryError: git failed.
        """
        # The first object of a tag is the one that is remembered: what has moved can never be taken, however
        # often it is seen beside a newer one.
        known = {**offer.tags, **accepted.tags}
        moved = sorted(name for name, object_id in offer.tags.items() if known[name] != object_id)
        if offer.name in moved:
            raise RefusedError("tag-moved", offer=offer, was=known[offer.name], now=offer.object_id)
        if len(offer.tags) > MOST_TAGS:
            raise RefusedError(
                "too-large", what=f"There are {len(offer.tags)} versions' tags", most=MOST_TAGS
            )
        if len(known) > MOST_TAGS:
            # Of a flood of tags, those that are gone are forgotten.
            known = {name: known[name] for name in offer.tags or accepted.tags}
        signer = self.signer(offer, now)
        commit = self.git("rev-parse", "--verify", f"{offer.object_id}^{{commit}}").strip()
        if accepted.commit and not self.is_ancestor(accepted.commit, commit):
            code = "older" if self.is_ancestor(commit, accepted.commit) else "not-descendant"
            raise RefusedError(code, commit=commit, accepted=accepted.commit)
        time = self.git("log", "-1", "--date=format-local:%Y-%m-%dT%H:%M:%SZ", "--format=%cd", commit).strip()
        if not TIME.fullmatch(time):
            raise RefusedError("wrong-time", commit=commit, time=time)
        remarks = {
            "Tags have moved since this node saw them first, and are never taken": moved,
            "Tags whose names are no versions of PEP 440 count for nothing": offer.passed_over,
        }
        remark = " ".join(f"{said}: {listed(names)}." for said, names in remarks.items() if names)
        return Verified(commit, offer.name, signer, known, time, remark)

    def again(self, accepted: Accepted, now: datetime) -> Verified:
        """Judge the commit that was accepted last once more; with tags, by those that name it.

        Who may push can have given it other ones since, or before. Raises as `verify` does.
        """
        if not self.wanted.tags:
            return self.verify(Offer("commit", self.wanted.branch, accepted.commit), accepted, now)
        options = (f"--points-at={accepted.commit}", "--format=%(objectname)", "refs/temper")
        here = self.git("for-each-ref", *options).split()
        problem: Exception = RepositoryError("No tag names the commit that was accepted last.")
        for name, object_id in accepted.tags.items():
            if object_id in here:
                try:
                    return self.verify(Offer("tag", name, object_id), accepted, now)
                except RefusedError as error:
                    problem = error
        raise problem

    def signer(self, offer: Offer, now: datetime) -> str:
        """Return who of the keyring has signed the tag, or else the commit. Raises as `verify` does."""
        if self.git("cat-file", "-t", offer.object_id).strip() != offer.kind:
            raise RefusedError("unsigned", offer=offer)
        header, _, text = self.git("cat-file", offer.kind, offer.object_id).partition("\n\n")
        if offer.kind == "tag" and f"tag {offer.name}" not in header.split("\n"):
            raise RefusedError("tag-renamed", offer=offer)
        kinds = set(SIGNATURE[offer.kind].findall(text if offer.kind == "tag" else header))
        if kinds != {"SSH"}:
            raise RefusedError("wrong-signature" if kinds else "unsigned", offer=offer)
        current, others = self.keyring(now)
        if found := self.good(offer, current):
            return found
        if found := self.good(offer, others):
            raise RefusedError("signer-expired", offer=offer, signer=found, today=f"{now:%Y-%m-%d}")
        raise RefusedError("bad-signature", offer=offer)

    def keyring(self, now: datetime) -> tuple[list[str], list[str]]:
        """Return the lines of the keyring without their days: keys that count now, and others.

        git has a key judged at the time that the commit claims, which the holder of an expired key chooses.
        Raises RefusedError.
        """
        signers: tuple[list[str], list[str]] = [], []
        today = f"{now:%Y%m%d}"
        try:
            for line in Path(self.wanted.keyring).read_text(encoding="ascii").splitlines():
                found = SIGNER.fullmatch(line)
                if found:
                    counts = (found["after"] or "") <= today < (found["before"] or "9")
                    signers[not counts].append(f'{found["name"]} namespaces="git" {found["key"]}\n')
                elif line and not line.startswith("#"):
                    raise ValueError(f"the line {line[:60]!r} is not what the role pull writes")
            if not any(signers):
                raise ValueError("it has no key")
        except (OSError, ValueError) as error:
            raise RefusedError("keyring", path=self.wanted.keyring, problem=error) from error
        return signers

    def good(self, offer: Offer, lines: list[str]) -> str:
        """Return who of these has signed; empty where nobody has. Raises RepositoryError."""
        with tempfile.NamedTemporaryFile("w", encoding="ascii") as keyring:
            keyring.write("".join(lines))
            keyring.flush()
            setting = f"gpg.ssh.allowedSignersFile={keyring.name}"
            done = self.attempt("-c", setting, f"verify-{offer.kind}", "--raw", offer.object_id)
        found = GOOD.findall(done.stderr + done.stdout)
        # One sentence and success: neither alone is believed.
        names = {line.split()[0] for line in lines}
        return found[0] if done.returncode == 0 and len(found) == 1 and found[0] in names else ""

    def is_ancestor(self, older: str, newer: str) -> bool:
        """Return whether `newer` has `older` in its history. Raises RepositoryError."""
        return self.attempt("merge-base", "--is-ancestor", older, newer).returncode == 0

    def check_out(self, commit: str, target: Path) -> None:
        """Have git write a commit's files. Raises RefusedError, RepositoryError, OSError."""
        most = f"{MOST_FILES} with {LARGEST_CHECKOUT >> 20} MiB"
        try:
            listing = self.git("ls-tree", "-r", "-l", "-z", "--full-tree", commit).split("\0")[:-1]
        except GitEndedError as error:
            raise RefusedError(
                "too-large", what=f"Commit {commit} has files without end", most=most
            ) from error
        entries = [line.partition("\t")[0].split() for line in listing]
        if any(mode == "160000" for mode, *_ in entries):
            raise RefusedError("submodule", commit=commit)
        size = sum(int(size) for *_, size in entries)
        if len(entries) > MOST_FILES or size > LARGEST_CHECKOUT:
            what = f"Commit {commit} has {len(entries)} files with {size >> 20} MiB"
            raise RefusedError("too-large", what=what, most=most)
        target.mkdir(mode=0o700)
        shutil.rmtree(self.folder / "info", ignore_errors=True)
        (self.folder / "info").mkdir()
        (self.folder / "info/attributes").write_text(ATTRIBUTES, encoding="ascii")
        (self.folder / "index").unlink(missing_ok=True)
        self.git(f"--work-tree={target}", "read-tree", "--reset", "-u", commit)

    def git(self, *arguments: str) -> str:
        """Return standard output of a git command that has to succeed. Raises RepositoryError."""
        done = self.attempt(*arguments)
        if done.returncode:
            raise RepositoryError(f"git {arguments[0]} failed: {one_line(done.stderr or done.stdout)}")
        return done.stdout

    def attempt(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run git with nothing of root's or the service's own. Raises RepositoryError."""
        wanted = self.wanted
        environment = {
            "PATH": PROGRAMS,
            "LC_ALL": "C.UTF-8",
            "TZ": "UTC",
            "TMPDIR": tempfile.gettempdir(),
            "HOME": "/nonexistent",
            "GIT_DIR": str(self.folder),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": "/dev/null",
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_NO_REPLACE_OBJECTS": "1",
            "GIT_TERMINAL_PROMPT": "0",
            # The one protocol that the address names.
            "GIT_ALLOW_PROTOCOL": wanted.url.partition("://")[0] if "://" in wanted.url else "ssh",
            "GIT_SSH_COMMAND": shlex.join(ssh_command(wanted.known_hosts, wanted.ssh_key)),
            **({"GIT_SSL_CAINFO": wanted.ca_file} if wanted.ca_file else {}),
        }
        settings = [part for one in SETTINGS.items() for part in ("-c", "=".join(one))]
        grows = (self.folder, LARGEST_CLONE) if arguments[0] == "fetch" else None
        try:
            return run(["git", *settings, *arguments], GIT_TIMEOUT_S, environment, grows=grows)
        except EndedError as error:
            raise GitEndedError(f"git {arguments[0]} {error}.") from error


def refs_in(said: str) -> dict[str, str]:
    """Return branches or tags and their objects, as `git ls-remote` says them; other lines are left out."""
    return {found[2]: found[1] for found in map(REF.fullmatch, said.split("\n")) if found}


def ssh_command(known_hosts: str, key: str) -> list[str]:
    """Return ssh with the host keys that it believes, and its own."""
    identity = ["-i", key, "-o", "IdentitiesOnly=yes"] if key else []
    return [*SSH.split(), "-o", f"UserKnownHostsFile={known_hosts}", *identity]


def listed(names: Sequence[str]) -> str:
    """Return the first names, for a sentence."""
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")


def one_line(text: str) -> str:
    """Return the end of what a program has said."""
    return " ".join(text.split())[-500:] or "it said nothing"
