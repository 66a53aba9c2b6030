"""Which numbers and checksums of two results are the same thing, measured twice.

The same is what one test measured under one name and equal conditions on one GPU, or on the node as a whole.
A GPU is known by its UUID, because a reboot may number GPUs anew.
"""

from __future__ import annotations

from dataclasses import dataclass

from validation.model import checksums
from validation.model.contract import Digest, Measurement, NodeResult, TestResult
from validation.model.quantities import is_rate


@dataclass(frozen=True)
class NumberKey:
    """A number of a test. `where` is the GPU, by UUID or by index, None for the node as a whole."""

    name: str
    conditions: tuple[tuple[str, str], ...]
    where: str | int | None


@dataclass(frozen=True)
class DigestKey:
    """A checksum of a test: of a method, as another one makes other bits, and of a GPU of a model."""

    method: int
    name: str
    conditions: tuple[tuple[str, str], ...]
    pci_id: str
    where: str | int


def same_gpus(before: NodeResult, after: NodeResult) -> bool:
    """Return whether both were taken on the same GPUs."""
    return {gpu.uuid for gpu in before.gpus} == {gpu.uuid for gpu in after.gpus}


def numbers(test: TestResult, result: NodeResult, *, by_uuid: bool) -> dict[NumberKey, Measurement]:
    """Return the rates that a test of a result measured."""
    gpus: dict[int, str | int] = {gpu.index: gpu.uuid if by_uuid else gpu.index for gpu in result.gpus}
    return {
        NumberKey(
            one.name,
            one.taken,
            gpus.get(one.device) if one.device is not None else None,
        ): one
        for one in filter(is_rate, test.measurements)
    }


def digests(test: TestResult, result: NodeResult, *, by_uuid: bool) -> dict[DigestKey, Digest]:
    """Return the checksums of a test of a result, of GPUs that the result knows."""
    return {
        DigestKey(
            test.method,
            one.name,
            one.taken,
            gpu.pci_id,
            gpu.uuid if by_uuid else gpu.index,
        ): one
        for one in test.digests
        if (gpu := checksums.gpu_of(one, result))
    }
