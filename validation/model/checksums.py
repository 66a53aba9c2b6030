"""Checksums of products, bit for bit: the same on equal GPUs, and on one GPU at all times.

cuBLAS gives the same bits at every run, on GPUs of one architecture with as many SMs, from one version of it
to no other, while one stream is active (its manual, "Results Reproducibility"): which is how products are
taken here. So another checksum of one GPU under equal conditions is silent data corruption.

Two GPUs of one model may still differ and both be right: units are switched off in other places of their
chips, for which cuBLAS may choose another kernel, and that rounds otherwise. So who differs from others is
degraded as long as its own products pass their check, which allows for rounding, and fails where they do not.
Kernels of `gpu_corruption` that are no products have no such excuse: there a minority fails.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from validation.model.contract import Digest, Finding, GpuIdentity, NodeResult, StringEnum
from validation.model.quantities import label

#: Findings that say that a GPU does not repeat itself: its bits are no measure of later ones. Those of a GPU
#: that only differs from others are.
UNSTABLE = frozenset({"differs-from-own-past", "not-repeatable"})
#: Findings that rounding does not explain, whatever kernel was chosen.
WRONG = frozenset({"wrong-result", "not-repeatable"})


class Standing(StringEnum):
    """How a value stands among some that should be one; without a majority nobody knows who is wrong."""

    USUAL = "usual"
    MINORITY = "minority"
    UNDECIDED = "undecided"


def standings(values: Sequence[str]) -> tuple[Standing, ...]:
    """Return how each of these values stands among all of them."""
    counts = Counter(values)
    if not counts:
        return ()
    usual, most = counts.most_common(1)[0]
    if 2 * most <= len(values):
        return (Standing.UNDECIDED if len(counts) > 1 else Standing.USUAL,) * len(values)
    return tuple(Standing.USUAL if value == usual else Standing.MINORITY for value in values)


def computes_wrong(gpu: int | None, findings: Iterable[Finding]) -> bool:
    """Return whether the findings of a test say that this GPU's products are off by more than rounding."""
    return any(one.device == gpu and one.code in WRONG for one in findings)


def rounds(digest: Digest) -> bool:
    """Return whether another kernel, which a library may choose, gives other bits that are right, too.

    Only products are the libraries'; other kernels are torch's own, the same on all GPUs of a model.
    """
    return "pattern" not in digest.conditions or digest.name.startswith("product_")


def product(digest: Digest) -> str:
    """`bf16 product of 8192 x 8192 x 8192`, or `exp of normal numbers`."""
    if "pattern" in digest.conditions:
        return f"{label(digest.name)} of {digest.conditions['pattern']} numbers"
    shape = " x ".join(str(digest.conditions[edge]) for edge in ("m", "n", "k") if edge in digest.conditions)
    return f"{label(digest.name)} product" + (f" of {shape}" if shape else "")


def gpu_of(digest: Digest, result: NodeResult) -> GpuIdentity | None:
    """Return the GPU that a checksum was taken on."""
    return next((gpu for gpu in result.gpus if gpu.index == digest.device), None)
