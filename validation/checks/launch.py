"""How checks start their measuring processes, on the CPU or on GPUs, and the loop that measures in them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from validation.backends.factory import make
from validation.backends.protocol import Backend, Operation
from validation.backends.sampling import rate, times
from validation.checks.check import LATER_WARM_UP, Check
from validation.checks.measured import each_gpu, failures, result, stay_near, watch
from validation.checks.node import Node
from validation.findings.catalogue import finding
from validation.model.contract import Digest, Finding, GpuIdentity, Measured, Measurement, TestResult
from validation.model.not_run import NotRunError
from validation.model.plans import Timing
from validation.processes.child import Request
from validation.processes.pool import ProcessOutcome, run_children

Stage = Callable[[str], None]

WAITING = "waiting for the other GPUs"
#: For others that fill page-locked memory, which would disturb one that measures, and for their turns: less
#: than the least time after which processes without progress are said to hang.
READY_S = 30.0
LOOK_S = 0.02


class Recorder:
    """What one measuring process found so far: numbers, and results that were wrong.

    With `of_gpu`, they are the request's GPU's, if it has one; else the node's.
    """

    def __init__(
        self, backend: Backend, request: Request, stage: Callable[[str], None], *, of_gpu: bool = True
    ) -> None:
        self.backend = backend
        self.device = request.device if of_gpu and request.backend == "cuda" else None
        self._name = request.name
        self._timing = Timing(**request.parameters["timing"])
        self._stage = stage
        self._warm = False
        self._measurements: list[Measurement] = []
        self._findings: list[Finding] = []

    def need(self, size_bytes: int) -> None:
        """Raise NotRunError where the device has less free memory."""
        if (free := self.backend.free_bytes()) < size_bytes:
            raise NotRunError(f"{size_bytes / 1e9:.1f} GB of free memory needed, {free / 1e9:.1f} GB found")

    def rate(
        self,
        name: str,
        operation: Operation,
        *,
        doing: str,
        per_run: float = 1.0,
        scale: float = 1e9,
        conditions: dict[str, int | str] | None = None,
        peak: str = "",
        timing: Timing | None = None,
    ) -> Measurement:
        """Measure how often `operation` runs, as `per_run` times its work a second in units of `scale`.

        Under the name `peak`, what the fastest tenth of the runs reached; `timing` in place of the request's.
        """
        go_on = partial(self._stage, doing)
        seconds, attempts = times(self.backend, operation, timing or self._timing, go_on)
        if not self._warm:
            self._warm = True
            self._timing = replace(self._timing, warm_up_s=LATER_WARM_UP * self._timing.warm_up_s)
        found = rate(name, per_run * operation.work, seconds, scale, self.device, conditions, attempts)
        self._measurements.append(found)
        if peak:
            fastest = sorted(seconds)[: max(1, len(seconds) // 10)]
            self._measurements.append(
                rate(peak, per_run * operation.work, fastest[-1:], scale, self.device, conditions, attempts)
            )
        return found

    def keep(self, name: str, value: float, conditions: dict[str, int | str] | None = None) -> None:
        """Keep a number that is counted, not timed."""
        self._measurements.append(Measurement(name, round(value, 4), 1, 0.0, self.device, conditions or {}))

    def check(
        self,
        operation: Operation,
        *,
        doing: str,
        case: str,
        tolerance: float = 0.0,
        **facts: Any,
    ) -> None:
        """Check the result by another route, outside of what is timed.

        `case` is that of a wrong result, `facts` are what its sentence says beside the name and the error.
        """
        self._stage(doing)
        error = operation.error()
        if not error <= tolerance:  # also catches NaN
            self.find("wrong-result", case, who=self._name, error=error, **facts)

    def find(self, code: str, case: str = "", /, **facts: Any) -> None:
        """Keep a finding about this device, or the node."""
        self._findings.append(finding(code, case, gpu=self.device, **facts))

    def measured(
        self,
        details: dict[str, Any] | None = None,
        more: Iterable[Measurement] = (),
        digests: Iterable[Digest] = (),
    ) -> Measured:
        """Return all of it, for the parent; `more` are numbers that were taken in another way."""
        return Measured(
            (*self._measurements, *more),
            tuple(self._findings),
            details=details or {},
            digests=tuple(digests),
        )


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


def without_torch(check: Check, node: Node, name: str, **parameters: Any) -> TestResult:
    """Run a check in one process that needs no torch, and whose details are all that the result has."""
    request = Request(name, check.function, "none", parameters=parameters)
    outcomes = run_children([request], node.budget_s)
    return replace(result(check, outcomes), details=outcomes[0].measured.details)


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
