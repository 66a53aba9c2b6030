"""Debian's and Ubuntu's package manager: see `packages.Manager`."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import struct
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from ansible.module_utils.temper.packaging import dkms, repositories, signing_keys
from ansible.module_utils.temper.packaging.packages import (
    CONFIGURATION,
    ERROR_LINES,
    FAMILY,
    Change,
    OthersUnreadableError,
    PackageError,
    Packages,
    Transaction,
    arguments,
    attempt,
    closed,
    query,
)
from ansible.module_utils.temper.process import each_line, parsed, process_name

if TYPE_CHECKING:
    import subprocess

# Another apt (unattended-upgrades, cloud-init) may hold the lock on a new server.
LOCK_TIMEOUT_S = 600
ENVIRONMENT = {
    # Services restart when Temper says so, not when a hook of apt does.
    "NEEDRESTART_SUSPEND": "1",
    "APT_LISTCHANGES_FRONTEND": "none",
}
DPKG_OPTIONS = ["--force-confdef", "--force-confold"]
APT_GET = [
    *("apt-get", "-q", "-y"),
    *(word for option in DPKG_OPTIONS for word in ("-o", f"Dpkg::Options::={option}")),
]
# Of C's struct flock: kind, whence, start, length (0 is to the end), process.
FLOCK = struct.Struct("hhlli0l")
WHOLE_FILE = (fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
# Where of two repositories on one host one refuses connections, apt 2.6 waits for ever to try again by itself
# (seen 2026-11-21); so whoever uses this tries again.
UPDATE_OPTIONS = ("APT::Update::Error-Mode=any", "Acquire::Retries=0")
INSTALL = [
    "install",
    "--no-install-recommends",
    "--no-install-suggests",
    "--allow-downgrades",
    # Else the held siblings of a listed package stay where they are, and it cannot move.
    "--allow-change-held-packages",
    "--ignore-hold",
]
# What nobody needs any more may be of use to people. What is half-installed goes, too.
REMOVE = [
    *("--no-auto-remove", "--allow-change-held-packages"),
    *("-o", "Dpkg::Options::=--force-remove-reinstreq"),
]
NEEDS_FORMAT = (
    "${Package}\\t${db:Status-Status}\\t${Provides}\\t${Pre-Depends}\\t${Depends}\\t${Recommends}\\n"
)
# A package in a relation, without version and architecture.
NAME = re.compile(r"(?:^|[,|])\s*([a-z0-9][a-z0-9.+-]*)")
# How apt and dpkg begin, or mark, the lines that say why.
EXPLAINS = re.compile(r"^(E:|Err:|dpkg: error)| : (Pre)?Depends: | : Conflicts: |No space left on device")
# What dpkg prints of a step, which says nothing of why it failed.
DPKG_STEP = re.compile(r"(Setting up|Unpacking|Preparing to unpack|Selecting|Processing triggers|Removing) ")
INST = re.compile(r"^Inst (\S+)(?: \[(\S+)\])? \((\S+) [^\n]*?\[([^\]\n]+)\]\)", re.MULTILINE)
REMV = re.compile(r"^Remv (\S+)(?: \[(\S+)\])?", re.MULTILINE)
GOES = re.compile(r"^(?:Remv|Purg) (\S+)", re.MULTILINE)
TOUCHED = re.compile(r"^(?:Inst|Conf|Remv) ([^\s:]+)", re.MULTILINE)
PRINTED_URI = re.compile(r"^'(?P<uri>[^']+)' (?P<file>\S+) (?P<size>\d+) ?(?P<hash>\S*)$", re.MULTILINE)
INTERRUPTED = "dpkg was interrupted"
LOCKED = re.compile(r"^E: (?:Unable to acquire|Unable to lock|Could not get lock)", re.MULTILINE)
DPKG_LOCKED = re.compile(r"^E: Unable to acquire the dpkg frontend lock \((.+?)\),", re.MULTILINE)
# DPkg::Lock::Timeout is for dpkg's lock alone: apt does not wait for those of its lists (`apt-get update`)
# and of its archives (downloads). Source: pkgAcquire::GetLock, apt-pkg/acquire.cc of apt 2.6.1. It says the
# same of a lock that it cannot open, on a disk that is full or read-only.
HELD = "Could not get lock"
DIRECTORY_LOCKED = re.compile(r"^E: Unable to lock directory (\S+)", re.MULTILINE)
LOCK_POLL_S = 1
FULL_DISK = re.compile(r"No space left on device|don't have enough free space")
# gpgv's and sqv's words for a signature that the keyring cannot verify.
UNVERIFIED = re.compile(r"NO_PUBKEY|EXPKEYSIG|REVKEYSIG|KEYEXPIRED|is not signed|returned an error code")
MOVED = re.compile(r"404 +Not Found|Hash Sum mismatch|File has unexpected size")


def lines_that_explain(output: str) -> str:
    """Return the lines of apt's output that say why it failed: errors, unmet dependencies, else its end."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    followed = zip(lines, [*lines[1:], ""])  # noqa: B905 - strict= is not in Python 3.9
    said = [line for line, after in followed if EXPLAINS.search(line) or last_of_script(line, after)]
    said = (said or lines)[-ERROR_LINES:]
    lock = DPKG_LOCKED.search(output)
    # apt 2.6.1 says it with -q only by chance: MajorChange in apt-pkg/contrib/progress.cc is never set first.
    if lock and (holder := lock_holder(Path(lock[1]))):
        said.append(f"It is held by {holder}.")
    return " ".join(said)


def last_of_script(line: str, after: str) -> bool:
    """Return whether a line is the last one of a package's script before dpkg says that it failed."""
    return after.startswith("dpkg: error processing ") and not DPKG_STEP.match(line)


def lock_holder(lock: Path) -> str:
    """Return "process 7 (apt)", who holds a lock of apt's or dpkg's; empty where nobody does any more."""
    try:
        with lock.open("rb") as file:
            kind, *_, number = FLOCK.unpack(fcntl.fcntl(file, fcntl.F_GETLK, FLOCK.pack(*WHOLE_FILE)))
    except OSError:
        return ""
    if kind == fcntl.F_UNLCK:
        return ""
    try:
        return f"process {number} ({process_name(Path('/proc', str(number)))})"
    except OSError:
        # It has just ended, or the kernel does not tell: 0 is a process outside of this container.
        return f"process {number}" if number > 0 else "a process that cannot be seen from here"


def freed(lock: Path, deadline_s: float) -> bool:
    """Wait until nobody holds a lock; return False from a moment of time.monotonic() on."""
    while time.monotonic() < deadline_s:
        if not lock_holder(lock):
            return True
        time.sleep(LOCK_POLL_S)
    return False


def output_of(completed: subprocess.CompletedProcess[str], doing: str) -> str:
    """Return a command's standard output. Raises PackageError where it failed: `doing` names the step."""
    if completed.returncode:
        output = completed.stdout + completed.stderr
        raise PackageError(f"{doing} failed: {lines_that_explain(output)}", output)
    return completed.stdout


def targets(wanted: dict[str, str]) -> list[str]:
    """Return what follows `apt-get install`: no packages means that what is broken is completed."""
    return arguments(wanted) or ["--fix-broken"]


@dataclass(frozen=True)
class Needs:
    """What a package provides, and what it depends on and recommends: one of each clause."""

    own: set[str]
    clauses: list[set[str]]
    wishes: list[set[str]]


@dataclass(frozen=True)
class Apt:
    """apt and dpkg. `options` are given to every apt command: a preview's private directories."""

    options: tuple[str, ...] = ()
    lock_timeout_s: int = field(default_factory=lambda: LOCK_TIMEOUT_S)

    def attempt(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Return a finished command, which may have failed. apt's have this object's options."""
        wait = ("-o", f"DPkg::Lock::Timeout={self.lock_timeout_s}")
        options = (*self.options, *wait) if command[0].startswith("apt") else ()
        words = [command[0], *options, *command[1:]]
        deadline_s = time.monotonic() + self.lock_timeout_s
        completed = attempt(words, ENVIRONMENT)
        if completed.returncode and INTERRUPTED in completed.stderr:
            # dpkg was killed: apt does nothing before dpkg has completed its own steps.
            self.recover()
            completed = attempt(words, ENVIRONMENT)
        while completed.returncode and HELD in completed.stderr:
            folder = DIRECTORY_LOCKED.search(completed.stderr)
            if not folder or not freed(Path(folder[1], "lock"), deadline_s):
                break
            completed = attempt(words, ENVIRONMENT)
        return completed

    def run(self, command: Sequence[str], doing: str) -> str:
        """Return standard output; `doing` names the step in the message of a failure."""
        return output_of(self.attempt(command), doing)

    def query(self) -> Packages:
        """Return all packages that dpkg knows."""
        return query()

    def required(self) -> list[str]:
        """Nothing: dpkg itself can hold packages."""
        return []

    def prepared(self) -> bool:
        """Return True: apt has no module streams."""
        return True

    def prepare(self) -> None:
        """Nothing to do."""

    def abandon(self) -> None:
        """Nothing to return to."""

    def refresh(self) -> None:
        """Read the lists of all repositories anew; one that cannot be read fails it."""
        command = [*APT_GET, *(word for option in UPDATE_OPTIONS for word in ("-o", option)), "update"]
        completed = self.attempt(command)
        if completed.returncode and UNVERIFIED.search(completed.stdout + completed.stderr):
            # The keyring is the pinned one, but its owner may have renewed it.
            signing_keys.renew(repositories.APT / "sources.list.d", repositories.APT / "keyrings")
            completed = self.attempt(command)
        try:
            output_of(completed, "Reading the package lists (apt-get update)")
        except PackageError as error:
            if repositories.only_others_fail(error.output, repositories.own_addresses()):
                raise OthersUnreadableError(str(error), "\n".join(error.output)) from error
            raise

    def offered(self, names: Iterable[str]) -> dict[str, list[str]]:
        """Versions of each package that the lists know, newest first."""
        listing = self.attempt(["apt-cache", "madison", *names]).stdout
        versions: dict[str, list[str]] = {}
        for line in listing.splitlines():
            columns = [column.strip() for column in line.split("|")]
            if len(columns) == 3 and "Sources" not in columns[2].split():
                versions.setdefault(columns[0], []).append(columns[1])
        return versions

    def offers(self, wanted: dict[str, str]) -> bool:
        """Return whether the lists on the node know all these versions already."""
        offered = self.offered(wanted)
        return all(
            name in offered and (not version or version in offered[name]) for name, version in wanted.items()
        )

    def simulate(self, wanted: dict[str, str]) -> Transaction:
        """Return what installing these versions would do; changes nothing and needs no lock."""
        return self.parse(self.simulation(wanted))

    def simulation(self, wanted: dict[str, str]) -> str:
        """Return what apt prints about a transaction that it only simulates."""
        command = [*APT_GET, *INSTALL, "--simulate", "-o", "Debug::NoLocking=true", *targets(wanted)]
        return self.run(command, "Simulating the installation")

    def parse(self, simulation: str) -> Transaction:
        """Return what a simulation of apt-get prints."""
        parts: dict[str, list[Change]] = {}
        for name, previous, version, architecture in INST.findall(simulation):
            change = Change(name.partition(":")[0], version, architecture, previous)
            kind = "install"
            if previous:
                kind = "downgrade" if self.older(version, previous) else "upgrade"
            parts.setdefault(kind, []).append(change)
        removed = ((name.partition(":")[0], version) for name, version in REMV.findall(simulation))
        return Transaction.of(parts, removed)

    def older(self, version: str, than: str) -> bool:
        """Return whether a version is older than another one, by dpkg's rules."""
        return not self.attempt(["dpkg", "--compare-versions", version, "lt", than]).returncode

    def install(self, wanted: dict[str, str]) -> None:
        """Download everything, then install it; a transaction that fails is undone."""
        names = targets(wanted)
        self.download(names)
        # Downloads take minutes, and each step may have waited for another apt's lock: what that one has done
        # meanwhile, or does while this one waits again, is not ours to undo.
        ours = set(TOUCHED.findall(self.simulation(wanted)))
        before = self.query()
        # Not --no-download, which does not see the packages of a repository in a directory (file:).
        command = [*APT_GET, *INSTALL, *names]
        completed = self.attempt(command)
        if completed.returncode:
            output = completed.stdout + completed.stderr
            raise PackageError(
                f"Installing the packages failed: {self.reason(output)} {self.undo(before, ours)}", output
            )

    def download(self, names: Sequence[str]) -> None:
        """Fetch the packages; read the lists again where the repository has moved on since."""
        command = [*APT_GET, *INSTALL, "--download-only", *names]
        completed = self.attempt(command)
        if completed.returncode and MOVED.search(completed.stderr):
            # A repository of somebody else that is down need not be the one that has moved on.
            with contextlib.suppress(OthersUnreadableError):
                self.refresh()
            completed = self.attempt(command)
        if completed.returncode:
            output = completed.stdout + completed.stderr
            when = "the lock is free" if LOCKED.search(output) else "the repository is well"
            raise PackageError(
                f"Downloading the packages failed: {self.reason(output)} Nothing was installed; "
                f"run again when {when}.",
                output,
            )

    def reason(self, output: str) -> str:
        """Return why apt failed, in a few sentences: the compiler's errors and a full disk first."""
        sentences = dkms.failures(output)
        if FULL_DISK.search(output):
            sentences.append("the disk is full (see `df -h / /var /boot` on the node)")
        return ". ".join([*sentences, lines_that_explain(output)]).rstrip(".") + "."

    def recover(self) -> None:
        """Complete what dpkg left half-way, as far as it can without other packages."""
        # It fails where a dependency had not been unpacked yet; the transaction that follows brings that one.
        self.attempt(["dpkg", *DPKG_OPTIONS, "--configure", "-a"])

    def hold(self, names: Sequence[str]) -> None:
        """Let apt leave these packages alone."""
        self.run(["apt-mark", "hold", *names], "Holding packages")

    def release(self, names: Sequence[str]) -> None:
        """Let apt move these packages again."""
        self.run(["apt-mark", "unhold", *names], "Releasing packages")

    def removable(self, names: Sequence[str], ours: Collection[str]) -> list[str]:
        """Return which of these packages can go without changing any other, or what others recommend."""

        def touched(some: Sequence[str]) -> set[str]:
            options = ["--simulate", "-o", "Debug::NoLocking=true"]
            output = self.run([*APT_GET, "remove", *REMOVE, *options, *some], "Simulating the removal")
            # One that is installed in the place of another is none of ours.
            return {*GOES.findall(output), *(f"+{found[0]}" for found in INST.findall(output))}

        listing = self.run(["dpkg-query", "-W", "-f", NEEDS_FORMAT], "Asking what packages need")
        kept = needed(parse_needs(listing), set(names), ours)
        return closed([name for name in names if name not in kept], touched)

    def remove(self, names: Sequence[str], purge: Sequence[str]) -> None:
        """Remove them in one transaction."""
        self.run([*APT_GET, "remove", *REMOVE, *names], "Removing the packages")
        known = self.query()
        if left := [name for name in purge if name in known and known[name].status == CONFIGURATION]:
            self.run([*APT_GET, "purge", *REMOVE, *left], "Removing the packages' configuration")

    def undo(self, before: Packages, ours: set[str]) -> str:
        """Return to the packages of before a transaction that failed; says what became of it.

        `ours` are the names that the transaction changes; what else has changed is somebody's work.
        A half-configured package would make every later run of apt fail. Nothing that worked is removed.
        """
        after = self.query()
        gone = [
            name
            for name, package in after.items()
            if package.base in ours
            and (package.installed or package.broken)
            and not (name in before and before[name].installed)
            # One of somebody else's that had been broken before is left for them to see.
            and (FAMILY.match(package.base) or not (name in before and before[name].broken))
        ]
        back = {
            name: package.version
            for name, package in before.items()
            if package.base in ours
            and package.installed
            and (name not in after or after[name].version != package.version or not after[name].installed)
        }
        if gone or back:
            self.revert(gone, back, purge=not any(name in before for name in gone))
        elif any(
            package.broken and not (name in before and before[name].broken) for name, package in after.items()
        ):
            self.recover()
        now = self.query()
        left = sorted(name for name, package in now.items() if package.broken)
        if left:
            return (
                f"It could not be undone: {', '.join(left)} are half-installed, and apt will complain of "
                "them. Put right what the reason names, then run again."
            )
        removed = [name for name in gone if not (name in now and now[name].installed)]
        stays = [name for name in gone if name not in removed]
        returned: list[str] = []
        lost: list[str] = []
        for name, version in back.items():
            there = name in now and now[name].installed and now[name].version == version
            (returned if there else lost).append(f"{name} {version}")
        parts = [
            f"{len(removed)} package(s) that it had brought were removed again" if removed else "",
            f"{', '.join(returned)} returned" if returned else "",
            f"could not remove {', '.join(stays)}" if stays else "",
            f"could not return to {', '.join(lost)}" if lost else "",
        ]
        told = ", ".join(filter(None, parts)) or "nothing stays"
        extent = " as far as possible" if stays or lost else ""
        return f"The transaction was undone{extent} ({told}), and apt works."

    def revert(self, gone: Sequence[str], back: dict[str, str], *, purge: bool) -> None:
        """Remove `gone` and return to the versions of `back`, if nothing else goes along."""
        command = [*APT_GET, *INSTALL, *(["--purge"] if purge else [])]
        for names in ([*(f"{name}-" for name in gone), *arguments(back)], [f"{name}-" for name in gone]):
            simulated = self.attempt([*command, "--simulate", *names])
            removed = {name for name, _ in self.parse(simulated.stdout).remove}
            if simulated.returncode or not removed <= {name.partition(":")[0] for name in gone}:
                # An older version may be offered no more; then at least what is half-way goes.
                continue
            completed = self.attempt([*command, *names])
            if not completed.returncode:
                break
        known = self.query()
        stuck = [name for name in gone if name in known and known[name].broken]
        if stuck:
            self.attempt(["dpkg", "--purge", "--force-remove-reinstreq", *stuck])
        if any(package.broken for package in known.values()):
            self.recover()

    def with_details(self, transaction: Transaction) -> Transaction:
        """Return the transaction with addresses, sizes and checksums."""
        if not transaction.changes:
            return transaction
        exact = [f"{change.name}:{change.architecture}={change.version}" for change in transaction.changes]
        exact = [name.replace(":all=", "=") for name in exact]
        found = {
            unquote(match["file"]): match
            for match in PRINTED_URI.finditer(
                self.run(
                    ["apt-get", "download", "--print-uris", *exact], "Asking for the packages' addresses"
                )
            )
        }

        def detailed(change: Change) -> Change:
            match = found.get(f"{change.name}_{change.version}_{change.architecture}.deb")
            if not match:
                return change
            kind, _, checksum = match["hash"].partition(":")
            size_bytes = parsed("apt-get download --print-uris", match["size"], int)
            sha256 = checksum if kind == "SHA256" else ""
            return replace(change, uri=match["uri"], size_bytes=size_bytes, sha256=sha256)

        download_bytes = sum(detailed(change).size_bytes for change in transaction.changes)
        return transaction.detailed(detailed, download_bytes, self.disk_bytes(exact, transaction))

    def disk_bytes(self, exact: Sequence[str], transaction: Transaction) -> int:
        """Return the bytes that the transaction takes on disk beyond what it frees, by the packages' word."""
        shown = self.run(["apt-cache", "show", *exact], "Asking for the packages' sizes")
        records = [record for record in map(stanza, shown.split("\n\n")) if "Package" in record]
        new = {
            (record["Package"], record.get("Version")): parsed(
                "apt-cache show", record.get("Installed-Size", "0"), int
            )
            for record in records
        }
        replaced = [name for name, _ in transaction.remove]
        replaced += [change.name for change in transaction.changes if change.previous]
        listing = ""
        if replaced:
            command = ["dpkg-query", "-W", "-f", "${Installed-Size}\\n", *replaced]
            listing = self.attempt(command).stdout
        return 1024 * (sum(new.values()) - sum(each_line("dpkg-query -W", listing, int)))


def parse_needs(listing: str) -> dict[str, Needs]:
    """Parse `dpkg-query -W -f NEEDS_FORMAT`: the needs of each package. Raises OutputError."""

    def row(line: str) -> tuple[str, str, Needs]:
        name, status, provides, before, depends, recommends = line.split("\t")
        clauses, wishes = (
            [names for clause in text.split(",") if (names := set(NAME.findall(clause)))]
            for text in (f"{before},{depends}", recommends)
        )
        return name, status, Needs({name, *NAME.findall(provides)}, clauses, wishes)

    rows = each_line("dpkg-query -W", listing, row)
    there = ("installed", "half-configured", "unpacked", "triggers-awaited", "triggers-pending")
    return {name: needs for name, status, needs in rows if status in there}


def needed(packages: Mapping[str, Needs], leaving: set[str], ours: Collection[str] = ()) -> set[str]:
    """Return what of `leaving` has to stay for packages that stay; versions are not looked at.

    For those that are not `ours` that is also what they recommend: their owners may use it.
    """
    kept: set[str] = set()
    while True:
        going = leaving - kept
        there = set[str]().union(*(one.own for name, one in packages.items() if name not in going))
        missed = [
            clause
            for name, one in packages.items()
            if name not in going
            for clause in [*one.clauses, *([] if name in ours else one.wishes)]
            if not clause & there
        ]
        more = {name for name in going & packages.keys() if any(packages[name].own & one for one in missed)}
        if not more:
            return kept
        kept |= more


def stanza(text: str) -> dict[str, str]:
    """Return the one-line fields of a control stanza."""
    fields = (line.partition(":") for line in text.splitlines() if line and not line[0].isspace())
    return {name: value.strip() for name, _, value in fields}
