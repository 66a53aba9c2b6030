"""What a source of drivers is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from temper.plan.facts import NodeFacts
from temper.plan.model import Gpu
from temper.plan.variables import Variables

if TYPE_CHECKING:
    from temper.plan.distributions import Distribution
    from temper.plan.tables import Tables


@dataclass(frozen=True)
class Request:
    """What a source is asked for: this hardware, on this system, with the operator's variables."""

    node: NodeFacts
    tables: Tables
    variables: Variables
    distribution: Distribution
    gpus: tuple[Gpu, ...]  # those that decide the stack, and that a rule is known for
    unknown_gpus: tuple[str, ...]  # PCI ids beyond all that the tables know
    fabric: str  # none | nvswitch | nvlink5
    today: str = ""
