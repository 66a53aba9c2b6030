"""Copies: memory to memory on the CPU, and between pinned host memory and each GPU."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from validation import machine
from validation.backends import NotRunError, make
from validation.checks.measured import CUDA_ENVIRONMENT, Telemetry, failures, not_run, result
from validation.child import Request, run_children
from validation.contract import Finding, Measured, State
from validation.measure import Timing, rate, times

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from validation.backends import Backend
    from validation.checks import Node
    from validation.child import Outcome
    from validation.contract import TestResult

WAITING = "waiting for its turn"

#: Measurement name and bytes moved per byte copied: a local copy reads and writes memory (as STREAM counts),
#: a transfer crosses once.
DIRECTIONS = {"local": ("copy_gb_s", 2), "h2d": ("h2d_pinned_gb_s", 1), "d2h": ("d2h_pinned_gb_s", 1)}


def measure(request: Request, stage: Callable[[str], None]) -> Measured:
    """In a child: every direction that was asked for. Raises NotRunError."""
    if near := request.parameters.get("cpus"):
        # Before anything is allocated: pinned memory on the wrong socket halves the rate.
        os.sched_setaffinity(0, set(near) & os.sched_getaffinity(0) or os.sched_getaffinity(0))
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
    size_bytes, timing = request.parameters["size_bytes"], Timing(**request.parameters["timing"])
    needed = 4 * size_bytes
    if (free := backend.free_bytes()) < needed:
        raise NotRunError(f"{needed / 1e9:.1f} GB of free memory needed, {free / 1e9:.1f} GB found")
    device = request.device if request.backend == "cuda" else None
    measurements, findings = [], []
    for direction in request.parameters["directions"]:
        name, moved = DIRECTIONS[direction]
        stage(f"copying {direction}")
        operation = backend.copy(direction, size_bytes)
        seconds = times(backend, operation, timing)
        measurements.append(
            rate(name, moved * operation.work, seconds, 1e9, device, {"size_bytes": int(operation.work)})
        )
        stage(f"checking the copy {direction}")
        if (error := operation.error()) != 0.0:
            findings.append(
                Finding(
                    "wrong-result",
                    State.FAIL,
                    f"{request.name}: {error:.2g} of the data arrived changed in a {direction} copy of "
                    f"{size_bytes / 1e6:.0f} MB",
                    "take the node out: it corrupts data without an error message",
                    device,
                )
            )
    return Measured(tuple(measurements), tuple(findings))


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
        telemetry = Telemetry()
        # All start at once, because starting takes longer than measuring, and take turns to measure.
        with tempfile.NamedTemporaryFile(prefix="temper-validation-") as lock:
            requests = [
                Request(
                    f"GPU {gpu.index}",
                    f"{__name__}:measure",
                    "cuda",
                    device=gpu.index,
                    parameters={
                        "size_bytes": node.plan.gpu_copy_bytes,
                        "directions": ["h2d", "d2h"],
                        "timing": dataclasses.asdict(node.plan.gpu_copy),
                        "cpus": machine.cpus_near(gpu.pci_address),
                        "turn": lock.name,
                    },
                    environment=CUDA_ENVIRONMENT,
                )
                for gpu in node.gpus
            ]
            outcomes = run_children(requests, node.budget_s, tick=telemetry.tick)
        return result(self, started, outcomes, findings=blame(outcomes), details=telemetry.details())


def blame(outcomes: list[Outcome]) -> list[Finding]:
    """A finding for each GPU that failed; those that only waited for one that hung are not to blame."""
    culprits = [outcome for outcome in outcomes if outcome.stage != WAITING]
    return failures(culprits) or failures(outcomes)
