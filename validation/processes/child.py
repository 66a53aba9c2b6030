"""The child's side of a measuring process; pool.py starts it.

It runs one function, `module:name`, which takes a Request and a function to tell its stage, and returns
Measured. It answers on a pipe of its own; what libraries print stays on standard error, of which the end is
kept for the report.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from validation.model.contract import Measured, decode, encode
from validation.model.not_run import NotRunError, out_of_memory

STAGE = "stage: "
PR_SET_PDEATHSIG = 1


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


def main(arguments: list[str]) -> int:
    """The child's side: read the request from standard input, run its function, answer on the pipe."""
    answer, parent = map(int, arguments)
    # If the parent is killed, nobody would be left to end us.
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return 1
    # When memory runs out, the measuring process is to go and not its parent with what has been found.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500")
    cpus = os.sched_getaffinity(0)
    with os.fdopen(answer, "w") as pipe:
        for line in sys.stdin:
            request = decode(Request, json.loads(line))
            os.sched_setaffinity(0, cpus)
            # Not contract.dumps: a number that is none must reach the parent, which says where it is.
            pipe.write(json.dumps(encode(_serve(request))) + "\n")
            pipe.flush()
            if not request.reuse:
                break
            _tidy()
    # Without the interpreter's tidying up, in which CUDA and NCCL have been seen to hang after all was done.
    sys.stderr.flush()
    os._exit(0)


def _serve(request: Request) -> Measured:
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


def _tidy() -> None:
    """Give back what the last request left: another process may want the memory."""
    gc.collect()
    if (torch := sys.modules.get("torch")) and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def tell_stage(stage: str) -> None:
    """Say what this process is about to do, so that its parent can say where it hung or died."""
    print(f"{STAGE}{stage}", file=sys.stderr, flush=True)
