"""Checksums of products, bit for bit: the same on equal GPUs, and on one GPU at all times.

cuBLAS gives the same bits at every run, on GPUs of one architecture with as many SMs, from one version of it
to no other, while one stream is active (its manual, "Results Reproducibility"): which is how products are
taken here. So another checksum under equal conditions is silent data corruption.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from validation.model.contract import State
from validation.model.quantities import label

if TYPE_CHECKING:
    from collections.abc import Sequence

    from validation.model.contract import Digest, GpuIdentity, NodeResult

#: Findings that say that bits are not to be trusted.
CODES = frozenset({"gpu-differs", "differs-from-fleet", "differs-from-own-past", "not-repeatable"})


def outliers(values: Sequence[str]) -> tuple[State, ...]:
    """Of values that should be one, how each stands: those against a majority fail.

    Without a majority nobody can say which of them is wrong: then none is condemned, and all are named.
    """
    counts = Counter(values)
    if len(counts) <= 1:
        return (State.PASS,) * len(values)
    usual, most = counts.most_common(1)[0]
    if 2 * most <= len(values):
        return (State.DEGRADED,) * len(values)
    return tuple(State.PASS if value == usual else State.FAIL for value in values)


def product(digest: Digest) -> str:
    """`bf16 product of 8192 x 8192 x 8192`."""
    shape = " x ".join(str(digest.conditions[edge]) for edge in ("m", "n", "k") if edge in digest.conditions)
    return f"{label(digest.name)} product" + (f" of {shape}" if shape else "")


def gpu_of(digest: Digest, result: NodeResult) -> GpuIdentity | None:
    """The GPU that a checksum was taken on."""
    return next((gpu for gpu in result.gpus if gpu.index == digest.device), None)
