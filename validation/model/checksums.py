"""Checksums of products, bit for bit: the same on equal GPUs, and on one GPU at all times.

cuBLAS gives the same bits at every run, on GPUs of one architecture with as many SMs, from one version of it
to no other, while one stream is active (its manual, "Results Reproducibility"): which is how products are
taken here. So another checksum under equal conditions is silent data corruption.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from validation.model.contract import Finding, State
from validation.model.quantities import conditions_key, label

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from validation.model.contract import Digest, GpuIdentity, NodeResult, TestResult

TAKE_OUT = "take the node out: it computes wrong without an error message"
COMPARE = "run again, and compare with another node of this model"
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


def changed(before: TestResult, now: TestResult) -> Iterator[Finding]:
    """What one GPU computed in two rounds of one run, and not the same."""
    was = {(one.name, one.device, conditions_key(one.conditions)): one for one in before.digests}
    for digest in now.digests:
        other = was.get((digest.name, digest.device, conditions_key(digest.conditions)))
        if other and other.value != digest.value:
            text = (
                f"GPU {digest.device}: its {product(digest)} had checksum {other.value}, and in a later "
                f"round {digest.value}"
            )
            yield Finding("not-repeatable", State.FAIL, text, TAKE_OUT, digest.device)
