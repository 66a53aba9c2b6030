"""One NVIDIA GPU, timed with CUDA events."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed

from validation.backends import NotRunError
from validation.backends.exchange import Exchange, any_rank, join
from validation.backends.operations import AllReduce, BothWays, Copy, Matmul, MemoryPattern, Triad, pattern
from validation.backends.training import TrainingStep

if TYPE_CHECKING:
    from validation.backends import Operation, Product, Shape


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
        assert isinstance(operation, Matmul | Copy | BothWays | Triad | AllReduce | Exchange | TrainingStep)
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
        """What the hardware multiplies in: bf16 and tf32 from Ampere on, fp8 from Ada on."""
        capability = torch.cuda.get_device_capability(self._device)
        if capability < (8, 0):
            return ("fp32", "fp16")
        return ("fp32", "tf32", "fp16", "bf16", *(("fp8",) if capability >= (8, 9) else ()))

    def free_bytes(self) -> int:
        """Free memory of the GPU, as the driver sees it."""
        return int(torch.cuda.mem_get_info(self._device)[0])

    def matmul(self, dtype: str, size: int) -> Product:
        """A square product in this format."""
        return Matmul(self._device, dtype, size)

    def copy(self, direction: str, size_bytes: int) -> Operation:
        """A copy within the GPU, to another one, or between it and host memory."""
        place, _, kind = direction.partition("_")
        host = pattern(size_bytes)
        device = host.to(self._device)
        if place == "local":
            return Copy(device, torch.empty_like(device))
        if place == "peer":
            return Copy(device, torch.empty_like(device, device=torch.device("cuda", int(kind))))
        if kind != "pageable":
            host = host.pin_memory()
        to_device = Copy(host, torch.empty_like(device))
        to_host = Copy(device, torch.empty(host.shape, dtype=host.dtype, pin_memory=kind != "pageable"))
        if place == "both":
            return BothWays(to_device, to_host, self._device)
        return to_device if place == "h2d" else to_host

    def triad(self, size_bytes: int) -> Operation:
        """A = b + s c in the GPU's memory."""
        return Triad(self._device, size_bytes)

    def memory_pattern(self, size_bytes: int) -> Operation:
        """A pattern test of so much of the GPU's memory."""
        return MemoryPattern(self._device, size_bytes)

    def training(self, shape: Shape, way: str) -> Operation:
        """A training step."""
        return TrainingStep(self._device, shape, way)

    def join(self, rank: int, world_size: int, store: str, timeout_s: float) -> None:
        """Meet the others over NCCL."""
        join("nccl", rank, world_size, store, timeout_s)

    def barrier(self) -> None:
        """Wait for all ranks."""
        torch.distributed.barrier()
        torch.cuda.synchronize(self._device)

    def any_rank(self, flag: bool) -> bool:
        """Whether any rank says yes."""
        return any_rank(flag, self._device)

    def collective(self, kind: str, size_bytes: int) -> Operation:
        """A collective over all ranks."""
        return (
            AllReduce(self._device, size_bytes)
            if kind == "all_reduce"
            else Exchange(self._device, kind, size_bytes)
        )
