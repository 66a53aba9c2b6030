"""Data loading: how many samples a second come from how many workers, and what shared memory allows."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from validation.backends.factory import make
from validation.backends.protocol import WORKER_PATIENCE_S, Backend, LimitError, WorkerError
from validation.backends.sampling import calm, rate, repeated
from validation.checks.check import BEYOND_QUICK, TORCH, Check, CostStep, IdleNode, Scope, series
from validation.checks.launch import Recorder
from validation.checks.measured import CUDA_ENVIRONMENT, failures, result
from validation.checks.node import Node
from validation.model.contract import Measured, Measurement, TestResult
from validation.model.plans import Timing
from validation.processes.child import Request
from validation.processes.pool import ProcessOutcome, run_children

SHARED_MEMORY = "/dev/shm"  # noqa: S108 - where torch's workers leave their batches
#: More workers than these are seldom worth their memory.
MOST_WORKERS = 32
#: Fewer workers are better if they bring nearly as much: they cost memory, and CPUs of others.
NEARLY = 0.95
#: What the kernel, and torch before the kernel, say of a shared memory that is full.
FULL = ("Bus error", "shared memory", "No space left on device")


def measure(request: Request, stage: Callable[[str], None]) -> Measured:
    """In a child: a sweep over numbers of workers, with pinned memory and without. Raises NotRunError."""
    return sweep(make(request.backend, request.device, stage), request, stage, free_shared_memory())


def sweep(backend: Backend, request: Request, stage: Callable[[str], None], shared_bytes: int) -> Measured:
    """Return the measurement itself, on any backend, with so much shared memory.

    All numbers of workers, or those that the request names; likewise for pinned memory.
    """
    # Workers, limits and shared memory are the node's.
    recorder = Recorder(backend, request, stage, of_gpu=False)
    counts = request.parameters.get("counts") or worker_counts(request.parameters["cpus"])
    pins = request.parameters.get("pins") or ((False, True) if backend.name == "cuda" else (False,))
    fitting = [count for count in counts if backend.shared_bytes(count) <= shared_bytes]
    if len(fitting) < len(counts):
        recorder.find(
            "shm-too-small",
            "small",
            folder=SHARED_MEMORY,
            free_gb=shared_bytes / 1e9,
            workers=counts[-1],
            needed_gb=backend.shared_bytes(counts[-1]) / 1e9,
            tried=fitting[-1] if fitting else 0,
        )
    found: list[Measurement] = []
    timing = Timing(**request.parameters["timing"])
    for pinned in pins:
        for workers in fitting:
            go_on = partial(stage, f"loading with {workers} workers{', pinned' if pinned else ''}")
            go_on()
            try:
                with contextlib.closing(backend.loading(workers, pinned=pinned)) as loading:
                    # What the workers had ready, and the first of their own pace.
                    loading.take(2 * workers + 2, go_on)
                    take = partial(loading.take, _window(workers), go_on)
                    seconds, attempts = calm(partial(repeated, take, timing))
                    error = loading.error()
            except WorkerError as reason:
                blame(recorder, workers, str(reason))
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


def blame(recorder: Recorder, workers: int, reason: str) -> None:
    """Say what a worker's death says of the node: too little shared memory, or something else."""
    if any(words in reason for words in FULL):
        recorder.find("shm-too-small", "full", workers=workers, folder=SHARED_MEMORY, reason=reason)
    else:
        recorder.find("loader-worker-died", workers=workers, reason=reason)


def _best(found: list[Measurement]) -> list[Measurement]:
    """Return the setting to take: the fewest workers that bring nearly the most."""
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
    return {"advice": {"DataLoader": [f"{workers} is enough here: {best.value:.0f} samples/s{pinning}"]}}


class DataLoading(Check):
    """Samples/s of a DataLoader over synthetic images, with no worker up to one for each CPU.

    Decompress, crop, flip, normalise; 32 a batch; with a GPU also to its memory, pinned and not. Its details
    advise the fewest workers that bring nearly the most.
    """

    id = "data_loading"
    title = "samples a second from a DataLoader, by its workers"
    place = 300
    scope = Scope.NODE
    needs = (TORCH,)
    plans = BEYOND_QUICK
    passes = (
        "every sample arrives in its place, no worker dies, `/dev/shm` holds what the workers have ready, "
        "and a worker for each CPU may be started"
    )
    headline = ("best_loading_samples_s",)

    def cost(self, idle: IdleNode) -> Iterator[CostStep]:
        """Yield how long it takes."""
        yield CostStep("start", idle.start)
        yield from series(idle.plan.cpu, 2 * len(worker_counts(MOST_WORKERS)))

    def perform(self, node: Node) -> TestResult:
        """Load on this node."""
        request = Request(
            "the loader",
            self.function,
            "cpu" if node.why_no_cuda() else "cuda",
            parameters={"cpus": node.cpus, "timing": dataclasses.asdict(node.plan.cpu)},
            environment=CUDA_ENVIRONMENT,
        )
        node.free_exclusive_gpu()
        return conclude(self, run_children([request], node.budget_s, patience_s=self.patience_s(node)))

    def patience_s(self, node: Node) -> float:
        """Longer than the loader's own with a worker: it says which number of workers hangs, and goes on."""
        return max(super().patience_s(node), 2 * WORKER_PATIENCE_S)


def conclude(check: DataLoading, outcomes: list[ProcessOutcome]) -> TestResult:
    """From how the process ended to the result: nothing that goes wrong in it is of one GPU."""
    findings = [dataclasses.replace(finding, device=None) for finding in failures(outcomes)]
    return result(check, outcomes, findings=findings)
