"""The largest batch that a training step fits in memory with, found by trying, and its speed."""

from __future__ import annotations

import dataclasses
import gc
import math
from collections.abc import Callable

from validation.backends.protocol import SCALED, Backend, Shape
from validation.checks.launch import Recorder, on_device
from validation.checks.training import CpuTraining, GpuTraining, mixed_format
from validation.model.contract import Measured
from validation.model.not_run import NotRunError, out_of_memory
from validation.processes.child import Request

#: Of the free memory of a GPU, what the search may take; the rest is for libraries and the driver.
GPU_SHARE = 0.9
#: A CPU has no memory of its own to fill: the tensors of the search get this much of it, and no more.
CPU_BUDGET_BYTES = 128 << 20
#: The search ends when it knows the batch to one part in so many. It is bounded in any case: so many samples
#: fill the memory of no GPU with this model.
PARTS = 32
MOST_SAMPLES = 4096


def search(backend: Backend, request: Request, stage: Callable[[str], None]) -> Measured:
    """Return the measurement itself, on any backend. Raises NotRunError."""
    shape, recorder = Shape(**request.parameters["shape"]), Recorder(backend, request, stage)
    if backend.name == "cpu":
        recorder.need(2 * CPU_BUDGET_BYTES)
        way, budget = "fp32", CPU_BUDGET_BYTES
    else:
        way = mixed_format(backend) or "fp32"
        budget = int(GPU_SHARE * backend.free_bytes())
    backend.limit_memory(budget)
    losses: dict[int, float | None] = {}

    def fits(batch: int) -> bool:
        stage(f"training with a batch of {batch}")
        losses[batch] = backend.try_step(dataclasses.replace(shape, batch=batch), way)
        return losses[batch] is not None

    batch = largest(fits)
    if not batch:
        raise NotRunError(f"not even one sample fits in {budget / 1e9:.2g} GB")
    wrong = [size for size, loss in losses.items() if loss is not None and not math.isfinite(loss)]
    if wrong:
        recorder.find("wrong-result", "loss", who=request.name, batch=wrong[0])
    fitted = batch
    while batch and not fits(batch):
        batch //= 2
    if not batch and not wrong:
        raise NotRunError(
            f"a batch of {fitted} fitted in {budget / 1e9:.3g} GB, and none did after larger ones had run "
            "out of memory: something else took it meanwhile, or this torch keeps it"
        )
    if batch < fitted:
        recorder.find(
            "memory-not-returned", who=request.name, fitted=fitted, budget_gb=budget / 1e9, batch=batch
        )
    ran_out: list[int] = []
    if batch:
        # It was measured in fp32 before: the two do not compare.
        conditions: dict[str, int | str] = {"format": way} if way == SCALED else {}

        def train(batch: int) -> None:
            # Without the batch as a condition: large ones are all about equally fast, and so compare.
            recorder.rate(
                "largest_batch_training_samples_s",
                backend.training(dataclasses.replace(shape, batch=batch), way),
                doing=f"measuring a batch of {batch}",
                scale=1,
                conditions=conditions,
            )

        batch, ran_out = largest_that_goes_on(train, batch)
        recorder.keep("largest_batch_samples", batch)
    details = {"format": way, "budget_bytes": budget, "tried": sorted(losses)}
    return recorder.measured(details | ({"ran_out_when_timed": ran_out} if ran_out else {}))


measure = on_device(search)


def largest_that_goes_on(train: Callable[[int], None], batch: int) -> tuple[int, list[int]]:
    """Train for as long as a measurement takes: the batch that could, and those that ran out of memory.

    Two steps that fit prove no third: memory fragments. Each time twice as much is given up as before.
    Raises what the smallest raised.
    """
    ran_out: list[int] = []
    less = max(1, batch // PARTS)
    while True:
        try:
            train(batch)
        except (RuntimeError, MemoryError) as error:
            if batch <= less or not (isinstance(error, MemoryError) or out_of_memory(error)):
                raise
        else:
            return batch, ran_out
        # Here, when the exception, and with it the frames that hold tensors, is gone.
        gc.collect()
        ran_out.append(batch)
        batch, less = batch - less, 2 * less


def largest(fits: Callable[[int], bool], most: int = MOST_SAMPLES) -> int:
    """Return the largest batch that fits, to one part in PARTS.

    Double until one does not, then halve the gap.

    None above `most` is tried.
    """
    good, bad = 0, 1
    while bad <= most and fits(bad):
        good, bad = bad, 2 * bad
    bad = min(bad, most + 1)
    while bad - good > max(1, good // PARTS):
        middle = (good + bad) // 2
        if fits(middle):
            good = middle
        else:
            bad = middle
    return good


class CpuBatch(CpuTraining):
    """The same as `gpu_batch` on the CPU, within 128 MiB of tensors: running out of them harms nobody."""

    id = "cpu_batch"
    title = "the largest batch within a fixed part of memory"
    place = 340
    passes = "as `gpu_batch`"
    headline = ("largest_batch_samples",)


class GpuBatch(GpuTraining):
    """The largest batch of the step of `gpu_amp` that fits in 90 % of a GPU's free memory; its samples/s.

    Doubled until memory does not suffice, then bisected to 3 %. A batch that runs out of memory only when it
    is timed is lowered till it can be.
    """

    id = "gpu_batch"
    title = "the largest batch that fits in every GPU"
    place = 345
    passes = "losses are finite, and the batch still fits after larger ones did not"
    headline = ("largest_batch_samples",)
    alone = True
