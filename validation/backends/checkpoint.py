"""A checkpoint of the training model: saved and loaded with torch, through a file that tells its progress."""

from __future__ import annotations

import io
import os
import pickle
import time
from collections.abc import Callable
from typing import Any

import torch

from validation.backends.protocol import CheckpointError, Shape
from validation.backends.training import TransformerStep
from validation.model.not_run import cause

#: Bytes between two looks at the clock.
PIECE = 8 << 20


class WatchedFile(io.FileIO):
    """An open file that writes and reads all it is asked for; every piece of that is progress."""

    def __init__(self, descriptor: int, go_on: Callable[[], None]) -> None:
        super().__init__(descriptor, "r+b", closefd=False)
        self._go_on = go_on
        self.failed: OSError | None = None

    def write(self, data: Any) -> int:
        """Write all of it. Raises OSError, and keeps it: torch has an error of its own for that."""
        whole = memoryview(data).cast("B")
        done = 0
        try:
            while done < len(whole):
                done += super().write(whole[done : done + PIECE]) or 0
                self._go_on()
        except OSError as error:
            self.failed = error
            raise
        return done

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer, or as much of it as there is. Raises OSError, and keeps it."""
        whole = memoryview(buffer).cast("B")
        done = 0
        try:
            while done < len(whole):
                count = super().readinto(whole[done : done + PIECE])
                if not count:
                    break
                done += count
                self._go_on()
        except OSError as error:
            self.failed = error
            raise
        return done


class Checkpoint:
    """Weights and optimizer state of the training model after one step, as a job keeps them to go on from."""

    def __init__(self, device: torch.device, shape: Shape) -> None:
        step = TransformerStep(device, shape, "fp32")
        step.prepare()
        step.run()
        step.prepare()  # no gradients: they are not kept
        self._state = step.state()
        self.size_bytes = sum(tensor.nbytes for tensor in _tensors(self._state))

    def save(self, descriptor: int, go_on: Callable[[], None]) -> float:
        """Return seconds until all of it is on the storage, in an empty file. Raises OSError."""
        os.ftruncate(descriptor, 0)
        os.lseek(descriptor, 0, os.SEEK_SET)
        file = WatchedFile(descriptor, go_on)
        start = time.perf_counter()
        try:
            torch.save(self._state, file)
        except RuntimeError as error:
            raise file.failed or error from error
        os.fsync(descriptor)
        return time.perf_counter() - start

    def load(self, descriptor: int, go_on: Callable[[], None]) -> float:
        """Return seconds until all of it is in memory again. Raises OSError and CheckpointError."""
        os.lseek(descriptor, 0, os.SEEK_SET)
        file = WatchedFile(descriptor, go_on)
        start = time.perf_counter()
        try:
            found = torch.load(file, map_location="cpu", weights_only=True)
        except (RuntimeError, pickle.UnpicklingError, EOFError) as error:
            if file.failed:
                raise file.failed from error
            raise CheckpointError(f"it cannot be read: {cause(error)}") from error
        seconds = time.perf_counter() - start
        pairs = zip(_tensors(self._state), _tensors(found), strict=True)
        try:
            wrong = sum(not torch.equal(right, one) for right, one in pairs)
        except ValueError as error:
            raise CheckpointError("it has another number of tensors") from error
        if wrong:
            raise CheckpointError(f"{wrong} of its tensors differ")
        return seconds


def _tensors(state: Any) -> list[torch.Tensor]:
    """Return all tensors of nested dictionaries and lists, in their order."""
    if isinstance(state, torch.Tensor):
        return [state]
    values = state.values() if isinstance(state, dict) else state if isinstance(state, list) else ()
    return [tensor for value in values for tensor in _tensors(value)]
