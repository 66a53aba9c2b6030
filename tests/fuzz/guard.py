"""Run a reader over hostile inputs, in a process of its own with bounds of time and memory."""

import contextlib
import json
import mmap
import os
import resource
import select
import signal
import struct
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz import mutations

ROOT = Path(__file__).resolve().parents[2]
#: CPU time that one input may cost, and memory beyond what the tests themselves need.
LONGEST_S = 5.0
MOST_BYTES = 1 << 30
#: Characters of an error.
LONGEST_SENTENCE = 5000
#: CPU time after which a process is ended that takes no signal: its reader does not return to Python, say.
#: One that sleeps for so long waits for something that never comes; one that is ready to run does not count.
PATIENCE_S = 30.0
#: States of a process (proc(5)) that no other process's load explains.
ASLEEP = ("S", "Z")
#: Places that are shown of each reader.
SHOWN = 200


class HangError(BaseException):
    """The time of an input is over; no reader's `except Exception` may take it."""


@dataclass(frozen=True)
class Reader:
    """A reader of foreign input.

    `read` takes a str, bytes or a document, as its samples are. `errors` are what it may raise. `wrong` gets
    the input and what `read` returned, and says what should not have been accepted.
    """

    name: str
    read: Callable[[Any], object]
    samples: Callable[[], Sequence[Any]]
    errors: tuple[type[Exception], ...] = ()
    wrong: Callable[[Any, Any], str] | None = None
    weight: int = 1

    def input(self, seed: int) -> Any:
        """Return the input of a seed."""
        random, samples = Random(f"{self.name} {seed}"), samples_of(self)
        if isinstance(samples[0], str):
            return mutations.text(random, samples)
        return (mutations.data if isinstance(samples[0], bytes) else mutations.document)(random, samples)

    def fault(self, seed: int) -> tuple[str, str]:
        """Read the input of a seed: ("", "") where all is well, else the kind of fault and its place."""
        try:
            given = self.input(seed)
            try:
                found = self.read(given)
            except self.errors as error:
                said = "" if is_sentence(str(error)) else f"{place_of(error)} says no short sentence"
            else:
                said = self.wrong(given, found) if self.wrong else ""
        except HangError as error:
            return "hang", place_of(error)
        except MemoryError as error:
            return "hang", f"{place_of(error)} MemoryError"
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what is looked for
            return "unhandled", f"{place_of(error)} {type(error).__name__}"
        return ("wrong", said) if said else ("", "")


def is_sentence(text: str) -> bool:
    """Return whether a terminal can show an error, and a person read it."""
    return text.isprintable() and len(text) <= LONGEST_SENTENCE


@cache
def samples_of(reader: Reader) -> Sequence[Any]:
    """Return a reader's samples, which are made once."""
    return reader.samples()


@dataclass
class Tally:
    """What came of a reader: how many inputs, and the faults by kind and place with a seed of each."""

    inputs: int = 0
    cpu_s: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    places: dict[tuple[str, str], int] = field(default_factory=dict)

    def add(self, kind: str, place: str, seed: int) -> None:
        """Count a fault."""
        self.counts[kind] += 1
        if len(self.places) < SHOWN:
            self.places.setdefault((kind, place), seed)


def place_of(error: BaseException) -> str:
    """Return the innermost line of the product in a traceback."""
    ours = [
        f"{Path(frame.filename).relative_to(ROOT)}:{frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename.startswith(f"{ROOT}/") and "/.venv/" not in frame.filename and frame.name != "_hang"
    ]
    product = [place for place in ours if not place.startswith("tests/")]
    return (product or ours or ["?"])[-1]


def examine(reader: Reader, first: int, cpu_s: float, most: int = sys.maxsize) -> Tally:
    """Give a reader the inputs from seed `first` on, until its CPU time or `most` of them are over."""
    tally = Tally()
    samples_of(reader)
    # Memory that the child shares: which seed it is at.
    place = mmap.mmap(-1, 8)
    with tempfile.TemporaryDirectory(prefix="temper-fuzz-") as folder:
        seed = first
        while tally.inputs < most and tally.cpu_s < cpu_s:
            used_s = _cpu_s_of_children()
            for kind, where, at in _child(
                reader, range(seed, first + most), cpu_s - tally.cpu_s, place, folder
            ):
                tally.add(kind, where, at)
            (last,) = struct.unpack("q", place)
            tally.inputs += last - seed + 1
            tally.cpu_s += _cpu_s_of_children() - used_s
            seed = last + 1
    return tally


def _cpu_s_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _state_of(pid: int) -> tuple[str, float]:
    """Return the state of a child, and the CPU time that it has used, s (proc(5))."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return fields[0], (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _child(
    reader: Reader, seeds: range, cpu_s: float, place: mmap.mmap, folder: str
) -> Iterator[tuple[str, str, int]]:
    """Run one child process until it is done or has to be ended; yield its faults."""
    place[:] = struct.pack("q", seeds[0])
    receiving, sending = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if not child:
        status = 1
        try:
            os.close(receiving)
            _work(reader, seeds, cpu_s, place, folder, sending)
            status = 0
        finally:
            os._exit(status)
    os.close(sending)
    ended, buffer = "", b""
    since, spent_s, last_s = place[:], 0.0, -1.0
    while not ended:
        if select.select([receiving], [], [], PATIENCE_S)[0]:
            if not (block := os.read(receiving, 1 << 16)):
                break
            buffer += block
            continue
        state, cpu_s_now = _state_of(child)
        if place[:] != since:
            since, spent_s = place[:], cpu_s_now
        elif cpu_s_now - spent_s >= PATIENCE_S:
            ended = f"no answer within {PATIENCE_S:g} s of CPU time"
        elif cpu_s_now == last_s and state in ASLEEP:
            ended = f"asleep for {PATIENCE_S:g} s"
        last_s = cpu_s_now
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    os.close(receiving)
    for line in buffer.splitlines():
        yield tuple(json.loads(line))
    if ended or status:
        yield "hang", ended or f"its process ended with status {status}", struct.unpack("q", place)[0]


def _work(reader: Reader, seeds: range, cpu_s: float, place: mmap.mmap, folder: str, sending: int) -> None:
    """Read inputs in the child, and write each fault to the pipe."""
    quiet(folder)
    bound()
    for seed in seeds:
        if time.process_time() > cpu_s:  # a new process begins with 0
            return
        place[:] = struct.pack("q", seed)
        kind, where = one(reader, seed)
        if kind:
            os.write(sending, (json.dumps([kind, where, seed]) + "\n").encode())


def quiet(folder: str) -> None:
    """Have this process say nothing, and write into `folder` alone."""
    tempfile.tempdir = folder
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)


def bound() -> None:
    """Bound the memory of this process, and have `one` end what takes too long."""
    with Path("/proc/self/statm").open() as statm:
        now = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + MOST_BYTES, resource.RLIM_INFINITY))
    signal.signal(signal.SIGPROF, _hang)


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """Raise HangError where the body takes too long."""
    # Again and again: the first one may come where Python takes no exception.
    signal.setitimer(signal.ITIMER_PROF, LONGEST_S, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def one(reader: Reader, seed: int) -> tuple[str, str]:
    """Read the input of a seed within its time."""
    try:
        with limited():
            return reader.fault(seed)
    except HangError as error:
        return "hang", place_of(error)


def _hang(_signal: int, _frame: object) -> None:
    raise HangError
