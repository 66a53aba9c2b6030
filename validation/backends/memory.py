"""Host memory that tensors take: the most at a time, and a budget. A GPU's allocator has both itself."""

from __future__ import annotations

import itertools
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.profiler
from torch.utils._python_dispatch import TorchDispatchMode

from validation.backends import traces
from validation.model.not_run import NotRunError


class MemoryBudget(TorchDispatchMode):  # type: ignore[misc]  # mypy sees no torch
    """While it is entered, the tensors that are made may hold so many bytes together.

    The tensor that exceeds it raises MemoryError. What an operation needs only inside of itself is not seen.
    """

    def __init__(self, size_bytes: int) -> None:
        super().__init__()
        self._size_bytes, self._taken = size_bytes, 0
        #: The most that they held at a time.
        self.peak_bytes = 0
        self._counted: weakref.WeakSet[Any] = weakref.WeakSet()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for one in result if isinstance(result, tuple | list) else (result,):
            if isinstance(one, torch.Tensor):
                self._count(one.untyped_storage())
        return result

    def _count(self, storage: Any) -> None:
        if storage in self._counted:  # a view of what is there already
            return
        size_bytes = storage.nbytes()
        self._counted.add(storage)
        self._taken += size_bytes
        weakref.finalize(storage, self._give_back, size_bytes)
        self.peak_bytes = max(self.peak_bytes, self._taken)
        if self._taken > self._size_bytes:
            raise MemoryError(f"{self._taken} bytes of {self._size_bytes} are taken")

    def _give_back(self, size_bytes: int) -> None:
        self._taken -= size_bytes


def peak_of_allocations(run: Callable[[], None], forget: Callable[[], None]) -> int:
    """Return the most bytes of host memory that tensors made by `run` take at the same time.

    From the trace of torch's profiler: host memory has no counters of its own. `forget` frees what `run` left
    within sight of the profiler, which else takes it for memory of the next thing it looks at.
    """
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        run()
        forget()
    events = traces.events(exported(profile))
    changes = [(event["ts"], event["args"]["Bytes"]) for event in events if event.get("name") == "[memory]"]
    return max(itertools.accumulate(change for _, change in sorted(changes)), default=0)


def exported(profile: torch.profiler.profile) -> bytes:
    """Return what torch's profiler found, as a Chrome trace.

    Raises NotRunError where there is no room for it.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="temper-validation-") as folder:
            path = Path(folder, "trace.json")
            profile.export_chrome_trace(str(path))
            return path.read_bytes()
    except OSError as error:
        raise NotRunError(f"there is no room for the profiler's trace: {error}") from error
