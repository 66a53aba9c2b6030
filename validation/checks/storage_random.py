"""How fast the node reads small pieces anywhere in a file, as samples of training data lie in one."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from validation.backends import storage
from validation.backends.sampling import calm, rate, repeated
from validation.checks.launch import Stage
from validation.checks.storage import THREADS, StorageCheck, on_path
from validation.model.contract import Measured, Measurement
from validation.model.plans import Timing
from validation.processes.child import Request

#: About what a compressed photograph takes; and what latency decides. More threads of Python than one would
#: measure Python there: each read takes it some microseconds.
SAMPLE_BYTES, PAGE_BYTES = 128 << 10, 4 << 10
#: A sample takes about so long, and reads no more than the file has.
SECONDS, FIRST = 0.25, 8


def read(source: storage.Source, path: Path, request: Request, stage: Stage) -> Measured:
    """Measure random reads in several threads and in one. Raises OSError."""
    timing = Timing(**request.parameters["timing"])
    with ThreadPoolExecutor(THREADS) as pool:
        go_on = partial(stage, f"reading at random from {path} in {THREADS} threads")
        gb_s = _rate("storage_random_gb_s", source, pool, path, timing, go_on)
        go_on = partial(stage, f"reading at random from {path} in one thread")
        reads_s = _rate("storage_random_reads_s", source, pool, path, timing, go_on)
    return Measured((gb_s, reads_s), details={"file_bytes": source.size_bytes, "cache": source.how})


measure = on_path(read)


def _rate(
    name: str,
    source: storage.Source,
    pool: ThreadPoolExecutor,
    path: Path,
    timing: Timing,
    go_on: Callable[[], None],
) -> Measurement:
    """GB/s of samples in several threads, or reads/s of pages in one, as the name says."""
    by_bytes = name.endswith("gb_s")
    threads, size_bytes = (THREADS, SAMPLE_BYTES) if by_bytes else (1, PAGE_BYTES)
    go_on()
    seconds = source.random_seconds(pool, threads, FIRST, size_bytes, go_on)
    most = source.size_bytes // size_bytes // threads
    count = max(FIRST, min(most, int(FIRST * SECONDS / seconds)))

    def once() -> float:
        go_on()
        return source.random_seconds(pool, threads, count, size_bytes, go_on)

    taken, attempts = calm(partial(repeated, once, timing))
    conditions: dict[str, int | str] = {
        "path": str(path),
        "threads": threads,
        "size_bytes": size_bytes,
        "cache": source.how,
    }
    work, scale = (threads * count * size_bytes, 1e9) if by_bytes else (threads * count, 1.0)
    return rate(name, work, taken, scale, None, conditions, attempts)


class StorageRandomRead(StorageCheck):
    """Random reads of each path in `gpu_validation_storage_paths`, past the page cache.

    128 KiB in 8 threads, in GB/s, as photographs in one file are read; 4 KiB in one thread, in reads/s, which
    is what latency leaves. Of a file of our own of up to 1 GiB, or of the file that is there.
    """

    id = "storage_random_read"
    title = "random reads where the training data is"
    place = 314
    passes = "every read brings its bytes"
    headline = ("storage_random_gb_s",)
