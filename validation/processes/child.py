"""The child's side of a measuring process; pool.py starts it.

It runs one function, `module:name`, which takes a Request and a function to tell its stage, and returns
Measured. On a pipe of its own it tells its stages, each a line, then the answer, or the error that it ended
with. What libraries print stays on standard error, of which the end is kept for the report.

Steps within a stage it counts in memory that its parent shares: that costs nothing, and the parent knows the
last one of a process that hangs in the next. There it also notes its calls of collectives, and how long its
next step should take. On SIGUSR1 it says in which function it is, even from within a call that never returns,
and what else it was told to say then.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import importlib
import json
import mmap
import os
import select
import signal
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TextIO

from validation.model.contract import Measured, decode, encode
from validation.model.not_run import NotRunError, cause, out_of_memory

#: How lines begin that are no answer.
STAGE, ERROR, SAID = "stage: ", "error: ", "said: "
#: Stages in which a process imports what it needs: the CPU time that this takes is progress, too.
BEGINNING, LOADING = "starting", "loading torch"
#: A stage is told again, as a sign of progress, no more often than this.
AGAIN_S = 1.0
PR_SET_PDEATHSIG = 1
#: What is in shared memory: how many steps and calls were counted, and how long the next step should take, s.
RECORD = struct.Struct("QQd")
_record: mmap.mmap | None = None
_answer: int | None = None


@dataclass(frozen=True)
class Request:
    """What a child is asked. `name` is for sentences ("GPU 3", "rank 1")."""

    name: str
    function: str
    backend: str
    device: int = 0
    parameters: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    #: Whether its process may serve other requests for this device and environment.
    reuse: bool = False


def count_step() -> None:
    """Count a step of this request, which is progress, too. Outside of a measuring process nobody looks."""
    if _record is not None:
        steps, calls, expected_s = RECORD.unpack_from(_record)
        RECORD.pack_into(_record, 0, steps + 1, calls, expected_s)


@contextlib.contextmanager
def collective_call() -> Iterator[None]:
    """Count that a collective is called, and that the library has taken it over: an odd number is within."""
    for begins in (True, False):
        if _record is not None:
            steps, calls, expected_s = RECORD.unpack_from(_record)
            RECORD.pack_into(_record, 0, steps, calls + 1, expected_s)
        if begins:
            yield


def expect(seconds: float) -> None:
    """Say how long the next step should take: so its parent knows how long to wait for it."""
    if _record is not None:
        RECORD.pack_into(_record, 0, *RECORD.unpack_from(_record)[:2], seconds)


def when_asked(tell: Callable[[], str]) -> None:
    """On SIGUSR1, also hand over what `tell` returns, from a thread: the main one may hang in a call.

    Such a call must have released the interpreter, as those of torch do that wait for others or for a GPU.
    """
    if _answer is None:
        return
    asked, ask = os.pipe()
    os.set_blocking(ask, False)
    faulthandler.unregister(signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, lambda *_: None)
    signal.set_wakeup_fd(ask, warn_on_full_buffer=False)
    # First where it is, then, in the same way as before, Python's own handler, which writes to the pipe.
    faulthandler.register(signal.SIGUSR1, all_threads=False, chain=True)
    threading.Thread(target=_tell_when_asked, args=(asked, _answer, tell), daemon=True).start()


def _tell_when_asked(asked: int, answer: int, tell: Callable[[], str]) -> None:
    while os.read(asked, 1):
        line = f"{SAID}{tell()}\n".encode()
        if len(line) <= select.PIPE_BUF:  # else it might end up within another line
            os.write(answer, line)


def is_child() -> bool:
    """Return whether this is a measuring process."""
    return _record is not None


def main(arguments: list[str]) -> NoReturn:
    """Be the child: read the request from standard input, run its function, answer on the pipe."""
    global _record, _answer  # noqa: PLW0603 - one for this process, whatever function it runs
    _answer, record, parent = map(int, arguments)
    # If the parent is killed, nobody would be left to end us.
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        _leave(1)
    _record = mmap.mmap(record, RECORD.size)
    os.close(record)
    faulthandler.register(signal.SIGUSR1, all_threads=False)
    # When memory runs out, the measuring process is to go and not its parent with what has been found.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500")
    with os.fdopen(_answer, "w") as pipe:
        try:
            _serve_all(pipe)
        except BaseException as error:  # noqa: BLE001 - whatever it is, its words are handed over
            traceback.print_exc()
            pipe.write(f"{ERROR}{type(error).__name__}: {cause(error)}\n")
            pipe.flush()
            _leave(1)  # here, while the error keeps what its frames hold: to free it may hang, too
    _leave(0)


def _leave(status: int) -> NoReturn:
    """End without the interpreter's tidying up.

    CUDA and NCCL have been seen to hang in it: after all was done, and more so after an error that broke
    their context.
    """
    sys.stderr.flush()
    os._exit(status)


def _serve_all(pipe: TextIO) -> None:
    """Answer one request, or as many as come."""
    cpus = os.sched_getaffinity(0)
    for line in sys.stdin:
        request = decode(Request, json.loads(line))
        os.sched_setaffinity(0, cpus)
        # Not contract.dumps: a number that is none must reach the parent, which says where it is.
        pipe.write(json.dumps(encode(_serve(request, _stage_teller(pipe)))) + "\n")
        pipe.flush()
        if not request.reuse:
            break
        tidy()


def _serve(request: Request, tell_stage: Callable[[str], None]) -> Measured:
    """Run the request's function; what it says of the environment is an answer, too."""
    module, _, name = request.function.partition(":")
    function = getattr(importlib.import_module(module), name)
    try:
        measured: Measured = function(request, tell_stage)
    except NotRunError as reason:
        return Measured(not_run=str(reason))
    except (RuntimeError, MemoryError) as error:
        # Who has the memory is a matter of the environment; no hardware is blamed for it.
        if not (words := out_of_memory(error)):
            raise
        return Measured(not_run=words)
    return measured


def tidy() -> None:
    """Give back what the last request left: another process may want the memory."""
    gc.collect()
    if (torch := sys.modules.get("torch")) and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
        # Page-locked memory; torch before 2.5 keeps it.
        names = ("_accelerator_emptyHostCache", "_host_emptyCache")
        if found := [getattr(torch._C, name) for name in names if hasattr(torch._C, name)]:
            found[0]()


def _stage_teller(pipe: TextIO) -> Callable[[str], None]:
    """Return how a function says what it is about to do, so that the parent can say where it hung or died.

    The same stage, told again, says that the function goes on.
    """
    last, told = "", 0.0

    def tell_stage(stage: str) -> None:
        nonlocal last, told
        now = time.monotonic()
        if stage == last and now - told < AGAIN_S:
            return
        last, told = stage, now
        pipe.write(f"{STAGE}{stage}\n")
        pipe.flush()

    return tell_stage
