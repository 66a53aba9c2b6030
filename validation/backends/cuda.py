"""One NVIDIA GPU, timed with CUDA events."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

import torch
import torch.distributed

from validation.backends import NotRunError
from validation.backends.operations import AllReduce, Copy, Matmul, pattern

if TYPE_CHECKING:
    from validation.backends import Operation


class CudaBackend:
    """GPU number `device`, in PCI bus order (run_children's caller sets CUDA_DEVICE_ORDER)."""

    name = "cuda"

    def __init__(self, device: int) -> None:
        if torch.version.cuda is None:
            raise NotRunError(f"torch {torch.__version__} is built without CUDA")
        self._device = torch.device("cuda", device)
        try:
            torch.cuda.init()
            torch.cuda.set_device(self._device)
        except RuntimeError as error:
            # Driver too old for this torch, fabric not ready, device hidden: the first line says which.
            raise NotRunError(f"CUDA cannot be initialised: {str(error).splitlines()[0]}") from error

    def seconds(self, operation: Operation, count: int) -> list[float]:
        """An event pair around each run and one wait at the end, so that the GPU is never idle in between."""
        assert isinstance(operation, Matmul | Copy | AllReduce)
        pairs = []
        for _ in range(count):
            operation.prepare()
            start = torch.cuda.Event(enable_timing=True)
            end = torch.cuda.Event(enable_timing=True)
            start.record()
            operation.run()
            end.record()
            pairs.append((start, end))
        torch.cuda.synchronize(self._device)
        return [start.elapsed_time(end) / 1e3 for start, end in pairs]

    def dtypes(self) -> tuple[str, ...]:
        """What the hardware multiplies in: before Ampere, torch only emulates bf16 and tf32."""
        ampere = torch.cuda.get_device_capability(self._device) >= (8, 0)
        return ("fp32", "tf32", "fp16", "bf16") if ampere else ("fp32", "fp16")

    def free_bytes(self) -> int:
        """Free memory of the GPU, as the driver sees it."""
        return int(torch.cuda.mem_get_info(self._device)[0])

    def matmul(self, dtype: str, size: int) -> Operation:
        """A square product in this format."""
        return Matmul(self._device, dtype, size)

    def copy(self, direction: str, size_bytes: int) -> Operation:
        """A copy within the GPU, or between it and pinned host memory."""
        host, device = pattern(size_bytes).pin_memory(), pattern(size_bytes).to(self._device)
        if direction == "h2d":
            return Copy(host, torch.empty_like(device))
        if direction == "d2h":
            return Copy(device, torch.empty_like(host).pin_memory())
        return Copy(device, torch.empty_like(device))

    def join(self, rank: int, world_size: int, store: str, timeout_s: float) -> None:
        """Meet the others over NCCL."""
        torch.distributed.init_process_group(
            "nccl",
            rank=rank,
            world_size=world_size,
            store=torch.distributed.FileStore(store, world_size),
            timeout=datetime.timedelta(seconds=timeout_s),
        )

    def barrier(self) -> None:
        """Wait for all ranks."""
        torch.distributed.barrier()
        torch.cuda.synchronize(self._device)

    def all_reduce(self, size_bytes: int) -> Operation:
        """A sum over all ranks."""
        return AllReduce(self._device, size_bytes)
