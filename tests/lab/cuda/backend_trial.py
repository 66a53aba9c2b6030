"""What the larger tests ask of a GPU's backend, on a model that a host can train. Prints JSON.

It runs on a machine with the stand-in, by the Python that has torch.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path.cwd()))  # the checkout

import torch

from validation.backends.cuda import CudaBackend
from validation.backends.protocol import Shape
from validation.processes.child import tidy

SMALL = Shape(layers=2, width=64, heads=2, tokens=16, batch=8)
WAYS = ("fp32", "tf32", "bf16", "accumulated", "checkpointed")
ROOM_BYTES = 64 << 20
#: cudaMemoryTypeUnregistered (driver_types.h).
UNREGISTERED = 0
#: More whole numbers than cudaPointerAttributes of any CUDA takes; the type is the first.
ATTRIBUTES = 64


def main() -> None:
    """Ask everything once."""
    backend = CudaBackend(0)
    directions = ("both", "h2d_pageable", "d2h_pageable")
    copies = {direction: backend.copy(direction, 8 << 20) for direction in directions}
    for operation in copies.values():
        assert all(seconds > 0 for seconds in backend.seconds(operation, 3))
    steps = {way: backend.training(SMALL, way) for way in WAYS}
    loading = backend.loading(1, pinned=True)
    found = {
        "copies": {direction: operation.error() for direction, operation in copies.items()},
        "errors": {way: step.error() for way, step in steps.items()},
        "peak_bytes": {way: backend.peak_bytes(step) for way, step in steps.items()},
        "loading_error": loading.error(),
        "multicast": backend.has_multicast(),
    }
    loading.close()
    found["keeps_pinned"] = _keeps_pinned_memory()
    backend.limit_memory(ROOM_BYTES)
    found["too_large"] = backend.try_step(_large(), "fp32")
    print(json.dumps(found))


def _keeps_pinned_memory() -> bool:
    """Whether page-locked memory that nobody uses stays with a process that waits for its next request."""
    runtime = ctypes.CDLL(f"libcudart.so.{str(torch.version.cuda).partition('.')[0]}")
    pinned = torch.empty(1 << 20, dtype=torch.uint8, pin_memory=True)
    address, attributes = ctypes.c_void_p(pinned.data_ptr()), (ctypes.c_int * ATTRIBUTES)()
    del pinned
    tidy()
    assert runtime.cudaPointerGetAttributes(attributes, address) == 0
    return attributes[0] != UNREGISTERED


def _large() -> Shape:
    """One that does not fit in the room that is left."""
    return Shape(SMALL.layers, SMALL.width, SMALL.heads, SMALL.tokens, batch=1 << 14)


if __name__ == "__main__":
    main()
