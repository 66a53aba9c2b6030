"""How fast the node writes where its training data is, or its checkpoints go."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from validation.backends import storage
from validation.backends.sampling import MOST_ATTEMPTS, calm, rate, repeated
from validation.checks.cost import IdleNode, Step, series
from validation.checks.storage import CHECKED_BLOCKS, MOST_WRITE_S, SAMPLE_S, THREADS, StorageCheck
from validation.findings.catalogue import finding
from validation.model.contract import Measured
from validation.model.not_run import NotRunError
from validation.model.plans import Timing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from validation.model.contract import Measurement
    from validation.processes.child import Request


def measure(request: Request, stage: Callable[[str], None]) -> Measured:
    """In a child: writes to one folder, in several threads and in one. Raises NotRunError."""
    parameters = request.parameters
    path, timing = Path(parameters["path"]), Timing(**parameters["timing"])
    go_on = partial(stage, f"preparing a file in {path}")
    go_on()
    try:
        with storage.opened(path, parameters["most_bytes"], parameters["write_s"], go_on) as source:
            if source.content is None:
                raise NotRunError(f"{path} is a file, and files are only read: name a folder")
            return write(source, path, timing, stage)
    except OSError as error:
        if reason := storage.why_full(path, error):
            raise NotRunError(reason) from error
        return Measured(findings=(finding("storage-error", path=path, error=error.strerror or error),))


def write(source: storage.Source, path: Path, timing: Timing, stage: Callable[[str], None]) -> Measured:
    """The measurement itself. Raises OSError."""
    measurements = []
    with ThreadPoolExecutor(THREADS) as pool:
        for name, threads in (("storage_write_gb_s", THREADS), ("storage_write_one_thread_gb_s", 1)):
            go_on = partial(stage, f"writing to {path} in {threads} threads")
            measurements.append(_rate(name, source, pool, threads, path, timing, go_on))
    blocks = source.size_bytes // storage.BLOCK
    checked = sorted({blocks * place // CHECKED_BLOCKS for place in range(CHECKED_BLOCKS)})
    wrong = []
    for block in checked:
        stage(f"comparing what was written to {path}")
        source.restore(block)
        wrong += [block] if source.wrong(block) else []
    findings = [
        finding(
            "storage-wrong-data",
            path=path,
            wrong=len(wrong),
            checked=len(checked),
            block_mib=storage.BLOCK // storage.MIB,
            first=wrong[0] * storage.BLOCK,
        )
        for _ in wrong[:1]
    ]
    details = {"file_bytes": source.size_bytes, "checked_blocks": len(checked), "cache": source.how}
    return Measured(tuple(measurements), tuple(findings), details=details)


def _rate(
    name: str,
    source: storage.Source,
    pool: ThreadPoolExecutor,
    threads: int,
    path: Path,
    timing: Timing,
    go_on: Callable[[], None],
) -> Measurement:
    # Storage that is slow gets smaller samples, and is not measured again.
    most, first = min(storage.SECTION, source.size_bytes), threads * storage.BLOCK
    seconds = source.write_seconds(pool, threads, 0, first, go_on)
    section = max(first, min(most, int(first * SAMPLE_S / seconds) // storage.BLOCK * storage.BLOCK))
    places = [part * section for part in range(source.size_bytes // section)]
    turn = 0

    def once() -> float:
        nonlocal turn
        turn += 1
        go_on()
        return source.write_seconds(pool, threads, places[turn % len(places)], section, go_on)

    slow = seconds * section / first > SAMPLE_S
    taken, attempts = calm(partial(repeated, once, timing), 1 if slow else MOST_ATTEMPTS)
    conditions: dict[str, int | str] = {"path": str(path), "threads": threads, "cache": source.how}
    return rate(name, section, taken, 1e9, None, conditions, attempts)


class StorageWrite(StorageCheck):
    """Sequential writes of 4 MiB in 8 threads and in one, in each folder of `gpu_validation_storage_paths`.

    Over a file of our own of up to 1 GiB, without a name; each sample ends when the storage has it
    (fdatasync). A path that is a file is not written to.
    """

    id = "storage_write"
    title = "sequential writes where the training data is"
    place = 312
    passes = "blocks that are read again are what was written"
    headline = ("storage_write_gb_s",)

    def cost(self, idle: IdleNode) -> Iterator[Step]:
        """How long it takes for one path."""
        yield Step("write", min(MOST_WRITE_S, idle.plan.storage_write_s))
        yield from series(idle.plan.cpu, 2)
