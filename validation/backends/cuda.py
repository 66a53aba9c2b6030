"""One NVIDIA GPU, timed with CUDA events."""

from __future__ import annotations

import ctypes
import itertools
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed

from validation.backends import loading as data
from validation.backends.device import TorchDevice
from validation.backends.exchange import Exchange, join
from validation.backends.libraries import loaded_version, release, runs_on
from validation.backends.operations import AllReduce, BothWays, Copy, Matmul, Triad, pattern
from validation.backends.protocol import Loading, Operation, PeerLimitError, Shape, Training
from validation.backends.training import FIRST_STEPS, GivenStep, TrainingStep, loss_if_it_fits
from validation.model.cuda_errors import HARDWARE, finding_of
from validation.model.not_run import NotRunError, cause
from validation.processes.child import collective_call

#: What CUDA says of cudaErrorTooManyPeers (cudaGetErrorString).
TOO_MANY_PEERS = "peer mapping resources exhausted"
#: CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED (cuda.h, 12.1 and newer).
MULTICAST_SUPPORTED = 132
#: The first torch whose scaled product gives one tensor back and can write it to another (pytorch#128683).
FP8_TORCH = (2, 5)


class CudaBackend(TorchDevice):
    """GPU number `device`, in PCI bus order (run_children's caller sets CUDA_DEVICE_ORDER)."""

    name = "cuda"

    def __init__(self, device: int) -> None:
        if torch.version.cuda is None:
            raise NotRunError(f"torch {torch.__version__} is built without CUDA")
        super().__init__(torch.device("cuda", device))
        try:
            torch.cuda.init()
            if reason := self._without_code():
                raise NotRunError(reason)
            torch.cuda.set_device(self._device)
            # Makes the context, which torch before 2.8 leaves to the first allocation.
            torch.cuda.mem_get_info(self._device)
        except RuntimeError as error:
            if finding_of(str(error)) in HARDWARE:
                raise
            # Driver too old for this torch, fabric not ready, device hidden or taken: its words say which.
            raise NotRunError(f"CUDA cannot be initialised: {cause(error)}") from error

    def _without_code(self) -> str | None:
        """Return why this torch has no code for the GPU; None if it may have some."""
        capability, built = torch.cuda.get_device_capability(self._device), torch.cuda.get_arch_list()
        if not built or runs_on(capability, tuple(built)):
            return None
        return (
            f"torch {torch.__version__} has no code for {torch.cuda.get_device_name(self._device)} (compute "
            f"capability {capability[0]}.{capability[1]}), only for {', '.join(built)}"
        )

    def seconds(
        self, operation: Operation, count: int, step: Callable[[], None] | None = None
    ) -> list[float]:
        """Return seconds by an event pair around each run.

        No wait before the last one: the GPU is never idle.
        """
        known = Matmul | Copy | BothWays | Triad | AllReduce | Exchange | TrainingStep | GivenStep
        assert isinstance(operation, known)
        pairs = []
        for _ in range(count):
            operation.prepare()
            start = torch.cuda.Event(enable_timing=True)
            end = torch.cuda.Event(enable_timing=True)
            start.record()
            operation.run()
            end.record()
            pairs.append((start, end))
        if step:
            for event in itertools.chain(*pairs):
                event.synchronize()
                step()
        torch.cuda.synchronize(self._device)
        return [start.elapsed_time(end) / 1e3 for start, end in pairs]

    def dtypes(self) -> tuple[str, ...]:
        """Return what the hardware multiplies in: bf16 and tf32 from Ampere on, fp8 from Ada on."""
        capability = torch.cuda.get_device_capability(self._device)
        if capability < (8, 0):
            return ("fp32", "fp16")
        fp8 = capability >= (8, 9) and release(torch.__version__) >= FP8_TORCH
        return ("fp32", "tf32", "fp16", "bf16", *(("fp8",) if fp8 else ()))

    def software(self) -> dict[str, int | str]:
        """CuBLAS and cuBLASLt, both of which torch calls, and what comes before them."""
        return {
            "torch": torch.__version__,
            "cuda": str(torch.version.cuda),
            "cublas": loaded_version("libcublas.so", "cublasGetProperty"),
            "cublaslt": loaded_version("libcublasLt.so", "cublasLtGetProperty"),
            "sms": torch.cuda.get_device_properties(self._device).multi_processor_count,
        }

    def free_bytes(self) -> int:
        """Free memory of the GPU, as the driver sees it."""
        return int(torch.cuda.mem_get_info(self._device)[0])

    def copy(self, direction: str, size_bytes: int) -> Operation:
        """Return a copy within the GPU, to another one, or between it and host memory."""
        place, _, kind = direction.partition("_")
        pinned = kind != "pageable"
        if place == "peer":
            self._map(int(kind))
        if place in {"local", "peer"}:
            source = pattern(size_bytes, self._device)
            other = self._device if place == "local" else torch.device("cuda", int(kind))
            return Copy(source, torch.empty_like(source, device=other))
        if place == "h2d":
            return self._to_device(size_bytes, pinned)
        if place == "d2h":
            return self._to_host(size_bytes, pinned)
        return BothWays(self._to_device(size_bytes, pinned), self._to_host(size_bytes, pinned), self._device)

    def _map(self, peer: int) -> None:
        """Let this GPU write to a peer, where it can, as torch does at the first copy. Raises PeerLimitError.

        Not to be asked again of a peer that was refused: torch may take it for mapped from then on.
        """
        try:
            torch.empty(1, device=torch.device("cuda", peer)).copy_(torch.empty(1, device=self._device))
        except RuntimeError as error:
            if TOO_MANY_PEERS not in str(error):
                raise
            raise PeerLimitError(cause(error)) from error

    def _to_device(self, size_bytes: int, pinned: bool) -> Copy:
        host = pattern(size_bytes, pinned=pinned)
        return Copy(host, torch.empty_like(host, device=self._device, pin_memory=False))

    def _to_host(self, size_bytes: int, pinned: bool) -> Copy:
        source = pattern(size_bytes, self._device)
        return Copy(source, torch.empty(source.shape, dtype=source.dtype, pin_memory=pinned))

    def reaches(self, peer: int) -> bool:
        """Return whether the driver offers peer access.

        Over NVLink, or over PCIe where ACS and IOMMU let it.
        """
        return bool(torch.cuda.can_device_access_peer(self._device.index, peer))

    def has_tensor_cores(self) -> bool:
        """From Volta on; GeForce GTX 16 has their instructions, and no such units."""
        return bool(torch.cuda.get_device_capability(self._device) >= (7, 0))

    def launch_seconds(self, operation: Training) -> float:
        """Until all kernels of a run are queued; a step has fewer than the queue holds."""
        assert isinstance(operation, TrainingStep)
        operation.prepare()
        torch.cuda.synchronize(self._device)
        start = time.perf_counter()
        operation.launch()
        seconds = time.perf_counter() - start
        torch.cuda.synchronize(self._device)
        return seconds

    def peak_bytes(self, operation: Operation) -> int:
        """As torch's own allocator counts."""
        assert isinstance(operation, TrainingStep)
        operation.prepare()
        torch.cuda.synchronize(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        before = torch.cuda.memory_allocated(self._device)
        operation.run()
        torch.cuda.synchronize(self._device)
        return int(torch.cuda.max_memory_allocated(self._device) - before)

    def peak_with_its_making(self, make: Callable[[], Operation]) -> int:
        """As torch's own allocator counts."""
        torch.cuda.synchronize(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        before = torch.cuda.memory_allocated(self._device)
        self.seconds(make(), 2)
        return int(torch.cuda.max_memory_allocated(self._device) - before)

    def limit_memory(self, size_bytes: int) -> None:
        """By torch's own allocator."""
        total = torch.cuda.get_device_properties(self._device).total_memory
        allowed = torch.cuda.memory_reserved(self._device) + size_bytes
        torch.cuda.set_per_process_memory_fraction(min(1.0, allowed / total), self._device)

    def try_step(self, shape: Shape, way: str) -> float | None:
        """Train two steps and forget them."""
        loss = loss_if_it_fits(self._device, shape, way)
        torch.cuda.empty_cache()
        return loss

    def first_steps(self, make_step: Callable[[int], Any], batch: int) -> tuple[Operation, int]:
        """Return a step of the user's own, made and run twice."""
        torch.cuda.reset_peak_memory_stats(self._device)
        step = GivenStep(self._device, make_step, batch)
        self.seconds(step, FIRST_STEPS)
        return step, int(torch.cuda.max_memory_allocated(self._device))

    def loading(self, workers: int, *, pinned: bool) -> Loading:
        """Return samples from so many processes."""
        return data.Loading(workers, pinned=pinned, device=self._device)

    def join(self, rank: int, world_size: int, store: str, timeout_s: float) -> None:
        """Meet the others over NCCL."""
        join("nccl", rank, world_size, store, timeout_s)

    def barrier(self) -> None:
        """Wait for all ranks."""
        with collective_call():
            torch.distributed.barrier(device_ids=[self._device.index])
        torch.cuda.synchronize(self._device)

    def has_multicast(self) -> bool:
        """Return whether the driver says that this GPU can be part of a multicast group."""
        cuda, answer, device = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_int()
        found = cuda.cuDeviceGet(ctypes.byref(device), self._device.index) == 0
        asked = found and cuda.cuDeviceGetAttribute(ctypes.byref(answer), MULTICAST_SUPPORTED, device) == 0
        return bool(asked and answer.value)
