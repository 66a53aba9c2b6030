"""How fast a training job's checkpoint is saved and loaded, and whether it comes back as it was."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from validation.backends import storage
from validation.backends.protocol import Backend, CheckpointError, Shape
from validation.backends.sampling import rate, repeated
from validation.checks.check import TORCH, CostStep, IdleNode
from validation.checks.launch import on_device
from validation.checks.node import Node
from validation.checks.storage import StorageCheck
from validation.findings.catalogue import finding
from validation.model.contract import Measured, Measurement
from validation.model.not_run import NotRunError
from validation.model.plans import Timing
from validation.model.quantities import number
from validation.processes.child import Request

#: Fixed, so that numbers compare: 50 million weights and their momentum, 0.4 GB.
SHAPE = Shape(layers=4, width=1024, heads=16, tokens=16, batch=1)
#: The state, its gradients, and what is loaded again.
MEMORY_SHARE = 3
#: How often it is saved, and loaded, at least and at most, and how long one may take: a plan must end.
LEAST, MOST, LONGEST_S = 3, 8, 60.0
#: A model that many train, for the advice: weights and two moments of AdamW in fp32.
BILLION_WEIGHTS, BYTES_A_WEIGHT = 7, 12


def save_and_load(backend: Backend, request: Request, stage: Callable[[str], None]) -> Measured:
    """Return the measurement itself, on any backend. Raises NotRunError."""
    path = Path(request.parameters["path"])
    timing = dataclasses.replace(Timing(**request.parameters["timing"]), least=LEAST, most=MOST)
    about = 8 * 12 * SHAPE.width**2 * SHAPE.layers
    if (free := backend.free_bytes()) < MEMORY_SHARE * about:
        needed = f"{MEMORY_SHARE * about / 1e9:.1f} GB of free memory needed"
        raise NotRunError(f"{needed}, {free / 1e9:.1f} GB found")
    stage("making a model")
    checkpoint = backend.checkpoint(SHAPE)
    size = checkpoint.size_bytes
    measurements: list[Measurement] = []
    conditions: dict[str, int | str] = {"path": str(path)}
    try:
        with storage.own_file(path, 2 * size) as (descriptor, has_cache):
            go_on = partial(stage, f"writing to {path}")
            if (seconds := size / storage.first_rate(descriptor, go_on)) > LONGEST_S:
                raise NotRunError(
                    f"{path} is so slow that a checkpoint of {size / 1e9:.2g} GB would take {seconds:.0f} s"
                )
            go_on = partial(stage, f"saving a checkpoint in {path}")
            saves = repeated(partial(checkpoint.save, descriptor, go_on), timing)
            measurements.append(rate("checkpoint_save_gb_s", size, saves, 1e9, None, conditions))
            go_on = partial(stage, f"loading a checkpoint from {path}")
            how = storage.UNKNOWN if has_cache else storage.dropped(descriptor, size)

            def load() -> float:
                storage.dropped(descriptor, size)
                return checkpoint.load(descriptor, go_on)

            loads = repeated(load, timing)
            measurements.append(
                rate("checkpoint_load_gb_s", size, loads, 1e9, None, conditions | {"cache": how})
            )
    except CheckpointError as error:
        return Measured(tuple(measurements), (finding("checkpoint-differs", path=path, reason=error),))
    except OSError as error:
        return Measured(findings=(finding("storage-error", path=path, error=error.strerror or error),))
    measurements.append(Measurement("checkpoint_gb", round(size / 1e9, 4), 1, 0.0, None, conditions))
    return Measured(tuple(measurements), details={"advice": {"Checkpoints": [advice(measurements[0])]}})


measure = on_device(save_and_load)


def advice(saved: Measurement) -> str:
    """Return what the rate means for a job that waits until its checkpoint is saved."""
    size_gb = BILLION_WEIGHTS * BYTES_A_WEIGHT
    return (
        f"one process saves {number(saved.value)} GB/s to {saved.conditions['path']}: the {size_gb} GB of "
        f"{BILLION_WEIGHTS} billion weights with AdamW in fp32 take {number(size_gb / saved.value)} s, in "
        "which a job waits; save in the background, or shards by all ranks (torch.distributed.checkpoint)"
    )


class StorageCheckpoint(StorageCheck):
    """A model with its optimizer, saved and loaded in each folder of `gpu_validation_storage_paths`.

    By torch.save and torch.load (`weights_only`): 0.4 GB in a file of our own without a name, three to eight
    times. Saving ends when the storage has it (fsync), loading begins with its pages dropped from the cache.
    """

    id = "storage_checkpoint"
    title = "saving and loading a checkpoint where the training data is"
    place = 316
    needs = (*StorageCheck.needs, TORCH)
    passes = "every tensor comes back as it was"
    headline = ("checkpoint_save_gb_s",)

    def parameters(self, _node: Node) -> dict[str, Any]:
        """Nothing but the path: its size is fixed."""
        return {}

    def cost(self, idle: IdleNode) -> Iterator[CostStep]:
        """Yield how long it takes for one path."""
        yield CostStep("start", idle.start)
        yield CostStep("model", idle.training)
        yield CostStep("save and load", idle.plan.cpu.measure_s, 2)

    def patience_s(self, node: Node) -> float:
        """Longer than one may take: while storage synchronises a file, nothing tells how far it is."""
        return max(super().patience_s(node), 2 * LONGEST_S * node.stretch)
