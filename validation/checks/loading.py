"""Data loading: how many samples a second come from how many workers, and what shared memory allows."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from typing import TYPE_CHECKING, Any

from validation.backends.factory import make
from validation.backends.protocol import LimitError, WorkerError
from validation.backends.sampling import calm, rate
from validation.checks.measured import CUDA_ENVIRONMENT, failures, not_run, result
from validation.checks.recorder import Recorder
from validation.model.plans import Timing
from validation.processes.child import Request
from validation.processes.pool import run_children

if TYPE_CHECKING:
    from collections.abc import Callable

    from validation.backends.protocol import Backend
    from validation.checks.node import Node
    from validation.model.contract import Measured, Measurement, TestResult
    from validation.processes.pool import Outcome

SHARED_MEMORY = "/dev/shm"  # noqa: S108 - where torch's workers leave their batches
#: More workers than these are seldom worth their memory.
MOST_WORKERS = 32
#: Fewer workers are better if they bring nearly as much: they cost memory, and CPUs of others.
NEARLY = 0.95
#: What the kernel, and torch before the kernel, say of a shared memory that is full.
FULL = ("Bus error", "shared memory", "No space left on device")


def measure(request: Request, stage: Callable[[str], None]) -> Measured:
    """In a child: a sweep over numbers of workers, with pinned memory and without. Raises NotRunError."""
    stage("loading torch")
    return sweep(make(request.backend, request.device), request, stage, free_shared_memory())


def sweep(backend: Backend, request: Request, stage: Callable[[str], None], shared_bytes: int) -> Measured:
    """The measurement itself, on any backend, with so much shared memory."""
    # Workers, limits and shared memory are the node's.
    recorder = Recorder(backend, request, stage, of_gpu=False)
    counts = worker_counts(request.parameters["cpus"])
    fitting = [count for count in counts if backend.shared_bytes(count) <= shared_bytes]
    if len(fitting) < len(counts):
        recorder.find(
            "shm-too-small",
            "small",
            folder=SHARED_MEMORY,
            free_gb=shared_bytes / 1e9,
            workers=counts[-1],
            needed_gb=backend.shared_bytes(counts[-1]) / 1e9,
            tried=fitting[-1],
        )
    found: list[Measurement] = []
    for pinned in (False, True) if backend.name == "cuda" else (False,):
        for workers in fitting:
            stage(f"loading with {workers} workers{', pinned' if pinned else ''}")
            try:
                with contextlib.closing(backend.loading(workers, pinned=pinned)) as loading:
                    # What the workers had ready, and the first of their own pace.
                    loading.take(2 * workers + 2)
                    timing = Timing(**request.parameters["timing"])
                    # The lambda is called before the loop goes on.
                    seconds, attempts = calm(lambda: _windows(loading.take, workers, timing))  # noqa: B023 - called at once
                    error = loading.error()
            except WorkerError as reason:
                _blame(recorder, workers, str(reason))
                continue
            except LimitError as reason:
                recorder.find("loader-limited", workers=workers, reason=reason)
                fitting = fitting[: fitting.index(workers)]  # for pinned memory, too
                break
            conditions: dict[str, int | str] = {"workers": workers, "pin_memory": int(pinned)}
            work = loading.work * _window(workers)
            found.append(rate("loading_samples_s", work, seconds, 1, None, conditions, attempts))
            if not error <= 0:
                recorder.find("wrong-result", "samples", error=error, workers=workers)
    return recorder.measured(_advice(found, request) if found else None, more=found + _best(found))


def worker_counts(cpus: int) -> list[int]:
    """None, powers of two, and one for each CPU, within MOST_WORKERS."""
    most = min(cpus, MOST_WORKERS)
    return [0, *sorted({1 << power for power in range(most.bit_length())} | {most})]


def free_shared_memory() -> int:
    """Bytes; none where there is no such file system."""
    try:
        found = os.statvfs(SHARED_MEMORY)
    except OSError:
        return 0
    return found.f_bavail * found.f_frsize


def _window(workers: int) -> int:
    """Batches that are timed in one go: workers deliver at about the same time, so some from each."""
    return max(2, 2 * workers)


def _windows(take: Callable[[int], float], workers: int, timing: Timing) -> list[float]:
    seconds: list[float] = []
    while len(seconds) < timing.least or (sum(seconds) < timing.measure_s and len(seconds) < timing.most):
        seconds.append(take(_window(workers)))
    return seconds


def _blame(recorder: Recorder, workers: int, reason: str) -> None:
    if any(words in reason for words in FULL):
        recorder.find("shm-too-small", "full", workers=workers, folder=SHARED_MEMORY, reason=reason)
    else:
        recorder.find("loader-worker-died", workers=workers, reason=reason)


def _best(found: list[Measurement]) -> list[Measurement]:
    """The setting to take: the fewest workers that bring nearly the most."""
    most = max((one.value for one in found), default=0)
    enough = [one for one in found if one.value >= NEARLY * most]
    enough.sort(key=lambda one: (int(one.conditions["workers"]), -one.value))
    return [dataclasses.replace(one, name="best_loading_samples_s", conditions={}) for one in enough[:1]]


def _advice(found: list[Measurement], request: Request) -> dict[str, Any]:
    best = _best(found)[0]
    setting = next(one.conditions for one in found if one.value == best.value)
    pins = ", pin_memory=True" if setting["pin_memory"] else ""
    pinning = "" if request.backend == "cuda" else "; pinned memory needs a GPU and was not tried"
    workers = f"num_workers={setting['workers']}{pins}"
    return {"advice": f"{workers} is enough here: {best.value:.0f} samples/s{pinning}"}


class DataLoading:
    """On CPUs, and with a GPU to its memory: what a training job is fed with at best."""

    id = "data_loading"
    title = "samples a second from a DataLoader, by its workers"
    needs = "torch"
    method = 1
    headline: tuple[str, ...] = ("best_loading_samples_s",)

    def run(self, node: Node) -> TestResult:
        """Run it on this node."""
        if reason := node.why_no_torch():
            return not_run(self, reason)
        started, gpu = time.monotonic(), node.why_no_cuda() is None
        request = Request(
            "the loader",
            f"{__name__}:measure",
            "cuda" if gpu else "cpu",
            parameters={"cpus": node.cpus, "timing": dataclasses.asdict(node.plan.cpu)},
            environment=CUDA_ENVIRONMENT,
        )
        node.free_exclusive_gpu()
        return conclude(self, started, run_children([request], node.budget_s))


def conclude(check: DataLoading, started: float, outcomes: list[Outcome]) -> TestResult:
    """From how the process ended to the result: nothing that goes wrong in it is of one GPU."""
    findings = [dataclasses.replace(finding, device=None) for finding in failures(outcomes)]
    return result(check, started, outcomes, findings=findings)
