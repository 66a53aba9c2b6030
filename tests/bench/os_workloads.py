"""Workloads that values of the operating system change, each in a process of its own; prints rates as JSON.

    python -m tests.bench.os_workloads memory | batches | files FOLDER | drive FILE

A rate is what there is more of, the better. `memory` and `batches` need torch, the others nothing.
"""

import json
import mmap
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

MIB = 1 << 20
#: What a read of a dataset takes at once: an image, or a piece of a row in a table.
SAMPLE_BYTES = 128 << 10
DIRECT_BYTES = 4096


def rate(once: Callable[[], float], least_s: float = 1.5) -> float:
    """Work a second of something that returns how much it did, over at least so many seconds."""
    done, began_s = 0.0, time.perf_counter()
    while time.perf_counter() - began_s < least_s:
        done += once()
    return done / (time.perf_counter() - began_s)


def memory() -> dict[str, float]:
    """New memory written once, rows of a large table read at random, and training steps, on the CPUs."""
    import torch

    table = torch.ones(1 << 23, 64)  # 2 GiB
    rows = torch.randint(len(table), (1 << 18,))

    def fresh() -> float:
        return float(torch.ones(64 * MIB).nbytes)

    def gather() -> float:
        return len(table.index_select(0, rows))

    model = torch.nn.Sequential(
        torch.nn.Linear(1024, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 1024), torch.nn.LayerNorm(1024)
    )
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randn(512, 1024)

    def step() -> float:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        return len(batch)

    for warm in (fresh, gather, step):
        warm()
    return {
        "new memory, bytes/s": rate(fresh),
        "rows of a 2 GiB table at random, rows/s": rate(gather),
        "training step, samples/s": rate(step, 3),
    }


def batches() -> dict[str, float]:
    """How many of 16 batches of 32 MiB arrive from four workers of a DataLoader, where the job keeps all."""
    from torch import Tensor, ones
    from torch.utils.data import DataLoader

    class Made:
        """Batches of a hundred tensors, of which each is a file in shared memory."""

        def __len__(self) -> int:
            return 16

        def __getitem__(self, place: int) -> list[Tensor]:
            return [ones(32 * MIB // 400) for _ in range(100)]

    kept = []
    try:
        # A worker that finds no room says so and goes on; without a bound the job would wait forever.
        for batch in DataLoader(Made(), batch_size=None, num_workers=4, timeout=20):
            kept.append(batch)
    except (RuntimeError, OSError) as error:
        print(str(error).splitlines()[0], file=sys.stderr)
    return {"batches of 16": len(kept)}


def files(folder: Path) -> dict[str, float]:
    """Through the page cache, which is emptied of it before: a file in a row, samples of it, pages of it."""
    path = folder / "large"
    size = path.stat().st_size
    chance = random.Random()

    def dropped() -> int:
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        return descriptor

    def in_a_row() -> float:
        descriptor = dropped()
        while os.read(descriptor, MIB):
            pass
        os.close(descriptor)
        return size

    def samples() -> float:
        descriptor = dropped()
        for _ in range(200):
            os.pread(descriptor, SAMPLE_BYTES, chance.randrange(size // SAMPLE_BYTES) * SAMPLE_BYTES)
        os.close(descriptor)
        return 200

    def mapped() -> float:
        descriptor = dropped()
        with mmap.mmap(descriptor, 0, prot=mmap.PROT_READ) as pages:
            for _ in range(200):
                _ = pages[chance.randrange(size)]
        os.close(descriptor)
        return 200

    return {
        "a file in a row, bytes/s": rate(in_a_row, 3),
        "samples of 128 KiB at random, samples/s": rate(samples),
        "pages of a mapped file at random, pages/s": rate(mapped),
    }


def drive(path: Path) -> dict[str, float]:
    """Reads of 4 KiB past the page cache, alone and beside a writer; and how fast that one is."""
    size, chance = path.stat().st_size, random.Random()
    buffer = mmap.mmap(-1, DIRECT_BYTES)
    reader = os.open(path, os.O_RDONLY | os.O_DIRECT)

    def read() -> float:
        os.preadv(reader, [buffer], chance.randrange(size // DIRECT_BYTES) * DIRECT_BYTES)
        return 1

    alone = rate(read)
    written, ended = [0.0], threading.Event()
    beside = path.with_name("written")

    def write() -> None:
        block = mmap.mmap(-1, MIB)
        block.write(os.urandom(MIB))
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_DIRECT)
        began_s, done = time.perf_counter(), 0
        while not ended.is_set():
            done += os.pwrite(descriptor, block, done % (512 * MIB))
        written[0] = done / (time.perf_counter() - began_s)
        os.close(descriptor)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        shared = rate(read, 3)
    finally:
        ended.set()
        writer.join()
        beside.unlink(missing_ok=True)
    return {
        "reads of 4 KiB alone, reads/s": alone,
        "reads of 4 KiB beside a writer, reads/s": shared,
        "the writer, bytes/s": written[0],
    }


WORKLOADS: dict[str, Callable[..., dict[str, float]]] = {
    one.__name__: one for one in (memory, batches, files, drive)
}


def main() -> None:
    """Run what is named."""
    name, *places = sys.argv[1:]
    print(json.dumps(WORKLOADS[name](*map(Path, places))))


if __name__ == "__main__":
    main()
