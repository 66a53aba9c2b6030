"""Training on all ranks at once: what each rank more adds, and whether gradients are the mean of all."""

from __future__ import annotations

import dataclasses
import math
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from validation.backends.factory import STARTING
from validation.backends.protocol import Backend, Operation, Shape
from validation.backends.sampling import MOST_ATTEMPTS, rate, spread
from validation.checks.check import (
    BEYOND_QUICK,
    CUDA,
    TORCH,
    TWO_GPUS,
    Check,
    CostStep,
    IdleNode,
    Need,
    Scope,
    series,
)
from validation.checks.collectives import (
    CONNECTING,
    MEETING,
    PIECE_S,
    RANK_PATIENCE,
    WARM_UP_RUNS,
    affordable_runs,
    name_the_culprit,
    order_of,
    seconds_of,
)
from validation.checks.launch import Recorder, on_device
from validation.checks.measured import CUDA_ENVIRONMENT, Telemetry, result, watch
from validation.checks.node import Node
from validation.checks.training import CPU_SHAPE, GPU_SHAPE, memory_of, mixed_format
from validation.model.contract import Measured, Measurement, TestResult
from validation.model.not_run import NotRunError
from validation.model.plans import Timing
from validation.model.quantities import NOISY_SPREAD, number
from validation.processes.child import BEGINNING, LOADING, Request
from validation.processes.pool import ProcessOutcome, run_children

#: The largest difference from the mean of all gradients, as a part of it, that rounding explains: sums of a
#: few ranks in fp32; with mixed precision the two also round their products differently.
TOLERANCE = {"fp32": 1e-3, "bf16": 5e-2, "fp16": 5e-2}
#: Beside a step: gradients once more in the buckets that are summed, and the model to compare with.
MORE_MEMORY = 1.3
#: Below this part of what so many ranks alone would do, advice is given.
GOOD_SCALING = 0.9
#: The stages of a rank, in their order.
STAGES = (
    *(BEGINNING, LOADING, STARTING, "making the model", "training alone", MEETING, CONNECTING),
    *("distributing the model", "warming up together", "training together", "checking gradients", "leaving"),
)


def train(backend: Backend, request: Request, stage: Callable[[str], None]) -> Measured:
    """Return one rank's part.

    Its details hold the seconds of each step. Raises NotRunError, in all ranks alike.
    """
    parameters = request.parameters
    shape, recorder = Shape(**parameters["shape"]), Recorder(backend, request, stage, of_gpu=False)
    way = mixed_format(backend) or "fp32"
    # Before anything is allocated: torch keeps what it had.
    needed, free = MORE_MEMORY * memory_of(shape), backend.free_bytes()
    stage("making the model")
    if parameters["rank"] == 0 and free >= needed:
        # The others wait until it comes: so it is alone.
        operation = backend.training(shape, way)
        conditions: dict[str, int | str] = {"batch": shape.batch, "format": way}
        doing = "training alone"
        recorder.rate("one_rank_training_samples_s", operation, doing=doing, scale=1, conditions=conditions)
        del operation
    meet(backend, parameters, needed, free, stage)
    stage("distributing the model")
    operation = backend.parallel_training(shape, way)
    seconds, attempts = time_together(backend, operation, parameters["timing"], stage, "together")
    recorder.check(
        operation,
        doing="checking gradients",
        case="parallel",
        tolerance=TOLERANCE[way],
        ranks=parameters["world_size"],
    )
    stage("leaving")
    backend.barrier()
    return recorder.measured({"seconds": seconds, "attempts": attempts, "format": way, "batch": shape.batch})


measure = on_device(train)


def meet(
    backend: Backend, parameters: dict[str, Any], needed: float, free: float, stage: Callable[[str], None]
) -> None:
    """Join the other ranks. Raises NotRunError, in all, where one has fewer `free` bytes than `needed`."""
    stage(MEETING)
    backend.join(parameters["rank"], parameters["world_size"], parameters["store"], parameters["timeout_s"])
    stage(CONNECTING)
    if (least := -backend.highest(-free)) < needed:
        raise NotRunError(
            f"{needed / 1e9:.1f} GB of free memory needed, {least / 1e9:.1f} GB found on a rank"
        )


def time_together(
    backend: Backend, operation: Operation, timing: dict[str, Any], stage: Callable[[str], None], how: str
) -> tuple[list[float], int]:
    """Return seconds of each step of all ranks, and how many attempts it took; all ranks must do the same.

    The stages are `warming up` and `training`, and `how`.
    """
    go_on = partial(stage, f"warming up {how}")
    typical = backend.highest(min(seconds_of(backend, operation, WARM_UP_RUNS, PIECE_S, go_on)))
    runs = affordable_runs(typical, timing["most"], timing["measure_s"])
    go_on = partial(stage, f"training {how}")
    seconds, attempts = seconds_of(backend, operation, runs, typical, go_on), 1
    # All ranks measure again, or none.
    while backend.highest(spread(seconds)) > NOISY_SPREAD and attempts < MOST_ATTEMPTS:
        seconds, attempts = seconds_of(backend, operation, runs, typical, go_on), attempts + 1
    return [round(run, 7) for run in seconds], attempts


def together(outcomes: list[ProcessOutcome]) -> list[Measurement]:
    """Return the rates of one rank and of all, and the scaling: nothing where a rank brought none.

    A step is as slow as its slowest rank. Scaling is samples/s of N ranks over N times those of one.
    """
    details = [outcome.measured.details for outcome in outcomes]
    alone = [one for outcome in outcomes for one in outcome.measured.measurements]
    if len(alone) != 1 or not all(one.get("seconds") for one in details):
        return alone
    ranks, first = len(outcomes), details[0]
    slowest = [max(run) for run in zip(*(one["seconds"] for one in details), strict=True)]
    conditions: dict[str, int | str] = {
        "batch": first["batch"],
        "format": first["format"],
        "ranks": ranks,
    }
    every = rate(
        "parallel_training_samples_s",
        ranks * first["batch"],
        slowest,
        1,
        conditions=conditions,
        attempts=first["attempts"],
    )
    scaling = Measurement(
        "scaling_share",
        round(every.value / (ranks * alone[0].value), 4),
        min(every.samples, alone[0].samples),
        round(math.hypot(every.spread, alone[0].spread), 4),
        None,
        conditions,
    )
    return [*alone, every, scaling]


def advice(found: list[Measurement]) -> str:
    """Return what to do where ranks wait for each other; nothing where they scale well, up to the noise."""
    scaling = next((one for one in found if one.name == "scaling_share"), None)
    if scaling is None or scaling.spread > NOISY_SPREAD:
        return ""
    if scaling.value * (1 + scaling.spread) >= GOOD_SCALING:
        return ""
    ranks, value = scaling.conditions["ranks"], scaling.value
    one, every = (
        next(number(m.value) for m in found if m.name == name)
        for name in ("one_rank_training_samples_s", "parallel_training_samples_s")
    )
    return (
        f"{ranks} ranks train {every} samples/s, one {one}: {value:.0%} (± {scaling.spread * value:.0%}) of "
        f"{ranks} times as many; take a larger batch for each rank, accumulate gradients (no_sync), sum them "
        "in bf16 (ddp_comm_hooks), and compare the bus bandwidth of all_reduce with its floor"
    )


class CpuParallelTraining(Check):
    """The same as `gpu_parallel_training` with gloo between processes of one thread, in fp32."""

    id = "cpu_parallel_training"
    title = "DistributedDataParallel between processes"
    place = 360
    scope = Scope.CPU
    needs: ClassVar[tuple[Need, ...]] = (TORCH,)
    plans = BEYOND_QUICK
    passes = "as `gpu_parallel_training`"
    headline = ("parallel_training_samples_s",)

    #: How often a model is made.
    models = 2

    def cost(self, idle: IdleNode) -> Iterator[CostStep]:
        """Yield how long it takes."""
        yield CostStep("start", idle.start)
        yield from series(idle.plan.cpu, 2)
        yield CostStep("model", idle.training, self.models)

    def perform(self, node: Node) -> TestResult:
        """Train on this node."""
        ranks = [(f"rank {rank}", 0) for rank in range(4 if node.cpus >= 4 else 2)]
        # Each rank has one thread, alone as well as together: else one alone would have all CPUs.
        environment = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        return self._train(node, ranks, "cpu", CPU_SHAPE, node.plan.cpu, environment)

    def _train(
        self,
        node: Node,
        ranks: list[tuple[str, int]],
        backend: str,
        shape: Shape,
        timing: Timing,
        environment: dict[str, str],
        telemetry: Telemetry | None = None,
    ) -> TestResult:
        """Run one process for each (name, device) of `ranks`, and say what came of all."""
        with tempfile.TemporaryDirectory(prefix="temper-validation-") as directory:
            shared = {
                "world_size": len(ranks),
                "store": str(Path(directory) / "store"),
                "timeout_s": node.budget_s * RANK_PATIENCE,
                "shape": dataclasses.asdict(shape),
                "timing": dataclasses.asdict(timing),
            }
            requests = [
                Request(
                    name,
                    self.function,
                    backend,
                    device=device,
                    parameters=shared | {"rank": rank},
                    environment=environment,
                )
                for rank, (name, device) in enumerate(ranks)
            ]
            outcomes = run_children(
                requests,
                node.budget_s,
                together=True,
                patience_s=self.patience_s(node),
                tick=telemetry.tick if telemetry else None,
            )
        return self.conclude(outcomes, telemetry)

    def conclude(self, outcomes: list[ProcessOutcome], telemetry: Telemetry | None = None) -> TestResult:
        """From how the ranks ended to the result."""
        found = together(outcomes)
        # Processes on the CPUs of one node are no way to train: they show that this torch does it right.
        text = advice(found) if self.scope is Scope.ALL_GPUS else ""
        return result(
            self,
            without_details(outcomes),
            measurements=found,
            findings=name_the_culprit(outcomes, order_of(STAGES)),
            details={"all ranks": {"advice": {"Training on several ranks": [text]}}} if text else None,
            telemetry=telemetry,
        )


class GpuParallelTraining(CpuParallelTraining):
    """The step of `gpu_amp` in mixed precision with DistributedDataParallel over all GPUs of the node.

    First on one GPU while the others wait, then on all, 8 samples each. Scaling is the samples/s of all over
    so many times those of one; below 90 %, by more than the noise, the details advise.
    """

    id = "gpu_parallel_training"
    title = "DistributedDataParallel over the GPUs of the node"
    place = 365
    scope = Scope.ALL_GPUS
    needs = (TWO_GPUS, CUDA)
    passes = "each rank's gradients are the mean of those of all, and all have the same weights after a step"

    def cost(self, idle: IdleNode) -> Iterator[CostStep]:
        """Yield how long it takes."""
        yield CostStep("start", idle.start)
        yield CostStep("contexts", idle.contexts)
        yield CostStep("NCCL", idle.communicator)
        yield from series(idle.plan.gpu_copy, 2)
        yield CostStep("model", idle.training, self.models)

    def perform(self, node: Node) -> TestResult:
        """Train on this node."""
        node.pool.close()  # for the memory of its processes, too
        node.free_exclusive_gpu()
        ranks = [(f"rank {gpu.index} (GPU {gpu.index})", gpu.index) for gpu in node.gpus]
        timing = node.plan.gpu_copy
        return self._train(node, ranks, "cuda", GPU_SHAPE, timing, CUDA_ENVIRONMENT, watch(node))


def without_details(outcomes: list[ProcessOutcome]) -> list[ProcessOutcome]:
    """Leave out the seconds of each step, which stand in no result."""
    return [
        dataclasses.replace(outcome, measured=dataclasses.replace(outcome.measured, details={}))
        for outcome in outcomes
    ]
