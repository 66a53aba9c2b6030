"""Copies: memory to memory on the CPU, and between pinned host memory and each GPU."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from validation.backends import make
from validation.checks.measured import Telemetry, each_gpu, failures, not_run, result, stay_near
from validation.checks.recorder import WRONG_DATA, Recorder
from validation.child import Request, run_children

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from validation.backends import Backend
    from validation.checks import Node
    from validation.child import Outcome
    from validation.contract import Finding, Measured, TestResult

WAITING = "waiting for its turn"

#: Measurement name and bytes moved per byte copied: a local copy reads and writes memory (as STREAM counts),
#: a transfer crosses once.
DIRECTIONS = {"local": ("copy_gb_s", 2), "h2d": ("h2d_pinned_gb_s", 1), "d2h": ("d2h_pinned_gb_s", 1)}


def measure(request: Request, stage: Callable[[str], None]) -> Measured:
    """In a child: every direction that was asked for. Raises NotRunError."""
    stay_near(request)
    stage("loading torch")
    backend = make(request.backend, request.device)
    with _turn(request.parameters.get("turn"), stage):
        return transfer(backend, request, stage)


@contextlib.contextmanager
def _turn(path: str | None, stage: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock file `path`, so that only one process measures; a process that dies gives it back."""
    if path is None:
        yield
        return
    stage(WAITING)
    with Path(path).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def transfer(backend: Backend, request: Request, stage: Callable[[str], None]) -> Measured:
    """The measurement itself, on any backend. Raises NotRunError."""
    size_bytes, recorder = request.parameters["size_bytes"], Recorder(backend, request, stage)
    recorder.need(4 * size_bytes)
    for direction in request.parameters["directions"]:
        name, moved = DIRECTIONS[direction]
        operation = backend.copy(direction, size_bytes)
        recorder.rate(
            name,
            operation,
            doing=f"copying {direction}",
            per_run=moved,
            conditions={"size_bytes": int(operation.work)},
        )
        recorder.check(
            operation,
            doing=f"checking the copy {direction}",
            wrong=partial(_changed_data, direction, size_bytes),
            action=WRONG_DATA,
        )
    return recorder.measured()


def _changed_data(direction: str, size_bytes: int, error: float) -> str:
    return f"{error:.2g} of the data arrived changed in a {direction} copy of {size_bytes / 1e6:.0f} MB"


class CpuCopy:
    """Memory bandwidth as a copy loop sees it."""

    id = "cpu_copy"
    title = "memory copy on the CPU"
    needs = "torch"
    method = 1
    headline: tuple[str, ...] = ("copy_gb_s",)

    def run(self, node: Node) -> TestResult:
        """Run it on this node."""
        if reason := node.why_no_torch():
            return not_run(self, reason)
        started = time.monotonic()
        request = Request(
            "the CPU",
            f"{__name__}:measure",
            "cpu",
            parameters={
                "size_bytes": node.plan.cpu_copy_bytes,
                "directions": ["local"],
                "timing": dataclasses.asdict(node.plan.cpu),
            },
        )
        return result(self, started, run_children([request], node.budget_s))


class GpuTransfer:
    """Host to device and back, pinned, one GPU after the other, each from the CPUs next to it."""

    id = "gpu_transfer"
    title = "transfer between host and every GPU"
    needs = "an NVIDIA GPU with its driver, torch built with CUDA"
    method = 1
    headline: tuple[str, ...] = ("h2d_pinned_gb_s", "d2h_pinned_gb_s")

    def run(self, node: Node) -> TestResult:
        """Run it on this node."""
        if reason := node.why_no_cuda():
            return not_run(self, reason)
        started = time.monotonic()
        telemetry = Telemetry(node.gpus)
        # All start at once, because starting takes longer than measuring, and take turns to measure.
        with tempfile.NamedTemporaryFile(prefix="temper-validation-") as lock:
            requests = each_gpu(
                node,
                f"{__name__}:measure",
                {
                    "size_bytes": node.plan.gpu_copy_bytes,
                    "directions": ["h2d", "d2h"],
                    "timing": dataclasses.asdict(node.plan.gpu_copy),
                    "turn": lock.name,
                },
            )
            outcomes = run_children(requests, node.budget_s, tick=telemetry.tick)
        return result(self, started, outcomes, findings=blame(outcomes), telemetry=telemetry)


def blame(outcomes: list[Outcome]) -> list[Finding]:
    """A finding for each GPU that failed; those that only waited for one that hung are not to blame."""
    culprits = [outcome for outcome in outcomes if outcome.stage != WAITING]
    return failures(culprits) or failures(outcomes)
