"""Trials on this node: an objective measured with some settings, by the payload's own checks.

Each trial has processes of its own. What a process happens to get (pages, cores, a layout of its memory) is
the same for its whole life, and would look like a gain if one process served one side and another the other.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from validation.autotune import between
from validation.autotune.journal import ChangeError, Changes
from validation.autotune.knobs import (
    FABRIC,
    GPU_TRAINING,
    INTERFACE,
    LOADING,
    SOCKETS,
    STORAGE,
    TRAINING,
    Setup,
    environment_of,
)
from validation.autotune.search import Answer, Failed, Trial
from validation.backends import storage
from validation.backends.protocol import Backend, Shape
from validation.backends.sampling import rate, repeated
from validation.checks.collectives import GpuAllReduce, run_ranks
from validation.checks.launch import on_device
from validation.checks.measured import CUDA_ENVIRONMENT
from validation.checks.precision import CpuAmp, GpuAmp
from validation.checks.registry import CHECKS
from validation.checks.training import CPU_SHAPE, GPU_SHAPE, mixed_format
from validation.model.contract import Finding, Measured, Measurement, State, worst
from validation.model.not_run import NotRunError
from validation.model.plans import MIB, Timing
from validation.processes.child import Request
from validation.processes.pool import Ending, ProcessOutcome, run_children

#: Long enough for a median of its own, short enough for many trials.
TIMING = Timing(warm_up_s=0.3, measure_s=0.7)
TRAINING_TIMING = Timing(warm_up_s=0.0, measure_s=0.7, least=1)
#: Long enough for power to be what it is under load.
GPU_TIMING = Timing(warm_up_s=0.0, measure_s=5.0, least=5)
#: The objectives that `train` measures, and the checks whose patience they have.
STEPS = {TRAINING: CpuAmp.id, GPU_TRAINING: GpuAmp.id}
STORAGE_TIMING = Timing(warm_up_s=0.0, measure_s=0.7, least=2)
#: What is read of storage: more is written once, at the start.
STORAGE_BYTES, STORAGE_WRITE_S = 1 << 30, 60.0
SOCKET_BYTES = 64 * MIB
#: Why a trial is not measured, or was not to its end.
OVER = "the minutes that it was given are over"
TOO_SHORT = "what is left of the minutes that it was given is too short to try more and prove it"
#: Has NCCL use its sockets between the GPUs of one node, which are joined in better ways.
ONLY_SOCKETS = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_NET": "Socket"}
#: Why nothing can be said of reads on such a file system.
OWN_CACHE = "its file system keeps a cache of its own, so that nobody knows what was read"
METRIC = "training_samples_s"
#: The number of each objective, for a report: its name as the payload has it.
METRICS = {
    TRAINING: METRIC,
    GPU_TRAINING: METRIC,
    LOADING: "loading_samples_s",
    SOCKETS: "busbw_gb_s",
    FABRIC: "busbw_gb_s",
    STORAGE: "storage_read_one_thread_gb_s",
}


@dataclass
class Bench:
    """Measures trials, until the node has to have its answer. `source` is what storage is read from.

    Before that it stops in time to prove what was found, by the time that trials have taken here so far
    (`took_s`, of each objective).
    """

    setup: Setup
    changes: Changes | None = None
    source: Path | None = None
    shape: Shape = CPU_SHAPE
    took_s: dict[str, list[float]] = field(default_factory=dict)

    def measure(self, trial: Trial) -> Answer:
        """Return the rate of an objective with these settings, or why there is none."""
        if not self.setup.node.left_s:
            return Failed(OVER)
        if self.setup.node.left_s < sum(self.typical_s(name) * count for name, count in trial.after.items()):
            return Failed(TOO_SHORT)
        started = time.monotonic()
        try:
            self._set_up(trial.settings)
            rates = self._rates(trial.objective, trial.settings)
        except (ChangeError, NotRunError) as error:
            return Failed(str(error))
        if isinstance(rates, Failed):
            # What it says of a trial that was cut off is of no interest.
            return rates if self.setup.node.left_s else Failed(OVER)
        self.took_s.setdefault(trial.objective, []).append(time.monotonic() - started)
        return sum(rates)

    def typical_s(self, objective: str) -> float:
        """Return how long a trial of an objective takes here: the mean, and 0 before there was one."""
        return statistics.fmean(self.took_s.get(objective, [0.0]))

    def _set_up(self, settings: Mapping[str, str]) -> None:
        for knob, value in settings.items():
            if self.changes is not None and (file := self.setup.changed_by(knob)) is not None:
                self.changes.set(file, value)

    def _rates(self, objective: str, settings: Mapping[str, str]) -> list[float] | Failed:
        if objective == SOCKETS:
            return self._all_reduce(settings)
        if objective == FABRIC:
            assert self.setup.group is not None
            rate = between.all_reduce(
                self.setup.group, self.setup.node, settings[INTERFACE], environment_of(settings)
            )
            return rate if isinstance(rate, Failed) else [rate]
        node, check = self.setup.node, CHECKS[STEPS.get(objective, objective)]
        outcomes = run_children(
            self.requests(objective, settings), node.budget_s, patience_s=check.patience_s(node)
        )
        return _rates_of(outcomes, METRICS[objective])

    def requests(self, objective: str, settings: Mapping[str, str]) -> list[Request]:
        """Return what the processes of a trial are asked; those of one trial run at the same time."""
        backend, devices, timing = "cpu", [0], TIMING
        parameters: dict[str, Any] = {}
        if objective == TRAINING:
            parameters |= {"shape": dataclasses.asdict(self.shape)}
            devices, timing = [0] * self.setup.processes, TRAINING_TIMING
        elif objective == GPU_TRAINING:
            parameters |= {"shape": dataclasses.asdict(GPU_SHAPE)}
            backend, devices, timing = "cuda", [gpu.index for gpu in self.setup.node.gpus], GPU_TIMING
        elif objective == LOADING:
            # A setting that is left out of the search stays at torch's default.
            workers = int(settings.get("loader_workers", 0))
            pins = [settings.get("loader_pin_memory", "no") == "yes"]
            parameters |= {"cpus": self.setup.cpus_each, "counts": [workers], "pins": pins}
            backend = "cpu" if self.setup.node.why_no_cuda() else "cuda"
        else:
            assert self.source is not None
            parameters |= {
                "path": str(self.source),
                "most_bytes": STORAGE_BYTES,
                "write_s": STORAGE_WRITE_S,
                "floor_gb_s": None,
                "through_cache": True,
            }
            timing = STORAGE_TIMING
        return [
            Request(
                f"process {number}",
                f"{__name__}:measure" if objective in STEPS else CHECKS[objective].function,
                backend,
                device,
                parameters=parameters | {"timing": dataclasses.asdict(timing)},
                environment=(CUDA_ENVIRONMENT if backend == "cuda" else {}) | environment_of(settings),
            )
            for number, device in enumerate(devices)
        ]

    def _all_reduce(self, settings: Mapping[str, str]) -> list[float] | Failed:
        node = self.setup.node
        result = run_ranks(
            GpuAllReduce(),
            node,
            [(f"rank {gpu.index} (GPU {gpu.index})", gpu.index) for gpu in node.gpus],
            backend="cuda",
            sizes_bytes=[SOCKET_BYTES],
            environment=CUDA_ENVIRONMENT | ONLY_SOCKETS | environment_of(settings),
            collectives=("all_reduce",),
        )
        if result.state in {State.FAIL, State.NOT_RUN}:
            return Failed(result.reason or _words(result.findings))
        return _values(result.measurements, METRICS[SOCKETS])


def _rates_of(outcomes: list[ProcessOutcome], metric: str) -> list[float] | Failed:
    """Return the number of each process, or why one has none."""
    for outcome in outcomes:
        if outcome.ending is not Ending.DONE:
            return Failed(outcome.problem)
        if outcome.measured.not_run:
            return Failed(outcome.measured.not_run)
    findings = [one for outcome in outcomes for one in outcome.measured.findings]
    if worst(one.state for one in findings) is State.FAIL:
        return Failed(_words(findings))
    rates = _values([one for outcome in outcomes for one in outcome.measured.measurements], metric)
    if isinstance(rates, list) and len(rates) < len(outcomes):
        return Failed(_words(findings) or f"a process measured no {metric}")
    return rates


def _values(measurements: list[Measurement] | tuple[Measurement, ...], metric: str) -> list[float] | Failed:
    found = [one for one in measurements if one.name == metric]
    if any(one.conditions.get("cache") == storage.UNKNOWN for one in found):
        return Failed(OWN_CACHE)
    return [one.value for one in found]


def _words(findings: list[Finding] | tuple[Finding, ...]) -> str:
    return " ".join(one.text for one in findings)


@contextlib.contextmanager
def readable(path: Path, say: Callable[[str], None]) -> Iterator[Path]:
    """Provide what trials read: the file, or in a folder one of our own, which goes with this process.

    Raises NotRunError, with the reason, and OSError.
    """
    if path.is_file():
        yield path
        return
    say(f"writing a file to read from in {path}")
    with storage.opened(path, STORAGE_BYTES, STORAGE_WRITE_S, lambda: None) as source:
        # It has no name; whoever may look at this process may open it here.
        yield Path(f"/proc/{os.getpid()}/fd/{source.descriptor}")


def train(backend: Backend, request: Request, stage: Callable[[str], None]) -> Measured:
    """Measure what threads and clocks are tuned for: a training step, which is many small operations.

    On a CPU each small operation waits for the last of its threads. With more threads than CPUs that one
    waits for a CPU, while the others keep theirs busy with waiting: what a large matrix product barely shows
    costs a step several times its time.

    One step warms up, and none is measured again for its noise, which the pairs of a search even out: with
    far too many threads a step can take many seconds.
    """
    shape = Shape(**request.parameters["shape"])
    stage("making the model")
    way = mixed_format(backend) or "fp32"
    operation = backend.training(shape, way)

    def step(doing: str) -> float:
        stage(doing)
        return backend.seconds(operation, 1)[0]

    step("warming up")
    seconds = repeated(partial(step, "training"), Timing(**request.parameters["timing"]))
    return Measured(
        (rate(METRIC, operation.work, seconds, 1, conditions={"batch": shape.batch, "format": way}),)
    )


measure = on_device(train)
