"""Verdicts on a GPU, a test, a node and a fleet: their form, as the summary of a report has it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from validation.model.bounds import Bounds
from validation.model.contract import Finding, State


@dataclass(frozen=True)
class GpuVerdict:
    """A GPU, judged. `model` is its name in the table of models, empty where that does not know it.

    `not-run`: no test looked at it, or one of GPUs that is required could not run. `findings` are the codes
    of what was found on it, or on GPUs of this node without saying on which.
    """

    index: int
    uuid: str
    name: str
    pci_address: str
    model: str
    state: State
    findings: tuple[str, ...] = ()


@dataclass(frozen=True)
class TestVerdict:
    """A test on a node, judged. `headline` is the number that stands for it, with its unit, or empty."""

    __test__ = False  # not pytest's

    id: str
    state: State
    required: bool
    headline: str
    reason: str
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class NodeVerdict:
    """A node, judged. `reasons` are sentences: why it did not pass."""

    node: str
    state: State
    exit_status: int
    gpus: str
    tests: tuple[TestVerdict, ...]
    reasons: tuple[str, ...]
    gpu_verdicts: tuple[GpuVerdict, ...] = ()


@dataclass(frozen=True)
class FleetVerdict:
    """All nodes, judged. `sentence` says it in one."""

    schema_version: int
    state: State
    exit_status: int
    sentence: Annotated[str, Bounds(16 << 20)]
    nodes: tuple[NodeVerdict, ...]
