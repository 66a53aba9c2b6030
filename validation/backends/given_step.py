"""A training step of the user's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

#: Steps before any is timed: the first one makes what an optimizer keeps.
FIRST_STEPS = 2


class GivenStep:
    """What `make_step(batch)` returns, called for one step; work is in samples.

    Each run waits for its device: the step may use streams of its own, which no event of ours would see.
    """

    def __init__(self, device: torch.device, make_step: Callable[[int], Any], batch: int) -> None:
        """Raise TypeError where it returns something else than a function."""
        self.work = float(batch)
        self._device = device
        self._step = make_step(batch)
        if not callable(self._step):
            raise TypeError(
                f"{getattr(make_step, '__name__', make_step)}({batch}) returned {type(self._step).__name__}; "
                "expected a function that runs one training step"
            )

    def prepare(self) -> None:
        """Nothing: every run does the same."""

    def run(self) -> None:
        """Run one step, to its end."""
        self._step()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def error(self) -> float:
        """None: what is right of it nobody knows but its author."""
        return 0.0
