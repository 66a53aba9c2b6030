"""Make the real backend: torch is imported only here, in a measuring process."""

from __future__ import annotations

import os
from collections.abc import Callable

from validation.backends.protocol import Backend
from validation.model.not_run import NotRunError
from validation.processes.child import LOADING

#: The stage of a process between its imports and its backend.
STARTING = "starting CUDA"
#: Variables that somebody may have set for another program, and that would change what is measured: they make
#: every launch wait, load all code at the start, compile it anew or keep it from being compiled, forbid or
#: force tensor cores, let cuBLAS emulate fp32 (2.6 times as fast on a B200) and fp64 (which products are
#: checked with), choose other kernels, keep copies from overlapping, or check each collective with another
#: one. NCCL's own stay: they are how the node is tuned.
DISTORTING = (
    "CUDA_DISABLE_PTX_JIT",
    "CUDA_FORCE_PTX_JIT",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_MODULE_LOADING",
    "CUBLASLT_WORKSPACE_SIZE",
    "CUBLAS_EMULATE_DOUBLE_PRECISION",
    "CUBLAS_EMULATE_SINGLE_PRECISION",
    "CUBLAS_EMULATION_STRATEGY",
    "CUBLAS_FP32_EMULATED_BF16X9_MATH",
    "CUBLAS_WORKSPACE_CONFIG",
    "NVIDIA_TF32_OVERRIDE",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "PYTORCH_TUNABLEOP_ENABLED",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "TORCH_BLAS_PREFER_CUBLASLT",
    "TORCH_DISTRIBUTED_DEBUG",
)


def clear_environment() -> None:
    """Forget what would distort, before torch is imported, which reads some of it then."""
    for variable in DISTORTING:
        os.environ.pop(variable, None)


def make(name: str, device: int, stage: Callable[[str], None], *, own_environment: bool = False) -> Backend:
    """Return the real backend `cpu` or `cuda`. Raises NotRunError where there is none, with the reason.

    `own_environment` leaves variables that distort what is measured, for somebody's own job.
    """
    stage(LOADING)
    if not own_environment:
        clear_environment()
    try:
        import torch  # noqa: F401 - only to say early and clearly that it is missing
    except ImportError as error:
        raise NotRunError(f"torch cannot be imported: {error}") from error
    if name == "cpu":
        from validation.backends.cpu import CpuBackend

        return CpuBackend()
    stage(STARTING)
    from validation.backends.cuda import CudaBackend

    return CudaBackend(device)
