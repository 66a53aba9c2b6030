"""Training with weights in shards (FSDP) beside copies of them (DDP): memory, speed, gradients."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from validation.backends.factory import STARTING
from validation.backends.protocol import SCALED, Backend, Shape
from validation.backends.sampling import rate
from validation.checks.collectives import CONNECTING, MEETING, name_the_culprit, order_of
from validation.checks.launch import Recorder, on_device
from validation.checks.measured import Telemetry, result
from validation.checks.parallel import (
    MORE_MEMORY,
    TOLERANCE,
    CpuParallelTraining,
    GpuParallelTraining,
    meet,
    time_together,
    without_details,
)
from validation.checks.training import memory_of, mixed_format
from validation.findings.catalogue import finding
from validation.model.contract import Measured, Measurement, TestResult
from validation.processes.child import BEGINNING, LOADING, Request
from validation.processes.pool import ProcessOutcome

#: The two ways, as numbers and stages call them.
WAYS = ("replicated", "sharded")
#: The stages of a rank, in their order.
STAGES = (
    *(BEGINNING, LOADING, STARTING, MEETING, CONNECTING),
    *(f"{doing} {way}" for way in WAYS for doing in ("making the model", "warming up", "training")),
    *("checking gradients", *(f"measuring the memory, {way}" for way in WAYS), "leaving"),
)


def train(backend: Backend, request: Request, stage: Callable[[str], None]) -> Measured:
    """Return one rank's part.

    Its details hold the seconds of each step and the memory. Raises NotRunError.
    """
    parameters = request.parameters
    shape, recorder = Shape(**parameters["shape"]), Recorder(backend, request, stage, of_gpu=False)
    # A scaler would have to know of shards: without bf16 both are in fp32.
    way = mixed_format(backend) or "fp32"
    way = "fp32" if way == SCALED else way
    needed, free = MORE_MEMORY * memory_of(shape), backend.free_bytes()
    meet(backend, parameters, needed, free, stage)
    makers = {
        "replicated": partial(backend.parallel_training, shape, way),
        "sharded": partial(backend.sharded_training, shape, way),
    }
    found: dict[str, dict[str, object]] = {}
    for name, make_step in makers.items():
        stage(f"making the model {name}")
        operation = make_step()
        seconds, attempts = time_together(backend, operation, parameters["timing"], stage, name)
        found[name] = {"seconds": seconds, "attempts": attempts}
        if name == "sharded":
            recorder.check(
                operation,
                doing="checking gradients",
                case="sharded",
                tolerance=TOLERANCE[way],
                ranks=parameters["world_size"],
            )
        del operation  # its memory is for the next one
    for name, make_step in makers.items():
        stage(f"measuring the memory, {name}")
        found[name]["bytes"] = backend.peak_with_its_making(make_step)
    stage("leaving")
    backend.barrier()
    return recorder.measured({"format": way, "batch": shape.batch, "ways": found})


measure = on_device(train)


def compared(outcomes: list[ProcessOutcome]) -> list[Measurement]:
    """Return the rate of all ranks and the memory of the fullest, of both ways.

    Nothing where a rank brought none.

    A step is as slow as its slowest rank.
    """
    details = [outcome.measured.details for outcome in outcomes]
    if not all("ways" in one for one in details):
        return []
    ranks, first = len(outcomes), details[0]
    conditions: dict[str, int | str] = {"batch": first["batch"], "format": first["format"], "ranks": ranks}
    measurements: list[Measurement] = []
    for way in WAYS:
        of_ranks = [one["ways"][way] for one in details]
        slowest = [max(run) for run in zip(*(one["seconds"] for one in of_ranks), strict=True)]
        fullest = max(one["bytes"] for one in of_ranks)
        work, attempts = ranks * first["batch"], of_ranks[0]["attempts"]
        measurements += [
            rate(f"{way}_training_samples_s", work, slowest, 1, conditions=conditions, attempts=attempts),
            Measurement(f"{way}_step_gb", round(fullest / 1e9, 4), 1, 0.0, None, conditions),
        ]
    return measurements


class CpuShardedTraining(CpuParallelTraining):
    """The same as `gpu_sharded_training` with gloo between processes of one thread, in fp32."""

    id = "cpu_sharded_training"
    title = "FSDP between processes"
    place = 370
    passes = "as `gpu_sharded_training`, but for the memory"
    headline = ("sharded_training_samples_s",)
    #: How much is gathered at the same time depends on how busy the CPUs are: 0.63 to 0.97 of DDP's memory.
    judges_memory = False

    models = 2 * len(WAYS)

    def conclude(self, outcomes: list[ProcessOutcome], telemetry: Telemetry | None = None) -> TestResult:
        """From how the ranks ended to the result."""
        found = compared(outcomes)
        findings, details = name_the_culprit(outcomes, order_of(STAGES)), None
        if found:
            values = {one.name: one.value for one in found}
            plain, step = values["replicated_step_gb"], values["sharded_step_gb"]
            if self.judges_memory and step >= plain:
                who = f"{len(outcomes)} ranks"
                findings.append(
                    finding("no-memory-saved", who=who, way="sharded", step_gb=step, plain_gb=plain)
                )
            speed = values["sharded_training_samples_s"] / values["replicated_training_samples_s"]
            details = {
                "all ranks": {
                    "memory_over_replicated": round(step / plain, 3),
                    "speed_over_replicated": round(speed, 3),
                }
            }
        return result(
            self,
            without_details(outcomes),
            measurements=found,
            findings=findings,
            details=details,
            telemetry=telemetry,
        )


class GpuShardedTraining(CpuShardedTraining, GpuParallelTraining):
    """The step of `gpu_amp` in bf16 or fp32 over all GPUs, with FSDP (torch's `fully_shard`) beside DDP.

    Each block's weights, their gradients and the optimizer are in shards; 8 samples a GPU. Samples/s and the
    peak memory of a GPU, of both. From torch 2.4 on.
    """

    id = "gpu_sharded_training"
    title = "FSDP over the GPUs of the node"
    place = 375
    judges_memory = True
    passes = "loss, gradients and weights are those of the step without shards, and shards take less memory"
