"""The CPU as a device: real numbers on any machine, and the same code paths as on GPUs."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed

from validation.backends import loading as data
from validation.backends.device import TorchDevice
from validation.backends.exchange import Exchange, join
from validation.backends.memory import MemoryBudget, peak_of_allocations
from validation.backends.operations import AllReduce, Copy, Matmul, Triad, pattern
from validation.backends.protocol import Loading, Operation, Shape, Training
from validation.backends.training import FIRST_STEPS, GivenStep, TrainingStep, loss_if_it_fits
from validation.processes.child import collective_call


class CpuBackend(TorchDevice):
    """All CPUs that this process may use, or OMP_NUM_THREADS of them."""

    name = "cpu"

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self._joined = False
        self._budget_bytes = sys.maxsize

    def seconds(
        self, operation: Operation, count: int, step: Callable[[], None] | None = None
    ) -> list[float]:
        """Wall-clock time of each run; ranks of a group start each together."""
        assert isinstance(operation, Matmul | Copy | Triad | AllReduce | Exchange | TrainingStep | GivenStep)
        times = []
        for _ in range(count):
            operation.prepare()
            if step:
                step()
            if self._joined:
                self.barrier()
            start = time.perf_counter()
            operation.run()
            times.append(time.perf_counter() - start)
            if step:
                step()
        return times

    def dtypes(self) -> tuple[str, ...]:
        """Only fp32: many CPUs emulate the others."""
        return ("fp32",)

    def software(self) -> dict[str, int | str]:
        """Torch's version, and into how many threads it divides the work."""
        return {"torch": torch.__version__, "threads": torch.get_num_threads()}

    def free_bytes(self) -> int:
        """Memory that is free now, without what the kernel could give back."""
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")

    def copy(self, direction: str, size_bytes: int) -> Operation:
        """Return a copy from memory to memory, whatever the direction is called: a CPU has no other."""
        source = pattern(size_bytes)
        return Copy(source, torch.empty_like(source))

    def reaches(self, peer: int) -> bool:
        """Return True: it is the same memory."""
        return True

    def has_tensor_cores(self) -> bool:
        """Nobody knows: many CPUs emulate narrower formats."""
        return False

    def launch_seconds(self, _operation: Training) -> float:
        """None: starting a run is running it."""
        return 0.0

    def peak_bytes(self, operation: Operation) -> int:
        """As torch's own allocator counts."""
        assert isinstance(operation, TrainingStep)
        operation.prepare()
        return peak_of_allocations(operation.run, operation.prepare)

    def peak_with_its_making(self, make: Callable[[], Operation]) -> int:
        """As torch's own allocator counts."""
        made: list[Operation] = []

        def run() -> None:
            made.append(make())
            self.seconds(made[0], 2)

        return peak_of_allocations(run, made.clear)

    def limit_memory(self, size_bytes: int) -> None:
        """By counting every tensor: a limit of the kernel's would also hit the work space of libraries."""
        self._budget_bytes = size_bytes

    def try_step(self, shape: Shape, way: str) -> float | None:
        """Train two steps and forget them."""
        with MemoryBudget(self._budget_bytes):
            return loss_if_it_fits(self._device, shape, way)

    def first_steps(self, make_step: Callable[[int], Any], batch: int) -> tuple[Operation, int]:
        """Return a step of the user's own, made and run twice."""
        with MemoryBudget(self._budget_bytes) as budget:
            step = GivenStep(self._device, make_step, batch)
            self.seconds(step, FIRST_STEPS)
        return step, budget.peak_bytes

    def loading(self, workers: int, *, pinned: bool) -> Loading:
        """Return samples from so many processes."""
        return data.Loading(workers, pinned=pinned, device=None)

    def join(self, rank: int, world_size: int, store: str, timeout_s: float) -> None:
        """Meet the others over gloo."""
        join("gloo", rank, world_size, store, timeout_s)
        self._joined = True

    def barrier(self) -> None:
        """Wait for all ranks."""
        with collective_call():
            torch.distributed.barrier()

    def has_multicast(self) -> bool:
        """Return no: there is no switch between processes."""
        return False
