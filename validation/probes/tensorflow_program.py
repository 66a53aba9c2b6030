"""What the operator's TensorFlow is asked. It runs in his Python (3.9 or newer), which has nothing of ours.

The last line of what it prints is JSON: `missing`, why TensorFlow cannot be imported; or its `version`,
`built_with_cuda`, a list `gpus` (`error`, empty if it computed right; `free_before` and `free_after`, in
bytes or null), and `mixed_precision`, what is wrong with it, or empty.
"""

from __future__ import annotations

import ctypes
import json
import operator
from collections.abc import Callable
from typing import Any

#: Products of so many whole numbers up to six are exact in every format that a GPU multiplies fp32 in.
SIZE = 64


def main() -> None:
    """Ask, and print the answer."""
    try:
        import tensorflow as tf  # type: ignore[import-untyped,unused-ignore]  # it is not ours
    except ImportError as error:
        print(json.dumps({"missing": first_line(error)}))
        return
    gpus = tf.config.list_physical_devices("GPU")
    before = [free_bytes(index) for index in range(len(gpus))]
    # Before anything runs: what cannot be placed on a GPU is an error, and memory is taken as it is needed.
    tf.config.set_soft_device_placement(False)
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    answers = [
        {
            "error": error_of(product, tf, index),
            "free_before": before[index],
            "free_after": free_bytes(index),
        }
        for index in range(len(gpus))
    ]
    mixed = error_of(mixed_precision, tf) if gpus else ""
    cuda = bool(tf.test.is_built_with_cuda())
    print(
        json.dumps(
            {
                "version": tf.__version__,
                "built_with_cuda": cuda,
                "gpus": answers,
                "mixed_precision": mixed,
            }
        )
    )


def product(tf: Any, index: int) -> str:
    """Return what is wrong with a product of whole numbers on this GPU.

    It is compared with one on the host.
    """
    rows = [[float((SIZE * row + column) % 7) for column in range(SIZE)] for row in range(SIZE)]
    with tf.device(f"/GPU:{index}"):
        numbers = tf.constant(rows, dtype=tf.float32)
        found = tf.linalg.matmul(numbers, numbers, transpose_b=True)
    if f"GPU:{index}" not in found.device:
        return f"its result is on {found.device}"
    right = [sum(map(operator.mul, row, column)) for row in rows for column in rows]
    wrong = sum(map(operator.ne, right, (one for row in found.numpy().tolist() for one in row)))
    return f"{wrong} of {SIZE * SIZE} numbers of a product are wrong" if wrong else ""


def mixed_precision(tf: Any) -> str:
    """Return what is wrong with a layer under the policy mixed_float16: fp16 with weights in fp32."""
    tf.keras.mixed_precision.set_global_policy("mixed_float16")
    with tf.device("/GPU:0"):
        layer = tf.keras.layers.Dense(1, kernel_initializer="ones", use_bias=False)
        found = layer(tf.ones((1, SIZE)))
    kinds = (found.dtype.name, str(layer.variable_dtype))
    if kinds != ("float16", "float32"):
        return f"a layer computes in {kinds[0]} with weights in {kinds[1]}, expected float16 and float32"
    value = float(found.numpy()[0][0])
    return "" if value == SIZE else f"the sum of {SIZE} ones is {value:g}"


def error_of(ask: Any, *arguments: Any) -> str:
    """Return what it says, or the error that it raises, whatever it is."""
    try:
        words: str = ask(*arguments)
    except Exception as error:  # noqa: BLE001 - TensorFlow's errors have no base class of their own
        return first_line(error)
    return words


def first_line(error: BaseException) -> str:
    """Return the error in one line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}".rstrip(": ")


def free_bytes(index: int, library: str = "libcuda.so.1") -> int | None:
    """Free memory of a GPU, as the driver sees it; None where it does not say.

    In its primary context, which TensorFlow computes in, too.
    """
    try:
        cuda = ctypes.CDLL(library)
    except OSError:
        return None
    device, context = ctypes.c_int(), ctypes.c_void_p()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    steps: tuple[Callable[[], int], ...] = (
        lambda: cuda.cuInit(0),
        lambda: cuda.cuDeviceGet(ctypes.byref(device), index),
        lambda: cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device),
        lambda: cuda.cuCtxPushCurrent_v2(context),
        lambda: cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)),
        lambda: cuda.cuCtxPopCurrent_v2(ctypes.byref(context)),
    )
    return free.value if all(step() == 0 for step in steps) else None


if __name__ == "__main__":
    main()
