"""Burn-in: the same tests again and again for hours, stopped by the first fault, resumed when interrupted.

What is kept of all rounds is what a sceptic asks for: the worst state, every finding once, and each number at
its lowest.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from validation.findings.catalogue import finding
from validation.model import checksums
from validation.model.contract import (
    ContractError,
    Finding,
    Measurement,
    State,
    TestResult,
    dumps,
    loads,
    worst,
)
from validation.model.printable import number_of
from validation.model.quantities import is_rate
from validation.processes.files import write_atomically

#: An interruption is over after this, and what was found before it too old.
MOST_PAUSE_S = 24 * 3600


@dataclass(frozen=True)
class Rounds:
    """What a burn-in has found so far; `elapsed_s` without the time in which it was interrupted."""

    schema_version: int
    node: str
    plan: str
    elapsed_s: float = 0.0
    count: int = 0
    tests: tuple[TestResult, ...] = ()
    #: Of which driver, torch, GPUs and tests; when they were saved (seconds since 1970), and in which boot.
    kind: str = ""
    saved_at: float = 0.0
    boot: str = ""

    @property
    def ended_early(self) -> bool:
        """Whether going on makes no sense: something failed, or nothing can run here."""
        states = {test.state for test in self.tests}
        return State.FAIL in states or not states - {State.NOT_RUN}

    def plus(self, results: list[TestResult], elapsed_s: float) -> Rounds:
        """Return the same with one round more."""
        before = {test.id: test for test in self.tests}
        merged = tuple(merge(before.get(test.id), test) for test in results)
        pool = tuple(test for test in self.tests if test.id not in {one.id for one in results})
        return dataclasses.replace(
            self, elapsed_s=self.elapsed_s + elapsed_s, count=self.count + 1, tests=(*pool, *merged)
        )


def price(hours: float, power_limits_w: Sequence[float | None], state: Path | None) -> str:
    """Say before it starts what a plan costs that goes on for hours, in time and in energy of its GPUs."""
    known = [watts for watts in power_limits_w if watts]
    energy = "what the GPUs may draw is not known"
    if known and len(known) == len(power_limits_w):
        kilowatts = sum(known) / 1000
        energy = (
            f"the GPUs may draw {kilowatts:.3g} kW, {hours * kilowatts:.3g} kWh in all, and the rest of the "
            "node comes on top"
        )
    kept = f"goes on with --state {state}" if state else "begins anew, without --state FILE"
    return (
        f"It takes {hours:g} h, and the rest of the round that it is in; {energy}. The first fault ends it. "
        f"Interrupted, it {kept}."
    )


def merge(before: TestResult | None, now: TestResult) -> TestResult:
    """Return one result from two rounds of a test."""
    if before is None:
        return now
    worse = max((before, now), key=lambda test: test.state.severity)
    # By its state, too: what was degraded and then failed is to be read as both.
    seen = {(finding.code, finding.device, finding.state) for finding in before.findings}
    new = tuple(one for one in now.findings if (one.code, one.device, one.state) not in seen)
    lowest: dict[object, Measurement] = {}
    for one in (*before.measurements, *now.measurements):
        key = one.name, one.device, one.taken
        other = lowest.get(key)
        if other is None or (is_rate(one) and one.value < other.value):
            lowest[key] = one
    changed = tuple(_other_bits(before, now))
    return dataclasses.replace(
        now,
        state=State.FAIL if changed else worse.state,
        reason=worse.reason,
        duration_s=round(before.duration_s + now.duration_s, 3),
        measurements=tuple(lowest.values()),
        findings=before.findings + new + changed,
        digests=now.digests or before.digests,
    )


def _other_bits(before: TestResult, now: TestResult) -> Iterator[Finding]:
    """Yield what one GPU computed in two rounds of one run, and not the same."""
    was = {(one.name, one.device, one.taken): one for one in before.digests}
    for digest in now.digests:
        other = was.get((digest.name, digest.device, digest.taken))
        if other and other.value != digest.value:
            yield finding(
                "not-repeatable",
                "round",
                gpu=digest.device,
                product=checksums.product(digest),
                before=other.value,
                after=digest.value,
            )


@contextlib.contextmanager
def locked(path: Path | None) -> Iterator[None]:
    """Keep a second run from this file while one uses it: two that measure at once measure each other.

    Raises OSError.
    """
    if path is None:
        yield
        return
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = path.with_name(f".{path.name}.lock")
    while True:
        handle = _opened(lock)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise OSError(f"{path} is used by another run on this machine; wait for its end") from error
            if not _is_at(handle, lock):
                continue  # the run before removed it between our two steps
            try:
                yield
            finally:
                lock.unlink(missing_ok=True)
            return
        finally:
            os.close(handle)


def _opened(lock: Path) -> int:
    """Open a lock that no other account may hold: an account that may read a file may lock it for ever.

    Raises OSError.
    """
    for _ in range(2):
        try:
            handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
        else:
            found = os.fstat(handle)
            if found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) & 0o077 == 0:
                return handle
            os.close(handle)
        # Somebody else's, or of an earlier version, which others could read: he may hold it already.
        lock.unlink(missing_ok=True)
    raise OSError(f"{lock}: expected a file of this account alone; somebody makes another one there")


def _is_at(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.lstat())
    except FileNotFoundError:
        return False


def load(path: Path | None, fresh: Rounds) -> tuple[Rounds, str]:
    """Return what an interrupted burn-in of the same kind left, else `fresh`, and a sentence that says which.

    Rounds of another driver, of other GPUs or of last month prove nothing about this node as it is now. Hours
    that are not taken up are said to be lost. Raises OSError.
    """
    if path is None or not path.exists():
        return fresh, ""
    try:
        found = loads(Rounds, path.read_bytes())
    except ContractError:
        return fresh, f"It begins anew: {path} is damaged."  # which costs the rounds, not the run
    kept = f"{number_of(found.count, 'round')} of {found.elapsed_s / 3600:.3g} h that {path} keeps"
    same = (found.schema_version, found.node, found.plan, found.kind) == (
        fresh.schema_version,
        fresh.node,
        fresh.plan,
        fresh.kind,
    )
    if not same:
        return fresh, f"It begins anew: the {kept} are of another node, plan, driver, torch, GPU or test."
    paused_s = time.time() - found.saved_at
    if paused_s < 0:
        return fresh, f"It begins anew: the {kept} have a time in the future: the clock was set back."
    if paused_s >= MOST_PAUSE_S:
        return fresh, f"It begins anew: the {kept} are older than {MOST_PAUSE_S / 3600:.0f} h."
    return found if found.boot == boot_id() else _rebooted(found), f"It goes on with the {kept}."


def _rebooted(rounds: Rounds) -> Rounds:
    """Return the same, with what a sceptic asks: did the operator boot this node, or did the load?"""
    rebooted = finding("burn-in-rebooted", round=rounds.count)
    ran = next((test for test in rounds.tests if test.state is not State.NOT_RUN), None)
    tests = tuple(
        dataclasses.replace(
            test, state=worst([test.state, State.DEGRADED]), findings=(*test.findings, rebooted)
        )
        if test is ran
        else test
        for test in rounds.tests
    )
    return dataclasses.replace(rounds, tests=tests)


def boot_id() -> str:
    """Return what is another one after each boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def save(path: Path | None, rounds: Rounds) -> None:
    """Keep what was found, for a run that is interrupted. Raises OSError."""
    if path is not None:
        now = dataclasses.replace(rounds, saved_at=time.time(), boot=boot_id())
        write_atomically(path, dumps(now))
