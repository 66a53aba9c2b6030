"""One run: look who works here, fetch, verify, compare, repair, say what came of it, hand that back."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import traceback
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from pull import delivery, files
from pull.checkout import check_out, folder_of, switch
from pull.keyring import KeyringError
from pull.playbooks import PLAY_TIMEOUT_S, REPAIRABLE, PlaybookError, Playbooks
from pull.repository import Accepted, Candidate, RefusedError, Repository, RepositoryError, Verified
from pull.result import CHECKED, FAILED, HELD, MOST_CONTROLS, NOT_FETCHED, REFUSED, Result, short, verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ansible.module_utils import lease

    from pull.configuration import Configuration
    from pull.playbooks import Checked
else:
    try:
        # Installed beside this package: the node's own Python has no Ansible.
        import lease
    except ImportError:
        from ansible.module_utils import lease

STATE = Path("/var/lib/temper/pull")
#: As long as a repair can take, and some.
LEASE_S = PLAY_TIMEOUT_S + 600.0
#: Of accepted.json; a record without one is of the first version.
ACCEPTED_VERSION = 1
COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
TAG = re.compile(r"[^\s\x00-\x1f]+")


class LockedError(Exception):
    """Another run of this program is under way; the message is a sentence."""


class StoppedError(Exception):
    """Somebody ends the program, as systemd does after its time; the message is a sentence."""


class StateError(Exception):
    """What the node remembers cannot be read or written; the message is a sentence."""


@dataclass(frozen=True)
class Paths:
    """The files of the program, all below one folder that only root can read."""

    state: Path = STATE
    lease: Path = lease.PATH if not TYPE_CHECKING else Path("/var/lib/temper/lease.json")

    @property
    def accepted(self) -> Path:
        """The last commit that was verified, and the tags: what no later run goes behind."""
        return self.state / "accepted.json"

    @property
    def result(self) -> Path:
        """The newest result."""
        return self.state / "result.json"

    @property
    def undelivered(self) -> Path:
        """Why the newest result was not taken; absent where it was."""
        return self.state / "undelivered"

    @property
    def repository(self) -> Path:
        """The bare repository."""
        return self.state / "repository.git"

    @property
    def commits(self) -> Path:
        """The checkouts, each in a folder named after its commit."""
        return self.state / "commits"

    @property
    def current(self) -> Path:
        """A link to the checkout that counts."""
        return self.state / "current"


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other runs out; the kernel ends a lock with its process. Raises LockedError, OSError.

    Nothing is written for it: that the disk takes nothing is for the result to say.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LockedError("Another run is under way on this node; this one has done nothing.") from None
        yield
    finally:
        os.close(handle)


class Agent:
    """A run of the program on one node."""

    def __init__(self, configuration: Configuration, paths: Paths) -> None:
        self.wanted = configuration
        self.paths = paths
        self.repository = Repository(paths.repository, configuration)

    def run(self) -> tuple[Result, str]:
        """Do all of it; returns the result, and why it was not handed back (empty where it was).

        Raises:
            LockedError: another run is under way.
            OSError: the result cannot be written on the node itself. It was handed back all the same, if it
                could be, and says so.
        """
        with locked(self.paths.state):
            started = Result(
                self.wanted.node,
                FAILED,
                stamp(),
                interval_s=self.wanted.interval_s,
                delivery_problem=self.undelivered(),
            )
            result = replace(self.outcome(started), finished_at=stamp())
            unwritten: OSError | None = None
            try:
                files.replace(self.paths.result, result.text(), 0o644)
            except OSError as error:
                unwritten = error
                result = unkept(result, error)
            problem = self.hand_back(result)
            if unwritten:
                said = f"{unwritten}; {problem.rstrip('.')}" if problem else str(unwritten)
                raise OSError(said) from unwritten
            if problem:
                problem += " The next run tries again, with the result that is the newest then."
            return result, problem

    def hand_back(self, result: Result) -> str:
        """Deliver a result; returns why it was not taken, which is noted for the next run, if it can be."""
        try:
            delivery.deliver(result.text(), self.wanted)
        except delivery.DeliveryError as error:
            problem = short(str(error))
            with contextlib.suppress(OSError):  # the caller tells it, too
                files.replace(self.paths.undelivered, problem)
            return problem
        with contextlib.suppress(OSError):  # a disk that takes nothing is told in the result
            self.paths.undelivered.unlink(missing_ok=True)
        return ""

    def undelivered(self) -> str:
        """Why the result before was not handed back; empty where it was."""
        try:
            return short(self.paths.undelivered.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError):
            return ""

    def outcome(self, started: Result) -> Result:
        """What the run came to: every failure is a result."""
        known = started
        try:
            if holder := self.holder():
                return replace(known, state=HELD, code="lease", reason=holder)
            accepted = self.accepted()
            known = replace(known, commit=accepted.commit)
            verified, code, reason = self.verified(accepted)
            checkout = self.applied(verified)
            known = replace(
                known,
                commit=verified.commit,
                commit_time=verified.time,
                ref=verified.ref,
                signer=verified.signer,
                code=code,
                reason=reason,
            )
            return self.compared(known, Playbooks(checkout, self.paths.state, self.wanted))
        except RefusedError as error:
            return replace(known, state=REFUSED, code=error.code, reason=short(str(error)))
        except KeyringError as error:
            return replace(known, state=REFUSED, code="keyring", reason=short(str(error)))
        except RepositoryError as error:
            return replace(known, code="repository", reason=short(str(error)))
        except PlaybookError as error:
            return replace(known, code="ansible", reason=short(str(error)))
        except (StateError, lease.LeaseError) as error:
            return replace(known, code="state", reason=short(str(error)))
        except OSError as error:
            return replace(known, code="disk", reason=short(f"A file cannot be read or written: {error}."))
        except StoppedError as error:
            return replace(known, code="stopped", reason=short(str(error)))
        except Exception as error:  # noqa: BLE001 - a node without a result looks silent
            traceback.print_exc()
            said = "The program has a fault, which the node's journal has in full (journalctl -u temper-pull)"
            return replace(known, code="fault", reason=short(f"{said}: {error!r}."))

    def holder(self) -> str:
        """Who else works on this node; empty where nobody does. Raises LeaseError."""
        held, now = lease.read(self.paths.lease), lease.Now.read()
        if held.owner == self.owner:
            # Of a run that was killed in a repair: no other one is under way.
            lease.release(held.owner, held.fencing, path=self.paths.lease)
            return ""
        if not held.owner or held.expired(now):
            return ""
        return f"This node is held by {held.holder(now)}: nothing was done."

    @property
    def owner(self) -> str:
        """Under which name the node's lease is taken."""
        return f"pull on {self.wanted.node}"

    def accepted(self) -> Accepted:
        """What was accepted last.

        Raises:
            StateError: the record is damaged: without it an older commit could come in.
        """
        path = self.paths.accepted
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            if (version := values.get("schema_version", ACCEPTED_VERSION)) != ACCEPTED_VERSION:
                raise StateError(
                    f"{path} is of version {version!r}, and this program reads version {ACCEPTED_VERSION}: "
                    "playbooks/tune.yml --tags pull brings the program of the newer Temper that wrote it."
                )
            found = Accepted(values["commit"], tuple((name, tag) for name, tag in values["tags"].items()))
            ids = [found.commit, *(tag for _, tag in found.tags)]
            if not all(COMMIT.fullmatch(one) for one in ids):
                raise ValueError("a name of an object has another form")
        except FileNotFoundError:
            return Accepted()
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise StateError(
                f"{path} is damaged ({error}), so nobody can tell what this node has applied. Make sure what "
                "it is to have, then remove the file: the next run takes what is signed."
            ) from error
        return found

    def verified(self, accepted: Accepted) -> tuple[Verified, str, str]:
        """What counts from now on; a code and why, where nothing newer could be fetched, or else a remark.

        Where the repository cannot be reached, what was accepted last is judged by the keyring once more.
        """
        now = datetime.now(timezone.utc)
        try:
            problem = self.repository.fetch()
            candidate = self.repository.candidate()
        except RepositoryError as error:
            if not accepted.commit or not folder_of(self.paths.commits, accepted.commit).is_dir():
                raise
            return self.again(accepted, now), NOT_FETCHED, short(f"Nothing newer could be fetched: {error}")
        found = self.repository.verify(candidate, accepted, now)
        return found, "", short(" ".join(filter(None, (problem, found.remark))))

    def again(self, accepted: Accepted, now: datetime) -> Verified:
        """The commit that was accepted last, judged once more; with tags, by one of those that name it.

        Who may push can have given it other ones since, or before. Raises as `Repository.verify` does.
        """
        if not self.wanted.tags:
            return self.repository.verify(Candidate(accepted.commit, self.wanted.branch), accepted, now)
        problem: Exception = RepositoryError("No tag names the commit that was accepted last.")
        for name, tag in accepted.tags:
            try:
                commit = self.repository.git("rev-parse", "--verify", f"{tag}^{{commit}}").strip()
                if commit == accepted.commit:
                    return self.repository.verify(Candidate(commit, name, tag), accepted, now)
            except (RefusedError, RepositoryError) as error:
                problem = error
        raise problem

    def applied(self, verified: Verified) -> Path:
        """The checkout of a commit that is verified; noted before anything uses it."""
        checkout = check_out(self.repository, verified.commit, self.paths.commits)
        known = {
            "commit": verified.commit,
            "schema_version": ACCEPTED_VERSION,
            "tags": dict(verified.tags),
        }
        text = json.dumps(known, indent=1, sort_keys=True)
        if not self.paths.accepted.exists() or self.paths.accepted.read_text(encoding="utf-8") != text:
            files.replace(self.paths.accepted, text)
        switch(self.paths.current, checkout)
        return checkout

    def compared(self, known: Result, playbooks: Playbooks) -> Result:
        """Compare the node with its plan, and repair what may be repaired."""
        playbooks.forget()
        playbooks.require()
        found, problem = playbooks.check(), ""
        before = {one.id for one in found.controls if one.state == "fail"}
        if roles := self.to_repair(found):
            with self.leased() as refusal:
                problem = refusal or playbooks.repair(roles)
            found = playbooks.check()
        now = {one.id for one in found.controls}
        return replace(
            known,
            state=CHECKED,
            verdict=verdict(found.controls, found.unread),
            reason=" ".join(filter(None, (known.reason, found.unread and short(found.unread)))),
            repaired=tuple(sorted(before - now)) if not found.unread else (),
            repair_problem=short(problem),
            left=found.controls[:MOST_CONTROLS],
            left_count=len(found.controls),
        )

    def to_repair(self, found: Checked) -> tuple[str, ...]:
        """The roles that may repair, and have something to repair."""
        failing = {one.id.partition("/")[0] for one in found.controls if one.state == "fail"}
        return tuple(role for role in REPAIRABLE if role in self.wanted.repair and role in failing)

    @contextlib.contextmanager
    def leased(self) -> Iterator[str]:
        """Hold the node for a repair; gives why it cannot be held, empty where it is."""
        try:
            taken = lease.acquire(self.owner, LEASE_S, path=self.paths.lease)
        except lease.LeaseError as error:
            yield f"Nothing was repaired: {error}"
            return
        try:
            yield ""
        finally:
            with contextlib.suppress(lease.LeaseError):  # somebody took it after it had expired
                lease.release(self.owner, taken.fencing, path=self.paths.lease)


def unkept(result: Result, error: OSError) -> Result:
    """A result that the node's own disk did not take. That a commit was refused matters more."""
    reason = short(f"The result cannot be written on this node: {error}. {result.reason}")
    if result.state == REFUSED:
        return replace(result, reason=reason)
    return replace(result, state=FAILED, code="disk", reason=reason)


def stamp() -> str:
    """This moment in UTC."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
