"""Children with the torch of the payload's Python: mostly ranks that do what ranks should not."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable

from validation.backends.factory import make
from validation.checks import collectives, matmul
from validation.model.contract import Measured
from validation.processes.child import Request

FOREVER_S = 600
#: Those that warm up, and some of those that are measured.
GOOD_RUNS = collectives.WARM_UP_RUNS + 4


def multiply(request: Request, stage: Callable[[str], None]) -> Measured:
    """Multiply as a GPU does, which has a larger cache to empty before each run than a CPU can in no time."""
    make("cpu", 0, stage)
    # Only the torch of the payload's Python has this.
    from validation.backends import operations

    operations.FLUSH_BYTES = 1 << 20
    return matmul.measure(request, stage)


def die_after_joining(request: Request, stage: Callable[[str], None]) -> Measured:
    """Meet the others, then vanish."""
    _join(request, stage)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def hang_after_joining(request: Request, stage: Callable[[str], None]) -> Measured:
    """Meet the others, then keep them waiting."""
    _join(request, stage)
    time.sleep(FOREVER_S)
    raise AssertionError


def stop_while_measuring(request: Request, stage: Callable[[str], None]) -> Measured:
    """Measure as the others do, until somebody stops it."""

    def tell(words: str) -> None:
        stage(words)
        if words.startswith("measuring"):
            os.kill(os.getpid(), signal.SIGSTOP)

    return collectives.measure(request, tell)


def hang_before_a_run(request: Request, stage: Callable[[str], None]) -> Measured:
    """Take part in some runs, and hang in what comes before the next."""
    return _hang(request, stage, "prepare")


def hang_in_a_run(request: Request, stage: Callable[[str], None]) -> Measured:
    """Take part in some runs, and hang in the next."""
    return _hang(request, stage, "run")


def _hang(request: Request, stage: Callable[[str], None], where: str) -> Measured:
    """Measure as the others do, until an operation is asked to do this once more."""
    make("cpu", 0, stage)
    # Only the torch of the payload's Python has this.
    from validation.backends.operations import AllReduce

    once, runs = getattr(AllReduce, where), itertools.count()

    def hang(operation: AllReduce) -> None:
        if next(runs) == GOOD_RUNS:
            time.sleep(FOREVER_S)
        once(operation)

    setattr(AllReduce, where, hang)
    return collectives.measure(request, stage)


def add_up(request: Request, stage: Callable[[str], None]) -> Measured:
    """Meet the others, and add up what each of them gives."""
    _join(request, stage)
    stage("adding")
    # Only the torch of the payload's Python has this.
    import torch

    total = torch.tensor(float(request.parameters["gives"]))
    torch.distributed.all_reduce(total)
    return Measured(details={"total": float(total)})


def _join(request: Request, stage: Callable[[str], None]) -> None:
    parameters = request.parameters
    backend = make("cpu", 0, stage)
    stage("meeting the other ranks")
    backend.join(parameters["rank"], parameters["world_size"], parameters["store"], parameters["timeout_s"])
