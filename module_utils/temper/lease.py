"""A lease on the node: at most one controller works on it, and one that is gone does not block it for ever.

The node decides by its own clocks. Within a boot, age is measured by a clock that nobody sets
(CLOCK_BOOTTIME). A lease of a former boot is at least as old as this boot, and is taken to be just that: a
wrong wall clock, on the controller or here, never frees a lease too early. Times of day are kept for people
only.

Each holder has a fencing number, higher than all before it. Whoever comes with a lower one is refused, also
after the lease is free: a controller that slept through its expiry must not go on where another one has
worked since (M. Kleppmann, "How to do distributed locking", 2016).
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or __package__:
    from ansible.module_utils.temper import records
    from ansible.module_utils.temper.files import make_directories
else:
    # Beside the program by which a node pulls (pull/), which needs no Ansible.
    import records
    from files import make_directories


PATH = Path("/var/lib/temper/lease.json")
FIELDS = {
    **dict.fromkeys(("owner", "since", "heartbeat", "boot_id", "former"), str),
    **dict.fromkeys(("fencing", "attempt"), int),
    **dict.fromkeys(("ttl_s", "beat_s"), (int, float)),
}
REMEDY = (
    "nobody can tell who works on this node, and nothing was started; make sure that no roll-out does, then "
    "remove the file"
)
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
#: The file is locked for as long as it takes to read and to replace it.
LOCK_TIMEOUT_S = 10.0
LOCK_RETRY_S = 0.02
#: Locked by whoever changes the node. It ends with the boot, as what it is about does.
SETTINGS_LOCK = Path("/run/temper-settings")
#: How long a run waits for another one that is changing the node: as long as a transaction may take.
SETTINGS_TIMEOUT_S = 1800.0
#: The argument of modules; plugins/doc_fragments/temper_lease.py documents it.
ARGUMENT: dict[str, Any] = {
    "type": "dict",
    "options": {"owner": {"type": "str", "required": True}, "fencing": {"type": "int", "required": True}},
}


class LeaseError(Exception):
    """The lease is refused, or cannot be read or written; the message is a sentence for the operator."""


@dataclass(frozen=True)
class Now:
    """What the node's clocks say. `boottime_s` counts from the start of the boot `boot_id`."""

    boot_id: str
    boottime_s: float
    utc: str

    @classmethod
    def read(cls) -> Now:
        """Return this moment."""
        utc = datetime.now(timezone.utc).isoformat(timespec="seconds")  # noqa: UP017 - not in Python 3.9
        return cls(BOOT_ID.read_text(encoding="utf-8").strip(), time.clock_gettime(time.CLOCK_BOOTTIME), utc)


@dataclass(frozen=True)
class Lease:
    """What the node knows. `owner` is empty where nobody holds it.

    `fencing` is the highest number that any holder had; it outlives them. `ttl_s` is how long the lease lasts
    after a heartbeat, `since` and `heartbeat` are times of day (UTC), and `beat_s` is the heartbeat by the
    clock of `boot_id`. `attempt` counts how often its owner has come to this node anew. Where nobody holds
    it, `former` is who did, in that attempt.
    """

    owner: str = ""
    fencing: int = 0
    ttl_s: float = 0.0
    since: str = ""
    heartbeat: str = ""
    boot_id: str = ""
    beat_s: float = 0.0
    attempt: int = 0
    former: str = ""

    def age_s(self, now: Now) -> float:
        """Return seconds since the last heartbeat; for one of a former boot, the least that it can be."""
        return now.boottime_s - self.beat_s if now.boot_id == self.boot_id else now.boottime_s

    def expired(self, now: Now) -> bool:
        """Return whether another one may take it."""
        return self.age_s(now) > self.ttl_s

    @property
    def given_back(self) -> Lease:
        """The same when nobody holds it: an attempt that was given up must not take it after a later one."""
        return Lease(fencing=self.fencing, attempt=self.attempt, former=self.owner)

    def holder(self, now: Now) -> str:
        """Return who holds it, since when, and for how long to come."""
        left_s = self.ttl_s - self.age_s(now)
        ends = f"expires in {left_s:.0f} s without a heartbeat" if left_s >= 0 else "has expired"
        beat = f"last heartbeat {self.heartbeat}"
        return f"{self.owner} (number {self.fencing}) since {self.since}, {beat}; it {ends}"


def read(path: Path = PATH) -> Lease:
    """Return the lease as it is.

    Raises LeaseError where the file is damaged: then nobody knows who works here.
    """
    try:
        lease = Lease(**records.load(path, FIELDS, remedy=REMEDY)[1])
        return replace(lease, ttl_s=float(lease.ttl_s), beat_s=float(lease.beat_s))
    except records.RecordError as error:
        raise LeaseError(str(error)) from error
    except (TypeError, OverflowError) as error:
        raise LeaseError(str(records.damaged(path, error, REMEDY))) from error


def acquire(
    owner: str,
    ttl_s: float,
    fencing: int | None = None,
    *,
    attempt: int = 0,
    path: Path = PATH,
    check: bool = False,
) -> Lease:
    """Take the lease, or give a sign of life where `owner` holds it; returns it as it is then.

    Without `fencing` it must be free, expired or its own, and gets the next number, so that an owner who has
    lost its number goes on under a new one, unless a later `attempt` of it is here, or was here last. With
    `fencing`, the same owner and number is a heartbeat, and a higher number a new lease. `check` writes
    nothing.

    Raises:
        LeaseError: somebody else holds it, or has held it since with a higher number.
    """
    if not owner or not 0 < ttl_s < math.inf:  # nor is what is no number
        raise LeaseError(
            f"A lease needs an owner and a time to live above 0 s, found {owner!r} and {ttl_s:g} s."
        )
    with _locked(path, check=check):
        now, held = Now.read(), read(path)
        if fencing is not None and fencing < held.fencing:
            raise LeaseError(
                f"Fencing number {fencing} of {owner} is out of date: number {held.fencing} has worked on "
                f"this node since ({held.holder(now) if held.owner else 'it is free now'}). End this run, "
                "and resume it anew."
            )
        if held.owner and held.owner != owner and not held.expired(now):
            raise LeaseError(
                f"This node is held by {held.holder(now)}. Wait until it is through, or end it "
                f"(temper rollout abort, temper fleet abort RUN)."
            )
        same = held.owner == owner and fencing == held.fencing
        # Each attempt has a number of its own: who has the number of now is the attempt of now.
        if owner in (held.owner, held.former) and attempt < held.attempt and not same:
            does = "works" if held.owner else "has worked"
            raise LeaseError(
                f"Attempt {attempt} of {owner} comes too late: attempt {held.attempt} {does} on this node. "
                f"Nothing is to be done."
            )
        if held.owner and held.owner != owner and fencing == held.fencing:
            raise LeaseError(
                f"Fencing number {fencing} belongs to {held.owner}, whose lease has expired: {owner} needs "
                f"a higher one."
            )
        if not held.owner and fencing is not None and fencing == held.fencing:
            raise LeaseError(
                f"The lease with number {fencing} was given back: {owner} needs a new one to go on with "
                f"this node."
            )
        number = fencing if fencing is not None else held.fencing + 1
        since = held.since if same else now.utc
        of = held.attempt if same else attempt
        taken = Lease(owner, number, ttl_s, since, now.utc, now.boot_id, now.boottime_s, of)
        if not check:
            _write(path, taken)
        return taken


def release(owner: str, fencing: int, *, path: Path = PATH, check: bool = False) -> bool:
    """Give the lease back; returns whether it was held. The fencing number stays on the node.

    Raises:
        LeaseError: somebody else holds it.
    """
    with _locked(path, check=check):
        now, held = Now.read(), read(path)
        if not held.owner:
            return False
        if (held.owner, held.fencing) != (owner, fencing):
            raise LeaseError(
                f"{owner} (number {fencing}) cannot give back a lease that is not its own: this node is "
                f"held by "
                f"{held.holder(now)}."
            )
        if not check:
            _write(path, held.given_back)
        return True


def release_attempt(owner: str, attempt: int, *, path: Path = PATH, check: bool = False) -> bool:
    """Give back what `owner` holds in this attempt, or in one before; returns whether it held anything.

    A later attempt keeps it. A step of an attempt that was cut off may still be at work here: its lease is
    kept for as long as that, and it gets none any more.

    Raises:
        LeaseError: somebody else holds it, or the step does not come to its end.
    """
    if read(path).owner != owner:
        return False
    with _locked(SETTINGS_LOCK, check=check, patience_s=SETTINGS_TIMEOUT_S):
        # Whoever was waited for may have been a later attempt.
        if (held := read(path)).owner != owner or held.attempt > attempt:
            return False
        if held.attempt < attempt:
            held = acquire(owner, held.ttl_s, attempt=attempt, path=path, check=check)
        return release(owner, held.fencing, path=path, check=check)


@contextlib.contextmanager
def working(owner: str = "", fencing: int = 0, *, check: bool = False) -> Iterator[None]:
    """Keep other runs from changing the node while this one does; with `owner`, only under its lease.

    A run that is given up by its controller may still be at work here: the next waits until it is through.

    Raises:
        LeaseError: the lease is somebody else's by now, or the other run does not come to its end.
    """
    with _locked(SETTINGS_LOCK, check=check, patience_s=SETTINGS_TIMEOUT_S):
        held = read(PATH) if owner else Lease()
        if owner and (held.owner, held.fencing) != (owner, fencing):
            raise LeaseError(
                f"Fencing number {fencing} of {owner} is out of date: number {held.fencing} has worked on "
                f"this node since. Nothing was changed; the later run goes on."
            )
        yield


def _write(path: Path, lease: Lease) -> None:
    try:
        # Nodes may pull by the program of an earlier version, which refuses a field that it does not know.
        records.store(path, asdict(lease), 0o644, version=None)
    except OSError as error:
        raise LeaseError(f"The lease {path} cannot be written ({error}), so nothing was started.") from error


@contextlib.contextmanager
def _locked(path: Path, *, check: bool, patience_s: float = LOCK_TIMEOUT_S) -> Iterator[None]:
    """Keep other processes from the lease. In check mode nothing is written, so nothing is locked."""
    if check:
        yield
        return
    lock = path.with_name(f"{path.name}.lock")
    try:
        make_directories(lock.parent)
        handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise LeaseError(
            f"{lock} cannot be opened ({error}), so nothing was started on this node."
        ) from error
    try:
        deadline = time.monotonic() + patience_s
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise LeaseError(
                        f"Another process has had {lock} locked for {patience_s:g} s: `fuser {lock}` "
                        f"names it."
                    ) from None
                time.sleep(LOCK_RETRY_S)
        yield
    finally:
        os.close(handle)
