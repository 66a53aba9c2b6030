"""Calls of the CUDA runtime, right and wrong ones; prints what each answered as JSON. It needs no torch."""

from __future__ import annotations

import ctypes
import json
import sys

MIB = 1 << 20
TO_DEVICE, TO_HOST, ON_DEVICE, EITHER = 1, 2, 3, 4
PINNED_MODE = 0


def main() -> None:
    """Two GPUs."""
    cuda = ctypes.CDLL(sys.argv[1])
    pointer, stream, event = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p

    def allocate(size: int) -> ctypes.c_void_p:
        made = pointer()
        assert cuda.cudaMalloc(ctypes.byref(made), ctypes.c_size_t(size)) == 0
        return made

    def copy(to: object, start: object, size: int, kind: int, on: object = None) -> int:
        return int(cuda.cudaMemcpyAsync(to, start, ctypes.c_size_t(size), kind, on))

    def make(what: str, kind: type[ctypes.c_void_p]) -> ctypes.c_void_p:
        made = kind()
        assert getattr(cuda, what)(ctypes.byref(made)) == 0
        return made

    host = ctypes.create_string_buffer(b"x" * MIB)
    back = ctypes.create_string_buffer(MIB)
    assert cuda.cudaSetDevice(0) == 0
    mine, gone = allocate(MIB), allocate(MIB)
    own_stream, own_event, never = make("cudaStreamCreate", stream), make("cudaEventCreate", event), event()
    assert cuda.cudaEventCreateWithFlags(ctypes.byref(never), 2) == 0  # without timing
    assert cuda.cudaFree(gone) == 0
    found = {
        "copy": copy(mine, host, MIB, TO_DEVICE) or copy(back, mine, MIB, TO_HOST),
        "copied": int(back.raw != host.raw[:MIB]),
        "copy over the end": copy(mine, host, MIB + 1, TO_DEVICE),
        "copy to freed memory": copy(gone, host, MIB, TO_DEVICE),
        "copy the wrong way": copy(mine, host, MIB, TO_HOST),
        "free twice": cuda.cudaFree(gone),
        "no such device": cuda.cudaSetDevice(7),
        "event": cuda.cudaEventRecord(own_event, own_stream),
        "time of an event without timing": cuda.cudaEventElapsedTime(
            ctypes.byref(ctypes.c_float()), never, own_event
        ),
        "peer": cuda.cudaDeviceEnablePeerAccess(1, 0),
        "peer again": cuda.cudaDeviceEnablePeerAccess(1, 0),
        "peer of itself": cuda.cudaDeviceEnablePeerAccess(0, 0),
        "too much memory": cuda.cudaMalloc(ctypes.byref(pointer()), ctypes.c_size_t(1 << 40)),
    }
    assert cuda.cudaSetDevice(1) == 0
    other_stream = make("cudaStreamCreate", stream)
    found["event in another GPU's stream"] = cuda.cudaEventRecord(own_event, other_stream)
    found["between GPUs"] = copy(allocate(MIB), mine, MIB, EITHER, other_stream)
    found["stream"] = cuda.cudaStreamDestroy(other_stream)
    found["stream that is gone"] = cuda.cudaStreamSynchronize(other_stream)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
