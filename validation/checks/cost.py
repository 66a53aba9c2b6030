"""What things cost on an idle node: the steps of which checks add up how long they take.

The costs are assumptions for a server with eight GPUs and persistence mode. One H200 took 26 and 32 s for the
quick plan, which is 53 s here (2026-11-26); what a model costs was read off it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

from validation.checks.recorder import LATER_WARM_UP
from validation.model.plans import Plan, Timing


@dataclass(frozen=True)
class IdleNode:
    """A node on which a plan runs, and the seconds that something takes there, whatever the plan says."""

    plan: Plan
    gpus: int = 8
    first_start: float = 6.0  # Python and torch, from disk
    start: float = 3.0  # the same from the page cache, on all GPUs at once
    contexts: float = 2.0  # one on each GPU, at once
    nvidia_smi: float = 1.0  # nvidia-smi -q -x, on all GPUs
    libraries: float = 1.8  # cuDNN, NCCL, and a computation on each GPU, one after the other
    container: float = 5.0  # start one and ask nvidia-smi there
    product: float = 0.3  # make matrices, checksums and the check of a product
    buffers: float = 2.0  # page-locked memory filled with a pattern, and compared at the end
    compared: float = 0.3  # a copy between GPUs, brought to the host from both
    pattern_s_gb: float = 0.06  # write and read a GB of memory, twice
    memory_bytes: float = 72e9  # of a GPU, what the pattern test finds free
    communicator: float = 4.0  # NCCL finds its ways
    gloo: float = 1.0  # ranks meet, sum, and check
    training: float = 4.0  # make a model, and compare its gradients


@dataclass(frozen=True)
class CostStep:
    """A part of a check, so many times so many seconds."""

    what: str
    seconds: float
    times: int = 1

    def __str__(self) -> str:
        return f"{self.what} {f'{self.times} x ' if self.times > 1 else ''}{self.seconds:.3g}"


def series(timing: Timing, count: int = 1, gpus: int = 1) -> list[CostStep]:
    """`count` numbers of one process, which is warm after the first; of each of `gpus` in turn."""
    steps = [
        CostStep("warm up", timing.warm_up_s),
        CostStep("warm up again", LATER_WARM_UP * timing.warm_up_s, count - 1),
        CostStep("measure", timing.measure_s, count),
    ]
    return [dataclasses.replace(step, times=step.times * gpus) for step in steps]


def total(steps: Iterable[CostStep]) -> float:
    """Return seconds of all steps."""
    return sum(step.seconds * step.times for step in steps)
