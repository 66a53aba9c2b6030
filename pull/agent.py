"""One run: look who works here, fetch, verify, compare, repair, say the result, hand that back."""

from __future__ import annotations

import contextlib
import shutil
import traceback
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

from pull.configuration import Configuration
from pull.delivery import DeliveryError, deliver
from pull.playbooks import PLAY_TIMEOUT_S, REPAIRABLE, PlaybookError, Playbooks
from pull.repository import OBJECT, Accepted, RefusedError, Repository, RepositoryError, Verified
from pull.result import CHECKED, FAILED, HELD, MOST_CONTROLS, NOT_FETCHED, REFUSED, Result, short, verdict
from pull.shared import files, lease, records

STATE = Path("/var/lib/temper/pull")
#: What outlives a run: the last commit that was verified, with the tags; the clone; the newest result, and
#: why it was not taken.
ACCEPTED, CLONE, RESULT, UNDELIVERED = "accepted.json", "repository.git", "result.json", "undelivered"
#: What does not: this program's own, and what its former versions have left.
OWN = ("checkout", "scratch", f"{CLONE}.*", f".{RESULT}.*", f".{UNDELIVERED}.*")
FORMER = ("commits", "current", ".current.new", "home", "check-*", "repair-*")
#: As long as a repair can take, and some.
LEASE_S = PLAY_TIMEOUT_S + 600.0
ACCEPTED_VERSION = 1
FIELDS = {"commit": str, "tags": {str: str}, "schema_version": int}
REMEDY = (
    "nobody can tell what this node has applied; make sure what it is to have, then remove the file: the "
    "next run takes what is signed"
)


class StoppedError(Exception):
    """Somebody ends the program, as systemd does after its time; the message is a sentence."""


#: The code of what keeps the program from its work.
CODES: dict[type[Exception], str] = {
    RepositoryError: "repository",
    PlaybookError: "ansible",
    records.RecordError: "state",
    lease.LeaseError: "state",
    OSError: "disk",
    StoppedError: "stopped",
}


class Agent:
    """A run of the program on one node. systemd starts no second one beside it."""

    def __init__(
        self, configuration: Configuration, state: Path = STATE, lease_path: Path = lease.PATH
    ) -> None:
        self.wanted = configuration
        self.state = state
        self.lease_path = lease_path
        self.owner = f"pull on {configuration.node}"
        self.repository = Repository(state / CLONE, configuration)

    def run(self) -> tuple[Result, str]:
        """Do all of it; return the result, and why it was not kept or not handed back, empty where it was."""
        started = Result(self.wanted.node, FAILED, stamp(), interval_s=self.wanted.interval_s)
        with contextlib.suppress(OSError, UnicodeDecodeError):
            self.state.mkdir(mode=0o700, parents=True, exist_ok=True)
            problem = (self.state / UNDELIVERED).read_text(encoding="utf-8")
            started = replace(started, delivery_problem=short(problem))
        result = replace(self.outcome(started), finished_at=stamp())
        problems = []
        try:
            files.replace_file(self.state / RESULT, result.text().encode(), 0o644)
        except OSError as error:
            problems.append(f"The result cannot be written on this node: {error}.")
            reason = short(f"{problems[0]} {result.reason}")
            # That a commit was refused matters more.
            refused = result.state == REFUSED
            result = replace(result, reason=reason)
            result = result if refused else replace(result, state=FAILED, code="disk")
        try:
            deliver(result.text(), self.wanted)
            with contextlib.suppress(OSError):  # a disk that takes nothing is told in the result
                (self.state / UNDELIVERED).unlink(missing_ok=True)
        except DeliveryError as error:
            problems.append(f"{error} The next run tries again, with the result that is the newest then.")
            with contextlib.suppress(OSError):
                files.replace_file(self.state / UNDELIVERED, short(str(error)).encode(), 0o600)
        return result, " ".join(problems)

    def outcome(self, known: Result) -> Result:
        """Return the outcome of the run: every failure is a result."""
        try:
            if holder := self.holder():
                return replace(known, state=HELD, code="lease", reason=holder)
            scratch = self.tidy()
            accepted = accepted_in(self.state / ACCEPTED)
            known = replace(known, commit=accepted.commit)
            found, code, reason = self.verified(accepted)
            self.repository.check_out(found.commit, self.state / "checkout")
            # Noted before anything uses it.
            noted = {"commit": found.commit, "schema_version": ACCEPTED_VERSION, "tags": dict(found.tags)}
            records.store(self.state / ACCEPTED, noted, version=None)
            known = replace(known, commit=found.commit, commit_time=found.time, ref=found.ref)
            known = replace(known, signer=found.signer, code=code, reason=reason)
            return self.compared(known, Playbooks(self.state / "checkout", scratch, self.wanted))
        except RefusedError as error:
            return replace(known, state=REFUSED, code=error.code, reason=short(str(error)))
        except tuple(CODES) as error:
            code = next(code for kind, code in CODES.items() if isinstance(error, kind))
            where = "A file cannot be read or written: " if code == "disk" else ""
            return replace(known, code=code, reason=short(f"{where}{error}"))
        except Exception as error:  # noqa: BLE001 - a node without a result looks silent
            traceback.print_exc()
            said = "The program has a fault, which the node's journal has in full (journalctl -u temper-pull)"
            return replace(known, code="fault", reason=short(f"{said}: {error!r}."))

    def holder(self) -> str:
        """Return who else works on this node; empty where nobody does. Raises LeaseError."""
        held, now = lease.read(self.lease_path), lease.Now.read()
        if held.owner == self.owner:
            # Of a run that was killed in a repair: no other one is under way.
            lease.release(held.owner, held.fencing, path=self.lease_path)
        elif held.owner and not held.expired(now):
            return f"This node is held by {held.holder(now)}: nothing was done."
        return ""

    def tidy(self) -> Path:
        """Remove what does not outlive a run; return a folder for what this one leaves. Raises OSError."""
        for path in [path for pattern in (*OWN, *FORMER) for path in self.state.glob(pattern)]:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        scratch = self.state / "scratch"
        scratch.mkdir(mode=0o700)
        return scratch

    def verified(self, accepted: Accepted) -> tuple[Verified, str, str]:
        """Return what counts from now on; a code and why, where nothing newer could be fetched, or a remark.

        Where the repository cannot be reached, what was accepted last is judged by the keyring once more.
        """
        now = datetime.now(timezone.utc)
        try:
            offer = self.repository.offer()
            self.repository.bring(offer)
        except RepositoryError as error:
            if not accepted.commit or not self.repository.folder.exists():
                raise
            reason = short(f"Nothing newer could be fetched: {error}")
            return self.repository.again(accepted, now), NOT_FETCHED, reason
        found = self.repository.verify(offer, accepted, now)
        return found, "", short(found.remark)

    def compared(self, known: Result, playbooks: Playbooks) -> Result:
        """Compare the node with its plan, and repair what may be repaired."""
        (controls, unread), problem = playbooks.check(), ""
        before = {one.id for one in controls if one.state == "fail"}
        failing = {name.partition("/")[0] for name in before}
        if roles := tuple(role for role in REPAIRABLE if role in self.wanted.repair and role in failing):
            with self.leased() as refusal:
                problem = refusal or playbooks.repair(roles)
            controls, unread = playbooks.check()
        return replace(
            known,
            state=CHECKED,
            verdict=verdict(controls, unread),
            reason=" ".join(filter(None, (known.reason, short(unread)))),
            repaired=() if unread else tuple(sorted(before - {one.id for one in controls})),
            repair_problem=short(problem),
            left=controls[:MOST_CONTROLS],
            left_count=len(controls),
        )

    @contextlib.contextmanager
    def leased(self) -> Iterator[str]:
        """Hold the node for a repair; gives why it cannot be held, empty where it is."""
        try:
            taken = lease.acquire(self.owner, LEASE_S, path=self.lease_path)
        except lease.LeaseError as error:
            yield f"Nothing was repaired: {error}"
            return
        try:
            yield ""
        finally:
            with contextlib.suppress(lease.LeaseError):  # somebody took it after it had expired
                lease.release(self.owner, taken.fencing, path=self.lease_path)


def accepted_in(path: Path) -> Accepted:
    """Return what was accepted last. Raises RecordError: without it an older commit could come in."""
    if not path.exists():
        return Accepted()
    fields = records.load(path, FIELDS, remedy=REMEDY)[1]
    if (version := fields.get("schema_version", ACCEPTED_VERSION)) != ACCEPTED_VERSION:
        raise records.RecordError(
            f"{path} is of version {version!r}, and this program reads version {ACCEPTED_VERSION}: "
            "playbooks/tune.yml --tags pull brings the program of the newer Temper that wrote it."
        )
    found = Accepted(fields.get("commit", ""), fields.get("tags", {}))
    if not all(map(OBJECT.fullmatch, (found.commit, *found.tags.values()))):
        raise records.damaged(path, "a name of an object has another form", REMEDY)
    return found


def stamp() -> str:
    """Return this moment in UTC."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
