"""Measuring processes: each started anew, with a wall-clock budget, and killed with all that it started.

A wedged GPU blocks in a C call, so no time-out inside the process can end it; killing it from outside is the
only reliable way. And a process that died, hung or gave an invalid answer is a result of its own:
run_children reports it as what it is.

Starting costs seconds (Python, torch, a CUDA context), so a worker pool keeps a process for the next request
of its kind, where both agree; one that ended in any other way than well is never kept. child.py is what the
process runs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import selectors
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from validation.model.contract import ContractError, Measured, StringEnum, loads
from validation.processes import scratch
from validation.processes.child import STAGE, Request

if TYPE_CHECKING:
    from collections.abc import Callable

#: Where `import validation` finds this package: the checkout, or the one-file build.
ROOT = Path(__file__).parents[2]
#: Python imports from the current folder first, for which an empty entry stands; anybody may write to /tmp.
START = """\
import sys
sys.path[:] = filter(None, sys.path)
from validation.processes.child import main
raise SystemExit(main(sys.argv[1:]))
"""
TAIL_BYTES = 2000
#: How long the other processes of a group may go on after one of them failed: time for their own error
#: message.
GRACE_S = 5.0
#: How long a killed process may take to go away before it is called unkillable.
REAP_S = 10.0
#: Of as much as `read` takes at once, more than any pipe holds.
MOST_READS = 17
NOT_YET = float("inf")


class WorkerPool:
    """Processes that wait for another request. Whoever made it closes it.

    `stuck`: what became of those that did not end when it was closed.
    """

    def __init__(self) -> None:
        self._idle: dict[str, list[_Child]] = {}
        self.stuck: list[Outcome] = []

    def take(self, request: Request) -> _Child | None:
        """A living process for this request, None where none was kept."""
        waiting = self._idle.get(_kind(request), [])
        while request.reuse and waiting:
            child = waiting.pop()
            if child.process.poll() is None:
                return child
            child.kill()
        return None

    def put(self, child: _Child) -> None:
        """Keep this process for later."""
        self._idle.setdefault(_kind(child.request), []).append(child)

    def close(self) -> None:
        """End all of them."""
        children = [child for waiting in self._idle.values() for child in waiting]
        _end(children)
        self._idle.clear()
        self.stuck += [child.outcome(0) for child in children if child.unkillable]


def _kind(request: Request) -> str:
    """What requests of one process have in common."""
    return json.dumps([request.backend, request.device, sorted(request.environment.items())])


class Ending(StringEnum):
    """How a child ended."""

    DONE = "done"
    DIED = "died"
    HUNG = "hung"
    UNREADABLE = "nonsense"  # the word of results that are there already
    STOPPED = "stopped"  # because another process of its group failed
    UNKILLABLE = "unkillable"


@dataclass(frozen=True)
class Outcome:
    """What came of a request.

    `problem` is a sentence, empty when it is done; `stage` the last one that it told.
    """

    request: Request
    ending: Ending
    measured: Measured
    problem: str
    stage: str
    ended_at: float  # time.monotonic()


def run_children(
    requests: list[Request],
    budget_s: float,
    *,
    together: bool = False,
    tick: Callable[[], None] | None = None,
    pool: WorkerPool | None = None,
) -> list[Outcome]:
    """Run all requests at once, each in its own process, and return their outcomes in the same order.

    `together`: they need each other (a collective), so when one fails the others are stopped soon after.
    `tick` is called about once a second while they run. Nothing that was started outlives this call, but what
    `pool` keeps, and what the kernel cannot kill.
    """
    children: list[_Child] = []
    try:
        for request in requests:
            child = pool.take(request) if pool else None
            if child:
                child.serve(request)
            children.append(child or _Child(request))
        _wait(children, budget_s, together, tick)
    except BaseException:
        _end(children)
        raise
    done_with = []
    for child in children:
        if pool and child.is_reusable:
            pool.put(child)
        else:
            done_with.append(child)
    _end(done_with)
    return [child.outcome(budget_s) for child in children]


class _Child:
    """One process, its answer so far and what it printed."""

    def __init__(self, request: Request) -> None:
        self._begin(request)
        self.unkillable = False
        self._answer_pipe, write = os.pipe()
        environment = os.environ | scratch.environment() | request.environment
        path = [str(ROOT), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, path))
        environment["PYTHONDONTWRITEBYTECODE"] = "1"
        environment["PYTHONSAFEPATH"] = "1"  # for what the process starts; Python 3.10 does not know it
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-c", START, str(write), str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=[write],
                env=environment,
                start_new_session=True,
            )
        finally:
            os.close(write)
        assert self.process.stdin is not None
        assert self.process.stderr is not None
        self._stdin, self._stderr = self.process.stdin, self.process.stderr
        self.open = {self._answer_pipe, self._stderr.fileno()}
        self._ask()

    def _begin(self, request: Request) -> None:
        self.request = request
        self.answer = bytearray()
        self.tail = b""
        self.stopped_by: str | None = None
        self._oom_kills_before = oom_kills()
        self.out_of_time = False
        self.ended = NOT_YET
        #: When its parent last looked. What it finds at one time ended at one time: nobody knows the order.
        self.now = time.monotonic()
        self.__dict__.pop("measured", None)

    def _ask(self) -> None:
        try:
            self._stdin.write(json.dumps(dataclasses.asdict(self.request)).encode() + b"\n")
            self._stdin.flush()
            if not self.request.reuse:
                self._stdin.close()
        except BrokenPipeError:
            pass  # it died at once; its exit status says so

    def serve(self, request: Request) -> None:
        """Give a waiting process another request."""
        self._begin(request)
        self._ask()

    @property
    def is_reusable(self) -> bool:
        """Whether it answered well and waits for another request."""
        if not self.request.reuse or self.is_gone() or not self.answer.endswith(b"\n"):
            return False
        try:
            return self.measured.not_run is None
        except ContractError:
            return False

    def is_gone(self) -> bool:
        """Whether it has ended; it is not reaped, so that its group's number stays its own until kill()."""
        return bool(os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT))

    def read(self, descriptor: int) -> None:
        """Take what has arrived on one of the `open` pipes; an empty read closes it."""
        data = os.read(descriptor, 65536)
        if descriptor == self._answer_pipe:
            self.answer += data
        else:
            self.tail = (self.tail + data)[-4 * TAIL_BYTES :]
        if not data:
            self._close(descriptor)
        elif self.request.reuse and self.answer.endswith(b"\n") and self.ended == NOT_YET:
            self.ended = self.now

    def drain(self) -> None:
        """Take what a process has said before it answered or ended, so that its stage is the last."""
        for _ in range(MOST_READS):  # others may go on to write
            for descriptor in select.select(self.open, [], [], 0)[0]:
                self.read(descriptor)

    def close(self) -> None:
        """Take the rest of what a process said that is gone."""
        self.drain()
        for descriptor in list(self.open):
            self._close(descriptor)

    def _close(self, descriptor: int) -> None:
        self.open.discard(descriptor)
        if descriptor == self._answer_pipe:
            os.close(descriptor)
        else:
            self._stderr.close()
        if not self.open and self.ended == NOT_YET:
            self.ended = self.now

    @cached_property
    def measured(self) -> Measured:
        """Its answer, once it has ended. Raises ContractError."""
        return loads(Measured, bytes(self.answer))

    @property
    def failed(self) -> bool:
        """Whether it ended without what the rest of its group needs."""
        if self.ended == NOT_YET:
            return False
        try:
            return self.measured.not_run is not None
        except ContractError:
            return True

    def kill_group(self) -> None:
        """Send the process and its whole group, and only these, the signal that ends them."""
        if self.process.returncode is None:
            # The leader is not reaped yet, so its group's number cannot have been given to anybody else.
            os.killpg(self.process.pid, signal.SIGKILL)

    def kill(self, within_s: float = REAP_S) -> None:
        """End the process and its group, and wait for that. Harmless when it has ended."""
        if self.process.returncode is None:
            self.kill_group()
            try:
                self.process.wait(within_s)
            except subprocess.TimeoutExpired:
                self.unkillable = True
        with contextlib.suppress(BrokenPipeError):
            self._stdin.close()
        for descriptor in list(self.open):
            self._close(descriptor)

    @property
    def stage(self) -> str:
        lines = self.tail.decode(errors="replace").splitlines()
        return next(
            (line.removeprefix(STAGE) for line in reversed(lines) if line.startswith(STAGE)), "starting"
        )

    def outcome(self, budget_s: float) -> Outcome:
        """What came of it, once it has ended or has been killed."""
        ending, measured, problem = self._judge(budget_s)
        return Outcome(self.request, ending, measured, problem, self.stage, min(self.ended, time.monotonic()))

    def _judge(self, budget_s: float) -> tuple[Ending, Measured, str]:
        name = self.request.name
        if self.unkillable:
            return (
                Ending.UNKILLABLE,
                Measured(),
                f"{name} did not end when it was killed: it is stuck in the kernel, which only a reboot ends "
                f"(stage: {self.stage})",
            )
        if self.stopped_by:
            return Ending.STOPPED, Measured(), f"{name} was stopped because {self.stopped_by} failed"
        if self.out_of_time:
            return (
                Ending.HUNG,
                Measured(),
                f"{name} gave no result within {budget_s:.0f} s; it hung in stage: {self.stage}",
            )
        if self.process.returncode == -signal.SIGKILL and oom_kills() > self._oom_kills_before:
            # Who has the memory is a matter of the environment; no hardware is blamed for it.
            reason = f"memory ran out, and the kernel ended {name} in stage: {self.stage}"
            return Ending.DONE, Measured(not_run=reason), ""
        # Half an answer is none, whatever can be read of it.
        if not self.answer or (self.process.returncode != 0 and not self.answer.endswith(b"\n")):
            return (
                Ending.DIED,
                Measured(),
                f"{name} {self._how_it_died()} in stage: {self.stage}{self._last_words()}",
            )
        try:
            return Ending.DONE, self.measured, ""
        except ContractError as error:
            return Ending.UNREADABLE, Measured(), f"{name} answered something that is no result: {error}"

    def _how_it_died(self) -> str:
        status = self.process.returncode
        if status < 0:
            names = {number.value: number.name for number in signal.Signals}
            return f"was killed by {names.get(-status, f'signal {-status}')}"
        return f"ended with exit status {status} and without a result"

    def _last_words(self) -> str:
        lines = [
            line.strip()
            for line in self.tail.decode(errors="replace").splitlines()
            if line.strip() and not line.startswith(STAGE)
        ]
        return f"; it said last: {lines[-1][:TAIL_BYTES]}" if lines else ""


def oom_kills() -> int:
    """How many processes the kernel has ended for lack of memory, also of a control group's."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return 0


def _end(children: list[_Child]) -> None:
    """End all of them: none waits for its signal until another, perhaps a stuck one, has gone."""
    deadline = time.monotonic() + REAP_S
    for child in children:
        child.kill_group()
    for child in children:
        child.kill(max(0.0, deadline - time.monotonic()))


def _wait(children: list[_Child], budget_s: float, together: bool, tick: Callable[[], None] | None) -> None:
    """Read from all children until all have ended or the budget is spent."""
    deadline = time.monotonic() + budget_s
    with selectors.DefaultSelector() as selector:
        for child in children:
            for descriptor in child.open:
                selector.register(descriptor, selectors.EVENT_READ, child)
        next_tick = time.monotonic()
        while selector.get_map() and (now := time.monotonic()) < deadline:
            if tick and now >= next_tick:
                tick()
                next_tick = time.monotonic() + 1.0
            until = min(deadline, next_tick) if tick else deadline
            ready = selector.select(min(1.0, max(0.0, until - time.monotonic())))
            now = time.monotonic()
            for child in children:
                child.now = now
            for key, _ in ready:
                child = key.data
                if key.fd not in selector.get_map():
                    continue
                child.read(key.fd)
                if key.fd not in child.open:
                    selector.unregister(key.fd)
                elif child.ended != NOT_YET:  # it answered and waits for another request
                    # First, because what is closed cannot be unregistered, and would be waited for.
                    for descriptor in child.open & {*selector.get_map()}:
                        selector.unregister(descriptor)
                    child.drain()
            for child in children:
                if child.open and child.is_gone():
                    # Whoever else holds its pipes: what it said before it went is in them.
                    for descriptor in child.open & {*selector.get_map()}:
                        selector.unregister(descriptor)
                    child.close()
            if together and (first := _first_failed(children)):
                deadline = min(deadline, first.ended + GRACE_S)
    culprit = _first_failed(children) if together else None
    for child in children:
        if child.ended == NOT_YET and culprit:
            child.stopped_by = culprit.request.name
        elif child.ended == NOT_YET:
            child.out_of_time = True


def _first_failed(children: list[_Child]) -> _Child | None:
    """The child that failed before all others: theirs may be failures because of it."""
    return min((child for child in children if child.failed), key=lambda child: child.ended, default=None)
