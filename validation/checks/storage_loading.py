"""Loading the operator's own files with a DataLoader: by its workers, their prefetching, and their epochs."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from validation.backends import files
from validation.backends.factory import make
from validation.backends.protocol import WORKER_PATIENCE_S, Backend, LimitError, Loading, WorkerError
from validation.backends.sampling import calm, rate, repeated
from validation.checks.check import TORCH, CostStep, IdleNode, series
from validation.checks.launch import Recorder
from validation.checks.loading import MOST_WORKERS, NEARLY, blame, free_shared_memory, worker_counts
from validation.checks.node import Node
from validation.checks.storage import StorageCheck
from validation.findings.catalogue import finding
from validation.model.contract import Measured, Measurement
from validation.model.not_run import NotRunError
from validation.model.plans import Timing
from validation.model.quantities import number
from validation.processes.child import Request

BATCH = 32
#: torch's own prefetch_factor, which the numbers of workers are tried with, and what is tried beside it.
PREFETCH, MORE_PREFETCH = 2, (4, 8)
#: As good as endless; and the batches of a short epoch, for each worker.
ENDLESS, SHORT = 1 << 24, 4


@dataclasses.dataclass(frozen=True)
class Setting:
    """How a DataLoader is set."""

    workers: int
    prefetch: int = PREFETCH
    persistent: bool = False
    #: Of an epoch.
    batches: int = ENDLESS

    @property
    def conditions(self) -> dict[str, int | str]:
        """For the numbers that are taken with it."""
        epochs = {"persistent_workers": int(self.persistent)} if self.batches < ENDLESS else {}
        return {"workers": self.workers, "prefetch_factor": self.prefetch, **epochs}


def measure(request: Request, stage: Callable[[str], None]) -> Measured:
    """In a child: the files of one folder. Raises NotRunError."""
    return sweep(make("cpu", 0, stage), request, stage, free_shared_memory())


def sweep(backend: Backend, request: Request, stage: Callable[[str], None], shared_bytes: int) -> Measured:
    """Return the measurement itself, on any backend, with so much shared memory. Raises NotRunError."""
    path = Path(request.parameters["path"])
    data = files.found(path, BATCH, partial(stage, f"looking for files in {path}"))
    trial = _Trial(backend, request, stage, data)
    try:
        return _sweep(trial, shared_bytes)
    except OSError as error:
        if data.has_changed():
            raise NotRunError(f"{path} was written to while it was read: {error}") from error
        return Measured(findings=(finding("storage-error", path=path, error=error.strerror or error),))


def _sweep(trial: _Trial, shared_bytes: int) -> Measured:
    batch_bytes = files.largest_batch(trial.data.pieces, BATCH)

    def fits(setting: Setting) -> bool:
        return not setting.workers or batch_bytes * (setting.prefetch * setting.workers + 2) <= shared_bytes

    counts = worker_counts(trial.request.parameters["cpus"])
    rates = trial.all([one for one in map(Setting, counts) if fits(one)])
    details: dict[str, Any] = {"files": len(trial.data.changed_ns), "sample_bytes": trial.data.mean_bytes}
    if not rates:
        return trial.recorder.measured(details)
    workers = _enough(rates).workers
    advice = []
    if workers:
        more = [Setting(workers, prefetch) for prefetch in MORE_PREFETCH]
        rates |= trial.all([one for one in more if fits(one)])
        best = _enough({one: found for one, found in rates.items() if one.workers == workers})
        batches = SHORT * workers
        epochs = trial.all(
            [dataclasses.replace(best, persistent=stay, batches=batches) for stay in (False, True)],
            "file_epochs_samples_s",
        )
        advice += _advice_on_epochs(list(epochs.values()))
    else:
        best = Setting(0)
    most = rates[best]
    gb_s = most.value * trial.data.mean_bytes / 1e9
    ready = f", prefetch_factor={best.prefetch}" if best.workers else ""
    advice.insert(
        0,
        f"num_workers={best.workers}{ready} is enough for the files of {trial.path}: "
        f"{most.value:.0f} samples/s, {number(gb_s)} GB/s",
    )
    details["advice"] = {"DataLoader": advice}
    conditions: dict[str, int | str] = {"path": str(trial.path)}
    bests = [
        dataclasses.replace(most, name="best_file_loading_samples_s", conditions=conditions),
        dataclasses.replace(most, name="best_file_loading_gb_s", value=round(gb_s, 4), conditions=conditions),
    ]
    return trial.recorder.measured(details, more=[*trial.found, *bests])


class _Trial:
    """Tries settings on one folder, and keeps what comes of each."""

    def __init__(
        self, backend: Backend, request: Request, stage: Callable[[str], None], data: files.Found
    ) -> None:
        self.request, self.data, self.path = request, data, Path(request.parameters["path"])
        self.recorder = Recorder(backend, request, stage, of_gpu=False)
        self.found: list[Measurement] = []
        self._backend, self._stage = backend, stage
        self._timing = Timing(**request.parameters["timing"])

    def all(
        self, settings: list[Setting], name: str = "file_loading_samples_s"
    ) -> dict[Setting, Measurement]:
        """Return the rates of these settings; those with which workers die are findings. Raises OSError."""
        rates: dict[Setting, Measurement] = {}
        for setting in settings:
            try:
                with contextlib.closing(self._open(setting)) as loading:
                    rates[setting] = self._rate(loading, setting, name)
                    error = loading.error()
            except WorkerError as reason:
                if self.data.has_changed():
                    raise NotRunError(f"{self.path} was written to while it was read: {reason}") from reason
                blame(self.recorder, setting.workers, str(reason))
                continue
            except LimitError as reason:
                self.recorder.find("loader-limited", workers=setting.workers, reason=reason)
                break
            if not error <= 0:
                if self.data.has_changed():
                    raise NotRunError(f"{self.path} was written to while it was read: name other files")
                self.recorder.find("wrong-result", "samples", error=error, workers=setting.workers)
        self.found += rates.values()
        return rates

    def _open(self, setting: Setting) -> Loading:
        return self._backend.file_loading(
            self.data.pieces,
            setting.workers,
            prefetch=setting.prefetch,
            persistent=setting.persistent,
            batches=setting.batches,
        )

    def _rate(self, loading: Loading, setting: Setting, name: str) -> Measurement:
        stays = f", {'persistent' if setting.persistent else 'new'} in each epoch"
        go_on = partial(
            self._stage,
            f"loading files of {self.path} with {setting.workers} workers, {setting.prefetch} batches ready"
            f"{stays if setting.batches < ENDLESS else ''}",
        )
        go_on()
        # A whole epoch, with its start, or some batches of each worker. What they had ready is not timed.
        window = setting.batches if setting.batches < ENDLESS else max(2, 2 * setting.workers)
        loading.take(max(window, setting.prefetch * setting.workers + 2), go_on)
        seconds, attempts = calm(partial(repeated, partial(loading.take, window, go_on), self._timing))
        conditions = {"path": str(self.path), **setting.conditions}
        return rate(name, loading.work * window, seconds, 1, None, conditions, attempts)


def _enough(rates: dict[Setting, Measurement]) -> Setting:
    """Return the setting to take: the fewest workers and batches that bring nearly the most."""
    most = max(one.value for one in rates.values())
    enough = [setting for setting, one in rates.items() if one.value >= NEARLY * most]
    return min(enough, key=lambda one: (one.workers, one.prefetch))


def _advice_on_epochs(rates: list[Measurement]) -> list[str]:
    """Return what workers that stay gain at the start of an epoch, where it is more than the noise."""
    if len(rates) != 2:
        return []
    new, persistent = rates
    gain, noise = persistent.value / new.value, math.hypot(new.spread, persistent.spread)
    if gain - 1 <= noise * gain:
        return []
    batches = SHORT * int(new.conditions["workers"])
    sooner = batches * BATCH * (1 / new.value - 1 / persistent.value)
    return [
        f"persistent_workers=True begins each epoch {number(sooner)} s sooner (± {number(noise * sooner)})"
    ]


class StorageLoading(StorageCheck):
    """Samples/s of a DataLoader over the files in each folder of `gpu_validation_storage_paths`.

    A sample is a file, or a MiB of a larger one, read past the page cache and handed over as bytes; 32 a
    batch. With no worker up to one for each CPU; then with larger `prefetch_factor`, and over short epochs
    with and without `persistent_workers`. Links are not followed. With fewer than 32 samples it is not run.
    """

    id = "storage_loading"
    title = "samples a second from the operator's own files"
    place = 318
    needs = (*StorageCheck.needs, TORCH)
    passes = "every sample is what is in its file and arrives in its place, and no worker dies"
    headline = ("best_file_loading_samples_s",)

    def parameters(self, node: Node) -> dict[str, Any]:
        """Return what the measurement is told besides the path and its timing."""
        return {"cpus": node.cpus}

    def cost(self, idle: IdleNode) -> Iterator[CostStep]:
        """Yield how long it takes for one path."""
        yield CostStep("start", idle.start)
        yield from series(idle.plan.cpu, len(worker_counts(MOST_WORKERS)) + len(MORE_PREFETCH) + 2)

    def patience_s(self, node: Node) -> float:
        """Longer than the loader's own with a worker: it says which setting hangs, and goes on."""
        return max(super().patience_s(node), 2 * WORKER_PATIENCE_S)
