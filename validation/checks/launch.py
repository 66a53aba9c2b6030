"""How checks start their measuring processes: on the CPU, on all GPUs at once, or on one after the other."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from validation.backends.factory import make
from validation.backends.protocol import Backend
from validation.checks.check import Check
from validation.checks.measured import each_gpu, failures, result, stay_near, watch
from validation.checks.node import Node
from validation.model.contract import Finding, GpuIdentity, Measured, TestResult
from validation.processes.child import Request
from validation.processes.pool import ProcessOutcome, run_children

Stage = Callable[[str], None]

WAITING = "waiting for the other GPUs"
#: For others that fill page-locked memory, which would disturb one that measures, and for their turns: less
#: than the least time after which processes without progress are said to hang.
READY_S = 30.0
LOOK_S = 0.02


def on_device(
    measurement: Callable[[Backend, Request, Stage], Measured],
) -> Callable[[Request, Stage], Measured]:
    """Return what a child runs: the measurement on its real device, from the CPUs next to that."""

    def measure(request: Request, stage: Stage) -> Measured:
        stay_near(request)
        return measurement(make(request.backend, request.device, stage), request, stage)

    return measure


def on_the_cpu(check: Check, node: Node, parameters: dict[str, Any], *, reuse: bool = False) -> TestResult:
    """Run a check in one process, on all CPUs; `reuse` leaves it to the next check of the CPU."""
    request = Request("the CPU", check.function, "cpu", parameters=parameters, reuse=reuse)
    pool, patience_s = node.pool if reuse else None, check.patience_s(node)
    return result(check, run_children([request], node.budget_s, patience_s=patience_s, pool=pool))


def on_each_gpu(
    check: Check,
    node: Node,
    parameters: dict[str, Any],
    own: Callable[[GpuIdentity], dict[str, Any]] = lambda _: {},
    judge: Callable[[list[ProcessOutcome]], list[Finding]] = failures,
    *,
    one_at_a_time: bool = False,
    new: bool = False,
) -> TestResult:
    """Run a check in a process for each GPU, all at the same time, as a job would.

    `own` are parameters of one GPU; `judge` finds what is wrong with processes and between GPUs.
    `one_at_a_time`: all start together, because that takes long, and measure one after the other (exclusive).
    `new`: in processes that serve no other check.
    """
    telemetry = watch(node)
    with _lock(len(node.gpus) if one_at_a_time else 0) as lock:
        requests = each_gpu(node, check.function, parameters | lock, own, reuse=not new)
        if new:
            node.free_exclusive_gpu()
        pool = None if new else node.pool
        outcomes = run_children(
            requests, node.budget_s, patience_s=check.patience_s(node), tick=telemetry.tick, pool=pool
        )
    findings = judge(without_waiting(outcomes))
    return result(check, outcomes, findings=findings, telemetry=telemetry)


@contextlib.contextmanager
def _lock(turns: int) -> Iterator[dict[str, Any]]:
    """Provide a file that so many processes lock to measure one at a time. None for 0."""
    if not turns:
        yield {}
        return
    with tempfile.NamedTemporaryFile(prefix="temper-validation-") as lock:
        yield {"lock": lock.name, "turns": turns}


@contextlib.contextmanager
def exclusive(request: Request, stage: Stage) -> Iterator[None]:
    """In a child: wait until all others are ready, too, and none measures; one that dies frees the lock.

    Afterwards, until all have measured: to check results also takes host memory and links. One that died, or
    hangs, is waited for no longer than READY_S.
    """
    path = request.parameters.get("lock")
    if path is None:
        yield
        return
    turns = request.parameters["turns"]
    stage(WAITING)
    with Path(path).open("ab", buffering=0) as lock:
        # Each process leaves a mark when it is ready, and one when it has measured.
        lock.write(b".")
        _wait_for_marks(lock.fileno(), turns)
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
        lock.write(b".")
        fcntl.flock(lock, fcntl.LOCK_UN)
        stage(WAITING)
        _wait_for_marks(lock.fileno(), 2 * turns)


def _wait_for_marks(lock: int, wanted: int) -> None:
    """Until the file has so many, or none came for READY_S."""
    found, since = -1, time.monotonic()
    while found < wanted and time.monotonic() < since + READY_S:
        if (size := os.fstat(lock).st_size) != found:
            found, since = size, time.monotonic()
        else:
            time.sleep(LOOK_S)  # a file says nothing of its size by itself


def without_waiting(outcomes: list[ProcessOutcome]) -> list[ProcessOutcome]:
    """Return what is to be judged: processes that only waited for one that hung are not to blame."""
    others = [outcome for outcome in outcomes if outcome.stage != WAITING]
    return others if failures(others) else outcomes
