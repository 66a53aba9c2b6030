"""Measuring processes: each started anew, with a wall-clock budget, and killed with all that it started.

A wedged GPU blocks in a C call, so no time-out inside the process can end it; killing it from outside is the
only reliable way. And a process that died, hung or gave an invalid answer is a result of its own:
run_children reports it as what it is.

Children tell how far they are (child.py), and the parent when nobody makes progress any more: one that hangs
costs as long as its next sign of life should have taken, and not the whole budget.

Starting costs seconds (Python, torch, a CUDA context), so a worker pool keeps a process for the next request
of its kind, where both agree; one that ended in any other way than well is never kept. child.py is what the
process runs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import mmap
import os
import re
import select
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from validation.model.contract import ContractError, Measured, StringEnum, loads
from validation.processes import scratch
from validation.processes.child import BEGINNING, ERROR, LOADING, RECORD, SAID, STAGE, Request

#: Where `import validation` finds this package: the checkout, or the one-file build.
ROOT = Path(__file__).parents[2]
#: Python imports from the current folder first, for which an empty entry stands; anybody may write to /tmp.
START = """\
import sys
sys.path[:] = filter(None, sys.path)
from validation.processes.child import main
main(sys.argv[1:])
"""
#: Of standard error, what is kept, and what of its last line is told. torch ends what it says of an uncaught
#: error with some dozen lines of addresses.
TAIL_BYTES, WORDS = 32 << 10, 2000
#: How C++ says what the error was that nobody caught.
UNCAUGHT = "what():"
#: How long the other processes of a group may go on after one of them failed: time for their own error
#: message.
GRACE_S = 5.0
#: How long a killed process may take to go away before it is called unkillable, if the kernel does nothing
#: for it or for those that end with it. For eight ranks it frees page-locked memory and what NCCL mapped,
#: which may take up to so many times as long.
REAP_S, MOST_REAPS = 10.0, 6
#: A process's state, its major page faults, and the time that it and the kernel for it worked: of the fields
#: of /proc/PID/stat behind the name.
STATE, MAJFLT, UTIME, STIME = 0, 9, 11, 12
#: For so many times what a step should take, and so many seconds more, a process may make no progress.
PATIENCE, SLACK_S = 3.0, 10.0
#: How long a process has to say where it is; it does at once, unless it does not run.
WHERE_S = 1.0
#: `  File "/x/operations.py", line 279 in run`, as faulthandler has it: the innermost call comes first.
FRAME = re.compile(rb'File "[^"\n]*?([^/"\n]{1,80})", line (\d{1,7}) in (\S{1,80})')
#: Of as much as `read` takes at once, more than any pipe holds.
MOST_READS = 17
NOT_YET = float("inf")
#: States of a process in /proc (proc(5)) in which it does not run, whatever it waits for.
HALTED = {"T": "stopped by a signal", "t": "stopped by a debugger", "D": "asleep in the kernel"}


class WorkerPool:
    """Processes that wait for another request. Whoever made it closes it.

    `stuck`: what became of those that did not end when it was closed.
    """

    def __init__(self) -> None:
        self._idle: dict[str, list[_Child]] = {}
        self.stuck: list[ProcessOutcome] = []

    def take(self, request: Request) -> _Child | None:
        """Return a living process for this request, None where none was kept."""
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
        self.stuck += [child.outcome() for child in children if child.unkillable]


def _kind(request: Request) -> str:
    """Return what requests of one process have in common."""
    return json.dumps([request.backend, request.device, sorted(request.environment.items())])


class Ending(StringEnum):
    """How a child ended."""

    DONE = "done"
    DIED = "died"
    HUNG = "hung"
    UNREADABLE = "nonsense"  # the word of results that are there already
    SLOW = "slow"  # at work when its budget was spent
    STOPPED = "stopped"  # because another process of its group failed
    UNKILLABLE = "unkillable"


@dataclass(frozen=True)
class ProcessOutcome:
    """What came of a request.

    `problem` is a sentence, empty when it is done; `stage` the last one that it told. Of one that did not
    end, `silent_s` is how long it had told nothing, `halted` in which state it cannot run, `steps` and
    `calls` of collectives how many it had counted, `busy` for which part of that time it ran, or would have
    on an idle machine, `where` it is, and what it `said` (child.when_asked).
    """

    request: Request
    ending: Ending
    measured: Measured
    problem: str
    stage: str
    ended_at: float  # time.monotonic()
    silent_s: float = 0.0
    halted: str = ""
    steps: int = 0
    calls: int = 0
    busy: float | None = None
    where: str = ""
    said: str = ""


def run_children(
    requests: list[Request],
    budget_s: float,
    *,
    together: bool = False,
    patience_s: float | None = None,
    longer_s: Mapping[str, float] | None = None,
    tick: Callable[[], None] | None = None,
    when_hung: Callable[[], None] | None = None,
    pool: WorkerPool | None = None,
) -> list[ProcessOutcome]:
    """Run all requests at once, each in its own process, and return their outcomes in the same order.

    `together`: they need each other (a collective), so when one fails the others are stopped soon after.
    `patience_s`: when none of them made progress for so long, those that have not ended hang: some may wait
    for others. None: each may be silent for as long as its budget lasts. `longer_s`: that of stages which may
    take longer.
    `tick` is called about once a second while they run, and `when_hung` once when they hang, before they are
    asked where. Nothing that was started outlives this call, but what `pool` keeps, and what the kernel
    cannot kill.
    """
    children: list[_Child] = []
    try:
        for request in requests:
            child = pool.take(request) if pool else None
            if child:
                child.serve(request)
            children.append(child or _Child(request))
        patience = _Patience(patience_s, longer_s or {})
        _wait(children, budget_s, together, patience, tick, when_hung)
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
    return [child.outcome() for child in children]


@dataclass(frozen=True)
class _Patience:
    """For how long a process may make no progress: for ever if `usual_s` is None, else by its stage."""

    usual_s: float | None
    longer_s: Mapping[str, float]

    def with_child(self, child: _Child) -> float:
        """Return how long this one may take for its next sign of life.

        It may know itself that it takes longer.
        """
        if self.usual_s is None:
            return NOT_YET
        usual_s = self.longer_s.get(child.stage, self.usual_s)
        expected_s = child.record()[2]
        return max(usual_s, PATIENCE * expected_s + SLACK_S) if expected_s else usual_s


def inherited() -> dict[str, str]:
    """Return the environment for processes of ours.

    As this one was told (-I), nothing in it is about Python.
    """
    isolated = sys.flags.isolated
    return {name: value for name, value in os.environ.items() if not (isolated and name.startswith("PYTHON"))}


class _Child:
    """One process, its answer so far and what it printed."""

    def __init__(self, request: Request) -> None:
        record = _shareable()
        self._record = mmap.mmap(record, RECORD.size)
        self._begin(request)
        self.unkillable = False
        self._answer_pipe, write = os.pipe()
        environment = inherited() | scratch.environment() | request.environment
        path = [str(ROOT), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, path))
        environment["PYTHONDONTWRITEBYTECODE"] = "1"
        environment["PYTHONSAFEPATH"] = "1"  # for what the process starts; Python 3.10 does not know it
        try:
            self.process = subprocess.Popen(  # noqa: S603 - this Python, a program of ours
                [sys.executable, "-c", START, str(write), str(record), str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=[write, record],
                env=environment,
                start_new_session=True,
            )
        finally:
            os.close(write)
            os.close(record)
        assert self.process.stdin is not None
        assert self.process.stderr is not None
        self._stdin, self._stderr = self.process.stdin, self.process.stderr
        self.open = {self._answer_pipe, self._stderr.fileno()}
        self._ask()

    def _begin(self, request: Request) -> None:
        self.request = request
        self.answer = b""
        self.stage = BEGINNING
        self._line = bytearray()
        self._error = ""
        self.tail = b""
        self.stopped_by: str | None = None
        self._oom_kills_before = oom_kills()
        self.overdue: Ending | None = None
        self._missed = ""
        self.silent_s, self.halted = 0.0, ""
        self.ended = NOT_YET
        #: When its parent last looked. What it finds at one time ended at one time: nobody knows the order.
        self.now = self.told = time.monotonic()
        self._faults, self._ticks = 0, 0
        self._seen_s, self._running_s, self._looked = 0.0, 0.0, self.now
        self.busy: float | None = None
        self.where, self.said, self._tail_before = "", "", b""
        self._counted: tuple[int, int] | None = None
        RECORD.pack_into(self._record, 0, 0, 0, 0.0)
        self._steps_before = 0
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
        if not self.request.reuse or self.is_gone() or not self.answer:
            return False
        try:
            return self.measured.not_run is None
        except ContractError:
            return False

    def is_gone(self) -> bool:
        """Return whether it has ended.

        It is not reaped, so that its group's number stays its own until kill().
        """
        return bool(os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT))

    def read(self, descriptor: int) -> None:
        """Take what has arrived on one of the `open` pipes; an empty read closes it."""
        data = os.read(descriptor, 65536)
        if descriptor == self._answer_pipe:
            self._hear(data)
        else:
            self.tail = (self.tail + data)[-TAIL_BYTES:]
        if not data:
            self._close(descriptor)
        elif self.request.reuse and self.answer and self.ended == NOT_YET:
            self.ended = self.now

    def _hear(self, data: bytes) -> None:
        """Take whole lines; half an answer is none, whatever can be read of it."""
        start = len(self._line)
        self._line += data
        while (end := self._line.find(b"\n", start)) >= 0:
            line, start = bytes(self._line[:end]), 0
            del self._line[: end + 1]
            self._note_progress(_stat(self.process.pid), self.record()[0])
            if line.startswith(STAGE.encode()):
                self.stage = line.decode(errors="replace").removeprefix(STAGE)
            elif line.startswith(ERROR.encode()):
                self._error = line.decode(errors="replace").removeprefix(ERROR)
            elif line.startswith(SAID.encode()):
                self.said = line.decode(errors="replace").removeprefix(SAID)
            else:
                self.answer = line

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
        return loads(Measured, self.answer)

    def kernel_time(self) -> int | None:
        """Return what the kernel has worked for this process, in clock ticks; None when it is gone."""
        found = _stat(self.process.pid)
        return int(found[STIME]) if found else None

    def record(self) -> tuple[int, int, float]:
        """Return how many steps of its request and calls it has counted, and how long the next may take."""
        steps, calls, expected_s = RECORD.unpack_from(self._record)
        return steps, calls, expected_s

    def look(self) -> None:
        """Note progress without a word since the last look.

        It counted, waited for the disk, or worked at its imports, which take long on a busy machine.
        """
        stat, steps = _stat(self.process.pid), self.record()[0]
        # A page that the disk brings is one of a library that is being loaded, say.
        faults = int(stat[MAJFLT]) if stat else 0
        imported = self.stage in (BEGINNING, LOADING) and _ticks(stat) > self._ticks
        if self.ended == NOT_YET and (faults > self._faults or steps > self._steps_before or imported):
            self._note_progress(stat, steps)
        # By time: what others say brings many looks within milliseconds.
        passed_s, self._looked = self.now - self._looked, self.now
        self._seen_s += passed_s
        # Also one that waits for a CPU on a busy machine.
        if stat and stat[STATE] == "R":
            self._running_s += passed_s

    def is_silent(self, patience_s: float) -> bool:
        """Return whether it was seen to make no progress for so long."""
        return self.now - self.last_progress >= patience_s

    def _note_progress(self, stat: list[str], steps: int) -> None:
        self.told, self._steps_before = self.now, steps
        self._seen_s, self._running_s, self._looked = 0.0, 0.0, self.now
        if stat:
            self._faults, self._ticks = int(stat[MAJFLT]), _ticks(stat)

    def ask_where(self) -> bool:
        """Ask it in which function it is; False where it does not run, or does not know the signal yet."""
        if self.halted or self.stage == BEGINNING or self._stderr.closed:
            return False
        self._tail_before, self.tail = self.tail, b""
        self.process.send_signal(signal.SIGUSR1)
        return True

    def has_said(self, more: bool) -> bool:
        """Return whether it has answered, and told what it knows of itself where `more` is asked for."""
        return bool(FRAME.search(self.tail) and (self.said or not more)) or not self.open

    def note_where(self) -> None:
        """Keep what it answered to ask_where."""
        if frame := FRAME.search(self.tail):
            file, line, function = (part.decode(errors="replace") for part in frame.groups())
            self.where = f"in {function}, {file} line {line}"
        self.tail = self._tail_before

    @property
    def last_progress(self) -> float:
        """When it last told something, or ended."""
        return self.told if self.ended == NOT_YET else self.ended

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
            else:
                self.unkillable = False
        with contextlib.suppress(BrokenPipeError):
            self._stdin.close()
        for descriptor in list(self.open):
            self._close(descriptor)

    def give_up(self, ending: Ending, missed: str) -> None:
        """Keep what is to be seen of one that `missed` what was asked of it, before it is killed."""
        self.overdue, self._missed, self.silent_s = ending, missed, time.monotonic() - self.told
        self.halted, self._counted = halted(self.process.pid), self.record()[:2]
        self.busy = self._running_s / self._seen_s if self._seen_s else None
        self.ended = time.monotonic()

    def outcome(self) -> ProcessOutcome:
        """Return what came of it, once it has ended or has been killed."""
        ending, measured, problem = self._judge()
        ended_at = min(self.ended, time.monotonic())
        return ProcessOutcome(
            self.request,
            ending,
            measured,
            problem,
            self.stage,
            ended_at,
            self.silent_s,
            self.halted,
            *(self._counted or self.record()[:2]),
            self.busy,
            self.where,
            self.said,
        )

    def _judge(self) -> tuple[Ending, Measured, str]:
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
        if self.overdue:
            how = "was still at work" if self.overdue is Ending.SLOW else "hung"
            problem = f"{name} {self._missed}; it {how} in stage: {self.stage}"
            seen = f" ({self.halted or self.where})" if self.halted or self.where else ""
            return self.overdue, Measured(), problem + seen + (self._last_words() if self._error else "")
        if self.process.returncode == -signal.SIGKILL and oom_kills() > self._oom_kills_before:
            # Who has the memory is a matter of the environment; no hardware is blamed for it.
            reason = f"memory ran out, and the kernel ended {name} in stage: {self.stage}"
            return Ending.DONE, Measured(not_run=reason), ""
        if not self.answer:
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
        """Return its own error; else that of a library which ended it; else the last line that it printed."""
        lines = [line.strip() for line in self.tail.decode(errors="replace").splitlines() if line.strip()]
        uncaught = [line.removeprefix(UNCAUGHT).strip() for line in lines if line.startswith(UNCAUGHT)]
        words = [*lines[-1:], *uncaught[-1:], *filter(None, [self._error])][-1:]
        return f"; it said last: {words[0][:WORDS]}" if words else ""


def _shareable() -> int:
    """Return a file for the number of steps that no folder has.

    In memory, where this Python knows such files.
    """
    # One that was built for an older glibc than 2.27 does not.
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("temper-validation-steps")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.write(descriptor, bytes(RECORD.size))
    return descriptor


def halted(pid: int) -> str:
    """In which state a process cannot run, whatever it waits for; empty where it can, or is gone."""
    return HALTED.get(next(iter(_stat(pid)), ""), "")


def _stat(pid: int) -> list[str]:
    """Return what stands behind the name in its /proc/PID/stat (proc(5)); nothing when it is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return []


def _ticks(stat: list[str]) -> int:
    """Return the CPU time of a process, in clock ticks; 0 when it is gone."""
    return int(stat[UTIME]) + int(stat[STIME]) if stat else 0


def oom_kills() -> int:
    """Return how many processes the kernel has ended for lack of memory, also of a control group's."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return 0


def _end(children: list[_Child]) -> None:
    """End all of them: none waits for its signal until another, perhaps a stuck one, has gone."""
    for child in children:
        child.kill_group()
    for _ in range(MOST_REAPS):
        before, deadline = [child.kernel_time() for child in children], time.monotonic() + REAP_S
        for child in children:
            child.kill(max(0.0, deadline - time.monotonic()))
        # While the kernel works for one of them it frees what that one holds, and none is known to be stuck.
        if not any(child.unkillable for child in children) or before == [
            child.kernel_time() for child in children
        ]:
            return


def _wait(
    children: list[_Child],
    budget_s: float,
    together: bool,
    patience: _Patience,
    tick: Callable[[], None] | None,
    when_hung: Callable[[], None] | None,
) -> None:
    """Read from all children until all have ended, the budget is spent, or nobody makes progress."""
    deadline = time.monotonic() + budget_s
    all_hang = False
    with selectors.DefaultSelector() as selector:
        for child in children:
            for descriptor in child.open:
                selector.register(descriptor, selectors.EVENT_READ, child)
        next_tick = time.monotonic()
        while selector.get_map() and not all_hang and (now := time.monotonic()) < deadline:
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
            for child in children:
                child.look()  # now: what is noticed later would count from then on
            all_hang = all(child.is_silent(patience.with_child(child)) for child in children)
    overdue: list[_Child] = []
    culprit = _first_failed(children) if together else None
    for child in children:
        if child.ended == NOT_YET and culprit:
            child.stopped_by = culprit.request.name
        elif child.ended == NOT_YET:
            if all_hang:
                child.give_up(Ending.HUNG, f"made no progress for {patience.with_child(child):.0f} s")
            else:
                lately = patience.usual_s is not None and not child.is_silent(patience.with_child(child))
                ending = Ending.SLOW if lately else Ending.HUNG
                child.give_up(ending, f"gave no result within {budget_s:.0f} s")
            overdue.append(child)
    if all_hang and overdue and when_hung:
        when_hung()
    _ask_where(overdue, more=together)


def _ask_where(children: list[_Child], *, more: bool) -> None:
    """Ask all at once in which function they are, and, with `more`, what they know of themselves.

    The signal ends a sleep, so they may go on then: what they counted has been noted.
    """
    asked, until = [child for child in children if child.ask_where()], time.monotonic() + WHERE_S
    while (left_s := until - time.monotonic()) > 0:
        pipes = {pipe: child for child in asked if not child.has_said(more) for pipe in child.open}
        if not pipes:
            break
        for pipe in select.select(pipes, [], [], left_s)[0]:
            pipes[pipe].read(pipe)
    for child in asked:
        child.note_where()


def _first_failed(children: list[_Child]) -> _Child | None:
    """Return the child that failed before all others: theirs may be failures because of it."""
    return min((child for child in children if child.failed), key=lambda child: child.ended, default=None)
